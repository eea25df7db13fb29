"""A contestant: something callable with weights of its own, compiled under a mode, and watched."""

from __future__ import annotations

import gc
import io
import logging
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass, field
from typing import Any, TextIO

import torch
import torch._inductor.config as inductor_config
from torch import Tensor, nn
from torch._dynamo.utils import counters

from fusebench.bench.placement import Placement
from fusebench.model import GPT, GPTConfig, prepare
from fusebench.variant import Mode, Variant

# Inductor imports this module on its way; that there is no CUDA here is in the results already.
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)


@dataclass
class Compilations:
    """What Dynamo and Inductor did for one contestant, summed over the times it was watched."""

    graphs: int = 0
    graph_breaks: int = 0
    break_reasons: list[str] = field(default_factory=list)
    cache_hits: int = 0

    @property
    def recompiles(self) -> int:
        """Graphs beyond the first that no graph break explains."""
        return max(0, self.graphs - 1 - self.graph_breaks)

    @contextmanager
    def watch(self) -> Iterator[None]:
        before = snapshot()
        try:
            yield
        finally:
            self.add_since(before)

    def add_since(self, before: Snapshot) -> Snapshot:
        """Add what happened since a snapshot; returns the snapshot of now."""
        after = snapshot()
        if after == before:
            return after
        self.graphs += after[0] - before[0]
        self.cache_hits += after[1] - before[1]
        for reason, count in after[2].items():
            if new := count - before[2].get(reason, 0):
                self.graph_breaks += new
                self.break_reasons.append(reason)
        return after


Snapshot = tuple[int, int, dict[str, int]]


def snapshot() -> Snapshot:
    """torch's counters now: graphs compiled, compilations found in the cache, graph breaks."""
    return (
        counters["stats"]["unique_graphs"],
        counters["inductor"]["fxgraph_cache_hit"],
        dict(counters["graph_break"]),
    )


@dataclass
class Contestant:
    """What takes part in a race.

    call: one set of input tensors -> outputs. weights: the tensors it must not change, and
    `pristine` what they hold. reuses_output: the next call may overwrite the output of this one
    (CUDA graphs). prepared: it keeps packed copies of weights. module: what is called, or None.
    plain: the same call, never compiled, where handwritten ops can be looked at; or None.
    """

    name: str
    call: Callable[..., Any]
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    pristine: Mapping[str, Tensor] = field(default_factory=dict)
    reuses_output: bool = False
    prepared: bool = False
    module: nn.Module | None = None
    plain: Callable[..., Any] | None = None
    compilations: Compilations = field(default_factory=Compilations)
    patches: Mapping[str, Any] = field(default_factory=dict)
    placement: Placement | None = field(default=None, repr=False)

    @property
    def still(self) -> bool:
        """Whether compiled code holds weights that would better move: frozen ones, on a CPU."""
        frozen = bool(self.patches.get("freezing"))
        return frozen and self.placement is not None and bool(self.placement.weights)

    def move(self) -> bool:
        """Give the module's weights, and the packed copies, other memory; False if they stay."""
        if self.module is None:
            return False
        if self.placement is None:
            packed = (getattr(m, "packed", None) for m in self.module.modules())
            self.placement = Placement(
                (*self.module.parameters(), *self.module.buffers(),
                 *(p for p in packed if isinstance(p, Tensor)))
            )  # fmt: skip
        if self.still or not self.placement.move():
            return False
        self.weights = dict(self.module.state_dict())
        return True

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Around the first calls: the settings it compiles under, and a watch on what it compiles.

        Freezing must be set for all of Dynamo and Inductor, and only without gradients: as an
        option of torch.compile it does nothing.
        """
        patched = inductor_config.patch(dict(self.patches)) if self.patches else nullcontext()
        with patched, _quiet_autotuning(), self.compilations.watch(), torch.no_grad():
            yield


@contextmanager
def _quiet_autotuning() -> Iterator[None]:
    """Keep Inductor's autotuning tables off the terminal, where the progress is shown."""
    from torch._inductor import select_algorithm

    before = getattr(select_algorithm, "PRINT_AUTOTUNE", None)
    if before is not None:
        select_algorithm.PRINT_AUTOTUNE = False
    try:
        with redirect_stderr(_WithoutStatistics(sys.stderr)):  # written there whatever is set
            yield
    finally:
        if before is not None:
            select_algorithm.PRINT_AUTOTUNE = before


class _WithoutStatistics(io.TextIOBase):
    """A stream that lets all but Inductor's autotuning statistics through."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        return len(text) if text.startswith("Autotune Choices") else self.stream.write(text)

    def flush(self) -> None:
        self.stream.flush()


def own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function or method with a code object of its own.

    Dynamo keeps what it compiled, and counts recompiles, per code object: variants that shared
    one would see each other's graphs and run into the recompile limit.
    """
    inner = getattr(function, "__func__", function)
    copy = types.FunctionType(
        inner.__code__.replace(), inner.__globals__, inner.__name__, inner.__defaults__,
        inner.__closure__,
    )  # fmt: skip
    copy.__kwdefaults__ = inner.__kwdefaults__
    owner = getattr(function, "__self__", None)
    return copy if owner is None else types.MethodType(copy, owner)


def compiled(function: Callable[..., Any], mode: Mode) -> tuple[Callable[..., Any], dict[str, Any]]:
    """torch.compile under the mode, and the Inductor settings its first calls need."""
    if not mode.compiled:
        return function, {}
    name = None if mode.name == "default" else mode.name
    result = torch.compile(own_code(function), mode=name, dynamic=True if mode.dynamic else None)
    return result, {"freezing": True} if mode.freezing else {}


def from_module(
    name: str, module: nn.Module, mode: Mode, *, pristine: Mapping[str, Tensor],
    forward: Callable[..., Any] | None = None, pick: Callable[[Any], Any] = lambda outputs: outputs,
) -> Contestant:  # fmt: skip
    """A contestant that calls a module, or one method of it, under the mode.

    pristine: what its state_dict holds. forward: the method; module.forward where None.
    pick: takes the measured outputs out of what it returns.
    """
    method = forward or module.forward
    run, patches = compiled(method, mode)
    on_gpu = any(weight.is_cuda for weight in pristine.values())
    graphs = on_gpu and mode.name in ("reduce-overhead", "max-autotune")

    def call(*inputs: Tensor) -> Any:
        if graphs:
            torch.compiler.cudagraph_mark_step_begin()
        return pick(run(*inputs))

    packed = any(getattr(m, "packed", None) is not None for m in module.modules())
    return Contestant(
        name, call, dict(module.state_dict()), pristine, reuses_output=graphs, prepared=packed,
        module=module, plain=lambda *inputs: pick(method(*inputs)), patches=patches,
    )  # fmt: skip


def model_of(
    variant: Variant, config: GPTConfig, weights: Mapping[str, Tensor], *, prepared: bool = True
) -> GPT:
    """The GPT of a variant's plan, with a copy of its own of the weights.

    weights: a state_dict of the reference GPT, in the dtype and on the device of the study.
    prepared: let handwritten implementations pack weights, as freezing lets Inductor.
    """
    some = next(iter(weights.values()))
    model = GPT(config, variant.plan).to(device=some.device, dtype=some.dtype).eval()
    model.load_state_dict(weights)
    return prepare(model) if prepared else model


def from_variant(
    variant: Variant, config: GPTConfig, weights: Mapping[str, Tensor], *, prepared: bool = True
) -> Contestant:
    """The whole GPT of a variant under its mode; its output are the logits."""
    model = model_of(variant, config, weights, prepared=prepared)
    return from_module(
        str(variant), model, variant.mode, pristine=weights,
        pick=lambda outputs: outputs["logits"],
    )  # fmt: skip


def unavailable(variant: Variant, device: str, dtype: torch.dtype) -> str | None:
    """Why a variant cannot run here in this dtype, or None."""
    for implementation in variant.plan.implementations():
        where = f"{implementation.op} ({implementation.name})"
        if reason := implementation.unavailable():
            return f"{where}: {reason}"
        if device not in implementation.devices:
            return f"{where} runs on {' or '.join(implementation.devices)}, not on {device}"
        if dtype not in implementation.dtypes:
            takes = ", ".join(str(d).removeprefix("torch.") for d in implementation.dtypes)
            return f"{where} takes {takes}, not {str(dtype).removeprefix('torch.')}"
    return None


def only_checked(variant: Variant) -> str | None:
    """Which implementation of the plan is never timed (an interpreter, a simulator), or None."""
    untimed = [i for i in variant.plan.implementations() if not i.timed]
    if not untimed:
        return None
    return f"{untimed[0].op} ({untimed[0].name}) runs in an interpreter or simulator: never timed"


def release() -> None:
    """Give back what finished contestants held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
