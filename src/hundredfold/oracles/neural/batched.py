"""The decode loop for GPUs: every book and sample makes its next move in the same torch calls.

The same moves, features and scores as `moves.py` and `decode.py`, told in tensors. Books whose
plans are finished leave the loop. Shapes: B books, K samples, R = B x K rows, N stops.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import torch
from torch import Tensor

from hundredfold.core import streams
from hundredfold.core.batch import IntArray
from hundredfold.core.streams import Words
from hundredfold.oracles.books import Books, Rules
from hundredfold.oracles.neural.batched_features import move_features, state_features
from hundredfold.oracles.neural.batched_orders import all_in_time
from hundredfold.oracles.neural.decode import TIE
from hundredfold.oracles.neural.model import Decisions, RoutingPolicy, Tables
from hundredfold.oracles.neural.moves import MAX_ABOARD
from hundredfold.oracles.neural.prepared import Prepared

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
    keys: Words,
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


def _laid_out(books: Books, rows: IntArray, device: torch.device) -> Stops:
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


def _moves(stops: Stops, now: Now, rules: Rules) -> tuple[Tensor, Tensor]:
    """(R, N) where each row may drive, and when service would start there."""
    book = now.book
    num_stops = now.open.shape[1]
    leg = stops.travel[book, now.at]
    there = torch.maximum(now.time[:, None] + leg, stops.early[book])
    aboard = now.num_aboard
    room = now.load[:, None] + stops.riders[book] <= rules.seats
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
    stops: Stops, now: Now, rules: Rules, chosen: Tensor, there: Tensor, over: Tensor
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
    """(R, N) Gumbel numbers: the draws of `streams.uniforms`, in 64-bit arithmetic that wraps."""
    count = drawn + torch.arange(num_stops, device=keys.device)
    bits = (count + 1) * _signed(streams.GOLDEN)
    bits = (bits ^ _shifted(bits, 30)) * _signed(streams.MIX_A)
    bits = (bits ^ _shifted(bits, 27)) * _signed(streams.MIX_B)
    bits = (bits ^ _shifted(bits, 31))[None] ^ keys[:, None]
    bits = (bits ^ _shifted(bits, 30)) * _signed(streams.MIX_A)
    bits = (bits ^ _shifted(bits, 27)) * _signed(streams.MIX_B)
    bits = bits ^ _shifted(bits, 31)
    uniform = _shifted(bits, 11).double() * streams.UNIT_SCALE
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
