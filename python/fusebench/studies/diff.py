"""`fusebench diff`: two result files, row by row: what became slower or faster, and is it sure?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fusebench.bench import statistics
from fusebench.ops import checks
from fusebench.report.results import Results, load
from fusebench.report.table import Column, field, interval, significant
from fusebench.studies import options

THRESHOLD = 0.05
# What makes two rows the same measurement, where they have it.
KEY = ("variant", "op", "site", "impl", "mode", "model", "batch", "seq", "dtype", "device",
       "threads", "text")  # fmt: skip
# Facts whose difference makes times incomparable, or at least explains them.
MACHINE = ("cpu", "cpu_count", "threads", "gpus", "torch", "triton")

TABLE: Sequence[Column] = (
    field("row", left=True),
    field("before_ms", "before ms", significant),
    field("after_ms", "after ms", significant),
    field("speedup", "x", interval),
    field("verdict"),
)


def diff(before: str | Path, after: str | Path, *, threshold: float = THRESHOLD) -> Results:
    """Compare two result files of any study that times something.

    threshold: a change smaller than this share is no difference, and a regression is one whose
    95% interval lies beyond it. A row that failed after and did not before is a regression, too.
    Raises ValueError for files that are not results or share no rows.
    """
    if not 0 <= threshold < 1:
        raise checks.refuse("diff", "threshold", f"is {threshold}", "a share in [0, 1)")
    old, new = load(before), load(after)
    old_rows, new_rows = ({key(r): r for r in each.rows} for each in (old, new))
    shared = [k for k in new_rows if k in old_rows]
    if not shared:
        raise checks.refuse("diff", "the files", "share no row", "results of the same study")
    rows = [compare_rows(old_rows[k], new_rows[k], threshold) for k in shared]
    notes = [f"x: times faster after than before; verdicts beyond {100 * threshold:.0f}%"]
    for what in MACHINE:
        values = old.environment.get(what), new.environment.get(what)
        if values[0] != values[1]:
            notes.append(f"warning: {what} differs: {_short(values[0])} -> {_short(values[1])}")
    for name, missing in (
        ("after", [k for k in old_rows if k not in new_rows]),
        ("before", [k for k in new_rows if k not in old_rows]),
    ):
        if missing:
            notes.append(f"{len(missing)} rows have no counterpart {name}")
    return Results("diff", rows, new.environment, {"threshold": threshold}, (TABLE,), notes)


def key(row: dict[str, Any]) -> tuple:
    return tuple(row.get(name) for name in KEY)


def compare_rows(old: dict[str, Any], new: dict[str, Any], threshold: float) -> dict[str, Any]:
    """One row: both medians, the ratio with its interval, and the verdict."""
    row: dict[str, Any] = {
        "row": str(new.get("variant") or new.get("op")),
        **{name: new.get(name) for name in KEY},
        "before_ms": old.get("median_ms"),
        "after_ms": new.get("median_ms"),
        "speedup": None,
        "failure": None,
    }
    if new.get("failure"):
        row["verdict"] = "failed before" if old.get("failure") else "fails now"
        row["regression"] = not old.get("failure")
        if row["regression"]:
            row["failure"] = new["failure"]
        return row
    if not (old.get("samples_ms") and new.get("samples_ms")):
        row.update(verdict="not timed", regression=False)
        return row
    ratio = statistics.unpaired_speedup(new["samples_ms"], old["samples_ms"])
    verdict = ratio.verdict(threshold)
    row.update(speedup=ratio.as_dict(), verdict=verdict, regression=verdict == "slower")
    return row


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:59] + "…"


@click.command("diff")
@click.argument("before", metavar="A.json")
@click.argument("after", metavar="B.json")
@click.option("--threshold", type=float, default=THRESHOLD, show_default=True,
              help="The share below which nothing is a difference.")  # fmt: skip
@options.outputs
def command(
    before: str, after: str, threshold: float, quiet: bool, json: str | None, csv: str | None,
    parquet: str | None,
) -> int:  # fmt: skip
    """Compare two result files; exit code 1 where something became slower or broke."""
    results = diff(before, after, threshold=threshold)
    options.leave(results, json=json, csv=csv, parquet=parquet)
    return 1 if any(row["regression"] for row in results.rows) else 0
