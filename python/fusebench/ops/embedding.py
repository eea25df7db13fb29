"""embedding: token vectors plus position vectors, gathered in one pass."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fusebench.ops import checks
from fusebench.ops.registry import Op, add_op, call


def reference(
    tokens: Tensor, token_weight: Tensor, position_weight: Tensor | None, start: int
) -> Tensor:
    x = F.embedding(tokens, token_weight)
    if position_weight is None:
        return x
    return x + position_weight[start : start + tokens.shape[1]]


def fake(
    tokens: Tensor, token_weight: Tensor, position_weight: Tensor | None, start: int
) -> Tensor:
    return token_weight.new_empty((*tokens.shape, token_weight.shape[1]))


def backward(grads, args, needs):
    (grad,) = grads
    tokens, token_weight, position_weight, start = args
    grad_token = grad_position = None
    if needs[1]:
        rows = grad.reshape(-1, grad.shape[-1])
        grad_token = torch.zeros_like(token_weight).index_add(0, tokens.reshape(-1), rows)
    if position_weight is not None and needs[2]:
        end = position_weight.shape[0] - start - tokens.shape[1]
        grad_position = F.pad(grad.sum(0), (0, 0, start, end))
    return None, grad_token, grad_position, None


def check(tokens: Tensor, token_weight: Tensor, position_weight: Tensor | None, start: int) -> None:
    checks.shape("embedding", "tokens", tokens, "B", "T")
    if tokens.dtype != torch.int64:
        raise checks.refuse("embedding", "tokens", f"has dtype {tokens.dtype}", "torch.int64")
    checks.shape("embedding", "token_weight", token_weight, "V", "C")
    checks.floating("embedding", "token_weight", token_weight)
    checks.shape("embedding", "position_weight", position_weight, "P", token_weight.shape[1])
    checks.like("embedding", token_weight, "token_weight", position_weight=position_weight)
    if tokens.device != token_weight.device:
        raise checks.refuse(
            "embedding",
            "tokens",
            f"is on {tokens.device}",
            f"{token_weight.device} like the weight",
        )
    if start < 0:
        raise checks.refuse("embedding", "start", f"is {start}", "a position >= 0")
    if position_weight is not None and start + tokens.shape[1] > position_weight.shape[0]:
        raise checks.refuse(
            "embedding",
            "tokens",
            f"reaches position {start + tokens.shape[1] - 1}",
            f"positions below {position_weight.shape[0]} (rows of position_weight)",
        )
    # Reading the ids would stall a GPU, and compiled code asserts them itself.
    if torch.compiler.is_compiling() or tokens.device.type != "cpu" or tokens.numel() == 0:
        return
    if type(tokens) is not Tensor:
        return  # fake and functional tensors have no ids
    low, high = (int(v) for v in torch.aminmax(tokens))
    if low < 0 or high >= token_weight.shape[0]:
        bad = low if low < 0 else high
        raise checks.refuse(
            "embedding", "tokens", f"holds the id {bad}", f"ids in [0, {token_weight.shape[0]})"
        )


OP = add_op(
    Op(
        "embedding",
        "(Tensor tokens, Tensor token_weight, Tensor? position_weight, SymInt start) -> Tensor",
        reference,
        fake,
        backward,
        check,
        autocast=False,
    )
)


def embedding(
    tokens: Tensor,
    token_weight: Tensor,
    position_weight: Tensor | None = None,
    *,
    start: int = 0,
    impl: str = "reference",
) -> Tensor:
    """token_weight[tokens] + position_weight[start : start + T].

    tokens: int64 [B, T], ids in [0, V) (checked on the CPU). token_weight: [V, C].
    position_weight: [P, C], or None for no learned positions (RoPE models).
    start: position of the first token, for decoding. Returns [B, T, C] in the weights' dtype.
    Raises ValueError for shapes, dtypes, devices or ids that do not fit.
    """
    return call(OP, impl, (tokens, token_weight, position_weight, start))
