"""sdpa forward: FlashAttention-2 with exp2, and split-KV for a few queries over many keys.

Softmax runs over tiles of keys with a running maximum and sum (2205.14135, 2307.08691); scores are
kept in base 2, so that every exponential is one exp2. Causal masking is aligned at the end: query i
sees the keys up to i + Tk - Tq.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .attention import LN2, LOG2E, block_d, head_class, head_rows, load_head, load_rows
from .configs import row
from .launch import describable, launch, power_of_2, precision, target
from .sdpa_backward import sdpa_backward

__all__ = ["sdpa", "sdpa_backward", "sdpa_saving"]


@triton.jit
def attend(
    acc, maximum, total, q, queries, first, last, k_ptr, k_desc, k_stride, v_ptr, v_desc, v_stride,
    shift, Tk, SCALE: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    D: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Fold the keys [first, last) into (acc, maximum, total); without MASKED every key is seen."""
    # A positive scale goes into the exponent's multiply-add, after the maximum.
    FACTOR: tl.constexpr = SCALE * LOG2E if SCALE > 0 else 1.0
    for start in tl.range(first, last, BLOCK_N):
        k = load_rows(k_ptr, k_desc, k_stride, start, Tk, D, BLOCK_N, BLOCK_D, TMA)
        s = tl.dot(q, k.T, input_precision=PRECISION)
        if SCALE <= 0:
            s *= SCALE * LOG2E
        if MASKED:
            keys = start + tl.arange(0, BLOCK_N)
            seen = keys[None, :] < Tk
            if CAUSAL:
                seen = seen & (keys[None, :] <= queries[:, None] + shift)
            s = tl.where(seen, s, float("-inf"))
        higher = tl.maximum(maximum, tl.max(s, axis=1) * FACTOR)
        if MASKED:  # a row that has seen no key yet: exp2(-inf - 0) = 0, where -inf - -inf is NaN
            base = tl.where(higher == float("-inf"), 0.0, higher)
        else:
            base = higher
        p = tl.exp2(s * FACTOR - base[:, None])
        rescale = tl.exp2(maximum - base)
        total = total * rescale + tl.sum(p, axis=1)
        v = load_rows(v_ptr, v_desc, v_stride, start, Tk, D, BLOCK_N, BLOCK_D, TMA)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)
        maximum = higher
    return acc, maximum, total


@triton.jit
def sdpa_kernel(
    q_ptr, q_b, q_h, q_t, k_ptr, k_b, k_h, k_t, v_ptr, v_b, v_h, v_t, out_ptr, lse_ptr,
    Hq, Hkv, Tq, Tk, SCALE: tl.constexpr, CAUSAL: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M queries of one head. The longest causal rows start first."""
    blocks = tl.cdiv(Tq, BLOCK_M)
    head = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    if CAUSAL:
        block = blocks - 1 - block
    b = (head // Hq).to(tl.int64)
    h = (head % Hq).to(tl.int64)
    hkv = h // (Hq // Hkv)
    q_ptr += b * q_b + h * q_h
    k_ptr += b * k_b + hkv * k_h
    v_ptr += b * v_b + hkv * v_h
    k_desc = k_ptr
    v_desc = v_ptr
    if TMA:
        k_desc = tl.make_tensor_descriptor(k_ptr, [Tk, D], [k_t, 1], [BLOCK_N, BLOCK_D])
        v_desc = tl.make_tensor_descriptor(v_ptr, [Tk, D], [v_t, 1], [BLOCK_N, BLOCK_D])
    first = block * BLOCK_M
    queries = first + tl.arange(0, BLOCK_M)
    q = load_head(q_ptr, q_t, first, Tq, D, BLOCK_M, BLOCK_D)

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    shift = Tk - Tq
    # Whole tiles that every query of the block sees need no mask; the rest does.
    last = Tk
    unmasked = Tk
    if CAUSAL:
        last = tl.minimum(Tk, first + BLOCK_M + shift)
        unmasked = tl.minimum(Tk, first + shift + 1)
    unmasked = tl.maximum(unmasked, 0) // BLOCK_N * BLOCK_N
    acc, maximum, total = attend(
        acc, maximum, total, q, queries, 0, unmasked, k_ptr, k_desc, k_t, v_ptr, v_desc, v_t,
        shift, Tk, SCALE, CAUSAL, False, D, BLOCK_N, BLOCK_D, TMA, PRECISION,
    )  # fmt: skip
    acc, maximum, total = attend(
        acc, maximum, total, q, queries, unmasked, last, k_ptr, k_desc, k_t, v_ptr, v_desc, v_t,
        shift, Tk, SCALE, CAUSAL, True, D, BLOCK_N, BLOCK_D, TMA, PRECISION,
    )  # fmt: skip
    total = tl.where(total == 0.0, 1.0, total)  # rows past the end may have seen no key
    acc /= total[:, None]
    if lse_ptr is not None:
        lse = (maximum + tl.log2(total)) * LN2
        tl.store(lse_ptr + (b * Hq + h) * Tq + queries, lse, mask=queries < Tq)
    cols = tl.arange(0, BLOCK_D)
    at = ((b * Tq + queries)[:, None] * Hq + h) * D + cols[None, :]
    mask = (queries[:, None] < Tq) & (cols[None, :] < D)
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def decode_kernel(
    q_ptr, q_b, q_h, q_t, k_ptr, k_b, k_h, k_t, v_ptr, v_b, v_h, v_t, partial_ptr, lse_ptr,
    Hq, Hkv, Tq, Tk, SCALE: tl.constexpr, CAUSAL: tl.constexpr, D: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: a share of the keys, for all queries of all heads that read one KV head.

    Tile rows are (head of the group, query). Leaves float32 partial results [B, Hq, Tq, SPLITS, D]
    and their base-2 lse for `combine_kernel`; an empty share leaves -inf.
    """
    share = tl.program_id(0) % SPLITS
    head = tl.program_id(0) // SPLITS
    b = (head // Hkv).to(tl.int64)
    hkv = (head % Hkv).to(tl.int64)
    group = Hq // Hkv
    k_ptr += b * k_b + hkv * k_h
    v_ptr += b * v_b + hkv * v_h
    rows = tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_D)
    h = hkv * group + rows // Tq
    queries = rows % Tq
    inside = rows < group * Tq
    mask = inside[:, None] & (cols[None, :] < D)
    q = tl.load(
        q_ptr + b * q_b + (h * q_h + queries.to(tl.int64) * q_t)[:, None] + cols[None, :],
        mask=mask, other=0.0,
    )  # fmt: skip
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    per_share = tl.cdiv(tl.cdiv(Tk, SPLITS), BLOCK_N) * BLOCK_N
    first = tl.minimum(share * per_share, Tk)
    last = tl.minimum(first + per_share, Tk)
    acc, maximum, total = attend(
        acc, maximum, total, q, queries, first, last, k_ptr, k_ptr, k_t, v_ptr, v_ptr, v_t,
        Tk - Tq, Tk, SCALE, CAUSAL, True, D, BLOCK_N, BLOCK_D, False, PRECISION,
    )  # fmt: skip
    lse = maximum + tl.log2(tl.where(total == 0.0, 1.0, total))
    acc /= tl.where(total == 0.0, 1.0, total)[:, None]
    at = ((b * Hq + h) * Tq + queries) * SPLITS + share
    tl.store(lse_ptr + at, lse, mask=inside)
    tl.store(partial_ptr + at[:, None] * D + cols[None, :], acc, mask=mask)


@triton.jit
def combine_kernel(
    partial_ptr, lse_ptr, out_ptr, out_lse_ptr, Hq, Tq,
    SPLITS: tl.constexpr, D: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: one query's shares, weighted by their share of the softmax's sum."""
    index = tl.program_id(0).to(tl.int64)
    share = tl.arange(0, BLOCK_S)
    cols = tl.arange(0, BLOCK_D)
    lse = tl.load(lse_ptr + index * SPLITS + share, mask=share < SPLITS, other=float("-inf"))
    highest = tl.max(lse, axis=0)
    weight = tl.exp2(lse - tl.where(highest == float("-inf"), 0.0, highest))
    total = tl.sum(weight, axis=0)
    mask = (share[:, None] < SPLITS) & (cols[None, :] < D)
    at = (index * SPLITS + share[:, None]) * D + cols[None, :]
    partial = tl.load(partial_ptr + at, mask=mask, other=0.0)
    out = tl.sum(partial * weight[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    if out_lse_ptr is not None:
        tl.store(out_lse_ptr + index, (highest + tl.log2(total)) * LN2)
    b = index // (Hq * Tq)
    h = index // Tq % Hq
    t = index % Tq
    at = ((b * Tq + t) * Hq + h) * D + cols
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=cols < D)


def _forward(q, k, v, causal, scale, *, saving):
    batch, hq, tq, d = q.shape
    hkv, tk = k.shape[1], k.shape[2]
    q, k, v = head_rows(q), head_rows(k), head_rows(v)
    out = q.new_empty((batch, tq, hq, d)).transpose(1, 2)
    lse = q.new_empty((batch, hq, tq), dtype=torch.float32) if saving else None
    if out.numel() == 0:
        return out, lse
    device = target(q)
    tensors = (
        q, q.stride(0), q.stride(1), q.stride(2), k, k.stride(0), k.stride(1), k.stride(2),
        v, v.stride(0), v.stride(1), v.stride(2),
    )  # fmt: skip
    shape = (hq, hkv, tq, tk)
    constants = dict(
        SCALE=scale, CAUSAL=causal, D=d, BLOCK_D=block_d(d), PRECISION=precision(q.dtype)
    )
    queries = hq // hkv * tq
    if queries <= 64 and tk >= 4 * queries and tk > 64:
        config = dict(row("sdpa_decode", device.arch, q.dtype, head_class(d)))
        # Shares for two waves of blocks; their number may not follow Tk, which grows step by step.
        shares = max(1, min(64, power_of_2(2 * device.sms // (batch * hkv) or 1)))
        partial = q.new_empty((batch, hq, tq, shares, d), dtype=torch.float32)
        partial_lse = q.new_empty((batch, hq, tq, shares), dtype=torch.float32)
        launch(decode_kernel)[(batch * hkv * shares,)](
            *tensors, partial, partial_lse, *shape, SPLITS=shares,
            BLOCK_M=max(16, power_of_2(queries)), BLOCK_N=config["block_n"],
            num_warps=config["warps"], num_stages=config["stages"], **constants,
        )  # fmt: skip
        launch(combine_kernel)[(batch * hq * tq,)](
            partial, partial_lse, out, lse, hq, tq,
            SPLITS=shares, D=d, BLOCK_S=shares, BLOCK_D=block_d(d), num_warps=4,
        )  # fmt: skip
        return out, lse
    config = dict(row("sdpa", device.arch, q.dtype, head_class(d)))
    launch(sdpa_kernel)[(triton.cdiv(tq, config["block_m"]) * batch * hq,)](
        *tensors, out, lse, *shape, TMA=config["tma"] and describable(k, v),
        BLOCK_M=config["block_m"], BLOCK_N=config["block_n"],
        num_warps=config["warps"], num_stages=config["stages"], **constants,
    )  # fmt: skip
    return out, lse


def sdpa(q, k, v, causal, scale):
    """softmax(q @ k.T * scale) @ v: q [B, Hq, Tq, D], k and v [B, Hkv, Tk, D].

    The result is [B, Hq, Tq, D] with memory [B, Tq, Hq, D].
    """
    return _forward(q, k, v, causal, scale, saving=False)[0]


def sdpa_saving(q, k, v, causal, scale):
    """(`sdpa`, its log-sum-exp [B, Hq, Tq] in float32)."""
    return _forward(q, k, v, causal, scale, saving=True)
