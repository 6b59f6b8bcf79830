"""How good a policy is: paired days, one closing oracle for everybody, an honest interval.

Every policy plays the same days. Afterwards the agent's bookings and the same day as it was asked
are priced from nothing by one patient oracle, so nobody can win by the quirks of the plan that was
kept while booking. A day on which somebody could not be served counts as -100 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import Array, BoolArray, FloatArray, IntArray
from hundredfold.core.protocols import SharedParams
from hundredfold.core.statistics import bootstrap_interval
from hundredfold.envs.dvrp.env import FAILED_DAY_PCT, Dvrp, improvement_pct
from hundredfold.envs.dvrp.heuristics import AcceptanceBeliefs
from hundredfold.envs.dvrp.lookahead import LookaheadSettings
from hundredfold.envs.dvrp.offers import NO_CHANGE, TOTAL_MINUTES, shifted_windows
from hundredfold.envs.dvrp.policies import (
    COST_HINT_POLICIES,
    HINTED_AT_A_PRICE,
    OfferPolicy,
    make_policy,
)
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.route_costs import day_problems, penalised_costs
from hundredfold.envs.dvrp.settings import DvrpSettings, Split
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.problem import Oracle, Solutions

Row = dict[str, Any]

SPLITS: Final[tuple[Split, ...]] = ("known", "unseen_trips", "unseen_customers")
EVALUATION_SEED: Final = 9999
# Days hang under a branch of their own: no training seed, 9999 included, ever meets them.
DAYS_BRANCH: Final = 0x64617973
# A judged policy explores nothing and supposes the most likely type.
UNEXPLORING: Final[SharedParams] = {"epsilon": np.array(0.0), "sample_types": np.array(False)}


@dataclass(slots=True)
class SimulatedDays:
    """Whole days as a policy played them, one row each."""

    customer_id: IntArray  # (days, customers)
    trip_id: IntArray  # (days, customers)
    cells: IntArray  # (days, customers, 2)
    requested_windows: FloatArray  # (days, customers, 2, 2)
    max_ride_minutes: FloatArray  # (days, customers)
    offers: IntArray  # (days, customers)
    accepted: BoolArray  # (days, customers)
    failed: BoolArray  # (days,)

    @property
    def booked_windows(self) -> FloatArray:
        """(days, customers, 2, 2) after the answers."""
        return shifted_windows(
            self.requested_windows, np.where(self.accepted, self.offers, NO_CHANGE)
        )

    @property
    def made(self) -> BoolArray:
        """(days, customers) who was offered anything."""
        return np.asarray(self.offers != NO_CHANGE)

    @property
    def shift_minutes(self) -> FloatArray:
        """(days, customers) minutes by which everybody was moved."""
        return np.where(self.made & self.accepted, TOTAL_MINUTES[self.offers], 0.0)


@dataclass(frozen=True, slots=True)
class DayScores:
    """What came of some days, (days,) each; the same rows are the same days for every policy."""

    improvement_pct: FloatArray
    cost: FloatArray
    reference: FloatArray
    offers_made: IntArray
    offers_accepted: IntArray
    shift_minutes: FloatArray
    vehicles: IntArray
    failed: BoolArray

    @property
    def saved_minutes(self) -> FloatArray:
        """(days,) driving minutes; a failed day saves as little as its percentage says."""
        return np.asarray(self.improvement_pct * self.reference / 100.0, np.float64)

    def summary(self) -> Row:
        """Means over the days, and how sure the mean improvement is."""
        low, high = bootstrap_interval(self.improvement_pct)
        return {
            "episodes": len(self.cost),
            "mean": float(self.improvement_pct.mean()),
            "ci_low": low,
            "ci_high": high,
            "cost": float(self.cost.mean()),
            "reference": float(self.reference.mean()),
            "offers_made": float(self.offers_made.mean()),
            "offers_accepted": float(self.offers_accepted.mean()),
            "shift_minutes": float(self.shift_minutes.mean()),
            "vehicles": float(self.vehicles.mean()),
            "failed": int(self.failed.sum()),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """What a rule is told before the days are played."""

    beliefs: AcceptanceBeliefs | None = None
    """Who tells the rules in `BELIEF_POLICIES` whom to ask."""
    shift_penalty: float | None = None
    """What a rule takes a minute of shift to cost."""
    lookahead: LookaheadSettings | None = None
    """How much the rule `lookahead` thinks."""


NO_OPTIONS: Final = PolicyOptions()


class DayScorer:
    """The closing oracle; days as they were asked are priced once, for all policies."""

    def __init__(self, oracle: Oracle | None = None) -> None:
        self.oracle = oracle or LNSOracle(LNSSettings())
        self.asked: dict[tuple[bytes, ...], Solutions] = {}

    def scores(
        self, played: SimulatedDays, population: Population, settings: DvrpSettings
    ) -> DayScores:
        """How good these days are."""
        plans = self._solve(played, played.booked_windows, population, settings)
        arrays = (played.cells, played.requested_windows, played.max_ride_minutes)
        day = tuple(array.tobytes() for array in arrays)
        if day not in self.asked:
            self.asked[day] = self._solve(played, played.requested_windows, population, settings)
        cost, reference = penalised_costs(plans), penalised_costs(self.asked[day])
        failed = played.failed | ~np.isfinite(plans.cost)
        return DayScores(
            improvement_pct=np.where(failed, FAILED_DAY_PCT, improvement_pct(reference, cost)),
            cost=cost,
            reference=reference,
            offers_made=played.made.sum(axis=1),
            offers_accepted=(played.made & played.accepted).sum(axis=1),
            shift_minutes=played.shift_minutes.sum(axis=1),
            vehicles=plans.vehicles_used,
            failed=failed,
        )

    def _solve(
        self,
        played: SimulatedDays,
        windows: FloatArray,
        population: Population,
        settings: DvrpSettings,
    ) -> Solutions:
        return self.oracle.solve(
            day_problems(played.cells, windows, played.max_ride_minutes, population, settings)
        )


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
    shared_params: SharedParams | None = None,
    options: PolicyOptions = NO_OPTIONS,
    on_progress: Callable[[int], None] = lambda done: None,
) -> list[Row]:
    """One row per split; `policy` is a rule's name or a function from a batch to offers.

    `knowledge` is what a run's acceptance model told its envs, `advice` what a rule is told. `tick`
    hears how many days have been played, over all splits.
    """
    settings = settings or DvrpSettings()
    judge = DayScorer(closing)
    label = name or (policy if isinstance(policy, str) else "policy")
    rows: list[Row] = []
    for number, split in enumerate(splits):

        def tell(done: int, before: int = number * days) -> None:
            on_progress(before + done)

        played, population = simulate_days(
            policy,
            replace(settings, split=split),
            days,
            seed,
            num_envs,
            tell,
            shared_params=shared_params,
            options=options,
        )
        scores = judge.scores(played, population, settings)
        rows.append({"policy": label, "split": split, **scores.summary()})
    return rows


def env_settings_for(
    policy: str | OfferPolicy, settings: DvrpSettings, shift_penalty: float | None = None
) -> DvrpSettings:
    """The env a rule needs: some look ahead, one supposes that everybody is flexible.

    Rules have their own way to decide whom to ask; no mask of a run's acceptance model applies.
    """
    if not isinstance(policy, str):
        return settings
    settings = replace(settings, mask_mode="none")
    if policy in COST_HINT_POLICIES or (shift_penalty and policy in HINTED_AT_A_PRICE):
        return replace(settings, cost_hint=True)
    if policy == "fully_flexible":
        return replace(settings, tolerances="unlimited", recorded_responses=None)
    return settings


def evaluation_env_seed(seed: int, branch: int = DAYS_BRANCH) -> int:
    """The seed of the envs in which the days of an evaluation's seed unfold."""
    return int(rng.spawn(rng.seed_key(seed), branch))


def simulate_days(
    policy: str | OfferPolicy,
    settings: DvrpSettings,
    days: int,
    seed: int,
    num_envs: int = 256,
    on_progress: Callable[[int], None] = lambda done: None,
    *,
    shared_params: SharedParams | None = None,
    options: PolicyOptions = NO_OPTIONS,
) -> tuple[SimulatedDays, Population]:
    """Play the first day of as many envs as days, in batches of at most `num_envs`."""
    settings = env_settings_for(policy, settings, options.shift_penalty)
    parts: list[SimulatedDays] = []
    population: Population | None = None
    for first in range(0, days, num_envs):
        env = Dvrp(np.arange(first, min(first + num_envs, days)), settings)
        population = env.population
        act = policy
        if isinstance(act, str):
            act = make_policy(
                act,
                population,
                settings,
                seed,
                beliefs=options.beliefs,
                shift_penalty=options.shift_penalty,
                lookahead=options.lookahead,
            )
        env.set_shared_params({**(shared_params or {}), **UNEXPLORING})
        parts.append(_play_one_day(env, act, evaluation_env_seed(seed)))
        on_progress(min(first + num_envs, days))
    assert population is not None, "days must be at least 1"

    def joined(field: str) -> Array:
        return np.concatenate([getattr(part, field) for part in parts])

    return SimulatedDays(**{field: joined(field) for field in SimulatedDays.__slots__}), population


def _play_one_day(env: Dvrp, act: OfferPolicy, seed: int) -> SimulatedDays:
    out = env.reset(seed)
    shape = (env.num_envs, env.settings.num_customers)
    played = SimulatedDays(
        customer_id=env.true_state["customer_id"].copy(),
        trip_id=env.true_state["trip_id"].copy(),
        cells=env.true_state["cells"].copy(),
        requested_windows=env.true_state["requested_windows"].copy(),
        max_ride_minutes=env.true_state["max_ride_minutes"].copy(),
        offers=np.full(shape, NO_CHANGE),
        accepted=np.zeros(shape, bool),
        failed=np.zeros(len(out), bool),
    )
    for call in range(env.settings.num_customers):
        going = ~played.failed
        env.step(act(out))
        played.offers[going, call] = out.info["offer"][going]
        played.accepted[going, call] = out.info["accepted"][going]
        # A day that failed is over; what its env does from here on is another day.
        played.failed |= out.info["failed"]
    return played


def score_days(
    played: SimulatedDays, population: Population, settings: DvrpSettings, closing: Oracle
) -> Row:
    """Mean improvement with its interval, prices, offers and vehicles of some days."""
    return DayScorer(closing).scores(played, population, settings).summary()
