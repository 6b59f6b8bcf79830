"""Standard errors and bootstrap confidence intervals, of a mean and of runs compared over seeds.

Runs are compared as Agarwal et al. (2021) advise: interquartile means and probabilities of
improvement with stratified bootstrap intervals.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hundredfold.core.batch import FloatArray

NUM_RESAMPLES = 2_000

# From (resamples, seeds) scores of runs to one number per resample.
Statistic = Callable[[FloatArray], FloatArray]


def standard_error(values: FloatArray) -> float:
    """Standard error of the mean; 0 for a single value."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def bootstrap_interval(values: FloatArray, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean (Efron 1979), with a fixed seed."""
    samples = np.random.default_rng(0).integers(0, len(values), (NUM_RESAMPLES, len(values)))
    return _quantiles(values[samples].mean(axis=1), level)


def mean_over_seeds(scores: FloatArray) -> FloatArray:
    """(rows,) means of (rows, seeds) scores."""
    return np.asarray(scores.mean(axis=-1), np.float64)


def interquartile_mean(scores: FloatArray) -> FloatArray:
    """(rows,) means of (rows, seeds) scores without their lowest and highest quarter, rounded down."""
    num_seeds = scores.shape[-1]
    cut = num_seeds // 4
    return np.asarray(np.sort(scores, axis=-1)[..., cut : num_seeds - cut].mean(axis=-1), np.float64)


def interval_over_seeds(
    scores: FloatArray, statistic: Statistic = mean_over_seeds, level: float = 0.95
) -> tuple[float, float]:
    """Bootstrap interval of a statistic of (seeds, episodes) scores.

    Seeds and episodes are resampled, the same episodes for all seeds. With one seed only episodes
    are resampled, and the interval says nothing about other seeds.

    Args:
        scores: Scores, or paired differences of scores.
        statistic: Statistic of the means of runs.
        level: Probability that the interval covers.
    """
    num_seeds, num_episodes = scores.shape
    generator = np.random.default_rng(0)
    seeds = generator.integers(0, num_seeds, (NUM_RESAMPLES, num_seeds))
    episodes = generator.integers(0, num_episodes, (NUM_RESAMPLES, num_episodes))
    of_runs = np.stack([run[episodes].mean(axis=1) for run in scores], axis=1)  # (resamples, seeds)
    return _quantiles(statistic(np.take_along_axis(of_runs, seeds, axis=1)), level)


def improvement_probability(first: FloatArray, second: FloatArray) -> float:
    """Probability that one of the first runs scores higher than one of the second; equal scores count half.

    Args:
        first: (seeds,) scores of runs.
        second: (other seeds,) scores of other runs.
    """
    return float(_win_shares(first[None], second[None])[0])


def improvement_probability_interval(first: FloatArray, second: FloatArray, level: float = 0.95) -> tuple[float, float]:
    """Stratified bootstrap interval of the probability of improvement: each side is resampled by itself."""
    generator = np.random.default_rng(0)
    one, other = (
        scores[generator.integers(0, len(scores), (NUM_RESAMPLES, len(scores)))] for scores in (first, second)
    )
    return _quantiles(_win_shares(one, other), level)


def _win_shares(first: FloatArray, second: FloatArray) -> FloatArray:
    """(rows,) share of pairs of (rows, seeds) scores that the first win."""
    difference = first[:, :, None] - second[:, None, :]
    return np.asarray(((difference > 0) + 0.5 * (difference == 0)).mean(axis=(1, 2)), np.float64)


def _quantiles(values: FloatArray, level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
