"""Bindings of one kernel: each gives the same result, and breaks the graph or does not."""

from __future__ import annotations

import functools

import pytest
import torch

import fusebench
from fusebench import ops
from fusebench.bench.workload import Workload
from fusebench.inspect import capture
from fusebench.model import GPTConfig
from fusebench.ops import registry
from fusebench.studies import bindings as study
from fusebench.variant import Variant

BREAKS = {"raw": 0, "custom_op": 0, "disabled": 1, "plain": 1}


@fusebench.implementation("sdpa", "bound", device="cpu")
def attention(q, k, v, causal, scale):
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
    return y.transpose(1, 2).contiguous().transpose(1, 2)


@pytest.fixture(scope="module")
def bound():
    names = study.bind(registry.get("sdpa", "bound"))
    assert names == list(BREAKS)
    return names


def inputs():
    return [torch.randn(1, 2, 8, 16, generator=torch.Generator().manual_seed(i)) for i in range(3)]


@pytest.mark.parametrize("binding", BREAKS)
def test_every_binding_calls_the_same_kernel(bound, binding):
    q, k, v = inputs()
    expected = ops.sdpa(q, k, v, impl="bound")
    assert torch.equal(ops.sdpa(q, k, v, impl=f"bound_{binding}"), expected)


@pytest.mark.parametrize("binding", BREAKS)
def test_which_bindings_break_the_graph(bound, binding):
    def call(q, k, v):
        return ops.sdpa(q * 2, k, v, impl=f"bound_{binding}") + 1

    torch._dynamo.reset()
    with capture.observe(kernels=False) as seen, torch.no_grad():
        torch.compile(call, backend="eager")(*inputs())
    assert bool(seen.breaks) == bool(BREAKS[binding])


def test_graphs_are_counted_as_if_nothing_had_been_compiled(bound, monkeypatch):
    """One after the other in one process, the second would find the functions of the first."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    config = GPTConfig(vocab_size=16, n_embed=16, num_heads=1, num_layers=2, max_seq_len=8)
    workload = Workload("tiny", 1, 8, custom=config)
    first, other, again = (
        study.compilations_of(Variant.parse(f"sdpa=bound_{binding}@default"), workload)
        for binding in ("plain", "disabled", "plain")
    )
    assert (first.graphs, first.graph_breaks) == (again.graphs, again.graph_breaks)
    assert min(first.graphs, other.graphs) > 1 and min(first.graph_breaks, other.graph_breaks) > 1


def test_binding_twice_registers_once(bound):
    before = dict(registry.IMPLEMENTATIONS)
    study.bind(registry.get("sdpa", "bound"))
    assert before == registry.IMPLEMENTATIONS


def test_refusals():
    with pytest.raises(ValueError, match="impl is reference"):
        study.bindings("sdpa", impl="reference")
    with pytest.raises(ValueError, match="unknown op or site 'spda'; did you mean 'sdpa'"):
        study.bindings("spda")
    workload = Workload("seed", dtype="float16", device_name="cpu")
    with pytest.raises(ValueError, match="an implementation of sdpa that runs here"):
        study._kernel("sdpa", None, workload)
