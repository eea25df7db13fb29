"""`cuda`: the CUDA C++ kernels of csrc/cuda, on a GPU or, to be checked, in the simulator."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

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


def _sdpa_gradients() -> dict[str, Any]:
    """The forward that keeps lse, and the backward, of the sdpa kernels."""
    op = get_op("sdpa")

    def fake_saving(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        return op.fake(q, *rest), q.new_empty(q.shape[:3], dtype=torch.float32)

    def fake_backward(grad_out, q, k, v, out, lse, causal, scale) -> tuple[Tensor, ...]:
        return tuple(t.new_empty(t.shape) for t in (q, k, v))

    arguments = op.schema.removeprefix("(").rsplit(") ->", 1)[0]
    saving_op = define(
        op, "cuda", suffix="_saving", schema=f"({arguments}) -> (Tensor out, Tensor lse)",
        fake=fake_saving,
    )  # fmt: skip
    backward_op = define(
        op, "cuda", suffix="_backward", fake=fake_backward,
        schema="(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
        "bool causal, float scale) -> (Tensor, Tensor, Tensor)",
    )  # fmt: skip

    def saving(*args: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, lse = saving_op(*args)
        return out, (out, lse)

    def backward(grads, args, saved, needs) -> tuple[Tensor | None, ...]:
        q, k, v, causal, scale = args
        return (*backward_op(grads[0], q, k, v, *saved, causal, scale), None, None)

    return {"saving": saving, "backward": backward}


def _sdpa_supports(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> str | None:
    if q.shape[-1] > 128:
        return f"q has head_dim {q.shape[-1]}, accepted: 1 to 128"
    return None if scale > 0 else f"scale is {scale}, accepted: a number above 0"


for _name in OPS:
    _is_sdpa = _name == "sdpa"
    register(
        Implementation(
            _name,
            "cuda",
            define(get_op(_name), "cuda"),
            ("cpu",) if SIMULATED else ("cuda",),
            (torch.bfloat16, torch.float16),
            source=f"csrc/cuda/{_name}.cu",
            unavailable=_unavailable,
            supports=_sdpa_supports if _is_sdpa else None,
            timed=not SIMULATED,
        ),
        **(_sdpa_gradients() if _is_sdpa else {}),
    )
