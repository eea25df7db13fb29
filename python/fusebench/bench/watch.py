"""Each handwritten op of a contestant as its model calls it: whose output is it that is wrong?"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fusebench.bench import guard, verify
from fusebench.bench.contestant import Contestant
from fusebench.ops import contract


class _Watch(TorchDispatchMode):
    """Looks at every call of a handwritten op: what it returns, and what it leaves unchanged."""

    def __init__(self, values: bool) -> None:
        super().__init__()
        self.values = values

    def __torch_dispatch__(self, torch_op, types, args=(), kwargs=None):
        found = contract.owner(torch_op)
        if found is None:
            return torch_op(*args, **(kwargs or {}))
        op, name = found
        where = f"{op.name} ({name})"
        before = contract.snapshot(op, args)
        try:
            given = contract.function(torch_op)(*args)
        except (Exception, SystemExit) as error:
            raise guard.Cheat(f"{where} raised {guard.reason(error)}") from error
        try:
            outputs = contract.outputs(op, name, args, given)
        except ValueError as error:
            raise guard.Cheat(str(error)) from error
        if argument := contract.changed(op, args, before):
            raise guard.Cheat(
                f"{where} changed its input {argument}, which others still read; "
                "expected inputs that hold what they held"
            )
        if self.values:
            self._judge(op, where, args[: len(op.arguments)], outputs)
        return given

    @staticmethod
    def _judge(op: Any, where: str, args: tuple, outputs: tuple) -> None:
        truth, reference = verify.oracle(op.reference, args), op.reference(*args)
        verdict = verify.judge(outputs, guard.tensors(truth), guard.tensors(reference))
        if not verdict.ok:
            raise guard.Cheat(f"{where}: {verdict.reason}")


def look(contestant: Contestant, inputs: tuple[Any, ...], *, values: bool = False) -> None:
    """Call a contestant's model uncompiled and untimed, and look at each handwritten op in it.

    Raises guard.Cheat that names the op, the implementation and the output or input at fault.
    values: also judge each op's outputs against float64, to find which one is wrong.
    """
    if contestant.plain is not None:
        with torch.no_grad(), _Watch(values):
            contestant.plain(*inputs)
