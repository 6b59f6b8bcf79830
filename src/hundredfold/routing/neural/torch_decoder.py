"""The decode loop for GPUs: every book and sample makes its next move in the same torch calls.

The same moves, features and scores as `moves.py` and `decode.py`, told in tensors. Books whose
plans are finished leave the loop. Shapes: B books, K samples, R = B x K rows, N stops.

Features of the moment and of every move, in tensors; `moves.py` tells what each one means.

Exact reachability in tensors: whether some order of dropoffs keeps every promise after a move.

Earliest times over subsets of dropoffs, as in `moves.py`; C is the number of moves to be tested.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import torch
from torch import Tensor

from hundredfold.core import rng
from hundredfold.core.batch import IntArray
from hundredfold.core.rng import Keys
from hundredfold.routing.instance_arrays import FleetConstraints, InstanceArrays
from hundredfold.routing.neural.decoder import TIE
from hundredfold.routing.neural.inputs import Prepared
from hundredfold.routing.neural.model import (
    NUM_MOVE_FEATURES,
    NUM_STATE_FEATURES,
    Decisions,
    RoutingPolicy,
    Tables,
)
from hundredfold.routing.neural.transitions import (
    FAR,
    MAX_ABOARD,
    USUAL_REQUESTS,
    USUAL_VEHICLES,
    Pace,
)

MOST: Final = float(FAR)


def state_features(now: Now, rules: FleetConstraints, pace: Pace) -> Tensor:
    """(R, state features)."""
    requests = now.open.shape[1] // 2
    seen = torch.zeros((len(now.at), NUM_STATE_FEATURES), device=now.at.device)
    vehicle = now.vehicle.float()
    seen[:, 0] = (4.0 * (now.time.double() - pace.day_start) * pace.per_day - 2.0).float()
    seen[:, 1] = now.load.float() / rules.capacity
    seen[:, 2] = vehicle / rules.num_vehicles
    seen[:, 3] = (rules.num_vehicles - vehicle) / float(USUAL_VEHICLES)
    seen[:, 4] = now.open.sum(dim=1).float() / requests
    seen[:, 5] = requests / float(USUAL_REQUESTS)
    seen[:, 6] = (now.stops.float() * rules.num_vehicles / (2.0 * requests)).clamp(max=MOST)
    opening = min(rules.extra_vehicle_cost * pace.per_drive, MOST)
    seen[:, 7] = torch.where(now.vehicle + 1 >= rules.free_vehicles, opening, 0.0)
    return seen


def move_features(
    stops: Stops, now: Now, rules: FleetConstraints, pace: Pace, allowed: Tensor, there: Tensor
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
    seen[..., 10] = (now.load[:, None] + stops.riders[book]).float() / rules.capacity
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


NEVER_THERE: Final = 2**61


def all_in_time(
    travel: Tensor,
    early: Tensor,
    late: Tensor,
    max_ride: Tensor,
    aboard: Tensor,
    due: Tensor,
    stop: Tensor,
    there: Tensor,
    home_by: Tensor,
) -> Tensor:
    """(C,) whether everybody on board still arrives in time, and the vehicle home.

    Each move has its own book: `travel` (C, stops, stops), `early`, `late`, `max_ride` (C, stops);
    `aboard` and `due` (C, places) are who sits in the vehicle; the move leads to `stop` (C,).
    """
    move = torch.arange(len(stop), device=stop.device)
    is_pickup = stop % 2 == 1
    own = torch.where(is_pickup, stop + 1, 0)
    own_due = torch.minimum(late[move, own], there + max_ride[move, stop])
    others = torch.where(aboard == stop[:, None], 0, aboard)
    left = torch.cat([others, own[:, None]], dim=1)
    left_due = torch.cat([due, own_due[:, None]], dim=1)
    # Whoever is to be reached first, free places behind; then only as wide as needed.
    order = (left == 0).to(torch.int8).argsort(dim=1, stable=True)
    count = (left > 0).sum(dim=1)
    width = int(count.max()) if len(count) else 0
    if width == 0:
        return there + travel[move, stop, 0] <= home_by
    left = left.gather(1, order)[:, :width]
    left_due = left_due.gather(1, order)[:, :width]
    return _some_order(travel, early, left, left_due, count, stop, there, home_by)


def _some_order(
    travel: Tensor,
    early: Tensor,
    left: Tensor,
    left_due: Tensor,
    count: Tensor,
    stop: Tensor,
    there: Tensor,
    home_by: Tensor,
) -> Tensor:
    width = left.shape[1]
    move = torch.arange(len(stop), device=stop.device)[:, None]
    opens = early[move, left]
    legs = travel[move[:, :, None], left[:, :, None], left[:, None, :]]
    homewards = travel[move, left, torch.zeros_like(left)]
    reached = torch.full((len(stop), 1 << width, width), NEVER_THERE, device=stop.device)
    first = torch.maximum(there[:, None] + travel[move, stop[:, None], left], opens)
    for k in range(width):
        reached[:, 1 << k, k] = torch.where(first[:, k] <= left_due[:, k], first[:, k], NEVER_THERE)
    for subset in range(1, 1 << width):
        for k in range(width):
            if subset >> k & 1:
                continue
            arrive = (reached[:, subset] + legs[:, :, k]).amin(dim=1)
            arrive = torch.maximum(arrive, opens[:, k])
            arrive = torch.where(arrive <= left_due[:, k], arrive, NEVER_THERE)
            bigger = subset | 1 << k
            reached[:, bigger, k] = torch.minimum(reached[:, bigger, k], arrive)
    whole = (1 << count) - 1
    at_end = reached[move[:, 0], whole]
    back = (at_end + homewards).amin(dim=1)
    alone = there + travel[move[:, 0], stop, 0]
    return torch.where(count > 0, back, alone) <= home_by


_ALL_BITS: Final = 2**64 - 1


@dataclass(slots=True)
class Stops:
    """The books that are still being decoded, in ticks."""

    travel: Tensor  # (B, N, N) service at the first, then the drive to the second
    early: Tensor  # (B, N)
    late: Tensor  # (B, N)
    riders: Tensor  # (B, N)
    max_ride: Tensor  # (B, N)


@dataclass(slots=True)
class Now:
    """What is so at the moment, for every row."""

    book: Tensor  # (R,) into `Stops`
    at: Tensor  # (R,)
    time: Tensor  # (R,)
    load: Tensor  # (R,)
    vehicle: Tensor  # (R,)
    home_by: Tensor  # (R,)
    stops: Tensor  # (R,) made by this vehicle
    open: Tensor  # (R, N) pickups that nobody has served
    aboard: Tensor  # (R, MAX_ABOARD) dropoffs in order of boarding, 0 in free places
    due: Tensor  # (R, MAX_ABOARD)

    @property
    def num_aboard(self) -> Tensor:
        return (self.aboard > 0).sum(dim=1)


@torch.inference_mode()
def decode_batched(
    policy: RoutingPolicy,
    ready: Prepared,
    rows: IntArray,
    tables: Tables,
    keys: Keys,
    temperature: float,
    routes: IntArray,
    lengths: IntArray,
) -> None:
    """Route books of one size; the arguments are those of `decode_rows`."""
    device = tables.stops.device
    rules, samples = ready.rules, len(keys)
    stops = _laid_out(ready.books, rows, device)
    num_books, num_stops = stops.early.shape
    now = _in_depot(stops, samples)
    streams_of = torch.from_numpy(keys[:, rows].T.reshape(-1).astype(np.int64)).to(device)
    live = torch.arange(num_books, device=device)
    driven: list[Tensor] = []
    for step in range(num_stops + rules.num_vehicles):
        allowed, there = _moves(stops, now, rules)
        busy = allowed.any(dim=1).view(-1, samples).any(dim=1)
        if not bool(busy.all()):
            live, tables = live[busy], Tables(tables.stops[busy], tables.book[busy])
            if not len(live):
                break
            kept = busy.repeat_interleave(samples)
            stops = Stops(*(getattr(stops, part.name)[busy] for part in fields(Stops)))
            now = Now(*(getattr(now, part.name)[kept] for part in fields(Now)))
            now.book = torch.arange(len(live), device=device).repeat_interleave(samples)
            streams_of, allowed, there = streams_of[kept], allowed[kept], there[kept]
        over = ~allowed.any(dim=1)
        score = _scores(policy, ready, stops, now, tables, allowed, there, samples)
        if temperature > 0.0:
            score = score + temperature * _luck(streams_of, step * num_stops, num_stops).float()
        score = score.masked_fill(~allowed, -torch.inf)
        best = score.amax(dim=1, keepdim=True)
        chosen = (score >= best - float(TIE)).to(torch.int8).argmax(dim=1)
        chosen = torch.where(over, 0, chosen)
        driven.append(
            torch.stack(
                [
                    live.repeat_interleave(samples),
                    torch.arange(samples, device=device).repeat(len(live)),
                    now.vehicle,
                    now.stops,
                    chosen,
                ]
            )[:, chosen > 0]
        )
        _make_moves(stops, now, rules, chosen, there, over)
    _write_routes(torch.cat(driven, dim=1).cpu().numpy(), rows, routes, lengths)


def _laid_out(books: InstanceArrays, rows: IntArray, device: torch.device) -> Stops:
    num_stops = 2 * int(books.num_requests[rows[0]]) + 1

    def part(values: IntArray) -> Tensor:
        return torch.from_numpy(values[rows, :num_stops]).to(device)

    cell = part(books.cell)
    drive = torch.from_numpy(books.drive).to(device)
    travel = part(books.service)[:, :, None] + drive[cell[:, :, None], cell[:, None, :]]
    return Stops(
        travel, part(books.early), part(books.late), part(books.riders), part(books.max_ride)
    )


def _in_depot(stops: Stops, samples: int) -> Now:
    num_books, num_stops = stops.early.shape
    book = torch.arange(num_books, device=stops.early.device).repeat_interleave(samples)
    zeros = torch.zeros_like(book)
    is_open = torch.zeros((len(book), num_stops), dtype=torch.bool, device=book.device)
    is_open[:, 1::2] = True
    places = zeros[:, None].repeat(1, MAX_ABOARD)
    return Now(
        book=book,
        at=zeros,
        time=stops.early[book, 0],
        load=zeros,
        vehicle=zeros,
        home_by=stops.late[book, 0],
        stops=zeros,
        open=is_open,
        aboard=places,
        due=places.clone(),
    )


def _moves(stops: Stops, now: Now, rules: FleetConstraints) -> tuple[Tensor, Tensor]:
    """(R, N) where each row may drive, and when service would start there."""
    book = now.book
    num_stops = now.open.shape[1]
    leg = stops.travel[book, now.at]
    there = torch.maximum(now.time[:, None] + leg, stops.early[book])
    aboard = now.num_aboard
    room = now.load[:, None] + stops.riders[book] <= rules.capacity
    pickups = now.open & room & (aboard < MAX_ABOARD)[:, None] & (there <= stops.late[book])
    dropoffs = torch.zeros_like(pickups)
    at_place = there.gather(1, now.aboard)
    on_time = (now.aboard > 0) & (at_place <= now.due)
    dropoffs.scatter_(1, now.aboard, on_time)
    dropoffs[:, 0] = False
    from_depot = now.at == 0
    home_by = now.home_by[:, None].expand(-1, num_stops)
    leaves = there - leg
    home_by = torch.where(
        from_depot[:, None], torch.minimum(home_by, leaves + rules.max_route), home_by
    )
    allowed = pickups | dropoffs
    row, stop = allowed.nonzero(as_tuple=True)
    kept = all_in_time(
        stops.travel[book[row]],
        stops.early[book[row]],
        stops.late[book[row]],
        stops.max_ride[book[row]],
        now.aboard[row],
        now.due[row],
        stop,
        there[row, stop],
        home_by[row, stop],
    )
    allowed[row[~kept], stop[~kept]] = False
    last = now.vehicle + 1 >= rules.num_vehicles
    done = ~now.open.any(dim=1) & (aboard == 0)
    may_go_home = ~from_depot & (aboard == 0) & ~(last & allowed.any(dim=1)) & ~done
    allowed[:, 0] = may_go_home
    # The last vehicle back in the depot ends the day.
    allowed &= (now.vehicle < rules.num_vehicles)[:, None]
    return allowed, there


def _scores(
    policy: RoutingPolicy,
    ready: Prepared,
    stops: Stops,
    now: Now,
    tables: Tables,
    allowed: Tensor,
    there: Tensor,
    samples: int,
) -> Tensor:
    """(R, N) logits of the allowed moves."""
    num_books, num_stops = len(tables.book), allowed.shape[1]
    by_book = (num_books, samples, num_stops)
    listed = allowed.clone()
    listed[:, 0] |= ~allowed.any(dim=1)  # attention over nothing has no value
    aboard = torch.zeros(listed.shape, device=listed.device)
    share = (now.aboard > 0).float() / now.num_aboard.clamp(min=1)[:, None]
    aboard.scatter_add_(1, now.aboard, share)
    waiting = now.open.float() / (num_stops // 2)
    seen = move_features(stops, now, ready.rules, ready.pace, listed, there)
    made = Decisions(
        current=now.at.view(num_books, samples),
        state=state_features(now, ready.rules, ready.pace).view(num_books, samples, -1),
        aboard=aboard.view(by_book),
        open=waiting.view(by_book),
        allowed=listed.view(by_book),
        move_place=listed.reshape(-1).nonzero().squeeze(1),
        move_features=seen[listed],
    )
    return policy.scores(tables, made).view(-1, num_stops)


def _make_moves(
    stops: Stops, now: Now, rules: FleetConstraints, chosen: Tensor, there: Tensor, over: Tensor
) -> None:
    """Drive everybody to the stop that was chosen; rows that are over stay where they are."""
    book = now.book
    row = torch.arange(len(chosen), device=chosen.device)
    home = (chosen == 0) & ~over
    when = there[row, chosen]
    first = (now.at == 0) & (chosen > 0)
    leaves = when - stops.travel[book, 0, chosen]
    home_by = torch.minimum(stops.late[book, 0], leaves + rules.max_route)
    now.home_by = torch.where(first, home_by, torch.where(home, stops.late[book, 0], now.home_by))
    now.load = torch.where(home, 0, now.load + stops.riders[book, chosen])
    now.time = torch.where(home, stops.early[book, 0], torch.where(over, now.time, when))
    now.at = torch.where(over, now.at, chosen)
    now.vehicle = now.vehicle + home
    now.stops = torch.where(home, 0, now.stops + (chosen > 0))
    now.open[row, chosen] = False
    _let_off(now, chosen)
    picked = chosen % 2 == 1
    place = now.num_aboard.clamp(max=MAX_ABOARD - 1)
    dropoff = torch.where(picked, chosen + 1, 0)
    due = torch.minimum(stops.late[book, dropoff], when + stops.max_ride[book, chosen])
    now.aboard[row, place] = torch.where(picked, dropoff, now.aboard[row, place])
    now.due[row, place] = torch.where(picked, due, now.due[row, place])


def _let_off(now: Now, chosen: Tensor) -> None:
    """Free the places of riders who arrived; whoever sits behind moves up."""
    left = (now.aboard > 0) & (now.aboard == chosen[:, None])
    aboard = torch.where(left, 0, now.aboard)
    order = (aboard == 0).to(torch.int8).argsort(dim=1, stable=True)
    now.aboard = aboard.gather(1, order)
    now.due = now.due.gather(1, order)


def _luck(keys: Tensor, drawn: int, num_stops: int) -> Tensor:
    """(R, N) Gumbel numbers: the draws of `rng.uniforms`, in 64-bit arithmetic that wraps."""
    count = drawn + torch.arange(num_stops, device=keys.device)
    bits = (count + 1) * _signed(rng.GOLDEN)
    bits = (bits ^ _shifted(bits, 30)) * _signed(rng.MIX_A)
    bits = (bits ^ _shifted(bits, 27)) * _signed(rng.MIX_B)
    bits = (bits ^ _shifted(bits, 31))[None] ^ keys[:, None]
    bits = (bits ^ _shifted(bits, 30)) * _signed(rng.MIX_A)
    bits = (bits ^ _shifted(bits, 27)) * _signed(rng.MIX_B)
    bits = bits ^ _shifted(bits, 31)
    uniform = _shifted(bits, 11).double() * rng.UNIT_SCALE
    return -torch.log(-torch.log(uniform + 1e-12))


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Shift to the right as if unsigned."""
    return (bits >> by) & (_ALL_BITS >> by)


def _signed(word: np.uint64) -> int:
    return int(np.int64(word.astype(np.int64)))


def _write_routes(driven: IntArray, rows: IntArray, routes: IntArray, lengths: IntArray) -> None:
    book, sample, vehicle, place, stop = driven
    routes[sample, rows[book], vehicle, place] = stop
    np.add.at(lengths, (sample, rows[book], vehicle), 1)
