"""sdpa: scaled dot-product attention with grouped KV heads and an end-aligned causal mask."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fusebench.ops import checks
from fusebench.ops.norm import opmath
from fusebench.ops.registry import Op, add_op, call


def visible(q: Tensor, k: Tensor) -> Tensor:
    """The causal mask [Tq, Tk], True where a query sees a key, aligned at the end."""
    tq, tk = q.shape[2], k.shape[2]
    return torch.ones(tq, tk, dtype=torch.bool, device=q.device).tril(tk - tq)


def reference(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    # A branch, because the comparison of symbolic sizes is no bool, and F's sdpa insists on one.
    gqa = True if q.shape[1] != k.shape[1] else False  # noqa: SIM210
    if not causal or q.shape[2] == 1:  # one query at the end sees every key
        return F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=gqa)
    if q.shape[2] == k.shape[2]:
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=gqa
        )  # fmt: skip
    mask = visible(q, k)
    return F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=gqa)


def fake(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    batch, heads, length, head_dim = q.shape
    return q.new_empty((batch, length, heads, head_dim)).transpose(1, 2)


def backward(grads, args, needs):
    q, k, v, causal, scale = args
    batch, heads, length, head_dim = q.shape
    groups = heads // k.shape[1]
    dtype = opmath(q)
    # [B, Hkv, G * Tq, D]: the queries of a group share their KV head.
    folded = (batch, k.shape[1], groups * length, head_dim)
    query, grad = q.reshape(folded), grads[0].reshape(folded)
    scores = (query @ k.transpose(2, 3)).to(dtype) * scale
    if causal:
        scores = scores.masked_fill(~visible(q, k).repeat(groups, 1), float("-inf"))
    p = scores.softmax(-1)
    grad_v = p.to(v.dtype).transpose(2, 3) @ grad
    grad_p = (grad @ v.transpose(2, 3)).to(dtype)
    grad_s = (p * (grad_p - (p * grad_p).sum(-1, keepdim=True)) * scale).to(q.dtype)
    return (grad_s @ k).reshape(q.shape), grad_s.transpose(2, 3) @ query, grad_v, None, None


def check(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> None:
    checks.shape("sdpa", "q", q, "B", "Hq", "Tq", "D")
    checks.floating("sdpa", "q", q)
    if q.shape[3] == 0:
        raise checks.refuse("sdpa", "q", "has head_dim 0", "at least 1")
    checks.shape("sdpa", "k", k, q.shape[0], "Hkv", "Tk", q.shape[3])
    checks.shape("sdpa", "v", v, *k.shape)
    checks.like("sdpa", q, "q", k=k, v=v)
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise checks.refuse(
            "sdpa", "k", f"has {k.shape[1]} heads", f"a divisor of q's {q.shape[1]} heads"
        )
    if not 0 < scale < math.inf:  # torch's own kernels give NaN for others under a causal mask
        raise checks.refuse("sdpa", "scale", f"is {scale}", "a finite number above 0")
    if causal and q.shape[2] > k.shape[2]:
        raise checks.refuse(
            "sdpa", "q", f"has {q.shape[2]} positions", f"at most k's {k.shape[2]} when causal"
        )
    if k.shape[2] == 0 and q.numel():
        raise checks.refuse("sdpa", "k", "has no positions", "at least one key")


OP = add_op(
    Op(
        "sdpa",
        "(Tensor q, Tensor k, Tensor v, bool causal, float scale) -> Tensor",
        reference,
        fake,
        backward,
        check,
    )
)


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    impl: str = "reference",
) -> Tensor:
    """softmax(q @ k.T * scale) @ v per head (FlashAttention, 2205.14135, where it is fused).

    q: [B, Hq, Tq, D]. k, v: [B, Hkv, Tk, D], Hkv a divisor of Hq (grouped-query attention).
    causal: query i sees the keys up to i + Tk - Tq, so that one query at the end sees all of them
    (a decode step); Tq may not exceed Tk then. scale: above 0; 1 / sqrt(D) where None.
    Returns [B, Hq, Tq, D] whose memory is [B, Tq, Hq, D], so merging the heads is a view
    (`reference` returns what F.scaled_dot_product_attention chooses).
    Raises ValueError for shapes, dtypes or devices that do not fit.
    """
    default = max(q.shape[-1], 1) ** -0.5
    return call(OP, impl, (q, k, v, causal, default if scale is None else scale))
