"""The page in headless Chromium: it fits a phone, can be read in light and dark, asks nothing."""

import browser
import examples
import pytest

from fusebench.report import page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.PATH is None, reason="needs Chromium; there is none here"),
]

# Of every text and mark that is shown: the smallest contrast with what is behind it (WCAG).
CONTRAST = """
(() => {
  const parse = c => (c.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const ratio = (a, b) => {
    const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05);
  };
  const found = { text: [], mark: [] };
  for (const e of document.body.querySelectorAll('*')) {
    if (!e.getClientRects().length) continue;
    const style = getComputedStyle(e), svg = e.closest('svg');
    if (svg) {
      const grid = /-(grid|axis)$/.test(e.getAttribute('class') || '');
      const ink = e.tagName === 'text' || style.stroke === 'none' ? style.fill : style.stroke;
      const kind = e.tagName === 'text' ? 'text' : 'mark';
      if (['text', 'line', 'rect', 'circle', 'polygon'].includes(e.tagName) && !grid)
        found[kind].push([ratio(parse(ink), behind(svg)), e.outerHTML]);
    } else if ([...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) {
      found.text.push([ratio(parse(style.color), behind(e)), e.outerHTML.slice(0, 200)]);
    }
  }
  for (const kind in found) found[kind].sort((a, b) => a[0] - b[0]);
  return { text: found.text[0], mark: found.mark[0], texts: found.text.length,
           paper: light(behind(document.body)) };
})()
"""
OVERFLOW = """
(() => {
  const wide = document.documentElement.clientWidth;
  const out = [...document.body.querySelectorAll('*')].filter(e => !e.closest('.scroll table') &&
    e.getClientRects().length && e.getBoundingClientRect().right > wide + 1);
  return [document.documentElement.scrollWidth - wide, out.map(e => e.outerHTML.slice(0, 150))];
})()
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page.render(examples.everything()))
    return path


@pytest.mark.parametrize("width", [360, 620, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_as_people_see_it(file, width, dark):
    with browser.Page(file, width=width, dark=dark) as shown:
        assert shown.evaluate("document.title") == "fusebench report"
        assert shown.evaluate(OVERFLOW) == [0, []]
        found = shown.evaluate(CONTRAST)
        drawn = "[...document.querySelectorAll('svg')].filter(e => e.getClientRects().length)"
        assert shown.evaluate(f"{drawn}.length") == 13
        smallest = "Math.min(...%s.map(e => e.clientWidth / e.viewBox.baseVal.width))"
        assert shown.evaluate(smallest % drawn) * 12.5 > 9.5  # pixels of a chart's letters
        assert shown.requests == [file.resolve().as_uri(), "data:,"][: len(shown.requests)]
        assert shown.complaints == []
    assert found["texts"] > 300
    assert found["text"][0] >= 4.5 and found["mark"][0] >= 3, found
    assert (found["paper"] < 0.05) if dark else (found["paper"] > 0.9)
