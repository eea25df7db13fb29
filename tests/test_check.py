"""`fusebench check` must notice every kind of wrong implementation, and pass the right ones."""

import json

import pytest
import torch

import fusebench
from fusebench import ops
from fusebench.ops import registry
from fusebench.studies.check import check

OP = ops.OPS["linear"]
names = iter(range(10**6))


def right(*args):
    return OP.reference(*args).clone()


def imprecise(*args):
    return right(*args).bfloat16().to(args[0].dtype)


def forgets_bias(x, weight, bias, *rest):
    return right(x, weight, None, *rest)


def wrong_for_one_token(*args):
    y = right(*args)
    return y * 1.01 if args[0].shape[1] == 1 else y


def naive_variance(x, weight, bias, residual, norm, norm_weight, norm_bias, eps):
    """E[x^2] - E[x]^2 in one pass: right for tame data, wrong for a mean of 100."""
    if norm != "layernorm":
        return right(x, weight, bias, residual, norm, norm_weight, norm_bias, eps)
    mean = x.mean(-1, keepdim=True)
    variance = (x.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
    n = (x - mean) * torch.rsqrt(variance + eps)
    n = n if norm_weight is None else n * norm_weight
    n = n if norm_bias is None else n + norm_bias
    return right(n, weight, bias, residual, None, None, None, eps)


def changes_input(x, *rest):
    y = right(x, *rest)
    x.add_(1)
    return y


def returns_its_input(x, weight, bias, residual, *rest):
    y = right(x, weight, bias, residual, *rest)
    return residual.copy_(y) if residual is not None else y


def transposed_memory(*args):
    y = right(*args)
    return y.transpose(0, -1).contiguous().transpose(0, -1)


def not_finite(*args):
    y = right(*args)
    return y.masked_fill_(y > y.max() - 1e-6, float("inf")) if y.numel() else y


def raises_for_empty(*args):
    if args[0].numel() == 0:
        raise RuntimeError("launch with an empty grid")
    return right(*args)


def reads_contiguous(x, *rest):
    """Takes x's memory for a row-major [B, T, C] whatever its strides say."""
    return right(x.as_strided(x.shape, torch.empty(x.shape).stride()), *rest)


def ignores_norm_weight(x, weight, bias, residual, norm, norm_weight, norm_bias, eps):
    return right(x, weight, bias, residual, norm, None, norm_bias, eps)


def ignores_eps(x, weight, bias, residual, norm, norm_weight, norm_bias, eps):
    return right(x, weight, bias, residual, norm, norm_weight, norm_bias, 1e-5)


def ends_the_process(*args):
    raise SystemExit(0)


WRONG = {
    imprecise: "over the budget",
    forgets_bias: "over the budget",
    wrong_for_one_token: "one token: error",
    naive_variance: "layernorm, mean x: error",
    changes_input: "changed its input x",
    returns_its_input: "changed its input residual",
    transposed_memory: "the output has strides",
    not_finite: "not finite",
    raises_for_empty: "no batch: raised RuntimeError: launch with an empty grid",
    reads_contiguous: "strided x: error",
    ignores_norm_weight: "over the budget",
    ignores_eps: "small x: error",
    ends_the_process: "raised SystemExit",
}


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(registry, "IMPLEMENTATIONS", dict(registry.IMPLEMENTATIONS))

    def register(function, **options):
        name = f"{function.__name__}_{next(names)}"
        options = {"device": "cpu", "dtypes": [torch.float32], **options}
        fusebench.implementation("linear", name, **options)(function)
        return name

    return register


def test_a_right_implementation_passes_everything(registered):
    result = check("linear", registered(right))
    (row,) = result.rows
    assert not result.failed and row["failures"] == []
    assert row["cases"] > 30 and row["worst"] <= 1
    assert {row[n] for n in ("gradients", "opcheck", "fullgraph", "dynamic")} == {"pass"}


@pytest.mark.parametrize("function", WRONG, ids=lambda f: f.__name__)
def test_a_wrong_implementation_is_noticed(registered, function):
    result = check("linear", registered(function))
    assert result.failed
    assert any(WRONG[function] in failure for failure in result.rows[0]["failures"]), result.rows


def test_a_wrong_gradient_is_noticed(registered):
    def backward(grads, args, saved, needs):
        found = list(OP.backward(grads, args, needs))
        found[1] = found[1] * 1.001
        return tuple(found)

    (row,) = check("linear", registered(right, backward=backward)).rows
    assert row["gradients"] == row["fullgraph"] == row["dynamic"] == "fail"
    assert any(f.startswith("gradients") for f in row["failures"])


def test_a_failure_names_the_case_the_tensor_and_the_value(registered):
    def one_column(*args):
        y = right(*args)
        return y.index_fill(-1, torch.tensor(2), 7.0) if y.shape[-1] > 2 else y

    def backward(grads, args, saved, needs):
        found = list(OP.backward(grads, args, needs))
        found[1] = found[1] * 1.001
        return tuple(found)

    (row,) = check("linear", registered(one_column)).rows
    assert row["failure"].startswith("layernorm, bias+norm_bias+norm_weight+residual: error")
    assert "(the first at [0, 0, 2]: 7, expected " in row["failure"]
    (row,) = check("linear", registered(right, backward=backward)).rows
    assert any("gradient of weight: error" in f for f in row["failures"])


def test_calls_of_other_lengths_count_for_the_worst_ratio(registered):
    def imprecise_for_eleven(*args):
        y = right(*args)
        return y * (1 + 1e-3) if args[0].shape[1] == 11 else y

    (row,) = check("linear", registered(imprecise_for_eleven)).rows
    assert row["dynamic"] == "fail" and row["worst"] > 1


def test_every_kind_of_differentiable_case_goes_through_opcheck(registered, monkeypatch):
    seen = []
    monkeypatch.setattr(torch.library, "opcheck", lambda op, args, **options: seen.append(args[4]))
    check("linear", registered(right))
    assert set(seen) == {"layernorm", "rmsnorm", None}


def test_an_implementation_for_one_length_fails_dynamic_only(registered):
    def fixed(x, *rest):
        assert x.shape[1] != 23, "compiled for another length"
        return right(x, *rest)

    (row,) = check("linear", registered(fixed)).rows
    assert row["dynamic"] == "fail" and row["fullgraph"] == "pass"


def test_what_it_refuses_is_counted_and_not_failed(registered):
    def no_norm(*args):
        return "norm is not served" if args[4] else None

    (row,) = check("linear", registered(right, supports=no_norm)).rows
    assert row["refused"] > 10 and row["cases"] > 5 and row["failures"] == []


@pytest.mark.parametrize("op", ops.OPS)
def test_the_reference_passes(op):
    (row,) = check(op, "reference", dtype="float32").rows
    assert row["failures"] == []


def test_results_as_json(registered, tmp_path):
    file = tmp_path / "check.json"
    check("linear", registered(imprecise)).to_json(file)
    (row,) = json.loads(file.read_text())["rows"]
    assert row["failure"] and row["failures"] and row["op"] == "linear"


def test_names_that_are_not_known():
    with pytest.raises(ValueError, match="did you mean 'linear'"):
        check("linaer")
    with pytest.raises(ValueError, match="unknown implementation 'cp'"):
        check("linear", "cp")
    with pytest.raises(ValueError, match="the selection is empty"):
        check("linear", "reference", dtype="float17")


def test_one_that_cannot_run_here_says_why(registered):
    name = registered(right, unavailable=lambda: "its driver is missing")
    with pytest.raises(ValueError, match="its driver is missing"):
        check("linear", name)
    result = check("linear", dtype="float32")
    assert any(s["reason"] == "its driver is missing" for s in result.settings["skipped"])
    assert any("its driver is missing" in note for note in result.notes)
