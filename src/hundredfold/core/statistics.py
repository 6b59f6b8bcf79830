"""Standard errors and bootstrap confidence intervals of a mean."""

from __future__ import annotations

import numpy as np

from hundredfold.core.batch import FloatArray

NUM_RESAMPLES = 2_000


def standard_error(values: FloatArray) -> float:
    """Standard error of the mean; 0 for a single value."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def bootstrap_interval(values: FloatArray, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean (Efron 1979), with a fixed seed."""
    samples = np.random.default_rng(0).integers(0, len(values), (NUM_RESAMPLES, len(values)))
    means = values[samples].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
