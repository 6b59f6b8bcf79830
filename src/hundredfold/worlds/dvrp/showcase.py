"""What a run has to show for itself, as plain numbers that can be drawn without this package.

A trained policy plays some days beside rules that need no learning, all priced by one closing
oracle. Kept are the rows of that comparison, one ordinary day with its routes before and after
negotiation, who was offered what and said yes, and how well a companion knows its customers.
`report/` draws the page from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.core.contracts import Knowledge
from hundredfold.oracles.insertion import InsertionOracle, InsertionSettings
from hundredfold.oracles.problem import Oracle, RoutePlans, RouteProblems
from hundredfold.worlds.dvrp.customers import NUM_TYPES, TYPE_NAMES, Population
from hundredfold.worlds.dvrp.evaluation import (
    EVALUATION_SEED,
    SPLITS,
    Advice,
    PlayedDays,
    Row,
    evaluate_policy,
    judged,
    play_days,
)
from hundredfold.worlds.dvrp.offers import NUM_OFFERS, OFFER_MINUTES
from hundredfold.worlds.dvrp.policies import BELIEVING, OfferPolicy
from hundredfold.worlds.dvrp.pricing import day_problems
from hundredfold.worlds.dvrp.purposes import PURPOSE_NAMES
from hundredfold.worlds.dvrp.settings import DvrpSettings
from hundredfold.worlds.dvrp.showcase_beliefs import companion_record
from hundredfold.worlds.dvrp.showcase_day import ordinary_day

Showcase = dict[str, Any]

FORMAT: Final = 1
RULES: Final = (
    "none",
    "random",
    "greedy_expected",
    "largest_believed",
    "largest_known",
    "hindsight",
)
THIS_RUN: Final = "this run"


def record_showcase(
    act: OfferPolicy,
    settings: DvrpSettings,
    *,
    knowledge: Knowledge | None = None,
    days: int = 128,
    seed: int = EVALUATION_SEED,
    rules: Sequence[str] = RULES,
    trade_off: Sequence[Row] = (),
    tick: Callable[[str], None] = lambda doing: None,
) -> Showcase:
    """Play and price some days; everything in what comes back can be written as JSON.

    `knowledge` is what the companion last told the worlds; the policy sees it, rules that believe
    believe it, and without it these rules are left out. `trade_off` are rows of `TradeOff.row`;
    those with a price become curves, one per policy. `tick` hears who plays.
    """
    settings = replace(settings, split="known")
    closing = RememberedPlans(InsertionOracle(InsertionSettings(threads=os.cpu_count() or 1)))
    tick(THIS_RUN)
    played, population = play_days(act, settings, days, seed, knowledge=knowledge)
    rows: list[Row] = [
        {"policy": THIS_RUN, "split": "known", **judged(played, population, settings, closing)}
    ]
    before, after = (
        closing.solve(
            day_problems(played.cells, windows, played.max_ride_minutes, population, settings)
        )
        for windows in (played.asked_windows, played.booked_windows)
    )
    options: dict[str, Any] = {"days": days, "seed": seed, "closing": closing}
    for split in SPLITS[1:]:
        if len(population.callers(split)[0]) >= settings.num_customers:
            rows += evaluate_policy(
                act, settings, splits=(split,), name=THIS_RUN, knowledge=knowledge, **options
            )
    companion: Showcase | None = None
    if knowledge is not None:
        options["advice"] = Advice(believer=ToldBeliefs(knowledge))
        at_random, _ = play_days("random", settings, days, seed)
        companion = companion_record(
            played, at_random, population, knowledge, settings.answer_noise
        )
    for rule in rules:
        if knowledge is not None or rule not in BELIEVING:
            tick(rule)
            rows += evaluate_policy(rule, settings, splits=("known",), **options)
    return {
        "format": FORMAT,
        "days": days,
        "seed": seed,
        "num_customers": settings.num_customers,
        "types": list(TYPE_NAMES),
        "purposes": list(PURPOSE_NAMES),
        "offers": OFFER_MINUTES.astype(int).tolist(),
        "policies": rows,
        "trade_off": [dict(row) for row in trade_off],
        "day": ordinary_day(played, before, after, population, settings),
        "answers": answer_counts(played, population),
        "companion": companion,
    }


class ToldBeliefs:
    """A believer that says what a companion told the worlds."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.types = np.asarray(knowledge["type_probabilities"], np.float64)
        self.rates = np.asarray(knowledge["accept_given_type"], np.float64)

    @property
    def accept_given_type(self) -> FloatArray:
        """(types, purposes, offers)."""
        return self.rates

    def type_probabilities(self, people: IntArray) -> FloatArray:
        """(callers, types)."""
        return self.types[people]

    def accept_probabilities(self, people: IntArray, purposes: IntArray) -> FloatArray:
        """(callers, offers) the chance that each person accepts each offer on such a trip."""
        return np.asarray(np.einsum("ct,tco->co", self.types[people], self.rates[:, purposes]))


class RememberedPlans:
    """An oracle that is asked for the same batch of books again and again, and solves it once."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.found: dict[bytes, RoutePlans] = {}

    def solve(self, problems: RouteProblems) -> RoutePlans:
        """Plans of these books; the fleet is taken to be the same at every call."""
        asked = (problems.cells, problems.windows, problems.max_ride_minutes)
        key = b"".join(array.tobytes() for array in asked)
        if key not in self.found:
            self.found[key] = self.oracle.solve(problems)
        return self.found[key]


def answer_counts(played: PlayedDays, population: Population) -> Showcase:
    """How often each offer was made and accepted, by personality and by purpose."""
    types = population.people.types[played.customer_id]
    purposes = population.trips.purpose[played.trip_id]
    return {
        "by_type": _made_and_accepted(types, NUM_TYPES, played),
        "by_purpose": _made_and_accepted(purposes, len(PURPOSE_NAMES), played),
    }


def _made_and_accepted(groups: IntArray, num_groups: int, played: PlayedDays) -> Showcase:
    """Counts of (groups, offers); offer 12 counts the callers who were booked as they asked."""
    made = np.zeros((num_groups, NUM_OFFERS), np.int64)
    accepted = np.zeros_like(made)
    going = ~played.failed
    np.add.at(made, (groups[going], played.offers[going]), 1)
    np.add.at(accepted, (groups[going], played.offers[going]), played.accepted[going])
    return {"made": made.tolist(), "accepted": accepted.tolist()}
