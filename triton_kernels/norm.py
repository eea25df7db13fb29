"""LayerNorm and RMSNorm: as a GEMM prologue, as row statistics, and backward.

The prologue normalizes rows of A inside the GEMM's K loop. Where their statistics come from:
- "folded" (RMSNorm): the K loop sums the squares it meets and the accumulator is scaled at its end,
  so x is read once.
- "layernorm", "rmsnorm": a decode step's program measures its few rows before the K loop. They are
  a few kilobytes that stay in L1, and there is no other kernel to launch and wait for.
- "given": a kernel of its own measured every row, once for all tiles that read it.
The last two normalize the tile in float32 and round once, as in the composition, so that a mean far
above the deviation costs no accuracy.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .configs import rows_class
from .gemm import load_block
from .launch import launch, power_of_2, target


@triton.jit
def norm_begin(
    x_ptr, x_stride, rows, M, K, mean_ptr, rstd_ptr, weight_ptr, bias_ptr,
    NORM: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """A row's state: its mean and 1/deviation, or zero and the sum of squares ("folded")."""
    mean = tl.zeros(rows.shape, tl.float32)
    rstd = tl.zeros(rows.shape, tl.float32)
    if NORM == "given":
        rstd = tl.load(rstd_ptr + rows, mask=rows < M, other=0.0)
        if mean_ptr is not None:
            mean = tl.load(mean_ptr + rows, mask=rows < M, other=0.0)
    elif NORM is not None and NORM != "folded":
        CHUNK: tl.constexpr = 4096 // rows.shape[0]
        if NORM == "layernorm":
            for k in tl.range(0, K, CHUNK):
                x = load_block(x_ptr, x_stride, rows, k + tl.arange(0, CHUNK), M, K)
                mean += tl.sum(x.to(tl.float32), axis=1)
            mean /= K
        shift = tl.zeros(rows.shape, tl.float32)  # what rounding took from a mean far from zero
        for k in tl.range(0, K, CHUNK):
            ks = k + tl.arange(0, CHUNK)
            x = load_block(x_ptr, x_stride, rows, ks, M, K).to(tl.float32)
            if NORM == "layernorm":
                x = tl.where(ks[None, :] < K, x - mean[:, None], 0.0)
                shift += tl.sum(x, axis=1)
            rstd += tl.sum(x * x, axis=1)
        shift /= K
        rstd = tl.rsqrt(rstd / K - shift * shift + EPS)
        mean += shift
    return mean, rstd


@triton.jit
def norm_apply(
    a, ks, K, mean, rstd, mean_ptr, rstd_ptr, weight_ptr, bias_ptr,
    NORM: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """A tile of A, normalized, or only weighted where the norm is folded."""
    if NORM is not None:
        x = a.to(tl.float32)
        if NORM == "folded":
            rstd += tl.sum(x * x, axis=1)
        else:
            if NORM == "layernorm" or mean_ptr is not None:
                x -= mean[:, None]
            x *= rstd[:, None]
        if weight_ptr is not None:
            x *= tl.load(weight_ptr + ks, mask=ks < K, other=0.0).to(tl.float32)[None, :]
        if bias_ptr is not None:
            x += tl.load(bias_ptr + ks, mask=ks < K, other=0.0).to(tl.float32)[None, :]
        a = x.to(a.dtype)
    return a, mean, rstd


@triton.jit
def norm_end(
    acc, K, mean, sum_of_squares, mean_ptr, rstd_ptr, weight_ptr, bias_ptr,
    NORM: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """The accumulator, scaled by 1/rms where the norm was folded."""
    if NORM == "folded":
        acc *= tl.rsqrt(sum_of_squares / K + EPS)[:, None]
    return acc


@triton.jit
def norm_rows_kernel(
    x_ptr, x_stride, weight_ptr, bias_ptr, n_ptr, mean_ptr, rstd_ptr, M, C,
    LAYERNORM: tl.constexpr, EPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Row statistics and, with `n_ptr`, the normalized rows themselves (contiguous)."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_C)
    inside = cols[None, :] < C
    mask = (rows[:, None] < M) & inside
    at = rows.to(tl.int64)[:, None]
    x = tl.load(x_ptr + at * x_stride + cols[None, :], mask=mask, other=0.0).to(tl.float32)
    if LAYERNORM:
        mean = tl.sum(x, axis=1) / C
        x = tl.where(inside, x - mean[:, None], 0.0)
        shift = tl.sum(x, axis=1) / C  # what rounding took from a mean far above the deviation
        x = tl.where(inside, x - shift[:, None], 0.0)
        tl.store(mean_ptr + rows, mean + shift, mask=rows < M)
    rstd = tl.rsqrt(tl.sum(x * x, axis=1) / C + EPS)
    tl.store(rstd_ptr + rows, rstd, mask=rows < M)
    if n_ptr is not None:
        n = x * rstd[:, None]
        if weight_ptr is not None:
            n *= tl.load(weight_ptr + cols, mask=cols < C, other=0.0).to(tl.float32)[None, :]
        if bias_ptr is not None:
            n += tl.load(bias_ptr + cols, mask=cols < C, other=0.0).to(tl.float32)[None, :]
        tl.store(n_ptr + at * C + cols[None, :], n.to(n_ptr.dtype.element_ty), mask=mask)


@triton.jit
def norm_backward_kernel(
    dn_ptr, x_ptr, x_stride, weight_ptr, mean_ptr, rstd_ptr, dx_ptr, dweight_ptr, dbias_ptr, M, C,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """dx, and each program's own row of float32 partial sums of dweight and dbias (no atomics)."""
    cols = tl.arange(0, BLOCK_C)
    inside = cols < C
    weight = tl.full([BLOCK_C], 1.0, tl.float32)
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    dweight = tl.zeros([BLOCK_C], tl.float32)
    dbias = tl.zeros([BLOCK_C], tl.float32)
    for first in tl.range(tl.program_id(0) * BLOCK_M, M, tl.num_programs(0) * BLOCK_M):
        rows = first + tl.arange(0, BLOCK_M)
        mask = (rows[:, None] < M) & inside[None, :]
        at = rows.to(tl.int64)[:, None]
        x = tl.load(x_ptr + at * x_stride + cols[None, :], mask=mask, other=0.0).to(tl.float32)
        dn = tl.load(dn_ptr + at * C + cols[None, :], mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + rows, mask=rows < M, other=0.0)[:, None]
        if mean_ptr is not None:
            mean = tl.load(mean_ptr + rows, mask=rows < M, other=0.0)
            x = tl.where(mask, x - mean[:, None], 0.0)
        x *= rstd
        if dweight_ptr is not None:
            dweight += tl.sum(dn * x, axis=0)
        if dbias_ptr is not None:
            dbias += tl.sum(dn, axis=0)
        dn *= weight[None, :]
        dx = dn - x * (tl.sum(dn * x, axis=1) / C)[:, None]
        if mean_ptr is not None:
            dx -= (tl.sum(dn, axis=1) / C)[:, None]
        dx *= rstd
        tl.store(dx_ptr + at * C + cols[None, :], dx.to(dx_ptr.dtype.element_ty), mask=mask)
    if dweight_ptr is not None:
        tl.store(dweight_ptr + tl.program_id(0) * C + cols, dweight, mask=inside)
    if dbias_ptr is not None:
        tl.store(dbias_ptr + tl.program_id(0) * C + cols, dbias, mask=inside)


def _row_blocks(channels: int, elements: int = 4096) -> dict[str, int]:
    """Whole rows per program: a row must fit one block; short rows share it."""
    block_c = power_of_2(channels)
    warps = 4 if block_c <= 4096 else 8
    return dict(BLOCK_M=max(1, elements // block_c), BLOCK_C=block_c, num_warps=warps)


def norm_rows(x, norm, weight, bias, eps, *, normalized: bool):
    """(n or None, mean or None, rstd) of the rows of x [M, C]; mean and rstd are float32 [M]."""
    m, c = x.shape
    n = x.new_empty((m, c)) if normalized else None
    mean = x.new_empty((m,), dtype=torch.float32) if norm == "layernorm" else None
    rstd = x.new_empty((m,), dtype=torch.float32)
    if m == 0:
        return n, mean, rstd
    blocks = _row_blocks(c)
    launch(norm_rows_kernel)[(triton.cdiv(m, blocks["BLOCK_M"]),)](
        x, x.stride(0), weight, bias, n, mean, rstd, m, c,
        LAYERNORM=norm == "layernorm", EPS=eps, **blocks,
    )  # fmt: skip
    return n, mean, rstd


def norm_prologue(x, norm, weight, bias, eps, *, saving: bool):
    """What `gemm`'s norm hooks need for x [M, C]: (mean, rstd, kind), kind None without a norm.

    RMSNorm is not folded where a norm bias follows, or in float16, where x * weight may overflow
    before it is scaled. Statistics that are to be saved have to be a kernel's result.
    """
    if norm is None:
        return None, None, None
    if not saving:
        if norm == "rmsnorm" and bias is None and x.dtype != torch.float16:
            return None, None, "folded"
        if rows_class(x.shape[0]) == "decode":
            return None, None, norm
    _, mean, rstd = norm_rows(x, norm, weight, bias, eps, normalized=False)
    return mean, rstd, "given"


def norm_backward(dn, x, weight, bias, mean, rstd):
    """(dx, dweight or None, dbias or None) for dn [M, C], from the saved statistics of x [M, C]."""
    m, c = x.shape
    dx = torch.empty_like(dn)
    programs = target(x).sms
    blocks = _row_blocks(c, 2048)

    def partial(parameter):
        return None if parameter is None else x.new_empty((programs, c), dtype=torch.float32)

    dweight, dbias = partial(weight), partial(bias)
    launch(norm_backward_kernel)[(programs,)](
        dn, x, x.stride(0), weight, mean, rstd, dx, dweight, dbias, m, c, **blocks
    )
    return (
        dx,
        None if dweight is None else dweight.sum(0).to(weight.dtype),
        None if dbias is None else dbias.sum(0).to(bias.dtype),
    )
