"""The grid of calls that `fusebench check` runs: odd sizes, hard numbers, every optional part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """One call: a name for people, and a maker of the op's arguments in schema order.

    `make(length=T)` makes the same call at another length. gradients: also check the backward.
    """

    name: str
    make: Callable[..., tuple[Any, ...]]
    gradients: bool = False


class Data:
    """Seeded inputs of one dtype on one device."""

    def __init__(self, dtype: torch.dtype, device: str, seed: int = 0) -> None:
        self.dtype, self.device = dtype, device
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
        x = torch.randn(*shape, generator=self.generator) * scale + mean
        return x.to(self.dtype).to(self.device)

    def weight(self, outputs: int, inputs: int) -> Tensor:
        return self.normal(outputs, inputs, scale=max(inputs, 1) ** -0.5)

    def ids(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self.generator).to(self.device)

    def hidden(self, batch: int, length: int, width: int, kind: str = "plain") -> Tensor:
        """Activations [B, T, C] of a kind that kernels get wrong."""
        if kind == "strided":  # [T, B, C] in memory
            return self.normal(length, batch, width).transpose(0, 1)
        if kind == "mean":  # a mean far larger than the deviation
            return self.normal(batch, length, width, scale=0.5, mean=100.0)
        if kind == "constant":  # a deviation that only float32 can tell from none
            return self.normal(batch, length, width, scale=0.01, mean=100.0)
        # small: an eps of 0.01 decides
        x = self.normal(batch, length, width, scale=0.05 if kind == "small" else 1.0)
        if kind == "outliers":  # a few channels a thousand times the others
            x[..., :: max(width // 3, 1)] *= 1000
        if kind == "first":  # a beginning that says nothing of the rest of the row
            x[..., : max(width // 8, 1)] += 100
        return x

    def rope(self, length: int, head_dim: int) -> tuple[Tensor, Tensor]:
        pairs = torch.arange(0, head_dim, 2) / head_dim
        angles = torch.outer(torch.arange(length).float(), 10000.0**-pairs)
        return angles.cos().to(self.device), angles.sin().to(self.device)


HIDDEN = ("plain", "strided", "mean", "outliers", "small", "constant", "first")
NORM_PARTS = ("norm_weight", "norm_bias")


def one_by_one(parts: tuple[str, ...]) -> Iterator[frozenset[str]]:
    """Every part on, every part off, each part alone, and each part alone missing."""
    everything = frozenset(parts)
    sets = [everything, frozenset[str]()]
    for part in parts:
        sets += [frozenset({part}), everything - {part}]
    yield from dict.fromkeys(sets)


def _norm(data: Data, norm: str | None, parts: frozenset[str], width: int, kind: str) -> tuple:
    weight = data.normal(width, scale=0.2, mean=1.0) if norm and "norm_weight" in parts else None
    bias = data.normal(width, scale=0.2) if norm == "layernorm" and "norm_bias" in parts else None
    return norm, weight, bias, 1e-2 if kind == "small" else 1e-5


def _label(parts: frozenset[str]) -> str:
    return "+".join(sorted(parts)) or "nothing"


def embedding(dtype: torch.dtype, device: str) -> Iterator[Case]:
    def make(batch=2, length=9, width=48, positions=True, start=0):
        data = Data(dtype, device)
        table = data.normal(64, width) if positions else None
        return data.ids(37, batch, length), data.normal(37, width), table, start

    for positions in (True, False):
        what = "positions" if positions else "no positions"
        yield Case(f"{what}, B2 T9 C48", partial(make, positions=positions), True)
        yield Case(f"{what}, odd width", partial(make, 1, 5, 13, positions))
        yield Case(f"{what}, one token at 40", partial(make, 3, 1, 32, positions, 40))
        yield Case(f"{what}, no batch", partial(make, 0, 4, 32, positions))
        yield Case(f"{what}, no tokens", partial(make, 2, 0, 32, positions))


def _kinds(name: str, make: Callable[..., tuple]) -> Iterator[Case]:
    """The same call on activations of every other kind."""
    for kind in HIDDEN[1:]:
        length = 9 if kind in ("outliers", "constant", "first") else 5
        yield Case(f"{name}, {kind} x", partial(make, kind=kind, length=length))


def qkv_proj(dtype: torch.dtype, device: str) -> Iterator[Case]:
    def make(
        batch=2, length=5, width=64, heads=2, kv=2, dim=32, norm="layernorm", kind="plain",
        parts=frozenset({"bias", "rope", *NORM_PARTS}),
    ):  # fmt: skip
        data = Data(dtype, device)
        rows = (heads + 2 * kv) * dim
        x, weight = data.hidden(batch, length, width, kind), data.weight(rows, width)
        bias = data.normal(rows) if "bias" in parts else None
        cos, sin = data.rope(length, dim) if "rope" in parts else (None, None)
        return x, weight, bias, heads, kv, *_norm(data, norm, parts, width, kind), cos, sin

    for norm in ("layernorm", "rmsnorm", None):
        name = norm or "no norm"
        parts = ("bias", "rope", *(NORM_PARTS if norm == "layernorm" else NORM_PARTS[:1]))
        for on in one_by_one(parts if norm else parts[:2]):
            full = len(on) == len(parts)
            yield Case(f"{name}, {_label(on)}", partial(make, norm=norm, parts=on), full)
        yield from _kinds(name, partial(make, norm=norm))
    for dim in (32, 64, 80, 128):
        yield Case(
            f"head_dim {dim}, GQA 4:1, odd width",
            partial(make, batch=1, length=7, width=72, heads=4, kv=1, dim=dim, norm="rmsnorm"),
        )
    yield Case("one token", partial(make, batch=1, length=1))
    yield Case("T=129", partial(make, batch=1, length=129, width=96, heads=3, kv=1))
    yield Case("no batch", partial(make, batch=0))
    yield Case("no tokens", partial(make, length=0))


def sdpa(dtype: torch.dtype, device: str) -> Iterator[Case]:
    def make(
        batch=2, heads=2, kv=2, tq=9, tk=9, dim=64, causal=True, kind="plain", scale=None,
        length=None,
    ):  # fmt: skip
        data = Data(dtype, device)
        if length is not None:
            tq = tk = length

        def heads_of(count: int, length: int) -> Tensor:
            if kind == "strided":  # [B, T, H, D] in memory
                return data.normal(batch, length, count, dim).transpose(1, 2)
            return data.normal(batch, count, length, dim, scale=8.0 if kind == "peaked" else 1.0)

        q, k, v = heads_of(heads, tq), heads_of(kv, tk), heads_of(kv, tk)
        if kind == "outliers":
            k = k.clone()
            k[..., ::17] *= 100
        return q, k, v, causal, dim**-0.5 if scale is None else scale

    for causal in (True, False):
        name = "causal" if causal else "full"
        for dim in (32, 64, 80, 128):
            yield Case(f"{name}, head_dim {dim}", partial(make, causal=causal, dim=dim), dim == 64)
        yield Case(
            f"{name}, GQA 6:2, T=129",
            partial(make, batch=1, heads=6, kv=2, tq=129, tk=129, dim=32, causal=causal),
        )
        yield Case(
            f"{name}, GQA 4:1", partial(make, heads=4, kv=1, tq=33, tk=33, causal=causal), True
        )
        yield Case(f"{name}, Tq 5 < Tk 70", partial(make, tq=5, tk=70, dim=32, causal=causal), True)
        yield Case(f"{name}, one query", partial(make, heads=4, kv=2, tq=1, tk=257, causal=causal))
        yield Case(f"{name}, one key", partial(make, tq=1, tk=1, causal=causal))
        for kind in ("strided", "peaked", "outliers"):
            yield Case(f"{name}, {kind}", partial(make, tq=40, tk=40, causal=causal, kind=kind))
        yield Case(f"{name}, scale 0.3", partial(make, causal=causal, scale=0.3))
    yield Case("odd head_dim 24", partial(make, dim=24))
    yield Case("no batch", partial(make, batch=0))
    yield Case("no tokens", partial(make, tq=0, tk=0))


def linear(dtype: torch.dtype, device: str) -> Iterator[Case]:
    def make(
        batch=2, length=5, width=64, outputs=96, norm="layernorm", kind="plain",
        parts=frozenset({"bias", "residual", *NORM_PARTS}),
    ):  # fmt: skip
        data = Data(dtype, device)
        x, weight = data.hidden(batch, length, width, kind), data.weight(outputs, width)
        bias = data.normal(outputs) if "bias" in parts else None
        residual = data.normal(batch, length, outputs) if "residual" in parts else None
        return x, weight, bias, residual, *_norm(data, norm, parts, width, kind)

    yield from _projections(make, ("bias", "residual"))
    yield Case("a vocabulary of 1009", partial(make, width=40, outputs=1009, parts=frozenset()))
    yield Case("one output", partial(make, outputs=1))


def swiglu_ffn(dtype: torch.dtype, device: str) -> Iterator[Case]:
    def make(
        batch=2, length=5, width=64, outputs=96, norm="layernorm", kind="plain",
        parts=frozenset({"b_gate_up", "b_down", "residual", *NORM_PARTS}),
    ):  # fmt: skip
        data = Data(dtype, device)
        x = data.hidden(batch, length, width, kind)
        gate_up, down = data.weight(2 * outputs, width), data.weight(width, outputs)
        b_gate_up = data.normal(2 * outputs) if "b_gate_up" in parts else None
        b_down = data.normal(width) if "b_down" in parts else None
        residual = data.normal(batch, length, width) if "residual" in parts else None
        return x, gate_up, down, b_gate_up, b_down, *_norm(data, norm, parts, width, kind), residual

    yield from _projections(make, ("b_gate_up", "b_down", "residual"))


def _projections(make: Callable[..., tuple], parts: tuple[str, ...]) -> Iterator[Case]:
    """The cases that `linear` and `swiglu_ffn` share."""
    for norm in ("layernorm", "rmsnorm", None):
        name = norm or "no norm"
        own = NORM_PARTS[: {"layernorm": 2, "rmsnorm": 1, None: 0}[norm]]
        for on in one_by_one((*parts, *own)):
            full = len(on) == len(parts) + len(own)
            yield Case(f"{name}, {_label(on)}", partial(make, norm=norm, parts=on), full)
        yield from _kinds(name, partial(make, norm=norm))
    yield Case("odd sizes", partial(make, batch=3, length=7, width=37, outputs=53))
    yield Case("one token", partial(make, batch=1, length=1, width=72, outputs=80))
    yield Case("T=129", partial(make, batch=1, length=129, width=96, outputs=160, norm="rmsnorm"))
    yield Case("no batch", partial(make, batch=0))
    yield Case("no tokens", partial(make, length=0))


def linear_cross_entropy(dtype: torch.dtype, device: str) -> Iterator[Case]:
    def make(batch=2, length=9, width=48, vocab=101, softcap=None, ignored=0.2, ignore_index=-100):
        data = Data(dtype, device)
        targets = data.ids(vocab, batch, length)
        drop = torch.rand(batch, length, generator=data.generator).to(device) < ignored
        x, weight = data.normal(batch, length, width), data.normal(vocab, width, scale=0.5)
        return x, weight, targets.masked_fill(drop, ignore_index), ignore_index, softcap

    for softcap in (None, 5.0):
        name = f"softcap {softcap}" if softcap else "no softcap"
        yield Case(f"{name}, a fifth ignored", partial(make, softcap=softcap), True)
        yield Case(f"{name}, all ignored", partial(make, softcap=softcap, ignored=2.0), True)
    yield Case("ignore_index 0", partial(make, ignore_index=0))
    yield Case("a vocabulary of 1009, T=129", partial(make, batch=1, length=129, vocab=1009))
    yield Case("odd width", partial(make, width=37))
    yield Case("one token", partial(make, batch=1, length=1, ignored=0.0))
    yield Case("no batch", partial(make, batch=0))


GRID: dict[str, Callable[[torch.dtype, str], Iterator[Case]]] = {
    "embedding": embedding,
    "qkv_proj": qkv_proj,
    "sdpa": sdpa,
    "linear": linear,
    "swiglu_ffn": swiglu_ffn,
    "linear_cross_entropy": linear_cross_entropy,
}
