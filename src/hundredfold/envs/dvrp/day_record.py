"""One day of dvrp as plain numbers: calls, offers, responses, routes and the city."""

from __future__ import annotations

from typing import Any

import numpy as np

from hundredfold.core.batch import IntArray
from hundredfold.envs.dvrp.evaluation import SimulatedDays
from hundredfold.envs.dvrp.population import TYPE_NAMES, Population
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES
from hundredfold.routing.problem import Solutions

Record = dict[str, Any]


def day_record(
    simulated: SimulatedDays,
    before: Solutions,
    after: Solutions,
    population: Population,
    settings: DvrpSettings,
    number: int,
) -> Record:
    """Calls and routes of one day.

    Args:
        simulated: The days.
        before: An oracle's solutions with the requested windows.
        after: Its solutions with the booked windows.
        population: Customers and trips.
        settings: The env.
        number: The day to record.
    """
    vehicles = matched_vehicles(before.vehicle[number], after.vehicle[number], before.lengths.shape[1])
    cells = simulated.cells[number]
    return {
        "number": number,
        "service_minutes": settings.service_minutes,
        "calls": [call_record(simulated, population, number, call) for call in range(settings.num_customers)],
        "before": solution_record(before, number, np.arange(before.lengths.shape[1]), cells, population),
        "after": solution_record(after, number, vehicles, cells, population),
    }


def matched_vehicles(before: IntArray, after: IntArray, num_vehicles: int) -> IntArray:
    """(vehicles,) the vehicle of the first solution that each one of the second corresponds to.

    Solutions number vehicles arbitrarily. Those that share most customers are matched first, so
    that a reader can follow a colour from one map to the other.

    Args:
        before: (customers,) vehicle of each customer in the first solution, -1 where unserved.
        after: (customers,) the same in the second solution.
        num_vehicles: Fleet size.
    """
    shared = np.zeros((num_vehicles, num_vehicles), np.int64)
    served = (before >= 0) & (after >= 0)
    np.add.at(shared, (after[served], before[served]), 1)
    match = np.zeros(num_vehicles, np.int64)
    for _ in range(num_vehicles):
        second, first = np.unravel_index(shared.argmax(), shared.shape)
        match[second] = first
        shared[second, :] = shared[:, first] = -1
    return match


def call_record(simulated: SimulatedDays, population: Population, day: int, call: int) -> Record:
    """One call: customer, trip, requested and booked windows, offer and response."""
    offer = int(simulated.offers[day, call])
    customer = int(simulated.customer_id[day, call])
    response = "accepted" if simulated.accepted[day, call] else "refused"
    ids = population.customers.ids
    return {
        # As an operator's file names them, or a number.
        "customer": ids[customer] if ids else customer,
        "type": TYPE_NAMES[population.customers.types[customer]],
        "purpose": PURPOSE_NAMES[population.trips.purpose[simulated.trip_id[day, call]]],
        "cells": simulated.cells[day, call].tolist(),
        "requested": simulated.requested_windows[day, call].tolist(),
        "booked": simulated.booked_windows[day, call].tolist(),
        "offer": population.offers.minutes[offer].astype(int).tolist(),
        "response": "no offer" if offer == population.offers.no_change else response,
    }


def solution_record(
    solutions: Solutions, day: int, vehicle_names: IntArray, cells: IntArray, population: Population
) -> Record:
    """Routes of one day. Stop 2i+1 is the pickup of call i, stop 2i+2 its dropoff.

    Args:
        solutions: Solutions of several days.
        day: The day to record.
        vehicle_names: (vehicles,) number of each vehicle in the record.
        cells: (customers, 2) pickup and dropoff cells of that day.
        population: Its city has the travel times and the depot.
    """
    city = population.city
    routes = []
    for vehicle in np.flatnonzero(solutions.lengths[day]).tolist():
        stops = solutions.routes[day, vehicle, : solutions.lengths[day, vehicle]]
        path = np.array([city.depot_cell, *cells.reshape(-1)[stops - 1], city.depot_cell])
        routes.append(
            {
                "vehicle": int(vehicle_names[vehicle]),
                "start_minutes": round(float(solutions.start_minutes[day, vehicle]), 2),
                "end_minutes": round(float(solutions.end_minutes[day, vehicle]), 2),
                "stops": stops.tolist(),
                "stop_minutes": solutions.stop_minutes[day][stops].round(2).tolist(),
                "leg_minutes": city.travel.minutes[path[:-1], path[1:]].round(2).tolist(),
            }
        )
    return {
        "driving_minutes": round(float(solutions.driving_minutes[day]), 2),
        "routes": sorted(routes, key=lambda route: route["vehicle"]),
    }


def city_record(population: Population) -> Record:
    """Names and positions of all cells; null where the position is unknown."""
    city = population.city
    degrees = city.degrees
    points = city.positions if degrees is None else degrees
    return {
        "unit": "square" if degrees is None else "degrees",
        "depot": city.depot_cell,
        "names": list(city.names),
        "points": [None if np.isnan(point).any() else point.tolist() for point in points.round(6)],
    }
