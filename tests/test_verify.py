"""The judge: what passes, what fails, and that the budget follows the data."""

import pytest
import torch

from fusebench.bench.verify import Verdict, judge, oracle


def matmul(a, b):
    return a @ b


@pytest.fixture
def product():
    a, b = torch.randn(16, 256), torch.randn(256, 16)
    return oracle(matmul, (a, b)), matmul(a, b)


def test_the_reference_passes_its_own_budget_with_half_of_it(product):
    truth, reference = product
    verdict = judge(reference, truth, reference)
    assert verdict.ok and verdict.reason is None
    assert 0 < verdict.ratio <= 0.5


def test_three_times_the_reference_error_fails(product):
    truth, reference = product
    worst = (reference.double() - truth).abs().max()
    off = truth.clone()
    off[3, 5] += 3 * worst + 2 * torch.finfo(torch.float32).eps * truth[3, 5].abs()
    verdict = judge(off.float(), truth, reference)
    assert not verdict.ok and "over the budget" in verdict.reason
    assert verdict.error > verdict.budget


def test_lower_precision_fails_at_a_higher_dtype(product):
    truth, reference = product
    assert not judge(truth.bfloat16().float(), truth, reference).ok


def test_a_correctly_rounded_result_passes_even_where_the_reference_is_exact():
    exact = torch.full((4,), 1.0)
    truth = exact.double() + 2**-25  # below half a float32 rounding
    assert judge(exact, truth, exact).ok


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_fail(product, bad):
    truth, reference = product
    result = reference.clone()
    result[0, 0] = bad
    verdict = judge(result, truth, reference)
    assert not verdict.ok and "1 of 256 values are not finite" in verdict.reason


@pytest.mark.parametrize(
    "change, word",
    [
        (lambda r: r[:4], "shape"),
        (lambda r: r.double(), "dtype"),
        (lambda r: (r, r), "2 values"),
        (lambda r: None, "None"),
        (lambda r: torch.nn.Parameter(r), "Parameter"),
    ],
)
def test_the_wrong_kind_of_result_fails_with_its_reason(product, change, word):
    truth, reference = product
    verdict = judge(change(reference), truth, reference)
    assert not verdict.ok and word in verdict.reason


def test_of_a_tuple_the_worst_counts(product):
    truth, reference = product
    verdict = judge((reference, reference + 1), (truth, truth), (reference, reference))
    assert not verdict.ok
    assert judge((reference, None), (truth, None), (reference, None)).ok


def test_the_reason_says_which_value_of_which_tensor(product):
    truth, reference = product
    wrong = reference.clone()
    wrong[3, 5], wrong[7, 2] = 99.0, float(reference[7, 2]) + 1
    reason = judge((reference, wrong), (truth,) * 2, (reference,) * 2).reason
    assert reason.startswith("output 2 of 2: error ")
    assert f"at 2 of 256 values (the first at [3, 5]: 99, expected {truth[3, 5]:.6g})" in reason
    names = ("out", "gradient of x")
    reason = judge((reference, wrong), (truth,) * 2, (reference,) * 2, names).reason
    assert reason.startswith("gradient of x: error")
    wrong[1, 15] = float("nan")
    assert "1 of 256 values are not finite (the first at [1, 15])" in judge(
        wrong, truth, reference
    ).reason  # fmt: skip


def test_an_empty_result_passes():
    empty = torch.empty(0, 4)
    assert judge(empty, empty.double(), empty) == Verdict(True)
