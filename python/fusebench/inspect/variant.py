"""One variant looked at: compiled under observation, profiled, and its kernels as rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fusebench.bench.contestant import from_variant
from fusebench.bench.workload import Workload
from fusebench.inspect import capture, sites
from fusebench.inspect.generated import Kernel
from fusebench.inspect.profile import Profile, profile
from fusebench.ops import IMPLEMENTATIONS, checks
from fusebench.report.results import write
from fusebench.variant import SITES, Variant

CALLS = 5  # profiled; shares come from the fastest


@dataclass(frozen=True)
class Inspected:
    """What was seen of a variant. rows: its kernels, equal ones together, in order of execution.

    profile: None where nothing ran.
    """

    variant: Variant
    observation: capture.Observation
    profile: Profile | None
    rows: list[dict[str, Any]]

    def parts(self) -> dict[str, dict[str, Any]]:
        """Kernels, bytes and microseconds by site; a kernel of several counts for the last one."""
        result: dict[str, dict[str, Any]] = {}
        for row in self.rows:
            named = [s for s in row["sites"] if s != sites.BETWEEN] or row["sites"]
            site = named[-1] if named else "the model"
            part = result.setdefault(
                site, {"kernels": 0, "bytes": 0, "microseconds": 0.0, "names": []}
            )
            part["kernels"] += row["calls"]
            moved = None if row["bytes_in"] is None else row["bytes_in"] + row["bytes_out"]
            part["bytes"] = (
                None if moved is None or part["bytes"] is None else part["bytes"] + moved
            )
            part["microseconds"] += row["microseconds"] or 0.0
            part["names"].append(row["label"])
        return {site: result[site] for site in sites.ordered(result)}

    def save(self, folder: Path) -> list[Path]:
        """Write the generated code and both graphs of every compilation; returns the files."""
        folder.mkdir(parents=True, exist_ok=True)
        files = []
        for graph in self.observation.graphs:
            stem = f"graph_{graph.id.replace('/', '_')}"
            for suffix, text in (
                ("code.py", graph.code),
                ("dynamo.txt", graph.dynamo_graph),
                ("post_grad.txt", graph.post_grad_graph),
            ):
                files.append(folder / f"{stem}.{suffix}")
                write(files[-1], text)
        return files


def inspected(
    variant: Variant,
    workload: Workload,
    *,
    lengths: Sequence[int] = (),
    prepare: bool = True,
    trace: Path | None = None,
) -> Inspected:
    """Compile and run a variant under observation.

    lengths: sequence lengths to call it with after the workload's own, to see what recompiles.
    prepare: let handwritten implementations pack weights. trace: save a Chrome trace there.
    The profile and its shares are of the workload's own length.
    """
    for length in lengths:
        if not 1 <= length <= workload.config.max_seq_len:
            raise checks.refuse(
                "inspect", "length", f"is {length}", f"1 to {workload.config.max_seq_len}"
            )
    contestant = from_variant(variant, workload.config, workload.weights, prepared=prepare)
    tokens = workload.tokens(0)
    watch = capture.observe() if variant.mode.compiled else nullcontext(capture.Observation())
    with contestant.compiling(), watch as observation:
        for _ in range(3):  # compile, record CUDA graphs, and be warm
            contestant.call(*tokens)
        first = len(observation.graphs)
        seen = profile(lambda: contestant.call(*tokens), CALLS, trace)
        for length in lengths:
            other = torch.zeros(workload.batch, length, dtype=torch.int64, device=workload.device)
            contestant.call(other)
    if variant.mode.compiled:
        kernels = [kernel for graph in observation.graphs[:first] for kernel in graph.kernels]
        rows = kernel_rows(kernels, seen.of_kernels(kernels))
    else:
        rows = _operator_rows(seen)
    total = seen.microseconds
    for row in rows:
        time = row["microseconds"]
        row["share"] = None if time is None or not total else time / total
    return Inspected(variant, observation, seen, rows)


def kernel_rows(kernels: Sequence[Kernel], times: Sequence[float | None]) -> list[dict[str, Any]]:
    """Equal kernel calls together: bytes and time (microseconds) summed over them."""
    rows: dict[tuple, dict[str, Any]] = {}
    for kernel, time in zip(kernels, times):
        row = rows.setdefault(
            (kernel.name, kernel.ops, kernel.sites),
            {
                "kernel": kernel.name, "label": _label(kernel.name), "kind": kernel.kind,
                "ops": list(kernel.ops), "sites": list(kernel.sites), "calls": 0,
                "bytes_in": 0, "bytes_out": 0, "microseconds": 0.0,
            },
        )  # fmt: skip
        row["calls"] += 1
        for name, value in (
            ("bytes_in", kernel.bytes_in),
            ("bytes_out", kernel.bytes_out),
            ("microseconds", time),
        ):
            row[name] = None if value is None or row[name] is None else row[name] + value
    return list(rows.values())


def _operator_rows(seen: Profile) -> list[dict[str, Any]]:
    """Eager execution: the operators, as the profiler names them."""
    implementations = {f"fusebench::{op}_{name}": op for op, name in IMPLEMENTATIONS}
    rows = []
    for name, time in seen.by_name().items():
        op = implementations.get(name.removesuffix("_packed"))
        rows.append(
            {
                "kernel": name, "label": name, "kind": "operator" if op is None else "handwritten",
                "ops": [name.replace("::", ".")],
                "sites": [s for s, o in SITES.items() if o == op],
                "calls": sum(e.name == name for e in seen.events),
                "bytes_in": None, "bytes_out": None, "microseconds": time,
            }
        )  # fmt: skip
    return rows


def _label(name: str) -> str:
    """`cpp 3` for `cpp_fused_…_3`, `aten.addmm`, `fusebench.swiglu_ffn_cpp`."""
    if "fused" in name:
        head, _, tail = name.partition("_fused")
        return f"{head} {tail.rsplit('_', 1)[-1]}"
    bare = name.removesuffix(".default").removeprefix("torch.ops.")
    return bare.replace("extern_kernels.", "aten.")
