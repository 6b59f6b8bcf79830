"""How well flexibility was learned: figures of merit, for whoever may know the truth.

Beliefs are (people, types) probabilities; truth is one type per person. `bayes_optimal_accuracy`
says how much of the truth the same answers could have told at best.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hundredfold.core.batch import BoolArray, FloatArray, IntArray
from hundredfold.envs.dvrp.acceptance.bayes import posterior
from hundredfold.envs.dvrp.acceptance.prior import TINY
from hundredfold.envs.dvrp.acceptance.responses import Responses
from hundredfold.envs.dvrp.offers import NO_CHANGE, NUM_OFFERS
from hundredfold.envs.dvrp.population import NUM_TYPES, Population


def accuracy(beliefs: FloatArray, truth: IntArray) -> float:
    """The share of people whose most likely type is the true one; nan without people."""
    return _mean(beliefs.argmax(axis=1) == truth)


def confusion(beliefs: FloatArray, truth: IntArray) -> IntArray:
    """(true type, most likely type) numbers of people."""
    cell = truth * NUM_TYPES + beliefs.argmax(axis=1)
    return np.bincount(cell, minlength=NUM_TYPES**2).reshape(NUM_TYPES, NUM_TYPES)


def log_loss(beliefs: FloatArray, truth: IntArray) -> float:
    """Mean of -log P(true type), in nats; log 4 = 1.39 for somebody who knows nothing."""
    told = beliefs[np.arange(len(truth)), truth]
    return _mean(-np.log(np.maximum(told, TINY)))


def brier(beliefs: FloatArray, truth: IntArray) -> float:
    """Mean squared distance from the truth: 0 at best, 0.75 for knowing nothing, 2 at worst."""
    return _mean(((beliefs - np.eye(NUM_TYPES)[truth]) ** 2).sum(axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Whether offers believed to be accepted with chance p are accepted with frequency p."""

    predicted: FloatArray  # (bins,) mean prediction, nan in empty bins
    observed: FloatArray  # (bins,) share accepted, nan in empty bins
    count: IntArray  # (bins,)

    @property
    def error(self) -> float:
        """Mean gap between the two, weighted by count."""
        filled = self.count > 0
        gap = np.abs(self.predicted[filled] - self.observed[filled])
        return float(gap @ self.count[filled] / self.count.sum()) if filled.any() else np.nan


def calibration(predicted: FloatArray, accepted: BoolArray, bins: int = 10) -> Calibration:
    """Predictions in equal bins of [0, 1] against what happened; both (answers,)."""
    place = np.minimum((predicted * bins).astype(np.int64), bins - 1)
    count = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        return Calibration(
            predicted=np.bincount(place, predicted, bins) / count,
            observed=np.bincount(place, accepted, bins) / count,
            count=count,
        )


def masked_away_share(mask: BoolArray, acceptable: BoolArray) -> float:
    """The share of real offers somebody would accept that a mask forbids; both (rows, offers)."""
    real = np.arange(NUM_OFFERS) != NO_CHANGE
    return _mean(~mask[:, real][acceptable[:, real]])


def refused_share(offers: IntArray, accepted: BoolArray) -> float:
    """The share of real offers that were refused; both of one shape."""
    return _mean(~accepted[offers != NO_CHANGE])


def responses_until_confident(
    answers: Responses,
    num_people: int,
    accept_given_type: FloatArray,
    shares: FloatArray,
    level: float = 0.9,
) -> FloatArray:
    """(people,) answers until some type's posterior reached the level; nan where none did.

    The answers are replayed in their order under one fixed answer model.
    """
    order = np.argsort(answers.person, kind="stable")
    person = answers.person[order].astype(np.int64)
    rates = accept_given_type[:, answers.purpose[order], answers.offer[order]].T
    chance = np.where(answers.accepted[order, None], rates, 1.0 - rates)
    running = np.cumsum(np.log(np.maximum(chance, TINY)), axis=0)
    number = np.bincount(person, minlength=num_people)
    first = np.cumsum(number) - number
    before = np.concatenate([np.zeros((1, NUM_TYPES)), running])[first[person]]
    scores = running - before + np.log(np.maximum(shares, TINY))
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    sure = odds.max(axis=1) / odds.sum(axis=1) >= level
    needed = np.full(num_people, np.inf)
    np.minimum.at(needed, person[sure], (np.arange(len(person)) - first[person] + 1)[sure])
    return np.where(np.isfinite(needed), needed, np.nan)


def true_accept_rates(
    population: Population, fallback: FloatArray, noise: float = 0.0
) -> FloatArray:
    """(types, purposes, offers) how often known people's known trips truly accept.

    The fallback counts as half a trip: it speaks where no trip of a type has a purpose.
    """
    person = np.repeat(np.arange(population.size), population.customers.num_trips)
    number = np.arange(len(person)) - population.first_trip[person]
    known = (person < population.customers.num_known) & (
        number < population.num_known_trips[person]
    )
    at = (population.customers.types[person[known]], population.trips.purpose[known])
    accepted = 0.5 * fallback
    trips = np.full((*fallback.shape[:2], 1), 0.5)
    meant = population.accepts[known]
    told = np.where(np.arange(NUM_OFFERS) == NO_CHANGE, meant, meant + noise * (1.0 - 2.0 * meant))
    np.add.at(accepted, at, told)
    np.add.at(trips, at, 1.0)
    return np.asarray(accepted / trips, np.float64)


def bayes_optimal_accuracy(answers: Responses, truth: IntArray, true_rates: FloatArray) -> float:
    """Accuracy on the same answers of somebody who knows how each type truly answers.

    `truth` has everybody's type; only people who answered are counted.
    """
    counts = answers.counts(len(truth), true_rates.shape[1])
    heard = counts.sum(axis=(0, 2)) > 0
    shares = np.bincount(truth[heard], minlength=NUM_TYPES) / max(heard.sum(), 1)
    beliefs, _ = posterior(counts[:, heard], true_rates, shares)
    return accuracy(beliefs, truth[heard])


def _mean(values: FloatArray | BoolArray) -> float:
    return float(np.mean(values)) if len(values) else np.nan
