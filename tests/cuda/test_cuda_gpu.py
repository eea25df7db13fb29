"""The CUDA kernels on a GPU: sizes the simulator cannot reach, streams, graphs and errors."""

from __future__ import annotations

import cuda_cases as cases
import pytest
import torch

from fusebench.bench import verify
from fusebench.ops import get

unavailable = get("linear", "cuda").unavailable()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or unavailable is not None,
        reason=unavailable or "no CUDA GPU here",
    ),
]


CASES = [
    ("linear", (1024, 1024, 1024, "layernorm")),
    ("linear", (4097, 2056, 776, "rmsnorm")),
    ("linear", (1, 50257, 768, None, False)),
    ("linear", (13, 768, 3072, "layernorm")),
    ("linear", (130, 133, 77, "layernorm")),
    ("qkv_proj", (4, 513, 768, 12, 4, 64)),
    ("qkv_proj", (2, 100, 576, 9, 3, 80)),
    ("qkv_proj", (70, 1, 768, 12, 4, 64)),
    ("qkv_proj", (9, 20, 768, 6, 2, 128)),
    ("swiglu_ffn", (2049, 576, 1536)),
    ("swiglu_ffn", (3, 768, 2048, None)),
    *(
        ("sdpa", (2, 8, 2, tq, tk, dim, causal))
        for tq, tk in ((1, 4000), (129, 129), (1000, 1500), (2048, 2048))
        for dim in (64, 80, 128)
        for causal in (True, False)
    ),
]


def on_gpu(op, sizes):
    args = getattr(cases, op)(*sizes)
    return tuple(a.cuda() if isinstance(a, torch.Tensor) else a for a in args)


@pytest.mark.parametrize(("op", "sizes"), CASES)
def test_values(op, sizes):
    cases.assert_true(op, on_gpu(op, sizes))


@pytest.mark.parametrize("dim", [64, 96, 128])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_sdpa_gradients(dim, causal):
    q, k, v, causal, scale = on_gpu("sdpa", (2, 8, 2, 300, 500, dim, causal))
    grad = torch.randn_like(q)
    out, lse = torch.ops.fusebench.sdpa_cuda_saving(q, k, v, causal, scale)
    result = torch.ops.fusebench.sdpa_cuda_backward(grad, q, k, v, out, lse, causal, scale)
    args = (q, k, v, grad)
    composition = cases.sdpa_gradients(causal, scale)
    verdict = verify.judge(result, verify.oracle(composition, args), composition(*args))
    assert verdict.ok, verdict.reason


FIRST = list({op: (op, sizes) for op, sizes in reversed(CASES)}.values())  # of each op


@pytest.mark.parametrize(("op", "sizes"), [*FIRST, CASES[-1]])
def test_a_graph_replays_on_another_stream(op, sizes):
    args = on_gpu(op, sizes)
    expected = cases.run(op, *args)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        cases.run(op, *args)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = cases.run(op, *args)
        for t in captured if isinstance(captured, tuple) else (captured,):
            t.fill_(float("nan"))
        graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(captured, expected, rtol=0, atol=0)


def test_a_tensor_of_more_than_2_to_the_31_elements():
    rows, width = 2**21 + 8, 1024
    x = torch.zeros(rows, width, dtype=torch.bfloat16, device="cuda")
    x[-1] = 1
    weight = torch.eye(64, width, dtype=torch.bfloat16, device="cuda")
    out = cases.run("linear", x, weight, None, None, None, None, None, 0.0)
    assert out[-1].eq(1).all() and not out[:-1].any()
