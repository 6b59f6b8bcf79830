"""Bootstrap intervals, interquartile means and probabilities of improvement."""

import numpy as np
import pytest

from hundredfold.core.statistics import (
    bootstrap_interval,
    improvement_probability,
    improvement_probability_interval,
    interquartile_mean,
    interval_over_seeds,
)


def test_the_interval_over_seeds_includes_the_variance_between_seeds():
    rng = np.random.default_rng(1)
    episodes = rng.normal(size=200)
    agreeing = np.stack([episodes] * 5)
    differing = agreeing + rng.normal(size=(5, 1))
    narrow, wide = (np.diff(interval_over_seeds(runs))[0] for runs in (agreeing, differing))
    assert wide > 2 * narrow


def test_the_interval_of_one_seed_is_that_of_its_episodes():
    episodes = np.random.default_rng(2).normal(size=300)
    low, high = interval_over_seeds(episodes[None])
    assert (low, high) == pytest.approx(bootstrap_interval(episodes), abs=0.03)


def test_paired_differences_have_narrower_intervals_than_scores():
    rng = np.random.default_rng(3)
    episodes = rng.normal(scale=5, size=(1, 200))
    first = episodes + rng.normal(scale=0.1, size=(5, 200))
    second = first + 0.5 + rng.normal(scale=0.1, size=(5, 200))
    low, high = interval_over_seeds(second - first)
    assert 0.4 < low < 0.5 < high < 0.6
    assert np.diff(interval_over_seeds(first))[0] > 10 * (high - low)


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(200):
        low, high = interval_over_seeds(rng.normal(size=(20, 1)) + rng.normal(size=(20, 30)))
        covered += low <= 0 <= high
    assert 0.86 <= covered / 200 <= 0.99


def test_the_interquartile_mean_ignores_a_quarter_on_each_side():
    assert interquartile_mean(np.array([100.0, 1, 2, 3, -100])) == 2
    assert interquartile_mean(np.arange(8.0)) == 3.5
    rows = np.array([[0.0, 0, 0, 50], [1, 2, 3, 4]])
    np.testing.assert_array_equal(interquartile_mean(rows), [0, 2.5])
    outlier = np.repeat(np.r_[np.linspace(0.9, 1.1, 19), 50.0][:, None], 10, axis=1)
    assert np.diff(interval_over_seeds(outlier, interquartile_mean))[0] < np.diff(interval_over_seeds(outlier))[0]


def test_the_probability_of_improvement_counts_pairs_and_halves_ties():
    assert improvement_probability(np.array([3.0, 4]), np.array([1.0, 2])) == 1
    assert improvement_probability(np.array([1.0, 2]), np.array([1.0, 2])) == 0.5
    assert improvement_probability(np.array([1.0, 3]), np.array([2.0, 2])) == 0.5
    assert improvement_probability_interval(np.array([3.0, 4]), np.array([1.0, 2])) == (1, 1)
    low, high = improvement_probability_interval(np.arange(5.0), np.arange(5.0) + 0.5)
    assert low < 0.4 < high
