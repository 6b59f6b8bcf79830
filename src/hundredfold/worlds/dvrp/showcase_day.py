"""One ordinary day, as asked and as negotiated: who called, what was agreed, who drives where.

The day shown is the one in the middle when days are sorted by what negotiation saved. The best day
would flatter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hundredfold.core.batch import BoolArray, FloatArray, IntArray
from hundredfold.oracles.problem import RoutePlans
from hundredfold.worlds.dvrp.customers import TYPE_NAMES, Population
from hundredfold.worlds.dvrp.evaluation import PlayedDays
from hundredfold.worlds.dvrp.offers import NO_CHANGE, OFFER_MINUTES
from hundredfold.worlds.dvrp.places import DEPOT, PLACES
from hundredfold.worlds.dvrp.pricing import finite_prices
from hundredfold.worlds.dvrp.purposes import PURPOSE_NAMES
from hundredfold.worlds.dvrp.rewards import improvement_pct
from hundredfold.worlds.dvrp.settings import DvrpSettings
from hundredfold.worlds.dvrp.tables import read_table
from hundredfold.worlds.dvrp.trip_file import read_trip_rows

Record = dict[str, Any]


def ordinary_day(
    played: PlayedDays,
    before: RoutePlans,
    after: RoutePlans,
    population: Population,
    settings: DvrpSettings,
) -> Record | None:
    """The day whose improvement is the median of the days on which everybody was served.

    `before` and `after` are the closing oracle's plans of the days as asked and as booked. None
    when not a single day was served.
    """
    served = ~played.failed & np.isfinite(before.price) & np.isfinite(after.price)
    improvement = improvement_pct(finite_prices(before), finite_prices(after))
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


def call_record(played: PlayedDays, population: Population, day: int, call: int) -> Record:
    """One caller: who and what for, the windows asked for and booked, the offer and the answer."""
    offer = int(played.offers[day, call])
    person = int(played.customer_id[day, call])
    answer = "accepted" if played.accepted[day, call] else "refused"
    return {
        "customer": person,
        "type": TYPE_NAMES[population.people.types[person]],
        "purpose": PURPOSE_NAMES[population.trips.purpose[played.trip_id[day, call]]],
        "cells": played.cells[day, call].tolist(),
        "asked": played.asked_windows[day, call].tolist(),
        "booked": played.booked_windows[day, call].tolist(),
        "offer": OFFER_MINUTES[offer].astype(int).tolist(),
        "answer": "no offer" if offer == NO_CHANGE else answer,
    }


def plan_record(plans: RoutePlans, day: int, names: IntArray) -> Record:
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

    Worlds need positions on a square only, so the degrees are looked up where they came from.
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
