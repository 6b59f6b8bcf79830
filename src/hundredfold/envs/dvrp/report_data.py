"""What a run has to show for itself, as plain numbers that can be drawn without this package.

A trained policy plays some days beside rules that need no learning, all priced by one closing
oracle. Kept are the rows of that comparison, one ordinary day with its routes before and after
negotiation, who was offered what and said yes, and how well an acceptance model knows its
customers. `report/` draws the page from it.

One ordinary day, as asked and as negotiated: who called, what was agreed, who drives where.

The day shown is the one in the middle when days are sorted by what negotiation saved. The best day
would flatter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from hundredfold.core.batch import BoolArray, FloatArray, IntArray
from hundredfold.core.protocols import SharedParams
from hundredfold.envs.dvrp.city import DEPOT, PLACES
from hundredfold.envs.dvrp.csv_files import read_table, read_trip_rows
from hundredfold.envs.dvrp.env import improvement_pct
from hundredfold.envs.dvrp.evaluation import (
    EVALUATION_SEED,
    SPLITS,
    PolicyOptions,
    Row,
    SimulatedDays,
    evaluate_policy,
    score_days,
    simulate_days,
)
from hundredfold.envs.dvrp.offers import NO_CHANGE, NUM_OFFERS, OFFER_MINUTES
from hundredfold.envs.dvrp.policies import BELIEF_POLICIES, OfferPolicy
from hundredfold.envs.dvrp.population import NUM_TYPES, TYPE_NAMES, Population
from hundredfold.envs.dvrp.report_beliefs import belief_record
from hundredfold.envs.dvrp.route_costs import day_problems, penalised_costs
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.problem import Oracle, RouteProblems, Solutions

Record = dict[str, Any]


def ordinary_day(
    played: SimulatedDays,
    before: Solutions,
    after: Solutions,
    population: Population,
    settings: DvrpSettings,
) -> Record | None:
    """The day whose improvement is the median of the days on which everybody was served.

    `before` and `after` are the closing oracle's plans of the days as asked and as booked. None
    when not a single day was served.
    """
    served = ~played.failed & np.isfinite(before.cost) & np.isfinite(after.cost)
    improvement = improvement_pct(penalised_costs(before), penalised_costs(after))
    if not served.any():
        return None
    number = median_row(improvement, served)
    colours = matched_vehicles(before.vehicle[number], after.vehicle[number], settings.fleet_size)
    return {
        "number": number,
        "improvement_pct": round(float(improvement[number]), 3),
        "quartiles_pct": np.quantile(improvement[served], [0.25, 0.75]).round(3).tolist(),
        "city": city_record(population, settings),
        "calls": [
            call_record(played, population, number, call) for call in range(settings.num_customers)
        ],
        "before": plan_record(before, number, np.arange(settings.fleet_size)),
        "after": plan_record(after, number, colours),
    }


def median_row(values: FloatArray, wanted: BoolArray) -> int:
    """The wanted row in the middle, the lower one of two."""
    rows = np.flatnonzero(wanted)
    order = np.argsort(values[rows], kind="stable")
    return int(rows[order[(len(rows) - 1) // 2]])


def matched_vehicles(before: IntArray, after: IntArray, num_vehicles: int) -> IntArray:
    """(vehicles,) which vehicle of the first plan each one of the second stands for.

    Plans number their vehicles as they like; those that share most customers become the same one,
    so that a reader can follow a colour from one map to the other.
    """
    together = np.zeros((num_vehicles, num_vehicles), np.int64)
    np.add.at(together, (after, before), 1)
    match = np.zeros(num_vehicles, np.int64)
    for _ in range(num_vehicles):
        mine, theirs = np.unravel_index(together.argmax(), together.shape)
        match[mine] = theirs
        together[mine, :] = together[:, theirs] = -1
    return match


def call_record(played: SimulatedDays, population: Population, day: int, call: int) -> Record:
    """One caller: who and what for, the windows asked for and booked, the offer and the answer."""
    offer = int(played.offers[day, call])
    person = int(played.customer_id[day, call])
    answer = "accepted" if played.accepted[day, call] else "refused"
    return {
        "customer": person,
        "type": TYPE_NAMES[population.customers.types[person]],
        "purpose": PURPOSE_NAMES[population.trips.purpose[played.trip_id[day, call]]],
        "cells": played.cells[day, call].tolist(),
        "asked": played.requested_windows[day, call].tolist(),
        "booked": played.booked_windows[day, call].tolist(),
        "offer": OFFER_MINUTES[offer].astype(int).tolist(),
        "answer": "no offer" if offer == NO_CHANGE else answer,
    }


def plan_record(plans: Solutions, day: int, names: IntArray) -> Record:
    """A plan of one day. Stop 2i+1 is where caller i is picked up, stop 2i+2 where set down."""
    routes = []
    for vehicle in np.flatnonzero(plans.lengths[day]).tolist():
        stops = plans.routes[day, vehicle, : plans.lengths[day, vehicle]]
        routes.append(
            {
                "vehicle": int(names[vehicle]),
                "leaves": round(float(plans.start_minutes[day, vehicle]), 2),
                "returns": round(float(plans.end_minutes[day, vehicle]), 2),
                "stops": stops.tolist(),
                "minutes": plans.stop_minutes[day][stops].round(2).tolist(),
            }
        )
    return {
        "driving_minutes": round(float(plans.driving_minutes[day]), 2),
        "routes": sorted(routes, key=lambda route: route["vehicle"]),
    }


def city_record(population: Population, settings: DvrpSettings) -> Record:
    """Names and positions of all cells: (latitude, longitude), null where nobody knows."""
    city = population.city
    degrees = _degrees(population, settings)
    points = city.positions if degrees is None else degrees
    return {
        "unit": "square" if degrees is None else "degrees",
        "depot": city.depot_cell,
        "names": list(city.names),
        "points": [None if np.isnan(point).any() else point.tolist() for point in points.round(6)],
    }


def _degrees(population: Population, settings: DvrpSettings) -> FloatArray | None:
    """(cells, 2) latitude and longitude, NaN for cells no trip touches; None without coordinates.

    Envs need positions on a square only, so the degrees are looked up where they came from.
    """
    if settings.trips is None:
        return np.array([(spot.latitude, spot.longitude) for spot in (DEPOT, *PLACES)])
    cell_of = {label: cell for cell, label in enumerate(population.city.names)}
    rows = read_trip_rows(read_table(settings.trips, "trips"), cell_of)
    if rows.degrees is None:
        return None
    sums, counts = np.zeros((len(cell_of), 2)), np.zeros((len(cell_of), 1))
    np.add.at(sums, rows.cells, rows.degrees)
    np.add.at(counts, rows.cells, 1.0)
    return np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan)


ReportData = dict[str, Any]

FORMAT: Final = 1
RULES: Final = (
    "none",
    "random",
    "greedy_expected",
    "belief_largest",
    "privileged_largest",
    "hindsight",
)
THIS_RUN: Final = "this run"


def record_report_data(
    act: OfferPolicy,
    settings: DvrpSettings,
    *,
    shared_params: SharedParams | None = None,
    days: int = 128,
    seed: int = EVALUATION_SEED,
    rules: Sequence[str] = RULES,
    trade_off: Sequence[Row] = (),
    on_progress: Callable[[str], None] = lambda doing: None,
) -> ReportData:
    """Play and price some days; everything in what comes back can be written as JSON.

    `shared_params` are the acceptance model's; the policy sees them, rules that believe
    believe it, and without it these rules are left out. `trade_off` are `TradeOffPoint.row`s;
    those with a price become curves, one per policy. `tick` hears who plays.
    """
    settings = replace(settings, split="known")
    closing = RememberedPlans(LNSOracle(LNSSettings(threads=os.cpu_count() or 1)))
    on_progress(THIS_RUN)
    played, population = simulate_days(act, settings, days, seed, shared_params=shared_params)
    rows: list[Row] = [
        {"policy": THIS_RUN, "split": "known", **score_days(played, population, settings, closing)}
    ]
    before, after = (
        closing.solve(
            day_problems(played.cells, windows, played.max_ride_minutes, population, settings)
        )
        for windows in (played.requested_windows, played.booked_windows)
    )
    options: dict[str, Any] = {"days": days, "seed": seed, "closing": closing}
    for split in SPLITS[1:]:
        if len(population.split_customers(split)[0]) >= settings.num_customers:
            rows += evaluate_policy(
                act,
                settings,
                splits=(split,),
                name=THIS_RUN,
                shared_params=shared_params,
                **options,
            )
    belief_model: ReportData | None = None
    if shared_params is not None:
        options["options"] = PolicyOptions(beliefs=ToldBeliefs(shared_params))
        at_random, _ = simulate_days("random", settings, days, seed)
        belief_model = belief_record(
            played, at_random, population, shared_params, settings.response_noise
        )
    for rule in rules:
        if shared_params is not None or rule not in BELIEF_POLICIES:
            on_progress(rule)
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
        "acceptance_model": belief_model,
    }


class ToldBeliefs:
    """A believer that says what an acceptance model told the envs."""

    def __init__(self, shared_params: SharedParams) -> None:
        self.types = np.asarray(shared_params["type_probabilities"], np.float64)
        self.rates = np.asarray(shared_params["accept_given_type"], np.float64)

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
        self.found: dict[bytes, Solutions] = {}

    def solve(self, problems: RouteProblems) -> Solutions:
        """Plans of these books; the fleet is taken to be the same at every call."""
        asked = (problems.cells, problems.windows, problems.max_ride_minutes)
        key = b"".join(array.tobytes() for array in asked)
        if key not in self.found:
            self.found[key] = self.oracle.solve(problems)
        return self.found[key]


def answer_counts(played: SimulatedDays, population: Population) -> ReportData:
    """How often each offer was made and accepted, by personality and by purpose."""
    types = population.customers.types[played.customer_id]
    purposes = population.trips.purpose[played.trip_id]
    return {
        "by_type": _made_and_accepted(types, NUM_TYPES, played),
        "by_purpose": _made_and_accepted(purposes, len(PURPOSE_NAMES), played),
    }


def _made_and_accepted(groups: IntArray, num_groups: int, played: SimulatedDays) -> ReportData:
    """Counts of (groups, offers); offer 12 counts the callers who were booked as they asked."""
    made = np.zeros((num_groups, NUM_OFFERS), np.int64)
    accepted = np.zeros_like(made)
    going = ~played.failed
    np.add.at(made, (groups[going], played.offers[going]), 1)
    np.add.at(accepted, (groups[going], played.offers[going]), played.accepted[going])
    return {"made": made.tolist(), "accepted": accepted.tolist()}
