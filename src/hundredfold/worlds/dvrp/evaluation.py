"""How good a policy is: paired days, one closing oracle for everybody, an honest interval.

Every policy plays the same days. Afterwards the agent's bookings and the same day as it was asked
are priced from nothing by one patient oracle, so nobody can win by the quirks of the plan that was
kept while booking. A day on which somebody could not be served counts as -100 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from hundredfold.core.batch import Array, BoolArray, FloatArray, IntArray
from hundredfold.core.statistics import bootstrap_interval
from hundredfold.oracles.insertion import InsertionOracle, InsertionSettings
from hundredfold.oracles.problem import Oracle
from hundredfold.worlds.dvrp.customers import Population
from hundredfold.worlds.dvrp.offers import NO_CHANGE, TOTAL_MINUTES, shifted_windows
from hundredfold.worlds.dvrp.policies import HINTED, OfferPolicy, make_policy
from hundredfold.worlds.dvrp.pricing import day_problems, finite_prices
from hundredfold.worlds.dvrp.rewards import improvement_pct
from hundredfold.worlds.dvrp.settings import DvrpSettings, Split
from hundredfold.worlds.dvrp.world import FAILED_DAY_PCT, Dvrp

Row = dict[str, Any]

SPLITS: Final[tuple[Split, ...]] = ("known", "unseen_trips", "unseen_customers")
EVALUATION_SEED: Final = 9999


@dataclass(slots=True)
class PlayedDays:
    """Whole days as a policy played them, one row each."""

    cells: IntArray  # (days, customers, 2)
    asked_windows: FloatArray  # (days, customers, 2, 2)
    max_ride_minutes: FloatArray  # (days, customers)
    offers: IntArray  # (days, customers)
    accepted: BoolArray  # (days, customers)
    failed: BoolArray  # (days,)

    @property
    def booked_windows(self) -> FloatArray:
        """(days, customers, 2, 2) after the answers."""
        return shifted_windows(self.asked_windows, np.where(self.accepted, self.offers, NO_CHANGE))


def evaluate_policy(
    policy: str | OfferPolicy,
    settings: DvrpSettings | None = None,
    *,
    days: int = 256,
    seed: int = EVALUATION_SEED,
    splits: Sequence[Split] = SPLITS,
    name: str | None = None,
    closing: Oracle | None = None,
    num_envs: int = 256,
    tick: Callable[[int], None] = lambda done: None,
) -> list[Row]:
    """One row per split; `policy` is a rule's name or a function from a batch to offers.

    `tick` hears how many days have been played, over all splits.
    """
    settings = settings or DvrpSettings()
    oracle = closing or InsertionOracle(InsertionSettings())
    label = name or (policy if isinstance(policy, str) else "policy")
    rows: list[Row] = []
    for number, split in enumerate(splits):
        played_settings = world_settings_for(policy, replace(settings, split=split))
        played, population = play_days(
            policy,
            played_settings,
            days,
            seed,
            num_envs,
            partial(_tell_more, tick, number * days),
        )
        rows.append(
            {"policy": label, "split": split, **judged(played, population, settings, oracle)}
        )
    return rows


def _tell_more(tick: Callable[[int], None], before: int, done: int) -> None:
    tick(before + done)


def world_settings_for(policy: str | OfferPolicy, settings: DvrpSettings) -> DvrpSettings:
    """The world a rule needs: some look ahead, one supposes that everybody is flexible."""
    if policy in HINTED:
        return replace(settings, price_hint=True)
    if policy == "fully_flexible":
        return replace(settings, tolerances="unlimited", decisions=None)
    return settings


def play_days(
    policy: str | OfferPolicy,
    settings: DvrpSettings,
    days: int,
    seed: int,
    num_envs: int = 256,
    tick: Callable[[int], None] = lambda done: None,
) -> tuple[PlayedDays, Population]:
    """Play the first day of as many envs as days, in batches of at most `num_envs`."""
    parts: list[PlayedDays] = []
    population: Population | None = None
    for first in range(0, days, num_envs):
        world = Dvrp(np.arange(first, min(first + num_envs, days)), settings)
        population = world.population
        act = policy
        if isinstance(act, str):
            act = make_policy(act, population, settings, seed)
        parts.append(_play_one_day(world, act, seed))
        tick(min(first + num_envs, days))
    assert population is not None, "days must be at least 1"

    def joined(field: str) -> Array:
        return np.concatenate([getattr(part, field) for part in parts])

    return PlayedDays(**{field: joined(field) for field in PlayedDays.__slots__}), population


def _play_one_day(world: Dvrp, act: OfferPolicy, seed: int) -> PlayedDays:
    out = world.reset(seed)
    shape = (world.num_envs, world.settings.num_customers)
    played = PlayedDays(
        cells=world.day["cells"].copy(),
        asked_windows=world.day["asked_windows"].copy(),
        max_ride_minutes=world.day["max_ride_minutes"].copy(),
        offers=np.full(shape, NO_CHANGE),
        accepted=np.zeros(shape, bool),
        failed=np.zeros(len(out), bool),
    )
    for call in range(world.settings.num_customers):
        going = ~played.failed
        world.step(act(out))
        played.offers[going, call] = out.info["offer"][going]
        played.accepted[going, call] = out.info["accepted"][going]
        # A day that failed is over; what its env does from here on is another day.
        played.failed |= out.info["failed"]
    return played


def judged(
    played: PlayedDays, population: Population, settings: DvrpSettings, closing: Oracle
) -> Row:
    """Mean improvement with its interval, prices, offers and vehicles of some days."""
    plans, asked = (
        closing.solve(
            day_problems(played.cells, windows, played.max_ride_minutes, population, settings)
        )
        for windows in (played.booked_windows, played.asked_windows)
    )
    cost, reference = finite_prices(plans), finite_prices(asked)
    failed = played.failed | ~np.isfinite(plans.price)
    improvement = np.where(failed, FAILED_DAY_PCT, improvement_pct(reference, cost))
    low, high = bootstrap_interval(improvement)
    made = played.offers != NO_CHANGE
    yes = made & played.accepted
    return {
        "episodes": len(cost),
        "mean": float(improvement.mean()),
        "ci_low": low,
        "ci_high": high,
        "cost": float(cost.mean()),
        "reference": float(reference.mean()),
        "offers_made": float(made.sum(axis=1).mean()),
        "offers_accepted": float(yes.sum(axis=1).mean()),
        "shift_minutes": float((yes * TOTAL_MINUTES[played.offers]).sum(axis=1).mean()),
        "vehicles": float(plans.vehicles_used.mean()),
        "failed": int(failed.sum()),
    }
