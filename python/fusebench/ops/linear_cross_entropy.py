"""linear_cross_entropy: the head and its loss, without a need for whole logits in memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fusebench.ops import checks
from fusebench.ops.norm import opmath
from fusebench.ops.registry import Op, add_op, call


def logits(x: Tensor, weight: Tensor, softcap: float | None) -> Tensor:
    """x @ weight.T in at least float32, squashed into (-softcap, softcap) where one is given."""
    y = F.linear(x, weight).to(opmath(x))
    return y if softcap is None else softcap * torch.tanh(y / softcap)


def reference(x, weight, targets, ignore_index, softcap) -> Tensor:
    y = logits(x, weight, softcap).flatten(0, -2)
    flat = targets.flatten()
    total = F.cross_entropy(y, flat, ignore_index=ignore_index, reduction="sum")
    # A batch without targets has loss 0 (F.cross_entropy's mean would be 0 / 0).
    return total / (flat != ignore_index).sum().clamp(min=1)


def fake(x, weight, targets, ignore_index, softcap) -> Tensor:
    return x.new_empty((), dtype=opmath(x))


def backward(grads, args, needs):
    x, weight, targets, ignore_index, softcap = args
    rows, flat = x.reshape(-1, x.shape[-1]), targets.flatten()
    kept = flat != ignore_index
    y = logits(rows, weight, softcap)
    one_hot = F.one_hot(flat.where(kept, 0), weight.shape[0]).to(y.dtype)
    count = kept.sum().clamp(min=1)
    grad = (y.softmax(-1) - one_hot) * (kept[:, None] * (grads[0] / count))
    if softcap is not None:
        grad = grad * (1 - (y / softcap).square())
    grad = grad.to(x.dtype)
    grad_weight = grad.t() @ rows if needs[1] else None
    return (grad @ weight).reshape(x.shape), grad_weight, None, None, None


def check(x, weight, targets, ignore_index, softcap) -> None:
    op = "linear_cross_entropy"
    checks.floating(op, "x", x)
    if x.ndim < 2:
        raise checks.refuse(op, "x", f"has shape {list(x.shape)}", "[..., C] with rows")
    checks.shape(op, "weight", weight, "V", x.shape[-1])
    checks.shape(op, "targets", targets, *x.shape[:-1])
    checks.like(op, x, "x", weight=weight)
    if targets.dtype != torch.int64:
        raise checks.refuse(op, "targets", f"has dtype {targets.dtype}", "torch.int64")
    if targets.device != x.device:
        raise checks.refuse(op, "targets", f"is on {targets.device}", f"{x.device} like x")
    if softcap is not None and not softcap > 0:
        raise checks.refuse(op, "softcap", f"is {softcap}", "a number > 0, or None")
    if torch.compiler.is_compiling() or targets.device.type != "cpu" or type(targets) is not Tensor:
        return
    kept = targets[targets != ignore_index]
    if kept.numel() and not 0 <= int(kept.min()) <= int(kept.max()) < weight.shape[0]:
        bad = int(kept.min()) if int(kept.min()) < 0 else int(kept.max())
        raise checks.refuse(
            op, "targets", f"holds {bad}", f"ids in [0, {weight.shape[0]}) or {ignore_index}"
        )


OP = add_op(
    Op(
        "linear_cross_entropy",
        "(Tensor x, Tensor weight, Tensor targets, int ignore_index, float? softcap) -> Tensor",
        reference,
        fake,
        backward,
        check,
    )
)


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    softcap: float | None = None,
    impl: str = "reference",
) -> Tensor:
    """Mean cross entropy of softmax(x @ weight.T) against targets (2411.09009 where it is fused).

    x: [..., C]. weight: [V, C]. targets: int64 [...], ids in [0, V) or ignore_index.
    softcap: logits become softcap * tanh(logits / softcap).
    Returns a float32 scalar (float64 for float64 inputs): the mean over the targets that are not
    ignored, and 0 where all of them are.
    Raises ValueError for shapes, dtypes, devices or targets that do not fit.
    """
    return call(OP, impl, (x, weight, targets, ignore_index, softcap))
