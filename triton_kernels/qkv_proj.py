"""qkv_proj: one GEMM whose prologue normalizes x and whose epilogue adds the bias, rotates q and k
and stores each head where attention wants it."""

from __future__ import annotations

import triton
import triton.language as tl

from .configs import gemm_config
from .gemm import gemm
from .launch import describable, launch, power_of_2, precision, target
from .linear import projection_backward, rows_of
from .norm import norm_apply, norm_begin, norm_end, norm_prologue


@triton.jit
def store_heads(out_ptr, values, rows, T, head, i, heads, M, D: tl.constexpr):
    """Store values [rows, columns] to out [B, heads, T, D]; heads it does not have are skipped."""
    b = (rows // T).to(tl.int64)[:, None]
    t = rows % T
    at = ((b * heads + head[None, :]) * T + t[:, None]) * D + i[None, :]
    mask = (rows[:, None] < M) & (head[None, :] >= 0) & (head[None, :] < heads)
    tl.store(out_ptr + at, values.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def store_pairs(
    acc, rows, first_pair, M, N, q_ptr, k_ptr, v_ptr, bias_ptr, cos_ptr, sin_ptr, T,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, ROPE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """Bias, rotate and store columns (group of G, half, i): a pair is x1 and x2 of one rotation."""
    P: tl.constexpr = D // 2
    W: tl.constexpr = BLOCK_N // 2
    x1, x2 = acc.reshape(BLOCK_M, G, 2, W // G).permute(0, 1, 3, 2).split()
    x1 = x1.reshape(BLOCK_M, W)
    x2 = x2.reshape(BLOCK_M, W)
    pair = first_pair + tl.arange(0, W)
    head = pair // P
    i = pair % P
    if bias_ptr is not None:
        inside = pair < N // 2
        x1 += tl.load(bias_ptr + head * D + i, mask=inside, other=0.0).to(tl.float32)[None, :]
        x2 += tl.load(bias_ptr + head * D + P + i, mask=inside, other=0.0).to(tl.float32)[None, :]
    first = first_pair // P
    last = (first_pair + W - 1) // P
    if first < HQ + HKV:
        if ROPE:
            rotated = (rows[:, None] < M) & (head[None, :] < HQ + HKV)
            at = (rows % T)[:, None] * P + i[None, :]
            cos = tl.load(cos_ptr + at, mask=rotated, other=1.0)
            sin = tl.load(sin_ptr + at, mask=rotated, other=0.0)
            y1 = x1 * cos - x2 * sin
            x2 = x2 * cos + x1 * sin
            x1 = y1
        if first < HQ:
            store_heads(q_ptr, x1, rows, T, head, i, HQ, M, D)
            store_heads(q_ptr, x2, rows, T, head, P + i, HQ, M, D)
        if last >= HQ:
            store_heads(k_ptr, x1, rows, T, head - HQ, i, HKV, M, D)
            store_heads(k_ptr, x2, rows, T, head - HQ, P + i, HKV, M, D)
    if last >= HQ + HKV:
        store_heads(v_ptr, x1, rows, T, head - (HQ + HKV), i, HKV, M, D)
        store_heads(v_ptr, x2, rows, T, head - (HQ + HKV), P + i, HKV, M, D)


@triton.jit
def qkv_epilogue(
    acc, rows, tile_n, M, N, q_ptr, k_ptr, v_ptr, bias_ptr, cos_ptr, sin_ptr, T,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, ROPE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Store the tile, ordered as `gemm` orders "heads"; a wide one in two halves, for registers."""
    # Whole heads where they fit a tile, else consecutive pairs.
    WHOLE: tl.constexpr = (D & (D - 1)) == 0 and BLOCK_N % D == 0
    first = tile_n * (BLOCK_N // 2)
    if WHOLE and BLOCK_N >= 256 and BLOCK_N > D:
        H: tl.constexpr = BLOCK_N // 2
        left, right = acc.reshape(BLOCK_M, 2, H).permute(0, 2, 1).split()
        store_pairs(
            left, rows, first, M, N, q_ptr, k_ptr, v_ptr, bias_ptr, cos_ptr, sin_ptr, T,
            HQ, HKV, D, ROPE, BLOCK_M, H, H // D,
        )  # fmt: skip
        store_pairs(
            right, rows, first + H // 2, M, N, q_ptr, k_ptr, v_ptr, bias_ptr, cos_ptr, sin_ptr, T,
            HQ, HKV, D, ROPE, BLOCK_M, H, H // D,
        )  # fmt: skip
    else:
        G: tl.constexpr = BLOCK_N // D if WHOLE else 1
        store_pairs(
            acc, rows, first, M, N, q_ptr, k_ptr, v_ptr, bias_ptr, cos_ptr, sin_ptr, T,
            HQ, HKV, D, ROPE, BLOCK_M, BLOCK_N, G,
        )  # fmt: skip


@triton.jit
def qkv_kernel(
    x_ptr, x_stride, weight_ptr, weight_stride, q_ptr, k_ptr, v_ptr, bias_ptr, cos_ptr, sin_ptr,
    mean_ptr, rstd_ptr, norm_weight_ptr, norm_bias_ptr, M, T, K,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, ROPE: tl.constexpr,
    NORM: tl.constexpr, EPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    gemm(
        x_ptr, x_stride, weight_ptr, weight_stride, M, (HQ + 2 * HKV) * D, K,
        norm_begin, norm_apply, norm_end,
        (mean_ptr, rstd_ptr, norm_weight_ptr, norm_bias_ptr, NORM, EPS),
        qkv_epilogue,
        (q_ptr, k_ptr, v_ptr, bias_ptr, cos_ptr, sin_ptr, T, HQ, HKV, D, ROPE, BLOCK_M, BLOCK_N),
        False, False, "heads", D // 2, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, TMA, PRECISION,
    )  # fmt: skip


@triton.jit
def qkv_gather_kernel(
    dq_ptr, dk_ptr, dv_ptr, out_ptr, cos_ptr, sin_ptr, M, T,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, ROPE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """The epilogue's transpose: heads back to out [M, N], with the inverse rotation."""
    P: tl.constexpr = D // 2
    N: tl.constexpr = (HQ + 2 * HKV) * D
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    head = tl.program_id(1)
    i = tl.arange(0, BLOCK_P)
    mask = (rows[:, None] < M) & (i[None, :] < P)
    b = (rows // T).to(tl.int64)
    t = rows % T
    if head < HQ:
        base = dq_ptr + ((b * HQ + head) * T + t)[:, None] * D
    elif head < HQ + HKV:
        base = dk_ptr + ((b * HKV + head - HQ) * T + t)[:, None] * D
    else:
        base = dv_ptr + ((b * HKV + head - (HQ + HKV)) * T + t)[:, None] * D
    d1 = tl.load(base + i[None, :], mask=mask, other=0.0)
    d2 = tl.load(base + P + i[None, :], mask=mask, other=0.0)
    if ROPE:  # noqa: SIM102  ROPE is known when it compiles, head is not
        if head < HQ + HKV:
            cos = tl.load(cos_ptr + t[:, None] * P + i[None, :], mask=mask, other=1.0)
            sin = tl.load(sin_ptr + t[:, None] * P + i[None, :], mask=mask, other=0.0)
            f1 = d1.to(tl.float32)
            f2 = d2.to(tl.float32)
            d1 = (f1 * cos + f2 * sin).to(d1.dtype)
            d2 = (f2 * cos - f1 * sin).to(d2.dtype)
    out = out_ptr + rows.to(tl.int64)[:, None] * N + head * D + i[None, :]
    tl.store(out, d1, mask=mask)
    tl.store(out + P, d2, mask=mask)


def _forward(
    x, weight, bias, num_heads, num_kv_heads, norm, norm_weight, norm_bias, eps, cos, sin, *, saving
):
    batch, t, c = x.shape
    d = weight.shape[0] // (num_heads + 2 * num_kv_heads)
    x2, weight = rows_of(x), rows_of(weight)
    q = x.new_empty((batch, num_heads, t, d))
    k = x.new_empty((batch, num_kv_heads, t, d))
    v = x.new_empty((batch, num_kv_heads, t, d))
    mean, rstd, kind = norm_prologue(x2, norm, norm_weight, norm_bias, eps, saving=saving)
    m = batch * t
    if m == 0:
        return q, k, v, mean, rstd
    device = target(x)
    # A descriptor reads whole heads; other head sizes gather their pairs through pointers.
    config = gemm_config("qkv_proj", device, x.dtype, m, tma=describable(x2, weight))
    if config.block_n % d:
        config = gemm_config("qkv_proj", device, x.dtype, m, tma=False, size="gathered")
    cos, sin = (None, None) if cos is None else (cos.contiguous(), sin.contiguous())
    launch(qkv_kernel)[(config.programs(device),)](
        x2, x2.stride(0), weight, weight.stride(0), q, k, v, bias, cos, sin,
        mean, rstd, norm_weight, norm_bias, m, t, c,
        HQ=num_heads, HKV=num_kv_heads, D=d, ROPE=cos is not None, NORM=kind, EPS=eps,
        PRECISION=precision(x.dtype), **config.kwargs(),
    )  # fmt: skip
    return q, k, v, mean, rstd


def qkv_proj(x, weight, bias, num_heads, num_kv_heads, norm, norm_weight, norm_bias, eps, cos, sin):
    """q [B, Hq, T, D], k and v [B, Hkv, T, D] of x [B, T, C] and weight [(Hq + 2 Hkv) D, C]."""
    return _forward(
        x, weight, bias, num_heads, num_kv_heads, norm, norm_weight, norm_bias, eps, cos, sin,
        saving=False,
    )[:3]  # fmt: skip


def qkv_proj_saving(
    x, weight, bias, num_heads, num_kv_heads, norm, norm_weight, norm_bias, eps, cos, sin
):
    """(q, k, v, saved row mean or None, saved 1/deviation or None)."""
    return _forward(
        x, weight, bias, num_heads, num_kv_heads, norm, norm_weight, norm_bias, eps, cos, sin,
        saving=True,
    )  # fmt: skip


def qkv_proj_backward(
    dq, dk, dv,
    x, weight, bias, num_heads, num_kv_heads, norm, norm_weight, norm_bias, eps, cos, sin,
    mean, rstd,
):  # fmt: skip
    """Gradients of (x, weight, bias, norm_weight, norm_bias); None where the input is None."""
    batch, t, _ = x.shape
    d = dq.shape[-1]
    x2, weight = rows_of(x), rows_of(weight)
    m = batch * t
    heads = num_heads + 2 * num_kv_heads
    dqkv = x.new_empty((m, heads * d))
    if m:
        cos, sin = (None, None) if cos is None else (cos.contiguous(), sin.contiguous())
        block_p = power_of_2(d // 2)
        block_m = max(1, 2048 // block_p)
        launch(qkv_gather_kernel)[(triton.cdiv(m, block_m), heads)](
            dq.contiguous(), dk.contiguous(), dv.contiguous(), dqkv, cos, sin, m, t,
            HQ=num_heads, HKV=num_kv_heads, D=d, ROPE=cos is not None,
            BLOCK_M=block_m, BLOCK_P=block_p, num_warps=4,
        )  # fmt: skip
    dx, dweight, dnorm_weight, dnorm_bias = projection_backward(
        dqkv, x2, weight, norm, norm_weight, norm_bias, eps, mean, rstd
    )
    dbias = None if bias is None else dqkv.sum(0)
    return dx.view(x.shape), dweight, dbias, dnorm_weight, dnorm_bias
