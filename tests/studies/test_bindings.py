"""Bindings of one kernel: each gives the same result, and breaks the graph or does not."""

from __future__ import annotations

import pytest
import torch

import fusebench.contestants  # noqa: F401  (a kernel that needs no compiled part)
from fusebench import ops
from fusebench.bench.workload import Workload
from fusebench.inspect import capture
from fusebench.ops import registry
from fusebench.studies import bindings as study

BREAKS = {"raw": 0, "custom_op": 0, "disabled": 1, "plain": 1}


@pytest.fixture(scope="module")
def bound():
    names = study.bind(registry.get("sdpa", "torch_math"))
    assert names == list(BREAKS)
    return names


def inputs():
    return [torch.randn(1, 2, 8, 16, generator=torch.Generator().manual_seed(i)) for i in range(3)]


@pytest.mark.parametrize("binding", BREAKS)
def test_every_binding_calls_the_same_kernel(bound, binding):
    q, k, v = inputs()
    expected = ops.sdpa(q, k, v, impl="torch_math")
    assert torch.equal(ops.sdpa(q, k, v, impl=f"torch_math_{binding}"), expected)


@pytest.mark.parametrize("binding", BREAKS)
def test_which_bindings_break_the_graph(bound, binding):
    def call(q, k, v):
        return ops.sdpa(q * 2, k, v, impl=f"torch_math_{binding}") + 1

    torch._dynamo.reset()
    with capture.observe(kernels=False) as seen, torch.no_grad():
        torch.compile(call, backend="eager")(*inputs())
    assert bool(seen.breaks) == bool(BREAKS[binding])


def test_binding_twice_registers_once(bound):
    before = dict(registry.IMPLEMENTATIONS)
    study.bind(registry.get("sdpa", "torch_math"))
    assert before == registry.IMPLEMENTATIONS


def test_refusals():
    with pytest.raises(ValueError, match="impl is reference"):
        study.bindings("sdpa", impl="reference")
    with pytest.raises(ValueError, match="unknown op or site 'spda'; did you mean 'sdpa'"):
        study.bindings("spda")
    workload = Workload("seed", dtype="float16", device_name="cpu")
    with pytest.raises(ValueError, match="an implementation of sdpa that runs here"):
        study._kernel("sdpa", None, workload)
