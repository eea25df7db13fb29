"""`fusebench compare`: which variant of this GPT is fastest here, by how much, and is it right?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch

from fusebench.bench import environment, machine, sites, statistics
from fusebench.bench.contestant import from_variant, only_checked, unavailable
from fusebench.bench.measure import Measurement, Progress, Race, Task, compared, measure
from fusebench.bench.workload import Workload, set_threads
from fusebench.model import GPTConfig
from fusebench.ops import checks, registry
from fusebench.report.results import Results
from fusebench.report.table import (
    Column,
    field,
    fixed,
    interval,
    plural,
    scientific,
    significant,
    size,
)
from fusebench.studies import options
from fusebench.variant import Variant, read_plan

DEFAULTS = {
    "cpu": (
        "reference@eager", "reference@default", "reference@max-autotune+freezing", "cpp@eager",
        "cpp@default",
    ),
    "cuda": (
        "reference@eager", "reference@default", "reference@max-autotune", "triton@default",
        "cuda@default",
    ),
}  # fmt: skip
ROUNDS = 50

SPEED: Sequence[Column] = (
    field("variant", left=True),
    field("median_ms", "median ms", significant),
    field("p95_ms", "p95 ms", significant),
    field("tokens_per_s", "tokens/s", fixed(0)),
    field("speedup_vs_eager", "x eager", interval),
    field("speedup_vs_inductor", "x best Inductor", interval),
)
FACTS: Sequence[Column] = (
    field("variant", left=True),
    field("verdict", "vs Inductor"),
    field("first_call_s", "first s", fixed(1)),
    field("peak_bytes", "peak", size),
    field("graphs"),
    field("graph_breaks", "breaks"),
    field("recompiles", "recomp"),
    field("error", form=scientific),
)


def compare(
    variants: Sequence[str | Variant] = (),
    *,
    model: str = "seed",
    config: GPTConfig | None = None,
    batch: int = 1,
    seq: int = 128,
    dtype: str = "float32",
    device: str | None = None,
    threads: int | None = None,
    rounds: int = ROUNDS,
    text: str | Path | None = None,
    plans: Sequence[str | Path] = (),
    prepare: bool = True,
    seed: int = 0,
    progress: Progress = lambda stage, done: None,
) -> Results:
    """Race variants of one GPT on the same weights and tokens, verified against float64.

    variants: PLAN@MODE each; a default set for the device where empty. model: a preset, or any
    name with a `config`. batch, seq: B and T. dtype: float32, bfloat16, float16. device: "cpu" or
    "cuda". threads: of torch, set before anything compiles. rounds: interleaved samples of each
    variant. text: a file whose bytes are the tokens. plans: files that `fusebench choose` wrote,
    each one more variant under the mode that it was chosen for. prepare: let handwritten
    implementations pack weights, as freezing lets Inductor. progress: called with (stage, done).
    Returns Results with .rows, .table() and .to_json(); a variant that fails has the reason in
    its row. Raises ValueError for arguments that are wrong.
    """
    set_threads(threads)
    workload = Workload(model, batch, seq, dtype, device, text, seed, config)
    chosen = parse(variants or DEFAULTS[workload.device.type])
    chosen += [v for v in map(from_plan, plans) if str(v) not in map(str, chosen)]
    race = race_variants(chosen, workload, rounds=rounds, prepare=prepare, progress=progress)
    settings = {
        **workload.settings(), "rounds": rounds, "seed": seed, "prepare": prepare,
        "variants": [str(v) for v in chosen], **options.loaded(),
    }  # fmt: skip
    lines = [*notes(race, workload), *without_inductor(chosen, race)]
    return Results(
        "compare", rows(chosen, race, workload), {**environment.environment(), "noise": race.noise},
        settings, (SPEED, FACTS), lines, race.interrupted,
    )  # fmt: skip


def parse(variants: Sequence[str | Variant]) -> list[Variant]:
    """Variants from their text; ValueError for one that is malformed or given twice."""
    chosen = [v if isinstance(v, Variant) else Variant.parse(v) for v in variants]
    seen = set()
    for variant in chosen:
        if str(variant) in seen:
            raise checks.refuse("compare", str(variant), "is given twice", "each variant once")
        seen.add(str(variant))
    return chosen


def handwritten(workload: Workload) -> list[str]:
    """The variants that are handwritten at every site, and can run here, compiled by default."""
    named = [f"{name}@default" for name in ("cpp", "cuda", "triton")
             if name in registry.names("swiglu_ffn")]  # fmt: skip
    where = workload.device.type, workload.torch_dtype
    return [text for text in named if not unavailable(Variant.parse(text), *where)]


def from_plan(path: str | Path) -> Variant:
    return Variant(*read_plan(path))


def model_task(workload: Workload) -> Task:
    """Tokens to logits, as the reference GPT does it."""
    return Task(
        workload.tokens,
        reference=lambda tokens: workload.reference(tokens)["logits"],
        truth=lambda tokens: workload.oracle(tokens)["logits"],
        device=workload.device,
    )


def race_variants(
    variants: Sequence[Variant], workload: Workload, *, rounds: int = ROUNDS, prepare: bool = True,
    progress: Progress = lambda stage, done: None,
) -> Race:  # fmt: skip
    """Measure whole-model variants; what every study over variants is made of."""
    if rounds < 1:
        raise checks.refuse("compare", "rounds", f"is {rounds}", "at least 1")
    dtype = workload.torch_dtype

    def entrant(variant: Variant):
        def build():
            if reason := unavailable(variant, workload.device.type, dtype):
                raise RuntimeError(reason)
            return from_variant(variant, workload.config, workload.weights, prepared=prepare)

        return str(variant), build

    task = replace(
        model_task(workload),
        flops=sites.model_flops(workload),
        limit=machine.peak_flops(workload.device, dtype),
    )
    untimed = {str(v): only_checked(v) for v in variants}
    with torch.random.fork_rng(devices=[]):
        return measure(
            task, [entrant(v) for v in variants], rounds=rounds, seed=workload.seed,
            untimed=lambda name: untimed[name], progress=progress,
        )  # fmt: skip


def rows(variants: Sequence[Variant], race: Race, workload: Workload) -> list[dict[str, Any]]:
    """One row per variant, with ratios to reference@eager and to the fastest Inductor variant."""
    timed = {m.name: m for m in race.timed}
    eager = timed.get("reference@eager")
    inductor = best_inductor(variants, race)
    result = []
    for variant, m in zip(variants, race.measurements):
        over_inductor = ratio(m, inductor)
        result.append(
            {
                "variant": str(variant),
                **m.row(),
                "tokens_per_s": workload.tokens_per_call / m.median if m.timed else None,
                "speedup_vs_eager": as_dict(ratio(m, eager)),
                "speedup_vs_inductor": as_dict(over_inductor),
                "verdict": None if m is inductor else verdict(m, over_inductor),
                "best_inductor": m is inductor,
                "plan": str(variant.plan),
                "mode": str(variant.mode),
                **workload.settings(),
            }
        )
    return result


def best_inductor(variants: Sequence[Variant], race: Race) -> Measurement | None:
    """The fastest compiled all-reference variant of the race."""
    names = {str(v) for v in variants if v.inductor}
    return min((m for m in race.timed if m.name in names), key=lambda m: m.median, default=None)


def without_inductor(variants: Sequence[Variant], race: Race) -> list[str]:
    """What to note where nothing stands for what Inductor does by itself."""
    if best_inductor(variants, race) is not None:
        return []
    compiled = [str(v) for v in variants if v.inductor]
    why = f"{', '.join(compiled)} was not timed" if compiled else "add reference@default"
    return [f"no compiled reference in this comparison ({why}): it says nothing about Inductor"]


def ratio(m: Measurement, baseline: Measurement | None) -> statistics.Interval | None:
    """How many times faster a measurement is than the baseline; None where one was not timed."""
    if baseline is None or not m.timed:
        return None
    return compared(m, baseline)


def as_dict(interval: statistics.Interval | None) -> dict[str, float] | None:
    return None if interval is None else interval.as_dict()


def verdict(m: Measurement, speedup: statistics.Interval | None) -> str | None:
    """faster, slower or no difference; "suspect" for what is faster than the machine can be."""
    if speedup is None:
        return None
    return "suspect" if m.flag else speedup.verdict()


def notes(race: Race, workload: Workload, *, tokens: str | None = None) -> list[str]:
    """The lines below a table: what it shows, and everything one should doubt.

    tokens: how many, where the workload's length is one of several.
    """
    s = workload.settings()
    lines = [
        f"{s['model']}, batch {s['batch']}, {tokens or s['seq']} tokens, {s['dtype']}, "
        f"{s['device']}, {plural(s['threads'], 'thread')}; x: times faster, with its 95% interval; "
        "error: against float64"
    ]
    prepared = [m.name for m in race.measurements if m.contestant and m.contestant.prepared]
    if prepared:
        lines.append(f"weights packed ahead of time, as freezing may: {', '.join(prepared)}")
    if still := [m.name for m in race.timed if m.still]:
        lines.append(
            "frozen weights stay in one place, which alone may be worth some per cent; a verdict "
            f"needs {statistics.STILL_MARGIN:.0%} where one of these is compared: "
            + ", ".join(still)
        )
    lines += [f"{m.name}: {m.flag}" for m in race.measurements if m.flag]
    warned: dict[str, list[str]] = {}
    for m in race.measurements:
        for warning in m.warnings:
            warned.setdefault(warning, []).append(m.name)
    lines += [f"{', '.join(names)}: {warning}" for warning, names in warned.items()]
    for m in race.measurements:
        c = m.contestant and m.contestant.compilations
        if c and (c.graph_breaks or c.recompiles):
            lines.append(
                f"{m.name}: {plural(c.graphs, 'graph')}, {plural(c.graph_breaks, 'graph break')}, "
                f"{plural(c.recompiles, 'recompile')}"
            )
    rounds = max((len(m.samples) for m in race.timed), default=statistics.MIN_SAMPLES)
    if rounds < statistics.MIN_SAMPLES:
        lines.append(
            f"warning: {rounds} rounds give no verdict: a 95% interval of a median needs "
            f"{statistics.MIN_SAMPLES} at least"
        )
    lines += [f"warning: {w}" for w in race.noise.get("warnings", ())]
    if race.interrupted:
        lines.append("interrupted: only finished rounds count, and timed outputs were not verified")
    return lines


@click.command("compare")
@click.argument("variants", nargs=-1, metavar="[VARIANT]...")
@options.workload
@click.option("--text", metavar="FILE", help="A file whose bytes are the tokens.")
@click.option("--plan", "plans", metavar="FILE.toml", multiple=True,
              help="A plan that `fusebench choose` wrote; one more variant.")  # fmt: skip
@click.option("--no-prepare", is_flag=True, help="Do not let implementations pack weights.")
@options.outputs
def command(
    variants: tuple[str, ...], no_prepare: bool, quiet: bool, json: str | None, csv: str | None,
    parquet: str | None, **settings: Any,
) -> int:  # fmt: skip
    """Race variants of a GPT, each PLAN@MODE: `reference@default`, `sdpa=cpp@eager`, ...

    Every variant is verified against float64 before it is timed. With no variants, a default set.
    """
    results = options.run(
        lambda progress: compare(
            variants, prepare=not no_prepare, progress=progress, **options.given(**settings)
        ),
        quiet,
    )
    return options.leave(results, json=json, csv=csv, parquet=parquet)
