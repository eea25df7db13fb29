"""The GPT: pre-norm, SwiGLU, every fusible computation a call of one op at one site."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from fusebench import ops
from fusebench.model.config import GPTConfig
from fusebench.ops import checks
from fusebench.ops import norm as norms
from fusebench.ops.qkv_proj import rotate
from fusebench.variant import SITES, Plan


class Norm(nn.Module):
    """The weights of a LayerNorm or RMSNorm; ops that fuse the norm take them as arguments."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.kind, self.eps = config.norm, config.norm_eps
        self.weight = nn.Parameter(torch.ones(config.n_embed))
        with_bias = config.bias and config.norm == "layernorm"
        self.bias = nn.Parameter(torch.zeros(config.n_embed)) if with_bias else None

    def forward(self, x: Tensor) -> Tensor:
        return norms.apply(x, self.kind, self.weight, self.bias, self.eps)

    def arguments(self) -> dict:
        """What an op needs to do this norm itself."""
        return {
            "norm": self.kind, "norm_weight": self.weight, "norm_bias": self.bias, "eps": self.eps
        }  # fmt: skip


class Projection(nn.Module):
    """A weight [out, in] and its bias, as nn.Linear keeps them.

    `packed` is the weight in an implementation's own layout once `fusebench.prepare` made one.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs).normal_(std=std))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.packed: Tensor | None = None

    def _apply(self, fn, recurse=True):
        self.packed = None  # made for the old device and dtype
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args, **options):
        self.packed = None  # made of the old weight
        super()._load_from_state_dict(*args, **options)

    def train(self, mode: bool = True):
        if mode:
            self.packed = None  # the weight is about to change
        return super().train(mode)


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and beside the residual stream."""

    def __init__(self, config: GPTConfig, plan: Plan) -> None:
        super().__init__()
        self.config, self.plan = config, plan
        width, std = config.n_embed, 0.02
        inner_std = std / (2 * max(config.num_layers, 1)) ** 0.5  # GPT-2's residual scaling
        heads = config.num_heads + 2 * config.kv_heads
        self.attention_norm = Norm(config)
        self.qkv_proj = Projection(width, heads * config.head_dim, config.bias, std)
        self.out_proj = Projection(width, width, config.bias, inner_std)
        self.ffn_norm = Norm(config)
        self.gate_up = Projection(width, 2 * config.hidden, config.bias, std)
        self.down = Projection(config.hidden, width, config.bias, inner_std)

    def forward(self, x: Tensor, cos: Tensor | None, sin: Tensor | None) -> Tensor:
        return self.feed_forward(self.attention(x, cos, sin))

    def attention(self, x: Tensor, cos: Tensor | None, sin: Tensor | None) -> Tensor:
        heads = self.attend(*self.project_heads(x, cos, sin))
        return self.project_out(heads.transpose(1, 2).flatten(2), x)

    def project_heads(
        self, x: Tensor, cos: Tensor | None, sin: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The site qkv_proj."""
        config, choice = self.config, self.plan["qkv_proj"]
        norm_outside, rope_outside = "norm" in choice.outside, "rope" in choice.outside
        q, k, v = ops.qkv_proj(
            self.attention_norm(x) if norm_outside else x,
            self.qkv_proj.weight,
            self.qkv_proj.bias,
            num_heads=config.num_heads,
            num_kv_heads=config.kv_heads,
            **({} if norm_outside else self.attention_norm.arguments()),
            cos=None if rope_outside else cos,
            sin=None if rope_outside else sin,
            impl=choice.impl,
            packed=self.qkv_proj.packed,
        )
        if rope_outside and cos is not None and sin is not None:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The site sdpa."""
        return ops.sdpa(q, k, v, causal=True, impl=self.plan["sdpa"].impl)

    def project_out(self, merged: Tensor, x: Tensor) -> Tensor:
        """The site out_proj."""
        choice = self.plan["out_proj"]
        outside = "residual" in choice.outside
        y = ops.linear(
            merged,
            self.out_proj.weight,
            self.out_proj.bias,
            None if outside else x,
            impl=choice.impl,
            packed=self.out_proj.packed,
        )
        return x + y if outside else y

    def feed_forward(self, x: Tensor) -> Tensor:
        """The site swiglu_ffn."""
        choice = self.plan["swiglu_ffn"]
        norm_outside, residual_outside = "norm" in choice.outside, "residual" in choice.outside
        y = ops.swiglu_ffn(
            self.ffn_norm(x) if norm_outside else x,
            self.gate_up.weight,
            self.down.weight,
            self.gate_up.bias,
            self.down.bias,
            **({} if norm_outside else self.ffn_norm.arguments()),
            residual=None if residual_outside else x,
            impl=choice.impl,
            packed=(self.gate_up.packed, self.down.packed),
        )
        return x + y if residual_outside else y


class GPT(nn.Module):
    """A GPT whose sites run the implementations of a plan.

    config: sizes. plan: PLAN as in `fusebench compare`, e.g. "cpp" or "sdpa=cpp,lm_head=cpp";
    models with the same config have the same parameters whatever their plan, so that
    `load_state_dict` moves weights between them.
    """

    def __init__(self, config: GPTConfig, plan: str | Plan = "reference") -> None:
        super().__init__()
        self.config = config
        self.plan = plan if isinstance(plan, Plan) else Plan.parse(plan)
        self.token_weight = nn.Parameter(
            torch.empty(config.vocab_size, config.n_embed).normal_(std=0.02)
        )
        learned = config.positions == "learned"
        self.position_weight = (
            nn.Parameter(torch.empty(config.max_seq_len, config.n_embed).normal_(std=0.02))
            if learned
            else None
        )
        self.blocks = nn.ModuleList(Block(config, self.plan) for _ in range(config.num_layers))
        self.final_norm = Norm(config)
        self.lm_head = Projection(config.n_embed, config.vocab_size, False, 0.02)
        if config.tied_head:
            self.lm_head.weight = self.token_weight
        self.cos: Tensor | None = None
        self.sin: Tensor | None = None
        if not learned:
            self._make_tables(self.token_weight.device)

    def _make_tables(self, device: torch.device) -> None:
        """RoPE tables [max_seq_len, D / 2]; float32 whatever the model's dtype (RoFormer)."""
        config = self.config
        pairs = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        angles = torch.outer(
            torch.arange(config.max_seq_len, dtype=torch.float64), config.rope_theta**-pairs
        )
        self.cos, self.sin = (t.float().to(device) for t in (angles.cos(), angles.sin()))

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        if self.cos is not None and self.cos.device != self.token_weight.device:
            self._make_tables(self.token_weight.device)
        return self

    def forward(
        self, tokens: Tensor, targets: Tensor | None = None, *, return_logits: bool = True
    ) -> dict[str, Tensor]:
        """Logits, and the loss where there are targets.

        tokens: int64 [B, T], T at most max_seq_len. targets: int64 [B, T], -100 ignored.
        return_logits: False, with targets, leaves the logits out, so that the `loss` site's
        op need not store them. Returns {"logits": [B, T, V]} and, with targets, "loss": a scalar.
        """
        if tokens.ndim != 2:
            raise checks.refuse("GPT", "tokens", f"has shape {list(tokens.shape)}", "[B, T]")
        length = tokens.shape[1]
        if length > self.config.max_seq_len:
            raise checks.refuse(
                "GPT", "tokens", f"has {length} positions", f"at most {self.config.max_seq_len}"
            )
        if targets is None and not return_logits:
            raise checks.refuse("GPT", "return_logits", "is False without targets", "True")
        x = self.embed(tokens)
        cos = None if self.cos is None else self.cos[:length]
        sin = None if self.sin is None else self.sin[:length]
        for block in self.blocks:
            x = block(x, cos, sin)
        result = {}
        if return_logits:
            result["logits"] = self.head(x)
        if targets is not None:
            result["loss"] = self.loss(x, targets)
        return result

    def embed(self, tokens: Tensor) -> Tensor:
        """The site embedding."""
        return ops.embedding(
            tokens, self.token_weight, self.position_weight, impl=self.plan["embedding"].impl
        )

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """The site loss."""
        return ops.linear_cross_entropy(
            self.final_norm(x), self.lm_head.weight, targets, impl=self.plan["loss"].impl
        )

    def head(self, x: Tensor) -> Tensor:
        """The site lm_head."""
        choice = self.plan["lm_head"]
        outside = "norm" in choice.outside
        return ops.linear(
            self.final_norm(x) if outside else x,
            self.lm_head.weight,
            **({} if outside else self.final_norm.arguments()),
            impl=choice.impl,
            packed=self.lm_head.packed,
        )


def prepare(model: GPT) -> GPT:
    """Pack the weights of a model for inference, as Inductor's freezing may; returns the model.

    Every site whose implementation keeps weights in a layout of its own gets a packed copy beside
    the weight. It serves calls that need no gradient, and is dropped by `.train()`, `.to()` and
    `load_state_dict`. Weights changed in place afterwards are not seen until `prepare` is called
    again. Raises TypeError for another model.
    """
    if not isinstance(model, GPT):
        raise TypeError(f"prepare: model is a {type(model).__name__}, expected a fusebench.GPT")
    model.eval()
    for block in cast("list[Block]", model.blocks):
        _pack(model.plan, "qkv_proj", "weight", block.qkv_proj)
        _pack(model.plan, "out_proj", "weight", block.out_proj)
        _pack(model.plan, "swiglu_ffn", "w_gate_up", block.gate_up)
        _pack(model.plan, "swiglu_ffn", "w_down", block.down)
    _pack(model.plan, "lm_head", "weight", model.lm_head)
    return model


def _pack(plan: Plan, site: str, name: str, projection: Projection) -> None:
    pack = ops.get(SITES[site], plan[site].impl).pack
    projection.packed = None if pack is None else pack(name, projection.weight)
