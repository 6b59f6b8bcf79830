"""Bayesian acceptance model: exact posteriors over customer types and over the tolerances of trips.

A recurring trip has one tolerance per side, in the levels that offers can distinguish: their sizes,
four by default. Given the tolerances its responses are independent; given only the type they are
not. Exact inference therefore sums over the pairs of tolerances of every trip, multiplies over a customer's trips and
normalises over types: the same responses inform the trip, the type, and through it the customer's
other trips. A trip without responses is known by its purpose and by the customer's type.

Tolerance curves and type shares are learned by expectation-maximisation (Dempster, Laird and Rubin
1977). Types share curves (`late` and `none` are equally inflexible about an earlier pickup), which
needs a tenth of the responses that one rate per type, purpose and offer needs for the same held-out
log loss.

Tolerances do not drift in this env, so by default nothing is forgotten but what leaves the response
buffer. Where they do, `forgetting` lets old responses count less: the likelihood of a response is
raised to a power that falls with every later response to the same trip (exponential forgetting, a
power prior in the sense of Ibrahim and Chen 2000). Inference stays exact under these likelihoods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from hundredfold.core.batch import Arrays, FloatArray, IntArray, State, fill
from hundredfold.envs.dvrp.acceptance.model import (
    MIN_PROBABILITY,
    SIDE_CURVES,
    AcceptancePrior,
    Responses,
    accept_likelihood,
    accept_rates,
    believed_accept_rates,
    tolerance_pair_probs,
)
from hundredfold.envs.dvrp.acceptance.stranger_prior import StrangerPrior, customer_groups
from hundredfold.envs.dvrp.population import NUM_TYPES, Population

MAX_EM_ITERATIONS: Final = 200
# EM has converged when no tolerance probability changes by more than this.
EM_TOLERANCE: Final = 1e-4
# Least P(response | tolerances): one contradiction must not rule a trip's tolerances out.
MIN_NOISE: Final = 1e-3


class BayesianTypeModel:
    """Type posterior of every customer and acceptance posterior of every trip.

    Every refit starts from the prior, so the result depends on the responses alone.

    Args:
        population_size: Number of customers.
        prior: Priors over tolerances and types.
        num_trips: Number of trips of the population, which are remembered one by one; 0 takes
            every response for one to a trip of its own.
        groups: (customers,) group of each customer, one array per attribute, for the prior of
            customers without responses; without any they get the type shares.
        forgetting: Share of its weight that a response loses with every later response to the same
            trip, or without trip memory to the customer's trips of the same purpose.
    """

    def __init__(
        self,
        population_size: int,
        prior: AcceptancePrior,
        *,
        num_trips: int = 0,
        groups: Sequence[IntArray] = (),
        forgetting: float = 0.0,
    ) -> None:
        self.population_size, self.forgetting = population_size, forgetting
        self.prior = prior
        self.groups = groups
        self.likelihood = accept_likelihood(prior.noise, prior.offers)
        self.tolerance_probs = prior.tolerance_probs.copy()
        self.type_shares = prior.type_shares.copy()
        self.beliefs = np.tile(prior.type_shares, (population_size, 1))
        # NaN for a trip without responses.
        self.trip_accept_rates = np.full((num_trips, prior.offers.num_offers), np.nan, np.float32)

    @property
    def accept_given_type(self) -> FloatArray:
        """(types, purposes, offers)."""
        return accept_rates(self.tolerance_probs, self.likelihood, self.prior.offers.no_change)

    def ready(self, responses: Responses) -> bool:
        """True from the first response on."""
        return len(responses) > 0

    def refit(self, responses: Responses, should_stop: Callable[[], bool] = lambda: False) -> dict[str, float]:
        """Fit to these responses by EM; takes milliseconds, so `should_stop` is not called."""
        evidence = self._evidence(responses)
        responded = np.bincount(evidence.customer, minlength=self.population_size) > 0
        probs, shares = self.prior.tolerance_probs, self.prior.type_shares
        strangers = StrangerPrior(self.groups, self.population_size)
        iterations, change = 0, np.inf
        while change > EM_TOLERANCE and iterations < MAX_EM_ITERATIONS:
            posterior = type_posterior(evidence, tolerance_pair_probs(probs), strangers.probabilities(shares))
            new_probs = self._maximise_tolerances(probs, evidence, posterior)
            shares = self._maximise_shares(posterior.beliefs[responded])
            strangers.fit(shares, posterior.beliefs, responded)
            change = float(np.abs(new_probs - probs).max())
            probs = new_probs
            iterations += 1
        self.tolerance_probs, self.type_shares = probs, shares
        pairs = tolerance_pair_probs(probs)
        posterior = type_posterior(evidence, pairs, strangers.probabilities(shares))
        self.beliefs[:] = posterior.beliefs
        if len(self.trip_accept_rates):
            self.trip_accept_rates[:] = np.nan
            self.trip_accept_rates[evidence.trip] = self._trip_accept_rates(evidence, pairs, posterior)
        return {
            "acceptance/loss": -posterior.log_evidence / max(len(responses), 1),
            "acceptance/em_iterations": float(iterations),
        }

    def observe(self, responses: Responses) -> None:
        """Update the beliefs about one customer at once, under the tolerance curves of the last refit.

        The posterior over types is exact, and so are the acceptance rates of the customer's trips.

        Args:
            responses: All responses of that customer, the new one last.
        """
        customer, pairs = int(responses.customer[-1]), tolerance_pair_probs(self.tolerance_probs)
        after = self._evidence(responses)
        new = after.type_likelihood(pairs)
        gain = after.log_type_likelihood(new).sum(axis=0)
        if len(responses) > 1:
            earlier = Responses(**{name: column[:-1] for name, column in responses.arrays().items()})
            before = self._evidence(earlier)
            gain -= before.log_type_likelihood(before.type_likelihood(pairs)).sum(axis=0)
        scores = np.log(np.maximum(self.beliefs[customer], MIN_PROBABILITY)) + gain
        odds = np.exp(scores - scores.max())
        self.beliefs[customer] = odds / odds.sum()
        if len(self.trip_accept_rates):
            posterior = TypePosterior(self.beliefs, new, 0.0)
            self.trip_accept_rates[after.trip] = self._trip_accept_rates(after, pairs, posterior)

    def type_probabilities(self, customers: IntArray) -> FloatArray:
        """(customers, types); the stranger prior for a customer without responses."""
        return np.asarray(self.beliefs[customers], np.float64)

    def accept_probabilities(self, customers: IntArray, purposes: IntArray, trips: IntArray) -> FloatArray:
        """(rows, offers) probability that each customer accepts each offer on each trip."""
        types = self.type_probabilities(customers)
        return believed_accept_rates(types, self.accept_given_type, purposes, self.trip_accept_rates, trips)

    def state(self) -> Arrays:
        return {name: array.copy() for name, array in self._arrays().items()}

    def restore(self, state: State) -> None:
        fill(self._arrays(), state)

    def _evidence(self, responses: Responses) -> Evidence:
        likelihood = np.clip(self.likelihood, MIN_NOISE, 1.0 - MIN_NOISE)
        if len(self.trip_accept_rates):
            return trip_evidence(responses, likelihood, self.forgetting)
        return response_evidence(responses, likelihood, self.prior.num_purposes, self.forgetting)

    def _maximise_tolerances(self, probs: FloatArray, evidence: Evidence, posterior: TypePosterior) -> FloatArray:
        """M-step: tolerance probabilities from the expected tolerances behind all evidence."""
        pairs = tolerance_pair_probs(probs)
        weights = evidence.expected_types(posterior.beliefs) / posterior.likelihood
        expected = np.zeros_like(pairs)
        for purpose, rows in evidence.by_purpose():
            expected[:, purpose] = pairs[:, purpose] * (weights[rows].T @ evidence.likelihood[rows])
        levels = probs.shape[-1]
        expected = expected.reshape(*expected.shape[:2], levels, levels)
        totals = self.prior.tolerance_weight * self.prior.tolerance_probs
        np.add.at(totals[:, 0], SIDE_CURVES[:, 0], expected.sum(axis=3))
        np.add.at(totals[:, 1], SIDE_CURVES[:, 1], expected.sum(axis=2))
        return np.asarray(totals / totals.sum(axis=-1, keepdims=True), np.float64)

    def _maximise_shares(self, beliefs: FloatArray) -> FloatArray:
        """M-step: type shares from the expected types."""
        prior = self.prior
        totals = beliefs.sum(axis=0) + prior.type_weight * prior.type_shares
        return np.asarray(totals / totals.sum(), np.float64)

    def _trip_accept_rates(self, evidence: Evidence, pairs: FloatArray, posterior: TypePosterior) -> FloatArray:
        """(pieces, offers) P(accept | all responses) of every trip with responses."""
        weights = posterior.beliefs[evidence.customer] / posterior.likelihood
        tolerances = np.zeros_like(evidence.likelihood)
        for purpose, rows in evidence.by_purpose():
            tolerances[rows] = (weights[rows] @ pairs[:, purpose]) * evidence.likelihood[rows]
        rates = np.clip(tolerances @ self.likelihood.T, MIN_PROBABILITY, 1.0 - MIN_PROBABILITY)
        rates[:, self.prior.offers.no_change] = 1.0
        return np.asarray(rates, np.float64)

    def _arrays(self) -> Arrays:
        return {
            "tolerance_probs": self.tolerance_probs,
            "type_shares": self.type_shares,
            "beliefs": self.beliefs,
            "trip_accept_rates": self.trip_accept_rates,
        }


def bayesian_type_model(
    population: Population,
    prior: AcceptancePrior,
    *,
    trip_memory: bool = True,
    stranger_prior: bool = True,
    forgetting: float = 0.0,
) -> BayesianTypeModel:
    """The Bayesian model of a population.

    Args:
        population: Customers and trips; hidden types and tolerances are not read.
        prior: Priors over tolerances and types.
        trip_memory: Whether the tolerances of every recurring trip are remembered.
        stranger_prior: Whether customers without responses are known by their attributes.
        forgetting: Share of its weight that a response loses with every later one.
    """
    return BayesianTypeModel(
        population.size,
        prior,
        num_trips=len(population.trips.purpose) if trip_memory else 0,
        groups=customer_groups(population) if stranger_prior else (),
        forgetting=forgetting,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Responses as likelihoods of tolerance pairs.

    A piece of evidence comes from one pair of tolerances: all responses to a trip, or a single
    response (offer and outcome), which many customers may have given.
    """

    purpose: IntArray  # (pieces,), ascending
    trip: IntArray  # (pieces,) trip, or -1 without trip memory
    likelihood: FloatArray  # (pieces, levels x levels) P(responses | tolerances) / exp(log_scale)
    log_scale: FloatArray  # (pieces,)
    # Who gave which piece how often; with trip memory one row per piece, in order.
    customer: IntArray  # (rows,)
    piece: IntArray  # (rows,)
    count: FloatArray  # (rows,)

    def by_purpose(self) -> list[tuple[int, slice]]:
        """The purposes that occur and the pieces of each."""
        purposes, first = np.unique(self.purpose, return_index=True)
        ranges = pairwise([*first.tolist(), len(self.purpose)])
        return [(purpose, slice(*rows)) for purpose, rows in zip(purposes.tolist(), ranges, strict=True)]

    def type_likelihood(self, pairs: FloatArray) -> FloatArray:
        """(pieces, types) P(piece | type) / exp(log_scale), from (types, purposes, levels x levels)."""
        likelihood = np.empty((len(self.purpose), NUM_TYPES))
        for purpose, rows in self.by_purpose():
            likelihood[rows] = self.likelihood[rows] @ pairs[:, purpose].T
        return likelihood

    def log_type_likelihood(self, likelihood: FloatArray) -> FloatArray:
        """(rows, types) log P(piece | type), times how often the customer of each row gave the piece."""
        logs: FloatArray = self.count[:, None] * (np.log(likelihood) + self.log_scale[:, None])[self.piece]
        return logs

    def expected_types(self, beliefs: FloatArray) -> FloatArray:
        """(pieces, types) sum of the beliefs about those who gave each piece."""
        columns = (beliefs[self.customer] * self.count[:, None]).T
        return np.stack([np.bincount(self.piece, column, len(self.purpose)) for column in columns], axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class TypePosterior:
    """Result of exact inference under given tolerance curves."""

    beliefs: FloatArray  # (customers, types) P(type | responses)
    likelihood: FloatArray  # (pieces, types) P(piece | type), scaled like the evidence
    log_evidence: float  # log P(responses) in nats


def response_weights(groups: IntArray, forgetting: float) -> FloatArray | None:
    """(responses,) weights that fall with every later response of the same group; None if all count alike.

    Args:
        groups: (responses,) group of each response, oldest first.
        forgetting: Share of the weight that is lost with every later response.
    """
    if forgetting == 0.0:
        return None
    # The age of a response: how many later ones its group has.
    _, group, size = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    last = np.cumsum(size) - 1
    age = np.empty(len(groups), np.int64)
    age[order] = last[group[order]] - np.arange(len(groups))
    return np.asarray((1.0 - forgetting) ** age, np.float64)


def trip_evidence(responses: Responses, likelihood: FloatArray, forgetting: float = 0.0) -> Evidence:
    """A piece of evidence per trip: the product over its responses.

    Args:
        responses: Responses to offers.
        likelihood: (offers, levels x levels) P(accept | tolerances), strictly in 0..1.
        forgetting: Share of its weight that a response loses with every later one.
    """
    trip, first, piece = np.unique(responses.trip, return_index=True, return_inverse=True)
    num_offers = len(likelihood)
    cell = (responses.accepted * len(trip) + piece) * num_offers + responses.offer
    weights = response_weights(piece, forgetting)
    counts = np.bincount(cell, weights, 2 * len(trip) * num_offers).reshape(2, len(trip), num_offers)
    order = np.argsort(responses.purpose[first], kind="stable")
    refused, accepted = counts[:, order].astype(np.float64)
    log_likelihood = refused @ np.log1p(-likelihood) + accepted @ np.log(likelihood)
    log_scale = log_likelihood.max(axis=1)
    return Evidence(
        purpose=responses.purpose[first][order].astype(np.int64),
        trip=trip[order].astype(np.int64),
        likelihood=np.exp(log_likelihood - log_scale[:, None]),
        log_scale=log_scale,
        customer=responses.customer[first][order].astype(np.int64),
        piece=np.arange(len(trip)),
        count=np.ones(len(trip)),
    )


def response_evidence(
    responses: Responses, likelihood: FloatArray, num_purposes: int, forgetting: float = 0.0
) -> Evidence:
    """A piece of evidence per purpose, offer and outcome: responses are independent given the type.

    Arguments as in `trip_evidence`.
    """
    num_offers = len(likelihood)
    outcomes = np.stack([1.0 - likelihood, likelihood], axis=1).reshape(2 * num_offers, -1)
    pieces = num_purposes * len(outcomes)
    cell = (responses.purpose.astype(np.int64) * num_offers + responses.offer) * 2 + responses.accepted
    customer = responses.customer.astype(np.int64)
    given, row = np.unique(customer * pieces + cell, return_inverse=True)
    weights = response_weights(customer * num_purposes + responses.purpose, forgetting)
    count = np.bincount(row, weights, len(given))
    return Evidence(
        purpose=np.repeat(np.arange(num_purposes), len(outcomes)),
        trip=np.full(pieces, -1),
        likelihood=np.tile(outcomes, (num_purposes, 1)),
        log_scale=np.zeros(pieces),
        customer=given // pieces,
        piece=given % pieces,
        count=count.astype(np.float64),
    )


def type_posterior(evidence: Evidence, pairs: FloatArray, prior: FloatArray) -> TypePosterior:
    """P(type | responses) of every customer, summed over the tolerances of every trip.

    Args:
        evidence: The responses.
        pairs: (types, purposes, levels x levels) P(tolerances | type, purpose).
        prior: (customers, types) P(type) before any response.
    """
    likelihood = evidence.type_likelihood(pairs)
    logs = evidence.count[:, None] * np.log(likelihood)[evidence.piece]
    scores = np.log(np.maximum(prior, MIN_PROBABILITY))
    scores += np.stack([np.bincount(evidence.customer, column, len(prior)) for column in logs.T], axis=1)
    highest = scores.max(axis=1, keepdims=True)
    odds = np.exp(scores - highest)
    total = odds.sum(axis=1, keepdims=True)
    log_evidence = float((highest + np.log(total)).sum() + evidence.count @ evidence.log_scale[evidence.piece])
    return TypePosterior(np.asarray(odds / total, np.float64), likelihood, log_evidence)
