"""FlexAttention: PyTorch's attention that is compiled from its mask and score functions."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from fusebench.contestants.common import as_the_op_returns
from fusebench.ops.registry import implementation


@functools.cache
def _compiled():
    return torch.compile(flex_attention, dynamic=False)


@functools.lru_cache(maxsize=64)
def _mask(tq: int, tk: int, device: torch.device):
    """The end-aligned causal mask, in the blocks that FlexAttention skips or does not."""
    return create_block_mask(
        lambda b, h, query, key: key <= query + (tk - tq), None, None, tq, tk, device=device
    )


def _supports(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> str | None:
    if 0 in q.shape:
        return f"q has shape {list(q.shape)}, expected no empty dimension"
    if q.shape[3] < 16:
        return f"the head_dim is {q.shape[3]}, expected at least 16"
    return None


@implementation("sdpa", "flex", device=("cpu", "cuda"), supports=_supports)
def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    mask = _mask(q.shape[2], k.shape[2], q.device) if causal and q.shape[2] > 1 else None
    out = _compiled()(
        q, k, v, block_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )  # fmt: skip
    return as_the_op_returns(out)
