"""`fusebench machine` and `op`: ceilings, shares of them, and the sites of an op."""

import pytest
import torch

import fusebench.contestants  # noqa: F401
from fusebench.bench import machine, shapes, sites
from fusebench.bench.measure import Measurement
from fusebench.bench.workload import Workload
from fusebench.model import GPTConfig
from fusebench.studies import machine as machine_study
from fusebench.studies import op as study

CPU = torch.device("cpu")
TINY = GPTConfig(
    vocab_size=64, n_embed=32, num_heads=4, num_kv_heads=2, num_layers=3, max_seq_len=32,
    positions="rope", norm="rmsnorm", bias=False,
)  # fmt: skip
WORKLOAD = Workload("tiny", 2, 8, device_name="cpu", custom=TINY)
has_ceilings = pytest.mark.skipif(
    machine._compiled("measure_peak") is None, reason="fusebench._C is not built"
)


def test_the_sites_of_an_op():
    assert study.sites_of("linear") == ["out_proj", "lm_head"]
    assert study.sites_of("out_proj") == ["out_proj"]
    with pytest.raises(ValueError, match="unknown op or site 'swiglu'; did you mean 'swiglu_ffn'"):
        study.sites_of("swiglu")


@pytest.mark.parametrize("site", [*sites.FORWARD, "loss"])
def test_inputs_fit_the_site_and_repeat_by_number(site):
    call = sites.METHODS[site](WORKLOAD.reference)
    with torch.no_grad():
        first, again, other = (call(*sites.inputs(site, WORKLOAD, i)) for i in (1, 1, 2))
    for a, b, c in zip(*(x if isinstance(x, tuple) else (x,) for x in (first, again, other))):
        assert torch.equal(a, b) and not torch.equal(a, c)


def test_flops_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    for site in sites.FORWARD:
        if site == "sdpa":  # counted there without the causal mask
            continue
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            sites.METHODS[site](WORKLOAD.reference)(*sites.inputs(site, WORKLOAD, 1))
        assert counter.get_total_flops() == sites.flops(site, WORKLOAD), site
    assert sites.flops("sdpa", WORKLOAD) == 4 * 2 * 4 * (8 * 9 / 2) * 8
    whole = sum(sites.flops(s, WORKLOAD) * sites.calls(s, TINY) for s in sites.FORWARD)
    assert sites.model_flops(WORKLOAD) == whole


def test_bytes_are_inputs_weights_and_outputs_once():
    heads = (4 + 2 + 2) * 8
    assert sites.bytes_moved("qkv_proj", WORKLOAD) == 4 * (16 * (32 + heads) + heads * 32)
    assert sites.bytes_moved("swiglu_ffn", WORKLOAD) == 4 * (16 * 64 + 3 * 32 * TINY.hidden)


def test_the_limit_is_the_slower_of_computing_and_moving(monkeypatch):
    m = Measurement("x", verified=True, samples=[1e-3] * 5)
    moved = sites.bytes_moved("lm_head", WORKLOAD)
    flops = sites.flops("lm_head", WORKLOAD)
    monkeypatch.setattr(machine, "peak_flops", lambda device, dtype: flops / 0.5e-3)
    monkeypatch.setattr(machine, "bandwidth", lambda device, size: moved / 0.1e-3)
    row = study.limits("lm_head", m, WORKLOAD)
    assert row["bound"] == "compute" and row["share_of_limit"] == pytest.approx(0.5)
    monkeypatch.setattr(machine, "bandwidth", lambda device, size: moved / 0.8e-3)
    row = study.limits("lm_head", m, WORKLOAD)
    assert row["bound"] == "memory" and row["share_of_limit"] == pytest.approx(0.8)
    monkeypatch.setattr(machine, "bandwidth", lambda device, size: None)
    row = study.limits("lm_head", m, WORKLOAD)
    assert row["bound"] is None and row["share_of_limit"] is None and row["gflops"] > 0


@pytest.mark.parametrize("name", ["embedding", "linear", "sdpa"])
def test_op_end_to_end(name):
    results = study.op(name, ["reference@eager"], seq=8, rounds=5)
    assert [r["site"] for r in results.rows] == study.sites_of(name)
    for row in results.rows:
        assert row["verified"], row["failure"]
        assert row["median_us"] == pytest.approx(1e3 * row["median_ms"])
        assert row["speedup_vs_eager"]["value"] == 1
        assert row["flag"] is None
    assert max(map(len, results.table().splitlines())) <= 100


def test_who_races_by_default_can_run():
    found = [str(v) for v in study.entries("swiglu_ffn", (), (), "cpu")]
    assert {f"swiglu_ffn={v}" for v in study.REFERENCES} <= set(found)
    assert not any("cuda" in v or "triton" in v for v in found)


@has_ceilings
def test_ceilings_are_above_what_torch_reaches():
    for dtype in (torch.float32, torch.bfloat16):
        peak = machine.peak_flops(CPU, dtype)
        assert machine.matmul_flops(CPU, dtype, 512) < 1.05 * peak
    small, large = machine.bandwidth(CPU, 1 << 14), machine.bandwidth(CPU, 1 << 28)
    assert 1e9 < large < 1.1 * small


def test_machine_study():
    results = machine_study.measure_machine(device="cpu", threads=1)
    assert {"torch.mm float32", "torch.mm bfloat16"} <= {r["what"] for r in results.rows}
    assert all(r["value"] > 0 for r in results.rows)
    if machine._compiled("measure_peak") is not None:
        assert "peak float32" in {r["what"] for r in results.rows}


def test_there_is_no_gpu_to_measure():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match="there is no CUDA GPU"):
        machine_study.measure_machine(device="cuda")


@pytest.mark.gpu
def test_gpu_ceilings():
    device = torch.device("cuda")
    for dtype in (torch.float32, torch.bfloat16):
        peak = machine.peak_flops(device, dtype)
        assert peak is not None
        torch.backends.cuda.matmul.allow_tf32 = False
        assert 0.1 * peak < machine.matmul_flops(device, dtype, 8192) < 1.05 * peak
    assert machine.bandwidth(device, 1 << 30) > 1e11


@pytest.mark.gpu
def test_op_on_a_gpu_is_timed_apart_from_its_launch():
    results = study.op("swiglu_ffn", ["reference@eager", "reference@default"], device="cuda",
                       dtype="bfloat16", rounds=5)  # fmt: skip
    for row in results.rows:
        assert row["verified"], row["failure"]
        assert row["host_ms"] > 0 and row["median_ms"] > 0


def test_rope_tables_stay_float32_in_the_oracle():
    found = study.op("qkv_proj", ["reference@eager"], model="smollm2-135m", seq=3, rounds=5)
    assert [row["failure"] for row in found.rows] == [None]


def test_a_shape_is_a_name_or_sizes_or_both():
    gqa = shapes.of("t2048,T=16,B=2", WORKLOAD)
    assert (gqa.batch, gqa.seq, gqa.earlier) == (2, 16, 0)
    config = gqa.config
    assert (config.n_embed, config.num_heads, config.kv_heads, config.hidden) == (576, 9, 3, 1536)
    decode = shapes.of("T=1,Tk=24", WORKLOAD)
    assert [t.shape[2] for t in sites.inputs("sdpa", decode, 0)] == [1, 24, 24]
    assert sites.flops("sdpa", decode) == 4 * 2 * 4 * 24 * 8
    assert sites.bytes_moved("sdpa", decode) == 4 * 2 * (2 * 32 + 2 * 24 * 2 * 8)
    assert shapes.label("sdpa", decode) == "B2 T1 Tk24 D8 H4 Hkv2"
    alone = shapes.of("C=128", WORKLOAD).config
    assert (alone.num_heads, alone.kv_heads, alone.hidden) == (2, 2, 384)


@pytest.mark.parametrize(
    "text, message",
    [
        ("decod", "unknown shape 'decod'; did you mean 'decode'"),
        ("W=3", "unknown size 'W'"),
        ("T=0", "T is '0', expected a whole number of at least 1"),
        ("T=8,Tk=4", "Tk is 4, expected at least T = 8"),
        ("C=100,H=3", "num_heads is 3, expected a divisor of 100"),
        (" ", "the text is empty"),
    ],
)
def test_a_shape_that_is_none_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        shapes.of(text, WORKLOAD)


def test_each_shape_is_a_race_of_its_own():
    found = study.op("sdpa", ["reference@eager"], shape=["T=4,C=64", "T=1,Tk=9,C=64"], rounds=5)
    assert [row["failure"] for row in found.rows] == [None, None]
    assert [row["shape"] for row in found.rows] == ["B1 T4 Tk4 D64 H1", "B1 T1 Tk9 D64 H1"]


def test_an_implementation_races_the_references_and_torchs_backends():
    found = [str(v) for v in study.entries("sdpa", (), ["reference", "torch_math"], "cpu")]
    assert found[: len(study.REFERENCES)] == [f"sdpa={v}" for v in study.REFERENCES]
    assert {"sdpa=torch_math@default", "sdpa=torch_flash@default"} <= set(found)
    assert len(found) == len(set(found)) and not any("cpp" in v for v in found)
    with pytest.raises(ValueError, match="unknown implementation"):
        study.entries("sdpa", (), ["torch_mat"], "cpu")
