"""`fusebench explain`: two variants, site by site: where a kernel's speed-up went in the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fusebench.bench import environment, sites, timing
from fusebench.bench.contestant import model_of
from fusebench.bench.measure import Measurement, Progress, Race
from fusebench.bench.statistics import median
from fusebench.bench.workload import Workload, set_threads
from fusebench.inspect.variant import inspected
from fusebench.model import GPTConfig
from fusebench.report.results import Results
from fusebench.report.table import Column, field, fixed, interval, percent, size
from fusebench.studies import options
from fusebench.studies.compare import SPEED, as_dict, notes, parse, race_variants, ratio
from fusebench.studies.compare import rows as variant_rows
from fusebench.studies.op import race_site
from fusebench.variant import Plan, Variant

ROUNDS = 40

SITES: Sequence[Column] = (
    field("site", left=True),
    field("calls"),
    field("a_ms", "A ms each", fixed(4)),
    field("b_ms", "B ms each", fixed(4)),
    field("share", "of A", percent),
    field("alone", "B alone, times faster", interval),
    field("saves_ms", "saves ms", fixed(3)),
)
ACCOUNT: Sequence[Column] = (
    field("item", left=True),
    field("ms", form=fixed(3)),
    field("what", "", left=True),
)
COMPILED: Sequence[Column] = (
    field("side", "", left=True),
    field("generated"),
    field("generated_bytes", "move", size),
    field("extern", "library"),
    field("handwritten"),
    field("operator", "operators"),
    field("copies"),
    field("call_peak", "peak", size),
)
KINDS = ("generated", "extern", "handwritten", "operator")


def explain(
    a: str | Variant,
    b: str | Variant,
    *,
    model: str = "seed",
    config: GPTConfig | None = None,
    batch: int = 1,
    seq: int = 128,
    dtype: str = "float32",
    device: str | None = None,
    threads: int | None = None,
    rounds: int = ROUNDS,
    prepare: bool = True,
    seed: int = 0,
    progress: Progress = lambda stage, done: None,
) -> Results:
    """Account for the difference between two variants of the GPT.

    a, b: PLAN@MODE, the baseline first. Both models are raced; then every site that they do
    differently is raced by itself, compiled by itself where its mode compiles. Alone, a site
    reads its inputs from memory that nobody just wrote, and a compiled one pays for its own
    guards, so a sum over sites is a prediction and not a measurement. What is left over is
    reported: the time between the sites, the dispatch of handwritten ops in it, and what the
    compiler had to generate around them. The other arguments are as for `compare`.
    """
    set_threads(threads)
    workload = Workload(model, batch, seq, dtype, device, None, seed, config)
    first, second = parse((a, b))
    whole = race_variants(
        (first, second), workload, rounds=rounds, prepare=prepare, progress=progress
    )
    rows: list[dict[str, Any]] = []
    lines = [f"A = {first}, B = {second}", *notes(whole, workload)]
    interrupted = whole.interrupted
    if len(whole.timed) == 2:
        parts = sites.one_layer(workload)
        for site in sites.FORWARD:
            if interrupted:
                break
            pair = at_site(site, first, second)
            race = race_site(
                site, list(dict.fromkeys(pair)), parts, rounds=rounds, prepare=prepare,
                progress=progress,
            )  # fmt: skip
            interrupted = race.interrupted
            rows.append(site_row(site, pair, race, whole, workload))
        progress("dispatch", 0.0)
        dispatch = [dispatch_ms(v, workload, prepare) for v in (first, second)]
        rows += account(rows, whole, dispatch)
        progress("looking at the compiled code", 0.0)
        rows += [
            compiled_row(label, variant, m, workload, prepare)
            for label, variant, m in zip("AB", (first, second), whole.measurements)
        ]
    rows += variant_rows((first, second), whole, workload)
    settings = {
        **workload.settings(), "a": str(first), "b": str(second), "rounds": rounds, "seed": seed,
        "prepare": prepare, **options.loaded(),
    }  # fmt: skip
    return Results(
        "explain", rows, {**environment.environment(), "noise": whole.noise}, settings,
        (SPEED, SITES, ACCOUNT, COMPILED), lines, interrupted,
    )  # fmt: skip


def at_site(site: str, *variants: Variant) -> list[Variant]:
    """What the variants do at one site, and nothing elsewhere."""
    return [Variant(Plan.parse(f"{site}={v.plan[site]}"), v.mode) for v in variants]


def site_row(
    site: str, pair: Sequence[Variant], race: Race, whole: Race, workload: Workload
) -> dict[str, Any]:
    """Time per call and share of one site, and what it saves over all its calls."""
    a, b = (race[str(v)] for v in pair)
    count = sites.calls(site, workload.config)
    row: dict[str, Any] = {
        "site": site, "calls": count, "a": str(pair[0]), "b": str(pair[1]), "a_ms": None,
        "b_ms": None, "share": None, "alone": None, "saves_ms": None,
        "failure": a.failure or b.failure,
    }  # fmt: skip
    if a.timed and b.timed:
        row["a_ms"], row["b_ms"] = a.median * 1e3, b.median * 1e3
        row["share"] = count * a.median / whole.measurements[0].median
        row["alone"] = None if a is b else as_dict(ratio(b, a))
        row["saves_ms"] = count * (row["a_ms"] - row["b_ms"])
    return row


def account(
    site_rows: Sequence[Mapping[str, Any]], whole: Race, dispatch: Sequence[float]
) -> list[dict[str, Any]]:
    """Where the milliseconds are: predicted, measured, and what neither kernel explains.

    dispatch: milliseconds that A and B spend on entering handwritten ops.
    """
    a, b = (m.median * 1e3 for m in whole.measurements)
    good = [row for row in site_rows if row["saves_ms"] is not None]
    saved = sum(row["saves_ms"] for row in good)
    between = [
        t - sum(r["calls"] * r[side] for r in good) for t, side in ((a, "a_ms"), (b, "b_ms"))
    ]
    predicted = max(a - saved, 1e-9)
    lost = (
        "more than in A: what fusions lose at the ops' boundaries"
        if between[1] > between[0]
        else "no more than in A: no sign of a loss at the ops' boundaries"
    )
    return [
        {"item": item, "ms": ms, "what": what}
        for item, ms, what in (
            ("A, measured", a, "the whole model"),
            ("saved at the sites", saved, "what each saves alone, over all its calls"),
            ("B, predicted", predicted, f"{a / predicted:.2f} times faster than A"),
            ("B, measured", b, f"{a / b:.2f} times faster than A"),
            ("unaccounted", b - predicted, "B took more (+) or less (-) than predicted"),
            ("between sites, A", between[0], "model less sites; < 0: alone they take longer"),
            ("between sites, B", between[1], lost),
            ("dispatch, A", dispatch[0], "entering handwritten ops, on empty inputs"),
            ("dispatch, B", dispatch[1], "the same; it is part of the sites' times as well"),
        )
    ]  # fmt: skip


class _Capture(TorchDispatchMode):
    """Notes the handwritten ops that run inside, with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if getattr(function, "namespace", "") == "fusebench":
            self.calls.append((function, args))
        return function(*args, **(kwargs or {}))


def dispatch_ms(variant: Variant, workload: Workload, prepare: bool) -> float:
    """Milliseconds per forward pass for entering the variant's handwritten ops.

    Each is called as compiled code calls it, with a batch of no sequences: what is left is the
    dispatcher, the binding and the allocation of outputs.
    """
    parts = sites.one_layer(workload)
    model = model_of(variant, parts.config, parts.weights, prepared=prepare)
    timer, total = timing.clock(workload.device), 0.0
    for site in sites.FORWARD:
        inputs = sites.inputs(site, parts, 0)
        tables = inputs[1:] if site == "qkv_proj" else ()  # cos and sin have no batch
        empty = [i[:0] for i in inputs[: len(inputs) - len(tables)]]
        with torch.no_grad(), _Capture() as seen:
            sites.METHODS[site](model)(*empty, *tables)
        with torch.no_grad():
            for function, args in seen.calls:
                turns = [timer.turn(function, [args] * 201, 0) for _ in range(5)]
                seconds = median(
                    [t.seconds if t.host_seconds is None else t.host_seconds for t in turns]
                )
                total += sites.calls(site, workload.config) * seconds
    return total * 1e3


def compiled_row(
    side: str, variant: Variant, m: Measurement, workload: Workload, prepare: bool
) -> dict[str, Any]:
    """What runs in one forward pass: the compiler's kernels, the libraries', the handwritten."""
    seen = inspected(variant, workload, prepare=prepare)
    row: dict[str, Any] = {"side": f"{side}  {variant}", "call_peak": m.peak_bytes}
    for kind in KINDS:
        of_kind = [r for r in seen.rows if r["kind"] == kind]
        row[kind] = sum(r["calls"] for r in of_kind)
        moved = [r["bytes_in"] + r["bytes_out"] for r in of_kind if r["bytes_in"] is not None]
        row[f"{kind}_bytes"] = sum(moved) if moved else None
    row["copies"] = sum(r["calls"] for r in seen.rows if any(_is_copy(op) for op in r["ops"]))
    return row


def _is_copy(op: str) -> bool:
    """Whether an op only moves data: what a change of layout costs."""
    return any(name in op.split(".") for name in ("clone", "copy", "copy_", "contiguous", "cat"))


@click.command("explain")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--no-prepare", is_flag=True, help="Do not let implementations pack weights.")
@options.workload
@options.outputs
def command(
    a: str, b: str, no_prepare: bool, quiet: bool, json: str | None, csv: str | None,
    parquet: str | None, **settings: Any,
) -> int:  # fmt: skip
    """Account for the difference between two variants: where did the speed-up go?"""
    results = options.run(
        lambda progress: explain(
            a, b, prepare=not no_prepare, progress=progress, **options.given(**settings)
        ),
        quiet,
    )
    return options.leave(results, json=json, csv=csv, parquet=parquet)
