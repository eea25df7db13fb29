"""Each handwritten op of a contestant as its model calls it: whose output is it that is wrong?"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fusebench.bench import guard, verify
from fusebench.bench.contestant import Contestant
from fusebench.ops import contract, registry
from fusebench.ops.registry import Implementation, Op, get_op


class _Watch(TorchDispatchMode):
    """Looks at every call of a handwritten op: what it returns, and what it leaves unchanged."""

    # FlexAttention is such an operator, and compiles itself where nobody compiles it.
    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __init__(self, values: bool) -> None:
        super().__init__()
        self.values = values
        self.notes: dict[str, None] = {}  # what is no fault, without repeats

    def __torch_dispatch__(self, torch_op, types, args=(), kwargs=None):
        found = contract.owner(torch_op)
        if found is None:
            return torch_op(*args, **(kwargs or {}))
        return self.called(found, found.function or torch_op, args)

    def called(self, found: Implementation, function: Callable[..., Any], args: tuple) -> Any:
        """What the implementation's function returns, where it keeps its op's contract."""
        op, where = get_op(found.op), f"{found.op} ({found.name})"
        before = contract.snapshot(op, args)
        try:
            given, through_reference = _called(op, function, args)
        except (Exception, SystemExit) as error:
            raise guard.Cheat(f"{where} raised {guard.reason(error)}") from error
        try:
            outputs = contract.outputs(op, found.name, args, given)
        except ValueError as error:
            raise guard.Cheat(str(error)) from error
        if argument := contract.changed(op, args, before):
            raise guard.Cheat(
                f"{where} changed its input {argument}, which others still read; "
                "expected inputs that hold what they held"
            )
        if through_reference:
            self.notes[f"{where} calls the op's reference: it is compared with itself"] = None
        if self.values:
            self._judge(op, where, args[: len(op.arguments)], outputs)
        return given

    @staticmethod
    def _judge(op: Any, where: str, args: tuple, outputs: tuple) -> None:
        truth, reference = verify.oracle(op.reference, args), op.reference(*args)
        verdict = verify.judge(outputs, guard.tensors(truth), guard.tensors(reference))
        if not verdict.ok:
            raise guard.Cheat(f"{where}: {verdict.reason}")


@contextmanager
def _traced(watch: _Watch) -> Iterator[None]:
    """Functions without a torch op are looked at where the registry calls them."""
    before = dict(registry.IMPLEMENTATIONS)
    for key, found in before.items():
        if not found.opaque and found.name != "reference":
            call = partial(watch.called, found, found.call)
            registry.IMPLEMENTATIONS[key] = replace(found, call=lambda *args, call=call: call(args))
    try:
        yield
    finally:
        registry.IMPLEMENTATIONS.update(before)


def _called(op: Op, function: Any, args: tuple) -> tuple[Any, bool]:
    """What a function returns, and whether the op's reference composition ran inside it."""
    reference, seen, before = op.reference.__code__, False, sys.getprofile()  # type: ignore

    def notice(frame: Any, event: str, argument: Any) -> None:
        nonlocal seen
        seen = seen or frame.f_code is reference

    sys.setprofile(notice)
    try:
        given = function(*args)
        return given, seen
    finally:
        sys.setprofile(before)


def look(contestant: Contestant, inputs: tuple[Any, ...], *, values: bool = False) -> list[str]:
    """Call a contestant's model uncompiled and untimed, and look at each handwritten op in it.

    Raises guard.Cheat that names the op, the implementation and the output or input at fault.
    values: also judge each op's outputs against float64, to find which one is wrong.
    Returns what is no fault, but worth knowing.
    """
    if contestant.plain is None:
        return []
    with torch.no_grad(), warnings.catch_warnings(), _Watch(values) as watch:
        warnings.simplefilter("ignore")  # of what is not compiled here, but is where it counts
        with _traced(watch):
            contestant.plain(*inputs)
    return list(watch.notes)
