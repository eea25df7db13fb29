"""`fusebench report`: what the page holds, what it escapes, what it refuses, what it exports."""

import builtins
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import examples
import pytest

from fusebench.cli import main
from fusebench.report import page
from fusebench.report.canvas import PALETTE
from fusebench.report.results import Results
from fusebench.report.sections import sections
from fusebench.studies import report as study

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """Notes ids, tags and text, and that what was opened is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open, self.ids, self.tags, self.words = [], [], [], []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)


def read(*sources):
    reader = Reader(page.render(list(sources)))
    assert reader.open == []
    return reader


def write(folder, **found):
    paths = []
    for name, results in found.items():
        paths.append(str(folder / f"{name}.json"))
        results.to_json(paths[-1])
    return paths


@pytest.fixture(scope="module")
def everything():
    return read(*examples.everything())


def test_the_page_is_well_formed_and_its_ids_are_its_own(everything):
    assert len(everything.ids) == len(set(everything.ids))
    targets = [v[1:] for n, v in everything.attributes if n == "href" and v.startswith("#")]
    targets += [w for n, v in everything.attributes if n == "aria-labelledby" for w in v.split()]
    assert targets and set(targets) <= set(everything.ids)


def test_it_asks_for_nothing_and_runs_nothing(everything):
    assert "script" not in everything.tags and "img" not in everything.tags
    for name, value in everything.attributes:
        assert not name.startswith("on")
        if name in ("href", "src"):
            assert value.startswith("#") or value == "data:,"
    html = page.render(examples.everything())
    assert not re.search(r"@import|url\(|https?://", html)


@pytest.mark.parametrize(
    "name, results, sentence",
    [
        ("compare", examples.compare(), "cpp@default is the fastest: 2.600 ms, 1.35 times"),
        ("ablate", examples.ablate(), "Keep: qkv_proj, sdpa; leave to Inductor: swiglu_ffn."),
        ("explain", examples.explain(), "from its sites alone one would expect 3.000 ms"),
        ("shapes", examples.shapes(), "Crossover (static): cpp@default wins up to 64 tokens."),
        ("op", examples.op(), "FLOP per byte"),
        ("compile-cost", examples.compile_cost(), "reference@default, warm"),
        ("machine", examples.machine(), "read 256 MiB"),
        ("check", examples.check(), "Are the kernels right?"),
    ],
)
def test_a_section_appears_for_the_study_given_and_only_for_it(name, results, sentence):
    found = sections([(f"{name}.json", results)])
    assert len(found) == 1
    reader = read((f"{name}.json", results))
    assert sentence in reader.text
    assert set(reader.ids) >= {found[0].name, "environment", "commands"}
    assert reader.tags.count("section") == 3


def test_every_chart_says_in_words_what_it_shows_and_has_a_table(everything):
    found = sections(examples.everything())
    for section in found:
        assert section.tables
        for chart in section.charts:
            drawing = chart.draw(720)
            assert drawing.title and len(drawing.description) > 40
    charts = sum(len(section.charts) for section in found)
    assert charts == 13
    assert everything.tags.count("svg") == everything.tags.count("desc") == 2 * charts


def test_inks_stand_out_from_the_paper_in_light_and_dark():
    def light(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return sum(v * w for v, w in zip(parts, (0.2126, 0.7152, 0.0722)))

    for side in (0, 1):
        for name, colours in PALETTE.items():
            for back in ("paper", "panel") if name in ("ink", "muted", "link") else ("paper",):
                dark, bright = sorted(light(c[side]) for c in (colours, PALETTE[back]))
                least = {"paper": 1, "panel": 1, "grid": 1, "axis": 3}.get(name, 4.5)
                assert (bright + 0.05) / (dark + 0.05) >= least, name


def test_a_failed_row_shows_its_reason_in_chart_and_table():
    text = read(("compare.json", examples.compare())).text
    reason = "failed: the result is wrong: error 3e-2, budget 2e-6"
    assert text.count(reason) >= 3  # in the wide chart, its tip or the narrow one, and the table
    assert "compare.json: 1 of 7 rows failed." in text


def test_a_failed_row_still_says_what_it_is():
    text = read(("check.json", examples.check())).text
    assert f"sdpa mine float32 failed: {examples.HOSTILE}" in text
    text = read(("c.json", examples.compile_cost())).text
    assert "mine@default cold failed: it fell over" in text


def test_hostile_names_are_text():
    results = examples.compare(bad=f"{examples.HOSTILE}@default")
    results.notes.append(examples.HOSTILE)
    results.settings["text"] = examples.HOSTILE
    results.environment = {**results.environment, examples.HOSTILE: examples.HOSTILE}
    name = f"{examples.HOSTILE}.json"
    html = page.render([(name, results), ("op.json", examples.op())])
    assert "<script" not in html and "alert(1)<b>" not in html
    reader = Reader(html)
    assert reader.text.count(f"{examples.HOSTILE}@default") >= 2
    assert f"{examples.HOSTILE}.json" in reader.text


def test_a_hostile_study_or_site_stays_inside_its_attributes():
    results = examples.check()
    results.study = '"><img src=x onerror=alert(1)>'
    rows = examples.op()
    for row in rows.rows:
        row["site"] = row["contestant"] = '"/><img src=x>'
    reader = read(("a.json", results), ("b.json", rows))
    assert "img" not in reader.tags


def test_several_files_of_a_study_keep_their_names():
    reader = read(("a.json", examples.compare()), ("b.json", examples.compare(512, 5.0)))
    assert {"comparison-1", "comparison-2", "lengths"} <= set(reader.ids)
    assert "Which variant is fastest? (b.json)" in reader.text


def test_latency_over_length_joins_comparisons_that_differ_only_in_length():
    (chart,) = sections(
        [("a.json", examples.compare()), ("b.json", examples.compare(512, 5.0))]
    )[-1].charts  # fmt: skip
    assert "cpp@default: 2.6 at 128, 13 at 512." in chart.draw(720).description
    other = examples.compare(512)
    for row in other.rows:
        row["dtype"] = "bfloat16"
    names = [s.name for s in sections([("a.json", examples.compare()), ("b.json", other)])]
    assert names == ["comparison-1", "comparison-2"]


@pytest.mark.parametrize("design", ["one-in", "leave-one-out", "factorial"])
def test_the_waterfall_of_an_ablation_arrives_at_what_was_measured(design):
    results = examples.ablate(design)
    (section,) = sections([("a.json", results)])
    steps = section.charts[0].draw.args[2]
    assert (steps[0].value, steps[-1].value) == (3.8, 2.9)
    assert steps[0].value + sum(s.value for s in steps[1:-1]) == pytest.approx(2.9)
    assert [s.label for s in steps[1:4]] == ["qkv_proj", "sdpa", "swiglu_ffn"]
    assert steps[3].value > 0  # swiglu_ffn costs time in the example


def test_a_difference_that_is_not_sure_is_drawn_as_none():
    results = examples.ablate()
    results.rows[0] |= {"contribution": examples.between(1.09, 0.2), "verdict": "no difference"}
    (section,) = sections([("a.json", results)])
    steps = section.charts[0].draw.args[2]
    assert [step.sure for step in steps[1:5]] == [False, True, True, False]
    drawn = [mark.ink for mark in section.charts[0].draw(720).marks if mark.kind == "rect"]
    assert drawn == ["same", "faster", "slower", "same"]


def test_the_parts_of_a_first_call_add_up_to_it():
    (section,) = sections([("c.json", examples.compile_cost())])
    bars = section.charts[0].draw.args[2]
    assert [label for label, _ in bars][:2] == [
        "reference@default, cold",
        "reference@default, warm",
    ]
    assert [sum(s for _, s in parts) for _, parts in bars] == pytest.approx([9.0, 4.0, 9.0, 4.0])
    assert "it fell over" in read(("c.json", examples.compile_cost())).text


def test_an_ablation_with_a_site_that_failed_has_no_waterfall():
    results = examples.ablate()
    results.rows[1] |= {"contribution": None, "saved_ms": None, "verdict": "not measured"}
    (section,) = sections([("a.json", results)])
    assert [chart.name for chart in section.charts] == ["ablation"]
    assert "not measured" in section.charts[0].draw(720).svg()


def test_roofs_are_those_of_the_same_machine_dtype_and_threads():
    def svg(machine):
        found = sections([("op.json", examples.op()), ("machine.json", machine)])
        return next(s for s in found if s.name == "roofline").charts[0].draw(720).svg()

    drawn = svg(examples.machine())
    assert "peak float32: 100.0 GFLOP/s" in drawn and "read 256 MiB: 20.00 GB/s" in drawn
    assert "bfloat16" not in drawn and "peak float32: 50" not in drawn
    elsewhere = examples.machine()
    elsewhere.environment = {**elsewhere.environment, "cpu": "another"}
    assert "peak" not in svg(elsewhere)


def test_without_limits_the_roofline_says_so():
    text = read(("op.json", examples.op(limits=False))).text
    assert "The limits of this machine are not known" in text and "of the limit" not in text


def test_results_of_different_machines_or_interrupted_ones_are_warned_about():
    other = examples.compare()
    other.environment = {**other.environment, "cpu": "another", "torch": "2.11.0"}
    other.environment["noise"] = {"warnings": ["the machine was noisy"]}
    other.interrupted = True
    text = read(("a.json", examples.compare()), ("b.json", other)).text
    assert "different machines" in text and "2.11.0" in text
    assert "b.json: interrupted" in text and "b.json: the machine was noisy." in text


def test_facts_that_differ_are_said_for_each_file():
    other = examples.op()
    other.environment = {**other.environment, "torch": "2.11.0", "time": "later"}
    machine, runs = page.environment([("a.json", examples.op()), ("b.json", other)])
    rows = [cells for cells, _ in machine.rows]
    assert ["cpu", "Some CPU @ 2.10GHz", "all"] in rows
    assert ["torch", "2.14.1", "a.json"] in rows and ["torch", "2.11.0", "b.json"] in rows
    assert [cells[0] for cells, _ in runs.rows] == ["a.json", "b.json"]
    assert "later" in runs.rows[1][0] and ("noise: spread", True) in runs.headings


def test_a_study_with_nothing_in_it_still_makes_a_page():
    text = read(("empty.json", Results("compare", [], {}, {}))).text
    assert "Which variant is fastest?" in text


def test_an_unknown_study_is_shown_as_it_is():
    rows = [{"thing": "a", "time_ms": 1.5, "moved_bytes": 2048, "ratio": examples.between(2.0)},
            {"thing": "b", "time_ms": None, "moved_bytes": 1, "ratio": None}]  # fmt: skip
    text = read(("new.json", Results("new-study", rows))).text
    assert "new-study" in text and "2.0 KiB" in text and "2.00 [1.92, 2.08]" in text


@pytest.mark.parametrize(
    "results, line",
    [
        (
            examples.ablate(),
            "fusebench ablate --model seed --batch 1 --seq 128 --dtype float32 --device cpu "
            "--threads 2 --impl cpp --design one-in --at qkv_proj,sdpa,swiglu_ffn --mode default "
            "--rounds 40 --seed 0",
        ),
        (
            examples.explain(),
            "fusebench explain reference@default cpp@default --model seed --batch 1 --seq 128 "
            "--dtype float32 --device cpu --threads 2 --rounds 40",
        ),
        (examples.check(), "fusebench check sdpa"),
        (
            Results("choose", [], {}, {"model": "seed", "impl": ["cpp", "flex"], "rounds": 8}),
            "fusebench choose --model seed --impl cpp --impl flex --rounds 8",
        ),
        (
            examples.shapes(),
            "fusebench shapes reference@default --model seed --batch 1 --dtype float32 "
            "--device cpu --threads 2 --lengths 64,128,256 --rounds 20 --policy automatic "
            "--policy static",
        ),
        (
            Results("inspect", [], {}, {"variants": ["a@default", "b@eager"], "target": "sm_90"}),
            "fusebench inspect a@default --beside b@eager --target sm_90",
        ),
    ],
)
def test_the_command_that_made_it(results, line):
    if results.study == "check":
        results.settings["op"] = "sdpa"
    assert page.command(results) == line


def test_the_command_line_that_was_typed_goes_before_any_other():
    results = examples.compare()
    results.command = "fusebench compare --plan best.toml"
    assert page.command(results) == "fusebench compare --plan best.toml"


def test_a_command_has_what_was_imported_and_what_was_forbidden():
    settings = {"impl": "cpp", "widths": True, "prepare": False, "with": ["/a.py", "/b.py"]}
    line = "fusebench ablate --no-prepare --impl cpp --widths --with /a.py --with /b.py"
    assert page.command(Results("ablate", [], {}, settings)) == line
    assert "prepare" not in page.command(Results("ablate", [], {}, {"prepare": True}))


def test_a_command_is_quoted_for_the_shell():
    assert page.command(examples.compare(bad="a;rm -rf ~@default")).count("'a;rm -rf ~@default'")


def test_the_command_line_writes_the_page_and_the_charts(tmp_path, capsys):
    files = write(tmp_path, compare=examples.compare(), ablate=examples.ablate())
    output, folder = tmp_path / "out.html", tmp_path / "charts"
    with pytest.raises(SystemExit) as end:
        main(["report", *files, "-o", str(output), "--svg", str(folder)])
    assert end.value.code == 0
    assert output.read_text().startswith("<!DOCTYPE html>")
    names = ["ablation-waterfall.svg", "ablation.svg", "comparison.svg"]
    assert sorted(p.name for p in folder.iterdir()) == names
    for path in folder.iterdir():
        root = ET.parse(path).getroot()
        assert root.tag.endswith("svg") and root.find("{*}title").text
        assert "class=" not in path.read_text()  # it stands without a style sheet
    assert capsys.readouterr().out.splitlines()[-1] == f"wrote {output}"


def test_files_of_one_name_are_told_apart(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
    paths = [*write(tmp_path / "a", x=examples.compare()), *write(tmp_path / "b", x=examples.op())]
    assert [name for name, _ in study.sources_of(paths)] == paths


@pytest.mark.parametrize(
    "text, says",
    [
        ("not json", "is not JSON"),
        ("[]", "schema of"),
        ('{"schema": 99, "rows": []}', "is 99, expected 1"),
        ('{"rows": []}', "is None, expected 1"),
        (None, "not a file"),
    ],
)
def test_what_is_no_result_file_is_refused_in_one_line(tmp_path, capsys, text, says):
    file = tmp_path / "bad.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SystemExit) as end:
        main(["report", str(file), "-o", str(tmp_path / "out.html")])
    error = capsys.readouterr().err
    assert end.value.code == 2 and says in error and "bad.json" in error
    assert len(error.splitlines()) == 1 and not (tmp_path / "out.html").exists()


def test_a_result_file_with_rows_of_another_shape_is_refused(tmp_path, capsys):
    file = tmp_path / "odd.json"
    file.write_text('{"schema": 1, "study": "compare", "rows": [1, 2]}')
    with pytest.raises(SystemExit) as end:
        main(["report", str(file), "-o", str(tmp_path / "out.html")])
    error = capsys.readouterr().err
    assert end.value.code == 2 and len(error.splitlines()) == 1 and "odd.json" in error


def test_places_that_cannot_be_written_are_refused(tmp_path, capsys):
    (file,) = write(tmp_path, compare=examples.compare())
    for arguments in (["-o", str(tmp_path / "no" / "x.html")], ["-o", str(tmp_path / "x.html"),
                      "--svg", file]):  # fmt: skip
        with pytest.raises(SystemExit) as end:
            main(["report", file, *arguments])
        assert end.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "x.html").exists()


def test_png_without_matplotlib_is_one_clear_error(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    files = write(tmp_path, compare=examples.compare())
    with pytest.raises(ValueError, match=r"--png needs matplotlib.*fusebench\[plots\]"):
        study.report(files, None, png=tmp_path / "png")


def test_png_is_a_picture_of_the_drawing(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    files = write(tmp_path, op=examples.op(), machine=examples.machine(), ablate=examples.ablate())
    written = study.report(files, None, png=tmp_path / "png")
    assert {p.name for p in written} == {
        "roofline.png", "ops.png", "ablation-waterfall.png", "ablation.png",
    }  # fmt: skip
    for path in written:
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG")
        assert int.from_bytes(data[16:20], "big") == 1440
