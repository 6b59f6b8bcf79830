"""Prior over the types of customers without responses, from what a booking shows of them.

Age, occupation and neighbourhood each scale the type shares of a group of customers. The scales are
learned from the type posteriors of everybody who has responded: a Dirichlet prior shrinks every
group towards what is expected of it, and the strength of the shrinkage is averaged over its marginal
likelihood (empirical Bayes). Most of the prior weight says that an attribute tells nothing, so where
there is no relation strangers keep the shares of the population.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from hundredfold.core.batch import Array, BoolArray, FloatArray, IntArray
from hundredfold.envs.dvrp.population import NUM_TYPES, Population

AGE_BANDS: Final = (0, 25, 45, 65)
UNKNOWN: Final = "unknown"
# Neighbourhoods are the squares of a grid of this many rows and columns.
NEIGHBOURHOOD_GRID: Final = 3
# Customers that the expectation of a group counts as: the candidates that are averaged over.
GROUP_WEIGHTS: Final = (1.0, 3.0, 10.0, 30.0, 100.0)
# Prior weight of "this attribute tells nothing", that is an infinite group weight.
NO_RELATION: Final = 0.8
MIN_SHARE: Final = 1e-6

_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])


def customer_attributes(population: Population) -> dict[str, Array]:
    """(customers,) names of each customer's age band, occupation and neighbourhood."""
    customers = population.customers
    bands = [f"{low} to {high - 1}" for low, high in pairwise(AGE_BANDS)]
    names = np.array([*bands, f"{AGE_BANDS[-1]} and over"])
    band = np.maximum(np.searchsorted(AGE_BANDS, customers.ages, side="right") - 1, 0)
    return {
        "age": np.where(customers.ages < 0, UNKNOWN, names[band]),
        "occupation": np.array([occupation or UNKNOWN for occupation in customers.occupations]),
        "neighbourhood": np.array([f"row {row}, column {column}" for row, column in _grid_squares(population)]),
    }


def customer_groups(population: Population) -> list[IntArray]:
    """(customers,) group of each customer, for every attribute that tells customers apart."""
    groups = [np.unique(names, return_inverse=True)[1] for names in customer_attributes(population).values()]
    return [group for group in groups if group.max() > 0]


def home_cells(population: Population) -> IntArray:
    """(customers,) the cell where most trips of each customer start or end: the address on file."""
    num_cells = population.city.num_cells
    customer = np.repeat(np.arange(population.size), population.customers.num_trips)
    place = customer[:, None] * num_cells + population.trips.cells
    counts = np.bincount(place.ravel(), minlength=population.size * num_cells)
    return np.asarray(counts.reshape(population.size, num_cells).argmax(axis=1), np.int64)


class StrangerPrior:
    """Type probabilities of customers before their first response.

    Args:
        groups: (customers,) group of each customer, one array per attribute; may be empty.
        population_size: Number of customers.
    """

    def __init__(self, groups: Sequence[IntArray], population_size: int) -> None:
        self.groups = list(groups)
        self.population_size = population_size
        self.scales = [np.ones((int(group.max()) + 1, NUM_TYPES)) for group in self.groups]

    def probabilities(self, shares: FloatArray) -> FloatArray:
        """(customers, types) from the (types,) shares of the population."""
        return self._scaled(shares, range(len(self.groups)))

    def fit(self, shares: FloatArray, beliefs: FloatArray, responded: BoolArray) -> None:
        """One pass over the attributes, each given the scales of the others.

        Args:
            shares: (types,) type shares of the population.
            beliefs: (customers, types) type posteriors.
            responded: (customers,) which customers have responded.
        """
        for number, group in enumerate(self.groups):
            others = self._scaled(shares, [other for other in range(len(self.groups)) if other != number])
            num_groups = len(self.scales[number])
            self.scales[number] = group_scales(
                _sums(group[responded], beliefs[responded], num_groups),
                _sums(group[responded], others[responded], num_groups),
            )

    def _scaled(self, shares: FloatArray, attributes: Sequence[int]) -> FloatArray:
        probabilities = np.tile(np.maximum(shares, MIN_SHARE), (self.population_size, 1))
        for number in attributes:
            probabilities *= self.scales[number][self.groups[number]]
        return np.asarray(probabilities / probabilities.sum(axis=1, keepdims=True), np.float64)


def group_scales(counts: FloatArray, expected: FloatArray) -> FloatArray:
    """How much more often than expected each type occurs in each group, shrunk towards 1.

    A group's type shares have a Dirichlet prior whose mean is the expectation and whose weight is
    one of `GROUP_WEIGHTS` or infinite; the posterior means are averaged over the weights.

    Args:
        counts: (groups, types) customers, or sums of their type posteriors.
        expected: (groups, types) the same as expected without the attribute; equal row sums.
    """
    size = counts.sum(axis=1, keepdims=True)
    mean = np.where(size > 0.0, np.maximum(expected, MIN_SHARE) / np.maximum(size, MIN_SHARE), 1.0 / counts.shape[1])
    log_evidence = [math.log(NO_RELATION) + float((counts * np.log(mean)).sum())]
    scales = [np.ones_like(mean)]
    for weight in GROUP_WEIGHTS:
        alpha = weight * mean
        evidence = (_log_gamma(counts + alpha) - _log_gamma(alpha)).sum()
        evidence -= (_log_gamma(size + weight) - math.lgamma(weight)).sum()
        log_evidence.append(math.log((1.0 - NO_RELATION) / len(GROUP_WEIGHTS)) + float(evidence))
        scales.append((counts + alpha) / ((size + weight) * mean))
    probability = np.exp(np.array(log_evidence) - max(log_evidence))
    return np.asarray(np.tensordot(probability / probability.sum(), np.stack(scales), axes=1), np.float64)


def _sums(group: IntArray, values: FloatArray, num_groups: int) -> FloatArray:
    """(groups, types) sums of the rows of each group."""
    return np.stack([np.bincount(group, column, num_groups) for column in values.T], axis=1)


def _grid_squares(population: Population) -> IntArray:
    """(customers, 2) row and column of each home in the grid of neighbourhoods, from 1."""
    square = np.floor(population.city.positions[home_cells(population)] * NEIGHBOURHOOD_GRID)
    return np.asarray(1 + np.clip(square, 0, NEIGHBOURHOOD_GRID - 1), np.int64)
