"""From variant A by its sites to B: predicted, measured, and what is left over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from fusebench.report import charts, tables
from fusebench.report.charts import Step
from fusebench.report.sections.common import (
    Chart,
    Section,
    Source,
    files_of,
    steps_in_words,
    variant_tables,
)
from fusebench.report.table import Column, field, interval, percent, significant, size

SITES: Sequence[Column] = (
    field("site", left=True),
    field("calls"),
    field("a_ms", "A ms each", significant),
    field("b_ms", "B ms each", significant),
    field("share", "share of A", percent),
    field("alone", "B alone, times faster", interval),
    field("saves_ms", "saves ms", significant),
)
ACCOUNT: Sequence[Column] = (
    field("item", left=True),
    field("ms", form=significant),
    field("what", left=True),
)
COMPILED: Sequence[Column] = (
    field("side", "variant", left=True),
    field("generated", "generated kernels"),
    field("generated_bytes", "they move", size),
    field("extern", "library calls"),
    field("handwritten", "handwritten kernels"),
    field("operator", "operators"),
    field("copies"),
    field("call_peak", "peak", size),
)


def accounts(sources: Sequence[Source]) -> Iterator[Section]:
    """From variant A by its sites to B: predicted, measured, and what is left over."""
    for section, results in files_of(sources, "explain", "account", "Where did the speed-up go?"):
        sites = [row for row in results.rows if row.get("site")]
        items = {row["item"]: row for row in results.rows if row.get("item")}
        a, b = results.settings.get("a", "A"), results.settings.get("b", "B")
        ends = [items.get(f"{name}, measured", {}).get("ms") for name in "AB"]
        rest = items.get("unaccounted", {}).get("ms")
        if ends[0] and ends[1] and rest is not None:
            steps = [
                Step(f"A: {a}", ends[0], True),
                *(
                    Step(row["site"], -row["saves_ms"], sure=_sure(row["alone"]))
                    for row in sites
                    if row.get("saves_ms") is not None
                ),
                Step("B, as the sites predict", ends[1] - rest, True),
                Step("unaccounted", rest, sure=False),
                Step(f"B: {b}", ends[1], True),
            ]
            section.findings.append(
                f"{b} takes {significant(ends[1])} ms where {a} takes {significant(ends[0])} ms; "
                f"from its sites alone one would expect {significant(ends[1] - rest)} ms."
            )
            title, said = f"From {a} to {b}", steps_in_words(steps)
            draw = partial(charts.waterfall, title, said, steps, "ms")
            section.charts.append(Chart("account", draw))
        compiled = [row for row in results.rows if row.get("side")]
        whole = [row for row in results.rows if row.get("variant")]
        section.add(
            tables.table("Site by site", sites, SITES),
            tables.table("The account", list(items.values()), ACCOUNT),
            tables.table("What runs in a forward pass", compiled, COMPILED),
            *variant_tables(whole),
        )
        yield section


def _sure(ratio: Mapping[str, float] | None) -> bool:
    """Whether an interval leaves out that nothing changed; None where a site is the same twice."""
    return ratio is not None and (ratio["low"] > 1 or ratio["high"] < 1)
