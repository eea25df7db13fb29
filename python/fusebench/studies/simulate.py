"""`fusebench simulate`: run the CUDA kernels of an op on the CPU, check them, and count their work.

The simulator says whether the kernel is right under several schedules and how much it moves: it
knows sectors, bank conflicts and tensor-core operations, and nothing of time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click
import torch

from fusebench.bench import environment, shapes, sites, verify
from fusebench.bench.workload import Workload
from fusebench.model import GPT, PRESETS
from fusebench.ops import checks, registry
from fusebench.report.results import Results
from fusebench.report.table import Column, field
from fusebench.studies import options
from fusebench.studies.op import sites_of
from fusebench.variant import SITES, Plan

ARCHITECTURES = ("sm_80", "sm_90a")
DTYPES = ("bfloat16", "float16")
SECTOR = 32  # bytes
LEAST = "least possible"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:.3f}"


def _millions(value: float) -> str:
    return f"{value / 1e6:.2f}"


COLUMNS: tuple[Column, ...] = (
    Column("for", lambda r: f"{r['site']} {r['shape']}", left=True),
    field("kernel", left=True),
    field("launches"),
    field("blocks"),
    field("bytes_read", "MB read", _megabytes),
    field("bytes_written", "MB written", _megabytes),
    field("shared_conflicts", "bank conflicts"),
    field("tensor_flops", "tensor MFLOP", _millions),
)


def _simulator() -> Any:
    try:
        from fusebench import _sim
    except ImportError as error:
        raise checks.refuse(
            "simulate", "fusebench._sim", f"cannot be loaded ({error})",
            "a build of fusebench with the simulator",
        ) from error  # fmt: skip
    return _sim


@contextmanager
def simulated(**settings: Any) -> Iterator[Any]:
    """The `cuda` implementations take CPU tensors and run in the simulator, with these settings.

    seed, timing ("early", "late", "random"), arch ("sm_80", "sm_90a"), multiprocessors, resident.
    """
    sim = _simulator()
    before = sim.settings()
    kept = {key: i for key, i in registry.IMPLEMENTATIONS.items() if key[1] == "cuda"}
    try:
        sim.configure(**settings)
        for key, implementation in kept.items():
            registry.IMPLEMENTATIONS[key] = replace(
                implementation, devices=("cpu",), unavailable=lambda: None, timed=False
            )
        yield sim
    finally:
        registry.IMPLEMENTATIONS.update(kept)
        sim.configure(**before)


def simulate(
    name: str, *, shape: Sequence[str] = (), arch: str = "sm_80", seeds: int = 3,
    model: str = "seed", batch: int = 1, seq: int = 64, dtype: str = "bfloat16",
    progress: Callable[[str, float], None] = lambda stage, done: None,
) -> Results:  # fmt: skip
    """Run the CUDA kernels of an op in the simulator and count what they do.

    name: an op, or a site of the GPT. arch: the GPU it plays, "sm_80" or "sm_90a".
    shape: sizes as in `fusebench.bench.shapes`, each simulated by itself; the model's where empty.
    seeds: schedules to run (random, late and early completion in turn), at least 1; each is
    verified against float64.
    model, batch, seq, dtype: the workload, as in `fusebench compare`; bfloat16 or float16.

    One row per kernel with the counts of one call (bytes in whole 32-byte sectors, caches not
    modelled), and one with the least that the site must move and multiply. A fault of the
    simulator or a wrong result is the row's `failure`.
    Raises ValueError for arguments that do not fit.
    """
    names = sites_of(name)
    if not any(
        ("cuda", SITES[s]) in {(i, op) for op, i in registry.IMPLEMENTATIONS} for s in names
    ):
        raise checks.refuse("simulate", "op", f"is {name!r}", "an op that has CUDA kernels")
    if arch not in ARCHITECTURES:
        raise checks.unknown("arch", arch, ARCHITECTURES, "simulate")
    if dtype not in DTYPES:
        raise checks.unknown("dtype", dtype, DTYPES, "simulate")
    if seeds < 1:
        raise checks.refuse("simulate", "seeds", f"is {seeds}", "at least 1")
    base = sites.one_layer(Workload(model, batch, seq, dtype, "cpu"))
    workloads = [shapes.of(text, base) for text in shape] or [base]
    runs = [(site, workload) for workload in workloads for site in names]
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for i, (site, workload) in enumerate(runs):
        found, lines = _simulate_site(
            site, workload, arch, seeds,
            lambda stage, done, i=i: progress(stage, (i + done) / len(runs)),
        )  # fmt: skip
        rows += found
        notes += lines
    settings = {**base.settings(), "op": name, "shape": list(shape), "arch": arch, "seeds": seeds}
    return Results("simulate", rows, environment.environment(), settings, (COLUMNS,), notes)


def _simulate_site(
    site: str, workload: Workload, arch: str, seeds: int, progress: Callable[[str, float], None]
) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of one site at one size, and what to say of them."""
    gpt = GPT(workload.config, Plan.parse(f"{site}=cuda"))
    gpt.load_state_dict(workload.weights)
    gpt = gpt.to(dtype=workload.torch_dtype).eval().requires_grad_(False)
    site_of = sites.METHODS[site]
    inputs = sites.inputs(site, workload, 0)
    reference = site_of(workload.reference)(*inputs)
    truth = site_of(workload.oracle)(*verify.to_float64(inputs))
    label = shapes.label(site, workload)
    size = f"{site} {label}"

    counted: dict[str, dict[str, Any]] = {}
    failure, error, budget = None, 0.0, 0.0
    for seed in range(seeds):
        timing = ("random", "late", "early")[seed % 3]
        with simulated(arch=arch, seed=seed, timing=timing) as sim, torch.no_grad():
            sim.reset_counters()
            try:
                verdict = verify.judge(site_of(gpt)(*inputs), truth, reference)
            except RuntimeError as fault:
                failure = f"seed {seed}: {fault}"
                break
            error, budget = max((error, budget), (verdict.error, verdict.budget))
            if not verdict.ok:
                failure = f"seed {seed}: {verdict.reason}"
                break
            counted = counted or sim.counters()
        progress(f"{size}, seed {seed}", (seed + 1) / seeds)

    judged = {
        **workload.settings(), "site": site, "shape": label, "arch": arch, "error": error,
        "error_budget": budget,
    }  # fmt: skip
    rows = [
        {
            **judged,
            "kernel": kernel,
            **counts,
            "bytes_read": counts["read_sectors"] * SECTOR,
            "bytes_written": counts["write_sectors"] * SECTOR,
            "failure": failure,
        }
        for kernel, counts in counted.items()
    ] or [{**judged, "kernel": "-", "failure": failure}]
    notes = [
        f"{size}: verified: error {error:.1e} of {budget:.1e} allowed, {seeds} schedules, no faults"
        if failure is None
        else f"{size}: FAILED: {failure}"
    ]
    outputs = reference if isinstance(reference, tuple) else (reference,)
    written = sum(o.numel() * o.element_size() for o in outputs)
    rows.append(
        {
            **judged,
            "kernel": LEAST,
            "bytes_read": sites.bytes_moved(site, workload) - written,
            "bytes_written": written,
            "tensor_flops": sites.flops(site, workload),
            "failure": None,
        }
    )
    return rows, [*notes, *_notes(size, counted)]


def _notes(size: str, counted: dict[str, dict[str, Any]]) -> list[str]:
    conflicts = sum(c["shared_conflicts"] for c in counted.values())
    waves = sum(c["shared_wavefronts"] for c in counted.values())
    if not waves:
        return []
    return [f"{size}: shared memory: {waves} wavefronts, {conflicts} of them for bank conflicts"]


@click.command("simulate")
@click.argument("name", metavar="OP")
@options.shape
@click.option("--arch", type=options.Name("arch", ARCHITECTURES), default="sm_80")
@click.option("--seeds", type=int, default=3, show_default=True, help="Schedules to run.")
@click.option("--model", type=options.Name("model", tuple(PRESETS)), default="seed")
@click.option("--batch", type=int, default=1, show_default=True, help="Sequences, B.")
@click.option("--seq", type=int, default=64, show_default=True, help="Tokens, T.")
@click.option("--dtype", type=options.Name("dtype", DTYPES), default="bfloat16")
@options.outputs
def command(
    quiet: bool, json: str | None, csv: str | None, parquet: str | None, **arguments: Any
) -> int:
    """Run the CUDA kernels of OP (or a site) on the CPU: are they right, and what do they move?"""
    results = options.run(lambda progress: simulate(**arguments, progress=progress), quiet)
    return options.leave(results, json=json, csv=csv, parquet=parquet)
