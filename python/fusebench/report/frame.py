"""What charts are framed with: rows and their labels, axes, legends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusebench.report.canvas import FONT, SERIES, SHAPES, Drawing, Scale, shorten, text_width

NARROW_BELOW = 500
PAD = 8.0
LINE = 18.0  # from one line of text to the next

Form = Callable[[float], str]  # how a tick is written


class Rows:
    """Rows of a horizontal chart: labels beside the plot, or above it where it is narrow."""

    def __init__(self, sheet: Drawing, labels: Sequence[str], notes: float) -> None:
        self.labels, self.narrow = labels, sheet.width < NARROW_BELOW
        beside = max(text_width(label, mono=True) for label in labels) + 2 * PAD
        self.room = sheet.width - notes - 2 * PAD if self.narrow else min(beside, 270.0)
        self.left = 2 * PAD if self.narrow else self.room
        self.right = sheet.width - (2 * PAD if self.narrow else notes + 2 * PAD)
        self.pitch = 2 * LINE + 8 if self.narrow else 30.0
        self.top = 0.0

    def begin(self, top: float) -> float:
        """Start below `top`; the lower end of the rows."""
        self.top = top
        return top + self.pitch * len(self.labels)

    @property
    def middles(self) -> list[float]:
        """The height of each row's mark."""
        share = 0.7 if self.narrow else 0.5
        return [self.top + self.pitch * (i + share) for i in range(len(self.labels))]

    def rows(self, sheet: Drawing) -> list[float]:
        """Write the labels; the middle of each row."""
        for label, middle in zip(self.labels, self.middles):
            text = shorten(label, self.room - PAD, mono=True)
            sheet.text(PAD, self.note(middle), text, mono=True, tip=label)
        return self.middles

    def note(self, middle: float) -> float:
        """The baseline of a row's texts."""
        return middle - 13 if self.narrow else middle + 0.35 * FONT


def x_axis(sheet: Drawing, scale: Scale, top: float, bottom: float, name: str, form: Form) -> None:
    """Grid, ticks and name below a plot; ends the sheet."""
    x_ticks(sheet, scale, scale.ticks(int((scale.stop - scale.start) / 60)), top, bottom, form)
    name = shorten(name, scale.stop)
    sheet.text(scale.stop, bottom + 2 * LINE + 2, name, "muted", anchor="end")
    sheet.height = bottom + 2 * LINE + PAD + 2


def x_ticks(
    sheet: Drawing, scale: Scale, ticks: Sequence[float], top: float, bottom: float, form: Form
) -> None:
    """Grid lines at the ticks, with their numbers below, and the line they stand on."""
    for value in ticks:
        x = scale(value)
        sheet.line(x, top, x, bottom, "grid")
        sheet.text(x, bottom + LINE - 2, form(value), "muted", anchor="middle")
    sheet.line(scale.start, bottom, scale.stop, bottom, "axis")


def y_axis(sheet: Drawing, scale: Scale, left: float, right: float, form: Form) -> None:
    """Grid lines across the plot, with their numbers left of it."""
    for value in scale.ticks(int(abs(scale.start - scale.stop) / 34)):
        y = scale(value)
        sheet.line(left, y, right, y, "grid")
        sheet.text(left - 6, y + 4, form(value), "muted", anchor="end")


def legend(sheet: Drawing, entries: Sequence[tuple[str, str, str]]) -> float:
    """Names with their marks, in as many lines as they need; where the legend ends."""
    x, y = PAD, LINE
    for label, ink, shape in entries:
        text = shorten(label, sheet.width - 4 * PAD, mono=True)
        wide = text_width(text, mono=True) + 3.5 * PAD
        if x > PAD and x + wide > sheet.width:
            x, y = PAD, y + LINE
        sheet.dot(x + 5, y - 4, ink, shape=shape, width=4.5)
        sheet.text(x + 16, y, text, mono=True, tip=label if text != label else "")
        x += wide
    return y + PAD / 2


def style_of(index: int) -> tuple[str, str]:
    """The ink and the shape of a series; shapes change too, for who cannot tell the inks apart."""
    return f"s{index % SERIES}", SHAPES[(index + index // SERIES) % len(SHAPES)]


def apart(values: Sequence[float], scale: Scale, room: float) -> list[float]:
    """Those values whose labels do not run into one another."""
    kept: list[float] = []
    for value in values:
        if not kept or scale(value) - scale(kept[-1]) >= room:
            kept.append(value)
    return kept


def plain(value: float) -> str:
    """A tick's number, as short as it is exact."""
    return f"{value:,.10g}" if abs(value) < 1e6 else f"{value:.0e}"
