"""Other people's routing policies as an oracle: whatever is called like a policy of RL4CO.

The policy is called as `policy(td, phase="test", decode_type="greedy")` and returns a mapping with
`reward` (minus the cost) and, where it tells its routes, `actions`. `costs` believes the reward;
`solve` rebuilds the routes, checks them, inserts whoever is missing, and prices them by our rule.

The layout of `td`, for B books of R requests (N = 2R + 1 stops: the depot, then all pickups, then
all dropoffs, as RL4CO orders them):

    locs            (B, N, 2)  float32  map of the travel times on the unit square
    depot           (B, 2)     float32  the same for the depot
    time_windows    (B, N, 2)  float32  minutes, early and late
    travel_minutes  (B, N, N)  float32  driving minutes from row to column
    demand          (B, N)     float32  riders who get on, negative where they leave
    service_minutes (B, N)     float32
    max_ride_minutes(B, N)     float32  at the pickup, inf where unlimited
    capacity        (B, 1)     float32  capacity of a vehicle
    num_vehicles    (B, 1)     int64
    current_node    (B, 1)     int64    0: the vehicle stands in the depot
    to_deliver      (B, N)     bool     True at the depot and the pickups: what may come now
    available       (B, N)     bool     True where nobody has been; the depot counts as visited
    i               (B, 1)     int64    0: steps made so far
    action_mask     (B, N)     bool     where the first move may lead: the pickups
    done            (B, 1)     bool

The last six are the state in which RL4CO's PDP env starts, so that its policies run as they are. In
`actions` (B, steps) a 0 between two stops begins the next vehicle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hundredfold.core.batch import Array, FloatArray, IntArray
from hundredfold.core.errors import ShapeError
from hundredfold.routing.lns import instance_keys
from hundredfold.routing.neural.inputs import finish_plans, prepared, rows_by_size
from hundredfold.routing.neural.oracle import drop_impossible
from hundredfold.routing.problem import RouteProblems, Solutions, classical_mds
from hundredfold.routing.solution import build_solutions

Policy = Callable[..., Mapping[str, Any]]


class Rl4coOracle:
    """An oracle made of a policy in the manner of RL4CO."""

    def __init__(
        self, policy: Policy, *, minutes_per_unit: float = 1.0, improve_passes: int = 0
    ) -> None:
        """`minutes_per_unit` turns the policy's rewards into minutes.

        A policy for the unit square answers in its sides: `minutes_per_side` tells how long one is.
        """
        self.policy = policy
        self.minutes_per_unit = minutes_per_unit
        self.improve_passes = improve_passes

    def costs(self, problems: RouteProblems) -> FloatArray:
        """(books,) minus the policy's rewards, in minutes; 0 for empty books."""
        found = np.zeros(len(problems))
        for rows in rows_by_size(problems.num_requests):
            reward = self._answer(problems, rows)["reward"]
            found[rows] = -_numbers(reward, (len(rows),), "reward") * self.minutes_per_unit
        return found

    def solve(self, problems: RouteProblems) -> Solutions:
        """One plan per book out of the policy's actions; a route that cannot be is built anew."""
        ready = prepared(problems)
        width = max(1, 2 * problems.max_requests)
        routes = np.zeros((len(problems), problems.fleet.num_vehicles, width), np.int64)
        lengths = np.zeros(routes.shape[:2], np.int64)
        for rows in rows_by_size(problems.num_requests):
            answer = self._answer(problems, rows)
            if "actions" not in answer:
                raise ShapeError(
                    "the policy returned no actions, so there are no routes to check; "
                    "read its word with costs(), or let it return them."
                )
            actions = np.asarray(torch.as_tensor(answer["actions"]).cpu(), np.int64)
            write_actions(actions, rows, int(problems.num_requests[rows[0]]), routes, lengths)
        drop_impossible(ready, routes, lengths)
        finish_plans(ready, instance_keys(ready.books), routes, lengths, self.improve_passes)
        return build_solutions(ready.books, ready.rules, routes, lengths)

    def _answer(self, problems: RouteProblems, rows: IntArray) -> Mapping[str, Any]:
        with torch.inference_mode():
            return self.policy(tensordict_of(problems, rows), phase="test", decode_type="greedy")


def minutes_per_side(problems: RouteProblems) -> float:
    """How many driving minutes one side of the map's unit square stands for."""
    points = classical_mds(problems.travel.minutes)
    return float(max(np.ptp(points, axis=0).max(), 1e-9))


def tensordict_of(problems: RouteProblems, rows: IntArray) -> Any:
    """The layout above for books of one size: a TensorDict where installed, else a dict."""
    ready = prepared(problems)
    requests = int(problems.num_requests[rows[0]])
    # Our stops go pickup, dropoff, pickup, dropoff; theirs pickups first.
    order = np.concatenate([[0], 2 * np.arange(requests) + 1, 2 * np.arange(requests) + 2])
    cell = ready.books.cell[rows][:, order]
    points = classical_mds(problems.travel.minutes)
    points = (points - points.min(axis=0)) / minutes_per_side(problems)
    is_pickup = (np.arange(len(order)) > 0) & (np.arange(len(order)) <= requests)
    windows = np.zeros((len(rows), len(order), 2))
    windows[:, 0] = problems.fleet.depot_window
    windows[:, 1:] = problems.windows[rows][:, :requests].swapaxes(1, 2).reshape(len(rows), -1, 2)
    ride = np.full((len(rows), len(order)), np.inf)
    ride[:, is_pickup] = problems.max_ride_minutes[rows, :requests]
    service = np.zeros((len(rows), len(order)))
    service[:, 1:] = (
        problems.service_minutes[rows][:, :requests].swapaxes(1, 2).reshape(len(rows), -1)
    )
    floats: dict[str, Array] = {
        "locs": points[cell],
        "depot": points[cell[:, 0]],
        "time_windows": windows,
        "travel_minutes": problems.travel.minutes[cell[:, :, None], cell[:, None, :]],
        "demand": ready.books.riders[rows][:, order],
        "service_minutes": service,
        "max_ride_minutes": ride,
        "capacity": np.full((len(rows), 1), problems.fleet.capacity),
    }
    found: dict[str, Tensor] = {
        name: torch.from_numpy(np.asarray(values, np.float32)) for name, values in floats.items()
    }
    place = torch.arange(len(order)).repeat(len(rows), 1)
    nowhere = torch.zeros((len(rows), 1), dtype=torch.int64)
    found |= {
        "num_vehicles": nowhere + problems.fleet.num_vehicles,
        "current_node": nowhere.clone(),
        "to_deliver": place <= requests,
        "available": place > 0,
        "i": nowhere.clone(),
        "action_mask": (place > 0) & (place <= requests),
        "done": nowhere.bool(),
    }
    try:
        from tensordict import TensorDict
    except ImportError:
        return found
    return TensorDict(found, batch_size=[len(rows)])


def write_actions(
    actions: IntArray, rows: IntArray, requests: int, routes: IntArray, lengths: IntArray
) -> None:
    """Turn actions (books, steps) into routes of these rows; what does not fit is left out."""
    if actions.ndim != 2 or len(actions) != len(rows) or (actions > 2 * requests).any():
        raise ShapeError(
            f"actions came with shape {actions.shape} and reach {actions.max(initial=0)}; pass "
            f"({len(rows)}, steps) stops in 0..{2 * requests}."
        )
    stops = np.where(actions <= requests, 2 * actions - 1, 2 * (actions - requests))
    stops = np.where(actions == 0, 0, stops)
    # The vehicle of a step: how many times somebody came home before, after having been out.
    out = stops > 0
    comes_home = ~out[:, 1:] & out[:, :-1]
    vehicle = np.zeros_like(stops)
    vehicle[:, 1:] = np.cumsum(comes_home, axis=1)
    row, step = np.nonzero(out & (vehicle < lengths.shape[1]))
    for book, when in zip(row, step, strict=True):
        mine = vehicle[book, when]
        place = lengths[rows[book], mine]
        if place < routes.shape[2]:
            routes[rows[book], mine, place] = stops[book, when]
            lengths[rows[book], mine] += 1


def _numbers(values: Any, shape: tuple[int, ...], name: str) -> FloatArray:
    found: FloatArray = np.asarray(torch.as_tensor(values).detach().cpu(), np.float64)
    if found.size != int(np.prod(shape)):
        raise ShapeError(f"the policy's {name} came with shape {found.shape}; pass {shape}.")
    return found.reshape(shape)
