"""What compiling costs: the first call and its parts, with cold and with warm caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from fusebench.report import charts, tables
from fusebench.report.sections.common import Chart, Row, Section, Source, files_of
from fusebench.report.table import Column, field, fixed, significant, size

PARTS = {"dynamo_s": "Dynamo", "aot_s": "AOTAutograd", "inductor_s": "Inductor", "code_s": "code"}

COSTS: Sequence[Column] = (
    field("variant", left=True),
    field("cache", left=True),
    field("first_call_s", "first call s", fixed(2)),
    *(field(name, f"{part} s", fixed(2)) for name, part in PARTS.items()),
    field("graphs"),
    field("hits", "cache hits"),
    field("cache_bytes", "on disk", size),
    field("memory_bytes", "memory", size),
)


def costs(sources: Sequence[Source]) -> Iterator[Section]:
    """A bar for each first call, made of the layers of the compiler and what is around them."""
    study, heading = "compile-cost", "What does compiling cost?"
    for section, results in files_of(sources, study, study, heading):
        bars = [
            (f"{row['variant']}, {row['cache']}", _parts(row))
            for row in results.rows
            if row.get("first_call_s")
        ]
        if bars:
            said = "Seconds of the first call. " + " ".join(
                f"{label}: " + ", ".join(f"{name} {significant(s)}" for name, s in parts) + "."
                for label, parts in bars
            )
            draw = partial(charts.stacked, "Seconds of the first call", said, bars, "s")
            section.charts.append(Chart("compile-cost", draw))
        section.add(tables.table("First calls", results.rows, COSTS))
        yield section


def _parts(row: Row) -> list[tuple[str, float]]:
    """The seconds by layer; the rest is importing the compiler and running what it made."""
    found = [(part, row[name]) for name, part in PARTS.items() if row.get(name) is not None]
    rest = row["first_call_s"] - sum(seconds for _, seconds in found)
    return [*found, ("import and run", max(rest, 0.0))]
