"""Medians, percentiles, the interval of a paired ratio, and what one may conclude from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95
# Two builds of one variant differ by up to about this much through memory placement alone, and
# enough rounds would make any difference "significant". Below it nothing is claimed.
MARGIN = 0.01
# The whole range of n samples holds the median with probability 1 - 2 / 2^n: 95% from six on.
MIN_SAMPLES = 6


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95% bootstrap interval. samples: how many it rests on, if known."""

    value: float
    low: float
    high: float
    samples: int | None = None

    def verdict(self, margin: float = MARGIN) -> str:
        """For a speed-up: "faster", "slower", or "no difference" where neither is sure.

        "too few rounds" where there are fewer samples than an interval of a median needs.
        """
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


def unpaired_speedup(
    of: Sequence[float], over: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """Like `speedup`, for samples of different runs, which nothing pairs."""
    if not len(of) or not len(over):
        raise ValueError("speedup: there are no samples to compare")
    random = np.random.default_rng(seed)
    first, second = (
        np.median(random.choice(np.asarray(s), (resamples, len(s))), axis=1) for s in (over, of)
    )
    fewest = min(len(of), len(over))
    return _percentiles(np.median(over) / np.median(of), first / second, fewest)


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
