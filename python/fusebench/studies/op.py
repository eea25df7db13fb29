"""`fusebench op`: one op by itself, every implementation of it, against the machine's limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from fusebench.bench import environment, machine, shapes, sites, timing
from fusebench.bench.contestant import from_module, model_of, only_checked, unavailable
from fusebench.bench.measure import Measurement, Progress, Race, Task, measure
from fusebench.bench.workload import Workload, set_threads
from fusebench.ops import OPS, checks, registry
from fusebench.report.results import Results
from fusebench.report.table import (
    Column,
    field,
    fixed,
    interval,
    percent,
    scientific,
    significant,
)
from fusebench.studies import options
from fusebench.studies.compare import (
    as_dict,
    best_inductor,
    notes,
    ratio,
    verdict,
    without_inductor,
)
from fusebench.variant import SITES, Variant

ROUNDS = 60
REFERENCES = (
    "reference@eager", "reference@default", "reference@default+freezing",
    "reference@max-autotune+freezing",
)  # fmt: skip

SPEED: Sequence[Column] = (
    field("shape", left=True),
    field("contestant", left=True),
    field("median_us", "median us", significant),
    field("speedup_vs_eager", "x eager", interval),
    field("speedup_vs_inductor", "x best Inductor", interval),
)
FACTS: Sequence[Column] = (
    field("site", left=True),
    field("contestant", left=True),
    field("verdict", "vs Inductor"),
    field("p95_us", "p95 us", significant),
    field("share_of_limit", "of limit", percent),
    field("bound"),
    field("gflops", "GFLOP/s", fixed(0)),
    field("gbytes_per_s", "GB/s", fixed(1)),
    field("error", form=scientific),
)


def op(
    name: str,
    variants: Sequence[str] = (),
    *,
    impl: Sequence[str] = (),
    shape: Sequence[str] = (),
    model: str = "seed",
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
    """Race implementations of one op as the GPT calls it, verified against float64.

    name: an op or a site; `linear` stands for its sites, out_proj and lm_head.
    variants: CHOICE@MODE each, like cpp@eager or triton-norm@default: they race as they are.
    impl: names of implementations, called without the compiler but for those that are written to be
    compiled (`opaque=False`); every one that can run here where neither is given. Beside them race
    the reference, eager and as Inductor compiles it, and for sdpa every backend that torch offers.
    shape: sizes as in `fusebench.bench.shapes`, each raced by itself; the model's where empty.
    The rest as for `compare`. Times are of one call, on a GPU of the device alone (CUDA graph
    replays, L2 cold). Raises ValueError for arguments that are wrong.
    """
    set_threads(threads)
    base = sites.one_layer(Workload(model, batch, seq, dtype, device, None, seed))
    workloads = [shapes.of(text, base) for text in shape] or [base]
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    noise, interrupted = {}, False
    races = [(site, workload) for workload in workloads for site in sites_of(name)]
    chosen = {site: entries(site, variants, impl, base.device.type) for site in sites_of(name)}
    for site, workload in races:
        where = f"{site} {shapes.label(site, workload)}"
        race = race_site(
            site, chosen[site], workload, rounds=rounds, prepare=prepare,
            progress=lambda stage, done, where=where: progress(f"{where}: {stage}", done),
        )  # fmt: skip
        rows += site_rows(site, chosen[site], race, workload)
        said = [*notes(race, workload), *without_inductor(chosen[site], race)]
        lines += [line for line in said if line not in lines]
        noise, interrupted = race.noise, race.interrupted
        if interrupted:
            break
    settings = {
        **base.settings(), "op": name, "shape": list(shape), "rounds": rounds, "seed": seed,
        "prepare": prepare, **options.loaded(),
    }  # fmt: skip
    return Results(
        "op", rows, {**environment.environment(), "noise": noise}, settings, (SPEED, FACTS), lines,
        interrupted,
    )  # fmt: skip


def sites_of(name: str) -> list[str]:
    """The sites that an op or site name stands for; ValueError for a name that is neither."""
    if name in SITES:
        return [name]
    if name not in OPS:
        raise checks.unknown("op or site", name, {*OPS, *SITES})
    return [site for site, op_name in SITES.items() if op_name == name]


def parse(site: str, variants: Sequence[str]) -> list[Variant]:
    """CHOICE@MODE for one site, as variants whose plan says nothing of the other sites."""
    chosen = []
    for text in variants:
        choice, at, mode = text.partition("@")
        if not at:
            raise checks.refuse("op", f"{text!r}", "is malformed", "CHOICE@MODE, like cpp@eager")
        chosen.append(Variant.parse(f"{site}={choice}@{mode}"))
    return chosen


def entries(
    site: str, variants: Sequence[str], impl: Sequence[str], device: str
) -> list[Variant]:  # fmt: skip
    """Who races at a site: `variants` as they are, or the defaults with `impl` in them."""
    if variants and not impl:
        return parse(site, variants)
    here = list(usable(site, device))
    backends = [name for name in here if name.startswith("torch_")]
    others = []
    for name in (*(impl or here), *backends):
        mode = "eager" if registry.get(SITES[site], name).opaque else "default"
        others.append(f"{name}@{mode}")
    return parse(site, [*dict.fromkeys((*REFERENCES, *variants, *others))])


def usable(site: str, device: str) -> Iterator[str]:
    """The implementations that can run here and be timed, without the reference."""
    for name in registry.names(SITES[site]):
        found = registry.get(SITES[site], name)
        runs = device in found.devices and found.timed and not found.unavailable()
        if runs and name != "reference":
            yield name


def race_site(
    site: str, variants: Sequence[Variant], workload: Workload, *, rounds: int = ROUNDS,
    prepare: bool = True, progress: Progress = lambda stage, done: None,
) -> Race:  # fmt: skip
    """Measure one site by itself under each variant."""
    if rounds < 1:
        raise checks.refuse("op", "rounds", f"is {rounds}", "at least 1")
    device, method = workload.device, sites.METHODS[site]

    def entrant(variant: Variant):
        def build():
            if reason := unavailable(variant, device.type, workload.torch_dtype):
                raise RuntimeError(reason)
            gpt = model_of(variant, workload.config, workload.weights, prepared=prepare)
            contestant = from_module(
                str(variant), gpt, variant.mode, pristine=workload.weights, forward=method(gpt)
            )
            if device.type == "cuda" and not variant.mode.compiled:
                inputs = sites.inputs(site, workload, 0)
                contestant.call = timing.Graphed(contestant.call, inputs)
                contestant.reuses_output = True
            return contestant

        return str(variant), build

    def truth(*inputs):
        # RoPE's tables stay as they are: float32, whatever the dtype of the call.
        activations = inputs[:1] if site == "qkv_proj" else inputs
        doubled = (t.double() if t.is_floating_point() else t for t in activations)
        return method(workload.oracle)(*doubled, *inputs[len(activations) :])

    # Activations far from the unit normal: large, and (where no softmax turns them into a lottery)
    # with a mean far above the deviation.
    hard = [{"scale": 8.0}] if site == "sdpa" else [{"scale": 8.0}, {"scale": 0.5, "mean": 20.0}]
    task = Task(
        lambda index: sites.inputs(site, workload, index),
        reference=lambda *inputs: method(workload.reference)(*inputs),
        truth=truth,
        device=device,
        flops=sites.flops(site, workload),
        limit=machine.peak_flops(device, workload.torch_dtype),
        hard=[sites.inputs(site, workload, 1, **kind) for kind in hard],
    )
    untimed = {str(v): only_checked(v) for v in variants}
    return measure(
        task, [entrant(v) for v in variants], rounds=rounds, seed=workload.seed,
        untimed=lambda name: untimed[name], progress=progress,
    )  # fmt: skip


def site_rows(
    site: str, variants: Sequence[Variant], race: Race, workload: Workload
) -> list[dict[str, Any]]:
    """One row per variant, with what it reaches of the limit that binds it."""
    eager = next((m for m in race.timed if m.name == f"{site}=reference@eager"), None)
    inductor = best_inductor(variants, race)
    rows = []
    for variant, m in zip(variants, race.measurements):
        over_inductor = ratio(m, inductor)
        choice = variant.plan[site]
        rows.append(
            {
                "variant": str(variant),
                "contestant": f"{choice}@{variant.mode}",
                "op": SITES[site],
                "site": site,
                "shape": shapes.label(site, workload),
                "impl": choice.impl,
                "mode": str(variant.mode),
                **m.row(),
                "median_us": m.median * 1e6 if m.timed else None,
                "p95_us": m.row()["p95_ms"] and m.row()["p95_ms"] * 1e3,
                **limits(site, m, workload),
                "speedup_vs_eager": as_dict(ratio(m, eager)),
                "speedup_vs_inductor": as_dict(over_inductor),
                "verdict": None if m is inductor else verdict(m, over_inductor),
                **workload.settings(),
            }
        )
    return rows


def limits(site: str, m: Measurement, workload: Workload) -> dict[str, Any]:
    """What it reached, and the share of the limit that binds the site on this machine.

    The limit is the slower of computing at peak and moving the bytes at the bandwidth that
    a working set of that size has (the roofline).
    """
    flops, moved = sites.flops(site, workload), sites.bytes_moved(site, workload)
    peak = machine.peak_flops(workload.device, workload.torch_dtype)
    bandwidth = machine.bandwidth(workload.device, int(moved))
    compute_s = flops / peak if peak else None
    memory_s = moved / bandwidth if bandwidth else None
    known = compute_s is not None and memory_s is not None
    least = max(compute_s, memory_s) if known else None  # type: ignore[type-var]
    bound = ("compute" if compute_s == least else "memory") if known else None
    return {
        "flops": flops,
        "bytes": moved,
        "intensity": flops / moved,
        "limit_us": least and least * 1e6,
        "bound": bound,
        "gflops": flops / m.median / 1e9 if m.timed and flops else None,
        "gbytes_per_s": moved / m.median / 1e9 if m.timed else None,
        "share_of_limit": least / m.median if m.timed and least else None,
    }


@click.command("op")
@click.argument("name", metavar="OP")
@click.argument("variants", nargs=-1, metavar="[CHOICE@MODE]...")
@click.option("--impl", metavar="NAME", multiple=True, help="An implementation; repeatable.")
@options.shape
@options.workload
@click.option("--no-prepare", is_flag=True, help="Do not let implementations pack weights.")
@options.outputs
def command(
    name: str, variants: tuple[str, ...], no_prepare: bool, quiet: bool, json: str | None,
    csv: str | None, parquet: str | None, **settings: Any,
) -> int:  # fmt: skip
    """Race implementations of one op (or one site of the GPT) against the machine's limits."""
    results = options.run(
        lambda progress: op(
            name, variants, prepare=not no_prepare, progress=progress, **options.given(**settings)
        ),
        quiet,
    )
    return options.leave(results, json=json, csv=csv, parquet=parquet)
