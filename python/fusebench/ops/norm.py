"""LayerNorm and RMSNorm as the ops' prologue: the reference composition and its backward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def opmath(x: Tensor) -> torch.dtype:
    """The dtype that PyTorch accumulates in: float32, or float64 for float64."""
    return torch.promote_types(x.dtype, torch.float32)


def apply(
    x: Tensor, norm: str | None, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """norm(x) over the last dimension; x itself where `norm` is None."""
    if norm == "layernorm":
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
    if norm == "rmsnorm":
        return F.rms_norm(x, x.shape[-1:], weight, eps)
    return x


def backward(
    grad: Tensor,
    x: Tensor,
    norm: str | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of `apply` with respect to x, weight and bias, in the dtypes of the inputs.

    Both norms are x_hat = (x - mean) * rstd with mean = 0 for RMSNorm, hence one formula.
    """
    if norm is None:
        return grad, None, None
    centred = x.to(opmath(x))
    if norm == "layernorm":
        centred = centred - centred.mean(-1, keepdim=True)
    rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    x_hat = centred * rstd
    grad = grad.to(x_hat.dtype)
    rows = tuple(range(x.ndim - 1))
    grad_weight = None if weight is None else (grad * x_hat).sum(rows).to(weight.dtype)
    grad_bias = None if bias is None else grad.sum(rows).to(bias.dtype)
    grad_hat = grad if weight is None else grad * weight
    grad_x = grad_hat - x_hat * (grad_hat * x_hat).mean(-1, keepdim=True)
    if norm == "layernorm":
        grad_x = grad_x - grad_hat.mean(-1, keepdim=True)
    return (grad_x * rstd).to(x.dtype), grad_weight, grad_bias
