"""What the routing policy sees of a book's stops; `pairs.py` looks at pairs of them.

Minutes are scaled by the city (its mean drive) and by the day (the depot's window), never by the
book itself, so a booking looks the same however the book around it grows. A travel table has no
map; stops get coordinates by classical scaling of the driving times.

What the routing policy sees of pairs of stops: who can follow whom, and at what price.

On a CPU one compiled pass writes all of it, in training as well; a GPU does it in tensors.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.core.numba_kernels import kernel
from hundredfold.routing.instance_arrays import FleetConstraints, InstanceArrays
from hundredfold.routing.problem import TravelTable, classical_mds

NUM_NODE_FEATURES: Final = 28
# Waves of the hour of day: whole days down to a fraction of an hour.
WAVES: Final = (1.0, 3.0, 9.0, 27.0)
# Slack beyond this many mean drives is as good as endless.
MOST_SLACK: Final = 4.0
USUAL_REQUESTS: Final = 30.0


class City(NamedTuple):
    """What features need to know of a travel table and a fleet, in ticks."""

    positions: FloatArray  # (cells, 2) in mean drives, around 0
    mean_drive: float
    day_start: float
    day_length: float


class StopTable(NamedTuple):
    """Books of one size as the encoder takes them; all (books, stops, ...)."""

    nodes: Tensor  # (books, stops, node features)
    cell: Tensor  # (books, stops) into the travel table
    early: Tensor  # (books, stops) in mean drives
    late: Tensor  # (books, stops) in mean drives
    service: Tensor  # (books, stops) in mean drives


def city_of(travel: TravelTable, opens: int, closes: int) -> City:
    """The scales and the map of a city whose depot opens and closes at these ticks."""
    drives = travel.microseconds
    elsewhere = ~np.eye(len(drives), dtype=bool)
    mean = max(float(drives[elsewhere].mean()), 1.0) if elsewhere.any() else 1.0
    return City(classical_mds(drives / mean), mean, float(opens), max(float(closes - opens), mean))


def stop_table(
    books: InstanceArrays,
    rules: FleetConstraints,
    city: City,
    rows: IntArray,
    turn: FloatArray | None = None,
) -> StopTable:
    """The chosen rows, which must be books of one size. `turn` (2, 2) rotates the map."""
    requests = int(books.num_requests[rows[0]])
    stops = 2 * requests + 1
    cell = books.cell[rows, :stops]
    early = _in_drives(books.early[rows, :stops], city)
    late = _in_drives(books.late[rows, :stops], city)
    service = books.service[rows, :stops] / city.mean_drive
    nodes = _node_features(books, rules, city, rows, early, late, service, turn)
    as_tensor = torch.from_numpy
    return StopTable(
        as_tensor(nodes),
        as_tensor(np.ascontiguousarray(cell)),
        as_tensor(early.astype(np.float32)),
        as_tensor(late.astype(np.float32)),
        as_tensor(service.astype(np.float32)),
    )


def _in_drives(ticks: IntArray, city: City) -> FloatArray:
    return np.asarray((ticks - city.day_start) / city.mean_drive, np.float64)


def _node_features(
    books: InstanceArrays,
    rules: FleetConstraints,
    city: City,
    rows: IntArray,
    early: FloatArray,
    late: FloatArray,
    service: FloatArray,
    turn: FloatArray | None,
) -> FloatArray:
    num_rows, stops = early.shape
    partner = np.arange(stops)
    partner[1::2] += 1
    partner[2::2] -= 1
    pickup = np.where(np.arange(stops) % 2 == 1, np.arange(stops), partner)
    cell = books.cell[rows, :stops]
    where = city.positions[cell] if turn is None else city.positions[cell] @ turn
    drive = books.drive / city.mean_drive
    direct = drive[cell[:, pickup], cell[:, partner[pickup]]]
    day = city.day_length / city.mean_drive
    longest = np.minimum(books.max_ride[rows, :stops] / city.mean_drive, 1e6)[:, pickup]
    middle = (early + late) / 2.0 / day
    found: FloatArray = np.zeros((num_rows, stops, NUM_NODE_FEATURES), np.float32)
    found[..., 0:2] = where
    found[..., 2:4] = where[:, partner]
    found[..., 4] = 4.0 * early / day - 2.0
    found[..., 5] = 4.0 * late / day - 2.0
    found[..., 6] = found[:, partner, 4]
    found[..., 7] = found[:, partner, 5]
    found[..., 8] = np.clip(late - early, 0.0, MOST_SLACK)
    # Room between earliest pickup and latest dropoff, beyond the direct ride.
    room = late[:, partner[pickup]] - early[:, pickup] - direct
    found[..., 9] = np.clip(room, -MOST_SLACK, MOST_SLACK)
    found[..., 10] = direct
    found[..., 11] = drive[cell[:, :1], cell]
    found[..., 12] = drive[cell, cell[:, :1]]
    found[..., 13] = books.riders[rows, :stops] / rules.capacity
    found[..., 14] = service
    found[..., 15] = np.clip(longest - direct, 0.0, MOST_SLACK)
    found[:, 0, 4:16] = 0.0
    found[:, 0, 16] = 1.0
    found[:, 1::2, 17] = 1.0
    found[:, 2::2, 18] = 1.0
    found[..., 19] = (stops // 2) / USUAL_REQUESTS
    for k, wave in enumerate(WAVES):
        found[:, 1:, 20 + 2 * k] = np.sin(2.0 * np.pi * wave * middle[:, 1:])
        found[:, 1:, 21 + 2 * k] = np.cos(2.0 * np.pi * wave * middle[:, 1:])
    return found


NUM_PAIR_FEATURES: Final = 8
LEAST_SLACK: Final = -2.0


def pair_features(table: StopTable, drive: Tensor) -> Tensor:
    """(books, pair features, stops, stops), from the row's stop to the column's.

    `drive` (cells, cells) is the travel table in mean drives.
    """
    if drive.device.type != "cpu":
        return features_in_tensors(table, drive)
    books, stops = table.cell.shape
    seen = torch.empty((books, NUM_PAIR_FEATURES, stops, stops))
    _fill(
        table.cell.numpy(),
        table.early.numpy(),
        table.late.numpy(),
        table.service.numpy(),
        drive.numpy(),
        seen.numpy(),
    )
    return seen


@kernel
def _fill(cell: Any, early: Any, late: Any, service: Any, drive: Any, seen: Any) -> None:
    books, stops = cell.shape
    most, least = np.float32(MOST_SLACK), np.float32(LEAST_SLACK)
    for book in range(books):
        for i in range(stops):
            for j in range(stops):
                there = drive[cell[book, i], cell[book, j]]
                back = drive[cell[book, j], cell[book, i]]
                leg, leg_back = there + service[book, i], back + service[book, j]
                spare = late[book, j] - early[book, i] - leg
                spare_back = late[book, i] - early[book, j] - leg_back
                idle = early[book, j] - late[book, i] - leg
                seen[book, 0, i, j] = there
                seen[book, 1, i, j] = back
                seen[book, 2, i, j] = min(max(spare, least), most)
                seen[book, 3, i, j] = min(max(spare_back, least), most)
                seen[book, 4, i, j] = min(max(idle, least), most)
                seen[book, 5, i, j] = np.float32(spare >= 0.0)
                seen[book, 6, i, j] = np.float32(spare_back >= 0.0)
                seen[book, 7, i, j] = np.float32((i + 1) >> 1 == (j + 1) >> 1)


def features_in_tensors(table: StopTable, drive: Tensor) -> Tensor:
    """The same on any device."""
    cell, early, late, service = table.cell, table.early, table.late, table.service
    there = drive[cell[:, :, None], cell[:, None, :]]
    leg = there + service[:, :, None]
    # From the row's stop to the column's: time to spare, and time spent waiting at least.
    spare = late[:, None, :] - early[:, :, None] - leg
    idle = early[:, None, :] - late[:, :, None] - leg
    stops = cell.shape[1]
    request = (torch.arange(stops, device=cell.device) + 1) // 2
    same = (request[:, None] == request[None, :]).to(there.dtype).expand_as(there)
    back = spare.transpose(1, 2)
    return torch.stack(
        [
            there,
            there.transpose(1, 2),
            spare.clamp(LEAST_SLACK, MOST_SLACK),
            back.clamp(LEAST_SLACK, MOST_SLACK),
            idle.clamp(LEAST_SLACK, MOST_SLACK),
            (spare >= 0.0).to(there.dtype),
            (back >= 0.0).to(there.dtype),
            same,
        ],
        dim=1,
    )
