"""Tables of a page: the columns of the text tables, and any study's rows as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fusebench.report.table import (
    Column,
    Row,
    interval,
    percent,
    scientific,
    significant,
    size,
)

FORMS: dict[str, Callable[[Any], str]] = {
    "_ms": significant, "_us": significant, "_s": significant, "bytes": size, "bytes_in": size,
    "bytes_out": size, "error": scientific, "share": percent,
}  # fmt: skip
SILENT = {"failure", "detail", "samples_ms", "error_budget"}


@dataclass(frozen=True)
class Table:
    """headings: with whether the column is words. rows: cells, and why the row failed or None."""

    caption: str
    headings: list[tuple[str, bool]]
    rows: list[tuple[list[str], str | None]]

    @property
    def names(self) -> int:
        """How many leading columns are words: what a row is, which a failed row shows, too."""
        words = [word for _, word in self.headings]
        leading = words.index(False) if False in words else len(words) - 1
        return max(leading, 1)


def table(caption: str, rows: Iterable[Row], columns: Sequence[Column]) -> Table | None:
    """Rows under those columns that have something to show; None where there are no rows."""
    rows = list(rows)
    cells = [[column.cell(row) for column in columns] for row in rows]
    shown = [
        i for i, column in enumerate(columns) if not i or any(line[i] != "-" for line in cells)
    ]
    headings = [(columns[i].heading, columns[i].left) for i in shown]
    body = [([line[i] for i in shown], row.get("failure")) for line, row in zip(cells, rows)]
    return Table(caption, headings, body) if rows else None


def good(rows: Iterable[Row]) -> list[Row]:
    """Those that did not fail: a reason is shown once, in the first table."""
    return [row for row in rows if not row.get("failure")]


def anything(rows: Sequence[Row]) -> list[Table]:
    """The rows of a study that has no section of its own: one table per set of fields."""
    kinds: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        kinds.setdefault(tuple(row), []).append(row)
    found = (_plain(names, of_kind) for names, of_kind in kinds.items())
    return [each for each in found if each is not None]


def _plain(names: Sequence[str], rows: Sequence[Row]) -> Table | None:
    shown, same = [], []
    for name in names:
        values = [row[name] for row in rows]
        if name in SILENT or all(value in (None, [], "", {}) for value in values):
            continue
        if len(rows) > 2 and all(v == values[0] for v in values):
            same.append(f"{name.replace('_', ' ')} {cell(name, values[0])}")
        else:
            words = not any(isinstance(v, (int, float, dict)) for v in values)
            shown.append(
                Column(name.replace("_", " "), lambda r, n=name: cell(n, r[n]), words)
            )  # fmt: skip
    caption = f"In all rows: {', '.join(same)}" if same else ""
    return table(caption, rows, shown) if shown else None


def cell(name: str, value: Any) -> str:
    """A value as a table shows it, by what its field is called."""
    if value in (None, [], "", {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        if {"value", "low", "high"} <= set(value):
            return interval(value)
        return ", ".join(f"{key} {cell(key, inner)}" for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(name, inner) for inner in value)
    if isinstance(value, (int, float)):
        for ending, form in FORMS.items():
            if name.endswith(ending):
                return form(value)
        return f"{value:.4g}" if isinstance(value, float) else f"{value}"
    return str(value)
