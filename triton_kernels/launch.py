"""How kernels are launched, and on what: plainly, wrapped for torch.compile, or only recorded.

A launcher writes `launch(kernel)[grid](...)`. What that does depends on the setting:
- plain: the kernel itself, on a GPU or, under TRITON_INTERPRET=1, on CPU tensors;
- wrapped: `wrap_launches(torch.library.wrap_triton)` lets torch.compile see the kernels;
- recorded: inside `record(arch)` nothing runs; the calls are collected, to be compiled later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import triton

INTERPRETED: bool = triton.knobs.runtime.interpret


@dataclass(frozen=True)
class Target:
    """The device to a launcher: compute capability * 10 (0 for the interpreter), SM count."""

    arch: int
    sms: int

    @property
    def tma(self) -> bool:
        """Whether tensor descriptors are hardware copies here (the interpreter mimics them)."""
        return self.arch == 0 or self.arch >= 90


@dataclass(frozen=True)
class Launch:
    """One recorded launch: the kernel with every argument bound by name, and its options."""

    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, int]


class _Recorder:
    def __init__(self, arch: int):
        # The SM counts of A100, H100 and B200: only grids depend on them, which are not compiled.
        self.target = Target(arch, {80: 108, 90: 132, 100: 148}.get(arch, 108))
        self.launches: list[Launch] = []

    def bind(self, kernel: Any) -> Any:
        recorder = self

        class Recorded:
            def __getitem__(self, grid: Any) -> Callable[..., None]:
                return self

            def __call__(self, *args: Any, **kwargs: Any) -> None:
                options = {k: kwargs.pop(k) for k in ("num_warps", "num_stages") if k in kwargs}
                arguments = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
                recorder.launches.append(Launch(kernel, arguments, options))

        return Recorded()


_recorder: _Recorder | None = None
_wrap: Callable[[Any], Any] = lambda kernel: kernel  # noqa: E731


def wrap_launches(wrap: Callable[[Any], Any]) -> None:
    """From now on launch `wrap(kernel)` instead of `kernel`."""
    global _wrap
    _wrap = wrap


@contextmanager
def record(arch: int) -> Iterator[list[Launch]]:
    """Collect launches instead of running them, as if on a GPU of compute capability `arch` / 10.

    Launchers may then be given tensors on the meta device.
    """
    global _recorder
    outer, _recorder = _recorder, _Recorder(arch)
    try:
        yield _recorder.launches
    finally:
        _recorder = outer


def launch(kernel: Any) -> Any:
    """What to index with the grid and call."""
    return _recorder.bind(kernel) if _recorder is not None else _wrap(kernel)


@functools.cache
def _cuda_target(index: int) -> Target:
    properties = torch.cuda.get_device_properties(index)
    return Target(properties.major * 10 + properties.minor, properties.multi_processor_count)


def target(tensor: torch.Tensor) -> Target:
    """The target that launches with `tensor` would run on."""
    if _recorder is not None:
        return _recorder.target
    if tensor.is_cuda:
        triton.set_allocator(_scratch)  # per thread, and autograd has its own
        return _cuda_target(tensor.device.index or 0)
    if INTERPRETED:
        return Target(0, 3)
    raise ValueError(
        f"triton kernels got a tensor on {tensor.device}; they take CUDA tensors, or CPU tensors "
        "under TRITON_INTERPRET=1"
    )


def _scratch(size: int, align: int, stream: int | None) -> torch.Tensor:
    """Descriptors made inside a kernel need a little global memory per launch."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


def describable(*matrices: torch.Tensor | None) -> bool:
    """Whether TMA can read these: unit last stride, 16-byte rows and a 16-byte aligned start."""
    for x in matrices:
        if x is None:
            continue
        size = x.element_size()
        if x.stride(-1) != 1 or x.storage_offset() * size % 16:
            return False
        if any(s * size % 16 for s in x.stride()[:-1]):
            return False
    return True


def precision(dtype: torch.dtype) -> str:
    """How `tl.dot` multiplies float32: three tf32 products are as exact as one float32 product.

    Other types ignore it.
    """
    return "tf32x3" if dtype == torch.float32 else "ieee"


def power_of_2(n: int) -> int:
    """The next power of two: a block size that covers n. A symbolic n is specialized, as a block is
    part of the compiled code."""
    return triton.next_power_of_2(int(n))
