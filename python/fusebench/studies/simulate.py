"""`fusebench simulate`: run the CUDA kernel of a site on the CPU, check it, and count its work.

The simulator says whether the kernel is right under several schedules and how much it moves: it
knows sectors, bank conflicts and tensor-core operations, and nothing of time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click
import torch

from fusebench.bench import environment, sites, verify
from fusebench.bench.workload import Workload
from fusebench.model import GPT, PRESETS
from fusebench.ops import checks, registry
from fusebench.report.results import Results
from fusebench.report.table import Column, field
from fusebench.studies import options
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
    site: str, *, arch: str = "sm_80", seeds: int = 3, model: str = "seed", batch: int = 1,
    seq: int = 64, dtype: str = "bfloat16", progress: Callable[[str, float], None] | None = None,
) -> Results:  # fmt: skip
    """Run a site's CUDA kernels in the simulator and count what they do.

    site: a site of the GPT. arch: the GPU it plays, "sm_80" or "sm_90a". seeds: schedules to run
    (early, late and random completion in turn), at least 1; each is verified against float64.
    model, batch, seq, dtype: the workload, as in `fusebench compare`; bfloat16 or float16.

    One row per kernel with the counts of one call (bytes in whole 32-byte sectors, caches not
    modelled), and one with the least that the site must move and multiply. A fault of the
    simulator or a wrong result is the row's `failure`.
    Raises ValueError for arguments that do not fit.
    """
    if site not in SITES:
        raise checks.unknown("site", site, SITES, "simulate")
    if ("cuda", SITES[site]) not in {(name, op) for op, name in registry.IMPLEMENTATIONS}:
        raise checks.refuse("simulate", "site", f"is {site!r}", "a site whose op has CUDA kernels")
    if arch not in ARCHITECTURES:
        raise checks.unknown("arch", arch, ARCHITECTURES, "simulate")
    if dtype not in DTYPES:
        raise checks.unknown("dtype", dtype, DTYPES, "simulate")
    if seeds < 1:
        raise checks.refuse("simulate", "seeds", f"is {seeds}", "at least 1")
    workload = sites.one_layer(Workload(model, batch, seq, dtype, "cpu"))
    gpt = GPT(workload.config, Plan.parse(f"{site}=cuda"))
    gpt.load_state_dict(workload.weights)
    gpt = gpt.to(dtype=workload.torch_dtype).eval().requires_grad_(False)
    site_of = sites.METHODS[site]
    inputs = sites.inputs(site, workload, 0)
    reference = site_of(workload.reference)(*inputs)
    truth = site_of(workload.oracle)(*verify.to_float64(inputs))

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
        if progress is not None:
            progress(f"{site}, seed {seed}", (seed + 1) / seeds)

    judged = {"site": site, "arch": arch, "error": error, "error_budget": budget}
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
    notes = [f"verified: error {error:.1e} of {budget:.1e} allowed, {seeds} schedules, no faults"]
    if failure is not None:
        notes = [f"FAILED: {failure}"]
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
    return Results(
        "simulate", rows, environment.environment(), {**workload.settings(), "site": site,
        "arch": arch, "seeds": seeds}, (COLUMNS,), [*notes, *_notes(counted)],
    )  # fmt: skip


def _notes(counted: dict[str, dict[str, Any]]) -> list[str]:
    conflicts = sum(c["shared_conflicts"] for c in counted.values())
    waves = sum(c["shared_wavefronts"] for c in counted.values())
    if not waves:
        return []
    return [f"shared memory: {waves} wavefronts, {conflicts} of them for bank conflicts"]


@click.command("simulate")
@click.argument("site")
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
    """Run the CUDA kernels of SITE on the CPU: are they right, and what do they move?"""
    results = options.run(lambda progress: simulate(**arguments, progress=progress), quiet)
    return options.leave(results, json=json, csv=csv, parquet=parquet)
