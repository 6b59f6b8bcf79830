"""Metrics of acceptance models: of believed types, and of predicted responses.

Beliefs are (customers, types) probabilities, the truth is one type per customer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hundredfold.core.batch import Array, BoolArray, FloatArray, IntArray
from hundredfold.envs.dvrp.acceptance.model import MIN_PROBABILITY, Responses
from hundredfold.envs.dvrp.heuristics import AcceptanceBeliefs
from hundredfold.envs.dvrp.population import NUM_TYPES, Population
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES

# Least P(response | type) in `accuracy_by_responses`: one odd response must not rule a type out.
MIN_LIKELIHOOD: Final = 1e-3


def accuracy(beliefs: FloatArray, truth: IntArray) -> float:
    """Share of customers whose most likely type is the true one; NaN without customers."""
    return _mean(beliefs.argmax(axis=1) == truth)


def confusion(beliefs: FloatArray, truth: IntArray) -> IntArray:
    """(true type, most likely type) numbers of customers."""
    cell = truth * NUM_TYPES + beliefs.argmax(axis=1)
    return np.bincount(cell, minlength=NUM_TYPES**2).reshape(NUM_TYPES, NUM_TYPES)


def log_loss(beliefs: FloatArray, truth: IntArray) -> float:
    """Mean of -log P(true type) in nats; log 4 = 1.39 for uniform beliefs."""
    believed = beliefs[np.arange(len(truth)), truth]
    return _mean(-np.log(np.maximum(believed, MIN_PROBABILITY)))


def brier_score(beliefs: FloatArray, truth: IntArray) -> float:
    """Multi-class Brier score (Brier 1950): 0 at best, 0.75 for uniform beliefs, 2 at worst."""
    return _mean(((beliefs - np.eye(NUM_TYPES)[truth]) ** 2).sum(axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Reliability diagram: predicted against observed acceptance, in bins of equal width."""

    predicted: FloatArray  # (bins,) mean prediction, NaN in empty bins
    observed: FloatArray  # (bins,) share accepted, NaN in empty bins
    count: IntArray  # (bins,)
    brier_score: float  # NaN without predictions

    @property
    def error(self) -> float:
        """Expected calibration error: mean gap between the two, weighted by count."""
        filled = self.count > 0
        gap = np.abs(self.predicted[filled] - self.observed[filled])
        return float(gap @ self.count[filled] / self.count.sum()) if filled.any() else np.nan


def calibration(predicted: FloatArray, accepted: Array, bins: int = 10) -> Calibration:
    """Calibration of acceptance probabilities.

    Args:
        predicted: (offers,) predicted probabilities of acceptance.
        accepted: (offers,) whether they were accepted, or the true probability of it.
        bins: Number of bins of [0, 1].
    """
    place = np.minimum((predicted * bins).astype(np.int64), bins - 1)
    count = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        return Calibration(
            predicted=np.bincount(place, predicted, bins) / count,
            observed=np.bincount(place, accepted, bins) / count,
            count=count,
            brier_score=prediction_scores(predicted, accepted).brier_score,
        )


@dataclass(frozen=True, slots=True)
class PredictionScores:
    """How well acceptance probabilities predicted the responses to some offers."""

    offers: int
    predicted: float  # mean predicted probability of acceptance
    accepted: float  # share accepted; calibrated predictions have the same mean
    brier_score: float  # 0 at best, 0.25 for a coin
    log_loss: float  # nats, 0 at best, 0.69 for a coin


def prediction_scores(predicted: FloatArray, accepted: Array) -> PredictionScores:
    """Scores of predictions; NaN without offers.

    Args:
        predicted: (offers,) predicted probabilities of acceptance.
        accepted: (offers,) whether they were accepted, or the true probability of it.
    """
    sure = np.clip(predicted, MIN_PROBABILITY, 1.0 - MIN_PROBABILITY)
    return PredictionScores(
        offers=len(predicted),
        predicted=_mean(predicted),
        accepted=_mean(np.asarray(accepted, np.float64)),
        brier_score=_mean(accepted * (1.0 - predicted) ** 2 + (1.0 - accepted) * predicted**2),
        log_loss=_mean(-(accepted * np.log(sure) + (1.0 - accepted) * np.log1p(-sure))),
    )


def predicted_responses(beliefs: AcceptanceBeliefs, responses: Responses) -> FloatArray:
    """(responses,) believed probability that each offer is accepted."""
    columns = (responses.customer, responses.purpose, responses.trip)
    probabilities = beliefs.accept_probabilities(*(column.astype(np.int64) for column in columns))
    return np.asarray(probabilities[np.arange(len(responses)), responses.offer], np.float64)


def responses_until_confident(
    responses: Responses, population_size: int, accept_given_type: FloatArray, shares: FloatArray, level: float = 0.9
) -> FloatArray:
    """(customers,) responses until a type's posterior reaches `level`; NaN where none does.

    The responses are replayed in order under fixed acceptance rates.
    """
    order = np.argsort(responses.customer, kind="stable")
    customer = responses.customer[order].astype(np.int64)
    rates = accept_given_type[:, responses.purpose[order], responses.offer[order]].T
    likelihood = np.where(responses.accepted[order, None], rates, 1.0 - rates)
    running = np.cumsum(np.log(np.maximum(likelihood, MIN_PROBABILITY)), axis=0)
    number = np.bincount(customer, minlength=population_size)
    first = np.cumsum(number) - number
    before = np.concatenate([np.zeros((1, NUM_TYPES)), running])[first[customer]]
    scores = running - before + np.log(np.maximum(shares, MIN_PROBABILITY))
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    confident = odds.max(axis=1) / odds.sum(axis=1) >= level
    needed = np.full(population_size, np.inf)
    rank = np.arange(len(customer)) - first[customer] + 1
    np.minimum.at(needed, customer[confident], rank[confident])
    return np.where(np.isfinite(needed), needed, np.nan)


def accuracy_by_responses(rates: FloatArray, accepted: BoolArray, shares: FloatArray, truth: IntArray) -> FloatArray:
    """(responses + 1,) type accuracy after 0, 1, 2, ... responses.

    Args:
        rates: (types, sequences, responses) P(accept | type) of each offer made.
        accepted: (sequences, responses) whether it was accepted.
        shares: (types,) prior probability of each type.
        truth: (sequences,) true type of the customer behind each sequence.
    """
    rates = np.clip(rates, MIN_LIKELIHOOD, 1.0 - MIN_LIKELIHOOD)
    evidence = np.log(np.where(accepted, rates, 1.0 - rates))
    start = np.zeros((*evidence.shape[:2], 1))
    log_prior = np.log(np.maximum(shares, MIN_LIKELIHOOD))[:, None, None]
    beliefs = log_prior + np.concatenate([start, evidence.cumsum(axis=2)], axis=2)
    correct = beliefs.argmax(axis=0) == truth[:, None]
    return np.asarray(correct.mean(axis=0), np.float64)


def response_rates(accepts: BoolArray, noise: float, no_change: int) -> FloatArray:
    """P(accepted) of (..., offers) true decisions; noise never flips no change."""
    flipped = np.where(accepts, 1.0 - noise, noise)
    return np.where(np.arange(accepts.shape[-1]) == no_change, accepts, flipped)


def true_accept_rates(population: Population, prior_rates: FloatArray | None = None, noise: float = 0.0) -> FloatArray:
    """(types, purposes, offers) true acceptance rates over known trips of known customers.

    Args:
        population: The customers and their trips.
        prior_rates: (types, purposes, offers) rates that count as half a trip. Without them, a
            purpose that a type never travels for gets the type's mean.
        noise: Probability that a response is the opposite of what was meant.
    """
    customer = np.repeat(np.arange(population.size), population.customers.num_trips)
    number = np.arange(len(customer)) - population.first_trip[customer]
    known = (customer < population.customers.num_known) & (number < population.num_known_trips[customer])
    at = (population.customers.types[customer[known]], population.trips.purpose[known])
    shape = (NUM_TYPES, len(PURPOSE_NAMES))
    accepted = np.zeros((*shape, population.offers.num_offers)) if prior_rates is None else 0.5 * prior_rates
    trips = np.full((*shape, 1), 0.0 if prior_rates is None else 0.5)
    np.add.at(accepted, at, response_rates(population.accepts[known], noise, population.offers.no_change))
    np.add.at(trips, at, 1.0)
    type_means = accepted.sum(axis=1) / np.maximum(trips.sum(axis=1), 1.0)
    has_trips = trips > 0
    return np.where(has_trips, accepted / np.where(has_trips, trips, 1.0), type_means[:, None])


def bayes_optimal_accuracy(responses: Responses, truth: IntArray, true_rates: FloatArray) -> float:
    """Type accuracy that the true acceptance rates would reach on the same responses.

    Responses are taken to be independent given the type, as if each were to a trip of its own.

    Args:
        responses: Responses of some customers.
        truth: (customers,) every customer's type; only those with responses are counted.
        true_rates: (types, purposes, offers) true acceptance rates.
    """
    counts = responses.counts(len(truth), *true_rates.shape[1:])
    responded = counts.sum(axis=(0, 2)) > 0
    shares = np.bincount(truth[responded], minlength=NUM_TYPES) / max(responded.sum(), 1)
    rates = np.clip(true_rates.reshape(NUM_TYPES, -1), MIN_PROBABILITY, 1.0 - MIN_PROBABILITY)
    refused, accepted = counts[:, responded]
    scores = refused @ np.log1p(-rates).T + accepted @ np.log(rates).T
    return accuracy(scores + np.log(np.maximum(shares, MIN_PROBABILITY)), truth[responded])


def _mean(values: FloatArray | BoolArray) -> float:
    return float(np.mean(values)) if len(values) else np.nan
