"""Evaluation of offer policies: paired days, one final oracle, bootstrap confidence intervals.

Every policy books the same days. Afterwards one oracle solves each day from scratch, as booked and
as requested, so that no policy benefits from the routes built while booking. A day with an
unserved customer counts as -100 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import BoolArray, FloatArray, IntArray
from hundredfold.core.protocols import SharedParams
from hundredfold.core.statistics import bootstrap_interval
from hundredfold.envs.dvrp.env import FAILED_DAY_PCT, Dvrp, improvement_pct
from hundredfold.envs.dvrp.heuristics import OfferPolicy, start_episodes
from hundredfold.envs.dvrp.offers import OfferTable
from hundredfold.envs.dvrp.policies import NO_OPTIONS, PolicyOptions, env_settings_for, make_policy
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.route_costs import day_problems, penalised_costs
from hundredfold.envs.dvrp.settings import DvrpSettings, Split
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.lower_bound import LowerBoundSettings, lower_bounds
from hundredfold.routing.problem import Oracle, RouteProblems, Solutions

Row = dict[str, Any]

SPLITS: Final[tuple[Split, ...]] = ("known", "unseen_trips", "unseen_customers")
EVALUATION_SEED: Final = 9999
# Evaluated like a policy, though it makes no offers: see `DayScorer.upper_bound`.
UPPER_BOUND: Final = "upper_bound"
# Keeps the evaluation's days apart from those of every training seed, 9999 included.
EVALUATION_BRANCH: Final = 0x64617973
# During evaluation masks are never ignored and use the most likely type.
NO_EXPLORATION: Final[SharedParams] = {"epsilon": np.array(0.0), "sample_types": np.array(False)}


@dataclass(slots=True)
class SimulatedDays:
    """Requests, offers and responses of whole days under one policy."""

    customer_id: IntArray  # (days, customers)
    trip_id: IntArray  # (days, customers)
    cells: IntArray  # (days, customers, 2)
    requested_windows: FloatArray  # (days, customers, 2, 2)
    max_ride_minutes: FloatArray  # (days, customers)
    offers: IntArray  # (days, customers)
    accepted: BoolArray  # (days, customers)
    failed: BoolArray  # (days,)
    offer_table: OfferTable  # offers that could be made

    @property
    def booked_windows(self) -> FloatArray:
        """(days, customers, 2, 2) windows after the responses."""
        applied = np.where(self.accepted, self.offers, self.offer_table.no_change)
        return self.offer_table.shifted_windows(self.requested_windows, applied)

    def problems(self, windows: FloatArray, population: Population, settings: DvrpSettings) -> RouteProblems:
        """Routing instances of the days with these (days, customers, 2, 2) time windows."""
        riders = population.riders[self.trip_id]
        return day_problems(self.cells, windows, self.max_ride_minutes, population, settings, riders)

    @property
    def made(self) -> BoolArray:
        """(days, customers) whether an offer other than no change was made."""
        return np.asarray(self.offers != self.offer_table.no_change)

    @property
    def shift_minutes(self) -> FloatArray:
        """(days, customers) accepted shift."""
        return np.where(self.made & self.accepted, self.offer_table.total_minutes[self.offers], 0.0)


@dataclass(frozen=True, slots=True)
class DayScores:
    """Scores of a policy, (days,) each; a row is the same day for every policy."""

    improvement_pct: FloatArray
    cost: FloatArray
    baseline_cost: FloatArray
    offers_made: IntArray
    offers_accepted: IntArray
    shift_minutes: FloatArray
    vehicles: IntArray
    failed: BoolArray

    @property
    def saved_minutes(self) -> FloatArray:
        """(days,) driving minutes saved; minus the whole baseline for a failed day."""
        return np.asarray(self.improvement_pct * self.baseline_cost / 100.0, np.float64)

    def summary(self) -> Row:
        """Means over days, with a 95 % confidence interval of the improvement."""
        low, high = bootstrap_interval(self.improvement_pct)
        return {
            "episodes": len(self.cost),
            "mean": float(self.improvement_pct.mean()),
            "ci_low": low,
            "ci_high": high,
            "cost": float(self.cost.mean()),
            "baseline_cost": float(self.baseline_cost.mean()),
            "offers_made": float(self.offers_made.mean()),
            "offers_accepted": float(self.offers_accepted.mean()),
            "shift_minutes": float(self.shift_minutes.mean()),
            "vehicles": float(self.vehicles.mean()),
            "failed": int(self.failed.sum()),
        }


class DayScorer:
    """Scores simulated days with one oracle; each day's baseline is solved once for all policies.

    Args:
        oracle: The final oracle; by default large neighbourhood search.
    """

    def __init__(self, oracle: Oracle | None = None) -> None:
        self.oracle = oracle or LNSOracle(LNSSettings())
        self.baselines: dict[tuple[bytes, ...], Solutions] = {}

    def scores(self, days: SimulatedDays, population: Population, settings: DvrpSettings) -> DayScores:
        """Scores of these days."""
        solutions = self._solve(days, days.booked_windows, population, settings)
        cost, baseline = (
            penalised_costs(solutions, settings.vehicle_cost),
            self.baseline_cost(days, population, settings),
        )
        failed = days.failed | ~np.isfinite(solutions.cost)
        return DayScores(
            improvement_pct=np.where(failed, FAILED_DAY_PCT, improvement_pct(baseline, cost)),
            cost=cost,
            baseline_cost=baseline,
            offers_made=days.made.sum(axis=1),
            offers_accepted=(days.made & days.accepted).sum(axis=1),
            shift_minutes=days.shift_minutes.sum(axis=1),
            vehicles=solutions.vehicles_used,
            failed=failed,
        )

    def baseline_cost(self, days: SimulatedDays, population: Population, settings: DvrpSettings) -> FloatArray:
        """(days,) cost of these days without offers."""
        arrays = (days.cells, days.requested_windows, days.max_ride_minutes, population.riders[days.trip_id])
        key = tuple(array.tobytes() for array in arrays)
        if key not in self.baselines:
            self.baselines[key] = self._solve(days, days.requested_windows, population, settings)
        return penalised_costs(self.baselines[key], settings.vehicle_cost)

    def upper_bound(self, days: SimulatedDays, population: Population, settings: DvrpSettings) -> Row:
        """Improvement that no offers exceed on these days, as `DayScores.summary` gives it.

        Every customer gets the widest windows of all offers that may be booked, without accepting
        any. Whatever is offered, the routes then stay feasible, so they cost no less than a lower
        bound for these windows.
        """
        bookable = population.allowed[days.trip_id]
        if settings.response_noise == 0.0:
            bookable = bookable & population.accepts[days.trip_id]
        windows = population.offers.widest_windows(days.requested_windows, bookable)
        cost = lower_bounds(
            days.problems(windows, population, settings), LowerBoundSettings(threads=settings.oracle_threads)
        )
        baseline = self.baseline_cost(days, population, settings)
        improvement = improvement_pct(baseline, cost)
        low, high = bootstrap_interval(improvement)
        return {
            "episodes": len(cost),
            "mean": float(improvement.mean()),
            "ci_low": low,
            "ci_high": high,
            "cost": float(cost.mean()),
            "baseline_cost": float(baseline.mean()),
        }

    def _solve(
        self, days: SimulatedDays, windows: FloatArray, population: Population, settings: DvrpSettings
    ) -> Solutions:
        return self.oracle.solve(days.problems(windows, population, settings))


def evaluate_policy(
    policy: str | OfferPolicy,
    settings: DvrpSettings | None = None,
    *,
    num_days: int = 256,
    seed: int = EVALUATION_SEED,
    splits: Sequence[Split] = SPLITS,
    name: str | None = None,
    oracle: Oracle | None = None,
    num_envs: int = 256,
    shared_params: SharedParams | None = None,
    options: PolicyOptions = NO_OPTIONS,
    on_progress: Callable[[int], None] = lambda days: None,
) -> list[Row]:
    """Evaluate a policy on fixed days.

    Args:
        policy: Name of a policy in `POLICIES`, `upper_bound`, or a function from a batch to offers.
        settings: Settings of the env; defaults if omitted.
        num_days: Days per split.
        seed: Seed of the days.
        splits: Splits to evaluate on.
        name: Name of the policy in the rows.
        oracle: The final oracle; by default large neighbourhood search.
        num_envs: Days simulated in one batch.
        shared_params: Beliefs to set in the envs, for a trained policy.
        options: Options of a policy given by name.
        on_progress: Called with the number of simulated days over all splits.

    Returns:
        One row per split.
    """
    settings = settings or DvrpSettings()
    scorer = DayScorer(oracle)
    label = name or (policy if isinstance(policy, str) else "policy")
    rows: list[Row] = []
    for number, split in enumerate(splits):

        def report(done: int, before: int = number * num_days) -> None:
            on_progress(before + done)

        days, population = simulate_days(
            "none" if policy == UPPER_BOUND else policy,
            replace(settings, split=split),
            num_days,
            seed,
            num_envs,
            report,
            shared_params=shared_params,
            options=options,
        )
        if policy == UPPER_BOUND:
            summary = scorer.upper_bound(days, population, settings)
        else:
            summary = scorer.scores(days, population, settings).summary()
        rows.append({"policy": label, "split": split, **summary})
    return rows


def evaluation_env_seed(seed: int, branch: int = EVALUATION_BRANCH) -> int:
    """Env seed of an evaluation (or, by another branch, a warm-up) with this seed."""
    return int(rng.spawn(rng.seed_key(seed), branch))


def simulate_days(
    policy: str | OfferPolicy,
    settings: DvrpSettings,
    num_days: int,
    seed: int,
    num_envs: int = 256,
    on_progress: Callable[[int], None] = lambda days: None,
    *,
    first_day: int = 0,
    shared_params: SharedParams | None = None,
    options: PolicyOptions = NO_OPTIONS,
) -> tuple[SimulatedDays, Population]:
    """Simulate the first day of `num_days` envs, in batches of at most `num_envs`.

    Arguments as in `evaluate_policy`; the split is that of the settings. `first_day` is the number of
    the first env: days do not depend on the others, so a long evaluation can be done in parts.
    """
    settings = env_settings_for(policy, settings, options.shift_penalty)
    batches: list[SimulatedDays] = []
    population: Population | None = None
    for first in range(0, num_days, num_envs):
        env = Dvrp(first_day + np.arange(first, min(first + num_envs, num_days)), settings)
        population = env.population
        act = policy
        if isinstance(act, str):
            act = make_policy(act, population, settings, seed, options)
        env.set_shared_params({**(shared_params or {}), **NO_EXPLORATION})
        batches.append(_simulate_one_day(env, act, evaluation_env_seed(seed)))
        on_progress(min(first + num_envs, num_days))
    assert population is not None, "num_days must be at least 1"
    arrays = [name for name in SimulatedDays.__slots__ if name != "offer_table"]
    joined = {name: np.concatenate([getattr(batch, name) for batch in batches]) for name in arrays}
    return SimulatedDays(**joined, offer_table=population.offers), population


def _simulate_one_day(env: Dvrp, act: OfferPolicy, seed: int) -> SimulatedDays:
    start_episodes(act)
    out = env.reset(seed)
    shape = (env.num_envs, env.settings.num_customers)
    state = env.true_state
    days = SimulatedDays(
        customer_id=state["customer_id"].copy(),
        trip_id=state["trip_id"].copy(),
        cells=state["cells"].copy(),
        requested_windows=state["requested_windows"].copy(),
        max_ride_minutes=state["max_ride_minutes"].copy(),
        offers=np.full(shape, env.offers.no_change),
        accepted=np.zeros(shape, bool),
        failed=np.zeros(len(out), bool),
        offer_table=env.offers,
    )
    for number in range(env.settings.num_customers):
        running = ~days.failed
        env.step(act(out))
        days.offers[running, number] = out.info["offer"][running]
        days.accepted[running, number] = out.info["accepted"][running]
        # A failed day is over; its env has started another one.
        days.failed |= out.info["failed"]
    return days
