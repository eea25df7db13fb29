"""`fusebench machine`: the ceilings of this machine, which every share in `op` refers to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import torch

from fusebench.bench import environment, machine
from fusebench.bench.workload import DTYPES, set_threads
from fusebench.ops import checks
from fusebench.report.results import Results
from fusebench.report.table import Column, field, significant
from fusebench.studies import options

WORKING_SETS = (1 << 15, 1 << 19, 1 << 22, 1 << 26, 1 << 28)  # L1, L2, L3 and memory, or so

TABLE: Sequence[Column] = (
    field("what", left=True),
    field("threads"),
    field("value", form=significant),
    field("unit", left=True),
    field("how", left=True),
)


def measure_machine(
    *, device: str | None = None, threads: int | None = None,
    progress=lambda stage, done: None,
) -> Results:  # fmt: skip
    """Peak floating-point rates by dtype, read bandwidth by working set, torch's matrix product.

    device: "cpu" or "cuda". threads: of torch, its present number where None; on the CPU the
    same is measured with one thread as well.
    """
    set_threads(threads)
    if device == "cuda" and not torch.cuda.is_available():
        raise checks.refuse("machine", "device", "is cuda, but there is no CUDA GPU", "cpu")
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    present = torch.get_num_threads()
    counts = [1, present] if where.type == "cpu" and present > 1 else [present]
    steps = len(counts) * (len(DTYPES) + 1 + len(WORKING_SETS))
    rows: list[dict[str, Any]] = []
    noise = environment.Noise()

    def add(what: str, value: float | None, unit: str, scale: float, how: str) -> None:
        progress(f"measuring {what}", len(rows) / steps)
        row = {
            "what": what, "threads": torch.get_num_threads(), "value": value and value / scale,
            "unit": unit, "how": how, "device": where.type,
        }  # fmt: skip
        rows.append(row)
        noise.tick(len(rows))

    how = "datasheet arithmetic" if where.type == "cuda" else "fusebench's micro-kernels"
    try:
        for count in counts:
            torch.set_num_threads(count)
            for name, dtype in DTYPES.items():
                peak = machine.peak_flops(where, dtype)
                if peak is not None:
                    add(f"peak {name}", peak, "GFLOP/s", 1e9, how)
            for name in ("float32", "bfloat16"):
                value = machine.matmul_flops(where, DTYPES[name])
                add(f"torch.mm {name}", value, "GFLOP/s", 1e9, "1024 x 1024, a floor")
            for size in WORKING_SETS[-1:] if where.type == "cuda" else WORKING_SETS:
                read = machine.bandwidth(where, size)
                if read is not None:
                    label = f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"
                    add(f"read {label}", read, "GB/s", 1e9, how)
    finally:
        torch.set_num_threads(present)
    facts = {**environment.environment(), "noise": noise.report()}
    notes = [f"{facts['cpu']}" if where.type == "cpu" else facts["gpus"][0]["name"]]
    notes += [f"warning: {w}" for w in facts["noise"]["warnings"]]
    if not any(row["what"].startswith("peak") for row in rows):
        notes.append(
            "no ceilings: fusebench._C is not built (pip install .), or this GPU is not known"
        )
    return Results("machine", rows, facts, {"device": where.type}, (TABLE,), notes)


@click.command("machine")
@click.option("--threads", type=int, help="Threads of torch.")
@click.option("--device", help="cpu or cuda.")
@options.outputs
def command(
    threads: int | None, device: str | None, quiet: bool, json: str | None, csv: str | None,
    parquet: str | None,
) -> int:  # fmt: skip
    """Measure the ceilings of this machine: peak rates and bandwidths."""
    results = options.run(
        lambda progress: measure_machine(device=device, threads=threads, progress=progress), quiet
    )
    return options.leave(results, json=json, csv=csv, parquet=parquet)
