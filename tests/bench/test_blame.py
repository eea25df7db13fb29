"""Whose fault it is: the failure names the op, the implementation, and the output or input."""

import itertools

import pytest
import torch

import fusebench
from fusebench import ops
from fusebench.model import GPTConfig
from fusebench.ops import registry

TINY = GPTConfig(vocab_size=64, n_embed=32, num_heads=2, num_layers=2, max_seq_len=32)
names = (f"blamed_{i}" for i in itertools.count())


@pytest.fixture
def variant(monkeypatch):
    """Register a function at an op; the variant that uses it at the site of that name."""
    monkeypatch.setattr(registry, "IMPLEMENTATIONS", dict(registry.IMPLEMENTATIONS))

    def register(op, function, mode="eager", **how):
        name = next(names)
        fusebench.implementation(op, name, device="cpu", **how)(function)
        return f"{op}={name}@{mode}", f"{op} ({name})"

    return register


def failure(*variants, rounds=6):
    results = fusebench.compare(
        ["reference@eager", *variants], config=TINY, model="tiny", seq=8, rounds=rounds
    )
    honest, *rows = results.rows
    assert honest["verified"] and honest["failure"] is None
    assert all(row["median_ms"] is None for row in rows)
    return rows[0]["failure"]


def right(op):
    def function(*args):
        found = ops.OPS[op].reference(*args)
        return found.clone() if isinstance(found, torch.Tensor) else found

    return function


class Lazy(torch.Tensor):
    pass


FFN, QKV = right("swiglu_ffn"), right("qkv_proj")
KINDS = {
    "None": ("swiglu_ffn", lambda *a: None, "the output is None, expected a plain torch.Tensor"),
    "a pair": ("swiglu_ffn", lambda *a: (FFN(*a),) * 2, "the output is a tuple of 2, expected one"),
    "short": ("qkv_proj", lambda *a: QKV(*a)[:2], "are a tuple of 2, expected a tuple of 3"),
    "one of three": ("qkv_proj", lambda *a: QKV(*a)[0], "the outputs are a Tensor, expected"),
    "dtype": ("swiglu_ffn", lambda *a: FFN(*a).double(), "has dtype torch.float64, expected torch"),
    "shape": ("swiglu_ffn", lambda *a: FFN(*a)[:, :-1], "has shape [1, 7, 32], expected [1, 8"),
    "the second": (
        "qkv_proj", lambda *a: (QKV(*a)[0], QKV(*a)[1].half(), QKV(*a)[2]),
        "output 2 of 3 has dtype torch.float16, expected torch.float32",
    ),
    "device": ("swiglu_ffn", lambda *a: FFN(*a).to("meta"), "is on meta, expected cpu"),
    "subclass": ("swiglu_ffn", lambda *a: FFN(*a).as_subclass(Lazy), "is a Lazy, expected a plain"),
    "a number": ("swiglu_ffn", lambda *a: 1.0, "the output is a float, expected a plain"),
    "strides": (
        "swiglu_ffn", lambda *a: FFN(*a).transpose(1, 2).contiguous().transpose(1, 2),
        "the output has strides",
    ),
    "raises": ("swiglu_ffn", lambda *a: 1 / 0, "raised ZeroDivisionError: division by zero"),
}  # fmt: skip


@pytest.mark.parametrize("opaque", [True, False], ids=["opaque", "traced"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_wrong_kind_of_output_names_the_op_and_the_output(variant, kind, opaque):
    op, function, words = KINDS[kind]
    text, who = variant(op, function, opaque=opaque)
    assert failure(text).startswith(who) and words in failure(text)


def test_it_is_named_in_a_compiled_model_too(variant):
    text, who = variant("swiglu_ffn", lambda *a: FFN(*a).double(), "default")
    assert f"{who}: the output has dtype torch.float64, expected torch.float32" in failure(text)


def test_a_wrong_value_names_the_op_that_computed_it(variant):
    text, who = variant("swiglu_ffn", lambda *a: FFN(*a) * 1.001)
    found = failure(text)
    assert "over the budget" in found and f"; {who}: error" in found


def in_place_residual(*args):
    """Right, and the residual is overwritten, which the model happens to read no more."""
    *others, residual = args
    return residual.add_(FFN(*others, None)).clone()


def scribbles_on_a_weight(*args):
    y, w = FFN(*args), args[1]
    w.view(-1)[1] *= 1.0001
    return y


@pytest.mark.parametrize("opaque", [True, False], ids=["opaque", "traced"])
@pytest.mark.parametrize("mode", ["eager", "default"])
def test_an_op_that_overwrites_its_residual(variant, mode, opaque):
    text, who = variant("swiglu_ffn", in_place_residual, mode, opaque=opaque)
    assert failure(text).startswith(f"{who} changed its input ")


def test_an_op_that_overwrites_a_weight(variant):
    text, who = variant("swiglu_ffn", scribbles_on_a_weight)
    assert failure(text).startswith(f"{who} changed its input w_gate_up")


def test_an_op_that_overwrites_its_residual_only_once_it_is_timed(variant):
    calls = itertools.count()

    def late(*args):
        return in_place_residual(*args) if next(calls) > 60 else FFN(*args)

    text, who = variant("swiglu_ffn", late)
    found = failure(text, rounds=20)
    assert found.startswith(f"{who} changed its input ") and "after timing" in found


@pytest.mark.parametrize("function", [FFN, lambda *a: ops.swiglu_ffn(
    *a[:5], norm=a[5], norm_weight=a[6], norm_bias=a[7], eps=a[8], residual=a[9])],
    ids=["the composition", "the op"])  # fmt: skip
def test_an_op_that_calls_the_reference_is_noted(variant, function):
    text, who = variant("swiglu_ffn", function)
    results = fusebench.compare([text], config=TINY, model="tiny", seq=8, rounds=6)
    assert results.rows[0]["verified"]
    assert f"{text}: {who} calls the op's reference: it is compared with itself" in results.notes


@pytest.mark.parametrize("opaque", [True, False], ids=["opaque", "traced"])
def test_an_op_that_returns_its_input(variant, opaque):
    text, who = variant(
        "embedding", lambda tokens, table, *rest: table[:8].view(1, 8, 32), opaque=opaque
    )
    assert f"{who}: the output shares the memory of token_weight, expected new" in failure(text)
