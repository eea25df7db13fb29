"""FlexAttention: PyTorch's attention that is compiled from its mask and score functions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from fusebench.contestants.common import as_the_op_returns
from fusebench.ops.registry import implementation

BLOCK = 128  # positions to a side of the blocks that are skipped, masked or taken whole


def _causal(tq: int, tk: int, device: torch.device) -> BlockMask:
    """The end-aligned causal mask, from the blocks alone.

    create_block_mask would look at all tq x tk positions, and inside a compiled model in every
    call, because nothing that it returned before may be kept there.
    """
    offset = tk - tq
    rows = (torch.arange(-(-tq // BLOCK), device=device) * BLOCK + offset)[:, None]
    columns = torch.arange(-(-tk // BLOCK), device=device) * BLOCK
    whole = columns + BLOCK - 1 <= rows
    masked = (columns <= rows + BLOCK - 1) & ~whole

    def visible(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key <= query + offset if offset else key <= query

    return BlockMask.from_kv_blocks(
        *_listed(masked), *_listed(whole), BLOCK_SIZE=BLOCK, mask_mod=visible,
        seq_lengths=(tq, tk),
    )  # fmt: skip


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, columns] of bools as how many of each row are set, and which, those first."""
    order = blocks.int().argsort(dim=1, descending=True, stable=True)
    return blocks.sum(1, dtype=torch.int32)[None, None], order.int()[None, None]


def _supports(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> str | None:
    if 0 in q.shape:
        return f"q has shape {list(q.shape)}, expected no empty dimension"
    if q.shape[3] < 16:
        return f"the head_dim is {q.shape[3]}, expected at least 16"
    return None


@implementation("sdpa", "flex", device=("cpu", "cuda"), supports=_supports, opaque=False)
def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    mask = _causal(q.shape[2], k.shape[2], q.device) if causal and q.shape[2] > 1 else None
    # On a CPU it has no gradient and refuses inputs that need one: that goes through the reference.
    q, k, v = q.detach(), k.detach(), v.detach()
    out = flex_attention(
        q, k, v, block_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )  # fmt: skip
    return as_the_op_returns(out)
