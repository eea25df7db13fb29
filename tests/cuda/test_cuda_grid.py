"""The grid of `fusebench check` in the simulator, its cases in turn under three seeds and timings.

The command itself runs the whole grid under one seed:
FUSEBENCH_SIMULATE=1 FUSEBENCH_SIMULATE_SEED=1 fusebench check --impl cuda
"""

from __future__ import annotations

import cuda_cases
import pytest
import torch

from fusebench.ops import registry
from fusebench.studies.cases import GRID

sim = pytest.importorskip("fusebench._sim", reason="the simulator was not built")
OPS = sorted(op for op, impl in registry.IMPLEMENTATIONS if impl == "cuda")
TIMINGS = ("random", "late", "early")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("op", OPS)
def test_the_grid(op: str, dtype: torch.dtype, arch: str) -> None:
    supports = registry.IMPLEMENTATIONS[op, "cuda"].supports
    before, run = sim.settings(), 0
    try:
        for case in GRID[op](dtype, "cpu"):
            args = case.make()
            if supports is not None and supports(*args):
                continue
            sim.configure(arch=arch, seed=run % 3, timing=TIMINGS[run // 3 % 3])
            try:
                cuda_cases.assert_true(op, args)
            except Exception as error:
                raise AssertionError(f"{case.name}, {sim.settings()}") from error
            run += 1
    finally:
        sim.configure(**before)
    assert run >= 9, "too few cases for every seed with every timing"
