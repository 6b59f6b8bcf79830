"""What the agent sees. Three layouts, none of which holds anything hidden.

`booking` says everything an operator knows about the request, the book and the plan. `counts` and
`requests` are plainer, for comparison: the one forgets which pickup belongs to which dropoff, the
other shows raw minutes. After the last booking there is no request, and its part is zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from hundredfold.core.batch import Array, Arrays, ArraySpec, BoolArray, FloatArray, IntArray
from hundredfold.envs.dvrp.offers import NUM_OFFERS
from hundredfold.envs.dvrp.population import NUM_TYPES, Population
from hundredfold.envs.dvrp.settings import ObservationLayout
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES
from hundredfold.routing.problem import DROPOFF, PICKUP

MINUTES_PER_DAY: Final = 1440.0
HALF_HOURS: Final = 48
# The columns of a request and of a booking, by where each group begins.
PLACES, WINDOWS, DIRECT = 0, 4, 8
PURPOSE: Final = 9
PROGRESS: Final = PURPOSE + len(PURPOSE_NAMES)
TYPES: Final = PROGRESS + 1
TIMES_SEEN: Final = TYPES + NUM_TYPES
REQUEST_WIDTH: Final = TIMES_SEEN + 1
SHIFTS, VEHICLE, PLANNED = 9, 11, 12
BOOKING_WIDTH: Final = 14
SHIFT_SCALE: Final = 30.0

# What an acceptance model has told about each person: type probabilities, then answers seen.
BELIEF_WIDTH: Final = NUM_TYPES + 1

ArraySpecs = dict[str, ArraySpec]


@dataclass(slots=True)
class ScheduleSummary:
    """What the kept plans say about every booking."""

    num_vehicles: int
    vehicle: IntArray  # (envs, customers), -1 where nobody comes
    stop_minutes: FloatArray  # (envs, customers, 2) planned pickup and dropoff


def observation_specs(
    layout: ObservationLayout, num_customers: int, num_cells: int, extras: Iterable[str]
) -> ArraySpecs:
    """The arrays of a layout, and one number per offer under the name of each extra."""
    arrays: ArraySpecs
    if layout == "counts":
        arrays = {"counts": ArraySpec((2 * num_cells + 4 * HALF_HOURS, 2), low=0.0)}
    elif layout == "requests":
        arrays = {"requests": ArraySpec((num_customers, 6))}
    else:
        arrays = {
            "request": ArraySpec((REQUEST_WIDTH,)),
            "cells": ArraySpec((2,), "int64", 0, num_cells - 1, categories=(num_cells,) * 2),
            "book": ArraySpec((num_customers, BOOKING_WIDTH)),
            "bookings_mask": ArraySpec((num_customers,), low=0.0, high=1.0),
        }
    return arrays | {name: ArraySpec((NUM_OFFERS,)) for name in extras}


def write_observation(
    layout: ObservationLayout,
    seen: Arrays,
    day: Arrays,
    population: Population,
    beliefs: Array,
    plan: ScheduleSummary,
) -> None:
    """Write what every env sees now, in place."""
    if layout == "counts":
        write_counts(seen["counts"], day, population.city.num_cells)
    elif layout == "requests":
        write_requests(seen["requests"], day)
    else:
        caller = _caller(day)
        write_request(seen["request"], seen["cells"], day, caller, population, beliefs)
        write_book(seen["book"], seen["bookings_mask"], day, population, plan)


def write_counts(counts: Array, day: Arrays, num_cells: int) -> None:
    """(envs, 2 cells + 192, 2): bookings so far, summed; the request. One-hots of six columns."""
    counts[...] = 0.0
    envs, caller = _caller(day)
    booked = _is_booked(day)
    rows = _one_hot_rows(day["cells"], day["booked_windows"], num_cells)
    env_of = np.nonzero(booked)[0]
    np.add.at(counts[..., 0], (env_of[:, None], rows[booked]), 1.0)
    calling = day["num_booked"] < booked.shape[1]
    asked = _one_hot_rows(
        day["cells"][envs, caller], day["requested_windows"][envs, caller], num_cells
    )
    counts[envs[calling, None], asked[calling], 1] = 1.0


def _one_hot_rows(cells: IntArray, windows: FloatArray, num_cells: int) -> IntArray:
    """(..., 6) the rows of `counts` that a trip sets."""
    half_hours = np.clip(windows // 30.0, 0, HALF_HOURS - 1).astype(np.int64)
    times = half_hours.reshape(*windows.shape[:-2], 4) + HALF_HOURS * np.arange(4)
    return np.concatenate([cells + np.array((0, num_cells)), 2 * num_cells + times], axis=-1)


def write_requests(requests: Array, day: Arrays) -> None:
    """(envs, customers, 6): bookings so far and the request; cell, early, late of both ends."""
    booked = _is_booked(day)
    shown = booked.copy()
    envs, caller = _caller(day)
    shown[envs, caller] = True
    windows = np.where(booked[:, :, None, None], day["booked_windows"], day["requested_windows"])
    rows = np.concatenate([day["cells"][..., None], windows], axis=-1)
    requests[...] = np.where(shown[..., None], rows.reshape(*shown.shape, 6), 0.0)


def write_request(
    request: Array,
    cells: Array,
    day: Arrays,
    at: tuple[IntArray, IntArray],
    population: Population,
    beliefs: Array,
) -> None:
    """The features of whoever calls now."""
    num_customers = day["customer_id"].shape[1]
    cells[...] = day["cells"][at]
    request[...] = 0.0
    _write_trip(request, cells, day["requested_windows"][at], population)
    purpose = population.trips.purpose[day["trip_id"][at]]
    request[at[0], PURPOSE + purpose] = 1.0
    request[:, PROGRESS] = day["num_booked"] / num_customers
    belief = beliefs[at[0], day["customer_id"][at]]
    request[:, TYPES:TIMES_SEEN] = belief[:, :NUM_TYPES]
    request[:, TIMES_SEEN] = np.log1p(belief[:, NUM_TYPES])
    over = day["num_booked"] == num_customers
    request[over] = 0.0
    cells[over] = 0


def write_book(
    book: Array, bookings_mask: Array, day: Arrays, population: Population, plan: ScheduleSummary
) -> None:
    """The features of every booking so far, with its place in the plan."""
    booked = _is_booked(day)
    _write_trip(book, day["cells"], day["booked_windows"], population)
    moved = day["booked_windows"][..., 0] - day["requested_windows"][..., 0]
    book[..., SHIFTS : SHIFTS + 2] = moved * (-1.0, 1.0) / SHIFT_SCALE
    book[..., VEHICLE] = (plan.vehicle + 1) / plan.num_vehicles
    book[..., PLANNED : PLANNED + 2] = np.nan_to_num(plan.stop_minutes) / MINUTES_PER_DAY
    book[~booked] = 0.0
    bookings_mask[...] = booked


def _write_trip(
    features: Array, cells: IntArray, windows: FloatArray, population: Population
) -> None:
    """Places, windows and direct ride, which requests and bookings share."""
    city = population.city
    shape = cells.shape[:-1]
    features[..., PLACES:WINDOWS] = city.positions[cells].reshape(*shape, 4)
    features[..., WINDOWS:DIRECT] = windows.reshape(*shape, 4) / MINUTES_PER_DAY
    direct = city.travel_minutes[cells[..., PICKUP], cells[..., DROPOFF]]
    features[..., DIRECT] = direct / 60.0


def _caller(day: Arrays) -> tuple[IntArray, IntArray]:
    """Index of the current caller of every env; of the last one when the day is over."""
    num_booked = day["num_booked"]
    last = day["customer_id"].shape[1] - 1
    return np.arange(len(num_booked)), np.minimum(num_booked, last)


def _is_booked(day: Arrays) -> BoolArray:
    """(envs, customers)."""
    return np.arange(day["customer_id"].shape[1]) < day["num_booked"][:, None]
