"""Variants of the GPT side by side: which is the fastest, and is it sure?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from fusebench.report import charts
from fusebench.report.sections.common import (
    Chart,
    Row,
    Section,
    Source,
    estimate,
    files_of,
    in_words,
    variant_tables,
)
from fusebench.report.table import significant

UNSURE = ("no difference", "too few rounds")


def comparisons(sources: Sequence[Source]) -> Iterator[Section]:
    """Variants as dots in intervals, against the best Inductor one."""
    for section, results in files_of(sources, "compare", "comparison", "Which variant is fastest?"):
        timed = [row for row in results.rows if row.get("median_ms")]
        inductor = next((row["variant"] for row in timed if row.get("best_inductor")), None)
        against = inductor or "reference@eager"
        ratio = "speedup_vs_inductor" if inductor else "speedup_vs_eager"
        if timed:
            best = min(timed, key=lambda row: row["median_ms"])
            section.findings.append(_fastest(best, ratio, inductor, timed))
        if any(row.get(ratio) for row in timed):
            rows = [estimate(row, "variant", ratio, _ms(row)) for row in results.rows]
            title = f"Speed-up over {'the best Inductor variant' if inductor else 'eager PyTorch'}"
            said = in_words(f"Times faster than {against}, with 95% intervals", rows)
            draw = partial(charts.intervals, title, said, rows, f"times faster than {against}")
            section.charts.append(Chart("comparison", draw))
        section.add(*variant_tables(results.rows))
        yield section


def _fastest(best: Row, ratio: str, inductor: str | None, timed: Sequence[Row]) -> str:
    said = f"{best['variant']} is the fastest: {significant(best['median_ms'])} ms"
    found = best.get(ratio)
    if best["variant"] == inductor:
        level = [row for row in timed if row.get("verdict") in UNSURE and row is not best]
        if not level:
            return said + "; no handwritten kernel beats what Inductor generates."
        near = min(level, key=lambda row: row["median_ms"])
        return f"{said}; {near['variant']} is not surely slower, {_times(near[ratio])} as fast."
    if not found:
        return said + "."
    over = "the best Inductor variant" if inductor else "eager PyTorch"
    sure = ", which is no sure difference" if best.get("verdict") in UNSURE else ""
    doubt = "; but it is suspect, see the notes" if best.get("verdict") == "suspect" else ""
    return f"{said}, {_times(found)} as fast as {over}{sure}{doubt}."


def _times(ratio: dict[str, float]) -> str:
    return f"{ratio['value']:.2f} times [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def _ms(row: Row) -> str:
    return f"{significant(row['median_ms'])} ms" if row.get("median_ms") else ""
