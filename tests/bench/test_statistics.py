"""Statistics: what the intervals cover, and when a verdict may be given."""

import numpy as np
import pytest

from fusebench.bench import statistics
from fusebench.bench.statistics import Interval


def noisy(center, rounds=60, seed=0, spread=0.05):
    return center * np.exp(np.random.default_rng(seed).normal(0, spread, rounds))


def test_speedup_finds_a_real_difference():
    found = statistics.speedup(noisy(1.0, seed=1), noisy(1.5, seed=2))
    assert found.low < 1.5 < found.high
    assert found.verdict() == "faster"
    assert statistics.speedup(noisy(1.5, seed=2), noisy(1.0, seed=1)).verdict() == "slower"


def test_the_same_thing_twice_is_no_difference():
    verdicts = [
        statistics.speedup(noisy(1.0, seed=2 * i), noisy(1.0, seed=2 * i + 1)).verdict()
        for i in range(200)
    ]
    assert verdicts.count("no difference") >= 185  # 95% intervals, and a margin beside them


def test_pairing_cancels_what_disturbs_both():
    weather = np.exp(np.random.default_rng(0).normal(0, 0.02, 60)) * np.linspace(1, 3, 60)
    a, b = noisy(1.0, seed=1, spread=0.01) * weather, noisy(1.2, seed=2, spread=0.01) * weather
    paired, unpaired = statistics.speedup(a, b), statistics.change(a, b)
    assert paired.low < 1.2 < paired.high
    assert paired.high - paired.low < 0.5 * (unpaired.high - unpaired.low)


def test_a_change_between_runs_is_that_of_the_ratio_to_a_yardstick():
    weather = np.linspace(1, 2, 60)  # a run on a machine that slows down, and one twice as slow
    before, before_yardstick = noisy(1.0, seed=1) * weather, noisy(3.0, seed=2) * weather
    after, after_yardstick = noisy(1.6, seed=3), noisy(6.0, seed=4)
    found = statistics.change(after, before, (after_yardstick, before_yardstick))
    assert found.low < 1.25 < found.high and found.verdict() == "faster"
    assert statistics.change(after, before).verdict() == "no difference"
    assert statistics.change(2 * noisy(1.0, seed=5), noisy(1.0, seed=6)).verdict() == "slower"
    with pytest.raises(ValueError, match="no samples"):
        statistics.change([], before)


def test_combination_gives_the_interaction_of_a_factorial():
    none, first, second, both = (noisy(c, seed=i, spread=0.01) for i, c in enumerate((8, 4, 4, 1)))
    found = statistics.combination((none, first, second, both), (1, -1, -1, 1))
    assert found.value == pytest.approx(0.5, rel=0.05)  # together twice as good as expected
    assert found.high < 1


def test_the_seed_decides():
    a, b = noisy(1.0, seed=1), noisy(1.1, seed=2)
    assert statistics.speedup(a, b) == statistics.speedup(a, b)
    assert statistics.speedup(a, b, seed=1) != statistics.speedup(a, b)


def test_margin():
    assert Interval(1.005, 1.002, 1.008).verdict() == "no difference"
    assert Interval(1.05, 1.02, 1.08).verdict() == "faster"
    assert Interval(1.05, 1.02, 1.08).verdict(margin=0.1) == "no difference"


def test_outliers_are_counted_and_kept():
    samples = [1.0, 1.01, 0.99, 1.0, 1.02, 9.0]
    assert statistics.outliers(samples) == 1
    assert statistics.p95(samples) > 5


@pytest.mark.parametrize("of, over", [([], []), ([1.0], [1.0, 2.0])])
def test_samples_that_cannot_be_paired(of, over):
    with pytest.raises(ValueError, match="expected as many of each"):
        statistics.speedup(of, over)
