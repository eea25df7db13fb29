"""`fusebench resources`: what do the GPU kernels need, and does any of them spill?"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from fusebench.bench.environment import build_info, environment
from fusebench.bench.workload import DTYPES
from fusebench.inspect.resources import Resources, cuda_resources, triton_resources
from fusebench.ops import checks, registry
from fusebench.report.results import Results
from fusebench.report.table import Column, field
from fusebench.studies import options

ARCHS = {"sm_80": 80, "sm_90": 90, "sm_100": 100}
IMPLS = ("triton", "cuda")


def resources(
    ops: Sequence[str] | None = None,
    archs: Sequence[str] = tuple(ARCHS),
    impls: Sequence[str] = IMPLS,
    *,
    dtype: str = "bfloat16",
    progress: Callable[[str, float], None] = lambda stage, done: None,
) -> Results:
    """Compile the shipped GPU kernels ahead of time, with no GPU and no driver, and look at them.

    ops: names of ops; all where None. archs: of sm_80, sm_90, sm_100. impls: of triton, cuda.
    dtype: what the Triton kernels are compiled for (CUDA kernels hold all of theirs).
    A row per kernel, configuration and architecture: registers, stack (spills), shared memory,
    warps that fit an SM, instructions; `failure` where a configuration spills, does not fit the
    architecture, or has matrix products without tensor cores.
    Raises ValueError for names that are not known, or where nothing can be looked at.
    """
    for op in ops or ():
        registry.get_op(op)
    for arch in archs:
        if arch not in ARCHS:
            raise checks.unknown("arch", arch, ARCHS)
    for impl in impls:
        if impl not in IMPLS:
            raise checks.unknown("impl", impl, IMPLS)
    if dtype not in DTYPES:
        raise checks.unknown("dtype", dtype, DTYPES)
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    interrupted = False
    try:
        for impl in impls:
            reason = UNAVAILABLE[impl]()
            if reason:
                if len(impls) == 1:
                    raise ValueError(f"resources: {impl}: {reason}")
                notes.append(f"{impl}: left out: {reason}")
                continue
            for found in FIND[impl](ops, [ARCHS[a] for a in archs], dtype, progress):
                rows.append(_row(found))
    except KeyboardInterrupt:
        interrupted = True
    settings = {"ops": ops, "archs": list(archs), "impls": list(impls), "dtype": dtype}
    return Results("resources", rows, environment(), settings, (TABLE,), notes, interrupted)


def _triton_unavailable() -> str | None:
    if find_spec("triton") is None:
        return "triton is not installed"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "kernels cannot be compiled under TRITON_INTERPRET=1; unset it"
    return None


def _cuda_unavailable() -> str | None:
    facts = build_info()
    if facts is None:
        return "the compiled module fusebench._C is not built"
    return None if facts["cuda"] else facts["cuda_missing"]


def _triton(ops, archs, dtype, progress) -> Iterator[Resources]:
    names = list(ops or registry.OPS)
    jobs = [(op, arch) for op in names for arch in archs]
    for i, (op, arch) in enumerate(jobs):
        progress(f"compiling {op} for sm_{arch}", i / len(jobs))
        yield from triton_resources(op, arch, dtype)


def _cuda(ops, archs, dtype, progress) -> Iterator[Resources]:
    built = importlib.import_module("fusebench._C")
    progress("reading the CUDA kernels", 0.0)
    for found in cuda_resources(Path(str(built.__file__)), tuple(archs)):
        if not ops or found.op in ops:
            yield found


UNAVAILABLE = {"triton": _triton_unavailable, "cuda": _cuda_unavailable}
FIND = {"triton": _triton, "cuda": _cuda}


def _row(found: Resources) -> dict[str, Any]:
    row = asdict(found)
    row["arch"] = f"sm_{found.arch}"
    row["tensor_core"] = found.tensor_core
    row["failure"] = row.pop("problem")
    return row


def _tiles(row: Any) -> str:
    tiles = row["configuration"]
    blocks = "x".join(str(v) for k, v in tiles.items() if k.startswith("block"))
    extra = [
        f"{tiles[k]}{mark}" for k, mark in (("num_warps", "w"), ("num_stages", "s")) if k in tiles
    ]
    return " ".join([blocks, *extra, *(["tma"] if tiles.get("tma") else [])]) or "-"


def _tma(row: Any) -> str:
    both, stores = row["sass"]["tma"], row["sass"]["tma_stores"]
    return f"{both - stores}/{stores}" if both else "-"


TABLE = (
    Column("kernel", lambda r: f"{r['op']}: {r['kernel'].removesuffix('_kernel')}", left=True),
    field("size", "for", left=True),
    field("arch"),
    Column("tiles", _tiles, left=True),
    field("registers", "regs"),
    field("stack"),
    Column("smem", lambda r: f"{r['shared'] / 1024:.0f}K"),
    field("warps_per_sm", "warps"),
    field("tensor_core", "tensor"),
    Column("TMA", _tma),
    Column("16 B", lambda r: f"{r['sass']['loads_16']}/{r['sass']['stores_16']}"),
)


def _names(context: Any, parameter: Any, value: str | None) -> list[str] | None:
    return None if value is None else [v.strip() for v in value.split(",")]


@click.command("resources")
@click.argument("op", required=False)
@click.option("--arch", "archs", callback=_names, default=",".join(ARCHS), show_default=True)
@click.option("--impl", "impls", callback=_names, default=",".join(IMPLS), show_default=True)
@click.option("--dtype", type=options.Name("dtype", tuple(DTYPES)), default="bfloat16")
@options.outputs
def command(
    op: str | None, archs: list[str], impls: list[str], dtype: str, quiet: bool,
    json: str | None, csv: str | None, parquet: str | None,
) -> int:  # fmt: skip
    """Registers, spills, shared memory and instructions of the kernels of one OP or of all.

    Compiles every shipped configuration ahead of time; needs no GPU and no driver. The exit code
    is not zero where one spills or does not fit its architecture.
    """
    results = options.run(
        lambda progress: resources(
            None if op is None else [op], archs, impls, dtype=dtype, progress=progress
        ),
        quiet,
    )
    return options.leave(results, json=json, csv=csv, parquet=parquet)
