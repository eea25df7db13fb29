"""Rows as a plain-text table that fits a width, and how numbers are written in it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A heading, and how a row's cell is written. left: aligned left, and shortened if need be."""

    heading: str
    cell: Callable[[Row], str]
    left: bool = False


def field(
    name: str, heading: str | None = None, form: Callable[[Any], str] = str, left: bool = False
) -> Column:
    """A column that shows one field of the row; "-" where it is null."""

    def cell(row: Row) -> str:
        value = row.get(name)
        return "-" if value is None else form(value)

    return Column(name if heading is None else heading, cell, left)


def fixed(digits: int) -> Callable[[float], str]:
    return lambda value: f"{value:.{digits}f}"


def significant(value: float) -> str:
    """Three or four digits, never an exponent for what people read as milliseconds."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    digits = 0 if magnitude >= 1000 else 1 if magnitude >= 100 else 2 if magnitude >= 10 else 3
    return f"{value:.{digits if magnitude >= 0.1 else 4}f}"


def interval(value: Mapping[str, float]) -> str:
    return f"{value['value']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"


def scientific(value: float) -> str:
    return f"{value:.1e}"


def size(value: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def percent(value: float) -> str:
    return f"{100 * value:.0f}%"


def render(
    rows: Sequence[Row], tables: Sequence[Sequence[Column]], notes: Sequence[str] = (), *,
    width: int = 100, color: bool = False,
) -> str:  # fmt: skip
    """Rows under one or more sets of columns, and notes below.

    A table holds the rows that have its first column. A row with a `failure` shows its reason in
    place of figures, and only once.
    Left columns are shortened where a table would be wider than `width`.
    """
    out: list[str] = []
    explained: set[int] = set()
    for columns in tables:
        here = [r for r in rows if _belongs(r, columns) and id(r) not in explained]
        if not here:
            continue
        out += (
            ["", *_table(here, columns, width, color)]
            if out
            else _table(here, columns, width, color)
        )
        explained |= {id(r) for r in here if r.get("failure")}
    if notes:
        out.append("")
    for note in notes:
        out += textwrap.wrap(note, width, subsequent_indent="  ") or [""]
    return "\n".join(out)


def _belongs(row: Row, columns: Sequence[Column]) -> bool:
    return columns[0].cell(row) != "-"


def _table(rows: Sequence[Row], columns: Sequence[Column], width: int, color: bool) -> list[str]:
    cells = [[column.cell(row) for column in columns] for row in rows]
    widths = [
        max([len(column.heading), *(len(line[i]) for line in cells)])
        for i, column in enumerate(columns)
    ]
    gap = 2
    surplus = sum(widths) + gap * (len(widths) - 1) - width
    least = [max(8, len(column.heading)) for column in columns]
    while surplus > 0:  # whichever is the widest now gives one
        giving = [i for i, c in enumerate(columns) if c.left and widths[i] > least[i]]
        if not giving:
            break
        widths[max(giving, key=lambda i: widths[i])] -= 1
        surplus -= 1

    def line(texts: Sequence[str]) -> str:
        parts = []
        for text, column, room in zip(texts, columns, widths):
            text = text if len(text) <= room else text[: room - 1] + "…"
            parts.append(text.ljust(room) if column.left else text.rjust(room))
        return (" " * gap).join(parts).rstrip()

    out = [line([column.heading for column in columns])]
    out.append("-" * min(width, max(len(out[0]), sum(widths) + gap * (len(widths) - 1))))
    for row, texts in zip(rows, cells):
        if row.get("failure"):
            out.append(_paint(line([texts[0]] + [""] * (len(texts) - 1)), "31", color))
            reason = f"failed: {row['failure']}"
            out += textwrap.wrap(reason, width, initial_indent="    ", subsequent_indent="    ")
        else:
            out.append(line(texts))
    return out


def _paint(text: str, code: str, color: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if color else text
