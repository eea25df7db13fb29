"""torch.autocast: handwritten ops give what the reference composition gives under it."""

import pytest
import torch

from fusebench import GPT, GPTConfig, ops, prepare
from fusebench.ops import registry
from fusebench.studies.cases import GRID

HAS_CPP = registry.get("sdpa", "cpp").unavailable()
needs_cpp = pytest.mark.skipif(HAS_CPP is not None, reason=f"no cpp: {HAS_CPP}")
TINY = GPTConfig(vocab_size=64, n_embed=32, num_heads=2, num_layers=2, max_seq_len=32)
names = iter(range(10**6))


@pytest.fixture
def mine(monkeypatch):
    """An implementation of every op that refuses inputs of mixed dtypes, as kernels do."""
    monkeypatch.setattr(registry, "IMPLEMENTATIONS", dict(registry.IMPLEMENTATIONS))
    name = f"autocast_{next(names)}"

    def function_for(op):
        def function(*args):
            assert not (op.autocast and torch.is_autocast_enabled("cpu"))
            found = op.reference(*args)
            copies = tuple(t.clone() for t in (found if isinstance(found, tuple) else (found,)))
            return copies if isinstance(found, tuple) else _layout(op, copies[0])

        return function

    for op in ops.OPS.values():
        registry.implementation(op.name, name, device="cpu")(function_for(op))
    return name


def _layout(op, y):
    return y.transpose(1, 2).contiguous().transpose(1, 2) if op.name == "sdpa" else y


def call(op, impl, args):
    return registry.call(ops.OPS[op], impl, args)


def outputs(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("first", [torch.float32, torch.bfloat16], ids=["float32 x", "bfloat16 x"])
@pytest.mark.parametrize("op", ops.OPS)
def test_every_op_gives_the_dtype_of_the_reference(mine, op, first):
    for case in GRID[op](torch.float32, "cpu"):
        if not case.gradients:
            continue
        args = list(case.make())
        if op != "sdpa" and args[0].is_floating_point():
            args[0] = args[0].to(first)  # what an op before it leaves, beside weights in float32
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            wanted, got = (outputs(call(op, impl, args)) for impl in ("reference", mine))
        assert [t.dtype for t in got] == [t.dtype for t in wanted], case.name
        for a, b in zip(got, wanted):
            torch.testing.assert_close(a.float(), b.float(), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("impl", ["mine", pytest.param("cpp", marks=needs_cpp)])
def test_a_model_runs_and_trains_under_autocast(mine, impl, compiled):
    plan = mine if impl == "mine" else impl
    tokens = torch.randint(64, (2, 8))
    reference, model = GPT(TINY), GPT(TINY, plan)
    model.load_state_dict(reference.state_dict())
    forward = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
    results = []
    for each in (reference, forward):
        with torch.autocast("cpu", torch.bfloat16):
            found = each(tokens, tokens)
        found["loss"].backward()
        results.append(found)
    wanted, got = results
    assert wanted["logits"].dtype == got["logits"].dtype == torch.bfloat16
    assert wanted["loss"].dtype == got["loss"].dtype == torch.float32
    torch.testing.assert_close(got["logits"], wanted["logits"], rtol=0.1, atol=0.1)
    for a, b in zip(model.parameters(), reference.parameters()):
        assert a.grad.dtype == torch.float32
        torch.testing.assert_close(a.grad, b.grad, rtol=0.2, atol=0.02)


@needs_cpp
def test_packed_weights_of_another_dtype_are_not_used():
    model = prepare(GPT(TINY, "cpp"))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert model(torch.zeros(1, 4, dtype=torch.int64))["logits"].dtype == torch.bfloat16


@needs_cpp
def test_a_dtype_that_the_implementation_does_not_take_is_refused():
    x, w = torch.randn(2, 8), torch.randn(4, 8)
    with (
        torch.autocast("cpu", torch.float16),
        pytest.raises(ValueError, match=r"dtype is torch\.fl"),
    ):
        ops.linear(x, w, impl="cpp")
