"""Time shares from torch.profiler, matched to the kernel calls of the compiled graph."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The profiler's library prints its own doings on standard error; it reads this when it starts.
os.environ.setdefault("KINETO_LOG_LEVEL", "9")

import torch
from torch.profiler import ProfilerActivity

from fusebench.inspect.generated import Kernel

GRAPH_CALL = "## Call CompiledFxGraph"
_GEMM = re.compile(r"mm$|linear|matmul|gemm", re.I)
_ATTENTION = re.compile(r"^aten::_(?:scaled_dot_product|flash|efficient|cudnn)_\w*attention\w*")


@dataclass(frozen=True)
class Event:
    """A top-level operator or kernel: its microseconds and those of the kernels it started."""

    name: str
    microseconds: float
    inner: tuple[str, ...] = ()


@dataclass(frozen=True)
class Profile:
    """The events of the fastest profiled call of a model, in the order of execution."""

    events: tuple[Event, ...]

    @property
    def microseconds(self) -> float:
        return sum(e.microseconds for e in self.events)

    def attention(self) -> tuple[str, ...]:
        """The attention operators that ran, i.e. which SDPA backend was chosen."""
        names = (n for e in self.events for n in (e.name, *e.inner))
        return tuple(dict.fromkeys(n for n in names if _ATTENTION.search(n)))

    def gemms(self) -> tuple[str, ...]:
        """The matrix products that ran; on a GPU, the kernels that did them."""
        names: dict[str, None] = {}
        for event in self.events:
            if _GEMM.search(event.name):
                kernels = [n for n in event.inner if "::" not in n]
                names |= dict.fromkeys(kernels or [event.name])
        return tuple(names)

    def by_name(self) -> dict[str, float]:
        """Microseconds by event name, the longest first."""
        total: dict[str, float] = {}
        for event in self.events:
            total[event.name] = total.get(event.name, 0.0) + event.microseconds
        return dict(sorted(total.items(), key=lambda item: -item[1]))

    def of_kernels(self, kernels: Sequence[Kernel]) -> list[float | None]:
        """Microseconds of each kernel call, None where the profiler did not see it.

        Both the calls of a graph and the events are in the order of execution.
        """
        times: list[float | None] = []
        at = 0
        for kernel in kernels:
            names = event_names(kernel.name)
            ahead = range(at, len(self.events))
            found = next((i for i in ahead if _same(self.events[i].name, names)), None)
            times.append(None if found is None else self.events[found].microseconds)
            at = at if found is None else found + 1
        return times


def event_names(kernel: str) -> tuple[str, ...]:
    """How the profiler names a kernel of the generated code."""
    bare = kernel.removesuffix(".default")
    if bare.startswith("extern_kernels."):
        name = bare.removeprefix("extern_kernels.")
        return (f"aten::{name}", f"aten::{name.removeprefix('bias_')}")
    if bare.startswith(("torch.ops.", "aten.")):
        return ("::".join(bare.removeprefix("torch.ops.").split(".")[:2]),)
    return (bare,)


def _same(event: str, names: tuple[str, ...]) -> bool:
    return event in names or re.sub(r"^graph_\d+_", "", event) in names


def profile(run: Callable[[], Any], calls: int = 3, trace: Path | None = None) -> Profile:
    """Profile `calls` calls of `run`, which should be warm, and keep the fastest.

    trace: a file for the Chrome trace of the last call.
    """
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    result = []
    for number in range(calls):
        with torch.profiler.profile(activities=activities) as profiler:
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        if trace is not None and number == calls - 1:
            profiler.export_chrome_trace(str(trace))
        result.append(_events(profiler.events()))
    return min((Profile(events) for events in result), key=lambda p: p.microseconds)


def _events(events: Any) -> tuple[Event, ...]:
    """The events just below the compiled graphs, or the outermost ones where there are none."""
    graphs = [e for e in events if e.name.startswith(GRAPH_CALL)]
    top = [c for g in graphs for c in g.cpu_children] if graphs else [
        e for e in events if e.cpu_parent is None and e.device_type == torch.autograd.DeviceType.CPU
    ]  # fmt: skip
    top.sort(key=lambda e: e.time_range.start)
    on_device = any(e.device_time_total for e in top)
    return tuple(
        Event(e.name, e.device_time_total if on_device else e.cpu_time_total, tuple(_inner(e)))
        for e in top
    )


def _inner(event: Any) -> list[str]:
    names = [kernel.name for kernel in event.kernels]
    for child in event.cpu_children:
        names += [child.name, *_inner(child)]
    return list(dict.fromkeys(names))
