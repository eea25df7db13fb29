"""GPTConfig: the sizes and switches of the GPT, and the presets people compare on."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from fusebench.ops import checks

POSITIONS = ("learned", "rope")
NORMS = ("layernorm", "rmsnorm")


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a pre-norm GPT with a SwiGLU feed-forward.

    vocab_size, n_embed (C), num_heads (Hq), num_layers: as named.
    num_kv_heads: Hkv, a divisor of num_heads; num_heads where None.
    ffn_hidden: F; 8/3 * n_embed rounded up to a multiple of 64 where None.
    max_seq_len: positions there are; longer inputs are refused.
    positions: "learned" or "rope" (half-split pairing, rope_theta). norm: "layernorm" or "rmsnorm".
    bias: biases of the norms and of the four projections (the head has none).
    tied_head: the head shares the token embedding's weight. norm_eps: inside the norm's root.
    Raises ValueError for sizes that do not fit together.
    """

    vocab_size: int
    n_embed: int
    num_heads: int
    num_layers: int
    num_kv_heads: int | None = None
    ffn_hidden: int | None = None
    max_seq_len: int = 1024
    positions: str = "learned"
    rope_theta: float = 10000.0
    norm: str = "layernorm"
    bias: bool = True
    tied_head: bool = False
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("vocab_size", "n_embed", "num_heads", "max_seq_len"):
            if getattr(self, name) < 1:
                raise checks.refuse("GPTConfig", name, f"is {getattr(self, name)}", "at least 1")
        if self.num_layers < 0:
            raise checks.refuse("GPTConfig", "num_layers", f"is {self.num_layers}", "at least 0")
        if self.n_embed % self.num_heads:
            raise checks.refuse(
                "GPTConfig", "num_heads", f"is {self.num_heads}", f"a divisor of {self.n_embed}"
            )
        if self.kv_heads < 1 or self.num_heads % self.kv_heads:
            raise checks.refuse(
                "GPTConfig", "num_kv_heads", f"is {self.kv_heads}", f"a divisor of {self.num_heads}"
            )
        if not 0 <= self.norm_eps < math.inf:
            raise checks.refuse(
                "GPTConfig", "norm_eps", f"is {self.norm_eps}", "a finite number of at least 0"
            )
        if self.positions not in POSITIONS:
            raise checks.unknown("positions", self.positions, POSITIONS, "GPTConfig")
        if self.norm not in NORMS:
            raise checks.unknown("norm", self.norm, NORMS, "GPTConfig")
        if self.positions == "rope" and self.head_dim % 2:
            raise checks.refuse(
                "GPTConfig", "n_embed / num_heads", f"is {self.head_dim}", "an even number for RoPE"
            )

    @property
    def kv_heads(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def head_dim(self) -> int:
        return self.n_embed // self.num_heads

    @property
    def hidden(self) -> int:
        """Width of the feed-forward, F."""
        return self.ffn_hidden or -(-8 * self.n_embed // 3 // 64) * 64

    @classmethod
    def preset(cls, name: str, **changes: object) -> GPTConfig:
        """One of PRESETS, with fields changed by name; ValueError for a name that is not known."""
        if name not in PRESETS:
            raise checks.unknown("model", name, PRESETS)
        known = {f.name for f in fields(cls)}
        for field in changes:
            if field not in known:
                raise checks.unknown("GPTConfig field", field, known)
        return replace(PRESETS[name], **changes)  # type: ignore[arg-type]


PRESETS = {
    "seed": GPTConfig(vocab_size=1000, n_embed=256, num_heads=4, num_layers=4),
    "gpt2-small": GPTConfig(
        vocab_size=50257, n_embed=768, num_heads=12, num_layers=12, tied_head=True
    ),
    "smollm2-135m": GPTConfig(
        vocab_size=49152, n_embed=576, num_heads=9, num_layers=30, num_kv_heads=3, ffn_hidden=1536,
        max_seq_len=8192, positions="rope", rope_theta=100000.0, norm="rmsnorm", bias=False,
        tied_head=True,
    ),
}  # fmt: skip
