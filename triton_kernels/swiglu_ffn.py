"""swiglu_ffn: gate and up in one GEMM with silu-mul in its epilogue, then a linear."""

from __future__ import annotations

import triton
import triton.language as tl

from .configs import gemm_config
from .gemm import gemm
from .launch import describable, launch, precision, target
from .linear import product, projection_backward, rows_of
from .norm import norm_apply, norm_begin, norm_end, norm_prologue


@triton.jit
def swiglu_epilogue(
    acc, rows, tile_n, M, N, hidden_ptr, gate_up_ptr, bias_ptr, F,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up of a tile that holds both; gate and up themselves only if training asks."""
    W: tl.constexpr = BLOCK_N // 2
    gate, up = acc.reshape(BLOCK_M, 2, W).permute(0, 2, 1).split()
    cols = tile_n * W + tl.arange(0, W)
    inside = cols < F
    mask = (rows[:, None] < M) & inside[None, :]
    at = rows.to(tl.int64)[:, None]
    if bias_ptr is not None:
        gate += tl.load(bias_ptr + cols, mask=inside, other=0.0).to(tl.float32)[None, :]
        up += tl.load(bias_ptr + F + cols, mask=inside, other=0.0).to(tl.float32)[None, :]
    if gate_up_ptr is not None:
        out = gate_up_ptr + at * (2 * F) + cols[None, :]
        tl.store(out, gate.to(gate_up_ptr.dtype.element_ty), mask=mask)
        tl.store(out + F, up.to(gate_up_ptr.dtype.element_ty), mask=mask)
    if hidden_ptr is not None:
        hidden = gate * tl.sigmoid(gate) * up
        out = hidden_ptr + at * F + cols[None, :]
        tl.store(out, hidden.to(hidden_ptr.dtype.element_ty), mask=mask)


@triton.jit
def swiglu_kernel(
    x_ptr, x_stride, weight_ptr, weight_stride, hidden_ptr, gate_up_ptr, bias_ptr,
    mean_ptr, rstd_ptr, norm_weight_ptr, norm_bias_ptr, M, F, K,
    NORM: tl.constexpr, EPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    gemm(
        x_ptr, x_stride, weight_ptr, weight_stride, M, 2 * F, K,
        norm_begin, norm_apply, norm_end,
        (mean_ptr, rstd_ptr, norm_weight_ptr, norm_bias_ptr, NORM, EPS),
        swiglu_epilogue, (hidden_ptr, gate_up_ptr, bias_ptr, F, BLOCK_M, BLOCK_N),
        False, False, "halves", F, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, TMA, PRECISION,
    )  # fmt: skip


@triton.jit
def store_swiglu_backward(dhidden, rows, cols, M, N, gate_up_ptr, dgate_up_ptr, hidden_ptr):
    """d(silu(gate) * up) of a tile of dhidden, and silu(gate) * up again, for w_down's gradient."""
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    at = rows.to(tl.int64)[:, None]
    pair = at * (2 * N) + cols[None, :]
    gate = tl.load(gate_up_ptr + pair, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + pair + N, mask=mask, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    silu = gate * sigmoid
    hidden = hidden_ptr + at * N + cols[None, :]
    tl.store(hidden, (silu * up).to(hidden_ptr.dtype.element_ty), mask=mask)
    dgate = dhidden * up * (sigmoid + silu * (1 - sigmoid))
    tl.store(dgate_up_ptr + pair, dgate.to(dgate_up_ptr.dtype.element_ty), mask=mask)
    dup = dhidden * silu
    tl.store(dgate_up_ptr + pair + N, dup.to(dgate_up_ptr.dtype.element_ty), mask=mask)


@triton.jit
def swiglu_backward_epilogue(
    dhidden, rows, tile_n, M, N, gate_up_ptr, dgate_up_ptr, hidden_ptr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Store the tile; a wide one in two halves, or gate and up would not fit the registers."""
    first = tile_n * BLOCK_N
    if BLOCK_N >= 128:
        W: tl.constexpr = BLOCK_N // 2
        left, right = dhidden.reshape(BLOCK_M, 2, W).permute(0, 2, 1).split()
        cols = first + tl.arange(0, W)
        store_swiglu_backward(left, rows, cols, M, N, gate_up_ptr, dgate_up_ptr, hidden_ptr)
        store_swiglu_backward(right, rows, cols + W, M, N, gate_up_ptr, dgate_up_ptr, hidden_ptr)
    else:
        cols = first + tl.arange(0, BLOCK_N)
        store_swiglu_backward(dhidden, rows, cols, M, N, gate_up_ptr, dgate_up_ptr, hidden_ptr)


@triton.jit
def swiglu_backward_kernel(
    dy_ptr, dy_stride, w_down_ptr, w_down_stride, gate_up_ptr, dgate_up_ptr, hidden_ptr, M, F, C,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    gemm(
        dy_ptr, dy_stride, w_down_ptr, w_down_stride, M, F, C,
        norm_begin, norm_apply, norm_end, (None, None, None, None, None, 0.0),
        swiglu_backward_epilogue, (gate_up_ptr, dgate_up_ptr, hidden_ptr, BLOCK_M, BLOCK_N),
        False, True, None, 0, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, TMA, PRECISION,
    )  # fmt: skip


def _gate_up(x, weight, bias, prologue, norm_weight, norm_bias, eps, *, hidden, gate_up):
    """The first GEMM of x [M, C]: (hidden [M, F], gate_up [M, 2F]), None where not asked for."""
    m, c = x.shape
    f = weight.shape[0] // 2
    mean, rstd, kind = prologue
    hidden = x.new_empty((m, f)) if hidden else None
    gate_up = x.new_empty((m, 2 * f)) if gate_up else None
    if m:
        device = target(x)
        config = gemm_config("swiglu_ffn", device, x.dtype, m, tma=describable(x, weight))
        launch(swiglu_kernel)[(config.programs(device),)](
            x, x.stride(0), weight, weight.stride(0), hidden, gate_up, bias,
            mean, rstd, norm_weight, norm_bias, m, f, c,
            NORM=kind, EPS=eps, PRECISION=precision(x.dtype), **config.kwargs(),
        )  # fmt: skip
    return hidden, gate_up


def _forward(
    x, w_gate_up, w_down, b_gate_up, b_down, norm, norm_weight, norm_bias, eps, residual,
    *, saving, gate_up,
):  # fmt: skip
    x2, w_gate_up, w_down = rows_of(x), rows_of(w_gate_up), rows_of(w_down)
    prologue = norm_prologue(x2, norm, norm_weight, norm_bias, eps, saving=saving)
    hidden, gate_up = _gate_up(
        x2, w_gate_up, b_gate_up, prologue, norm_weight, norm_bias, eps,
        hidden=True, gate_up=gate_up,
    )  # fmt: skip
    residual = None if residual is None else rows_of(residual)
    out = product(hidden, w_down, bias=b_down, residual=residual)
    return out.view(x.shape), gate_up, prologue[0], prologue[1]


def swiglu_ffn(
    x, w_gate_up, w_down, b_gate_up, b_down, norm, norm_weight, norm_bias, eps, residual
):
    """(silu(n @ Wg.T + bg) * (n @ Wu.T + bu)) @ w_down.T + b_down + residual with n = norm(x)."""
    args = (x, w_gate_up, w_down, b_gate_up, b_down, norm, norm_weight, norm_bias, eps, residual)
    return _forward(*args, saving=False, gate_up=False)[0]


def swiglu_ffn_saving(
    x, w_gate_up, w_down, b_gate_up, b_down, norm, norm_weight, norm_bias, eps, residual
):
    """(`swiglu_ffn`, saved gate_up [M, 2F], row mean or None, 1/deviation or None)."""
    args = (x, w_gate_up, w_down, b_gate_up, b_down, norm, norm_weight, norm_bias, eps, residual)
    return _forward(*args, saving=True, gate_up=True)


def swiglu_ffn_recompute_saving(
    x, w_gate_up, w_down, b_gate_up, b_down, norm, norm_weight, norm_bias, eps, residual
):
    """(`swiglu_ffn`, saved row mean or None, 1/deviation or None): of the hidden layer, nothing."""
    args = (x, w_gate_up, w_down, b_gate_up, b_down, norm, norm_weight, norm_bias, eps, residual)
    out, _, mean, rstd = _forward(*args, saving=True, gate_up=False)
    return out, mean, rstd


def swiglu_ffn_backward(
    dy, x, w_gate_up, w_down, b_gate_up, b_down, norm, norm_weight, norm_bias, eps, residual,
    gate_up, mean, rstd,
):  # fmt: skip
    """Gradients of (x, w_gate_up, w_down, b_gate_up, b_down, norm_weight, norm_bias).

    None where the input is None; the residual's gradient is dy itself.
    """
    dy2, x2 = rows_of(dy), rows_of(x)
    w_gate_up, w_down = rows_of(w_gate_up), rows_of(w_down)
    m, c = dy2.shape
    f = w_down.shape[1]
    dgate_up = dy.new_empty((m, 2 * f))
    hidden = dy.new_empty((m, f))
    if m:
        device = target(dy)
        config = gemm_config(
            "swiglu_ffn", device, dy.dtype, m, tma=describable(dy2, w_down), size="backward"
        )
        launch(swiglu_backward_kernel)[(config.programs(device),)](
            dy2, dy2.stride(0), w_down, w_down.stride(0), gate_up, dgate_up, hidden, m, f, c,
            PRECISION=precision(dy.dtype), **config.kwargs(),
        )  # fmt: skip
    dw_down = product(dy2, hidden, a_t=True, b_t=True)
    dx, dw_gate_up, dnorm_weight, dnorm_bias = projection_backward(
        dgate_up, x2, w_gate_up, norm, norm_weight, norm_bias, eps, mean, rstd
    )
    return (
        dx.view(x.shape), dw_gate_up, dw_down,
        None if b_gate_up is None else dgate_up.sum(0), None if b_down is None else dy2.sum(0),
        dnorm_weight, dnorm_bias,
    )  # fmt: skip


def swiglu_ffn_recompute_backward(
    dy, x, w_gate_up, w_down, b_gate_up, b_down, norm, norm_weight, norm_bias, eps, residual,
    mean, rstd,
):  # fmt: skip
    """`swiglu_ffn_backward` after the first GEMM again, for what was not saved."""
    _, gate_up = _gate_up(
        rows_of(x), rows_of(w_gate_up), b_gate_up, (mean, rstd, None if norm is None else "given"),
        norm_weight, norm_bias, eps, hidden=False, gate_up=True,
    )  # fmt: skip
    return swiglu_ffn_backward(
        dy, x, w_gate_up, w_down, b_gate_up, b_down, norm, norm_weight, norm_bias, eps, residual,
        gate_up, mean, rstd,
    )  # fmt: skip
