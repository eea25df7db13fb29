"""Every backend of F.scaled_dot_product_attention by name, so that none is chosen in silence."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fusebench.contestants.common import as_the_op_returns
from fusebench.ops.registry import DTYPES, implementation
from fusebench.ops.sdpa import reference

HALF = (torch.bfloat16, torch.float16)
# name -> backend, devices, dtypes, whether it takes a mask on CUDA, whether it takes fewer KV heads
BACKENDS = {
    "torch_math": (SDPBackend.MATH, ("cpu", "cuda"), DTYPES, True, True),
    "torch_flash": (SDPBackend.FLASH_ATTENTION, ("cpu", "cuda"), DTYPES, False, True),
    "torch_efficient": (SDPBackend.EFFICIENT_ATTENTION, ("cuda",), DTYPES, True, False),
    "torch_cudnn": (SDPBackend.CUDNN_ATTENTION, ("cuda",), HALF, False, True),
}


def _register(name: str) -> None:
    backend, devices, dtypes, masked, grouped = BACKENDS[name]

    def supports(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> str | None:
        if q.device.type == "cuda" and name == "torch_flash" and q.dtype not in HALF:
            return f"the dtype is {q.dtype}, expected bfloat16 or float16 on a GPU"
        needs_mask = causal and 1 < q.shape[2] < k.shape[2]
        if q.device.type == "cuda" and needs_mask and not masked:
            return f"q has {q.shape[2]} of k's {k.shape[2]} positions, expected 1 or all"
        return None

    def unavailable() -> str | None:
        if "cpu" not in devices and not torch.cuda.is_available():
            return "needs a CUDA GPU"
        return None

    @implementation(
        "sdpa", name, device=devices, dtypes=dtypes, supports=supports, unavailable=unavailable,
        opaque=False,
    )  # fmt: skip
    def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
        if not grouped and q.shape[1] != k.shape[1]:
            groups = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        with sdpa_kernel(backend):
            out = reference(q, k, v, causal, scale)
        return as_the_op_returns(out)


for _name in BACKENDS:
    _register(_name)
