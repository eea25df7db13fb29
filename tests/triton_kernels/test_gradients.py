"""The backwards beyond the grid: each optional part by itself, other head sizes, many chunks."""

import pytest
import torch
from torch import Tensor

from fusebench.bench.verify import judge, to_float64
from fusebench.ops import OPS, registry
from fusebench.triton_kernels import embedding

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LAYERNORM, RMSNORM = ("layernorm", "weight", "bias"), ("rmsnorm", "weight", None)
BARE = ("layernorm", None, None)


def gradients(function, args, output_gradients, leaves):
    args = [
        a.detach().clone().requires_grad_() if i in leaves else a for i, a in enumerate(args)
    ]  # fmt: skip
    outputs = function(*args)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return torch.autograd.grad(outputs, [args[i] for i in leaves], output_gradients)


def check(op, args, impl="triton"):
    """Our gradients of every floating-point argument against the oracle's, by the accuracy rule."""
    leaves = [
        i for i, (name, a) in enumerate(zip(OPS[op].arguments, args))
        if isinstance(a, Tensor) and a.is_floating_point() and name not in ("cos", "sin")
    ]  # fmt: skip
    outputs = OPS[op].reference(*args)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    given = [torch.randn(o.shape).to(o.dtype) for o in outputs]
    ours = gradients(registry.get(op, impl).autograd.apply, args, given, leaves)
    theirs = gradients(OPS[op].reference, args, given, leaves)
    truth = gradients(OPS[op].reference, to_float64(tuple(args)), to_float64(given), leaves)
    verdict = judge(ours, truth, theirs)
    assert verdict.ok, f"{verdict.reason} (error {verdict.error:.2e}, budget {verdict.budget:.2e})"


def tensors(dtype):
    return lambda *shape, scale=1.0: (torch.randn(*shape) * scale).to(dtype)


def norm_args(norm, width, new):
    if norm is None:
        return None, None, None, 1e-5
    kind, weight, bias = norm
    return kind, weight and 1 + new(width), bias and new(width), 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", [None, LAYERNORM, RMSNORM, BARE])
def test_linear(norm, dtype):
    new = tensors(dtype)
    x, weight = new(2, 5, 40), new(56, 40, scale=0.2)
    residual, bias = (new(2, 5, 56), new(56)) if norm != RMSNORM else (None, None)
    check("linear", (x, weight, bias, residual, *norm_args(norm, 40, new)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", [None, LAYERNORM, RMSNORM])
@pytest.mark.parametrize("head_dim", [32, 64, 80, 128])
def test_qkv_proj(head_dim, norm, dtype):
    new = tensors(dtype)
    heads, kv, t = 2, 1, 5
    n = (heads + 2 * kv) * head_dim
    angles = torch.randn(t, head_dim // 2)
    rope = (angles.cos(), angles.sin()) if norm else (None, None)
    bias = new(n) if norm == LAYERNORM else None
    x, weight = new(2, t, 40), new(n, 40, scale=0.2)
    check("qkv_proj", (x, weight, bias, heads, kv, *norm_args(norm, 40, new), *rope))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", [None, LAYERNORM, RMSNORM])
def test_swiglu_ffn(norm, dtype):
    new = tensors(dtype)
    x, gate_up, down = new(2, 5, 40), new(2 * 72, 40, scale=0.2), new(40, 72, scale=0.2)
    biases = (new(144), new(40)) if norm == LAYERNORM else (None, None)
    residual = new(2, 5, 40) if norm else None
    check("swiglu_ffn", (x, gate_up, down, *biases, *norm_args(norm, 40, new), residual))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "heads, kv, tq, tk, head_dim",
    [(2, 2, 40, 40, 80), (4, 1, 33, 65, 32), (2, 1, 1, 70, 128), (1, 1, 2, 3, 64)],
)
def test_sdpa(heads, kv, tq, tk, head_dim, causal, dtype):
    new = tensors(dtype)
    q, k, v = new(1, heads, tq, head_dim), new(1, kv, tk, head_dim), new(1, kv, tk, head_dim)
    check("sdpa", (q, k, v, causal, head_dim**-0.5))


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("head_dim", [160, 256])
def test_sdpa_of_wide_heads(head_dim, dtype):
    new = tensors(dtype)
    q, k, v = new(1, 2, 5, head_dim), new(1, 1, 9, head_dim), new(1, 1, 9, head_dim)
    check("sdpa", (q, k, v, True, head_dim**-0.5))


@pytest.mark.parametrize("dtype, most", [(torch.float32, 128), (torch.bfloat16, 256)])
def test_wider_heads_are_refused(dtype, most):
    q = torch.zeros(1, 1, 2, most + 1, dtype=dtype)
    with pytest.raises(
        ValueError, match=rf"sdpa \(triton\): q has head_dim {most + 1} in .*128 in"
    ):
        registry.call(OPS["sdpa"], "triton", (q, q, q, True, 1.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_linear_cross_entropy_in_many_chunks(softcap, dtype):
    new = tensors(dtype)
    x, weight = new(9, 24), new(1100, 24)
    targets = torch.randint(1100, (9,))
    targets[4] = -100
    check("linear_cross_entropy", (x, weight, targets, -100, softcap))


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding_of_one_token_many_times(dtype):
    new = tensors(dtype)
    tokens = torch.full((2, 50), 3)
    tokens[0, 7], tokens[1, 49] = 0, 5
    check("embedding", (tokens, new(6, 40), new(60, 40), 4))


def test_embedding_backward_is_deterministic():
    tokens, weight = torch.randint(4, (3, 40)), torch.randn(4, 16)
    dy = torch.randn(3, 40, 16)
    first = embedding.embedding_backward(dy, tokens, weight, None, 0)[0]
    assert torch.equal(first, embedding.embedding_backward(dy, tokens, weight, None, 0)[0])


@pytest.mark.parametrize("norm", [None, LAYERNORM, RMSNORM])
def test_swiglu_ffn_recomputes_what_it_did_not_save(norm):
    """The same gradients, bit for bit, from fewer bytes: gate and up are not among them."""
    new, (rows, width, f) = tensors(torch.bfloat16), (6, 40, 72)
    x, gate_up, down = new(rows, width), new(2 * f, width, scale=0.2), new(width, f, scale=0.2)
    biases = (new(2 * f), new(width)) if norm == LAYERNORM else (None, None)
    args = (x, gate_up, down, *biases, *norm_args(norm, width, new), x)
    check("swiglu_ffn", args, "triton_recompute")

    def step(impl):
        """Output, gradients, and the bytes that wait for the backward besides the arguments."""
        leaves = [a.detach().clone() if isinstance(a, Tensor) else a for a in args]
        leaves = [a.requires_grad_() if isinstance(a, Tensor) else a for a in leaves]
        given = {a.data_ptr() for a in leaves if isinstance(a, Tensor)}
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            registry.call(OPS["swiglu_ffn"], impl, leaves)
        extra = sum(t.nbytes for t in saved if t.data_ptr() not in given)
        y = registry.call(OPS["swiglu_ffn"], impl, leaves)
        wanted = [a for a in leaves if isinstance(a, Tensor)]
        return y, torch.autograd.grad(y, wanted, torch.ones_like(y)), extra

    y, gradients_kept, kept = step("triton")
    again, gradients_recomputed, recomputed = step("triton_recompute")
    assert torch.equal(y, again)
    for mine, other in zip(gradients_recomputed, gradients_kept):
        assert torch.equal(mine, other)
    statistics = 4 * rows * {None: 0, "rmsnorm": 1, "layernorm": 2}[norm and norm[0]]
    assert recomputed == statistics and kept == statistics + 2 * rows * 2 * f


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch, t", [(1, 1), (1, 129), (0, 5), (2, 0)])
def test_extreme_lengths(batch, t, dtype):
    """One token, one more than a tile, none at all: every op's gradients."""
    new = tensors(dtype)
    width, f, heads, kv, dim, vocabulary = 24, 40, 2, 1, 32, 67
    x, residual = new(batch, t, width), new(batch, t, width)
    norm = norm_args(LAYERNORM, width, new)
    angles = torch.randn(t, dim // 2)
    rope, qkv = (angles.cos(), angles.sin()), new((heads + 2 * kv) * dim, width, scale=0.2)
    check("qkv_proj", (x, qkv, new(128), heads, kv, *norm, *rope))
    check("linear", (x, new(width, width, scale=0.2), new(width), residual, *norm))
    ffn = new(2 * f, width, scale=0.2), new(width, f, scale=0.2), new(2 * f), new(width)
    for impl in ("triton", "triton_recompute"):
        check("swiglu_ffn", (x, *ffn, *norm, residual), impl)
    q, k = new(batch, heads, t, dim), new(batch, kv, t, dim)
    check("sdpa", (q, k, k, True, dim**-0.5))
    ids = torch.randint(vocabulary, (batch, t))
    check("embedding", (ids, new(vocabulary, width), new(200, width), 3))
    check("linear_cross_entropy", (x, new(vocabulary, width, scale=0.2), ids, -100, None))
