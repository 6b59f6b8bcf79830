"""Adapter that makes an oracle of a third-party routing policy with the interface of RL4CO.

The policy is called as `policy(td, phase="test", decode_type="greedy")` and returns a mapping with
`reward` (minus the cost) and, for routes, `actions`. `costs` trusts the reward; `solve` checks the
routes, inserts missing requests, and computes the cost itself.

The layout of `td`, for B instances of R requests (N = 2R + 1 stops: the depot, then all pickups,
then all dropoffs, as RL4CO orders them):

    locs            (B, N, 2)  float32  coordinates on the unit square, from travel times
    depot           (B, 2)     float32  the same for the depot
    time_windows    (B, N, 2)  float32  minutes, early and late
    travel_minutes  (B, N, N)  float32  driving minutes from row to column
    demand          (B, N)     float32  riders who board, negative where they leave
    service_minutes (B, N)     float32
    max_ride_minutes(B, N)     float32  at the pickup, inf where unlimited
    capacity        (B, 1)     float32  capacity of a vehicle
    num_vehicles    (B, 1)     int64
    current_node    (B, 1)     int64    0: the vehicle is in the depot
    to_deliver      (B, N)     bool     True at the depot and the pickups: may be visited now
    available       (B, N)     bool     True where not visited; the depot counts as visited
    i               (B, 1)     int64    0: steps so far
    action_mask     (B, N)     bool     feasible first actions: the pickups
    done            (B, 1)     bool

The last six are the initial state of RL4CO's PDP env, so its policies run as they are. In `actions`
(B, steps) a 0 between two stops starts the next vehicle.
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
from hundredfold.routing.neural.features import policy_inputs
from hundredfold.routing.neural.oracle import complete_routes, drop_infeasible, rows_by_size
from hundredfold.routing.problem import RouteProblems, Solutions, classical_mds
from hundredfold.routing.solution import build_solutions

Policy = Callable[..., Mapping[str, Any]]


class Rl4coOracle:
    """Oracle that calls a policy with the interface of RL4CO."""

    def __init__(self, policy: Policy, *, minutes_per_unit: float = 1.0, improve_passes: int = 0) -> None:
        """Wrap a policy.

        Args:
            policy: Called as `policy(td, phase="test", decode_type="greedy")`.
            minutes_per_unit: Minutes of one unit of reward; `minutes_per_side` for policies that
                measure on the unit square.
            improve_passes: Passes of relocate local search in `solve`.
        """
        self.policy = policy
        self.minutes_per_unit = minutes_per_unit
        self.improve_passes = improve_passes

    def costs(self, problems: RouteProblems) -> FloatArray:
        """(instances,) minus the policy's rewards, in minutes; 0 for empty instances."""
        costs = np.zeros(len(problems))
        for rows in rows_by_size(problems.num_requests):
            reward = self._call_policy(problems, rows)["reward"]
            costs[rows] = -_as_array(reward, (len(rows),), "reward") * self.minutes_per_unit
        return costs

    def solve(self, problems: RouteProblems) -> Solutions:
        """Solve every instance by the policy's actions; infeasible solutions are rebuilt."""
        inputs = policy_inputs(problems)
        width = max(1, 2 * problems.max_requests)
        routes = np.zeros((len(problems), problems.fleet.num_vehicles, width), np.int64)
        lengths = np.zeros(routes.shape[:2], np.int64)
        for rows in rows_by_size(problems.num_requests):
            output = self._call_policy(problems, rows)
            if "actions" not in output:
                raise ShapeError(
                    "the policy returned no actions, so there are no routes to check; "
                    "call costs() for its rewards, or make it return actions."
                )
            actions = np.asarray(torch.as_tensor(output["actions"]).cpu(), np.int64)
            write_actions(actions, rows, int(problems.num_requests[rows[0]]), routes, lengths)
        drop_infeasible(inputs, routes, lengths)
        keys = instance_keys(inputs.instances)
        complete_routes(inputs, keys, routes, lengths, self.improve_passes)
        return build_solutions(inputs.instances, inputs.constraints, routes, lengths)

    def _call_policy(self, problems: RouteProblems, rows: IntArray) -> Mapping[str, Any]:
        with torch.inference_mode():
            return self.policy(tensordict_of(problems, rows), phase="test", decode_type="greedy")


def minutes_per_side(problems: RouteProblems) -> float:
    """Driving minutes that one side of the unit square stands for."""
    points = classical_mds(problems.travel.minutes)
    return float(max(np.ptp(points, axis=0).max(), 1e-9))


def tensordict_of(problems: RouteProblems, rows: IntArray) -> Any:
    """Initial state of instances of one size: a TensorDict where installed, else a dict."""
    instances = policy_inputs(problems).instances
    requests = int(problems.num_requests[rows[0]])
    # Stops alternate between pickup and dropoff here; RL4CO has all pickups first.
    order = np.concatenate([[0], 2 * np.arange(requests) + 1, 2 * np.arange(requests) + 2])
    cell = instances.cell[rows][:, order]
    points = classical_mds(problems.travel.minutes)
    points = (points - points.min(axis=0)) / minutes_per_side(problems)
    is_pickup = (np.arange(len(order)) > 0) & (np.arange(len(order)) <= requests)
    windows = np.zeros((len(rows), len(order), 2))
    windows[:, 0] = problems.fleet.depot_window
    windows[:, 1:] = problems.windows[rows][:, :requests].swapaxes(1, 2).reshape(len(rows), -1, 2)
    max_ride = np.full((len(rows), len(order)), np.inf)
    max_ride[:, is_pickup] = problems.max_ride_minutes[rows, :requests]
    service = np.zeros((len(rows), len(order)))
    service[:, 1:] = problems.service_minutes[rows][:, :requests].swapaxes(1, 2).reshape(len(rows), -1)
    floats: dict[str, Array] = {
        "locs": points[cell],
        "depot": points[cell[:, 0]],
        "time_windows": windows,
        "travel_minutes": problems.travel.minutes[cell[:, :, None], cell[:, None, :]],
        "demand": instances.riders[rows][:, order],
        "service_minutes": service,
        "max_ride_minutes": max_ride,
        "capacity": np.full((len(rows), 1), problems.fleet.capacity),
    }
    state: dict[str, Tensor] = {
        name: torch.from_numpy(np.asarray(values, np.float32)) for name, values in floats.items()
    }
    stop = torch.arange(len(order)).repeat(len(rows), 1)
    zero = torch.zeros((len(rows), 1), dtype=torch.int64)
    state |= {
        "num_vehicles": zero + problems.fleet.num_vehicles,
        "current_node": zero.clone(),
        "to_deliver": stop <= requests,
        "available": stop > 0,
        "i": zero.clone(),
        "action_mask": (stop > 0) & (stop <= requests),
        "done": zero.bool(),
    }
    try:
        from tensordict import TensorDict
    except ImportError:
        return state
    return TensorDict(state, batch_size=[len(rows)])


def write_actions(actions: IntArray, rows: IntArray, requests: int, routes: IntArray, lengths: IntArray) -> None:
    """Write the routes of actions (instances, steps) in place; excess actions are omitted."""
    if actions.ndim != 2 or len(actions) != len(rows) or (actions > 2 * requests).any():
        raise ShapeError(
            f"actions came with shape {actions.shape} and values up to {actions.max(initial=0)}; "
            f"return ({len(rows)}, steps) stops in 0..{2 * requests}."
        )
    stops = np.where(actions <= requests, 2 * actions - 1, 2 * (actions - requests))
    stops = np.where(actions == 0, 0, stops)
    # The vehicle of a step is the number of returns to the depot before it.
    is_visit = stops > 0
    returns = ~is_visit[:, 1:] & is_visit[:, :-1]
    vehicles = np.zeros_like(stops)
    vehicles[:, 1:] = np.cumsum(returns, axis=1)
    for index, step in np.argwhere(is_visit & (vehicles < lengths.shape[1])):
        row, vehicle = rows[index], vehicles[index, step]
        position = lengths[row, vehicle]
        if position < routes.shape[2]:
            routes[row, vehicle, position] = stops[index, step]
            lengths[row, vehicle] += 1


def _as_array(values: Any, shape: tuple[int, ...], name: str) -> FloatArray:
    array: FloatArray = np.asarray(torch.as_tensor(values).detach().cpu(), np.float64)
    if array.size != int(np.prod(shape)):
        raise ShapeError(f"the policy's {name} came with shape {array.shape}; return {shape}.")
    return array.reshape(shape)
