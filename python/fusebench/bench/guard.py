"""What no contestant may do: the checks that keep a race honest, each with its reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fusebench.bench import timing
from fusebench.ops.contract import same

# The functions a clock rests on, as they were when the package was imported.
_TIMERS = [
    (module, name, getattr(module, name))
    for module, name in (
        (time, "perf_counter"),
        (time, "perf_counter_ns"),
        (time, "monotonic"),
        (time, "time"),
        (timing, "now"),
        (torch.cuda, "synchronize"),
        (torch.cuda, "Event"),
        (torch.cuda.Event, "record"),
        (torch.cuda.Event, "elapsed_time"),
    )
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


def untouched() -> None:
    """Raise Cheat where a function that the clock rests on was replaced; puts it back."""
    replaced = [(m, n, f) for m, n, f in _TIMERS if getattr(m, n) is not f]
    for module, name, original in replaced:
        setattr(module, name, original)
    if replaced:
        names = ", ".join(f"{m.__name__}.{n}" for m, n, _ in replaced)
        raise Cheat(f"patched the timer: {names} was replaced")


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
