"""What contestants share: is the package there, and attention layouts."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor


def needs(package: str, distribution: str | None = None) -> Callable[[], str | None]:
    """Why a contestant that needs a package and a CUDA GPU cannot run here, or None."""

    def unavailable() -> str | None:
        if importlib.util.find_spec(package) is None:
            return f"{distribution or package} is not installed"
        if not torch.cuda.is_available():
            return f"{distribution or package} needs a CUDA GPU"
        return None

    return unavailable


def tokens_first(x: Tensor) -> Tensor:
    """[B, H, T, D] as the [B, T, H, D] that flash kernels take, and back; a view."""
    return x.transpose(1, 2)


def as_the_op_returns(out: Tensor) -> Tensor:
    """[B, H, T, D] whose memory is [B, T, H, D]: a copy where the kernel chose otherwise."""
    return out.transpose(1, 2).contiguous().transpose(1, 2)
