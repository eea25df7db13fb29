"""Every shipped configuration, compiled ahead of time: no GPU and no driver needed.

The launchers themselves say what to compile: they run on meta tensors while launches are recorded,
so what is compiled here is what a GPU of that architecture would be given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from .embedding import embedding, embedding_backward
from .launch import INTERPRETED, Launch, record
from .linear import linear, linear_backward, linear_saving
from .linear_cross_entropy import linear_cross_entropy, linear_cross_entropy_backward
from .qkv_proj import qkv_proj, qkv_proj_backward
from .sdpa import sdpa, sdpa_backward, sdpa_saving
from .swiglu_ffn import swiglu_ffn, swiglu_ffn_backward, swiglu_ffn_saving

ROWS = {"decode": 1, "short": 512, "long": 16384}
TYPES = {
    torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16",
    torch.int64: "i64", torch.int32: "i32",
}  # fmt: skip
EPS = 1e-5
Example = tuple[str, Callable[[], Any]]


@dataclass(frozen=True)
class Spec:
    """One kernel in one configuration.

    size: the size class it is for, with the part of the op that it serves. matrix: whether its
    work is matrix products, which should run on tensor cores.
    """

    op: str
    size: str
    kernel: str
    dtype: torch.dtype
    arch: int
    launch: Launch

    @property
    def matrix(self) -> bool:
        return "PRECISION" in self.launch.arguments

    @property
    def configuration(self) -> dict[str, Any]:
        """The tile sizes and launch options."""
        tiles = {
            k.lower(): v for k, v in self.launch.arguments.items() if k.startswith(("BLOCK", "TMA"))
        }
        return tiles | self.launch.options

    def compile(self) -> Any:
        """The compiled kernel: `.asm["cubin"]`, `.metadata.shared`, `.metadata.num_warps`."""
        if INTERPRETED:
            raise RuntimeError("kernels cannot be compiled under TRITON_INTERPRET=1; unset it")
        kernel, arguments = self.launch.kernel, self.launch.arguments
        signature: dict[str, str] = {}
        constants: dict[tuple[int, ...], Any] = {}
        attributes: dict[tuple[int, ...], list] = {}
        for i, parameter in enumerate(kernel.params):
            value = arguments[parameter.name]
            kind = _kind(value)
            if parameter.is_constexpr or value is None or (kind == "i32" and value == 1):
                signature[parameter.name] = "constexpr"
                constants[i,] = value
                continue
            signature[parameter.name] = kind
            if isinstance(value, torch.Tensor) or value % 16 == 0:
                attributes[i,] = [["tt.divisibility", 16]]
        return triton.compile(
            ASTSource(kernel, signature, constants, attributes),
            target=GPUTarget("cuda", self.arch, 32),
            options=dict(self.launch.options),
        )


def _kind(value: Any) -> str:
    """An argument's type in a Triton signature, as a launch would specialize it."""
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    if isinstance(value, bool) or not isinstance(value, int):
        return "constexpr"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def specs(op: str, arch: int, dtype: torch.dtype = torch.bfloat16) -> list[Spec]:
    """The kernels that `op` launches on an architecture (80, 90, 100), each configuration once."""
    found: dict[Any, Spec] = {}
    for size, call in EXAMPLES[op](dtype):
        with record(arch) as launches:
            call()
        for each in launches:
            name = getattr(each.kernel, "__name__", str(each.kernel))
            scalars = tuple(
                _kind(v) if isinstance(v, torch.Tensor) or k not in _constexprs(each.kernel) else v
                for k, v in each.arguments.items()
            )
            key = (name, scalars, tuple(each.options.items()))
            found.setdefault(key, Spec(op, size, name, dtype, arch, each))
    return list(found.values())


def _constexprs(kernel: Any) -> set[str]:
    return {p.name for p in kernel.params if p.is_constexpr}


def _meta(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _embedding(dtype: torch.dtype) -> Iterator[Example]:
    tokens = _meta(8, 1024, dtype=torch.int64)
    weight, positions = _meta(50304, 768, dtype=dtype), _meta(1024, 768, dtype=dtype)
    dy = _meta(8, 1024, 768, dtype=dtype)
    yield "forward", lambda: embedding(tokens, weight, positions, 0)
    yield "backward", lambda: embedding_backward(dy, tokens, weight, positions, 0)


def _norms(width: int, dtype: torch.dtype) -> dict[str | None, tuple]:
    weight, bias = _meta(width, dtype=dtype), _meta(width, dtype=dtype)
    return {
        None: (None, None, None, EPS),
        "layernorm": ("layernorm", weight, bias, EPS),
        "rmsnorm": ("rmsnorm", weight, None, EPS),
    }


def _qkv_proj(dtype: torch.dtype) -> Iterator[Example]:
    c, heads, kv, d = 768, 12, 4, 64
    n = (heads + 2 * kv) * d
    weight, bias = _meta(n, c, dtype=dtype), _meta(n, dtype=dtype)
    for size, rows in ROWS.items():
        t = min(rows, 2048)
        x = _meta(rows // t, t, c, dtype=dtype)
        rope = (_meta(t, d // 2, dtype=torch.float32),) * 2
        for name, norm in _norms(c, dtype).items():
            yield (
                f"{size} {name or 'plain'}",
                lambda x=x, norm=norm, rope=rope: qkv_proj(x, weight, bias, heads, kv, *norm, *rope),
            )
    args = (x, weight, bias, heads, kv, *_norms(c, dtype)["layernorm"], *rope)
    q = _meta(x.shape[0], heads, t, d, dtype=dtype)
    k = _meta(x.shape[0], kv, t, d, dtype=dtype)
    stats = (_meta(rows, dtype=torch.float32),) * 2
    yield "long backward", lambda: qkv_proj_backward(q, k, k, *args, *stats)


def _sdpa(dtype: torch.dtype) -> Iterator[Example]:
    for d in (64, 128):
        q, k = _meta(4, 12, 2048, d, dtype=dtype), _meta(4, 4, 2048, d, dtype=dtype)
        lse = _meta(4, 12, 2048, dtype=torch.float32)
        one = _meta(4, 12, 1, d, dtype=dtype)
        scale = d**-0.5
        for causal in (True, False):
            name = f"d{d} {'causal' if causal else 'full'}"
            yield name, lambda q=q, k=k, c=causal, s=scale: sdpa_saving(q, k, k, c, s)
        yield (
            f"d{d} causal backward",
            lambda q=q, k=k, lse=lse, s=scale: sdpa_backward(q, q, k, k, True, s, lse, q),
        )
        yield f"d{d} decode", lambda q=one, k=k, s=scale: sdpa(q, k, k, True, s)


def _linear(dtype: torch.dtype) -> Iterator[Example]:
    c, n = 768, 768
    weight, bias = _meta(n, c, dtype=dtype), _meta(n, dtype=dtype)
    for size, rows in ROWS.items():
        x = _meta(rows, c, dtype=dtype)
        for name, norm in _norms(c, dtype).items():
            residual = x if norm[0] is None else None
            yield (
                f"{size} {name or 'residual'}",
                lambda x=x, r=residual, norm=norm: linear(x, weight, bias, r, *norm),
            )
    args = (x, weight, bias, None, *_norms(c, dtype)["layernorm"])
    stats = (_meta(rows, dtype=torch.float32),) * 2
    yield "long training", lambda: linear_saving(*args)
    yield "long backward", lambda: linear_backward(x, *args, *stats)


def _swiglu_ffn(dtype: torch.dtype) -> Iterator[Example]:
    c, f = 768, 2048
    gate_up, down = _meta(2 * f, c, dtype=dtype), _meta(c, f, dtype=dtype)
    biases = _meta(2 * f, dtype=dtype), _meta(c, dtype=dtype)
    for size, rows in ROWS.items():
        x = _meta(rows, c, dtype=dtype)
        for name, norm in _norms(c, dtype).items():
            yield (
                f"{size} {name or 'plain'}",
                lambda x=x, norm=norm: swiglu_ffn(x, gate_up, down, None, None, *norm, x),
            )
    args = (x, gate_up, down, *biases, *_norms(c, dtype)["layernorm"], x)
    saved = _meta(rows, 2 * f, dtype=dtype), *(_meta(rows, dtype=torch.float32),) * 2
    yield "long training", lambda: swiglu_ffn_saving(*args)
    yield "long backward", lambda: swiglu_ffn_backward(x, *args, *saved)


def _linear_cross_entropy(dtype: torch.dtype) -> Iterator[Example]:
    rows, c, v = ROWS["long"], 768, 50304
    x, weight = _meta(rows, c, dtype=dtype), _meta(v, c, dtype=dtype)
    targets, lse = _meta(rows, dtype=torch.int64), _meta(rows, dtype=torch.float32)
    loss = _meta(dtype=torch.float32)
    for softcap in (None, 30.0):
        name = "long softcap" if softcap else "long"
        args = (x, weight, targets, -100, softcap)
        yield name, lambda args=args: linear_cross_entropy(*args)
        yield (
            f"{name} backward",
            lambda args=args: linear_cross_entropy_backward(loss, *args, lse),
        )


EXAMPLES: dict[str, Callable[[torch.dtype], Iterator[Example]]] = {
    "embedding": _embedding,
    "qkv_proj": _qkv_proj,
    "sdpa": _sdpa,
    "linear": _linear,
    "swiglu_ffn": _swiglu_ffn,
    "linear_cross_entropy": _linear_cross_entropy,
}
