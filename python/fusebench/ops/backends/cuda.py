"""`cuda`: the CUDA C++ kernels of csrc/cuda, on a GPU or, to be checked, in the simulator."""

from __future__ import annotations

import os

import torch

from fusebench.ops.backends.cpp import _C, _MISSING
from fusebench.ops.registry import Implementation, define, get_op, register

SIMULATED = os.environ.get("FUSEBENCH_SIMULATE") == "1"
OPS = ("embedding", "qkv_proj", "sdpa", "linear", "swiglu_ffn")

_SIM_MISSING: str | None = None
if SIMULATED:
    try:
        from fusebench import _sim  # noqa: F401  (its import registers the CPU kernels)
    except ImportError as error:
        _SIM_MISSING = f"the simulator fusebench._sim cannot be loaded ({error})"


def _unavailable() -> str | None:
    if SIMULATED:
        return _SIM_MISSING
    if _C is None:
        return _MISSING
    if not _C.build_info()["cuda"]:
        return _C.build_info()["cuda_missing"]
    if not torch.cuda.is_available():
        return "no CUDA GPU here; FUSEBENCH_SIMULATE=1 runs it in the simulator on CPU tensors"
    if torch.cuda.get_device_capability() < (8, 0):
        return f"{torch.cuda.get_device_name()} is older than sm_80"
    return None


for _name in OPS:
    register(
        Implementation(
            _name,
            "cuda",
            define(get_op(_name), "cuda"),
            ("cpu",) if SIMULATED else ("cuda",),
            (torch.bfloat16, torch.float16),
            source=f"csrc/cuda/{_name}.cu",
            unavailable=_unavailable,
            timed=not SIMULATED,
        )
    )
