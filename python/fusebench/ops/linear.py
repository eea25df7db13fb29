"""linear: norm(x) @ weight.T + bias + residual, the output projection and the head."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fusebench.ops import checks
from fusebench.ops import norm as norms
from fusebench.ops.registry import Op, add_op, call


def reference(x, weight, bias, residual, norm, norm_weight, norm_bias, eps) -> Tensor:
    y = F.linear(norms.apply(x, norm, norm_weight, norm_bias, eps), weight, bias)
    return y if residual is None else y + residual


def fake(x, weight, bias, residual, norm, norm_weight, norm_bias, eps) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def matmul_backward(
    grad: Tensor, n: Tensor, weight: Tensor, bias: Tensor | None, need_weight: bool
):
    """Gradients of n @ weight.T + bias with respect to n, weight and bias."""
    rows = grad.reshape(-1, grad.shape[-1])
    grad_weight = rows.t() @ n.reshape(-1, n.shape[-1]) if need_weight else None
    grad_bias = None if bias is None else rows.sum(0)
    return grad @ weight, grad_weight, grad_bias


def backward(grads, args, needs):
    (grad,) = grads
    x, weight, bias, residual, norm, norm_weight, norm_bias, eps = args
    n = norms.apply(x, norm, norm_weight, norm_bias, eps)
    grad_n, grad_weight, grad_bias = matmul_backward(grad, n, weight, bias, needs[1])
    grad_x, grad_nw, grad_nb = norms.backward(grad_n, x, norm, norm_weight, norm_bias, eps)
    grad_residual = None if residual is None else grad
    return grad_x, grad_weight, grad_bias, grad_residual, None, grad_nw, grad_nb, None


def check(x, weight, bias, residual, norm, norm_weight, norm_bias, eps) -> None:
    checks.floating("linear", "x", x)
    if x.ndim < 1:
        raise checks.refuse("linear", "x", f"has shape {list(x.shape)}", "[..., C]")
    checks.shape("linear", "weight", weight, "N", x.shape[-1])
    checks.shape("linear", "bias", bias, weight.shape[0])
    checks.shape("linear", "residual", residual, *x.shape[:-1], weight.shape[0])
    checks.norm("linear", x, norm, norm_weight, norm_bias, eps)
    checks.like("linear", x, "x", weight=weight, bias=bias, residual=residual)


OP = add_op(
    Op(
        "linear",
        "(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, str? norm, Tensor? norm_weight, "
        "Tensor? norm_bias, float eps) -> Tensor",
        reference,
        fake,
        backward,
        check,
        packable=("weight",),
    )
)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    norm: str | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 1e-5,
    impl: str = "reference",
    packed: Tensor | None = None,
) -> Tensor:
    """norm(x) @ weight.T + bias + residual.

    x: [..., C]. weight: [N, C]. bias: [N]. residual: [..., N].
    norm: None, "layernorm" or "rmsnorm" over C, with norm_weight and norm_bias [C] or None.
    packed: the weight in the implementation's own layout (see `fusebench.prepare`); weight must
    still be given. Returns [..., N], contiguous, in the dtype of x.
    Raises ValueError for shapes, dtypes or devices that do not fit.
    """
    args = (x, weight, bias, residual, norm, norm_weight, norm_bias, eps)
    return call(OP, impl, args, (packed,))
