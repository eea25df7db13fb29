"""embedding: token and position vectors gathered in one pass; a backward without atomics."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import launch, power_of_2


@triton.jit
def embedding_kernel(
    tokens_ptr, token_weight_ptr, token_stride, position_weight_ptr, position_stride, out_ptr,
    start, M, T, V, C, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out[m] = token_weight[tokens[m]] + position_weight[start + m % T], added in float32.

    An id that the weight does not have gives NaN, not a read out of bounds.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = (rows[:, None] < M) & (cols[None, :] < C)
    token = tl.load(tokens_ptr + rows, mask=rows < M, other=0)
    known = mask & ((token >= 0) & (token < V))[:, None]
    vector = token_weight_ptr + token[:, None] * token_stride + cols[None, :]
    x = tl.load(vector, mask=known, other=float("nan"))
    if position_weight_ptr is not None:
        position = (start + rows % T).to(tl.int64)[:, None] * position_stride + cols[None, :]
        x = x.to(tl.float32) + tl.load(position_weight_ptr + position, mask=mask).to(tl.float32)
    out = out_ptr + rows.to(tl.int64)[:, None] * C + cols[None, :]
    tl.store(out, x.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def token_backward_kernel(
    sorted_ptr, order_ptr, dy_ptr, dweight_ptr, M, C, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Sum the rows of dy that share a token: the program at a run's first place adds the whole run.

    Always the same order of additions, in float32, and every row is written by one program.
    """
    first = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    token = tl.load(sorted_ptr + first)
    before = tl.load(sorted_ptr + first - 1, mask=first > 0, other=-1)
    if token != before:
        total = tl.zeros([BLOCK_C], tl.float32)
        at = first
        running = True
        while running:
            rows = at + tl.arange(0, BLOCK_R)
            same = tl.load(sorted_ptr + rows, mask=rows < M, other=-1) == token
            source = tl.load(order_ptr + rows, mask=same, other=0)
            mask = same[:, None] & (cols[None, :] < C)
            dy = tl.load(dy_ptr + source[:, None] * C + cols[None, :], mask=mask, other=0.0)
            total += tl.sum(dy.to(tl.float32), axis=0)
            at += BLOCK_R
            running = tl.sum(same.to(tl.int32), axis=0) == BLOCK_R
        out = dweight_ptr + token * C + cols
        tl.store(out, total.to(dweight_ptr.dtype.element_ty), mask=cols < C)


def embedding(tokens, token_weight, position_weight, start):
    """token_weight[tokens] + position_weight[start : start + T]: tokens [B, T] -> [B, T, C]."""
    batch, t = tokens.shape
    c = token_weight.shape[1]
    out = token_weight.new_empty((batch, t, c))
    m = batch * t
    if m == 0 or c == 0:
        return out
    block_c = min(power_of_2(c), 1024)
    block_m = max(1, 2048 // block_c)
    token_weight = _rows(token_weight)
    position_weight = None if position_weight is None else _rows(position_weight)
    launch(embedding_kernel)[(triton.cdiv(m, block_m), triton.cdiv(c, block_c))](
        tokens.contiguous(), token_weight, token_weight.stride(0), position_weight,
        0 if position_weight is None else position_weight.stride(0), out, start, m, t,
        token_weight.shape[0], c,
        BLOCK_M=block_m, BLOCK_C=block_c, num_warps=4,
    )  # fmt: skip
    return out


def embedding_backward(dy, tokens, token_weight, position_weight, start):
    """Gradients of (token_weight, position_weight); None where the input is None."""
    batch, t, c = dy.shape
    m = batch * t
    dweight = torch.zeros(token_weight.shape, dtype=token_weight.dtype, device=dy.device)
    if m and c:
        ids, order = torch.sort(tokens.reshape(-1), stable=True)
        block_c = min(power_of_2(c), 256)
        launch(token_backward_kernel)[(m, triton.cdiv(c, block_c))](
            ids, order, dy.contiguous(), dweight, m, c, BLOCK_R=16, BLOCK_C=block_c, num_warps=4
        )
    if position_weight is None:
        return dweight, None
    dposition = torch.zeros(position_weight.shape, dtype=position_weight.dtype, device=dy.device)
    dposition[start : start + t] = dy.sum(0)
    return dweight, dposition


def _rows(weight):
    return weight if weight.stride(1) == 1 else weight.contiguous()
