"""Features of the moment and of every move, in tensors; `moves.py` tells what each one means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from hundredfold.oracles.books import Rules
from hundredfold.oracles.neural.model import NUM_MOVE_FEATURES, NUM_STATE_FEATURES
from hundredfold.oracles.neural.moves import FAR, USUAL_REQUESTS, USUAL_VEHICLES, Pace

if TYPE_CHECKING:
    from hundredfold.oracles.neural.batched import Now, Stops

MOST: Final = float(FAR)


def state_features(now: Now, rules: Rules, pace: Pace) -> Tensor:
    """(R, state features)."""
    requests = now.open.shape[1] // 2
    seen = torch.zeros((len(now.at), NUM_STATE_FEATURES), device=now.at.device)
    vehicle = now.vehicle.float()
    seen[:, 0] = (4.0 * (now.time.double() - pace.day_start) * pace.per_day - 2.0).float()
    seen[:, 1] = now.load.float() / rules.seats
    seen[:, 2] = vehicle / rules.num_vehicles
    seen[:, 3] = (rules.num_vehicles - vehicle) / float(USUAL_VEHICLES)
    seen[:, 4] = now.open.sum(dim=1).float() / requests
    seen[:, 5] = requests / float(USUAL_REQUESTS)
    seen[:, 6] = (now.stops.float() * rules.num_vehicles / (2.0 * requests)).clamp(max=MOST)
    opening = min(rules.vehicle_ticks * pace.per_drive, MOST)
    seen[:, 7] = torch.where(now.vehicle + 1 >= rules.free_vehicles, opening, 0.0)
    return seen


def move_features(
    stops: Stops, now: Now, rules: Rules, pace: Pace, allowed: Tensor, there: Tensor
) -> Tensor:
    """(R, N, move features); only what is written where allowed means anything."""
    book = now.book
    travel, late = stops.travel[book], stops.late[book]
    rows, num_stops = allowed.shape
    stop = torch.arange(num_stops, device=now.at.device)
    is_pickup, is_depot = stop % 2 == 1, stop == 0
    partner = torch.where(is_pickup, stop + 1, 0)
    leg = travel[torch.arange(rows, device=now.at.device), now.at]
    wait = there - now.time[:, None] - leg
    from_depot = (now.at == 0)[:, None]
    # Home has no window to wait for.
    arrive = torch.where(is_depot, now.time[:, None] + leg, there)
    wait = torch.where(is_depot, 0, wait)

    def drives(ticks: Tensor) -> Tensor:
        return (ticks.double() * pace.per_drive).float()

    def short(ticks: Tensor) -> Tensor:
        return drives(ticks).clamp(max=MOST)

    homewards = travel[:, :, 0]
    seen = torch.zeros((rows, num_stops, NUM_MOVE_FEATURES), device=now.at.device)
    seen[..., 0] = drives(leg)
    seen[..., 1] = short(wait)
    seen[..., 2] = short(late - arrive)
    seen[..., 3] = is_depot.float()
    seen[..., 4] = (~is_pickup & ~is_depot).float()
    seen[..., 5] = from_depot.float()
    seen[..., 6] = drives(homewards)
    seen[..., 7] = drives(leg + homewards - leg[:, :1])
    seen[..., 8] = torch.where(from_depot, 0.0, short(arrive - now.time[:, None]))
    due = torch.minimum(late[:, partner], arrive + stops.max_ride[book])
    seen[..., 9] = torch.where(is_pickup, short(due - arrive - travel[:, stop, partner]), 0.0)
    seen[..., 10] = (now.load[:, None] + stops.riders[book]).float() / rules.seats
    seen[..., 11] = _least_spare(now, travel, arrive, stop, pace)
    nearest, soonest = _onward(now, travel, arrive, late, stops.early[book], stop)
    seen[..., 12] = torch.where(is_depot, 0.0, short(nearest))
    seen[..., 13] = torch.where(is_depot, 0.0, short(soonest))
    best = _best_before(now, travel, late, stops.early[book], stop)
    seen[..., 14] = torch.where(is_pickup, drives(leg - best).clamp(-MOST, MOST), 0.0)
    elsewhere = allowed & ~is_depot
    closest = torch.where(elsewhere, leg, 2**61).amin(dim=1, keepdim=True)
    seen[..., 15] = torch.where(
        elsewhere.any(dim=1, keepdim=True), drives(leg - closest).clamp(-MOST, MOST), 0.0
    )
    return seen


def _least_spare(now: Now, travel: Tensor, arrive: Tensor, stop: Tensor, pace: Pace) -> Tensor:
    """(R, N) time to spare of whoever on board is tightest after each move."""
    rows = torch.arange(len(travel), device=travel.device)
    ride = travel[rows[:, None, None], stop[None, :, None], now.aboard[:, None, :]]
    spare = now.due[:, None, :] - arrive[:, :, None] - ride
    counts = (now.aboard[:, None, :] > 0) & (now.aboard[:, None, :] != stop[None, :, None])
    found = (spare.double() * pace.per_drive).float()
    return torch.where(counts, found, MOST).amin(dim=2).clamp(max=MOST)


def _onward(
    now: Now, travel: Tensor, arrive: Tensor, late: Tensor, early: Tensor, stop: Tensor
) -> tuple[Tensor, Tensor]:
    """(R, N) ticks to the nearest and to the soonest open pickup behind each move."""
    reach = arrive[:, :, None] + travel
    counts = now.open[:, None, :] & (reach <= late[:, None, :]) & (stop[:, None] != stop[None, :])
    nearest = torch.where(counts, travel, 2**61).amin(dim=2)
    begins = torch.maximum(reach, early[:, None, :]) - arrive[:, :, None]
    return nearest, torch.where(counts, begins, 2**61).amin(dim=2)


def _best_before(now: Now, travel: Tensor, late: Tensor, early: Tensor, stop: Tensor) -> Tensor:
    """(R, N) ticks of the shortest way to each stop from an open stop that could come before."""
    waiting = now.open.clone()
    waiting[:, 2::2] = now.open[:, 1::2]
    request = (stop + 1) // 2
    in_time = early[:, :, None] + travel <= late[:, None, :]
    counts = waiting[:, :, None] & in_time & (request[:, None] != request[None, :])
    return torch.minimum(torch.where(counts, travel, 2**61).amin(dim=1), travel[:, 0])
