"""Latency over sequence length: of `shapes`, and of comparisons that differ in it alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from fusebench.report import charts, tables
from fusebench.report.charts import Series
from fusebench.report.sections.common import Chart, Row, Section, Source, files_of
from fusebench.report.table import Column, field, fixed, significant

SHAPES: Sequence[Column] = (
    field("variant", left=True),
    field("policy", left=True),
    field("seq", "tokens"),
    field("median_ms", "median ms", significant),
    field("p95_ms", "p95 ms", significant),
    field("new_graphs", "new graphs"),
    field("recompiles"),
    field("compile_s", "compile s", fixed(1)),
)


def lengths(sources: Sequence[Source]) -> Iterator[Section]:
    """A chart for each policy on sizes, or one of all comparisons of the same model."""
    for section, results in files_of(sources, "shapes", "lengths", "What do other lengths cost?"):
        for line in results.settings.get("crossovers") or ():
            section.findings.append(f"{line[:1].upper()}{line[1:]}.")
        for policy in dict.fromkeys(row["policy"] for row in results.rows):
            of_policy = [row for row in results.rows if row["policy"] == policy]
            _draw(section, of_policy, f"lengths-{policy}", f"Latency, sizes: {policy}")
        section.add(tables.table("Each length", results.rows, SHAPES))
        yield section
    groups: dict[tuple, list[tuple[str, Row]]] = {}
    for name, results in sources:
        for row in results.rows if results.study == "compare" else ():
            key = tuple(row.get(k) for k in ("model", "batch", "dtype", "device", "threads"))
            groups.setdefault(key, []).append((name, row))
    for group in groups.values():
        rows = [row for _, row in group]
        if len({row["seq"] for row in rows if row.get("seq")}) > 1:
            names = list(dict.fromkeys(name for name, _ in group))
            section = Section("lengths", "Latency over sequence length", names)
            _draw(section, rows, "lengths", section.heading)
            section.notes.append("Each length was measured in a run of its own.")
            yield section


def _draw(section: Section, rows: Sequence[Row], name: str, title: str) -> None:
    """A line for each variant, and the same as a table."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row.get("seq") and row.get("median_ms"):
            found.setdefault(row["variant"], {})[row["seq"]] = row["median_ms"]
    if not found:
        return
    series = [Series(label, sorted(points.items())) for label, points in found.items()]
    said = "Median milliseconds by sequence length. " + " ".join(
        f"{s.label}: " + ", ".join(f"{y:.3g} at {x}" for x, y in s.points) + "." for s in series
    )
    draw = partial(charts.lines, title, said, series, "tokens", "median ms")
    section.charts.append(Chart(name, draw))
    columns = [field("variant", left=True)]
    for x in sorted({x for points in found.values() for x in points}):
        columns.append(field(str(x), f"{x} tokens", significant))
    times = [{"variant": k, **{str(x): y for x, y in p.items()}} for k, p in found.items()]
    section.add(tables.table(f"{title}, median ms", times, columns))
