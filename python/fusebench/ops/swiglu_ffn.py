"""swiglu_ffn: norm, gate and up projections, SiLU-mul, down projection, residual."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fusebench.ops import checks
from fusebench.ops import norm as norms
from fusebench.ops.linear import matmul_backward
from fusebench.ops.registry import Op, add_op, call


def reference(
    x, w_gate_up, w_down, b_gate_up, b_down, norm, norm_weight, norm_bias, eps, residual
) -> Tensor:
    n = norms.apply(x, norm, norm_weight, norm_bias, eps)
    gate, up = F.linear(n, w_gate_up, b_gate_up).chunk(2, -1)
    y = F.linear(F.silu(gate) * up, w_down, b_down)
    return y if residual is None else y + residual


def fake(
    x, w_gate_up, w_down, b_gate_up, b_down, norm, norm_weight, norm_bias, eps, residual
) -> Tensor:
    return x.new_empty(x.shape)


def silu_mul_backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of silu(gate) * up with respect to gate and up."""
    dtype = norms.opmath(gate)
    g, d = gate.to(dtype), grad.to(dtype)
    s = torch.sigmoid(g)
    grad_gate = d * up.to(dtype) * s * (1 + g * (1 - s))
    return grad_gate.to(gate.dtype), (d * g * s).to(up.dtype)


def backward(grads, args, needs):
    (grad,) = grads
    x, w_gate_up, w_down, b_gate_up, b_down, norm, norm_weight, norm_bias, eps, residual = args
    n = norms.apply(x, norm, norm_weight, norm_bias, eps)
    gate, up = F.linear(n, w_gate_up, b_gate_up).chunk(2, -1)
    grad_h, grad_wd, grad_bd = matmul_backward(grad, F.silu(gate) * up, w_down, b_down, needs[2])
    grad_gate_up = torch.cat(silu_mul_backward(grad_h, gate, up), -1)
    grad_n, grad_wgu, grad_bgu = matmul_backward(grad_gate_up, n, w_gate_up, b_gate_up, needs[1])
    grad_x, grad_nw, grad_nb = norms.backward(grad_n, x, norm, norm_weight, norm_bias, eps)
    grad_residual = None if residual is None else grad
    return (
        grad_x, grad_wgu, grad_wd, grad_bgu, grad_bd, None, grad_nw, grad_nb, None, grad_residual
    )  # fmt: skip


def check(
    x, w_gate_up, w_down, b_gate_up, b_down, norm, norm_weight, norm_bias, eps, residual
) -> None:
    checks.floating("swiglu_ffn", "x", x)
    if x.ndim < 1:
        raise checks.refuse("swiglu_ffn", "x", f"has shape {list(x.shape)}", "[..., C]")
    checks.shape("swiglu_ffn", "w_gate_up", w_gate_up, "2 F", x.shape[-1])
    if w_gate_up.shape[0] % 2:
        raise checks.refuse(
            "swiglu_ffn",
            "w_gate_up",
            f"has {w_gate_up.shape[0]} rows",
            "an even number: [gate; up]",
        )
    hidden = w_gate_up.shape[0] // 2
    checks.shape("swiglu_ffn", "w_down", w_down, x.shape[-1], hidden)
    checks.shape("swiglu_ffn", "b_gate_up", b_gate_up, 2 * hidden)
    checks.shape("swiglu_ffn", "b_down", b_down, x.shape[-1])
    checks.shape("swiglu_ffn", "residual", residual, *x.shape)
    checks.norm("swiglu_ffn", x, norm, norm_weight, norm_bias, eps)
    checks.like(
        "swiglu_ffn", x, "x", w_gate_up=w_gate_up, w_down=w_down, b_gate_up=b_gate_up,
        b_down=b_down, residual=residual,
    )  # fmt: skip


OP = add_op(
    Op(
        "swiglu_ffn",
        "(Tensor x, Tensor w_gate_up, Tensor w_down, Tensor? b_gate_up, Tensor? b_down, str? norm, "
        "Tensor? norm_weight, Tensor? norm_bias, float eps, Tensor? residual) -> Tensor",
        reference,
        fake,
        backward,
        check,
        packable=("w_gate_up", "w_down"),
    )
)


def swiglu_ffn(
    x: Tensor,
    w_gate_up: Tensor,
    w_down: Tensor,
    b_gate_up: Tensor | None = None,
    b_down: Tensor | None = None,
    *,
    norm: str | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 1e-5,
    residual: Tensor | None = None,
    impl: str = "reference",
    packed: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Tensor:
    """(silu(n @ Wg.T + bg) * (n @ Wu.T + bu)) @ w_down.T + b_down + residual with n = norm(x).

    x: [..., C]. w_gate_up: [2 F, C], gate rows first. w_down: [C, F]. b_gate_up: [2 F].
    b_down: [C]. residual: [..., C] (SwiGLU: GLU Variants Improve Transformer, 2002.05202).
    norm: None, "layernorm" or "rmsnorm" over C, with norm_weight and norm_bias [C] or None.
    packed: both weights in the implementation's own layout (see `fusebench.prepare`).
    Returns [..., C], contiguous, in the dtype of x.
    Raises ValueError for shapes, dtypes or devices that do not fit.
    """
    args = (
        x, w_gate_up, w_down, b_gate_up, b_down, norm, norm_weight, norm_bias, eps, residual
    )  # fmt: skip
    return call(OP, impl, args, packed)
