"""What a study runs on: a model, its weights, the shape of the input, dtype, device, tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fusebench.model import GPT, GPTConfig
from fusebench.ops import checks

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEVICES = ("cpu", "cuda")
MAX_SEED = (1 << 31) - 1
MAX_TOKENS = 1 << 31  # of a call; more than any memory holds the activations of


@dataclass(frozen=True)
class Workload:
    """A GPT and the inputs it gets; the same seed gives the same weights and inputs.

    model: a preset, or "custom" with `config`. batch, seq: B and T, at least 1. dtype: float32,
    bfloat16 or float16. device: cpu or cuda; cuda where there is a GPU if None.
    text: a file whose bytes are the tokens; seeded random tokens where None.
    earlier: positions before the T that attention by itself also sees (Tk = T + earlier).
    Raises ValueError naming the argument for what does not fit together.
    """

    model: str = "seed"
    batch: int = 1
    seq: int = 128
    dtype: str = "float32"
    device_name: str | None = None
    text: str | Path | None = None
    seed: int = 0
    custom: GPTConfig | None = field(default=None, repr=False)
    earlier: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise checks.unknown("dtype", self.dtype, DTYPES)
        if self.device_name is not None and self.device_name not in DEVICES:
            raise checks.unknown("device", self.device_name, DEVICES)
        if self.device_name == "cuda" and not torch.cuda.is_available():
            raise checks.refuse("workload", "device", "is cuda, but there is no CUDA GPU", "cpu")
        for name in ("batch", "seq"):
            if getattr(self, name) < 1:
                raise checks.refuse("workload", name, f"is {getattr(self, name)}", "at least 1")
        if not 0 <= self.seed <= MAX_SEED:
            raise checks.refuse("workload", "seed", f"is {self.seed}", f"0 to {MAX_SEED}")
        if self.batch * self.seq > MAX_TOKENS:
            raise checks.refuse(
                "workload", "batch * seq", f"is {self.batch * self.seq}", f"at most {MAX_TOKENS}"
            )
        if self.seq > self.config.max_seq_len:
            raise checks.refuse(
                "workload", "seq", f"is {self.seq}",
                f"at most {self.config.max_seq_len}, the positions of {self.model}",
            )  # fmt: skip
        if self.text is not None:
            self._bytes  # noqa: B018  (reads and checks the file now)

    @cached_property
    def config(self) -> GPTConfig:
        return self.custom or GPTConfig.preset(self.model)

    @cached_property
    def device(self) -> torch.device:
        return torch.device(self.device_name or ("cuda" if torch.cuda.is_available() else "cpu"))

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def tokens_per_call(self) -> int:
        return self.batch * self.seq

    @cached_property
    def _bytes(self) -> Tensor:
        path = Path(self.text or "")
        if not path.is_file():
            raise checks.refuse("workload", "text", f"is {str(path)!r}, not a file", "a file")
        data = torch.frombuffer(bytearray(path.read_bytes() or b"\0"), dtype=torch.uint8).long()
        if len(data) < self.seq:
            raise checks.refuse(
                "workload", "text", f"holds {len(data)} bytes", f"at least seq = {self.seq}"
            )
        if int(data.max()) >= self.config.vocab_size:
            raise checks.refuse(
                "workload", "text", f"holds the byte {int(data.max())}",
                f"bytes below {self.model}'s vocabulary of {self.config.vocab_size}",
            )  # fmt: skip
        return data

    def tokens(self, index: int) -> tuple[Tensor]:
        """Input set number `index`: int64 [B, T], random or windows of the text."""
        random = torch.Generator().manual_seed(index)
        shape = (self.batch, self.seq)
        if self.text is None:
            ids = torch.randint(self.config.vocab_size, shape, generator=random)
        else:
            starts = torch.randint(len(self._bytes) - self.seq + 1, (self.batch,), generator=random)
            ids = torch.stack([self._bytes[s : s + self.seq] for s in starts.tolist()])
        return (ids.to(self.device),)

    @cached_property
    def reference(self) -> GPT:
        """The reference GPT with the seeded weights, in the study's dtype."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = GPT(self.config)
        return model.to(device=self.device, dtype=self.torch_dtype).eval().requires_grad_(False)

    @cached_property
    def oracle(self) -> GPT:
        """The reference GPT with the very same weights, in float64."""
        model = GPT(self.config).to(device=self.device, dtype=torch.float64).eval()
        model.load_state_dict(self.reference.state_dict())
        return model.requires_grad_(False)

    @property
    def weights(self) -> Mapping[str, Tensor]:
        return self.reference.state_dict()

    def settings(self) -> dict[str, Any]:
        """What a row says about its workload."""
        return {
            "model": self.model,
            "batch": self.batch,
            "seq": self.seq,
            "dtype": self.dtype,
            "device": self.device.type,
            "threads": torch.get_num_threads(),
            "text": None if self.text is None else str(self.text),
        }


def set_threads(threads: int | None) -> None:
    """Set torch's threads, before anything is compiled: Inductor builds the number in."""
    if threads is None:
        return
    most = 4 * (os.cpu_count() or 1)
    if not 1 <= threads <= most:
        raise checks.refuse("workload", "threads", f"is {threads}", f"1 to {most} on this machine")
    torch.set_num_threads(threads)
