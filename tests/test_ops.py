"""The references against independent formulas, PyTorch's own sample inputs, and gradcheck."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db

from fusebench import ops
from fusebench.bench import verify
from fusebench.ops import registry
from fusebench.studies.cases import GRID

double = torch.float64


def attention(q, k, v, causal, scale):
    """Attention one query at a time."""
    out = torch.empty_like(q)
    groups, shift = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                last = i + shift + 1 if causal else k.shape[2]
                keys, values = k[b, h // groups, :last], v[b, h // groups, :last]
                out[b, h, i] = (keys @ q[b, h, i] * scale).softmax(0) @ values
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("tq, tk", [(5, 5), (3, 7), (1, 6)])
@pytest.mark.parametrize("heads, kv", [(2, 2), (6, 2)])
def test_sdpa_sees_the_right_keys(causal, tq, tk, heads, kv):
    q = torch.randn(2, heads, tq, 8, dtype=double)
    k, v = torch.randn(2, 2, kv, tk, 8, dtype=double)
    torch.testing.assert_close(
        ops.sdpa(q, k, v, causal=causal), attention(q, k, v, causal, 1 / math.sqrt(8))
    )


def test_rope_turns_pairs_by_their_angle():
    x = torch.randn(1, 3, 8, dtype=double)
    weight = torch.randn(3 * 8, 8, dtype=double)
    angles = torch.rand(3, 4)
    q, k, v = ops.qkv_proj(x, weight, num_heads=1, cos=angles.cos(), sin=angles.sin())
    for rotated, plain in ((q, x @ weight[:8].t()), (k, x @ weight[8:16].t())):
        turned = torch.complex(plain[..., :4], plain[..., 4:]) * torch.exp(1j * angles.double())
        torch.testing.assert_close(
            rotated[:, 0], torch.cat((turned.real, turned.imag), -1), atol=1e-6, rtol=1e-6
        )
    torch.testing.assert_close(v[:, 0], x @ weight[16:].t())


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_swiglu_ffn_is_its_formula(norm):
    x, wgu, wd = (
        torch.randn(2, 3, 8, dtype=double),
        torch.randn(12, 8, dtype=double),
        torch.randn(8, 6, dtype=double),
    )
    centred = x - x.mean(-1, keepdim=True) if norm == "layernorm" else x
    n = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    gate, up = n @ wgu[:6].t(), n @ wgu[6:].t()
    want = (gate * torch.sigmoid(gate) * up) @ wd.t() + x
    torch.testing.assert_close(ops.swiglu_ffn(x, wgu, wd, norm=norm, residual=x), want)


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_linear_cross_entropy_is_the_mean_over_what_is_not_ignored(softcap):
    x, w = torch.randn(6, 4, dtype=double), torch.randn(9, 4, dtype=double)
    targets = torch.tensor([1, -100, 8, 0, -100, 3])
    logits = x @ w.t()
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    kept = targets >= 0
    want = -logits.log_softmax(-1)[kept, targets[kept]].mean()
    torch.testing.assert_close(ops.linear_cross_entropy(x, w, targets, softcap=softcap), want)


@pytest.mark.parametrize("op", ops.OPS)
def test_the_written_backward_is_autograds(op):
    """The backward that serves other implementations, against autograd, in float64."""
    target = registry.get_op(op)
    for case in GRID[op](torch.float32, "cpu"):
        if not case.gradients:
            continue
        args = verify.to_float64(case.make())
        leaves = [
            a.requires_grad_()
            if isinstance(a, torch.Tensor) and a.is_floating_point() and n not in target.constants
            else a
            for n, a in zip(target.arguments, args)
        ]
        outputs = target.reference(*leaves)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        cotangents = tuple(torch.randn_like(o) for o in outputs)
        wanted = [
            i for i, a in enumerate(leaves) if isinstance(a, torch.Tensor) and a.requires_grad
        ]
        want = torch.autograd.grad(outputs, [leaves[i] for i in wanted], cotangents)
        needs = tuple(i in wanted for i in range(len(leaves)))
        with torch.no_grad():
            got = target.backward(cotangents, tuple(leaves), needs)
        for index, expected in zip(wanted, want):
            torch.testing.assert_close(
                got[index], expected, msg=f"{case.name}: {target.arguments[index]}"
            )


def samples(name):
    info = next(o for o in op_db if o.name == f"nn.functional.{name}" or o.name == name)
    return info.sample_inputs("cpu", torch.float32)


def servable(sample):
    """Whether a sample of F.scaled_dot_product_attention is a call that `sdpa` has a word for."""
    (q, k, v), options = (sample.input, *sample.args[:2]), sample.kwargs
    return (
        q.ndim == 4
        and k.shape == v.shape
        and (q.shape[1] == k.shape[1] or options.get("enable_gqa"))
        and options.get("attn_mask") is None
        and not options.get("dropout_p")
        and (q.shape[2] == k.shape[2] or not options.get("is_causal"))
    )


@pytest.mark.parametrize("impl", [i for i in ops.names("sdpa") if i in ("reference", "cpp")])
def test_sdpa_on_pytorchs_own_samples(impl):
    if reason := registry.get("sdpa", impl).unavailable():
        pytest.skip(reason)
    tried = 0
    for sample in filter(servable, samples("scaled_dot_product_attention")):
        q, k, v = (t.detach() for t in (sample.input, *sample.args[:2]))
        causal = bool(sample.kwargs.get("is_causal"))
        options = {"is_causal": causal, "enable_gqa": q.shape[1] != k.shape[1]}
        truth = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), **options)
        reference = F.scaled_dot_product_attention(q, k, v, **options)
        verdict = verify.judge(ops.sdpa(q, k, v, causal=causal, impl=impl), truth, reference)
        assert verdict.ok, verdict.reason
        tried += 1
    assert tried >= 2


@pytest.mark.parametrize("impl", [i for i in ops.names("linear") if i in ("reference", "cpp")])
def test_linear_on_pytorchs_own_samples(impl):
    if reason := registry.get("linear", impl).unavailable():
        pytest.skip(reason)
    tried = 0
    for sample in samples("linear"):
        tensors = [t.detach() for t in (sample.input, *sample.args)]
        if tensors[1].ndim != 2 or tensors[0].ndim < 1:
            continue
        if impl == "cpp" and tensors[0].shape[-1] == 0:
            with pytest.raises(RuntimeError, match="x has width 0"):
                ops.linear(*tensors, impl=impl)
            continue
        truth = F.linear(*(t.double() for t in tensors))
        verdict = verify.judge(ops.linear(*tensors, impl=impl), truth, F.linear(*tensors))
        assert verdict.ok, verdict.reason
        tried += 1
    assert tried >= 4
