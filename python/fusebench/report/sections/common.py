"""What a section of the page is, and what several of them are made with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fusebench.report.canvas import Drawing
from fusebench.report.charts import Estimate, Step
from fusebench.report.results import Results
from fusebench.report.table import Column, field, fixed, interval, scientific, significant, size
from fusebench.report.tables import Table, good, table

Row = Mapping[str, Any]
Source = tuple[str, Results]  # the name of the file, and what it holds

VERDICTS = {
    "faster": "faster", "keep": "faster", "keep inside": "faster", "help each other": "faster",
    "slower": "slower", "leave to Inductor": "slower", "leave outside": "slower",
    "in each other's way": "slower", "suspect": "suspect",
}  # fmt: skip

SPEED: Sequence[Column] = (
    field("variant", left=True),
    field("median_ms", "median ms", significant),
    field("p95_ms", "p95 ms", significant),
    field("tokens_per_s", "tokens/s", fixed(0)),
    field("speedup_vs_eager", "× eager", interval),
    field("speedup_vs_inductor", "× best Inductor", interval),
    field("verdict", "verdict", left=True),
)
FACTS: Sequence[Column] = (
    field("variant", left=True),
    field("first_call_s", "first call s", fixed(1)),
    field("peak_bytes", "peak", size),
    field("graphs"),
    field("graph_breaks", "graph breaks"),
    field("recompiles"),
    field("error", form=scientific),
    field("error_budget", "its budget", scientific),
)


@dataclasses.dataclass(frozen=True)
class Chart:
    """name: of its file when exported. draw: makes it for a width."""

    name: str
    draw: Callable[[float], Drawing]


@dataclasses.dataclass
class Section:
    """heading, the files it comes from, what was found in sentences, and what shows it."""

    name: str
    heading: str
    sources: list[str]
    findings: list[str] = dataclasses.field(default_factory=list)
    charts: list[Chart] = dataclasses.field(default_factory=list)
    tables: list[Table] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    interrupted: bool = False

    def add(self, *found: Table | None) -> None:
        self.tables += [each for each in found if each is not None]


def files_of(
    sources: Sequence[Source], study: str, name: str, heading: str
) -> Iterator[tuple[Section, Results]]:
    """A section for each file of a study, with its notes; what one should doubt stands on top."""
    for file, results in sources:
        if results.study == study:
            notes = [line for line in results.notes if not line.startswith("warning: ")]
            section = Section(name, heading, [file], notes=notes, interrupted=results.interrupted)
            yield section, results


def variant_tables(rows: Sequence[Row]) -> tuple[Table | None, ...]:
    """The tables of rows that are variants of the GPT."""
    return (
        table("Speed", rows, SPEED),
        table("Facts", good(rows), FACTS),
    )


def estimate(row: Row, label: str, ratio: str, note: str) -> Estimate:
    """A row's ratio for a chart, or why there is none."""
    found = row.get(ratio)
    if row.get("failure") or not found or not found["value"]:
        return Estimate(str(row[label]), why=row.get("failure") or "")
    verdict = VERDICTS.get(row.get("verdict") or "", "same")
    return Estimate(str(row[label]), found["value"], found["low"], found["high"], verdict, note)


def in_words(what: str, rows: Sequence[Estimate]) -> str:
    """A chart of ratios, told."""
    said = [
        f"{r.label}: {r.value:.2f} [{r.low:.2f}, {r.high:.2f}]"
        if r.value is not None
        else f"{r.label}: failed"
        for r in rows
    ]
    return f"{what}. {'; '.join(said)}."


def steps_in_words(steps: Sequence[Step]) -> str:
    """A waterfall, told."""
    said = (f"{s.label}: {s.value:.3g}" if s.total else f"{s.label}: {s.value:+.3g}" for s in steps)
    return f"Milliseconds. {'; '.join(said)}."


def machine(environment: Mapping[str, Any]) -> tuple:
    """What tells one machine from another."""
    gpus = tuple(gpu.get("name") for gpu in environment.get("gpus") or ())
    return environment.get("cpu"), environment.get("cpu_count"), gpus
