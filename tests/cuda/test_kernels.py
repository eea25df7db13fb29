"""The CUDA kernels in the simulator: every tile, every schedule, against float64."""

from __future__ import annotations

import cuda_cases as cases
import pytest
import torch
from cuda_cases import BF16, FP16, assert_true, randn, run

from fusebench import ops
from fusebench.bench import verify

sim = pytest.importorskip("fusebench._sim", reason="the simulator was not built")

# Multiprocessors: few make the sm_80 GEMM choose its large tile, many its small one.
LARGE, SMALL = 1, 1000
TILES = {"sm_80 large": ("sm_80", LARGE), "sm_80 small": ("sm_80", SMALL), "sm_90a": ("sm_90a", 3)}


@pytest.fixture(autouse=True)
def settings():
    before = sim.settings()
    sim.configure(seed=0, timing="random", arch="sm_80")
    sim.reset_counters()
    yield
    sim.configure(**before)


@pytest.fixture(params=TILES)
def tile(request):
    arch, multiprocessors = TILES[request.param]
    sim.configure(arch=arch, multiprocessors=multiprocessors)
    return request.param


@pytest.fixture(params=["sm_80", "sm_90a"])
def arch(request):
    sim.configure(arch=request.param)
    return request.param


# ---------------------------------------------------------------------------------------- GEMM
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("norm", [None, "layernorm", "rmsnorm"])
def test_linear(tile, dtype, norm):
    assert_true("linear", cases.linear(193, 136, 328, norm, dtype=dtype))
    assert_true("linear", cases.linear(17, 72, 96, norm, parts=False, dtype=dtype))


def test_linear_sizes_that_fit_no_vector(tile):
    assert_true("linear", cases.linear(130, 133, 77, "layernorm"))
    assert_true("linear", cases.linear(20, 1, 1))


@pytest.mark.parametrize("m", [1, 7, 8, 9, 16])
@pytest.mark.parametrize("norm", [None, "layernorm", "rmsnorm"])
def test_few_rows(arch, norm, m):
    assert_true("linear", cases.linear(m, 72, 1128, norm))
    assert_true("linear", cases.linear(m, 13, 77, norm, parts=False, dtype=FP16))
    assert_true("qkv_proj", cases.qkv_proj(m, 1, 72, 2, 1, 64, norm))
    assert_true("qkv_proj", cases.qkv_proj(1, m, 40, 3, 1, 20, norm))
    assert_true("swiglu_ffn", cases.swiglu_ffn(m, 64, 52, norm))
    assert sim.counters()["linear"]["blocks"] == 8 + 4 + 4, "a block for each pair of chunks"


def test_few_rows_read_the_weight_once_in_whole_sectors():
    m, n, k = 8, 64, 512
    run("linear", *cases.linear(m, n, k, parts=False))
    c = sim.counters()["linear"]
    assert c["read_sectors"] * 32 == c["read_bytes"] == 2 * (n * k + n // 16 * m * k)


def test_linear_operands_off_16_bytes():
    args = list(cases.linear(70, 64, 64, "layernorm"))
    for i, a in enumerate(args):
        if isinstance(a, torch.Tensor):
            moved = torch.empty(a.numel() + 1, dtype=a.dtype)[1:].view(a.shape)
            args[i] = moved.copy_(a)
    assert args[0].data_ptr() % 16 == 2
    assert_true("linear", args)


def test_linear_mean_far_above_the_deviation():
    assert_true("linear", cases.linear(65, 64, 256, "layernorm", mean=300.0, dtype=FP16))


@pytest.mark.parametrize("dim", [32, 64, 80, 96, 128])
def test_qkv_proj(tile, dim):
    assert_true("qkv_proj", cases.qkv_proj(2, 69, 72, 4, 2, dim))


@pytest.mark.parametrize(("batch", "tokens"), [(70, 1), (5, 20), (2, 64), (3, 65)])
def test_qkv_proj_sequences_that_share_a_tile(tile, batch, tokens):
    assert_true("qkv_proj", cases.qkv_proj(batch, tokens, 72, 2, 1, 64))


@pytest.mark.parametrize("dim", [2, 20, 34])
def test_qkv_proj_halves_that_fit_no_chunk(dim):
    assert_true("qkv_proj", cases.qkv_proj(1, 19, 40, 3, 1, dim, norm=None))
    assert_true("qkv_proj", cases.qkv_proj(1, 19, 40, 3, 1, dim, norm="layernorm", rope=False))


@pytest.mark.parametrize("ffn", [20, 136, 192])
def test_swiglu_ffn(tile, ffn):
    assert_true("swiglu_ffn", cases.swiglu_ffn(131, 64, ffn))
    assert_true("swiglu_ffn", cases.swiglu_ffn(21, 40, ffn, None, parts=False, dtype=FP16))


# ---------------------------------------------------------------------------------------- sdpa
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("dim", [32, 64, 80, 96, 128])
def test_sdpa_over_several_blocks_of_rows_and_keys(arch, dim, causal, dtype):
    assert_true("sdpa", cases.sdpa(1, 2, 2, 129, 129, dim, causal, dtype))
    assert_true("sdpa", cases.sdpa(2, 6, 2, 50, 131, dim, causal, dtype))
    hopper = "sdpa_sm90" in sim.counters()
    assert hopper == (arch == "sm_90a" and dim in (64, 128)), "took another kernel than meant"


@pytest.mark.parametrize("dim", [1, 7, 50])
def test_sdpa_head_dim_that_fits_no_chunk(dim):
    assert_true("sdpa", cases.sdpa(1, 2, 1, 40, 70, dim))
    assert_true("sdpa", cases.sdpa(1, 2, 1, 1, 700, dim))


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("tq", [1, 3])
def test_sdpa_decode_splits_the_keys(tq, dim):
    sim.configure(multiprocessors=8)
    args = cases.sdpa(2, 8, 2, tq, 1000, dim)
    assert_true("sdpa", args)
    assert sim.counters()["sdpa_combine"]["launches"] == 1
    assert sim.counters()["sdpa"]["blocks"] > 4  # more than one for each KV head


def test_sdpa_heads_that_do_not_all_fit_the_l2():
    """12 heads of 2 MB run 8 at a time, each in two blocks of rows."""
    sim.configure(multiprocessors=1)
    assert_true("sdpa", cases.sdpa(1, 12, 12, 20, 4096, 128))
    assert sim.counters()["sdpa"]["blocks"] == 24


@pytest.mark.parametrize("tq", [1, 129], ids=["decode", "prefill"])
def test_sdpa_lse(arch, tq):
    q, k, v, causal, scale = cases.sdpa(2, 4, 2, tq, 600, 64)
    out, lse = torch.ops.fusebench.sdpa_cuda_saving(q, k, v, causal, scale)
    scores = q.double() @ k.double().repeat_interleave(2, 1).mT * scale
    visible = torch.ones(tq, 600, dtype=torch.bool).tril(600 - tq)
    expected = scores.masked_fill(~visible, float("-inf")).logsumexp(-1)
    assert lse.dtype == torch.float32
    torch.testing.assert_close(lse.double(), expected, atol=2e-5, rtol=0)
    assert torch.equal(out, run("sdpa", q, k, v, causal, scale))


def test_sdpa_takes_strided_heads(arch):
    q, k, v, causal, scale = cases.sdpa(2, 4, 2, 70, 70, 64)
    strided = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    assert torch.equal(run("sdpa", *strided, causal, scale), run("sdpa", q, k, v, causal, scale))


BACKWARD = [
    (1, 2, 2, 129, 129, 64), (2, 6, 2, 33, 70, 64), (1, 4, 1, 70, 70, 128), (1, 2, 1, 40, 90, 80),
    (1, 1, 1, 1, 200, 96), (1, 2, 2, 19, 19, 7),
]  # fmt: skip


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("shape", BACKWARD, ids=lambda s: "x".join(map(str, s)))
def test_sdpa_backward(shape, causal):
    q, k, v, causal, scale = cases.sdpa(*shape, causal=causal)
    grad = randn(*q.shape, seed=5)
    out, lse = torch.ops.fusebench.sdpa_cuda_saving(q, k, v, causal, scale)
    backward = torch.ops.fusebench.sdpa_cuda_backward
    result = backward(grad, q, k, v, out, lse, causal, scale)

    composition = cases.sdpa_gradients(causal, scale)
    args = (q, k, v, grad)
    verdict = verify.judge(result, verify.oracle(composition, args), composition(*args))
    assert verdict.ok, verdict.reason
    sim.configure(seed=7)
    again = backward(grad, q, k, v, out, lse, causal, scale)
    assert all(torch.equal(a, b) for a, b in zip(result, again)), "gradients depend on the schedule"


# ----------------------------------------------------------------------------------- embedding
@pytest.mark.parametrize("width", [96, 1000, 33])
@pytest.mark.parametrize("positions", [True, False])
def test_embedding(width, positions):
    tokens = torch.randint(50, (3, 7), generator=torch.Generator().manual_seed(0))
    weight = randn(50, width)
    assert_true("embedding", (tokens, weight, randn(20, width) if positions else None, 13))


@pytest.mark.parametrize("bad", [-1, 50])
def test_embedding_stops_at_a_token_id_out_of_range(bad):
    with pytest.raises(RuntimeError, match="token id out of range"):
        run("embedding", torch.tensor([[1, bad]]), randn(50, 32), None, 0)


# ----------------------------------------------------------------------------------- schedules
@pytest.mark.parametrize("timing", ["early", "late", "random"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_kernel_under_other_schedules(tile, seed, timing):
    sim.configure(seed=seed, timing=timing)
    assert_true("linear", cases.linear(70, 72, 300, "layernorm"))
    assert_true("qkv_proj", cases.qkv_proj(1, 70, 264, 2, 1, 64))
    assert_true("swiglu_ffn", cases.swiglu_ffn(66, 72, 136))
    assert_true("sdpa", cases.sdpa(1, 2, 1, 140, 270, 64))
    assert_true("linear", cases.linear(5, 40, 600, "layernorm"))
    assert_true("sdpa", cases.sdpa(1, 2, 1, 1, 600, 64))
    test_sdpa_backward((1, 2, 1, 35, 140, 64), True)


# ------------------------------------------------------------------------------ memory traffic
def test_stores_fill_sectors_and_shared_memory_has_no_conflicts(tile):
    run("linear", *cases.linear(128, 128, 128, "layernorm"))
    run("qkv_proj", *cases.qkv_proj(1, 128, 128, 4, 2, 64))
    run("swiglu_ffn", *cases.swiglu_ffn(128, 128, 256))
    q, k, v, causal, scale = cases.sdpa(1, 2, 1, 256, 256, 128)
    out, lse = torch.ops.fusebench.sdpa_cuda_saving(q, k, v, causal, scale)
    torch.ops.fusebench.sdpa_cuda_backward(q, q, k, v, out, lse, causal, scale)
    # A word per row leaves each warp from the statistics; all else fills its sectors.
    spare = {"sdpa": lse.numel() * 32, "sdpa_sm90": lse.numel() * 32}
    counters = sim.counters()
    for name in counters.keys() - {"row_stats", "sdpa_delta"}:
        c = counters[name]
        assert c["write_sectors"] * 32 <= c["write_bytes"] + spare.get(name, 0), name
        assert c["shared_conflicts"] <= c["shared_wavefronts"] / 200, name
    assert len(counters) >= 7


# --------------------------------------------------------------------------------- bad requests
def test_empty_operands():
    assert run("linear", *cases.linear(0, 8, 16)).shape == (0, 8)
    assert run("sdpa", *cases.sdpa(0, 2, 1, 4, 4, 64)).shape == (0, 2, 4, 64)
    assert run("swiglu_ffn", *cases.swiglu_ffn(0, 16, 8)).shape == (0, 16)
    assert [t.shape[2] for t in run("qkv_proj", *cases.qkv_proj(1, 0, 16, 2, 1, 8))] == [
        0,
        0,
        0,
    ]


@pytest.mark.parametrize(
    ("op", "args", "message"),
    [
        ("linear", cases.linear(4, 8, 16, dtype=torch.float32), "x: got dtype float32, accepted"),
        ("linear", (*cases.linear(4, 8, 16)[:4], "batchnorm", None, None, 1e-5), "'layernorm'"),
        ("linear", (randn(4, 9), *cases.linear(4, 8, 16)[1:]), r"weight: got shape \[8, 16\]"),
        ("linear", (*cases.linear(4, 8, 16)[:2], randn(9), *cases.linear(4, 8, 16)[3:]), "bias"),
        ("qkv_proj", cases.qkv_proj(1, 4, 16, 4, 3, 8), "num_kv_heads: got 3, accepted: a divisor"),
        ("swiglu_ffn", (randn(4, 16), randn(7, 16), *cases.swiglu_ffn(4, 16, 8)[2:]), "w_gate_up"),
        ("sdpa", cases.sdpa(1, 1, 1, 4, 4, 136), "head_dim 136, accepted: 1 to 128"),
        ("sdpa", cases.sdpa(1, 1, 1, 5, 4, 64), "q: got 5 tokens"),
        ("sdpa", (*cases.sdpa(1, 1, 1, 4, 4, 64)[:4], -1.0), "scale"),
        ("sdpa", cases.sdpa(1, 3, 2, 4, 4, 64), "divisor of q's 3 heads"),
        ("embedding", (torch.zeros(1, 9).long(), randn(5, 8), randn(10, 8), 2), "start: got 2"),
        ("embedding", (torch.zeros(1, 9).int(), randn(5, 8), None, 0), "tokens: got dtype int32"),
    ],
)  # fmt: skip
def test_bad_requests_are_named(op, args, message):
    with pytest.raises(RuntimeError, match=message):
        run(op, *args)


def test_public_functions_refuse_what_the_kernels_cannot_serve():
    q = randn(1, 1, 4, 64)
    reason = ops.registry.get("sdpa", "cuda").supports
    assert reason(q, q, q, True, 0.0) and reason(randn(1, 1, 4, 136), q, q, True, 1.0)
    assert reason(q, q, q, True, 0.125) is None
