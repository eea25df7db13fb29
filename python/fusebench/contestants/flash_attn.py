"""flash-attn (Dao-AILab), version 2: FlashAttention-2 for `sdpa`."""

from __future__ import annotations

import torch
from torch import Tensor

from fusebench.contestants.common import needs, tokens_first
from fusebench.ops.registry import implementation


def _supports(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> str | None:
    if q.shape[3] > 256 or q.shape[3] % 8:
        return f"the head_dim is {q.shape[3]}, expected a multiple of 8 up to 256"
    return None


@implementation(
    "sdpa", "flash_attn", dtypes=(torch.bfloat16, torch.float16), supports=_supports,
    unavailable=needs("flash_attn", "flash-attn"),
)  # fmt: skip
def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    from flash_attn import flash_attn_func

    # Its causal mask is aligned at the end, as the op's is.
    out = flash_attn_func(
        tokens_first(q), tokens_first(k), tokens_first(v), softmax_scale=scale, causal=causal
    )
    return tokens_first(out)
