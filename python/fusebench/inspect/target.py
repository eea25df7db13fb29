"""One variant as Inductor would compile it for a GPU that need not be here: its kernels as rows."""

from __future__ import annotations

from dataclasses import asdict

from fusebench.bench.workload import Workload
from fusebench.inspect import capture, no_gpu
from fusebench.inspect.generated import Kernel
from fusebench.inspect.variant import Inspected, kernel_rows
from fusebench.ops import checks
from fusebench.variant import Variant


def inspected_for(variant: Variant, workload: Workload, target: str) -> Inspected:
    """What Inductor generates for a variant on `sm_80`, `sm_90` or `sm_100`.

    Rows have `registers`, `stack` (bytes of local memory a thread, i.e. spills) and `shared` for
    the kernels that Triton compiled: the most over the configurations that the GPU would choose
    from. Raises ValueError for a mode that needs the GPU, RuntimeError where there can be no
    target.
    """
    if str(variant.mode) != "default":
        raise checks.refuse(
            "inspect --target", "the mode", f"is {variant.mode}",
            "default: the others run on the GPU while they compile",
        )  # fmt: skip
    found = no_gpu.generate(
        str(variant.plan), asdict(workload.config), workload.batch, workload.seq, workload.dtype,
        target,
    )  # fmt: skip
    graphs = [
        capture.Graph(
            **{
                **graph,
                "ops": [tuple(op) for op in graph["ops"]],
                "kernels": [_kernel(fields) for fields in graph["kernels"]],
            }
        )
        for graph in found["graphs"]
    ]
    seen = capture.Observation(graphs, [capture.Break(**b) for b in found["breaks"]])
    rows = kernel_rows(seen.kernels, [None] * len(seen.kernels))
    for row in rows:
        configurations = found["resources"].get(row["kernel"], [])
        row["configurations"] = configurations
        for name in ("registers", "stack", "shared"):
            row[name] = max((c[name] for c in configurations), default=None)
    return Inspected(variant, seen, None, rows)


def _kernel(fields: dict) -> Kernel:
    return Kernel(**{**fields, "ops": tuple(fields["ops"]), "sites": tuple(fields["sites"])})
