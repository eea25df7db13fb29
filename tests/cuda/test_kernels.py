"""The CUDA kernels in the simulator: every tile, every schedule, against float64."""

from __future__ import annotations

import pytest
import torch

from fusebench import ops
from fusebench.bench import verify
from fusebench.ops import get_op

sim = pytest.importorskip("fusebench._sim", reason="the simulator was not built")

BF16, FP16 = torch.bfloat16, torch.float16
LARGE, SMALL = 1, 1000  # multiprocessors: few make the GEMM choose its large tile, many its small


@pytest.fixture(autouse=True)
def settings():
    before = sim.settings()
    sim.configure(seed=0, timing="random", arch="sm_80")
    sim.reset_counters()
    yield
    sim.configure(**before)


def randn(*shape: int, seed: int = 0, scale: float = 1.0, mean: float = 0.0, dtype=BF16):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(shape, generator=generator) * scale + mean).to(dtype)


def run(op: str, *args):
    return getattr(torch.ops.fusebench, f"{op}_cuda")(*args)


def assert_true(op: str, args, result=None) -> None:
    """The result is within twice the error of the reference composition in the same dtype."""
    result = run(op, *args) if result is None else result
    reference = get_op(op).reference
    verdict = verify.judge(result, verify.oracle(reference, args), reference(*args))
    assert verdict.ok, verdict.reason


def linear_args(m, n, k, norm=None, parts=True, dtype=BF16, mean=0.0):
    def optional(*shape, **how):
        return randn(*shape, dtype=dtype, **how) if parts else None

    return (
        randn(m, k, mean=mean, dtype=dtype), randn(n, k, scale=k**-0.5, dtype=dtype), optional(n),
        optional(m, n, seed=1), norm, optional(k, mean=1.0, scale=0.2) if norm else None,
        optional(k, seed=2) if norm == "layernorm" else None, 1e-5,
    )  # fmt: skip


def qkv_args(batch, tokens, width, heads, kv_heads, dim, norm="rmsnorm", rope=True, dtype=BF16):
    rows = (heads + 2 * kv_heads) * dim
    angles = torch.outer(torch.arange(tokens).float(), 100.0 ** -torch.linspace(0, 1, dim // 2))
    return (
        randn(batch, tokens, width, dtype=dtype),
        randn(rows, width, scale=width**-0.5, dtype=dtype),
        randn(rows, seed=3, dtype=dtype), heads, kv_heads, norm,
        randn(width, mean=1.0, scale=0.2, dtype=dtype) if norm else None, None, 1e-6,
        angles.cos() if rope else None, angles.sin() if rope else None,
    )  # fmt: skip


def swiglu_args(m, width, ffn, norm="layernorm", parts=True, dtype=BF16):
    x, _, b_down, residual, *rest = linear_args(m, width, width, norm, parts, dtype)
    gate_up = randn(2 * ffn, width, scale=width**-0.5, dtype=dtype)
    down = randn(width, ffn, scale=ffn**-0.5, dtype=dtype)
    return x, gate_up, down, randn(2 * ffn, dtype=dtype) if parts else None, b_down, *rest, residual


def sdpa_args(batch, heads, kv_heads, tq, tk, dim, causal=True, dtype=BF16):
    return (
        randn(batch, heads, tq, dim, dtype=dtype), randn(batch, kv_heads, tk, dim, dtype=dtype),
        randn(batch, kv_heads, tk, dim, seed=1, dtype=dtype), causal, dim**-0.5,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------- GEMM
@pytest.mark.parametrize("multiprocessors", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("norm", [None, "layernorm", "rmsnorm"])
def test_linear(multiprocessors, dtype, norm):
    sim.configure(multiprocessors=multiprocessors)
    assert_true("linear", linear_args(193, 136, 328, norm, dtype=dtype))
    assert_true("linear", linear_args(1, 72, 96, norm, parts=False, dtype=dtype))


@pytest.mark.parametrize("multiprocessors", [LARGE, SMALL], ids=["large", "small"])
def test_linear_sizes_that_fit_no_vector(multiprocessors):
    sim.configure(multiprocessors=multiprocessors)
    assert_true("linear", linear_args(130, 133, 77, "layernorm"))
    assert_true("linear", linear_args(3, 1, 1))


def test_linear_operands_off_16_bytes():
    args = list(linear_args(70, 64, 64, "layernorm"))
    for i, a in enumerate(args):
        if isinstance(a, torch.Tensor):
            moved = torch.empty(a.numel() + 1, dtype=a.dtype)[1:].view(a.shape)
            args[i] = moved.copy_(a)
    assert args[0].data_ptr() % 16 == 2
    assert_true("linear", args)


def test_linear_mean_far_above_the_deviation():
    assert_true("linear", linear_args(65, 64, 256, "layernorm", mean=300.0, dtype=FP16))


@pytest.mark.parametrize("multiprocessors", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("dim", [32, 64, 80, 96, 128])
def test_qkv_proj(multiprocessors, dim):
    sim.configure(multiprocessors=multiprocessors)
    assert_true("qkv_proj", qkv_args(2, 69, 72, 4, 2, dim))


@pytest.mark.parametrize("dim", [2, 20, 34])
def test_qkv_proj_halves_that_fit_no_chunk(dim):
    assert_true("qkv_proj", qkv_args(1, 9, 40, 3, 1, dim, norm=None))
    assert_true("qkv_proj", qkv_args(1, 9, 40, 3, 1, dim, norm="layernorm", rope=False))


@pytest.mark.parametrize("multiprocessors", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("ffn", [20, 136, 192])
def test_swiglu_ffn(multiprocessors, ffn):
    sim.configure(multiprocessors=multiprocessors)
    assert_true("swiglu_ffn", swiglu_args(131, 64, ffn))
    assert_true("swiglu_ffn", swiglu_args(5, 40, ffn, None, parts=False, dtype=FP16))


# ---------------------------------------------------------------------------------------- sdpa
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("dim", [32, 64, 80, 96, 128])
def test_sdpa_over_several_blocks_of_rows_and_keys(dim, causal, dtype):
    assert_true("sdpa", sdpa_args(1, 2, 2, 129, 129, dim, causal, dtype))
    assert_true("sdpa", sdpa_args(2, 6, 2, 50, 131, dim, causal, dtype))


@pytest.mark.parametrize("dim", [1, 7, 50])
def test_sdpa_head_dim_that_fits_no_chunk(dim):
    assert_true("sdpa", sdpa_args(1, 2, 1, 40, 70, dim))
    assert_true("sdpa", sdpa_args(1, 2, 1, 1, 700, dim))


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("tq", [1, 3])
def test_sdpa_decode_splits_the_keys(tq, dim):
    sim.configure(multiprocessors=8)
    args = sdpa_args(2, 8, 2, tq, 1000, dim)
    assert_true("sdpa", args)
    assert sim.counters()["sdpa_combine"]["launches"] == 1
    assert sim.counters()["sdpa"]["blocks"] > 4  # more than one for each KV head


@pytest.mark.parametrize("tq", [1, 129], ids=["decode", "prefill"])
def test_sdpa_lse(tq):
    q, k, v, causal, scale = sdpa_args(2, 4, 2, tq, 600, 64)
    out, lse = torch.ops.fusebench.sdpa_cuda_saving(q, k, v, causal, scale)
    scores = q.double() @ k.double().repeat_interleave(2, 1).mT * scale
    visible = torch.ones(tq, 600, dtype=torch.bool).tril(600 - tq)
    expected = scores.masked_fill(~visible, float("-inf")).logsumexp(-1)
    assert lse.dtype == torch.float32
    torch.testing.assert_close(lse.double(), expected, atol=2e-5, rtol=0)
    assert torch.equal(out, run("sdpa", q, k, v, causal, scale))


def test_sdpa_takes_strided_heads():
    q, k, v, causal, scale = sdpa_args(2, 4, 2, 70, 70, 64)
    strided = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    assert torch.equal(run("sdpa", *strided, causal, scale), run("sdpa", q, k, v, causal, scale))


BACKWARD = [
    (1, 2, 2, 129, 129, 64), (2, 6, 2, 33, 70, 64), (1, 4, 1, 70, 70, 128), (1, 2, 1, 40, 90, 80),
    (1, 1, 1, 1, 200, 96), (1, 2, 2, 19, 19, 7),
]  # fmt: skip


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("shape", BACKWARD, ids=lambda s: "x".join(map(str, s)))
def test_sdpa_backward(shape, causal):
    q, k, v, causal, scale = sdpa_args(*shape, causal=causal)
    grad = randn(*q.shape, seed=5)
    out, lse = torch.ops.fusebench.sdpa_cuda_saving(q, k, v, causal, scale)
    backward = torch.ops.fusebench.sdpa_cuda_backward
    result = backward(grad, q, k, v, out, lse, causal, scale)

    def composition(q, k, v, grad):
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        with torch.enable_grad():
            o = get_op("sdpa").reference(*leaves, causal, scale)
            return torch.autograd.grad(o, leaves, grad)

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
def test_every_kernel_under_other_schedules(seed, timing):
    sim.configure(seed=seed, timing=timing, multiprocessors=[LARGE, SMALL, 4][seed - 1])
    assert_true("linear", linear_args(70, 72, 300, "layernorm"))
    assert_true("qkv_proj", qkv_args(1, 70, 264, 2, 1, 64))
    assert_true("swiglu_ffn", swiglu_args(66, 72, 136))
    assert_true("sdpa", sdpa_args(1, 2, 1, 70, 140, 64))
    assert_true("sdpa", sdpa_args(1, 2, 1, 1, 600, 64))
    test_sdpa_backward((1, 2, 1, 35, 140, 64), True)


# ------------------------------------------------------------------------------ memory traffic
@pytest.mark.parametrize("multiprocessors", [LARGE, SMALL], ids=["large", "small"])
def test_stores_fill_sectors_and_shared_memory_has_no_conflicts(multiprocessors):
    sim.configure(multiprocessors=multiprocessors)
    run("linear", *linear_args(128, 128, 128, "layernorm"))
    run("qkv_proj", *qkv_args(1, 128, 128, 4, 2, 64))
    run("swiglu_ffn", *swiglu_args(128, 128, 256))
    q, k, v, causal, scale = sdpa_args(1, 2, 1, 192, 192, 128)
    out, lse = torch.ops.fusebench.sdpa_cuda_saving(q, k, v, causal, scale)
    torch.ops.fusebench.sdpa_cuda_backward(q, q, k, v, out, lse, causal, scale)
    counters = sim.counters()
    for name in ("linear", "qkv_proj", "swiglu_ffn_gate_up", "sdpa", "sdpa_grad_q", "sdpa_grad_kv"):
        # Statistics of rows (lse) leave the warp a word per row; all else fills its sectors.
        spare = 4 * lse.numel() * 8 if name == "sdpa" else 0
        assert counters[name]["write_sectors"] * 32 <= counters[name]["write_bytes"] + spare, name
        assert counters[name]["shared_conflicts"] <= counters[name]["shared_wavefronts"] / 200, name


# --------------------------------------------------------------------------------- bad requests
def test_empty_operands():
    assert run("linear", *linear_args(0, 8, 16)).shape == (0, 8)
    assert run("sdpa", *sdpa_args(0, 2, 1, 4, 4, 64)).shape == (0, 2, 4, 64)
    assert run("swiglu_ffn", *swiglu_args(0, 16, 8)).shape == (0, 16)
    assert [t.shape[2] for t in run("qkv_proj", *qkv_args(1, 0, 16, 2, 1, 8))] == [0, 0, 0]


@pytest.mark.parametrize(
    ("op", "args", "message"),
    [
        ("linear", linear_args(4, 8, 16, dtype=torch.float32), "x: got dtype float32, accepted"),
        ("linear", (*linear_args(4, 8, 16)[:4], "batchnorm", None, None, 1e-5), "'layernorm'"),
        ("linear", (randn(4, 9), *linear_args(4, 8, 16)[1:]), r"weight: got shape \[8, 16\]"),
        ("linear", (*linear_args(4, 8, 16)[:2], randn(9), *linear_args(4, 8, 16)[3:]), "bias"),
        ("qkv_proj", (*qkv_args(1, 4, 16, 4, 2, 8)[:4], 3, *qkv_args(1, 4, 16, 4, 2, 8)[5:]), "divi"),
        ("swiglu_ffn", (randn(4, 16), randn(7, 16), *swiglu_args(4, 16, 8)[2:]), "w_gate_up"),
        ("sdpa", sdpa_args(1, 1, 1, 4, 4, 136), "head_dim 136, accepted: 1 to 128"),
        ("sdpa", sdpa_args(1, 1, 1, 5, 4, 64), "q: got 5 tokens"),
        ("sdpa", (*sdpa_args(1, 1, 1, 4, 4, 64)[:4], -1.0), "scale"),
        ("sdpa", sdpa_args(1, 3, 2, 4, 4, 64), "divisor of q's 3 heads"),
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
