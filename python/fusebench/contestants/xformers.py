"""xFormers: memory_efficient_attention for `sdpa`."""

from __future__ import annotations

from torch import Tensor

from fusebench.contestants.common import needs, tokens_first
from fusebench.ops.registry import implementation


@implementation("sdpa", "xformers", unavailable=needs("xformers"))
def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    from xformers.ops import memory_efficient_attention
    from xformers.ops.fmha.attn_bias import LowerTriangularFromBottomRightMask

    batch, heads, tq, head_dim = q.shape
    kv_heads, tk = k.shape[1], k.shape[2]
    grouped = (batch, tk, kv_heads, heads // kv_heads, head_dim)
    # Five dimensions: the queries of a group read one KV head, through a stride of zero.
    out = memory_efficient_attention(
        tokens_first(q).reshape(batch, tq, kv_heads, heads // kv_heads, head_dim),
        tokens_first(k)[:, :, :, None].expand(grouped),
        tokens_first(v)[:, :, :, None].expand(grouped),
        attn_bias=LowerTriangularFromBottomRightMask() if causal else None,
        scale=scale,
    )
    return tokens_first(out.reshape(batch, tq, heads, head_dim))
