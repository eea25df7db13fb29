"""linear: norm(x) @ weight.T + bias + residual in one kernel; also each product of a backward."""

from __future__ import annotations

import triton
import triton.language as tl

from .configs import gemm_config
from .gemm import gemm
from .launch import describable, launch, precision, target
from .norm import norm_apply, norm_backward, norm_begin, norm_end, norm_prologue, norm_rows


@triton.jit
def store_linear(
    acc, rows, cols, M, N, out_ptr, out_stride, scale_ptr, bias_ptr, residual_ptr, residual_stride
):
    """Store acc * scale + bias + residual, computed in float32 and rounded once."""
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    at = rows.to(tl.int64)[:, None]
    if scale_ptr is not None:
        acc *= tl.load(scale_ptr)
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
    if residual_ptr is not None:
        residual = residual_ptr + at * residual_stride + cols[None, :]
        acc += tl.load(residual, mask=mask, other=0.0).to(tl.float32)
    out = out_ptr + at * out_stride + cols[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def linear_epilogue(
    acc, rows, tile_n, M, N, out_ptr, out_stride, scale_ptr, bias_ptr, residual_ptr,
    residual_stride, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Store the tile; a wide one in two halves, or its residual would not fit the registers."""
    first = tile_n * BLOCK_N
    if BLOCK_N >= 256 and residual_ptr is not None:
        W: tl.constexpr = BLOCK_N // 2
        left, right = acc.reshape(BLOCK_M, 2, W).permute(0, 2, 1).split()
        store_linear(
            left, rows, first + tl.arange(0, W), M, N,
            out_ptr, out_stride, scale_ptr, bias_ptr, residual_ptr, residual_stride,
        )  # fmt: skip
        store_linear(
            right, rows, first + W + tl.arange(0, W), M, N,
            out_ptr, out_stride, scale_ptr, bias_ptr, residual_ptr, residual_stride,
        )  # fmt: skip
    else:
        store_linear(
            acc, rows, first + tl.arange(0, BLOCK_N), M, N,
            out_ptr, out_stride, scale_ptr, bias_ptr, residual_ptr, residual_stride,
        )  # fmt: skip


@triton.jit
def linear_kernel(
    a_ptr, a_stride, b_ptr, b_stride, out_ptr, out_stride, out_row_ptr, scale_ptr, bias_ptr,
    residual_ptr, residual_stride, mean_ptr, rstd_ptr, norm_weight_ptr, norm_bias_ptr, M, N, K,
    NORM: tl.constexpr, EPS: tl.constexpr, A_T: tl.constexpr, B_T: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    if out_row_ptr is not None:
        out_ptr += tl.load(out_row_ptr) * out_stride
    gemm(
        a_ptr, a_stride, b_ptr, b_stride, M, N, K,
        norm_begin, norm_apply, norm_end,
        (mean_ptr, rstd_ptr, norm_weight_ptr, norm_bias_ptr, NORM, EPS),
        linear_epilogue,
        (
            out_ptr, out_stride, scale_ptr, bias_ptr, residual_ptr, residual_stride,
            BLOCK_M, BLOCK_N,
        ),
        A_T, B_T, None, 0, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, TMA, PRECISION,
    )  # fmt: skip


def product(
    a, b, *, a_t=False, b_t=False, out=None, out_row=None, scale=None, bias=None, residual=None,
    prologue=(None, None, None), norm_weight=None, norm_bias=None, eps=0.0,
):  # fmt: skip
    """norm(A) @ B.T * scale + bias + residual for matrices with unit last stride.

    A is `a` [M, K], or its transpose with a_t; B is `b` [N, K], or its transpose with b_t.
    `prologue` is what `norm_prologue` returned. `scale` is a float32 tensor of one element. `out`
    may be `residual` itself: each element is read and then written by the same thread. It is
    written from row `out_row` on, an int64 tensor of one element: a view of `out` would make
    torch.compile copy what lies around it, and a number would make it compile a kernel for each.
    """
    k, m = a.shape if a_t else a.shape[::-1]
    n = b.shape[1] if b_t else b.shape[0]
    if out is None:
        out = a.new_empty((m, n), dtype=a.dtype)
    if m == 0 or n == 0:
        return out
    device = target(a)
    config = gemm_config("linear", device, a.dtype, m, tma=describable(a, b))
    mean, rstd, kind = prologue
    launch(linear_kernel)[(config.programs(device),)](
        a, a.stride(0), b, b.stride(0), out, out.stride(0), out_row,
        scale, bias, residual, 0 if residual is None else residual.stride(0),
        mean, rstd, norm_weight, norm_bias, m, n, k,
        NORM=kind, EPS=eps, A_T=a_t, B_T=b_t, PRECISION=precision(a.dtype), **config.kwargs(),
    )  # fmt: skip
    return out


def rows_of(x):
    """x [..., C] as a matrix [rows, C] with unit last stride; a view wherever one exists."""
    x = x.reshape(-1, x.shape[-1])
    return x if x.stride(1) == 1 else x.contiguous()


def _forward(x, weight, bias, residual, norm, norm_weight, norm_bias, eps, *, saving):
    x2, weight = rows_of(x), rows_of(weight)
    prologue = norm_prologue(x2, norm, norm_weight, norm_bias, eps, saving=saving)
    out = product(
        x2, weight, bias=bias, residual=None if residual is None else rows_of(residual),
        prologue=prologue, norm_weight=norm_weight, norm_bias=norm_bias, eps=eps,
    )  # fmt: skip
    return out.view(*x.shape[:-1], weight.shape[0]), prologue[:2]


def linear(x, weight, bias, residual, norm, norm_weight, norm_bias, eps):
    """norm(x) @ weight.T + bias + residual: x [..., C], weight [N, C], residual [..., N]."""
    args = (x, weight, bias, residual, norm, norm_weight, norm_bias, eps)
    return _forward(*args, saving=False)[0]


def linear_saving(x, weight, bias, residual, norm, norm_weight, norm_bias, eps):
    """(`linear`, saved row mean or None, saved 1/deviation or None)."""
    args = (x, weight, bias, residual, norm, norm_weight, norm_bias, eps)
    out, stats = _forward(*args, saving=True)
    return out, *stats


def projection_backward(dy, x, weight, norm, norm_weight, norm_bias, eps, mean, rstd):
    """Backward of norm(x) @ weight.T from dy [M, N]: (dx, dweight, dnorm_weight, dnorm_bias).

    All matrices. norm(x) is made again from x: cheaper than keeping it.
    """
    n = x
    if norm is not None:
        n = norm_rows(x, norm, norm_weight, norm_bias, eps, normalized=True)[0]
    dweight = product(dy, n, a_t=True, b_t=True)
    dx = product(dy, weight, b_t=True)
    if norm is None:
        return dx, dweight, None, None
    dx, dnorm_weight, dnorm_bias = norm_backward(dx, x, norm_weight, norm_bias, mean, rstd)
    return dx, dweight, dnorm_weight, dnorm_bias


def linear_backward(dy, x, weight, bias, residual, norm, norm_weight, norm_bias, eps, mean, rstd):
    """Gradients of (x, weight, bias, norm_weight, norm_bias); None where the input is None.

    The residual's gradient is dy itself.
    """
    dy2, x2, weight = rows_of(dy), rows_of(x), rows_of(weight)
    dx, dweight, dnorm_weight, dnorm_bias = projection_backward(
        dy2, x2, weight, norm, norm_weight, norm_bias, eps, mean, rstd
    )
    dbias = None if bias is None else dy2.sum(0)
    return dx.view(x.shape), dweight, dbias, dnorm_weight, dnorm_bias
