"""quack (Dao-AILab): its cross-entropy behind PyTorch's head, on Hopper and newer."""

from __future__ import annotations

import torch
from torch import Tensor

from fusebench.contestants.common import needs
from fusebench.ops.registry import implementation


def _unavailable() -> str | None:
    reason = needs("quack", "quack-kernels")()
    if reason is None and torch.cuda.get_device_capability() < (9, 0):
        return f"quack-kernels needs sm_90, {torch.cuda.get_device_name()} is older"
    return reason


def _supports(
    x: Tensor, weight: Tensor, targets: Tensor, ignore_index: int, softcap: float | None
) -> str | None:
    return None if softcap is None else f"softcap is {softcap}, expected None"


@implementation("linear_cross_entropy", "quack", supports=_supports, unavailable=_unavailable)
def linear_cross_entropy(
    x: Tensor, weight: Tensor, targets: Tensor, ignore_index: int, softcap: float | None
) -> Tensor:
    from quack.linear_cross_entropy import linear_cross_entropy_func

    return linear_cross_entropy_func(
        x.reshape(-1, x.shape[-1]), weight, None, targets.reshape(-1), ignore_index
    ).float()
