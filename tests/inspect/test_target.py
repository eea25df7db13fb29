"""What Inductor generates for a GPU that is not here, and what is refused."""

from __future__ import annotations

import pytest

from fusebench.bench.workload import Workload
from fusebench.cli import main
from fusebench.inspect import no_gpu
from fusebench.inspect.target import inspected_for
from fusebench.model import GPTConfig
from fusebench.studies import inspect as study
from fusebench.variant import Variant

CONFIG = GPTConfig(
    vocab_size=64, n_embed=64, num_heads=2, num_layers=1, num_kv_heads=1, max_seq_len=64,
    positions="rope", norm="rmsnorm", bias=False,
)  # fmt: skip
WORKLOAD = Workload("small", 1, 32, "bfloat16", "cpu", custom=CONFIG)
supported = pytest.mark.skipif(no_gpu.unsupported() is not None, reason=str(no_gpu.unsupported()))


@supported
@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90", "sm_80", "sm_100"])
def test_kernels_of_the_target(target):
    looked = inspected_for(Variant.parse("reference@default"), WORKLOAD, target)
    kernels = looked.observation.kernels
    generated = {k.name for k in kernels if k.kind == "generated"}
    assert generated and all(name.startswith("triton_") for name in generated)
    by_name = {row["kernel"]: row for row in looked.rows}
    for name in generated:
        row = by_name[name]
        assert 8 <= row["registers"] <= 255 and row["stack"] == 0 and row["shared"] is not None
    attention = [k for k in kernels if k.sites == ("sdpa",) and k.kind == "extern"]
    assert [k.name for k in attention] == [
        "torch.ops.aten._scaled_dot_product_flash_attention.default"
    ]
    head = next(k for k in kernels if k.sites == ("lm_head",) and k.kind == "extern")
    assert head.bytes_out == 2 * 32 * CONFIG.vocab_size
    assert "empty_strided_cuda" in looked.observation.graphs[0].code


def test_refusals():
    with pytest.raises(ValueError, match=r"unknown target 'sm_91'; did you mean 'sm_90'"):
        no_gpu.target("sm_91")
    with pytest.raises(ValueError, match="the mode is max-autotune, expected default"):
        inspected_for(Variant.parse("reference@max-autotune"), WORKLOAD, "sm_90")


def test_an_unknown_torch_is_refused_with_the_versions_that_work(monkeypatch):
    monkeypatch.setattr(no_gpu.torch, "__version__", "2.99.0+cu200")
    assert "only known for torch 2.14; this is torch 2.99" in no_gpu.unsupported()
    with pytest.raises(RuntimeError, match="--target sm_90: "):
        no_gpu.generate("reference", {}, 1, 32, "bfloat16", "sm_90")


def test_indexing_by_operators():
    import torch

    x = torch.arange(60).reshape(3, 4, 5)
    for index in (
        1, slice(1, 3), (slice(None), 2), (..., 1), (None, 2), (slice(0, 3, 2), ..., slice(1, 4)),
        (1, None, slice(None, 2)),
    ):  # fmt: skip
        assert torch.equal(no_gpu._getitem(x, index), x[index])
    with pytest.raises(NotImplementedError):
        no_gpu._getitem(x, x > 3)


def test_it_says_what_it_is_doing(monkeypatch):
    monkeypatch.setattr(no_gpu, "TESTED", ())
    stages = []
    with pytest.raises(RuntimeError, match="--target sm_90"):
        study.inspect(
            "reference@default", target="sm_90", progress=lambda stage, done: stages.append(stage)
        )
    assert stages == ["compiling reference@default for sm_90"]


def test_another_torch_gets_one_line_that_names_the_versions(monkeypatch, capsys):
    monkeypatch.setattr(no_gpu, "TESTED", ((9, 8), (9, 9)))
    with pytest.raises(SystemExit) as end:
        main(["inspect", "reference@default", "--target", "sm_90", "--quiet"])
    out, err = capsys.readouterr()
    assert end.value.code == 2 and out == "" and err.count("\n") == 1
    assert "only known for torch 9.8, 9.9; this is torch" in err


@pytest.mark.parametrize(("size", "there"), [
    ("forward", True), ("short plain", True), ("short layernorm", True), ("d64 causal", True),
    ("-", True), ("short rmsnorm", False), ("decode layernorm", False), ("long plain", False),
    ("d128 causal", False), ("d64 full", False), ("d64 decode", False), ("backward", False),
    ("long training", False), ("gathered layernorm", False),
])  # fmt: skip
def test_handwritten_kernels_that_the_model_may_run(size, there):
    pytest.importorskip("triton")
    assert study.runs(size, Workload("seed", 1, 128)) == there


def test_handwritten_kernels_of_a_decode_step():
    pytest.importorskip("triton")
    assert study.runs("decode layernorm", Workload("seed", 1, 1))
    assert not study.runs("short layernorm", Workload("seed", 1, 1))
