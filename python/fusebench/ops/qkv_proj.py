"""qkv_proj: norm, the three attention projections, bias, RoPE and the split into heads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fusebench.ops import checks
from fusebench.ops import norm as norms
from fusebench.ops.linear import matmul_backward
from fusebench.ops.registry import Op, add_op, call


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE with half-split pairing on [B, H, T, D], computed in float32 (RoFormer, 2104.09864)."""
    first, second = x.to(norms.opmath(x)).chunk(2, -1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    return rotated.to(x.dtype)


def reference(
    x, weight, bias, num_heads, num_kv_heads, norm, norm_weight, norm_bias, eps, cos, sin
) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, _ = x.shape
    y = F.linear(norms.apply(x, norm, norm_weight, norm_bias, eps), weight, bias)
    count = num_heads + 2 * num_kv_heads
    heads = y.view(batch, length, count, weight.shape[0] // count).transpose(1, 2)
    q, k, v = heads.split((num_heads, num_kv_heads, num_kv_heads), 1)
    if cos is not None:
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    return q.contiguous(), k.contiguous(), v.contiguous()


def fake(x, weight, bias, num_heads, num_kv_heads, norm, norm_weight, norm_bias, eps, cos, sin):
    batch, length, _ = x.shape
    head_dim = weight.shape[0] // (num_heads + 2 * num_kv_heads)
    return tuple(
        x.new_empty((batch, heads, length, head_dim))
        for heads in (num_heads, num_kv_heads, num_kv_heads)
    )


def backward(grads, args, needs):
    x, weight, bias, num_heads, num_kv_heads, norm, norm_weight, norm_bias, eps, cos, sin = args
    grad_q, grad_k, grad_v = grads
    if cos is not None:  # the transpose of a rotation is the rotation back
        grad_q, grad_k = rotate(grad_q, cos, -sin), rotate(grad_k, cos, -sin)
    grad = torch.cat((grad_q, grad_k, grad_v), 1).transpose(1, 2).flatten(2)
    n = norms.apply(x, norm, norm_weight, norm_bias, eps)
    grad_n, grad_weight, grad_bias = matmul_backward(grad, n, weight, bias, needs[1])
    grad_x, grad_nw, grad_nb = norms.backward(grad_n, x, norm, norm_weight, norm_bias, eps)
    return grad_x, grad_weight, grad_bias, None, None, None, grad_nw, grad_nb, None, None, None


def check(
    x, weight, bias, num_heads, num_kv_heads, norm, norm_weight, norm_bias, eps, cos, sin
) -> None:
    checks.shape("qkv_proj", "x", x, "B", "T", "C")
    checks.floating("qkv_proj", "x", x)
    checks.shape("qkv_proj", "weight", weight, "(Hq + 2 Hkv) * D", x.shape[2])
    if num_heads < 1:
        raise checks.refuse("qkv_proj", "num_heads", f"is {num_heads}", "a number >= 1")
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise checks.refuse(
            "qkv_proj",
            "num_kv_heads",
            f"is {num_kv_heads}",
            f"a divisor of num_heads = {num_heads}",
        )
    heads = num_heads + 2 * num_kv_heads
    if weight.shape[0] % heads:
        raise checks.refuse(
            "qkv_proj",
            "weight",
            f"has {weight.shape[0]} rows",
            f"a multiple of Hq + 2 Hkv = {heads}",
        )
    checks.shape("qkv_proj", "bias", bias, weight.shape[0])
    checks.norm("qkv_proj", x, norm, norm_weight, norm_bias, eps)
    checks.like("qkv_proj", x, "x", weight=weight, bias=bias)
    if (cos is None) != (sin is None):
        raise checks.refuse("qkv_proj", "cos and sin", "were given one without the other", "both")
    if cos is None:
        return
    head_dim = weight.shape[0] // heads
    if head_dim % 2:
        raise checks.refuse("qkv_proj", "head_dim", f"is {head_dim}", "an even number for RoPE")
    for name, table in (("cos", cos), ("sin", sin)):
        checks.shape("qkv_proj", name, table, x.shape[1], head_dim // 2)
        if table.dtype != torch.float32:
            raise checks.refuse("qkv_proj", name, f"has dtype {table.dtype}", "torch.float32")
        if table.requires_grad:
            raise checks.refuse("qkv_proj", name, "requires a gradient", "a constant table")
        if table.device != x.device:
            raise checks.refuse("qkv_proj", name, f"is on {table.device}", f"{x.device} like x")


OP = add_op(
    Op(
        "qkv_proj",
        "(Tensor x, Tensor weight, Tensor? bias, int num_heads, int num_kv_heads, str? norm, "
        "Tensor? norm_weight, Tensor? norm_bias, float eps, Tensor? cos, Tensor? sin) "
        "-> (Tensor, Tensor, Tensor)",
        reference,
        fake,
        backward,
        check,
        packable=("weight",),
        constants=("cos", "sin"),
    )
)


def qkv_proj(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    norm: str | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 1e-5,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    impl: str = "reference",
    packed: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """norm(x) @ weight.T + bias, RoPE on q and k, split into heads.

    x: [B, T, C]. weight: [(Hq + 2 Hkv) * D, C]: rows of q, then k, then v. bias: one a row.
    num_heads: Hq. num_kv_heads: Hkv, a divisor of Hq (grouped-query attention); Hq where None.
    norm: None, "layernorm" or "rmsnorm" over C, with norm_weight and norm_bias [C] or None.
    cos, sin: float32 [T, D / 2], both or neither; half-split pairing, computed in float32.
    packed: the weight in the implementation's own layout (see `fusebench.prepare`).
    Returns q [B, Hq, T, D], k and v [B, Hkv, T, D], contiguous, in the dtype of x.
    Raises ValueError for shapes, dtypes or devices that do not fit.
    """
    kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    args = (x, weight, bias, num_heads, kv_heads, norm, norm_weight, norm_bias, eps, cos, sin)
    return call(OP, impl, args, (packed,))
