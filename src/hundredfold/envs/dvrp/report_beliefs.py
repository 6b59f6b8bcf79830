"""How well an acceptance model knows its customers, evaluated on days it did not learn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from hundredfold.core.batch import BoolArray, FloatArray, IntArray
from hundredfold.core.protocols import SharedParams
from hundredfold.envs.dvrp.evaluation import SimulatedDays
from hundredfold.envs.dvrp.offers import NO_CHANGE, NUM_OFFERS
from hundredfold.envs.dvrp.population import NUM_TYPES, Population
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES

Record = dict[str, Any]

MAX_ANSWERS: Final = 32
CALIBRATION_BINS: Final = 10
# No answer is taken to be impossible: one surprise must not rule a type out for ever.
LEAST_CHANCE: Final = 1e-3


def belief_record(
    played: SimulatedDays,
    asked_at_random: SimulatedDays,
    population: Population,
    shared_params: SharedParams,
    noise: float = 0.0,
) -> Record:
    """Types told apart, how soon, and whether believed chances of acceptance are true.

    How soon is told by answers to random offers: a policy that has learned whom to ask hardly asks
    the others any more.
    """
    believed_types = np.asarray(shared_params["type_probabilities"], np.float64)
    rates = np.asarray(shared_params["accept_given_type"], np.float64)
    known = population.customers.num_known
    types = population.customers.types[:known]
    guesses = believed_types[:known].argmax(axis=1)
    confusion = np.zeros((NUM_TYPES, NUM_TYPES), np.int64)
    np.add.at(confusion, (types, guesses), 1)
    heard = np.asarray(shared_params["response_counts"], np.float64)[:known]
    return {
        "people": known,
        "answers_per_person": float(np.median(heard)),
        "confusion": confusion.tolist(),
        "accuracy": float((guesses == types).mean()),
        "by_answers": accuracy_by_answers(
            asked_at_random,
            population,
            {
                "acceptance_model": (believed_types[:known].mean(axis=0), rates),
                "true rates": (population.type_prior, true_rates(population, noise)),
            },
        ),
        "calibration": calibration(played, population, believed_types, rates, noise),
    }


def true_rates(population: Population, noise: float = 0.0) -> FloatArray:
    """(types, purposes, offers) how often known people accept on known trips, as they answer.

    What never occurs takes the mean of its type.
    """
    person = np.repeat(np.arange(population.size), population.customers.num_trips)
    number = np.arange(len(person)) - population.first_trip[person]
    known = (person < population.customers.num_known) & (
        number < population.num_known_trips[person]
    )
    at = (population.customers.types[person[known]], population.trips.purpose[known])
    yes = np.zeros((NUM_TYPES, len(PURPOSE_NAMES), NUM_OFFERS))
    trips = np.zeros((NUM_TYPES, len(PURPOSE_NAMES), 1))
    np.add.at(yes, at, heard_answers(population.accepts[known], noise))
    np.add.at(trips, at, 1.0)
    of_type = yes.sum(axis=1) / np.maximum(trips.sum(axis=1), 1.0)
    return np.where(trips > 0, yes / np.maximum(trips, 1.0), of_type[:, None])


def heard_answers(meant: BoolArray, noise: float) -> FloatArray:
    """The chance of hearing a yes where noise turns some answers into their opposite."""
    return np.asarray(np.where(meant, 1.0 - noise, noise), np.float64)


def accuracy_by_answers(
    played: SimulatedDays,
    population: Population,
    models: Mapping[str, tuple[FloatArray, FloatArray]],
) -> Record:
    """How often the most likely type is the true one after 0, 1, 2, ... answers, for each model.

    A model is the shares of the types and its rates (types, purposes, offers). Everybody's answers
    on the played days are cut into lists of equal length, and each list is read from nothing.
    """
    day, call = np.nonzero((played.offers != NO_CHANGE) & ~played.failed[:, None])
    person = played.customer_id[day, call]
    order = np.argsort(person, kind="stable")
    day, call, person = day[order], call[order], person[order]
    rank = np.arange(len(person)) - np.searchsorted(person, person)
    counts = np.bincount(person)
    usual = int(np.median(counts[counts > 0])) if len(person) else 0
    length = min(MAX_ANSWERS, usual)
    if length == 0:
        return {"answers": [], "lists": 0, "accuracy": {}}
    whole = rank < counts[person] // length * length
    day, call, person, rank = day[whole], call[whole], person[whole], rank[whole]
    lists = (len(person) // length, length)
    purposes = population.trips.purpose[played.trip_id[day, call]]
    offers, accepted = played.offers[day, call], played.accepted[day, call]
    types = population.customers.types[person].reshape(lists)[:, 0]
    return {
        "answers": list(range(length + 1)),
        "lists": lists[0],
        "accuracy": {
            name: _accuracy(shares, rates, purposes, offers, accepted, types, lists)
            for name, (shares, rates) in models.items()
        },
    }


def _accuracy(
    shares: FloatArray,
    rates: FloatArray,
    purposes: IntArray,
    offers: IntArray,
    accepted: BoolArray,
    types: IntArray,
    lists: tuple[int, int],
) -> list[float]:
    chance = np.clip(rates[:, purposes, offers], LEAST_CHANCE, 1.0 - LEAST_CHANCE)
    evidence = np.log(np.where(accepted, chance, 1.0 - chance)).reshape(NUM_TYPES, *lists)
    belief = np.log(np.maximum(shares, LEAST_CHANCE))[:, None, None] + np.concatenate(
        [np.zeros((NUM_TYPES, lists[0], 1)), evidence.cumsum(axis=2)], axis=2
    )
    right = belief.argmax(axis=0) == types[:, None]
    return [round(float(share), 4) for share in right.mean(axis=0)]


def calibration(
    played: SimulatedDays,
    population: Population,
    believed_types: FloatArray,
    rates: FloatArray,
    noise: float,
) -> Record:
    """Of the offers believed to be accepted with some chance, how many are.

    Once for every offer that could have been made on the played days, whose answers are looked up,
    and once for those that were made.
    """
    trip = played.trip_id
    given_type = rates[:, population.trips.purpose[trip]]
    believed = np.einsum("dct,tdco->dco", believed_types[played.customer_id], given_type)
    possible = population.allowed[trip].copy()
    possible[..., NO_CHANGE] = False
    made = np.zeros_like(possible)
    np.put_along_axis(made, played.offers[..., None], True, axis=2)
    made &= possible & ~played.failed[:, None, None]
    heard = heard_answers(population.accepts[trip], noise)
    answered = np.broadcast_to(played.accepted[..., None], made.shape).astype(np.float64)
    return {
        "possible": _bins(believed[possible], heard[possible]),
        "made": _bins(believed[made], answered[made]),
    }


def _bins(believed: FloatArray, accepted: FloatArray) -> Record:
    """Means over bins of equal width; empty ones are left out. `accepted` is 0, 1 or a chance."""
    place = np.minimum((believed * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    count = np.bincount(place, minlength=CALIBRATION_BINS)
    filled = count > 0
    means = [
        (np.bincount(place, values, CALIBRATION_BINS)[filled] / count[filled]).round(4).tolist()
        for values in (believed, accepted)
    ]
    squares = accepted * (1.0 - believed) ** 2 + (1.0 - accepted) * believed**2
    return {
        "believed": means[0],
        "accepted": means[1],
        "count": count[filled].tolist(),
        "brier": round(float(squares.mean()), 4) if len(squares) else None,
    }
