"""How sure a mean is: standard errors and bootstrap intervals."""

from __future__ import annotations

import numpy as np

from hundredfold.core.batch import FloatArray

RESAMPLES = 2_000


def standard_error(values: FloatArray) -> float:
    """Of the mean; 0 for a single value, of which nothing is known."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def bootstrap_interval(values: FloatArray, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean; the same values give the same interval."""
    picks = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    means = values[picks].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
