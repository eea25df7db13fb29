"""Drawings of a few primitives: SVG inside a page or in a file of its own, PNG by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from fusebench.report.results import write

# ink -> (on light, on dark). Blue against orange is told apart by every kind of colour vision.
PALETTE = {
    "ink": ("#1b1f24", "#e6e9ed"),
    "muted": ("#59626d", "#9da7b3"),
    "grid": ("#dde1e6", "#30363e"),
    "axis": ("#8a939e", "#6c7681"),
    "paper": ("#ffffff", "#14171b"),
    "panel": ("#f5f6f8", "#1c2026"),
    "faster": ("#1f5fbf", "#74a9ff"),
    "slower": ("#b3490f", "#ff9a5c"),
    "same": ("#6b7480", "#8f99a5"),
    "failed": ("#b3261e", "#ff8a80"),
    "link": ("#1a56b0", "#82b1ff"),
    "s0": ("#1f5fbf", "#74a9ff"),
    "s1": ("#b3490f", "#ff9a5c"),
    "s2": ("#0b7a5c", "#4fd1a5"),
    "s3": ("#8e3fa8", "#d8a1ec"),
    "s4": ("#8a6a00", "#e3c04b"),
    "s5": ("#5b6470", "#a9b2bd"),
}
SERIES = 6  # inks s0 to s5
SHAPES = ("circle", "square", "triangle", "diamond")
FONT = 12.5
MONO_EM = 0.602  # the width of a monospace character
SANS_EM = 0.54  # and of an average other one
HALO = 4  # paper around a text, so that no line runs through it
PER_INCH = 100  # units of a drawing in an inch of a PNG


@dataclass(frozen=True)
class Mark:
    """One primitive. at: x1 y1 x2 y2 of a line, x y w h of a rectangle, x y of a dot or a text."""

    kind: str
    at: tuple[float, ...]
    ink: str
    text: str = ""
    tip: str = ""
    anchor: str = "start"
    width: float = 1.0
    dashed: bool = False
    hollow: bool = False
    bold: bool = False
    mono: bool = False
    shape: str = "circle"


@dataclass
class Drawing:
    """Marks on a sheet, with a title and a description for who cannot see it."""

    title: str
    description: str
    width: float
    height: float = 0.0
    marks: list[Mark] = field(default_factory=list)

    def line(self, x1: float, y1: float, x2: float, y2: float, ink: str, **how) -> None:
        self.marks.append(Mark("line", (x1, y1, x2, y2), ink, **how))

    def rect(self, x: float, y: float, w: float, h: float, ink: str, **how) -> None:
        self.marks.append(Mark("rect", (x, y, w, h), ink, **how))

    def dot(self, x: float, y: float, ink: str, **how) -> None:
        self.marks.append(Mark("dot", (x, y), ink, **{"width": 5.0, **how}))

    def text(self, x: float, y: float, text: str, ink: str = "ink", **how) -> None:
        """A line of text whose baseline is at y."""
        self.marks.append(Mark("text", (x, y), ink, text=text, **how))

    def svg(self, name: str | None = None) -> str:
        """As SVG: with a name for a page that defines the inks as classes, else on its own."""
        size = f'viewBox="0 0 {_n(self.width)} {_n(self.height)}"'
        if name is None:
            start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} width="{_n(self.width)}" '
            head = [f'{start}height="{_n(self.height)}" font-size="{FONT}">',
                    f'<rect width="100%" height="100%" fill="{PALETTE["paper"][0]}"/>']  # fmt: skip
            ids = ("", "")
        else:
            names = f"{name}-title {name}-desc"
            head = [f'<svg {size} role="img" aria-labelledby="{names}" class="chart">']
            ids = (f' id="{name}-title"', f' id="{name}-desc"')
        head[1:1] = [f"<title{ids[0]}>{escape(self.title)}</title>",
                     f"<desc{ids[1]}>{escape(self.description)}</desc>"]  # fmt: skip
        return "\n".join([*head, *(_svg(mark, name is not None) for mark in self.marks), "</svg>"])

    def save_svg(self, path: str | Path) -> None:
        write(path, self.svg() + "\n")

    def save_png(self, path: str | Path) -> None:
        """As PNG at twice the size, for documents; needs matplotlib (the extra `plots`)."""
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ValueError(
                "report: --png needs matplotlib: pip install 'fusebench[plots]'; --svg does not"
            ) from error
        size = (self.width / PER_INCH, self.height / PER_INCH)
        figure = Figure(figsize=size, dpi=2 * PER_INCH, facecolor=PALETTE["paper"][0])
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, self.width), ylim=(self.height, 0))
        axes.set_axis_off()
        for mark in self.marks:
            _plot(mark, axes)
        for order, artist in enumerate(axes.get_children()):
            artist.set_zorder(order)  # else all patches lie below all lines
        figure.savefig(path)


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def _svg(m: Mark, classes: bool) -> str:
    stroke = m.kind == "line" or m.hollow
    if classes:
        kind = ("l-" if stroke else "f-") + m.ink + (" mono" if m.mono else "")
        style = f'class="{kind}"'
    else:
        colour = PALETTE[m.ink][0]
        fill = PALETTE["paper"][0] if m.hollow and m.kind == "dot" else "none"
        style = f'fill="{fill}" stroke="{colour}"' if stroke else f'fill="{colour}"'
        if m.kind == "text":
            family = "monospace" if m.mono else "system-ui, sans-serif"
            style += f' font-family="{family}" paint-order="stroke"'
            style += f' stroke="{PALETTE["paper"][0]}" stroke-width="{HALO}"'
    if stroke:
        style += f' stroke-width="{_n(2 if m.kind == "dot" else m.width)}"'
    if m.dashed:
        style += ' stroke-dasharray="4 4"'
    tip = f"<title>{escape(m.tip)}</title>" if m.tip else ""
    at = [_n(v) for v in m.at]
    if m.kind == "line":
        shape = f'line x1="{at[0]}" y1="{at[1]}" x2="{at[2]}" y2="{at[3]}"'
    elif m.kind == "rect":
        shape = f'rect x="{at[0]}" y="{at[1]}" width="{at[2]}" height="{at[3]}"'
    elif m.kind == "text":
        more = "" if m.anchor == "start" else f' text-anchor="{m.anchor}"'
        more += ' font-weight="600"' if m.bold else ""
        return f'<text x="{at[0]}" y="{at[1]}"{more} {style}>{escape(m.text)}{tip}</text>'
    elif m.shape == "circle":
        shape = f'circle cx="{at[0]}" cy="{at[1]}" r="{_n(m.width)}"'
    else:
        points = " ".join(f"{_n(x)},{_n(y)}" for x, y in _corners(m))
        shape = f'polygon points="{points}"'
    return f"<{shape} {style}>{tip}</{shape.split()[0]}>" if tip else f"<{shape} {style}/>"


def _corners(m: Mark) -> list[tuple[float, float]]:
    """Of a dot that is no circle; all shapes have about the same area."""
    (x, y), r = m.at, m.width
    if m.shape == "square":
        r *= 0.9
        return [(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)]
    r *= 1.25
    if m.shape == "diamond":
        return [(x, y - r), (x + r, y), (x, y + r), (x - r, y)]
    return [(x, y - r), (x + r, y + 0.8 * r), (x - r, y + 0.8 * r)]


def _plot(m: Mark, axes) -> None:
    """The same mark by matplotlib, in a figure whose units are those of the drawing."""
    from matplotlib import patches
    from matplotlib.lines import Line2D
    from matplotlib.patheffects import withStroke

    colour, point = PALETTE[m.ink][0], 72 / PER_INCH
    if m.kind == "line":
        style = (0, (4, 4)) if m.dashed else "-"
        axes.add_line(
            Line2D(m.at[::2], m.at[1::2], color=colour, lw=m.width * point, ls=style)
        )  # fmt: skip
        return
    if m.kind == "text":
        align = {"start": "left", "middle": "center", "end": "right"}[m.anchor]
        axes.text(
            *m.at, m.text, color=colour, ha=align, va="baseline", fontsize=FONT * point * 0.92,
            weight="bold" if m.bold else "normal", parse_math=False,
            family="monospace" if m.mono else "sans-serif",
            path_effects=[withStroke(linewidth=HALO * point, foreground=PALETTE["paper"][0])],
        )  # fmt: skip
        return
    how: dict[str, Any] = {"facecolor": PALETTE["paper"][0] if m.hollow else colour}
    how |= {"edgecolor": colour, "linewidth": 2 * point} if m.hollow else {"linewidth": 0}
    x, y, *size = m.at
    if m.kind == "rect":
        axes.add_patch(patches.Rectangle((x, y), *size, **how))
    elif m.shape == "circle":
        axes.add_patch(patches.Circle((x, y), m.width, **how))
    else:
        axes.add_patch(patches.Polygon(_corners(m), **how))


def text_width(text: str, mono: bool = False) -> float:
    """About how wide a text is drawn."""
    return len(text) * FONT * (MONO_EM if mono else SANS_EM)


def shorten(text: str, room: float, mono: bool = False) -> str:
    """The text where it fits, else its beginning; of a name both ends, where variants differ."""
    fits = max(int(room / (FONT * (MONO_EM if mono else SANS_EM))), 3)
    if len(text) <= fits:
        return text
    tail = (fits - 1) // 2 if mono else 0
    return f"{text[: fits - 1 - tail]}…{text[len(text) - tail :]}"


@dataclass(frozen=True)
class Scale:
    """From values to places on the sheet, evenly or by their logarithm."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (
            (math.log(self.low), math.log(self.high), math.log(value))
            if self.log
            else (self.low, self.high, value)
        )
        return self.start + (value - low) / (high - low) * (self.stop - self.start)

    def ticks(self, count: int) -> list[float]:
        """At most about `count` round values; on a logarithmic scale the finest that fit."""
        if not self.log or self.high / self.low < 4:
            step = _round_up((self.high - self.low) / count)
            first = math.ceil(self.low / step - 1e-9)
            return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for parts in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,)):
            found = [p * 10.0**e for e in powers for p in parts]
            found = [v for v in found if self.low <= v * (1 + 1e-9) and v <= self.high * (1 + 1e-9)]
            if len(found) <= max(count, 2):
                return found
        return found[:: math.ceil(len(found) / count)]


def _round_up(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(p * power for p in (1, 2, 5, 10) if p * power >= value * (1 - 1e-9))


def spanning(
    values: Sequence[float], start: float, stop: float, *, log: bool = False, margin: float = 0.06
) -> Scale:
    """A scale that holds all the values, with some room at both ends."""
    low, high = min(values), max(values)
    if log:
        room = max((high / low) ** margin, 1.02)
        return Scale(low / room, high * room, start, stop, True)
    room = (high - low) * margin or abs(high) * margin or 1.0
    return Scale(low - room, high + room, start, stop)
