"""Data for the report page of a dvrp run, as plain numbers that any tool can draw.

The trained policy and baseline policies play the same days, scored by one oracle. Recorded are the
rows of that comparison, the run at several shift penalties, one median day with its routes before
and after negotiation, how offers were received, and how well the acceptance model knows its
customers. `report/` draws the page.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from hundredfold.core.batch import BoolArray, FloatArray, IntArray, StepBatch
from hundredfold.core.errors import HundredfoldError
from hundredfold.core.protocols import SharedParams
from hundredfold.envs.dvrp.acceptance import metrics
from hundredfold.envs.dvrp.acceptance.model import FixedBeliefs
from hundredfold.envs.dvrp.analysis import (
    TradeOffPoint,
    calibration_by_group,
    calibration_groups,
    compare_at_equal_shift,
)
from hundredfold.envs.dvrp.day_record import Record, city_record, day_record
from hundredfold.envs.dvrp.env import improvement_pct
from hundredfold.envs.dvrp.evaluation import (
    EVALUATION_SEED,
    SPLITS,
    DayScorer,
    DayScores,
    Row,
    SimulatedDays,
    simulate_days,
)
from hundredfold.envs.dvrp.heuristics import OfferPolicy, start_episodes
from hundredfold.envs.dvrp.policies import BELIEF_POLICIES, PRIVILEGED_POLICIES, PolicyOptions, takes_shift_penalty
from hundredfold.envs.dvrp.population import NUM_TYPES, TYPE_NAMES, Population
from hundredfold.envs.dvrp.route_costs import penalised_costs
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.problem import Oracle, RouteProblems, Solutions

FORMAT: Final = 1
HEURISTICS: Final = ("random", "greedy_expected", "belief_largest", "lookahead")
BASELINES: Final = ("none", *HEURISTICS, "privileged_largest", "hindsight")
# At which a run that takes a shift penalty is simulated, in driving minutes per minute of shift.
SHIFT_PENALTIES: Final = (0.0, 0.02, 0.05, 0.1, 0.2)
THIS_RUN: Final = "this run"
MAX_RESPONSES: Final = 32
# Days simulated before the others, to find out how many there is time for.
WARM_UP_DAYS: Final = 2
TRIAL_DAYS: Final = 8


def record_report_data(
    act: OfferPolicy,
    settings: DvrpSettings,
    *,
    shared_params: SharedParams | None = None,
    days: int = 128,
    seed: int = EVALUATION_SEED,
    baselines: Sequence[str] = BASELINES,
    in_time: Callable[[], bool] = lambda: True,
) -> Record:
    """Simulate and score days for the report; the result can be written as JSON.

    Args:
        act: The trained policy.
        settings: The run's env.
        shared_params: Parameters of the run's acceptance model. The policy observes them and
            belief-based baselines use them; without them those baselines are left out.
        days: Number of days to simulate.
        seed: Evaluation seed.
        baselines: Policies to compare with.
        in_time: False once time is up: the splits, shift penalties and baselines that remain are left out.

    Raises:
        OutOfTimeError: There was not enough time for the days of the trained policy.
    """
    threads = os.cpu_count() or 1
    # Estimates of all offers are for training only.
    settings = replace(settings, split="known", future_samples=0, oracle_threads=threads)
    oracle = CachedSolver(LNSOracle(LNSSettings(threads=threads)))
    policies = ReportPolicies(DayScorer(oracle), days, seed, shared_params)
    simulated, population = policies.simulate(_until(in_time, act), settings)
    scores = policies.scorer.scores(simulated, population, settings)
    curve = [TradeOffPoint(THIS_RUN, settings.effective_shift_penalty, scores)]
    rows: list[Row] = [{"policy": THIS_RUN, "split": "known", **scores.summary()}]
    before, after = (
        oracle.solve(simulated.problems(windows, population, settings))
        for windows in (simulated.requested_windows, simulated.booked_windows)
    )
    for split in SPLITS[1:]:
        if in_time() and len(population.split_customers(split)[0]) >= settings.num_customers:
            scores = policies.scores(act, replace(settings, split=split))
            rows.append({"policy": THIS_RUN, "split": split, **scores.summary()})
    left_out: list[str] = []
    others = [penalty for penalty in SHIFT_PENALTIES if penalty != settings.effective_shift_penalty]
    for penalty in others if takes_shift_penalty(act, settings) else ():
        if in_time():
            scores = policies.scores(act, replace(settings, shift_penalty=penalty))
            curve.append(TradeOffPoint(THIS_RUN, penalty, scores))
        else:
            left_out.append(f"{THIS_RUN} at shift penalty {penalty}")
    # Not beyond the run's own shift, so that a baseline that shifts more is compared with the run as it is.
    own_shift = curve[0].scores.shift_minutes.mean()
    compared = [point for point in curve if point.scores.shift_minutes.mean() <= own_shift]
    equal_shift: list[Row] = []
    for baseline in baselines:
        if baseline in BELIEF_POLICIES and shared_params is None:
            continue
        if in_time():
            scores = policies.scores(baseline, settings)
            rows.append({"policy": baseline, "split": "known", **scores.summary()})
            if baseline != "none" and baseline not in PRIVILEGED_POLICIES:
                equal_shift.append(compare_at_equal_shift(TradeOffPoint(baseline, None, scores), compared))
        else:
            left_out.append(baseline)
    beliefs: Record | None = None
    if shared_params is not None:
        random_days, _ = policies.simulate("random", settings)
        beliefs = belief_record(simulated, random_days, population, shared_params, settings.response_noise)
    return {
        "format": FORMAT,
        "days": days,
        "seed": seed,
        "num_customers": settings.num_customers,
        "types": list(TYPE_NAMES),
        "purposes": list(PURPOSE_NAMES),
        "offers": population.offers.minutes.astype(int).tolist(),
        "policies": rows,
        "left_out": left_out,
        "data_notes": list(population.notes),
        "trade_off": [point.row() for point in sorted(curve, key=lambda point: point.shift_penalty or 0.0)],
        "equal_shift": equal_shift,
        "day": median_day(simulated, before, after, population, settings),
        "responses": response_record(simulated, population),
        "beliefs": beliefs,
    }


def _until(in_time: Callable[[], bool], act: OfferPolicy) -> OfferPolicy:
    """A policy that raises an OutOfTimeError once time is up."""

    def act_in_time(batch: StepBatch) -> IntArray:
        if not in_time():
            raise OutOfTimeError("the time for simulated days is up.")
        return act(batch)

    vars(act_in_time)["reset"] = partial(start_episodes, act)
    return act_in_time


@dataclass(frozen=True, slots=True)
class ReportPolicies:
    """Simulates policies on the same days and scores them with one oracle."""

    scorer: DayScorer
    days: int
    seed: int
    shared_params: SharedParams | None  # of the run's acceptance model

    def simulate(self, policy: str | OfferPolicy, settings: DvrpSettings) -> tuple[SimulatedDays, Population]:
        """The days under a policy; belief-based heuristics use the run's acceptance model."""
        params = self.shared_params
        if params is None or not isinstance(policy, str):
            return simulate_days(policy, settings, self.days, self.seed, shared_params=params)
        options = PolicyOptions(beliefs=FixedBeliefs(params))
        return simulate_days(policy, settings, self.days, self.seed, options=options)

    def scores(self, policy: str | OfferPolicy, settings: DvrpSettings) -> DayScores:
        """Scores of the days under a policy."""
        return self.scorer.scores(*self.simulate(policy, settings), settings)


def run_report_data(
    act: OfferPolicy, settings: DvrpSettings, *, shared_params: SharedParams | None, days: int, seconds: float
) -> Record | None:
    """Report data of a run, of as many of the days as can be simulated in about this time.

    Args:
        act: The trained policy.
        settings: The run's env.
        shared_params: Parameters of the run's acceptance model.
        days: Number of days.
        seconds: Time limit; infinite for none.
    Returns:
        The report data; None if there was no time for any day.
    """
    record = partial(record_report_data, act, settings, shared_params=shared_params)
    if math.isinf(seconds):
        return record(days=days)
    return record_within(seconds, lambda number, in_time: record(days=number, in_time=in_time), days)


def record_within(
    seconds: float,
    record: Callable[[int, Callable[[], bool]], Record],
    days: int,
    clock: Callable[[], float] = time.monotonic,
) -> Record | None:
    """Report data of as many days as can be simulated in about this time.

    Args:
        seconds: Time limit.
        record: Returns the report data of a number of days, as `record_report_data`; it is also handed
            a function that returns whether there is time left.
        days: Number of days if there is time for all of them.
        clock: Current time in seconds.
    Returns:
        The report data, with the number of days wanted as `planned_days`; None if there was no time
        for `WARM_UP_DAYS`.
    """
    begin = clock()

    def in_time() -> bool:
        return clock() - begin < seconds

    try:
        found = record(min(WARM_UP_DAYS, days), in_time)  # compiles kernels, so its time says little
    except OutOfTimeError:
        return None
    if days > TRIAL_DAYS and in_time():
        trial_begin = clock()
        with suppress(OutOfTimeError):
            found = record(TRIAL_DAYS, in_time)
        day_seconds = max(clock() - trial_begin, 1e-9) / TRIAL_DAYS
        affordable = int(min(days, (seconds - (clock() - begin)) / day_seconds))
        if affordable > TRIAL_DAYS:
            found = record(affordable, lambda: True)
    elif days > found["days"] and in_time():
        found = record(days, lambda: True)
    return {**found, "planned_days": days}


class OutOfTimeError(HundredfoldError):
    """Days could not be simulated within the time limit."""


class CachedSolver:
    """An oracle that solves each batch of problems once; the fleet must always be the same."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.solutions: dict[bytes, Solutions] = {}

    def solve(self, problems: RouteProblems) -> Solutions:
        """Solutions of these problems, from the cache if they were solved before."""
        arrays = (problems.cells, problems.windows, problems.max_ride_minutes, problems.riders)
        key = b"".join(array.tobytes() for array in arrays)
        if key not in self.solutions:
            self.solutions[key] = self.oracle.solve(problems)
        return self.solutions[key]


def median_day(
    simulated: SimulatedDays, before: Solutions, after: Solutions, population: Population, settings: DvrpSettings
) -> Record | None:
    """The day with the median improvement among the days that served every customer.

    Args:
        simulated: The days.
        before: The oracle's solutions with the requested windows.
        after: The oracle's solutions with the booked windows.
        population: Customers and trips.
        settings: The env.
    Returns:
        The day's calls and routes, or None if no day served every customer.
    """
    served = ~simulated.failed & np.isfinite(before.cost) & np.isfinite(after.cost)
    costs = (penalised_costs(solutions, settings.vehicle_cost) for solutions in (before, after))
    improvement = improvement_pct(*costs)
    if not served.any():
        return None
    number = median_row(improvement, served)
    return {
        "improvement_pct": round(float(improvement[number]), 3),
        "quartiles_pct": [round(value, 3) for value in quartiles(improvement[served])],
        "city": city_record(population),
        **day_record(simulated, before, after, population, settings, number),
    }


def median_row(values: FloatArray, wanted: BoolArray) -> int:
    """The row of the (lower) median among the wanted rows."""
    rows = np.flatnonzero(wanted)
    order = np.argsort(values[rows], kind="stable")
    return int(rows[order[(len(rows) - 1) // 2]])


def quartiles(values: FloatArray) -> tuple[float, float]:
    """Lower and upper quartile, both of them values, so that the median lies between however few there are."""
    low, high = np.quantile(values, 0.25, method="lower"), np.quantile(values, 0.75, method="higher")
    return float(low), float(high)


def response_record(simulated: SimulatedDays, population: Population) -> Record:
    """How often each offer was made and accepted, by type and by purpose."""
    types = population.customers.types[simulated.customer_id]
    purposes = population.trips.purpose[simulated.trip_id]
    return {
        "by_type": _made_and_accepted(types, NUM_TYPES, simulated),
        "by_purpose": _made_and_accepted(purposes, len(PURPOSE_NAMES), simulated),
    }


def _made_and_accepted(groups: IntArray, num_groups: int, simulated: SimulatedDays) -> Record:
    """Counts of (groups, offers); no change counts the calls booked as requested."""
    made = np.zeros((num_groups, simulated.offer_table.num_offers), np.int64)
    accepted = np.zeros_like(made)
    served = ~simulated.failed
    np.add.at(made, (groups[served], simulated.offers[served]), 1)
    np.add.at(accepted, (groups[served], simulated.offers[served]), simulated.accepted[served])
    return {"made": made.tolist(), "accepted": accepted.tolist()}


def belief_record(
    simulated: SimulatedDays,
    random_days: SimulatedDays,
    population: Population,
    shared_params: SharedParams,
    noise: float = 0.0,
) -> Record:
    """Metrics of an acceptance model on days it did not learn from.

    Accuracy by number of responses is measured on random offers: a trained policy hardly makes
    offers to customers it believes to be inflexible.
    """
    fixed = FixedBeliefs(shared_params)
    beliefs, rates = fixed.types, fixed.accept_given_type
    known = population.customers.num_known
    types = population.customers.types[:known]
    true_rates = metrics.true_accept_rates(population, noise=noise)
    counts = np.asarray(shared_params["response_counts"], np.float64)[:known]
    return {
        "customers": known,
        "responses_per_customer": float(np.median(counts)),
        "confusion": metrics.confusion(beliefs[:known], types).tolist(),
        "accuracy": metrics.accuracy(beliefs[:known], types),
        "by_responses": accuracy_record(
            random_days,
            population,
            {"learned": (beliefs[:known].mean(axis=0), rates), "true": (population.type_prior, true_rates)},
        ),
        **calibration_record(simulated, population, fixed, noise),
    }


def accuracy_record(
    simulated: SimulatedDays, population: Population, models: Mapping[str, tuple[FloatArray, FloatArray]]
) -> Record:
    """Type accuracy after 0, 1, 2, ... responses, for each model.

    Every customer's responses are cut into sequences of equal length, each read from the prior.

    Args:
        simulated: Days with random offers.
        population: Customers and trips.
        models: Type shares (types,) and acceptance rates (types, purposes, offers) by name.
    """
    day, call = np.nonzero(simulated.made & ~simulated.failed[:, None])
    customer = simulated.customer_id[day, call]
    order = np.argsort(customer, kind="stable")
    day, call, customer = day[order], call[order], customer[order]
    rank = np.arange(len(customer)) - np.searchsorted(customer, customer)
    counts = np.bincount(customer)
    typical = int(np.median(counts[counts > 0])) if len(customer) else 0
    length = min(MAX_RESPONSES, typical)
    if length == 0:
        return {"responses": [], "sequences": 0, "accuracy": {}}
    whole = rank < counts[customer] // length * length
    sequences = (-1, length)
    days, calls = day[whole].reshape(sequences), call[whole].reshape(sequences)
    purposes = population.trips.purpose[simulated.trip_id[days, calls]]
    offers, accepted = simulated.offers[days, calls], simulated.accepted[days, calls]
    types = population.customers.types[simulated.customer_id[days[:, 0], calls[:, 0]]]
    return {
        "responses": list(range(length + 1)),
        "sequences": len(types),
        "accuracy": {
            name: [
                round(float(share), 4)
                for share in metrics.accuracy_by_responses(rates[:, purposes, offers], accepted, shares, types)
            ]
            for name, (shares, rates) in models.items()
        },
    }


def calibration_record(simulated: SimulatedDays, population: Population, beliefs: FixedBeliefs, noise: float) -> Record:
    """Calibration over all offers that were possible on these days, also by group, and over those made."""
    trip = simulated.trip_id
    customers, trips = simulated.customer_id.ravel(), trip.ravel()
    believed = beliefs.accept_probabilities(customers, population.trips.purpose[trips], trips)
    believed = believed.reshape(*trip.shape, -1)
    possible = population.allowed[trip].copy()
    possible[..., population.offers.no_change] = False
    made = np.zeros_like(possible)
    np.put_along_axis(made, simulated.offers[..., None], True, axis=2)
    made &= possible & ~simulated.failed[:, None, None]
    true = metrics.response_rates(population.accepts[trip], noise, population.offers.no_change)
    accepted = np.broadcast_to(simulated.accepted[..., None], made.shape).astype(np.float64)
    groups = calibration_groups(simulated, population, beliefs.trip_accept_rates)
    by_offer = {name: np.broadcast_to(group[..., None], possible.shape)[possible] for name, group in groups.items()}
    return {
        "calibration": {
            "possible": _calibration_bins(believed[possible], true[possible]),
            "made": _calibration_bins(believed[made], accepted[made]),
        },
        "by_group": calibration_by_group(by_offer, believed[possible], true[possible]),
    }


def _calibration_bins(believed: FloatArray, accepted: FloatArray) -> Record:
    """The bins that are not empty."""
    found = metrics.calibration(believed, accepted)
    filled = found.count > 0
    return {
        "believed": found.predicted[filled].round(4).tolist(),
        "accepted": found.observed[filled].round(4).tolist(),
        "count": found.count[filled].tolist(),
        "brier_score": round(found.brier_score, 4) if filled.any() else None,
    }
