"""The sites of a GPT one by one: their call, their inputs, and the work that they cannot avoid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from fusebench.bench.workload import Workload
from fusebench.model import GPT, GPTConfig
from fusebench.model.gpt import Block
from fusebench.variant import SITES

# The method of the model that is the site; what the model does at the site and nothing else.
METHODS: Mapping[str, Callable[[GPT], Callable[..., Any]]] = {
    "embedding": lambda gpt: gpt.embed,
    "qkv_proj": lambda gpt: _block(gpt).project_heads,
    "sdpa": lambda gpt: _block(gpt).attend,
    "out_proj": lambda gpt: _block(gpt).project_out,
    "swiglu_ffn": lambda gpt: _block(gpt).feed_forward,
    "lm_head": lambda gpt: gpt.head,
    "loss": lambda gpt: gpt.loss,
}
# The sites of a forward pass that returns logits; `loss` stands in for `lm_head` when training.
FORWARD = tuple(site for site in SITES if site != "loss")


def _block(gpt: GPT) -> Block:
    return cast(Block, gpt.blocks[0])


def one_layer(workload: Workload) -> Workload:
    """The same workload on a model of one layer, which has every site once."""
    return replace(workload, custom=replace(workload.config, num_layers=1))


def calls(site: str, config: GPTConfig) -> int:
    """How often a forward pass comes by the site."""
    return 1 if site in ("embedding", "lm_head", "loss") else config.num_layers


def inputs(site: str, workload: Workload, index: int, *, scale: float = 1.0, mean: float = 0.0):
    """Activations for one call of the site; the same index gives the same ones.

    scale, mean: of the normal distribution they come from.
    """
    config, batch, seq = workload.config, workload.batch, workload.seq
    random = torch.Generator(workload.device).manual_seed(index)

    def normal(*shape: int) -> Tensor:
        x = torch.randn(*shape, generator=random, device=workload.device)
        return (x * scale + mean).to(workload.torch_dtype)

    def ids(high: int) -> Tensor:
        return torch.randint(high, (batch, seq), generator=random, device=workload.device)

    hidden = (batch, seq, config.n_embed)
    if site == "embedding":
        return (ids(config.vocab_size),)
    if site == "qkv_proj":
        gpt = workload.reference
        if gpt.cos is None or gpt.sin is None:
            return (normal(*hidden), None, None)
        return (normal(*hidden), gpt.cos[:seq], gpt.sin[:seq])
    if site == "sdpa":
        seen, kv_heads, head_dim = seq + workload.earlier, config.kv_heads, config.head_dim
        q = normal(batch, config.num_heads, seq, head_dim)
        return (q, *(normal(batch, kv_heads, seen, head_dim) for _ in range(2)))
    if site == "out_proj":
        return normal(*hidden), normal(*hidden)
    if site == "loss":
        return normal(*hidden), ids(config.vocab_size)
    return (normal(*hidden),)


def flops(site: str, workload: Workload) -> float:
    """Multiplications and additions of the site's matrix products in one call.

    Causal attention counts the keys that a query sees, nothing more.
    """
    config, rows = workload.config, workload.tokens_per_call
    width, head_dim = config.n_embed, config.head_dim
    if site == "embedding":
        return 0.0
    if site == "sdpa":
        seen = workload.seq * ((workload.seq + 1) / 2 + workload.earlier)  # (query, key) pairs
        return 4.0 * workload.batch * config.num_heads * seen * head_dim
    outputs = {
        "qkv_proj": (config.num_heads + 2 * config.kv_heads) * head_dim,
        "out_proj": width,
        "swiglu_ffn": 3 * config.hidden,
        "lm_head": config.vocab_size,
        "loss": config.vocab_size,
    }[site]
    return 2.0 * rows * width * outputs


def bytes_moved(site: str, workload: Workload) -> float:
    """Bytes that one call must read and write: inputs, weights and outputs once each."""
    config, rows = workload.config, workload.tokens_per_call
    width, item = config.n_embed, workload.torch_dtype.itemsize
    heads = (config.num_heads + 2 * config.kv_heads) * config.head_dim
    seen = workload.batch * (workload.seq + workload.earlier)  # keys of a KV head
    elements = {
        "embedding": 2 * rows * width
        + (width * workload.seq if config.positions == "learned" else 0),
        "qkv_proj": rows * (width + heads) + heads * width,
        "sdpa": 2 * rows * width + 2 * seen * config.kv_heads * config.head_dim,
        "out_proj": rows * 3 * width + width * width,
        "swiglu_ffn": rows * 2 * width + 3 * width * config.hidden,
        "lm_head": rows * (width + config.vocab_size) + config.vocab_size * width,
        "loss": rows * width + config.vocab_size * width,
    }[site]
    return float(elements * item)


def model_flops(workload: Workload) -> float:
    """The sites' floating-point operations in one forward pass."""
    return sum(flops(site, workload) * calls(site, workload.config) for site in FORWARD)
