"""Calls that use every configuration of every table: what is compiled ahead of time, and tuned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from .embedding import embedding, embedding_backward
from .linear import linear, linear_backward, linear_saving
from .linear_cross_entropy import linear_cross_entropy, linear_cross_entropy_backward
from .qkv_proj import qkv_proj, qkv_proj_backward
from .sdpa import sdpa, sdpa_backward, sdpa_saving
from .swiglu_ffn import (
    swiglu_ffn,
    swiglu_ffn_backward,
    swiglu_ffn_recompute_backward,
    swiglu_ffn_saving,
)

ROWS = {"decode": 1, "short": 512, "long": 16384}
HEADS = (32, 64, 80, 128, 256)  # whole tiles, and ragged ones; wider than 128 in 16 bits only
EPS = 1e-5
WIDTH, VOCABULARY = 768, 50304  # of gpt2-small, padded
Example = tuple[str, Callable[..., Any], tuple[Any, ...]]  # name, launcher, its arguments


class Make:
    """Tensors of one dtype on one device: shapes only on "meta", small random values elsewhere."""

    def __init__(self, dtype: torch.dtype, device: str) -> None:
        self.dtype, self.device = dtype, device

    def __call__(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        dtype = dtype or self.dtype
        if self.device == "meta":
            return torch.empty(shape, dtype=dtype, device="meta")
        if dtype == torch.int64:
            return torch.randint(VOCABULARY, shape, device=self.device)
        return (torch.randn(shape, device=self.device) * 0.1).to(dtype)

    def float32(self, *shape: int) -> torch.Tensor:
        return self(*shape, dtype=torch.float32)

    def norms(self, width: int) -> dict[str | None, tuple[Any, ...]]:
        """The norm arguments of an op: kind, weight, bias, eps."""
        return {
            None: (None, None, None, EPS),
            "layernorm": ("layernorm", self(width), self(width), EPS),
            "rmsnorm": ("rmsnorm", self(width), None, EPS),
        }


def _embedding(dtype: torch.dtype, device: str) -> Iterator[Example]:
    make = Make(dtype, device)
    args = (make(8, 1024, dtype=torch.int64), make(VOCABULARY, WIDTH), make(1024, WIDTH), 0)
    yield "forward", embedding, args
    yield "backward", embedding_backward, (make(8, 1024, WIDTH), *args)


def _qkv_proj(dtype: torch.dtype, device: str) -> Iterator[Example]:
    make = Make(dtype, device)
    heads, kv, d = 12, 4, 64
    n = (heads + 2 * kv) * d
    weight, bias, norms = make(n, WIDTH), make(n), make.norms(WIDTH)
    for size, rows in ROWS.items():
        t = min(rows, 2048)
        x, angles = make(rows // t, t, WIDTH), make.float32(t, d // 2)
        for name, norm in norms.items():
            args = (x, weight, bias, heads, kv, *norm, angles, angles)
            yield f"{size} {name or 'plain'}", qkv_proj, args
    args = (x, weight, bias, heads, kv, *norms["layernorm"], angles, angles)
    dq, dk, stats = make(rows // t, heads, t, d), make(rows // t, kv, t, d), make.float32(rows)
    yield "long backward", qkv_proj_backward, (dq, dk, dk, *args, stats, stats)
    heads, d = 8, 80
    weight, angles = make(3 * heads * d, WIDTH), make.float32(t, d // 2)
    args = (x, weight, None, heads, heads, *norms["layernorm"], angles, angles)
    yield "gathered layernorm", qkv_proj, args


def _sdpa(dtype: torch.dtype, device: str) -> Iterator[Example]:
    make = Make(dtype, device)
    for d in HEADS[:-1] if dtype == torch.float32 else HEADS:
        q, k, one = make(4, 12, 2048, d), make(4, 4, 2048, d), make(4, 12, 1, d)
        lse, scale = make.float32(4, 12, 2048), d**-0.5
        for causal in (True, False):
            name = "causal" if causal else "full"
            yield f"d{d} {name}", sdpa_saving, (q, k, k, causal, scale)
        yield f"d{d} backward", sdpa_backward, (q, q, k, k, True, scale, lse, q)
        yield f"d{d} decode", sdpa, (one, k, k, True, scale)


def _linear(dtype: torch.dtype, device: str) -> Iterator[Example]:
    make = Make(dtype, device)
    weight, bias, norms = make(WIDTH, WIDTH), make(WIDTH), make.norms(WIDTH)
    for size, rows in ROWS.items():
        x = make(rows, WIDTH)
        for name, norm in norms.items():
            residual = x if norm[0] is None else None
            yield f"{size} {name or 'residual'}", linear, (x, weight, bias, residual, *norm)
    args, stats = (x, weight, bias, None, *norms["layernorm"]), make.float32(rows)
    yield "long training", linear_saving, args
    yield "long backward", linear_backward, (x, *args, stats, stats)


def _swiglu_ffn(dtype: torch.dtype, device: str) -> Iterator[Example]:
    make = Make(dtype, device)
    f = 2048
    gate_up, down, norms = make(2 * f, WIDTH), make(WIDTH, f), make.norms(WIDTH)
    for size, rows in ROWS.items():
        x = make(rows, WIDTH)
        for name, norm in norms.items():
            args = (x, gate_up, down, None, None, *norm, x)
            yield f"{size} {name or 'plain'}", swiglu_ffn, args
    args = (x, gate_up, down, make(2 * f), make(WIDTH), *norms["layernorm"], x)
    saved, stats = make(rows, 2 * f), make.float32(rows)
    yield "long training", swiglu_ffn_saving, args
    yield "backward", swiglu_ffn_backward, (x, *args, saved, stats, stats)
    yield "recompute backward", swiglu_ffn_recompute_backward, (x, *args, stats, stats)


def _linear_cross_entropy(dtype: torch.dtype, device: str) -> Iterator[Example]:
    make = Make(dtype, device)
    rows = ROWS["long"]
    x, weight, targets = make(rows, WIDTH), make(VOCABULARY, WIDTH), make(rows, dtype=torch.int64)
    loss, lse = make.float32(), make.float32(2, rows)
    for softcap in (None, 30.0):
        name = "softcap" if softcap else "long"
        args = (x, weight, targets, -100, softcap)
        yield name, linear_cross_entropy, args
        yield f"{name} backward", linear_cross_entropy_backward, (loss, *args, lse)
    for size in ("decode", "short"):
        args = (make(ROWS[size], WIDTH), weight, make(ROWS[size], dtype=torch.int64), -100, None)
        yield size, linear_cross_entropy, args


EXAMPLES: dict[str, Callable[[torch.dtype, str], Iterator[Example]]] = {
    "embedding": _embedding,
    "qkv_proj": _qkv_proj,
    "sdpa": _sdpa,
    "linear": _linear,
    "swiglu_ffn": _swiglu_ffn,
    "linear_cross_entropy": _linear_cross_entropy,
}
