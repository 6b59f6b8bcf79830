"""Plans put aside and fetched back: a stamp tells which routes really differ."""

from __future__ import annotations

from typing import Any

from hundredfold.oracles.desk import LENGTH, STAMP, bare_kernel


@bare_kernel
def shelve(desk: Any, rules: Any, num_requests: Any, place: Any) -> None:
    """Put a copy of the plan in hand on the shelf."""
    for vehicle in range(rules.num_vehicles):
        if desk.shelf_head[place, vehicle, STAMP] != desk.head[vehicle, STAMP]:
            shelve_route(desk, vehicle, place)
    for request in range(num_requests):
        desk.shelf_vehicle[place, request] = desk.vehicle[request]


@bare_kernel
def fetch(desk: Any, rules: Any, num_requests: Any, place: Any) -> None:
    """Take a copy of the plan on the shelf in hand."""
    for vehicle in range(rules.num_vehicles):
        if desk.shelf_head[place, vehicle, STAMP] != desk.head[vehicle, STAMP]:
            fetch_route(desk, vehicle, place)
    for request in range(num_requests):
        desk.vehicle[request] = desk.shelf_vehicle[place, request]


@bare_kernel
def shelve_route(desk: Any, vehicle: Any, place: Any) -> None:
    """Put a copy of one route on the shelf."""
    for column in range(desk.head.shape[1]):
        desk.shelf_head[place, vehicle, column] = desk.head[vehicle, column]
    for k in range(desk.head[vehicle, LENGTH] + 2):
        for column in range(desk.route.shape[2]):
            desk.shelf_route[place, vehicle, k, column] = desk.route[vehicle, k, column]


@bare_kernel
def fetch_route(desk: Any, vehicle: Any, place: Any) -> None:
    """Take a copy of one route on the shelf in hand."""
    for column in range(desk.head.shape[1]):
        desk.head[vehicle, column] = desk.shelf_head[place, vehicle, column]
    for k in range(desk.head[vehicle, LENGTH] + 2):
        for column in range(desk.route.shape[2]):
            desk.route[vehicle, k, column] = desk.shelf_route[place, vehicle, k, column]
