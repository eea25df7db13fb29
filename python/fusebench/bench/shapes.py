"""The shape of one op's call by its letters: `T=512,C=768`, or a named one like `decode`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fusebench.bench.workload import Workload
from fusebench.ops import checks

# The sizes that kernels meet: one token of a served model, a small model whole, a GEMM of a
# medium one, and a long context with grouped KV heads (SmolLM2's).
NAMED: Mapping[str, str] = {
    "decode": "B=1,T=1,Tk=1024,C=768,H=12",
    "t128": "B=1,T=128,C=256,H=4",
    "t512": "B=1,T=512,C=768,H=12",
    "t2048": "B=1,T=2048,C=576,H=9,Hkv=3,F=1536",
}
LETTERS: Mapping[str, str] = {
    "B": "sequences",
    "T": "tokens of each (queries)",
    "Tk": "positions that a query may see, T and those before it (sdpa)",
    "C": "width",
    "H": "query heads",
    "Hkv": "KV heads",
    "F": "hidden width of the feed-forward",
    "V": "vocabulary",
}


def parse(text: str) -> dict[str, int]:
    """`NAME`, `K=v,…` or `NAME,K=v,…` as sizes by letter; what comes later wins.

    Raises ValueError for a name or letter that is not known and a size that is no number.
    """
    sizes: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        letter, equals, size = (part.strip() for part in item.partition("="))
        if not equals:
            if letter not in NAMED:
                raise checks.unknown("shape", letter, NAMED)
            sizes |= parse(NAMED[letter])
            continue
        if letter not in LETTERS:
            raise checks.unknown("size", letter, LETTERS, "shape")
        if not size.isdecimal() or int(size) < 1:
            raise checks.refuse("shape", letter, f"is {size!r}", "a whole number of at least 1")
        sizes[letter] = int(size)
    if not sizes:
        raise checks.refuse("shape", "the text", "is empty", "K=v,… or " + ", ".join(NAMED))
    return sizes


def of(text: str, base: Workload) -> Workload:
    """`base` with the sizes of a shape; what the shape does not say stays as it is there.

    A shape with a C and no H has heads of 64, one without F the model's own rule for it.
    Raises ValueError as `parse` does, and for sizes that do not fit together.
    """
    sizes, config = parse(text), base.config
    width = sizes.get("C", config.n_embed)
    heads = sizes.get("H") or (max(width // 64, 1) if "C" in sizes else config.num_heads)
    alone = "C" in sizes or "H" in sizes
    kv_heads = sizes.get("Hkv", None if alone else config.num_kv_heads)
    hidden = sizes.get("F", None if "C" in sizes else config.ffn_hidden)
    seq = sizes.get("T", base.seq)
    if (seen := sizes.get("Tk", seq)) < seq:
        raise checks.refuse("shape", "Tk", f"is {seen}", f"at least T = {seq}")
    shaped = replace(
        config, n_embed=width, num_heads=heads, num_kv_heads=kv_heads, ffn_hidden=hidden,
        vocab_size=sizes.get("V", config.vocab_size), max_seq_len=max(config.max_seq_len, seen),
    )  # fmt: skip
    return replace(
        base, model=f"{base.model}:{text}", batch=sizes.get("B", base.batch), seq=seq,
        earlier=seen - seq, custom=shaped,
    )  # fmt: skip


def label(site: str, workload: Workload) -> str:
    """The sizes that matter to a site, by their letters: `B1 T512 C768 F2048`."""
    config = workload.config
    sizes = {"B": workload.batch, "T": workload.seq}
    if site == "sdpa":
        sizes |= {"Tk": workload.seq + workload.earlier, "D": config.head_dim}
    else:
        sizes["C"] = config.n_embed
    if site in ("qkv_proj", "sdpa"):
        sizes["H"] = config.num_heads
        if config.kv_heads != config.num_heads:
            sizes["Hkv"] = config.kv_heads
    if site == "swiglu_ffn":
        sizes["F"] = config.hidden
    if site in ("embedding", "lm_head", "loss"):
        sizes["V"] = config.vocab_size
    return " ".join(f"{letter}{size}" for letter, size in sizes.items())
