"""What the routing policy sees of pairs of stops: who can follow whom, and at what price.

On a CPU one compiled pass writes all of it, in training as well; a GPU does it in tensors.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from hundredfold.core.compiled import kernel
from hundredfold.oracles.neural.features import MOST_SLACK, StopTable

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
