"""Truth: whether a result is as good as its dtype allows, judged against float64.

The oracle is the reference composition in float64. A result passes when its error is at most
twice that of the same composition in the call's own dtype, plus one rounding of the result. The
budget comes from the data of the call; nobody chose a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

FACTOR = 2.0  # how many times the reference's own error a result may have


@dataclass(frozen=True)
class Verdict:
    """Whether a result passed.

    error, budget: largest absolute error and what was allowed there, both divided by the largest
    absolute value of the oracle (0 for an empty result). reason: why it failed, or None.
    """

    ok: bool
    error: float = 0.0
    budget: float = 0.0
    reason: str | None = None

    @property
    def ratio(self) -> float:
        """error / budget: at most 1 where the result passed."""
        return self.error / self.budget if self.budget else float(self.error > 0)


def to_float64(value: Any) -> Any:
    """The same arguments with every floating-point tensor in float64."""
    if isinstance(value, Tensor):
        return value.detach().double() if value.is_floating_point() else value
    if isinstance(value, (tuple, list)):
        return type(value)(to_float64(v) for v in value)
    return value


def oracle(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """function(*args) in float64, without gradients."""
    with torch.no_grad():
        return function(*to_float64(tuple(args)))


def judge(result: Any, truth: Any, reference: Any, names: Sequence[str] | None = None) -> Verdict:
    """Compare a result with the oracle's, given the reference composition's in the same dtype.

    Tensors, or tuples of tensors and None of the same structure; of a tuple, the worst
    verdict counts, and its reason says which tensor it is, by number or by name.
    Shape, dtype and kind of the result must be the reference's.
    """
    if isinstance(truth, (tuple, list)):
        if not isinstance(result, (tuple, list)) or len(result) != len(truth):
            return Verdict(False, reason=f"returned {_kind(result)}, expected {len(truth)} tensors")
        verdicts = [judge(*each) for each in zip(result, truth, reference)]
        if len(verdicts) > 1:
            names = names or [f"output {i + 1} of {len(verdicts)}" for i in range(len(verdicts))]
            verdicts = [
                replace(v, reason=v.reason and f"{name}: {v.reason}")
                for v, name in zip(verdicts, names)
            ]
        return max(verdicts, key=lambda v: (not v.ok, v.ratio), default=Verdict(True))
    if truth is None or result is None:
        same = truth is None and result is None
        return Verdict(same, reason=None if same else f"returned {_kind(result)}")
    if type(result) is not Tensor:
        return Verdict(False, reason=f"returned {_kind(result)}, expected a plain tensor")
    if result.shape != reference.shape:
        return _refused("shape", list(result.shape), list(reference.shape))
    if result.dtype != reference.dtype:
        return _refused("dtype", result.dtype, reference.dtype)
    if result.device != reference.device:
        return _refused("device", result.device, reference.device)
    doubles = (result.detach().double(), truth.detach(), reference.detach().double())
    return _judge_values(*doubles, result.dtype)


def _judge_values(result: Tensor, truth: Tensor, reference: Tensor, dtype: torch.dtype) -> Verdict:
    if truth.numel() == 0:
        return Verdict(True)
    finite = truth.isfinite() & reference.isfinite()
    if not result[finite].isfinite().all():
        bad = finite & ~result.isfinite()
        reason = f"{int(bad.sum())} of {truth.numel()} values are not finite ({_first(bad)})"
        return Verdict(False, float("inf"), 0.0, reason)
    if not finite.any():
        return Verdict(True)
    error = (result - truth)[finite].abs()
    allowed = FACTOR * (reference - truth)[finite].abs().max()
    budget = allowed + torch.finfo(dtype).eps * truth[finite].abs()
    worst = int((error - budget).argmax())
    scale = float(truth[finite].abs().max()) or 1.0
    relative = float(error[worst]) / scale, float(budget[worst]) / scale
    if error[worst] <= budget[worst]:
        return Verdict(True, *relative)
    wrong = torch.zeros_like(finite)
    wrong[finite] = error > budget
    return Verdict(
        False, *relative,
        f"error {relative[0]:.2e} is over the budget of {relative[1]:.2e} at {int(wrong.sum())} of "
        f"{truth.numel()} values ({_first(wrong, result, truth)})",
    )  # fmt: skip


def _first(wrong: Tensor, result: Tensor | None = None, truth: Tensor | None = None) -> str:
    """Where the first of the wrong values is, row before column, and what it is."""
    index = tuple(wrong.nonzero()[0].tolist())
    where = f"the first at {list(index)}"
    if result is None or truth is None:
        return where
    return f"{where}: {float(result[index]):.6g}, expected {float(truth[index]):.6g}"


def _refused(what: str, got: object, wanted: object) -> Verdict:
    return Verdict(False, reason=f"{what} is {got}, expected {wanted}")


def _kind(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return f"{len(value)} values"
    return "None" if value is None else f"a {type(value).__name__}"
