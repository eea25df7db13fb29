"""The charts of a report: what each shows, drawn for a given width (a page's, or a phone's)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fusebench.report.canvas import FONT, Drawing, Scale, shorten, spanning, text_width
from fusebench.report.frame import (
    LINE,
    NARROW_BELOW,
    PAD,
    Rows,
    apart,
    legend,
    plain,
    style_of,
    x_axis,
    x_ticks,
    y_axis,
)
from fusebench.report.table import significant

WIDE, NARROW = 720, 330  # the widths a page asks for


@dataclass(frozen=True)
class Estimate:
    """A ratio with its interval. verdict: faster, slower, same or suspect; why: of a failure."""

    label: str
    value: float | None = None
    low: float = 0.0
    high: float = 0.0
    verdict: str = "same"
    note: str = ""
    why: str = ""


@dataclass(frozen=True)
class Step:
    """A bar of a waterfall: a difference, or a total that it starts from or arrives at.

    sure: whether the difference is one, beyond what chance does.
    """

    label: str
    value: float
    total: bool = False
    sure: bool = True


@dataclass(frozen=True)
class Series:
    """A line through points (x, y), by x."""

    label: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Point:
    """A kernel on the roofline: what it reached, and the limit that binds it (0: not known)."""

    label: str
    series: str
    intensity: float
    gflops: float
    limit: float = 0.0


@dataclass(frozen=True)
class Roof:
    """A ceiling of the machine: a peak in GFLOP/s, or a bandwidth in GB/s."""

    label: str
    value: float
    bandwidth: bool


def intervals(
    title: str, description: str, rows: Sequence[Estimate], axis: str, width: float
) -> Drawing:
    """Each ratio as a dot in its 95% interval, on a logarithmic axis around 1."""
    sheet = Drawing(title, description, width)
    notes = max(text_width(row.note) for row in rows) + PAD
    body = Rows(sheet, [row.label for row in rows], notes)
    known = [v for r in rows if r.value for v in (r.low, r.high, r.value) if v > 0]
    scale = spanning([*known, 1.0], body.left, body.right, log=True)
    top = LINE + PAD
    bottom = body.begin(top)
    x_axis(sheet, scale, top, bottom, axis, lambda v: f"{plain(v)}×")
    one = scale(1.0)
    sheet.line(one, top - 4, one, bottom, "axis", width=1.5)
    for x, text, ink, anchor in (
        (one - PAD, "← slower", "slower", "end"), (one + PAD, "faster →", "faster", "start")
    ):  # fmt: skip
        room = one - body.left if anchor == "end" else body.right - one
        if room > text_width(text):
            sheet.text(x, top - 8, text, ink, anchor=anchor)
    for row, y in zip(rows, body.rows(sheet)):
        if row.value is None:
            text = f"failed: {row.why}" if row.why else "not measured"
            short = shorten(text, width - PAD - body.left)
            sheet.text(body.left, y + 4, short, "failed", tip=text)
            continue
        ink = {"same": "same", "suspect": "failed"}.get(row.verdict, row.verdict)
        interval = f"{row.value:.2f} [{row.low:.2f}, {row.high:.2f}]"
        low, high = scale(max(row.low, 1e-9)), scale(max(row.high, 1e-9))
        sheet.line(low, y, high, y, ink, width=2.5)
        for end in (low, high):
            sheet.line(end, y - 4, end, y + 4, ink, width=1.5)
        sheet.dot(
            scale(row.value), y, ink, hollow=row.verdict == "same",
            tip=f"{row.label}: {interval} times",
        )  # fmt: skip
        sheet.text(width - PAD, body.note(y), row.note, anchor="end")
    return sheet


def waterfall(
    title: str, description: str, steps: Sequence[Step], axis: str, width: float
) -> Drawing:
    """From a total by differences to another one: blue saves time, orange costs it, grey is not
    sure."""
    sheet = Drawing(title, description, width)
    notes = [significant(s.value) if s.total else _signed(s.value) for s in steps]
    body = Rows(sheet, [s.label for s in steps], max(map(text_width, notes)) + PAD)
    levels, level = [], 0.0
    for step in steps:
        before = 0.0 if step.total else level
        level = step.value if step.total else level + step.value
        levels.append((before, level))
    ends = [after for _, after in levels]
    # Bars from zero would hide differences much smaller than the totals.
    cut = max(ends) - min(ends) < 0.5 * max(ends)
    scale = spanning(ends if cut else [*ends, 0.0], body.left, body.right)
    if not cut and min(ends) >= 0:
        scale = Scale(0.0, scale.high, body.left, body.right)
    bottom = body.begin(PAD)
    x_axis(sheet, scale, PAD, bottom, axis + (" (not from 0)" if cut else ""), plain)
    ys, half = body.middles, 7.0
    for after, y, below in zip(ends, ys, ys[1:]):
        sheet.line(scale(after), y + half, scale(after), below - half, "axis")
    body.rows(sheet)
    for step, (before, after), y, note in zip(steps, levels, ys, notes):
        tip = f"{step.label}: {note}"
        x = scale(after)
        if step.total and cut:
            sheet.dot(x, y, "ink", shape="diamond", width=6.0, tip=tip)
        else:
            start = scale(before)
            ink = "ink" if step.total else _better(step)
            sheet.rect(min(x, start), y - half, max(abs(x - start), 1.0), 2 * half, ink, tip=tip)
        sheet.text(width - PAD, body.note(y), note, anchor="end", bold=step.total)
    return sheet


def lines(
    title: str, description: str, series: Sequence[Series], x_name: str, y_name: str, width: float
) -> Drawing:
    """One line per series, both axes logarithmic, ticks where the points are."""
    sheet = Drawing(title, description, width)
    styles = [style_of(i) for i in range(len(series))]
    top = legend(sheet, [(s.label, *style) for s, style in zip(series, styles)]) + LINE + PAD
    bottom, left = top + 160 + 0.2 * width, 56.0
    xs = sorted({x for s in series for x, _ in s.points})
    across = spanning(xs, left, width - PAD, log=True)
    up = spanning([y for s in series for _, y in s.points], bottom, top, log=True)
    sheet.text(PAD, top - PAD, y_name, "muted")
    y_axis(sheet, up, left, width - PAD, plain)
    x_ticks(sheet, across, apart(xs, across, 44), top, bottom, lambda v: f"{v:.0f}")
    sheet.text(width - PAD, bottom + 2 * LINE + 4, x_name, "muted", anchor="end")
    for s, (ink, shape) in zip(series, styles):
        places = [(across(x), up(y)) for x, y in s.points]
        for (x1, y1), (x2, y2) in pairwise(places):
            sheet.line(x1, y1, x2, y2, ink, width=2)
        for (x, y), (length, value) in zip(places, s.points):
            tip = f"{s.label} at {length:.0f}: {significant(value)}"
            sheet.dot(x, y, ink, shape=shape, width=4.5, tip=tip)
    sheet.height = bottom + 2 * LINE + PAD + 4
    return sheet


def roofline(
    title: str, description: str, points: Sequence[Point], roofs: Sequence[Roof], width: float
) -> Drawing:
    """What each kernel reached, under the limit of its site and the ceilings of the machine."""
    sheet = Drawing(title, description, width)
    names = list(dict.fromkeys(p.series for p in points))
    style = {name: style_of(i) for i, name in enumerate(names)}
    top = legend(sheet, [(name, *style[name]) for name in names]) + LINE + PAD
    narrow = width < NARROW_BELOW
    for roof in roofs if narrow else ():
        sheet.text(PAD, top - PAD, roof.label, "muted")
        top += LINE
    bottom, left, right = top + 200 + 0.2 * width, 56.0, width - PAD
    # Room above the highest limit, where the sites' names stand.
    xs = [p.intensity for p in points]
    across = spanning(xs, left + 30, right - 30, log=True, margin=0.15)
    across = spanning([across.low / 1.2, across.high * 1.2], left, right, log=True, margin=0)
    ys = [v for p in points for v in (p.gflops, p.limit) if v > 0]
    ys += [r.value for r in roofs if not r.bandwidth]
    up = spanning([*ys, max(ys) * 1.6], bottom, top, log=True, margin=0.08)
    sheet.text(PAD, top - PAD, "GFLOP/s", "muted")
    y_axis(sheet, up, left, right, plain)
    x_ticks(
        sheet, across, across.ticks(int((right - left) / 60)), top, bottom, plain
    )  # fmt: skip
    sheet.text(right, bottom + 2 * LINE + 4, "FLOP per byte", "muted", anchor="end")
    labels = [_roof(sheet, roof, roofs, across, up) for roof in roofs]
    taken: list[tuple[float, float, float]] = []
    for site in dict.fromkeys(p.label for p in points):
        there = [p for p in points if p.label == site]
        x, limit = across(there[0].intensity), max(p.limit for p in there)
        y = up(max(limit, *(p.gflops for p in there)))
        if limit:
            sheet.line(x, up(limit), x, up(min(p.gflops for p in there)), "grid", width=1.5)
            tip = f"{site}: the limit is {significant(limit)} GFLOP/s"
            sheet.line(x - 9, up(limit), x + 9, up(limit), "ink", width=2.5, tip=tip)
        _name(sheet, site, x, y - 8, left, right, taken)
        for p in there:
            ink, shape = style[p.series]
            share = f", {100 * p.gflops / p.limit:.0f}% of the limit" if p.limit else ""
            tip = f"{site} {p.series}: {significant(p.gflops)} GFLOP/s{share}"
            sheet.dot(x, up(p.gflops), ink, shape=shape, tip=tip)
            taken.append((up(p.gflops) + 4, x - 6, x + 6))
    for text, x, y in filter(None, () if narrow else labels):
        _name(sheet, text, x, y, left, right, taken, ink="muted")
    sheet.height = bottom + 2 * LINE + PAD + 4
    return sheet


def stacked(
    title: str, description: str, rows: Sequence[tuple[str, Sequence[tuple[str, float]]]],
    axis: str, width: float,
) -> Drawing:  # fmt: skip
    """A bar per row, made of named parts that add up."""
    sheet = Drawing(title, description, width)
    names = list(dict.fromkeys(name for _, parts in rows for name, _ in parts))
    inks = {name: style_of(i)[0] for i, name in enumerate(names)}
    top = legend(sheet, [(name, inks[name], "square") for name in names]) + PAD
    totals = [sum(value for _, value in parts) for _, parts in rows]
    notes = [significant(total) for total in totals]
    body = Rows(sheet, [label for label, _ in rows], max(map(text_width, notes)) + PAD)
    scale = Scale(0.0, max(totals) * 1.04 or 1.0, body.left, body.right)
    bottom = body.begin(top)
    x_axis(sheet, scale, top, bottom, axis, plain)
    for (label, parts), note, y in zip(rows, notes, body.rows(sheet)):
        done = 0.0
        for name, value in parts:
            x = scale(done)
            tip = f"{label}, {name}: {significant(value)}"
            done += value
            if value > 0:
                sheet.rect(x, y - 7, scale(done) - x, 14, inks[name], tip=tip)
        sheet.text(width - PAD, body.note(y), note, anchor="end")
    return sheet


def _roof(
    sheet: Drawing, roof: Roof, roofs: Sequence[Roof], across: Scale, up: Scale
) -> tuple[str, float, float] | None:
    """Draw a ceiling, up to where it meets the peak or the edge; its label and where it goes."""
    room = text_width(roof.label) / 2
    if not roof.bandwidth:
        widest = max((r.value for r in roofs if r.bandwidth), default=0.0)
        start = max(across.low, roof.value / widest) if widest else across.low
        if start >= across.high:
            return None
        y = up(roof.value)
        sheet.line(across(start), y, across.stop, y, "axis", width=2, tip=roof.label)
        return roof.label, across(start) + room + PAD, y - 6
    peak = min((r.value for r in roofs if not r.bandwidth), default=up.high)
    low = max(across.low, up.low / roof.value)
    high = min(across.high, min(peak, up.high) / roof.value)
    if low >= high:
        return None
    ends = across(low), up(low * roof.value), across(high), up(high * roof.value)
    sheet.line(*ends, "axis", width=2, tip=roof.label)
    # Left of the line, as far up as the label needs: nothing is above a ceiling.
    x = min(max(across.start + 2 * room + 2 * PAD, ends[0]), ends[2])
    share = (x - ends[0]) / (ends[2] - ends[0])
    return roof.label, x - PAD - room, ends[1] + share * (ends[3] - ends[1])


def _name(
    sheet: Drawing, text: str, x: float, y: float, left: float, right: float,
    taken: list[tuple[float, float, float]], ink: str = "ink",
) -> None:  # fmt: skip
    """Write a name centred at x, above y, and higher where something else stands."""
    mono = ink == "ink"
    half = text_width(text, mono) / 2 + 3
    x = min(max(x, left + half), right - half)
    while any(abs(y - other) < FONT and x - half < b and a < x + half for other, a, b in taken):
        y -= FONT / 2
    taken.append((y, x - half, x + half))
    sheet.text(x, y, text, ink, anchor="middle", mono=mono)


def _better(step: Step) -> str:
    """The ink of a change in time."""
    if not step.sure or not step.value:
        return "same"
    return "faster" if step.value < 0 else "slower"


def _signed(value: float) -> str:
    return ("+" if value > 0 else "−" if value < 0 else "") + significant(abs(value))
