"""Ops by themselves, against the limits of the machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fusebench.report import charts, tables
from fusebench.report.charts import Point, Roof
from fusebench.report.results import Results
from fusebench.report.sections.common import (
    Chart,
    Row,
    Section,
    Source,
    estimate,
    in_words,
    machine,
)
from fusebench.report.table import Column, field, interval, percent, scientific, significant, size

CONTESTANTS: Sequence[Column] = (
    field("site", left=True),
    field("contestant", left=True),
    field("median_us", "median µs", significant),
    field("p95_us", "p95 µs", significant),
    field("speedup_vs_eager", "× eager", interval),
    field("speedup_vs_inductor", "× best Inductor", interval),
    field("verdict", left=True),
)
LIMITS: Sequence[Column] = (
    field("site", left=True),
    field("contestant", left=True),
    field("gflops", "GFLOP/s", significant),
    field("gbytes_per_s", "GB/s", significant),
    field("intensity", "FLOP/byte", significant),
    field("bound", "bound by", left=True),
    field("limit_us", "limit µs", significant),
    field("share_of_limit", "of limit", percent),
    field("peak_bytes", "peak", size),
    field("error", form=scientific),
)


def rooflines(sources: Sequence[Source]) -> Iterator[Section]:
    """Ops against the limits of the machine, one section per dtype and number of threads."""
    groups: dict[tuple, list[tuple[str, Results, Row]]] = {}
    for name, results in sources:
        for row in results.rows if results.study == "op" else ():
            key = tuple(row.get(k) for k in ("dtype", "device", "threads"))
            groups.setdefault(key, []).append((name, results, row))
    for (dtype, device, threads), members in groups.items():
        section = Section(
            "roofline", "How near to the machine's limits are the ops?",
            list(dict.fromkeys(name for name, _, _ in members)),
            interrupted=any(results.interrupted for _, results, _ in members),
        )  # fmt: skip
        rows = [row for _, _, row in members]
        several = len({(r["site"], r.get("shape")) for r in rows}) > len({r["site"] for r in rows})
        where = {id(r): f"{r['site']} {r['shape']}" if several else r["site"] for r in rows}
        points = [
            Point(where[id(r)], r["contestant"], r["intensity"], r["gflops"], _limit_gflops(r))
            for r in rows
            if r.get("gflops") and r.get("intensity")
        ]
        if points:
            roofs = _roofs(sources, members[0][1].environment, dtype, device, threads)
            title = f"Roofline, {dtype}, {threads} threads"
            said = "GFLOP/s by FLOP per byte. " + " ".join(
                f"{p.label} {p.series}: {significant(p.gflops)}"
                + (f" of {significant(p.limit)}." if p.limit else ".")
                for p in points
            )
            draw = partial(charts.roofline, title, said, points, roofs)
            section.charts.append(Chart("roofline", draw))
            if not any(p.limit for p in points):
                section.notes.append("The limits of this machine are not known to these results.")
        if any(row.get("speedup_vs_inductor") for row in rows):
            named = [{**row, "label": f"{where[id(row)]} {row['contestant']}"} for row in rows]
            ratios = [
                estimate(r, "label", "speedup_vs_inductor", _us(r)) for r in named
            ]  # fmt: skip
            said = in_words("Speed-up over each site's best Inductor variant", ratios)
            axis = "times faster than the best Inductor"
            draw = partial(charts.intervals, "Each op by itself", said, ratios, axis)
            section.charts.append(Chart("ops", draw))
        section.add(
            tables.table("Speed", rows, CONTESTANTS),
            tables.table("Limits", tables.good(rows), LIMITS),
        )
        notes = dict.fromkeys(line for _, results, _ in members for line in results.notes)
        section.notes += [line for line in notes if not line.startswith("warning: ")]
        yield section


def _us(row: Row) -> str:
    return f"{significant(row['median_us'])} µs" if row.get("median_us") else ""


def _limit_gflops(row: Row) -> float:
    return row["flops"] / row["limit_us"] / 1e3 if row.get("limit_us") else 0.0


def _roofs(
    sources: Sequence[Source], environment: Mapping[str, Any], dtype: str, device: str,
    threads: int,
) -> list[Roof]:  # fmt: skip
    """The ceilings that `fusebench machine` measured on the same machine with as many threads."""
    found: dict[str, Roof] = {}
    for _, results in sources:
        if results.study != "machine" or machine(results.environment) != machine(environment):
            continue
        for row in results.rows:
            usable = row["device"] == device and row["threads"] == threads
            if not usable or not row["value"] or not math.isfinite(row["value"]):
                continue
            value, unit = row["value"], row["unit"]
            label = f"{row['what']}: {significant(value)} {unit}"
            if row["what"] == f"peak {dtype}":
                found["peak"] = Roof(label, value, False)
            elif row["what"].startswith("read"):
                # Working sets grow: the first is the nearest cache, the last is memory.
                found["far" if "near" in found else "near"] = Roof(label, value, True)
    return list(found.values())
