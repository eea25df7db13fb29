"""`fusebench diff`: two result files, row by row: what became slower or faster, and is it sure?

No absolute time is a result: each row is held against the reference of its own run.
"""

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
KEY = ("variant", "policy", "op", "site", "shape", "impl", "mode", "model", "batch", "seq", "dtype",
       "device", "threads", "text")  # fmt: skip
OF_A_CONTESTANT = ("variant", "impl", "mode")
YARDSTICKS = ("reference@eager", "reference@default")  # the first that both runs have
NO_YARDSTICK = "no yardstick"
PARTS_OF_A_VARIANT = ("site", "impl", "mode")  # say nothing that its name does not
# Facts whose difference makes times incomparable, or at least explains them.
MACHINE = ("cpu", "cpu_count", "threads", "gpus", "torch", "triton")

TABLE: Sequence[Column] = (
    field("row", left=True),
    field("before_ms", "before ms", significant),
    field("after_ms", "after ms", significant),
    field("speedup", "x", interval),
    field("verdict"),
)


def diff(
    before: str | Path, after: str | Path, *, threshold: float = THRESHOLD, absolute: bool = False
) -> Results:
    """Compare two result files of any study that times something.

    What is compared is the ratio to reference@eager (else reference@default) of the same run,
    where both runs have it: times of two runs differ by what the machine did meanwhile.
    absolute: compare times instead. threshold: a change smaller than this share is no
    difference, and a regression is one whose 95% interval lies beyond it. A row that failed after
    and did not before is a regression, too.
    Raises ValueError for files that are not results, or share no rows or no reference.
    """
    if not 0 <= threshold < 1:
        raise checks.refuse("diff", "threshold", f"is {threshold}", "a share in [0, 1)")
    old, new = load(before), load(after)
    old_rows, new_rows = ({key(r): r for r in each.rows if _counts(r)} for each in (old, new))
    shared = [k for k in new_rows if k in old_rows]
    if not shared:
        raise checks.refuse("diff", "the files", "share no row", "results of the same study")
    yardsticks = {k: None if absolute else _yardstick(k, old_rows, new_rows) for k in shared}
    timed = [k for k in shared if _timed(old_rows[k], new_rows[k])]
    if timed and not absolute and not any(yardsticks[k] for k in timed):
        raise checks.refuse(
            "diff", "the files", "share no race in which both timed a reference",
            f"{' or '.join(YARDSTICKS)} in both, or --absolute",
        )  # fmt: skip
    rows = []
    for name, k in zip(_names(shared), shared):
        against = yardsticks[k]
        pair = against and (old_rows[against], new_rows[against])
        row = compare_rows(old_rows[k], new_rows[k], threshold, pair, absolute)
        rows.append({"row": name, "against": against and against[0], **row})
    share = f"verdicts beyond {100 * threshold:.0f}%"
    if absolute:
        lines = [f"x: times faster after than before, in absolute time; {share}",
                 "warning: absolute times compare two hours of the machine, too"]  # fmt: skip
    else:
        over = " or ".join({r["against"]: None for r in rows if r["against"]} or YARDSTICKS)
        lines = [f"x: times faster after than before, each over {over} of its own run (the "
                 f"yardstick); {share}"]  # fmt: skip
    if any(row["verdict"] == NO_YARDSTICK for row in rows):
        lines.append(f"{NO_YARDSTICK}: not timed together with a reference in both runs")
    for name, each in (("before", old), ("after", new)):
        if each.interrupted:
            lines.append(f"warning: the run {name} was interrupted: its outputs were not verified")
    for what in MACHINE:
        values = old.environment.get(what), new.environment.get(what)
        if values[0] != values[1]:
            lines.append(f"warning: {what} differs: {_short(values[0])} -> {_short(values[1])}")
    for name, missing in (
        ("after", [k for k in old_rows if k not in new_rows]),
        ("before", [k for k in new_rows if k not in old_rows]),
    ):
        if missing:
            lines.append(f"no counterpart {name}: {', '.join(_names(missing))}")
    settings = {"threshold": threshold, "absolute": absolute}
    return Results("diff", rows, new.environment, settings, (TABLE,), lines)


def key(row: dict[str, Any]) -> tuple:
    return tuple(row.get(name) for name in KEY)


def _counts(row: dict[str, Any]) -> bool:
    """Whether a row is a measurement or a check, and not what a study concludes from them."""
    return "samples_ms" in row or "cases" in row


def _yardstick(key: tuple, *runs: dict[tuple, dict[str, Any]]) -> tuple | None:
    """The key of the reference that was raced with a row in every run, or None."""

    def race(key: tuple) -> tuple:
        return tuple(v for name, v in zip(KEY, key) if name not in OF_A_CONTESTANT)

    for name in YARDSTICKS:
        for other in runs[0]:
            variant = str(other[0]).rpartition("=")[2]
            rows = [(run.get(key, {}), run.get(other, {})) for run in runs]
            paired = all(
                _timed(row, yardstick) and len(row["samples_ms"]) == len(yardstick["samples_ms"])
                for row, yardstick in rows
            )
            if variant == name and race(other) == race(key) and paired:
                return other
    return None


def _timed(*rows: dict[str, Any]) -> bool:
    return all(row.get("samples_ms") and not row.get("failure") for row in rows)


def _names(keys: Sequence[tuple]) -> list[str]:
    """What each row is called: its variant or op, and whatever else tells the rows apart."""
    differing = {field for field, values in zip(KEY, zip(*keys)) if len(set(values)) > 1}
    if "shape" in differing:
        differing -= {"model", "batch", "seq"}
    names = []
    for values in keys:
        known = {f: v for f, v in zip(KEY, values) if v is not None}
        first = known.pop("variant", None)
        if first is None:
            first = known.pop("op")
        else:
            differing -= {*PARTS_OF_A_VARIANT}
        more = [f"{f} {v}" for f, v in known.items() if f in differing]
        names.append(" ".join([str(first), *more]))
    return names


def compare_rows(
    old: dict[str, Any], new: dict[str, Any], threshold: float,
    yardsticks: tuple[dict[str, Any], dict[str, Any]] | None = None, absolute: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Both medians, the ratio with its interval, and the verdict. yardsticks: of old and new.

    absolute: without yardsticks, too.
    """
    row: dict[str, Any] = {
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
    if old.get("failure"):
        row.update(verdict="fixed", regression=False)
        return row
    if not _timed(old, new):
        row.update(verdict="passes" if "cases" in new else "not timed", regression=False)
        return row
    if not yardsticks and not absolute:
        row.update(verdict=NO_YARDSTICK, regression=False)
        return row
    against = None
    if yardsticks:
        if yardsticks[1] is new:
            row.update(verdict="yardstick", regression=False)
            return row
        against = (yardsticks[1]["samples_ms"], yardsticks[0]["samples_ms"])
    ratio = statistics.change(new["samples_ms"], old["samples_ms"], against)
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
@click.option("--absolute", is_flag=True, help="Times as they are, not over the reference's.")
@options.outputs
def command(
    before: str, after: str, threshold: float, absolute: bool, quiet: bool, json: str | None,
    csv: str | None, parquet: str | None,
) -> int:  # fmt: skip
    """Compare two result files; exit code 1 where something became slower or broke."""
    results = diff(before, after, threshold=threshold, absolute=absolute)
    options.leave(results, json=json, csv=csv, parquet=parquet)
    return 1 if any(row["regression"] for row in results.rows) else 0
