"""Which tile sizes a kernel uses: one table per op (NAME.json beside this file), keyed by hardware.

A row is keyed by `arch` (0: the interpreter; 80, 90, 100: compute capability * 10), `bits` (16 or
32 per element) and `size`, a class of shapes; the rest is the configuration. Nothing is searched
at run time: `fusebench tune OP` searches, on a GPU, and writes the table.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent
KEYS = ("arch", "bits", "size")
Key = tuple[str, int, int, str]  # table, arch, bits, size

_trial: dict[Key, dict[str, Any]] = {}
_consulted: set[Key] = set()


@dataclass(frozen=True)
class Config:
    """A GEMM's tile sizes and launch options."""

    block_m: int
    block_n: int
    block_k: int
    group_m: int
    warps: int
    stages: int
    tma: bool = False
    blocks_per_sm: int = 1

    def programs(self, device) -> int:
        """The grid of a persistent kernel: it fits the device once; a surplus program just ends."""
        return device.sms * self.blocks_per_sm

    def kwargs(self) -> dict[str, Any]:
        """As the kernels' launch arguments."""
        return dict(
            BLOCK_M=self.block_m, BLOCK_N=self.block_n, BLOCK_K=self.block_k, GROUP_M=self.group_m,
            TMA=self.tma, num_warps=self.warps, num_stages=self.stages,
        )  # fmt: skip


def architecture(arch: int) -> int:
    """The table rows that serve a compute capability * 10.

    8.x and 12.x have the Ampere instructions and at most 99 KiB of shared memory on most chips,
    which the rows for 80 keep within.
    """
    if arch == 0 or 90 <= arch < 120:
        return arch // 10 * 10
    if arch >= 80:
        return 80
    raise ValueError(
        f"triton kernels got a GPU of compute capability {arch / 10}; they take 8.0 and later"
    )


@functools.cache
def table(name: str) -> dict[tuple[int, int, str], dict[str, Any]]:
    """The rows of one op's table by (arch, bits, size)."""
    rows = json.loads((FOLDER / f"{name}.json").read_text())
    return {tuple(row[k] for k in KEYS): {k: v for k, v in row.items() if k not in KEYS}
            for row in rows}  # fmt: skip


def row(name: str, arch: int, dtype: torch.dtype, size: str) -> dict[str, Any]:
    """The configuration of one op for an architecture, dtype and size class."""
    key = (name, architecture(arch), dtype.itemsize * 8, size)
    _consulted.add(key)
    return _trial.get(key) or table(name)[key[1:]]


@contextmanager
def trial(key: Key, configuration: dict[str, Any]) -> Iterator[None]:
    """Inside, the row `key` reads as `configuration`: how tuning tries one."""
    _trial[key] = configuration
    try:
        yield
    finally:
        del _trial[key]


@contextmanager
def consulted() -> Iterator[set[Key]]:
    """Inside, collects the keys of the rows that launchers read."""
    _consulted.clear()
    yield _consulted


def rows_class(m: int) -> str:
    """The size class of a GEMM of m rows: a decode step, one short sequence, a training batch."""
    if m <= 16:
        return "decode"
    return "short" if m <= 512 else "long"


def gemm_config(
    name: str, device, dtype: torch.dtype, m: int, *, tma: bool, size: str | None = None
) -> Config:
    """The table's configuration, with TMA where the row asks for it and the operands allow it.

    size: another size class than that of m rows.
    """
    config = dict(row(name, device.arch, dtype, size or rows_class(m)))
    config["tma"] = config.get("tma", False) and tma
    return Config(**config)


def write_table(name: str, rows: list[dict[str, Any]], folder: Path = FOLDER) -> Path:
    """Write a table, one row a line, sorted by key, whole or not at all; returns its path."""
    rows = sorted(rows, key=lambda r: tuple(r[k] for k in KEYS))
    path = folder / f"{name}.json"
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text("[\n" + ",\n".join("  " + json.dumps(r) for r in rows) + "\n]\n")
    unfinished.replace(path)
    table.cache_clear()
    return path
