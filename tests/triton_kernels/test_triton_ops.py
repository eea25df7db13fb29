"""Every op over the grid of `fusebench check`, in the interpreter, with its own backward."""

import pytest
import torch

from fusebench.ops import OPS, registry
from fusebench.studies.check import check
from fusebench.triton_kernels import embedding, linear_cross_entropy, sdpa


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "op, impl", [*((op, "triton") for op in OPS), ("swiglu_ffn", "triton_recompute")]
)
def test_check(op, impl, dtype):
    (row,) = check(op, impl, dtype=dtype).rows
    assert not row["failure"], row["failure"]
    assert row["backward"] == "own" and row["cases"] > 5 and row["refused"] == 0
    assert {row[n] for n in ("gradients", "opcheck", "fullgraph", "dynamic")} == {"pass"}


def test_the_interpreter_is_never_timed():
    for op in OPS:
        assert not registry.get(op, "triton").timed


def test_lse_is_the_natural_logarithm():
    q, k, v = (torch.randn(1, 2, 9, 32) for _ in range(3))
    _, lse = sdpa.sdpa_saving(q, k, v, False, 0.25)
    assert torch.allclose(lse, (q @ k.mT * 0.25).logsumexp(-1), atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_split_keys_give_the_same_lse(causal):
    q, k, v = torch.randn(2, 4, 3, 32), torch.randn(2, 2, 300, 32), torch.randn(2, 2, 300, 32)
    out, lse = sdpa.sdpa_saving(q, k, v, causal, 0.25)
    scores = q @ k.repeat_interleave(2, 1).mT * 0.25
    if causal:
        scores.masked_fill_(torch.ones(3, 300).tril(297) == 0, float("-inf"))
    assert torch.allclose(lse, scores.logsumexp(-1), atol=1e-5)
    assert torch.allclose(out, scores.softmax(-1) @ v.repeat_interleave(2, 1), atol=1e-5)


@pytest.mark.parametrize("scale", [-0.5, 0.0, 3.0])
def test_any_scale(scale):
    q, k, v = (torch.randn(1, 1, 40, 32) for _ in range(3))
    hidden = torch.ones(40, 40).tril() == 0  # torch's own kernel gives NaN for a scale below 0
    wanted = (q @ k.mT * scale).masked_fill(hidden, float("-inf")).softmax(-1) @ v
    assert torch.allclose(sdpa.sdpa(q, k, v, True, scale), wanted, atol=1e-5)


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """The bytes of the largest tensor that any torch call made."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.bytes = max(self.bytes, tensor.nbytes)
        return out


def test_the_logits_never_exist_whole():
    rows, width, vocabulary = 200, 4, 4096
    x, weight = torch.randn(rows, width), torch.randn(vocabulary, width)
    targets = torch.randint(vocabulary, (rows,))
    with Largest() as largest:
        loss, lse = linear_cross_entropy.linear_cross_entropy_saving(x, weight, targets, -100, None)
        linear_cross_entropy.linear_cross_entropy_backward(
            torch.ones(()), x, weight, targets, -100, None, lse
        )
    assert torch.allclose(loss, torch.nn.functional.cross_entropy(x @ weight.t(), targets))
    assert 4 * vocabulary * width <= largest.bytes <= 4 * rows * vocabulary / 10


@pytest.mark.parametrize("limit", [5.0, 30.0, 1e4])
def test_softcap_is_exact_for_small_and_large_logits(limit):
    x = torch.cat([torch.randn(40, 16) * s for s in (1e-3, 0.3, 3.0, 100.0)])
    weight, targets = torch.randn(50, 16), torch.randint(50, (160,))
    args = (x, weight, targets, -100, limit)
    loss, lse = linear_cross_entropy.linear_cross_entropy_saving(*args)
    logits = limit * torch.tanh(x.double() @ weight.double().t() / limit)
    assert torch.allclose(lse.double().sum(0), logits.logsumexp(-1), rtol=1e-6, atol=2e-6)
    wanted = torch.nn.functional.cross_entropy(logits, targets)
    assert torch.allclose(loss.double(), wanted, rtol=1e-6)


def test_ids_out_of_range_give_nan_and_read_nothing():
    """The public functions refuse them on the CPU; on a GPU, looking would stall."""
    weight = torch.randn(5, 8)
    out = embedding.embedding(torch.tensor([[4, 5, -1, 0]]), weight, None, 0)
    assert torch.equal(out[0, [0, 3]], weight[[4, 0]]) and out[0, [1, 2]].isnan().all()
    for bad in (5, -7, 1 << 40):
        args = (torch.randn(3, 8), weight, torch.tensor([1, bad, 2]), -100, None)
        assert linear_cross_entropy.linear_cross_entropy(*args).isnan()
