"""Medians, percentiles, the interval of a paired ratio, and what one may conclude from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95
# Enough rounds would make any difference "significant"; below these shares nothing is claimed.
# Builds of one variant whose weights move (placement.py) got a verdict against each other in 5 of
# 280 pairs, and in 47 of 280 where they stayed: then the larger margin holds.
MARGIN = 0.01
STILL_MARGIN = 0.05
# The whole range of n samples holds the median with probability 1 - 2 / 2^n: 95% from six on.
MIN_SAMPLES = 6


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95% bootstrap interval.

    samples: how many it rests on, if known. margin: how far from 1 the interval must lie.
    """

    value: float
    low: float
    high: float
    samples: int | None = None
    margin: float = MARGIN

    def verdict(self, margin: float | None = None) -> str:
        """For a speed-up: "faster", "slower", or "no difference" where neither is sure.

        "too few rounds" where there are fewer samples than an interval of a median needs.
        """
        margin = self.margin if margin is None else margin
        if self.samples is not None and self.samples < MIN_SAMPLES:
            return "too few rounds"
        if self.low > 1 + margin:
            return "faster"
        if self.high < 1 / (1 + margin):
            return "slower"
        return "no difference"

    def as_dict(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


def median(samples: Sequence[float]) -> float:
    return float(np.median(samples))


def p95(samples: Sequence[float]) -> float:
    return float(np.percentile(samples, 95))


def outliers(samples: Sequence[float]) -> int:
    """How many samples lie five scaled deviations above the median; none is dropped."""
    values = np.asarray(samples)
    centre = np.median(values)
    spread = 1.4826 * np.median(np.abs(values - centre))
    return int((values > centre + 5 * max(spread, 0.01 * centre)).sum())


def speedup(
    of: Sequence[float], over: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """How many times faster `of` is than `over`: the ratio of their medians, above 1 means faster.

    of, over: seconds per round of two contestants of the same race, in the order of the rounds.
    The rounds are resampled as pairs, because what disturbs a round disturbs both.
    Raises ValueError for samples that cannot be paired.
    """
    return _interval(
        lambda pick: _medians(over, pick) / _medians(of, pick), of, over, seed, resamples
    )


def combination(
    samples: Sequence[Sequence[float]], weights: Sequence[float], *, seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:  # fmt: skip
    """exp(sum of weight * log(median)) over contestants of one race: ratios, and ratios of ratios.

    Weights (1, -1) give how many times slower the first is than the second; (1, -1, -1, 1) give
    the interaction of a two-by-two factorial.
    """

    def statistic(pick: np.ndarray) -> np.ndarray:
        return np.exp(sum(w * np.log(_medians(s, pick)) for w, s in zip(weights, samples)))

    return _interval(statistic, samples[0], samples[-1], seed, resamples)


def change(
    after: Sequence[float], before: Sequence[float],
    yardsticks: tuple[Sequence[float], Sequence[float]] | None = None, *, seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:  # fmt: skip
    """How many times faster something is in one run than it was in another, above 1 means faster.

    Nothing pairs the rounds of two runs. yardsticks: what else was measured in the same rounds of
    `after` and of `before`; the change is then that of the ratio to it, as a machine that is
    faster or quieter today makes both faster.
    """
    if not len(after) or not len(before):
        raise ValueError("change: there are no samples to compare")
    random = np.random.default_rng(seed)
    value, resampled = 1.0, np.ones(resamples)
    for run, yardstick, sign in zip((after, before), yardsticks or (None, None), (-1, 1)):
        pick = random.integers(0, len(run), (resamples, len(run)))
        every = np.arange(len(run))
        for samples, way in ((run, sign), (yardstick, -sign)):
            if samples is not None:
                value *= float(_medians(samples, every)) ** way
                resampled = resampled * _medians(samples, pick) ** way
    return _percentiles(value, resampled, min(len(after), len(before)))


def _medians(samples: Sequence[float], pick: np.ndarray) -> np.ndarray:
    return np.median(np.asarray(samples)[pick], axis=-1)


def _interval(statistic, first, second, seed: int, resamples: int) -> Interval:
    if len(first) != len(second) or not len(first):
        raise ValueError(
            f"speedup: {len(first)} and {len(second)} samples, expected as many of each, at least 1"
        )
    rounds = len(first)
    pick = np.random.default_rng(seed).integers(0, rounds, (resamples, rounds))
    return _percentiles(float(statistic(np.arange(rounds))), statistic(pick), rounds)


def _percentiles(value: float, resampled: np.ndarray, samples: int) -> Interval:
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(resampled, (tail, 100 - tail))
    return Interval(float(value), float(low), float(high), samples)
