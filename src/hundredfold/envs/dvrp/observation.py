"""Observation layouts of the dial-a-ride env; none contains hidden information.

`booking` has features of the request, of every booking and of its place in the schedule. `offers`
has features of every offer, written by `OfferFeatures`. `counts` and `requests` are simpler, for
comparison: `counts` sums one-hots and so loses which pickup belongs to which dropoff; `requests` has
raw minutes. After the last booking the request's part is zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from hundredfold.core.batch import Array, Arrays, ArraySpec, BoolArray, FloatArray, IntArray
from hundredfold.envs.dvrp.offer_features import NUM_CONTEXT, NUM_FEATURES
from hundredfold.envs.dvrp.population import NUM_TYPES, Population
from hundredfold.envs.dvrp.settings import ObservationLayout
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES
from hundredfold.routing.problem import DROPOFF, PICKUP

MINUTES_PER_DAY: Final = 1440.0
HALF_HOURS: Final = 48
# First columns of the feature groups of a request and of a booking.
LOCATIONS, WINDOWS, DIRECT = 0, 4, 8
PURPOSE: Final = 9
PROGRESS: Final = PURPOSE + len(PURPOSE_NAMES)
TYPES: Final = PROGRESS + 1
RESPONSE_COUNT: Final = TYPES + NUM_TYPES
REQUEST_WIDTH: Final = RESPONSE_COUNT + 1
SHIFTS, VEHICLE, STOP_TIMES = 9, 11, 12
BOOKING_WIDTH: Final = 14
SHIFT_SCALE: Final = 30.0

# Arrays of the layout `offers`.
OFFERS, CONTEXT = "offers", "context"

# What only a privileged critic sees: requests from the current one on, with the customers' tolerances.
REMAINING: Final = "remaining_requests"
REMAINING_WIDTH: Final = 11
TOLERANCE_SCALE: Final = 60.0

# Belief about a customer: type probabilities, then the number of responses seen.
BELIEF_WIDTH: Final = NUM_TYPES + 1

ArraySpecs = dict[str, ArraySpec]


@dataclass(slots=True)
class ScheduleSummary:
    """Vehicle and scheduled stop times of every booking."""

    num_vehicles: int
    vehicle: IntArray  # (envs, customers), -1 = unserved
    stop_minutes: FloatArray  # (envs, customers, 2) pickup and dropoff


def observation_specs(
    layout: ObservationLayout, num_customers: int, num_cells: int, num_offers: int, offer_columns: Iterable[str]
) -> ArraySpecs:
    """Specs of a layout's arrays.

    Args:
        layout: Which layout.
        num_customers: Requests per day.
        num_cells: Cells of the city.
        num_offers: Offers that may be made.
        offer_columns: Names of further arrays with one number per offer.
    """
    specs: ArraySpecs
    if layout == "counts":
        specs = {"counts": ArraySpec((2 * num_cells + 4 * HALF_HOURS, 2), low=0.0)}
    elif layout == "requests":
        specs = {"requests": ArraySpec((num_customers, 6))}
    elif layout == "offers":
        specs = {OFFERS: ArraySpec((num_offers, NUM_FEATURES)), CONTEXT: ArraySpec((NUM_CONTEXT,))}
    else:
        specs = {
            "request": ArraySpec((REQUEST_WIDTH,)),
            "cells": ArraySpec((2,), "int64", 0, num_cells - 1, categories=(num_cells,) * 2),
            "bookings": ArraySpec((num_customers, BOOKING_WIDTH)),
            "bookings_mask": ArraySpec((num_customers,), low=0.0, high=1.0),
        }
    return specs | {name: ArraySpec((num_offers,)) for name in offer_columns}


def write_observation(
    layout: ObservationLayout,
    observation: Arrays,
    state: Arrays,
    population: Population,
    beliefs: Array,
    schedule: ScheduleSummary,
) -> None:
    """Write the current observation of every env in place; `offers` is left to `OfferFeatures`.

    Args:
        layout: Which layout.
        observation: Arrays of `observation_specs`, written to.
        state: The `true_state` arrays.
        population: Customers and city.
        beliefs: (envs, customers of the population, BELIEF_WIDTH).
        schedule: Vehicles and stop times of the bookings.
    """
    if layout == "counts":
        write_counts(observation["counts"], state, population.city.num_cells)
    elif layout == "requests":
        write_requests(observation["requests"], state)
    elif layout == "booking":
        write_request(observation["request"], observation["cells"], state, population, beliefs)
        write_bookings(observation["bookings"], observation["bookings_mask"], state, population, schedule)


def write_counts(counts: Array, state: Arrays, num_cells: int) -> None:
    """Write (envs, 2 cells + 192, 2) one-hots: of all bookings, summed, and of the request."""
    counts[...] = 0.0
    at = envs, _ = _current(state)
    booked = _is_booked(state)
    rows = _one_hot_rows(state["cells"], state["booked_windows"], num_cells)
    env_of = np.nonzero(booked)[0]
    np.add.at(counts[..., 0], (env_of[:, None], rows[booked]), 1.0)
    active = state["num_booked"] < booked.shape[1]
    requested = _one_hot_rows(state["cells"][at], state["requested_windows"][at], num_cells)
    counts[envs[active, None], requested[active], 1] = 1.0


def _one_hot_rows(cells: IntArray, windows: FloatArray, num_cells: int) -> IntArray:
    """(..., 6) rows of `counts` that a trip sets: two cells and four half hours."""
    half_hours = np.clip(windows // 30.0, 0, HALF_HOURS - 1).astype(np.int64)
    times = half_hours.reshape(*windows.shape[:-2], 4) + HALF_HOURS * np.arange(4)
    return np.concatenate([cells + np.array((0, num_cells)), 2 * num_cells + times], axis=-1)


def write_requests(requests: Array, state: Arrays) -> None:
    """Write (envs, customers, 6) bookings and the request: cell, early, late of both stops."""
    booked = _is_booked(state)
    visible = booked.copy()
    visible[_current(state)] = True
    windows = np.where(booked[:, :, None, None], state["booked_windows"], state["requested_windows"])
    rows = np.concatenate([state["cells"][..., None], windows], axis=-1)
    requests[...] = np.where(visible[..., None], rows.reshape(*visible.shape, 6), 0.0)


def write_request(request: Array, cells: Array, state: Arrays, population: Population, beliefs: Array) -> None:
    """Write the features of the current request, and the belief about its customer."""
    at = _current(state)
    num_customers = state["customer_id"].shape[1]
    cells[...] = state["cells"][at]
    request[...] = 0.0
    _write_trip(request, cells, state["requested_windows"][at], population)
    purpose = population.trips.purpose[state["trip_id"][at]]
    request[at[0], PURPOSE + purpose] = 1.0
    request[:, PROGRESS] = state["num_booked"] / num_customers
    belief = beliefs[at[0], state["customer_id"][at]]
    request[:, TYPES:RESPONSE_COUNT] = belief[:, :NUM_TYPES]
    request[:, RESPONSE_COUNT] = np.log1p(belief[:, NUM_TYPES])
    over = state["num_booked"] == num_customers
    request[over] = 0.0
    cells[over] = 0


def write_bookings(
    bookings: Array, mask: Array, state: Arrays, population: Population, schedule: ScheduleSummary
) -> None:
    """Write the features of every booking, with its vehicle and stop times."""
    booked = _is_booked(state)
    _write_trip(bookings, state["cells"], state["booked_windows"], population)
    shifts = state["booked_windows"][..., 0] - state["requested_windows"][..., 0]
    bookings[..., SHIFTS : SHIFTS + 2] = shifts * (-1.0, 1.0) / SHIFT_SCALE
    bookings[..., VEHICLE] = (schedule.vehicle + 1) / schedule.num_vehicles
    stop_times = np.nan_to_num(schedule.stop_minutes) / MINUTES_PER_DAY
    bookings[..., STOP_TIMES : STOP_TIMES + 2] = stop_times
    bookings[~booked] = 0.0
    mask[...] = booked


def write_remaining(remaining: Array, state: Arrays, population: Population) -> None:
    """Write (envs, customers, REMAINING_WIDTH) requests from the current one on; zeros after the last."""
    num_booked, customers = state["num_booked"], state["customer_id"].shape[1]
    number = num_booked[:, None] + np.arange(customers)
    at = (np.arange(len(number))[:, None], np.minimum(number, customers - 1))
    _write_trip(remaining, state["cells"][at], state["requested_windows"][at], population)
    remaining[..., SHIFTS : SHIFTS + 2] = state["tolerance"][at] / TOLERANCE_SCALE
    remaining[number >= customers] = 0.0


def _write_trip(features: Array, cells: IntArray, windows: FloatArray, population: Population) -> None:
    """Write the columns that requests and bookings share: locations, windows, direct ride."""
    city = population.city
    shape = cells.shape[:-1]
    features[..., LOCATIONS:WINDOWS] = city.positions[cells].reshape(*shape, 4)
    features[..., WINDOWS:DIRECT] = windows.reshape(*shape, 4) / MINUTES_PER_DAY
    direct = city.travel_minutes[cells[..., PICKUP], cells[..., DROPOFF]]
    features[..., DIRECT] = direct / 60.0


def _current(state: Arrays) -> tuple[IntArray, IntArray]:
    """Index of every env's current request; of the last one when the day is over."""
    num_booked = state["num_booked"]
    last = state["customer_id"].shape[1] - 1
    return np.arange(len(num_booked)), np.minimum(num_booked, last)


def _is_booked(state: Arrays) -> BoolArray:
    """(envs, customers)."""
    return np.arange(state["customer_id"].shape[1]) < state["num_booked"][:, None]
