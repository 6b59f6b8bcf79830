"""Bayesian type model: posterior over customer types, with acceptance rates learned by EM.

Given the acceptance rates, a customer's type posterior follows from response counts alone. The
rates are learned by expectation-maximisation (Dempster, Laird and Rubin 1977): a refusal does not
tell which side was too much, nor a response the type it came from, so both are replaced by their
expectations. Types share tolerance curves (`late` and `none` are equally inflexible about an
earlier pickup), which needs a tenth of the responses that one rate per type, purpose and offer
needs for the same held-out log loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from hundredfold.core.batch import Arrays, FloatArray, IntArray, State, fill
from hundredfold.envs.dvrp.acceptance.model import (
    MIN_PROBABILITY,
    NUM_LEVELS,
    SIDE_CURVES,
    AcceptancePrior,
    Responses,
    accept_likelihood,
    accept_rates,
    mixture_accept_rates,
    tolerance_pair_probs,
)
from hundredfold.envs.dvrp.offers import NUM_OFFERS

MAX_EM_ITERATIONS: Final = 200
# EM has converged when no tolerance probability changes by more than this.
EM_TOLERANCE: Final = 1e-4


class BayesianTypeModel:
    """Type posterior of every customer, with learned tolerance curves and type shares.

    Every refit starts from the prior, so the result depends on the responses alone.

    Args:
        population_size: Number of customers.
        prior: Priors over tolerances and types.
    """

    def __init__(self, population_size: int, prior: AcceptancePrior) -> None:
        self.population_size = population_size
        self.prior = prior
        self.likelihood = accept_likelihood(prior.noise)
        self.tolerance_probs = prior.tolerance_probs.copy()
        self.type_shares = prior.type_shares.copy()
        self.beliefs = np.tile(prior.type_shares, (population_size, 1))

    @property
    def accept_given_type(self) -> FloatArray:
        """(types, purposes, offers)."""
        return accept_rates(self.tolerance_probs, self.likelihood)

    def ready(self, responses: Responses) -> bool:
        """True from the first response on."""
        return len(responses) > 0

    def refit(self, responses: Responses, should_stop: Callable[[], bool] = lambda: False) -> dict[str, float]:
        """Fit to these responses by EM; takes milliseconds, so `should_stop` is not called."""
        counts = responses.counts(self.population_size, self.prior.num_purposes)
        responded = counts.sum(axis=(0, 2)) > 0
        counts = np.ascontiguousarray(counts[:, responded])
        probs, shares = self.prior.tolerance_probs, self.prior.type_shares
        iterations, change = 0, np.inf
        while change > EM_TOLERANCE and iterations < MAX_EM_ITERATIONS:
            beliefs, _ = type_posterior(counts, accept_rates(probs, self.likelihood), shares)
            new_probs = self._maximise_tolerances(probs, counts, beliefs)
            shares = self._maximise_shares(beliefs)
            change = float(np.abs(new_probs - probs).max())
            probs = new_probs
            iterations += 1
        self.tolerance_probs, self.type_shares = probs, shares
        beliefs, log_evidence = type_posterior(counts, self.accept_given_type, shares)
        self.beliefs[:] = shares
        self.beliefs[responded] = beliefs
        return {
            "acceptance/loss": -log_evidence / max(len(responses), 1),
            "acceptance/em_iterations": float(iterations),
        }

    def type_probabilities(self, customers: IntArray) -> FloatArray:
        """(customers, types); the type shares for a customer without responses."""
        return np.asarray(self.beliefs[customers], np.float64)

    def accept_probabilities(self, customers: IntArray, purposes: IntArray, trips: IntArray) -> FloatArray:
        """(rows, offers) probability that each customer accepts each offer on each trip."""
        types = self.type_probabilities(customers)
        return mixture_accept_rates(types, self.accept_given_type, purposes)

    def state(self) -> Arrays:
        return {name: array.copy() for name, array in self._arrays().items()}

    def restore(self, state: State) -> None:
        fill(self._arrays(), state)

    def _maximise_tolerances(self, probs: FloatArray, counts: FloatArray, beliefs: FloatArray) -> FloatArray:
        """M-step: tolerance probabilities from the expected tolerances behind all responses."""
        pairs, likelihood = tolerance_pair_probs(probs), self.likelihood
        rates = np.clip(pairs @ likelihood.T, MIN_PROBABILITY, 1.0 - MIN_PROBABILITY)
        refused, accepted = ((beliefs.T @ table).reshape(len(SIDE_CURVES), -1, NUM_OFFERS) for table in counts)
        expected = pairs * ((accepted / rates) @ likelihood + (refused / (1.0 - rates)) @ (1.0 - likelihood))
        expected = expected.reshape(*expected.shape[:2], NUM_LEVELS, NUM_LEVELS)
        totals = self.prior.tolerance_weight * self.prior.tolerance_probs
        np.add.at(totals[:, 0], SIDE_CURVES[:, 0], expected.sum(axis=3))
        np.add.at(totals[:, 1], SIDE_CURVES[:, 1], expected.sum(axis=2))
        return np.asarray(totals / totals.sum(axis=-1, keepdims=True), np.float64)

    def _maximise_shares(self, beliefs: FloatArray) -> FloatArray:
        """M-step: type shares from the expected types."""
        prior = self.prior
        totals = beliefs.sum(axis=0) + prior.type_weight * prior.type_shares
        return np.asarray(totals / totals.sum(), np.float64)

    def _arrays(self) -> Arrays:
        return {"tolerance_probs": self.tolerance_probs, "type_shares": self.type_shares, "beliefs": self.beliefs}


def type_posterior(counts: FloatArray, rates: FloatArray, shares: FloatArray) -> tuple[FloatArray, float]:
    """P(type | responses) of every customer, and the log evidence of all responses.

    Args:
        counts: (2, customers, purposes x offers) refusals and acceptances.
        rates: (types, purposes, offers) acceptance rates.
        shares: (types,) prior probability of each type.
    Returns:
        (customers, types) posterior and the log evidence in nats.
    """
    flat = np.clip(rates.reshape(len(rates), -1), MIN_PROBABILITY, 1.0 - MIN_PROBABILITY)
    refused, accepted = counts
    scores = refused @ np.log1p(-flat).T + accepted @ np.log(flat).T
    scores += np.log(np.maximum(shares, MIN_PROBABILITY))
    highest = scores.max(axis=1, keepdims=True)
    odds = np.exp(scores - highest)
    total = odds.sum(axis=1, keepdims=True)
    return np.asarray(odds / total, np.float64), float((highest + np.log(total)).sum())
