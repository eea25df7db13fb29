"""What no contestant may do: the checks that keep a race honest, each with its reason."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fusebench.bench import statistics, timing, verify
from fusebench.bench.settings import Settings
from fusebench.ops import contract
from fusebench.ops.contract import same

# What the clock and the verdicts rest on, as it was when the package was imported.
_TIMERS = [
    (time, "perf_counter"), (time, "perf_counter_ns"), (time, "monotonic"), (time, "time"),
    (timing, "now"), (torch.cuda, "synchronize"), (torch.cuda, "Event"),
    (torch.cuda.Event, "record"), (torch.cuda.Event, "elapsed_time"),
]  # fmt: skip
_JUDGES = [
    (torch, "equal"), (torch, "allclose"), (torch.testing, "assert_close"), (torch, "isfinite"),
    (Tensor, "equal"), (Tensor, "allclose"), (Tensor, "double"), (Tensor, "clone"),
    (Tensor, "abs"), (Tensor, "isfinite"), (Tensor, "fill_"), (Tensor, "untyped_storage"),
]  # fmt: skip
_ORIGINALS: list[tuple[str, Any, str, Any]] = [
    (what, owner, name, getattr(owner, name))
    for what, owned in (("timer", _TIMERS), ("verification", _JUDGES))
    for owner, name in owned
]
_LATE_S = 0.02  # how long an output is watched for writes that come after the call returned


class Cheat(Exception):
    """A contestant broke a rule; the message is the reason shown in its row."""


def reason(error: BaseException) -> str:
    """What was raised, in one line."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    return f"{type(error).__name__}: {lines[0]}"


def tensors(outputs: Any) -> tuple[Any, ...]:
    """The outputs of a call as a tuple, whether it returned one, several, or a dict of them."""
    if isinstance(outputs, Mapping):
        return tuple(outputs.values())
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)


def protect(*modules: str) -> None:
    """Note the functions of these modules as they are now; `Rules` says when one is replaced."""
    for module in map(sys.modules.__getitem__, modules):
        for name, value in vars(module).items():
            if isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
                _ORIGINALS.append(("verification", module, name, value))


class Rules:
    """What no contestant may change: torch's settings as they are now, the clock, the judges."""

    def __init__(self) -> None:
        self.settings = Settings()

    def put_back(self) -> list[str]:
        """Put everything back; in words, what had been changed."""
        replaced = [entry for entry in _ORIGINALS if getattr(entry[1], entry[2]) is not entry[3]]
        for _, owner, name, original in replaced:
            setattr(owner, name, original)
        found = [
            f"patched the {what}: {owner.__name__}.{name} was replaced"
            for what, owner, name, _ in replaced
        ]
        if changed := self.settings.put_back():
            found.append(f"changed torch's settings for everyone: {', '.join(changed)}")
        return found

    def kept(self) -> None:
        """Raise Cheat where something had been changed; everything is put back then."""
        if found := self.put_back():
            raise Cheat(f"{'; '.join(found)} (it was put back)")


def plain(outputs: Any, inputs: tuple) -> None:
    """Raise Cheat unless the outputs are ordinary tensors in memory of their own."""
    storages = {i.untyped_storage().data_ptr() for i in inputs if isinstance(i, Tensor)}
    for output in tensors(outputs):
        if type(output) is not Tensor:
            raise Cheat(
                f"returned a {type(output).__name__}, expected a plain torch.Tensor "
                "(a subclass can put off its work until the clock has stopped)"
            )
        if output.numel() and output.untyped_storage().data_ptr() in storages:
            raise Cheat("returned memory of its inputs, expected new memory")


def copies(outputs: Any) -> tuple[Tensor, ...]:
    """The outputs as they are now."""
    return tuple(t.detach().clone() for t in tensors(outputs))


def complete(outputs: Any) -> tuple[Tensor, ...]:
    """A copy of the outputs as they are now; raises Cheat where they change afterwards.

    On a GPU the copy is ordered after the current stream only, so that work on any other stream
    shows up as a change.
    """
    mine = tensors(outputs)
    now = copies(mine)
    if mine and mine[0].is_cuda:
        torch.cuda.current_stream(mine[0].device).synchronize()
    time.sleep(_LATE_S)
    if mine and mine[0].is_cuda:
        torch.cuda.synchronize(mine[0].device)
    if not all(same(a, b) for a, b in zip(now, mine)):
        raise Cheat(
            "the output changed after the call had returned: work goes on in another thread or "
            "stream, where the clock does not see it"
        )
    return now


def poison(outputs: Any) -> None:
    """Overwrite outputs with NaN before their memory is freed.

    The next call's `empty` often gets that very memory: what nobody wrote is then NaN instead of
    somebody's right answer. A result that a contestant keeps for later is spoiled as well.
    """
    for t in tensors(outputs):
        if isinstance(t, Tensor) and t.dtype.is_floating_point and not t.is_inference():
            t.detach().fill_(float("nan"))


def unchanged(what: str, now: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Raise Cheat where a tensor no longer holds what it held."""
    for name, tensor in now.items():
        if isinstance(tensor, Tensor) and not same(tensor, before[name]):
            raise Cheat(f"changed its {what}: {name} does not hold what it held before the call")


def distinct(call: Callable[..., Any], first: tuple, second: tuple) -> None:
    """Raise Cheat where a second call writes into the output of the first."""
    output = call(*first)
    before = copies(output)
    other = call(*second)
    shared = {t.untyped_storage().data_ptr() for t in tensors(output) if t.numel()} & {
        t.untyped_storage().data_ptr() for t in tensors(other) if t.numel()
    }
    if shared or not all(same(a, b) for a, b in zip(before, tensors(output))):
        raise Cheat(
            "a second call returned or changed the output of the first, expected new memory"
        )


protect(*(m.__name__ for m in (statistics, timing, verify, contract)), __name__)
