"""What each site's kernel contributes: a waterfall from the reference, and the intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fusebench.report import charts, tables
from fusebench.report.charts import Step
from fusebench.report.sections.common import (
    VERDICTS,
    Chart,
    Row,
    Section,
    Source,
    estimate,
    files_of,
    in_words,
    steps_in_words,
    variant_tables,
)
from fusebench.report.table import Column, field, interval, significant

EFFECTS: Sequence[Column] = (
    field("effect", left=True),
    field("kind", left=True),
    field("contribution", "times faster", interval),
    field("saved_ms", "saves ms", significant),
    field("verdict", left=True),
    field("of", "variant", left=True),
    field("over", "against", left=True),
)


def ablations(sources: Sequence[Source]) -> Iterator[Section]:
    """Contributions of the sites: a waterfall from the reference, and the intervals."""
    for section, results in files_of(sources, "ablate", "ablation", "What does each kernel bring?"):
        effects = [row for row in results.rows if row.get("effect")]
        variants = [row for row in results.rows if row.get("variant")]
        section.findings += _advice(effects)
        steps = ablation_steps(effects, variants, results.settings)
        if steps:
            said = steps_in_words(steps)
            draw = partial(charts.waterfall, "From the reference to all kernels", said, steps, "ms")
            section.charts.append(Chart("ablation-waterfall", draw))
        if any(row.get("contribution") for row in effects):
            rows = [estimate(row, "effect", "contribution", row["verdict"]) for row in effects]
            said = in_words("Contribution of each site with its 95% interval", rows)
            title, axis = "Contribution of each site", "times faster through it"
            draw = partial(charts.intervals, title, said, rows, axis)
            section.charts.append(Chart("ablation", draw))
        section.add(tables.table("Contributions", effects, EFFECTS), *variant_tables(variants))
        yield section


def ablation_steps(
    effects: Sequence[Row], variants: Sequence[Row], settings: Mapping[str, Any]
) -> list[Step]:
    """From the reference by the sites to all kernels; empty where one of them has no time.

    One-in and leave-one-out save milliseconds site by site; what they do not sum up to is their
    effect on each other. A factorial has an average ratio for each site, and the steps multiply.
    """
    time = {row["variant"]: row.get("median_ms") for row in variants}
    sites = [row for row in effects if row["kind"] == "site"]
    if settings.get("design") == "factorial":
        # The first 2^k variants are the cells of the design: nothing first, everything last.
        cells = list(time)[: 2 ** len(sites)]
        ends = (cells[0], cells[-1]) if cells else (None, None)
    else:
        whole = next((row for row in effects if row["kind"] == "all"), *sites[:1] or [{}])
        ends = (whole.get("over"), whole.get("of"))
    start, end = (time.get(name) for name in ends)
    if not start or not end or any(not row.get("contribution") for row in sites):
        return []
    steps, level = [Step(str(ends[0]), start, True)], start
    for row in sites:
        saved = row.get("saved_ms")
        if saved is None:
            saved = level - level / row["contribution"]["value"]
        steps.append(Step(row["effect"], -saved, sure=row["verdict"] in VERDICTS))
        level -= saved
    if abs(end - level) > 1e-9:
        steps.append(Step("their effect on each other", end - level, sure=False))
    return [*steps, Step(str(ends[1]), end, True)]


def _advice(effects: Sequence[Row]) -> list[str]:
    """The sites by verdict, one sentence."""
    groups: dict[str, list[str]] = {}
    for row in effects:
        if row["kind"] == "site":
            groups.setdefault(row["verdict"], []).append(row["effect"])
    words = "; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in groups.items())
    return [f"{words[:1].upper()}{words[1:]}."] if words else []
