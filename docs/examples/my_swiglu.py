"""An implementation of one's own: copy this file, put your kernel where the comment says so.

fusebench check swiglu_ffn --impl mine --with docs/examples/my_swiglu.py
fusebench compare reference@default swiglu_ffn=mine@default --with docs/examples/my_swiglu.py
"""

import torch
import torch.nn.functional as F

import fusebench


def supports(x, w_gate_up, *rest):
    """Why this call is not served, or None. Refuse early what your kernel cannot do."""
    hidden = w_gate_up.shape[0] // 2
    return f"F is {hidden}, expected an even number" if hidden % 2 else None


@fusebench.implementation(
    "swiglu_ffn",
    "mine",
    device="cpu",  # "cuda" for a GPU kernel, or ("cpu", "cuda")
    dtypes=[torch.float32, torch.bfloat16],
    supports=supports,
)
def swiglu_ffn(
    x, w_gate_up, w_down, b_gate_up, b_down, norm, norm_weight, norm_bias, eps, residual
):
    """The op's arguments, all of them, in the order of its schema; every default is filled in.

    x, residual: [..., C]. w_gate_up: [2 F, C], gate rows first. w_down: [C, F]. norm: None,
    "layernorm" or "rmsnorm" over C. Biases, norm_weight, norm_bias and residual may be None.
    help(fusebench.ops.swiglu_ffn) says what it computes.
    """
    n = x
    if norm == "layernorm":
        n = F.layer_norm(x, x.shape[-1:], norm_weight, norm_bias, eps)
    elif norm == "rmsnorm":
        n = F.rms_norm(x, x.shape[-1:], norm_weight, eps)
    # Your kernel goes here. This one saves a pass over gate and up by working in place.
    gate, up = F.linear(n, w_gate_up, b_gate_up).chunk(2, -1)
    hidden = F.silu(gate).mul_(up)
    y = F.linear(hidden, w_down, b_down)
    return y if residual is None else y.add_(residual)
