"""Every shipped configuration, compiled ahead of time: no GPU and no driver needed.

The launchers themselves say what to compile: they run on meta tensors while launches are recorded,
so what is compiled here is what a GPU of that architecture would be given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from .examples import EXAMPLES
from .launch import INTERPRETED, Launch, record

TYPES = {
    torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16",
    torch.int64: "i64", torch.int32: "i32",
}  # fmt: skip


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
    for size, launcher, arguments in EXAMPLES[op](dtype, "meta"):
        with record(arch) as launches:
            launcher(*arguments)
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
