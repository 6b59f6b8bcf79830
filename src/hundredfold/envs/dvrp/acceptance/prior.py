"""How people answer, known up to their type: the shape of the answer model and what to start from.

A trip tolerates some minutes on each side; an offer is accepted when it stays within both. What a
trip tolerates depends on its purpose and on whether its owner bends on that side. So the model is a
set of curves: for each stance, side and purpose, the chance of every tolerance. Nothing here looks
at anybody's hidden type or tolerances; the rule the built-in people are drawn by is public.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.envs.dvrp.offers import NO_CHANGE, OFFER_MINUTES, tolerated_offers
from hundredfold.envs.dvrp.population import (
    FLEXIBLE_BASE,
    FLEXIBLE_SIDES,
    INFLEXIBLE_BASE,
    NUM_TYPES,
    TOLERANCE_GRID,
    TOLERANCE_SPREAD,
    TYPE_SHARES,
)
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.trip_purposes import TOLERANCE_FACTORS

# The tolerances that offers can tell apart, in minutes.
LEVELS: Final[FloatArray] = np.array([0.0, 10.0, 20.0, 30.0])
NUM_LEVELS: Final = len(LEVELS)
# (types, 2): the stance of each type on each side, 0 stiff and 1 flexible.
STANCES: Final[IntArray] = FLEXIBLE_SIDES.astype(np.int64)
# Even where the rule is strict, one odd answer must not rule a type out for ever.
TINY: Final = 1e-6

# The share of trips that tolerate 0, 10, 20 and 30 minutes where nobody has told us the rule:
# rounded guesses, and worth so few answers that a day of real ones replaces them.
GUESSED_STIFF: Final = (1.0, 0.40, 0.15, 0.05)
GUESSED_FLEXIBLE: Final = (1.0, 0.85, 0.55, 0.30)


@dataclass(frozen=True, slots=True, eq=False)
class AcceptancePrior:
    """What is believed before the first answer, and how many answers that belief is worth."""

    levels: FloatArray  # (stances, sides, purposes, levels) the chance of each tolerance
    shares: FloatArray  # (types,) the share of each type among people
    answers_worth: float  # per curve
    people_worth: float
    noise: float = 0.0  # the chance that an answer is the opposite of what was meant

    @property
    def num_purposes(self) -> int:
        return int(self.levels.shape[2])

    @property
    def accept(self) -> FloatArray:
        """(types, purposes, offers) the chance of acceptance."""
        return accept_rates(self.levels, answer_chances(self.noise))


def prior_for(settings: DvrpSettings) -> AcceptancePrior:
    """The rule of the built-in people, or a guess where the answers come from a user's files."""
    in_files = settings.trips is not None
    if in_files and (settings.tolerances == "soft" or settings.recorded_responses is not None):
        return guessed_prior(len(TOLERANCE_FACTORS), settings.response_noise)
    # The shares of types are part of the built-in rule; of a user's people they are not known.
    return AcceptancePrior(
        levels=_levels(rule_survival(settings)),
        shares=np.full(NUM_TYPES, 1.0 / NUM_TYPES) if in_files else np.array(TYPE_SHARES),
        answers_worth=1000.0,
        people_worth=4.0 if in_files else 100.0,
        noise=settings.response_noise,
    )


def guessed_prior(num_purposes: int, noise: float = 0.0) -> AcceptancePrior:
    """Flexible sides bend more than stiff ones, the same for every purpose; little more."""
    stances = np.array([GUESSED_STIFF, GUESSED_FLEXIBLE])[:, None, None, :]
    return AcceptancePrior(
        levels=_levels(np.broadcast_to(stances, (2, 2, num_purposes, NUM_LEVELS))),
        shares=np.full(NUM_TYPES, 1.0 / NUM_TYPES),
        answers_worth=3.0,
        people_worth=4.0,
        noise=noise,
    )


def rule_survival(settings: DvrpSettings) -> FloatArray:
    """(stances, sides, purposes, levels): chance that a drawn tolerance reaches each level."""
    shape = (2, 2, len(TOLERANCE_FACTORS), NUM_LEVELS)
    if settings.tolerances == "unlimited":
        return np.ones(shape)
    if settings.tolerances == "types":
        stances = np.array([(1.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0)])
        return np.array(np.broadcast_to(stances[:, None, None, :], shape))
    base = np.array((INFLEXIBLE_BASE * settings.softness, FLEXIBLE_BASE))
    mean = base[:, None, None, None] * np.array(TOLERANCE_FACTORS)[:, None]
    # Tolerances are rounded to their grid: half a step below a level is enough to reach it.
    reached = _normal_cdf((mean - (LEVELS - TOLERANCE_GRID / 2.0)) / TOLERANCE_SPREAD)
    reached[..., 0] = 1.0
    return np.array(np.broadcast_to(reached, shape))


def answer_chances(noise: float) -> FloatArray:
    """(offers, levels x levels): the chance that each pair of tolerances accepts each offer."""
    pairs = np.stack(np.meshgrid(LEVELS, LEVELS, indexing="ij"), axis=-1).reshape(-1, 2)
    chances = np.where(tolerated_offers(pairs).T, 1.0 - noise, noise)
    chances[NO_CHANGE] = 1.0
    return chances


def level_pairs(levels: FloatArray) -> FloatArray:
    """(types, purposes, levels x levels): the chance of each pair of tolerances."""
    earlier, later = levels[STANCES[:, 0], 0], levels[STANCES[:, 1], 1]
    pairs = earlier[..., :, None] * later[..., None, :]
    return np.asarray(pairs.reshape(*pairs.shape[:2], -1), np.float64)


def accept_rates(levels: FloatArray, chances: FloatArray) -> FloatArray:
    """(types, purposes, offers) the chance of acceptance; never quite 0 or 1 save for offer 12."""
    rates = np.clip(level_pairs(levels) @ chances.T, TINY, 1.0 - TINY)
    rates[..., NO_CHANGE] = 1.0
    return np.asarray(rates, np.float64)


def strict_rates(num_purposes: int) -> FloatArray:
    """(types, purposes, offers): flexible sides accept everything, stiff ones nothing."""
    tolerance = np.where(FLEXIBLE_SIDES, OFFER_MINUTES.max(), 0.0)
    rates = np.where(tolerated_offers(tolerance), 1.0 - TINY, TINY)
    rates[:, NO_CHANGE] = 1.0
    return np.repeat(rates[:, None, :], num_purposes, axis=1)


def _levels(survival: FloatArray) -> FloatArray:
    """From the chance of reaching each level to the chance of stopping at it."""
    stops = survival.copy()
    stops[..., :-1] -= survival[..., 1:]
    stops = np.maximum(stops, TINY)
    return np.asarray(stops / stops.sum(axis=-1, keepdims=True), np.float64)


def _normal_cdf(values: FloatArray) -> FloatArray:
    flat = [0.5 * (1.0 + math.erf(value / math.sqrt(2.0))) for value in values.ravel()]
    return np.array(flat).reshape(values.shape)
