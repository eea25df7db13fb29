"""linear_cross_entropy: the head and its loss without the logits in memory.

Forward: a GEMM whose epilogue keeps, per row and vocabulary tile, the maximum and the sum of
exponentials, and the target's logit; a second kernel combines them. Backward: the vocabulary in
chunks; a chunk's logits are computed again and turned into their gradient in the epilogue; from
that the chunk's rows of dweight are final, and dx grows in float32. No gradient is left out.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .configs import gemm_config
from .gemm import gemm
from .launch import describable, launch, precision, target
from .linear import product, rows_of
from .norm import norm_apply, norm_begin, norm_end

CHUNKS = 16  # of the vocabulary in the backward: a sixteenth of the logits exists at a time


@triton.jit
def tanh(x):
    """tanh in float32: odd polynomial near 0, where 1 - exp(-2x) would cancel."""
    t = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - t) / (1.0 + t)
    y = x * x
    near = 1.0 + y * (-1 / 3 + y * (2 / 15 + y * (-17 / 315 + y * (62 / 2835))))
    return tl.where(y < 0.0625, x * near, tl.where(x < 0, -far, far))


@triton.jit
def capped(acc, SOFTCAP: tl.constexpr):
    """Logits squashed into (-SOFTCAP, SOFTCAP), if there is one."""
    if SOFTCAP is not None:
        acc = SOFTCAP * tanh(acc / SOFTCAP)
    return acc


@triton.jit
def loss_epilogue(
    acc, rows, tile_n, M, N, targets_ptr, maximum_ptr, total_ptr, logit_ptr,
    SOFTCAP: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A tile's share of each row's log-sum-exp, and the target's logit where it is in the tile."""
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    logits = tl.where(cols[None, :] < N, capped(acc, SOFTCAP), float("-inf"))
    maximum = tl.max(logits, axis=1)
    total = tl.sum(tl.exp(logits - maximum[:, None]), axis=1)
    at = rows.to(tl.int64) * tl.cdiv(N, BLOCK_N) + tile_n
    tl.store(maximum_ptr + at, maximum, mask=rows < M)
    tl.store(total_ptr + at, total, mask=rows < M)
    goal = tl.load(targets_ptr + rows, mask=rows < M, other=-1)
    logit = tl.sum(tl.where(cols[None, :] == goal[:, None], logits, 0.0), axis=1)
    here = (goal >= tile_n * BLOCK_N) & (goal < tile_n * BLOCK_N + BLOCK_N) & (goal < N)
    tl.store(logit_ptr + rows, logit, mask=here & (rows < M))


@triton.jit
def loss_kernel(
    x_ptr, x_stride, weight_ptr, weight_stride, targets_ptr, maximum_ptr, total_ptr, logit_ptr,
    M, V, C, SOFTCAP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    gemm(
        x_ptr, x_stride, weight_ptr, weight_stride, M, V, C,
        norm_begin, norm_apply, norm_end, (None, None, None, None, None, 0.0),
        loss_epilogue, (targets_ptr, maximum_ptr, total_ptr, logit_ptr, SOFTCAP, BLOCK_N),
        False, False, None, 0, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, TMA, PRECISION,
    )  # fmt: skip


@triton.jit
def combine_loss_kernel(
    targets_ptr, maximum_ptr, total_ptr, logit_ptr, lse_ptr, loss_ptr, M, V, TILES,
    IGNORE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Each row's lse and its loss: 0 for an ignored target, NaN for one not in the vocabulary.

    The lse is kept in two parts, the maximum and the logarithm of the sum above it: added up, far
    from zero, they would round away what a probability near 1 is made of.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    for first in tl.range(0, TILES, BLOCK_T):
        tiles = first + tl.arange(0, BLOCK_T)
        mask = (rows[:, None] < M) & (tiles[None, :] < TILES)
        at = rows.to(tl.int64)[:, None] * TILES + tiles[None, :]
        each = tl.load(maximum_ptr + at, mask=mask, other=float("-inf"))
        sums = tl.load(total_ptr + at, mask=mask, other=0.0)
        higher = tl.maximum(maximum, tl.max(each, axis=1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(maximum - base) + tl.sum(sums * tl.exp(each - base[:, None]), axis=1)
        maximum = higher
    above = tl.log(total)
    tl.store(lse_ptr + rows, maximum, mask=rows < M)
    tl.store(lse_ptr + M + rows, above, mask=rows < M)
    goal = tl.load(targets_ptr + rows, mask=rows < M, other=IGNORE)
    kept = goal != IGNORE
    known = (rows < M) & (goal >= 0) & (goal < V)
    logit = tl.load(logit_ptr + rows, mask=known, other=float("nan"))
    tl.store(loss_ptr + rows, tl.where(kept, (maximum - logit) + above, 0.0), mask=rows < M)


@triton.jit
def dlogits_epilogue(
    acc, rows, tile_n, M, N, targets_ptr, lse_ptr, out_ptr, out_stride, first_ptr,
    IGNORE: tl.constexpr, SOFTCAP: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """softmax - one_hot, through the softcap, of a chunk of the vocabulary from id `first` on.

    Not yet scaled by 1 / count, which would push small probabilities out of float16.
    """
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    first = tl.load(first_ptr)
    logits = capped(acc, SOFTCAP)
    maximum = tl.load(lse_ptr + rows, mask=rows < M, other=0.0)
    above = tl.load(lse_ptr + M + rows, mask=rows < M, other=0.0)
    goal = tl.load(targets_ptr + rows, mask=rows < M, other=IGNORE)
    grad = tl.exp((logits - maximum[:, None]) - above[:, None])
    grad = tl.where(cols[None, :] + first == goal[:, None], grad - 1.0, grad)
    if SOFTCAP is not None:
        squashed = logits / SOFTCAP
        grad *= 1.0 - squashed * squashed
    grad = tl.where((goal != IGNORE)[:, None], grad, 0.0)
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    out = out_ptr + rows.to(tl.int64)[:, None] * out_stride + cols[None, :]
    tl.store(out, grad.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def dlogits_kernel(
    x_ptr, x_stride, weight_ptr, weight_stride, targets_ptr, lse_ptr, out_ptr, out_stride,
    first_ptr, M, V, C, IGNORE: tl.constexpr, SOFTCAP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    gemm(
        x_ptr, x_stride, weight_ptr, weight_stride, M, V, C,
        norm_begin, norm_apply, norm_end, (None, None, None, None, None, 0.0),
        dlogits_epilogue,
        (targets_ptr, lse_ptr, out_ptr, out_stride, first_ptr, IGNORE, SOFTCAP, BLOCK_N),
        False, False, None, 0, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, TMA, PRECISION,
    )  # fmt: skip


def _config(x, weight, softcap):
    # tanh needs registers that a wide tile does not leave.
    return gemm_config(
        "linear_cross_entropy", target(x), x.dtype, x.shape[0], tma=describable(x, weight),
        size=None if softcap is None else "softcap",
    )  # fmt: skip


def linear_cross_entropy_saving(x, weight, targets, ignore_index, softcap):
    """(`linear_cross_entropy`, log-sum-exp of each row's logits in two float32 parts [2, rows])."""
    x, weight, targets = rows_of(x), rows_of(weight), targets.reshape(-1)
    (m, c), v = x.shape, weight.shape[0]
    lse = x.new_empty((2, m), dtype=torch.float32)
    if m == 0:
        return x.new_zeros((), dtype=torch.float32), lse
    loss, logit = (x.new_empty((m,), dtype=torch.float32) for _ in range(2))
    config = _config(x, weight, softcap)
    tiles = triton.cdiv(v, config.block_n)
    maximum, total = (x.new_empty((m, tiles), dtype=torch.float32) for _ in range(2))
    launch(loss_kernel)[(config.programs(target(x)),)](
        x, x.stride(0), weight, weight.stride(0), targets, maximum, total, logit, m, v, c,
        SOFTCAP=softcap, PRECISION=precision(x.dtype), **config.kwargs(),
    )  # fmt: skip
    launch(combine_loss_kernel)[(triton.cdiv(m, 16),)](
        targets, maximum, total, logit, lse, loss, m, v, tiles,
        IGNORE=ignore_index, BLOCK_M=16, BLOCK_T=64, num_warps=4,
    )  # fmt: skip
    return loss.sum() / _count(targets, ignore_index), lse


def linear_cross_entropy(x, weight, targets, ignore_index, softcap):
    """Mean cross entropy of softmax(x @ weight.T) against targets; 0 where all are ignored."""
    return linear_cross_entropy_saving(x, weight, targets, ignore_index, softcap)[0]


def linear_cross_entropy_backward(grad, x, weight, targets, ignore_index, softcap, lse):
    """Gradients of (x, weight)."""
    shape = x.shape
    x, weight, targets = rows_of(x), rows_of(weight), targets.reshape(-1)
    (m, c), v = x.shape, weight.shape[0]
    dweight = torch.zeros(weight.shape, dtype=weight.dtype, device=x.device) if m == 0 else (
        weight.new_empty((v, c))
    )  # fmt: skip
    dx = x.new_empty((m, c), dtype=torch.float32)
    if m == 0:
        return dx.to(x.dtype).view(shape), dweight
    scale = (grad / _count(targets, ignore_index)).reshape(1)
    device, config = target(x), _config(x, weight, softcap)
    # Whole tiles, and rows that a descriptor can address.
    chunk = max(256, triton.cdiv(triton.cdiv(v, CHUNKS), 128) * 128)
    dlogits = x.new_empty((m, min(chunk, triton.cdiv(v, 128) * 128)))
    starts = torch.arange(0, v, chunk, device=x.device)
    for i, first in enumerate(range(0, v, chunk)):
        start = starts.narrow(0, i, 1)
        n = min(chunk, v - first)
        part, dpart = weight.narrow(0, first, n), dlogits.narrow(1, 0, n)
        launch(dlogits_kernel)[(config.programs(device),)](
            x, x.stride(0), part, part.stride(0), targets, lse, dlogits, dlogits.stride(0), start,
            m, n, c, IGNORE=ignore_index, SOFTCAP=softcap,
            PRECISION=precision(x.dtype), **config.kwargs(),
        )  # fmt: skip
        product(dpart, x, a_t=True, b_t=True, scale=scale, out=dweight, out_row=start)
        product(dpart, part, b_t=True, scale=scale, out=dx, residual=dx if first else None)
    return dx.to(x.dtype).view(shape), dweight


def _count(targets, ignore_index):
    """How many targets count, as float32, at least one."""
    return (targets != ignore_index).sum().clamp(min=1).to(torch.float32)
