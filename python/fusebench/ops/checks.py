"""One way to refuse bad input: name the argument, what it got, and what is accepted."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

import torch


def refuse(where: str, argument: str, got: object, accepted: str) -> ValueError:
    """The error for a bad argument, e.g. `sdpa: v has shape [1, 2], expected [B, Hkv, Tk, D]`."""
    return ValueError(f"{where}: {argument} {got}, expected {accepted}")


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> ValueError:
    """The error for a name that is not known, with the nearest one that is."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    prefix = f"{where}: " if where else ""
    return ValueError(f"{prefix}unknown {kind} {name!r}{hint} (known: {', '.join(names)})")


def shape(op: str, name: str, tensor: torch.Tensor | None, *dims: object) -> None:
    """Check a tensor's shape; a dim is a size, or a letter where any size will do."""
    if tensor is None:
        return
    if not isinstance(tensor, torch.Tensor):
        raise refuse(op, name, f"is a {type(tensor).__name__}", "a tensor")
    given = tensor.shape
    if len(given) != len(dims) or any(
        not isinstance(want, str) and have != want for have, want in zip(given, dims)
    ):
        raise refuse(op, name, f"has shape {list(given)}", f"[{', '.join(map(str, dims))}]")


def like(op: str, x: torch.Tensor, name: str, **others: torch.Tensor | None) -> None:
    """Check that every other tensor has the dtype and the device of `x` (called `name`)."""
    for other_name, other in others.items():
        if other is None:
            continue
        if other.dtype != x.dtype:
            raise refuse(op, other_name, f"has dtype {other.dtype}", f"{x.dtype} like {name}")
        if other.device != x.device:
            raise refuse(op, other_name, f"is on {other.device}", f"{x.device} like {name}")


def floating(op: str, name: str, tensor: torch.Tensor) -> None:
    """Check that a tensor holds floating-point numbers."""
    if not isinstance(tensor, torch.Tensor) or not tensor.dtype.is_floating_point:
        got = getattr(tensor, "dtype", type(tensor).__name__)
        raise refuse(op, name, f"has dtype {got}", "a floating-point tensor")


NORMS = (None, "layernorm", "rmsnorm")


def norm(
    op: str,
    x: torch.Tensor,
    norm: str | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> None:
    """Check the arguments of a fused norm over the last dimension of `x`."""
    if not 0 <= eps < math.inf:
        raise refuse(op, "eps", f"is {eps}", "a finite number of at least 0")
    if norm not in NORMS:
        raise refuse(op, "norm", f"is {norm!r}", "None, 'layernorm' or 'rmsnorm'")
    if norm is None and weight is not None:
        raise refuse(op, "norm_weight", "was given without a norm", "norm='layernorm' or 'rmsnorm'")
    if norm != "layernorm" and bias is not None:
        raise refuse(op, "norm_bias", f"was given with norm={norm!r}", "norm='layernorm'")
    shape(op, "norm_weight", weight, x.shape[-1])
    shape(op, "norm_bias", bias, x.shape[-1])
    like(op, x, "x", norm_weight=weight, norm_bias=bias)
