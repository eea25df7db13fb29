"""Contestants that can run on a CPU are right; the others say why they cannot run."""

from __future__ import annotations

import pytest
import torch

import fusebench.contestants  # noqa: F401
from fusebench import ops
from fusebench.bench import verify
from fusebench.model import GPTConfig
from fusebench.ops import registry
from fusebench.studies.compare import compare

GPU_ONLY = [
    ("sdpa", "torch_efficient"), ("sdpa", "torch_cudnn"), ("sdpa", "flash_attn"),
    ("sdpa", "xformers"), ("swiglu_ffn", "liger"), ("linear_cross_entropy", "liger"),
    ("linear_cross_entropy", "quack"),
]  # fmt: skip


def heads(dtype, tq=24, tk=24, hkv=2):
    random = torch.Generator().manual_seed(1)
    shapes = ((2, 4, tq, 32), (2, hkv, tk, 32), (2, hkv, tk, 32))
    return [torch.randn(s, generator=random).to(dtype) for s in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("sizes", [(24, 24, 2), (5, 24, 4), (1, 24, 1)], ids=["gqa", "end", "one"])
@pytest.mark.parametrize("impl", ["torch_math", "torch_flash"])
def test_sdpa_backends(impl, sizes, dtype):
    q, k, v = heads(dtype, *sizes)
    out = ops.sdpa(q, k, v, impl=impl)
    truth = ops.sdpa(q.double(), k.double(), v.double())
    verdict = verify.judge(out, truth, ops.sdpa(q, k, v))
    assert verdict.ok, verdict.reason
    assert out.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("sizes", [(17, 24, 2), (129, 300, 4)], ids=["one block", "blocks"])
def test_flex_attention(sizes):
    q, k, v = heads(torch.float32, *sizes)
    out = ops.sdpa(q, k, v, impl="flex")
    truth = ops.sdpa(q.double(), k.double(), v.double())
    verdict = verify.judge(out, truth, ops.sdpa(q, k, v))
    assert verdict.ok, verdict.reason


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["flex", "torch_math", "torch_flash"])
def test_in_a_model_the_compiler_sees_through_them(impl):
    config = GPTConfig(vocab_size=64, n_embed=64, num_heads=2, num_layers=2, max_seq_len=64)
    found = compare(
        [f"sdpa={impl}@{mode}" for mode in ("default", "default+dynamic", "eager")],
        config=config, seq=48, rounds=6,
    )  # fmt: skip
    for row in found.rows:
        assert row["verified"], row["failure"]
        assert row["graphs"] == (row["mode"] != "eager") and row["graph_breaks"] == 0


def test_flex_refuses_what_it_cannot_do():
    small = torch.zeros(1, 1, 4, 8)
    with pytest.raises(ValueError, match="head_dim is 8, expected at least 16"):
        ops.sdpa(small, small, small, impl="flex")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(("op", "impl"), GPU_ONLY)
def test_gpu_contestants_say_why_they_are_out(op, impl):
    found = registry.get(op, impl)
    reason = found.unavailable()
    assert reason and ("not installed" in reason or "needs a CUDA GPU" in reason)
    assert "cpu" not in found.devices


def test_a_backend_by_name_is_the_one_that_runs():
    q, k, v = heads(torch.float32)
    for impl, operator in (
        ("torch_math", "aten::_scaled_dot_product_attention_math"),
        ("torch_flash", "aten::_scaled_dot_product_flash_attention_for_cpu"),
    ):
        with torch.profiler.profile() as seen:
            ops.sdpa(q, k, v, impl=impl)
        names = {event.name for event in seen.events()}
        assert operator in names
