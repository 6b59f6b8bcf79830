"""Input features of the routing policy: nodes (stops) and edges (pairs of stops).

Times are scaled by the travel table (its mean drive) and by the depot's window, never by the
instance, so a request has the same features however many others there are. Stops get coordinates by
classical multidimensional scaling of the driving times.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.core.numba_kernels import kernel
from hundredfold.routing.instance_arrays import FleetConstraints, InstanceArrays, to_instance_arrays
from hundredfold.routing.problem import RouteProblems, TravelTable, classical_mds

NUM_NODE_FEATURES: Final = 28
NUM_EDGE_FEATURES: Final = 8
# Sinusoidal encoding of the time of day, in periods per day.
DAY_FREQUENCIES: Final = (1.0, 3.0, 9.0, 27.0)
# Slack is clipped to this range, in mean drives.
MIN_SLACK: Final = -2.0
MAX_SLACK: Final = 4.0
REQUESTS_SCALE: Final = 30.0


class TimeScale(NamedTuple):
    """Reciprocal time scales for kernels, which multiply."""

    per_mean_drive: float  # 1 / mean drive in microseconds
    day_start: float  # microseconds
    per_day: float  # 1 / length of the day in microseconds


class CityScales(NamedTuple):
    """Coordinates and time scales of a travel table and a depot window."""

    positions: FloatArray  # (cells, 2) in mean drives, centred
    mean_drive: float  # microseconds
    day_start: float  # microseconds
    day_length: float  # microseconds


class PolicyInputs(NamedTuple):
    """A batch of instances with everything that encoding and decoding need."""

    instances: InstanceArrays
    constraints: FleetConstraints
    city: CityScales
    drive: Tensor  # (cells, cells) in mean drives

    @property
    def time_scale(self) -> TimeScale:
        """The city's time scales as kernels take them."""
        return TimeScale(1.0 / self.city.mean_drive, self.city.day_start, 1.0 / self.city.day_length)


class EncoderInputs(NamedTuple):
    """Encoder inputs of instances of one size; times in mean drives."""

    nodes: Tensor  # (instances, stops, node features)
    cell: Tensor  # (instances, stops) into the travel table
    early: Tensor  # (instances, stops)
    late: Tensor  # (instances, stops)
    service: Tensor  # (instances, stops)


def policy_inputs(problems: RouteProblems) -> PolicyInputs:
    """Convert instances to microseconds and add the scales of their city."""
    instances, constraints = to_instance_arrays(problems)
    return inputs_from_arrays(problems.travel, instances, constraints)


def inputs_from_arrays(travel: TravelTable, instances: InstanceArrays, constraints: FleetConstraints) -> PolicyInputs:
    """Add the scales of their city to instances that are in microseconds already."""
    city, drive = _city_scales(travel, int(instances.early[0, 0]), int(instances.late[0, 0]))
    return PolicyInputs(instances, constraints, city, drive)


@lru_cache(maxsize=16)
def _city_scales(travel: TravelTable, depot_opens: int, depot_closes: int) -> tuple[CityScales, Tensor]:
    drives = travel.microseconds
    off_diagonal = ~np.eye(len(drives), dtype=bool)
    mean = max(float(drives[off_diagonal].mean()), 1.0) if off_diagonal.any() else 1.0
    day_length = max(float(depot_closes - depot_opens), mean)
    city = CityScales(classical_mds(drives / mean), mean, float(depot_opens), day_length)
    return city, torch.from_numpy((drives / mean).astype(np.float32))


def encoder_inputs(inputs: PolicyInputs, rows: IntArray, rotation: FloatArray | None = None) -> EncoderInputs:
    """Encoder inputs of some instances.

    Args:
        inputs: The batch of instances.
        rows: Instances to encode, all with the same number of requests.
        rotation: (2, 2) rotation or reflection of the coordinates, for data augmentation.
    """
    instances, city = inputs.instances, inputs.city
    stops = 2 * int(instances.num_requests[rows[0]]) + 1
    cell = instances.cell[rows, :stops]
    early = _in_mean_drives(instances.early[rows, :stops], city)
    late = _in_mean_drives(instances.late[rows, :stops], city)
    service = instances.service[rows, :stops] / city.mean_drive
    nodes = _node_features(inputs, rows, early, late, service, rotation)
    as_tensor = torch.from_numpy
    return EncoderInputs(
        as_tensor(nodes),
        as_tensor(np.ascontiguousarray(cell)),
        as_tensor(early.astype(np.float32)),
        as_tensor(late.astype(np.float32)),
        as_tensor(service.astype(np.float32)),
    )


def _in_mean_drives(microseconds: IntArray, city: CityScales) -> FloatArray:
    return np.asarray((microseconds - city.day_start) / city.mean_drive, np.float64)


def _node_features(
    inputs: PolicyInputs,
    rows: IntArray,
    early: FloatArray,
    late: FloatArray,
    service: FloatArray,
    rotation: FloatArray | None,
) -> FloatArray:
    instances, city = inputs.instances, inputs.city
    num_rows, stops = early.shape
    partner = np.arange(stops)
    partner[1::2] += 1
    partner[2::2] -= 1
    pickup = np.where(np.arange(stops) % 2 == 1, np.arange(stops), partner)
    cell = instances.cell[rows, :stops]
    position = city.positions[cell] if rotation is None else city.positions[cell] @ rotation
    drive = instances.drive / city.mean_drive
    direct = drive[cell[:, pickup], cell[:, partner[pickup]]]
    day = city.day_length / city.mean_drive
    max_ride = np.minimum(instances.max_ride[rows, :stops] / city.mean_drive, 1e6)[:, pickup]
    window_middle = (early + late) / 2.0 / day
    nodes: FloatArray = np.zeros((num_rows, stops, NUM_NODE_FEATURES), np.float32)
    nodes[..., 0:2] = position
    nodes[..., 2:4] = position[:, partner]
    nodes[..., 4] = 4.0 * early / day - 2.0  # time window
    nodes[..., 5] = 4.0 * late / day - 2.0
    nodes[..., 6] = nodes[:, partner, 4]  # of the other stop
    nodes[..., 7] = nodes[:, partner, 5]
    nodes[..., 8] = np.clip(late - early, 0.0, MAX_SLACK)  # window width
    # Slack between earliest pickup and latest dropoff, beyond the direct ride.
    trip_slack = late[:, partner[pickup]] - early[:, pickup] - direct
    nodes[..., 9] = np.clip(trip_slack, -MAX_SLACK, MAX_SLACK)
    nodes[..., 10] = direct
    nodes[..., 11] = drive[cell[:, :1], cell]  # from the depot
    nodes[..., 12] = drive[cell, cell[:, :1]]  # to the depot
    nodes[..., 13] = instances.riders[rows, :stops] / inputs.constraints.capacity
    nodes[..., 14] = service
    nodes[..., 15] = np.clip(max_ride - direct, 0.0, MAX_SLACK)  # ride-time slack
    nodes[:, 0, 4:16] = 0.0
    # One-hot kind of stop: depot, pickup, dropoff.
    nodes[:, 0, 16] = 1.0
    nodes[:, 1::2, 17] = 1.0
    nodes[:, 2::2, 18] = 1.0
    nodes[..., 19] = (stops // 2) / REQUESTS_SCALE  # size of the instance
    for k, frequency in enumerate(DAY_FREQUENCIES):
        nodes[:, 1:, 20 + 2 * k] = np.sin(2.0 * np.pi * frequency * window_middle[:, 1:])
        nodes[:, 1:, 21 + 2 * k] = np.cos(2.0 * np.pi * frequency * window_middle[:, 1:])
    return nodes


def edge_features(inputs: EncoderInputs, drive: Tensor) -> Tensor:
    """(instances, edge features, stops, stops), from the row's stop to the column's.

    A Numba kernel writes them on a CPU, tensor operations on a GPU. `drive` (cells, cells) is the
    travel table in mean drives.
    """
    if drive.device.type != "cpu":
        return edge_features_torch(inputs, drive)
    num_instances, stops = inputs.cell.shape
    edges = torch.empty((num_instances, NUM_EDGE_FEATURES, stops, stops))
    _write_edge_features(
        inputs.cell.numpy(),
        inputs.early.numpy(),
        inputs.late.numpy(),
        inputs.service.numpy(),
        drive.numpy(),
        edges.numpy(),
    )
    return edges


@kernel
def _write_edge_features(cell: Any, early: Any, late: Any, service: Any, drive: Any, edges: Any) -> None:
    num_instances, stops = cell.shape
    most, least = np.float32(MAX_SLACK), np.float32(MIN_SLACK)
    for row in range(num_instances):
        for i in range(stops):
            for j in range(stops):
                there = drive[cell[row, i], cell[row, j]]
                back = drive[cell[row, j], cell[row, i]]
                leg, leg_back = there + service[row, i], back + service[row, j]
                slack = late[row, j] - early[row, i] - leg
                slack_back = late[row, i] - early[row, j] - leg_back
                wait = early[row, j] - late[row, i] - leg
                edges[row, 0, i, j] = there
                edges[row, 1, i, j] = back
                edges[row, 2, i, j] = min(max(slack, least), most)
                edges[row, 3, i, j] = min(max(slack_back, least), most)
                edges[row, 4, i, j] = min(max(wait, least), most)
                edges[row, 5, i, j] = np.float32(slack >= 0.0)
                edges[row, 6, i, j] = np.float32(slack_back >= 0.0)
                edges[row, 7, i, j] = np.float32((i + 1) >> 1 == (j + 1) >> 1)


def edge_features_torch(inputs: EncoderInputs, drive: Tensor) -> Tensor:
    """`edge_features` in tensor operations, on any device."""
    cell, early, late, service = inputs.cell, inputs.early, inputs.late, inputs.service
    there = drive[cell[:, :, None], cell[:, None, :]]
    leg = there + service[:, :, None]
    # From the row's stop to the column's: the most slack, and the least waiting.
    slack = late[:, None, :] - early[:, :, None] - leg
    wait = early[:, None, :] - late[:, :, None] - leg
    stops = cell.shape[1]
    request = (torch.arange(stops, device=cell.device) + 1) // 2
    same_request = (request[:, None] == request[None, :]).to(there.dtype).expand_as(there)
    slack_back = slack.transpose(1, 2)
    return torch.stack(
        [
            there,
            there.transpose(1, 2),
            slack.clamp(MIN_SLACK, MAX_SLACK),
            slack_back.clamp(MIN_SLACK, MAX_SLACK),
            wait.clamp(MIN_SLACK, MAX_SLACK),
            (slack >= 0.0).to(there.dtype),
            (slack_back >= 0.0).to(there.dtype),
            same_request,
        ],
        dim=1,
    )
