"""What a call of an implementation owes its op: outputs of the right kind, inputs left alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusebench.ops import checks, registry
from fusebench.ops.registry import Implementation, Op


def owner(torch_op: Any) -> Implementation | None:
    """The implementation whose torch op that is; None for another's."""
    for found in registry.IMPLEMENTATIONS.values():
        for call in (found.call, found.packed_call):
            if call is not None and getattr(call, "_opoverload", call) is torch_op:
                return found
    return None


def outputs(op: Op, name: str, args: Sequence[Any], given: Any) -> tuple[Tensor, ...]:
    """What an implementation returned, as a tuple; ValueError where it is not what the fake says.

    args: the op's arguments in schema order; packed weights may follow.
    """
    where = f"{op.name} ({name})"
    with torch.no_grad():
        wanted = op.fake(*(_meta(a) for a in args[: len(op.arguments)]))
    if isinstance(wanted, Tensor):
        wanted = (wanted,)
        labels = ["the output"]
        if isinstance(given, (tuple, list)):
            raise checks.refuse(where, "the output", f"is {_kind(given)}", "one tensor")
        given = (given,)
    else:
        labels = [f"output {i} of {len(wanted)}" for i in range(1, len(wanted) + 1)]
        if not isinstance(given, (tuple, list)) or len(given) != len(wanted):
            raise checks.refuse(
                where, "the outputs", f"are {_kind(given)}", f"a tuple of {len(wanted)} tensors"
            )
    device = next(a.device for a in args if isinstance(a, Tensor))
    memory = {a.untyped_storage().data_ptr(): argument for argument, a in _tensors(op, args)}
    for label, mine, fake in zip(labels, given, wanted):
        for got, accepted in _differences(mine, fake, device):
            raise checks.refuse(where, label, got, accepted)
        shared = memory.get(mine.untyped_storage().data_ptr()) if mine.numel() else None
        if shared is not None:
            raise checks.refuse(where, label, f"shares the memory of {shared}", "new memory")
    return tuple(given)


def _differences(mine: Any, fake: Tensor, device: torch.device) -> Iterator[tuple[str, str]]:
    """What it is and what is accepted, for each way in which an output is not as the fake."""
    if type(mine) is not Tensor:
        yield f"is {_kind(mine)}", "a plain torch.Tensor (a subclass can put off its work)"
        return
    if mine.shape != fake.shape:
        yield f"has shape {list(mine.shape)}", str(list(fake.shape))
    if mine.dtype != fake.dtype:
        yield f"has dtype {mine.dtype}", str(fake.dtype)
    if mine.device != device:
        yield f"is on {mine.device}", str(device)
    if mine.numel() and strides(mine) != strides(fake):
        yield f"has strides {mine.stride()}", f"{fake.stride()}, which compiled code relies on"


def strides(x: Tensor) -> tuple[int, ...]:
    """The strides that matter: those of dimensions longer than 1."""
    return tuple(stride for size, stride in zip(x.shape, x.stride()) if size != 1)


def snapshot(op: Op, args: Sequence[Any]) -> list[tuple[str, Tensor]]:
    """Copies of the tensors among the arguments, each with its argument's name."""
    return [(argument, a.detach().clone()) for argument, a in _tensors(op, args)]


def changed(op: Op, args: Sequence[Any], before: list[tuple[str, Tensor]]) -> str | None:
    """The first argument that no longer holds the bits it held, or None."""
    for (argument, then), (_, now) in zip(before, _tensors(op, args)):
        if not same(then, now):
            return argument
    return None


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same bits (NaN equals itself)."""
    first, second = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return a.shape == b.shape and torch.equal(first, second)


def _tensors(op: Op, args: Sequence[Any]) -> Iterator[tuple[str, Tensor]]:
    packed = (f"packed {weight}" for weight in op.packable)
    for argument, a in zip((*op.arguments, *packed), args):
        if isinstance(a, Tensor):
            yield argument, a


def _meta(a: Any) -> Any:
    return a.to("meta") if isinstance(a, Tensor) else a


def _kind(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"
