"""What the attention kernels, forward and backward, share."""

from __future__ import annotations

import triton
import triton.language as tl

from .launch import power_of_2

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def load_head(ptr, stride, first, n, D, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows [first, first + BLOCK) of one head's matrix [n, D], zero outside of it."""
    rows = first + tl.arange(0, BLOCK)
    cols = tl.arange(0, BLOCK_D)
    mask = (rows[:, None] < n) & (cols[None, :] < D)
    return tl.load(ptr + rows.to(tl.int64)[:, None] * stride + cols[None, :], mask=mask, other=0.0)


@triton.jit
def load_rows(ptr, desc, stride, first, n, D, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
              TMA: tl.constexpr):  # fmt: skip
    """`load_head`, through a tensor descriptor of the same matrix where there is one."""
    if TMA:
        return desc.load([first, 0])
    return load_head(ptr, stride, first, n, D, BLOCK, BLOCK_D)


def head_rows(x):
    """x [B, H, T, D] with unit last stride."""
    return x if x.stride(3) == 1 else x.contiguous()


def head_class(d: int) -> str:
    """The size class of a head: its dimension, rounded up to what a tile holds."""
    return f"d{max(64, power_of_2(d))}"


def block_d(d: int) -> int:
    """A tile's columns for head dimension d: a power of two that tensor cores take."""
    return max(16, power_of_2(d))
