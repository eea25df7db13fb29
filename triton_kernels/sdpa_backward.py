"""sdpa backward: delta, then dK and dV per tile of keys, and dQ per tile of queries.

Each gradient is summed by one program in a fixed order, so there are no atomics and no float32
copies of dQ; the price is that the scores are computed twice (five products become seven).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .attention import LOG2E, block_d, head_class, head_rows, load_head
from .configs import row
from .launch import launch, precision, target


@triton.jit
def delta_kernel(
    out_ptr, o_b, o_h, o_t, dout_ptr, do_b, do_h, do_t, delta_ptr, Hq, Tq,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """delta[b, h, t] = sum over D of out * dout: the row sums of p * dp."""
    blocks = tl.cdiv(Tq, BLOCK_M)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    first = tl.program_id(0) % blocks * BLOCK_M
    b = head // Hq
    h = head % Hq
    out = load_head(out_ptr + b * o_b + h * o_h, o_t, first, Tq, D, BLOCK_M, BLOCK_D)
    dout = load_head(dout_ptr + b * do_b + h * do_h, do_t, first, Tq, D, BLOCK_M, BLOCK_D)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), axis=1)
    rows = first + tl.arange(0, BLOCK_M)
    tl.store(delta_ptr + head * Tq + rows, delta, mask=rows < Tq)


@triton.jit
def probabilities(s, lse, queries, keys, shift, Tq, Tk, SCALE: tl.constexpr, CAUSAL: tl.constexpr):
    """exp(s * SCALE - lse) where the query sees the key, else 0; all broadcast against s."""
    seen = (queries < Tq) & (keys < Tk)
    if CAUSAL:
        seen = seen & (keys <= queries + shift)
    return tl.where(seen, tl.exp2(s * (SCALE * LOG2E) - lse * LOG2E), 0.0)


@triton.jit
def dkdv_kernel(
    q_ptr, q_b, q_h, q_t, k_ptr, k_b, k_h, k_t, v_ptr, v_b, v_h, v_t, dout_ptr, do_b, do_h, do_t,
    lse_ptr, delta_ptr, dk_ptr, dv_ptr, Hq, Hkv, Tq, Tk,
    SCALE: tl.constexpr, CAUSAL: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_N keys of one KV head, over the queries of all its heads that see them.

    Everything is transposed, [keys, queries], so that p and ds are left operands as they are.
    """
    blocks = tl.cdiv(Tk, BLOCK_N)
    head = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks * BLOCK_N
    b = (head // Hkv).to(tl.int64)
    hkv = (head % Hkv).to(tl.int64)
    k = load_head(k_ptr + b * k_b + hkv * k_h, k_t, first, Tk, D, BLOCK_N, BLOCK_D)
    v = load_head(v_ptr + b * v_b + hkv * v_h, v_t, first, Tk, D, BLOCK_N, BLOCK_D)
    keys = first + tl.arange(0, BLOCK_N)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    shift = Tk - Tq
    low = 0
    if CAUSAL:  # the first query that sees a key of this tile, rounded down to a tile
        low = tl.maximum(first - shift, 0) // BLOCK_M * BLOCK_M
    group = Hq // Hkv
    per_head = tl.cdiv(Tq - low, BLOCK_M)
    for step in tl.range(0, group * per_head):
        h = hkv * group + step // per_head
        start = low + step % per_head * BLOCK_M
        queries = start + tl.arange(0, BLOCK_M)
        at = (b * Hq + h) * Tq + queries
        q = load_head(q_ptr + b * q_b + h * q_h, q_t, start, Tq, D, BLOCK_M, BLOCK_D)
        dout = load_head(dout_ptr + b * do_b + h * do_h, do_t, start, Tq, D, BLOCK_M, BLOCK_D)
        lse = tl.load(lse_ptr + at, mask=queries < Tq, other=0.0)
        delta = tl.load(delta_ptr + at, mask=queries < Tq, other=0.0)
        s = tl.dot(k, q.T, input_precision=PRECISION)
        p = probabilities(
            s, lse[None, :], queries[None, :], keys[:, None], shift, Tq, Tk, SCALE, CAUSAL
        )
        dv = tl.dot(p.to(dout.dtype), dout, dv, input_precision=PRECISION)
        dp = tl.dot(v, dout.T, input_precision=PRECISION)
        ds = p * (dp - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    cols = tl.arange(0, BLOCK_D)
    at = ((b * Hkv + hkv) * Tk + keys)[:, None] * D + cols[None, :]
    mask = (keys[:, None] < Tk) & (cols[None, :] < D)
    tl.store(dk_ptr + at, (dk * SCALE).to(dk_ptr.dtype.element_ty), mask=mask)
    tl.store(dv_ptr + at, dv.to(dv_ptr.dtype.element_ty), mask=mask)


@triton.jit
def dq_kernel(
    q_ptr, q_b, q_h, q_t, k_ptr, k_b, k_h, k_t, v_ptr, v_b, v_h, v_t, dout_ptr, do_b, do_h, do_t,
    lse_ptr, delta_ptr, dq_ptr, Hq, Hkv, Tq, Tk,
    SCALE: tl.constexpr, CAUSAL: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M queries of one head, over the keys they see; the longest rows first."""
    blocks = tl.cdiv(Tq, BLOCK_M)
    head = tl.program_id(0) // blocks
    first = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M
    b = (head // Hq).to(tl.int64)
    h = (head % Hq).to(tl.int64)
    hkv = h // (Hq // Hkv)
    k_ptr += b * k_b + hkv * k_h
    v_ptr += b * v_b + hkv * v_h
    queries = first + tl.arange(0, BLOCK_M)
    at = (b * Hq + h) * Tq + queries
    q = load_head(q_ptr + b * q_b + h * q_h, q_t, first, Tq, D, BLOCK_M, BLOCK_D)
    dout = load_head(dout_ptr + b * do_b + h * do_h, do_t, first, Tq, D, BLOCK_M, BLOCK_D)
    lse = tl.load(lse_ptr + at, mask=queries < Tq, other=0.0)
    delta = tl.load(delta_ptr + at, mask=queries < Tq, other=0.0)
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    shift = Tk - Tq
    last = Tk
    if CAUSAL:
        last = tl.minimum(Tk, first + BLOCK_M + shift)
    for start in tl.range(0, last, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k = load_head(k_ptr, k_t, start, Tk, D, BLOCK_N, BLOCK_D)
        v = load_head(v_ptr, v_t, start, Tk, D, BLOCK_N, BLOCK_D)
        s = tl.dot(q, k.T, input_precision=PRECISION)
        p = probabilities(
            s, lse[:, None], queries[:, None], keys[None, :], shift, Tq, Tk, SCALE, CAUSAL
        )
        dp = tl.dot(dout, v.T, input_precision=PRECISION)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    cols = tl.arange(0, BLOCK_D)
    mask = (queries[:, None] < Tq) & (cols[None, :] < D)
    out = dq_ptr + at[:, None] * D + cols[None, :]
    tl.store(out, (dq * SCALE).to(dq_ptr.dtype.element_ty), mask=mask)


def sdpa_backward(dout, q, k, v, causal, scale, lse, out):
    """Gradients of (q, k, v), contiguous, from the forward's result and log-sum-exp."""
    batch, hq, tq, d = q.shape
    hkv, tk = k.shape[1], k.shape[2]
    dq, dk, dv = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    if q.numel() == 0:
        return dq, dk.zero_(), dv.zero_()
    q, k, v, dout, out = (head_rows(x) for x in (q, k, v, dout, out))
    delta = q.new_empty((batch, hq, tq), dtype=torch.float32)
    device = target(q)

    def strided(x):
        return x, x.stride(0), x.stride(1), x.stride(2)

    launch(delta_kernel)[(batch * hq * triton.cdiv(tq, 64),)](
        *strided(out), *strided(dout), delta, hq, tq, D=d, BLOCK_M=64, BLOCK_D=block_d(d),
        num_warps=4,
    )  # fmt: skip
    tensors = (*strided(q), *strided(k), *strided(v), *strided(dout), lse, delta)
    constants = dict(
        SCALE=scale, CAUSAL=causal, D=d, BLOCK_D=block_d(d), PRECISION=precision(q.dtype)
    )
    config = row("sdpa_backward_dkdv", device.arch, q.dtype, head_class(d))
    launch(dkdv_kernel)[(batch * hkv * triton.cdiv(tk, config["block_n"]),)](
        *tensors, dk, dv, hq, hkv, tq, tk,
        BLOCK_M=config["block_m"], BLOCK_N=config["block_n"],
        num_warps=config["warps"], num_stages=config["stages"], **constants,
    )  # fmt: skip
    config = row("sdpa_backward_dq", device.arch, q.dtype, head_class(d))
    launch(dq_kernel)[(batch * hq * triton.cdiv(tq, config["block_m"]),)](
        *tensors, dq, hq, hkv, tq, tk,
        BLOCK_M=config["block_m"], BLOCK_N=config["block_n"],
        num_warps=config["warps"], num_stages=config["stages"], **constants,
    )  # fmt: skip
    return dq, dk, dv
