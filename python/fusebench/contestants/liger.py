"""Liger-Kernel: its SiLU-mul between PyTorch's products, and its fused linear cross-entropy."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fusebench.contestants.common import needs
from fusebench.ops import norm as norms
from fusebench.ops.registry import implementation

_missing = needs("liger_kernel", "liger-kernel")


@implementation("swiglu_ffn", "liger", unavailable=_missing)
def swiglu_ffn(
    x, w_gate_up, w_down, b_gate_up, b_down, norm, norm_weight, norm_bias, eps, residual
) -> Tensor:
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    n = norms.apply(x, norm, norm_weight, norm_bias, eps)
    gate, up = F.linear(n, w_gate_up, b_gate_up).chunk(2, -1)
    hidden = LigerSiLUMulFunction.apply(gate.contiguous(), up.contiguous())
    y = F.linear(hidden, w_down, b_down)
    return y if residual is None else y + residual


@implementation("linear_cross_entropy", "liger", unavailable=_missing)
def linear_cross_entropy(
    x: Tensor, weight: Tensor, targets: Tensor, ignore_index: int, softcap: float | None
) -> Tensor:
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    result = LigerFusedLinearCrossEntropyFunction.apply(
        x.reshape(-1, x.shape[-1]), weight, targets.reshape(-1), None, None, ignore_index, 0.0, 0.0,
        "mean", softcap,
    )  # fmt: skip
    loss = result[0] if isinstance(result, tuple) else result  # newer versions return more
    return loss.float()
