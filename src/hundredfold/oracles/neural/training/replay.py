"""Routes told again as decisions: what the policy would have seen and which move was made."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.core.compiled import kernel
from hundredfold.oracles.books import Books, Rules
from hundredfold.oracles.desk import DEPOT, bare_kernel
from hundredfold.oracles.neural.model import (
    NUM_MOVE_FEATURES,
    NUM_STATE_FEATURES,
    Decisions,
)
from hundredfold.oracles.neural.moves import (
    ABOARD,
    AT,
    REQUESTS,
    Pace,
    begin,
    describe_moves,
    describe_state,
    list_moves,
    make_move,
    new_ride,
)


class Told(NamedTuple):
    """Decisions of several plans per book, side by side, and what was chosen."""

    decisions: Decisions
    chosen: Tensor  # (books, decisions) the stop that was driven to
    counts: Tensor  # (books, plans) real decisions of each plan; behind them is padding
    width: int  # decisions per plan, padding included


class _Record(NamedTuple):
    current: Any  # (books, decisions)
    state: Any  # (books, decisions, state features)
    aboard: Any  # (books, decisions, stops)
    open: Any  # (books, decisions, stops)
    allowed: Any  # (books, decisions, stops)
    features: Any  # (books, decisions, stops, move features), written where allowed
    chosen: Any  # (books, decisions)
    counts: Any  # (books, plans)


def told_again(
    books: Books, rules: Rules, pace: Pace, rows: IntArray, routes: IntArray, lengths: IntArray
) -> Told:
    """The decisions behind `routes` (plans, books, vehicles, width) of some rows, all of one size.

    Moves without an alternative are no decisions. A plan is followed until a move that the policy
    would not be allowed, which happens under ride-time limits alone.
    """
    requests = int(books.num_requests[rows[0]])
    num_stops = 2 * requests + 1
    plans = len(routes)
    width = num_stops + rules.num_vehicles
    shape = (len(rows), plans * width)
    record = _Record(
        np.zeros(shape, np.int64),
        np.zeros((*shape, NUM_STATE_FEATURES), np.float32),
        np.zeros((*shape, num_stops), np.float32),
        np.zeros((*shape, num_stops), np.float32),
        np.zeros((*shape, num_stops), np.bool_),
        np.empty((*shape, num_stops, NUM_MOVE_FEATURES), np.float32),
        np.zeros(shape, np.int64),
        np.zeros((len(rows), plans), np.int64),
    )
    _tell_all(books, rules, pace, rows, routes, lengths, width, record)
    return _as_tensors(record, width)


def _as_tensors(record: _Record, width: int) -> Told:
    """Cut off what no plan uses, and list the allowed moves one behind the other."""
    rows, plans = record.counts.shape
    most = max(1, int(record.counts.max()))

    def cut(values: FloatArray) -> FloatArray:
        by_plan = values.reshape(rows, plans, width, *values.shape[2:])[:, :, :most]
        return by_plan.reshape(rows, plans * most, *values.shape[2:])

    allowed = cut(record.allowed)
    features = record.features.reshape(rows, plans, width, *record.features.shape[2:])
    listed = features[:, :, :most][allowed.reshape(rows, plans, most, -1)]
    # Attention over nothing has no value: padding looks at the depot.
    places = np.flatnonzero(allowed)
    empty = ~allowed.any(axis=2)
    allowed[empty, 0] = True
    decisions = Decisions(
        current=torch.from_numpy(cut(record.current)),
        state=torch.from_numpy(cut(record.state)),
        aboard=torch.from_numpy(cut(record.aboard)),
        open=torch.from_numpy(cut(record.open)),
        allowed=torch.from_numpy(allowed),
        move_place=torch.from_numpy(places),
        move_features=torch.from_numpy(listed),
    )
    chosen = torch.from_numpy(cut(record.chosen))
    return Told(decisions, chosen, torch.from_numpy(record.counts), most)


@kernel
def _tell_all(
    books: Any,
    rules: Any,
    pace: Any,
    rows: Any,
    routes: Any,
    lengths: Any,
    width: Any,
    record: Any,
) -> None:
    ride = new_ride(books.cell.shape[1] // 2)
    for place in range(len(rows)):
        for plan in range(len(routes)):
            begin(ride, books, rows[place])
            _tell_one(
                ride,
                rules,
                pace,
                routes[plan, rows[place]],
                lengths[plan, rows[place]],
                record,
                place,
                plan,
                plan * width,
            )


@bare_kernel
def _tell_one(
    ride: Any,
    rules: Any,
    pace: Any,
    routes: Any,
    lengths: Any,
    record: Any,
    place: Any,
    plan: Any,
    start: Any,
) -> None:
    made = 0
    for vehicle in range(len(lengths)):
        length = lengths[vehicle]
        if length == 0:
            continue
        for k in range(length + 1):
            stop = routes[vehicle, k] if k < length else DEPOT
            count = list_moves(ride, rules)
            if count == 0:
                break
            found = -1
            for move in range(count):
                if ride.choice[move] == stop:
                    found = move
            if found < 0:
                record.counts[place, plan] = made
                return
            if count > 1:
                _write_decision(ride, rules, pace, record, place, start + made, count, stop)
                made += 1
            make_move(ride, rules, stop, ride.arrive[found])
    record.counts[place, plan] = made


@bare_kernel
def _write_decision(
    ride: Any, rules: Any, pace: Any, record: Any, place: Any, at: Any, count: Any, stop: Any
) -> None:
    describe_state(ride, rules, pace)
    describe_moves(ride, rules, pace, count)
    now = ride.now
    record.current[place, at] = now[AT]
    record.chosen[place, at] = stop
    for k in range(len(ride.state)):
        record.state[place, at, k] = ride.state[k]
    for slot in range(now[ABOARD]):
        record.aboard[place, at, ride.aboard[slot]] = np.float32(1.0) / np.float32(now[ABOARD])
    for request in range(now[REQUESTS]):
        if ride.open[request]:
            weight = np.float32(1.0) / np.float32(now[REQUESTS])
            record.open[place, at, 2 * request + 1] = weight
    for move in range(count):
        there = ride.choice[move]
        record.allowed[place, at, there] = True
        for k in range(ride.features.shape[1]):
            record.features[place, at, there, k] = ride.features[move, k]


def in_order_of_leaving(books: Books, routes: IntArray, lengths: IntArray) -> None:
    """Sort every plan's vehicles by the window of their first stop, unused ones last; in place.

    A plan does not care which vehicle is which. The policy plans them one after the other, and
    learns best when the next one always begins with the earliest day.
    """
    first = np.take_along_axis(books.early, routes[:, :, 0], axis=1)
    first = np.where(lengths > 0, first, np.iinfo(np.int64).max)
    order = np.argsort(first, axis=1, kind="stable")
    routes[:] = np.take_along_axis(routes, order[:, :, None], axis=1)
    lengths[:] = np.take_along_axis(lengths, order, axis=1)
