"""The two losses of the routing policy: imitation of searched plans, and its own practice.

Routes told again as decisions: what the policy would have seen and which move was made.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hundredfold.core import rng
from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.core.numba_kernels import kernel, noalloc_kernel
from hundredfold.core.rng import Keys
from hundredfold.routing.instance_arrays import FleetConstraints, InstanceArrays
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.neural.decoder import decode_rows, decoder_weights
from hundredfold.routing.neural.features import StopTable, stop_table
from hundredfold.routing.neural.inputs import Prepared, finish_plans, prepared
from hundredfold.routing.neural.model import (
    NUM_MOVE_FEATURES,
    NUM_STATE_FEATURES,
    Decisions,
    RoutingPolicy,
    Tables,
)
from hundredfold.routing.neural.training_settings import TrainingSettings
from hundredfold.routing.neural.transitions import (
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
from hundredfold.routing.problem import MICROSECONDS_PER_MINUTE, RouteProblems
from hundredfold.routing.workspace import DEPOT


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
    books: InstanceArrays,
    rules: FleetConstraints,
    pace: Pace,
    rows: IntArray,
    routes: IntArray,
    lengths: IntArray,
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


@noalloc_kernel
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


@noalloc_kernel
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


def in_order_of_leaving(books: InstanceArrays, routes: IntArray, lengths: IntArray) -> None:
    """Sort every plan's vehicles by the window of their first stop, unused ones last; in place.

    A plan does not care which vehicle is which. The policy plans them one after the other, and
    learns best when the next one always begins with the earliest day.
    """
    first = np.take_along_axis(books.early, routes[:, :, 0], axis=1)
    first = np.where(lengths > 0, first, np.iinfo(np.int64).max)
    order = np.argsort(first, axis=1, kind="stable")
    routes[:] = np.take_along_axis(routes, order[:, :, None], axis=1)
    lengths[:] = np.take_along_axis(lengths, order, axis=1)


TURN_CHILD, SAMPLE_CHILD, FINISH_CHILD = range(3)
FINISHING_PASSES: Final = 2
# How far sampled plans of a full day lie apart, as a share of their price. A constant: dividing by
# the spread of each batch would blow up the luck of small books, whose plans hardly differ.
USUAL_SPREAD: Final = 0.02


def imitation_loss(
    policy: RoutingPolicy, problems: RouteProblems, key: Keys, settings: TrainingSettings
) -> tuple[Tensor, dict[str, float]]:
    """Cross-entropy of a searched plan's moves, on books of one size."""
    teacher = LNSOracle(LNSSettings(lns_iterations=settings.teacher_rounds, final_restarts=1))
    plans = teacher.solve(problems)
    ready = prepared(problems)
    in_order_of_leaving(ready.books, plans.routes, plans.lengths)
    rows = np.arange(len(problems))
    told = told_again(
        ready.books, ready.rules, ready.pace, rows, plans.routes[None], plans.lengths[None]
    )
    tables = policy.encode(turned_table(ready, rows, key), ready.drive)
    real, logits = _real_decisions(policy, tables, told)
    if not len(logits):
        return tables.stops.sum() * 0.0, {"loss": 0.0, "agreement": 1.0}
    chosen = told.chosen[real]
    loss = F.cross_entropy(logits, chosen)
    agreement = (logits.argmax(dim=1) == chosen).float().mean()
    return loss, {"loss": float(loss.detach()), "agreement": float(agreement)}


def practice_loss(
    policy: RoutingPolicy, problems: RouteProblems, key: Keys, settings: TrainingSettings
) -> tuple[Tensor, dict[str, float]]:
    """REINFORCE: moves of plans that turned out cheaper than their baseline become likelier."""
    ready = prepared(problems)
    rows = np.arange(len(problems))
    table = turned_table(ready, rows, key)
    tables = policy.encode(table, ready.drive)
    greedy = settings.baseline == "greedy"
    num_plans = settings.practice_samples + greedy
    sample_keys = rng.spawn(rng.spawn(key, SAMPLE_CHILD), np.arange(num_plans * len(rows))).reshape(
        num_plans, len(rows)
    )
    routes, lengths = sampled_routes(policy, ready, tables, rows, sample_keys, greedy)
    told = told_again(ready.books, ready.rules, ready.pace, rows, routes, lengths)
    minutes = _prices(ready, routes, lengths, key, settings.finished_share)
    baseline = minutes[:1] if greedy else minutes.mean(axis=0, keepdims=True)
    advantage = (baseline - minutes) / np.maximum(minutes.mean(axis=0, keepdims=True), 1.0)
    weight = torch.from_numpy((advantage / USUAL_SPREAD).astype(np.float32))

    real, logits = _real_decisions(policy, tables, told)
    if not len(logits):
        return tables.stops.sum() * 0.0, {"loss": 0.0, "minutes": float(minutes.mean())}
    likely = -F.cross_entropy(logits, told.chosen[real], reduction="none")
    # (books, decisions): every decision counts by the plan it belongs to.
    per_decision = weight.T.repeat_interleave(told.width, dim=1)[real]
    loss = -(likely * per_decision).sum() / num_plans / len(rows)
    return loss, {
        "loss": float(loss.detach()),
        "minutes": float(minutes.mean()),
        "spread_pct": 100.0 * float(advantage.std()),
    }


def sampled_routes(
    policy: RoutingPolicy,
    ready: Prepared,
    tables: Tables,
    rows: IntArray,
    keys: Keys,
    first_greedy: bool,
) -> tuple[IntArray, IntArray]:
    """Plans drawn from the policy as it is: (plans, books, vehicles, width) and their lengths."""
    books, rules = ready.books, ready.rules
    shape = (*keys.shape, rules.num_vehicles)
    routes = np.zeros((*shape, books.cell.shape[1] - 1), np.int64)
    lengths = np.zeros(shape, np.int64)
    weights = decoder_weights(policy)
    stops, book = tables.stops.detach().numpy(), tables.book.detach().numpy()
    first = 0.0 if first_greedy else 1.0
    for plans, temperature in ((slice(0, 1), first), (slice(1, None), 1.0)):
        decode_rows(
            books,
            rules,
            ready.pace,
            weights,
            rows,
            stops,
            book,
            keys[plans],
            temperature,
            routes[plans],
            lengths[plans],
            threads=1,
        )
    return routes, lengths


def turned_table(ready: Prepared, rows: IntArray, key: Keys) -> StopTable:
    """What the encoder sees, with the map turned and mirrored at random: north means nothing."""
    luck = rng.uniforms(rng.spawn(key, TURN_CHILD), np.arange(2))
    angle = 2.0 * np.pi * luck[0]
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    if luck[1] < 0.5:
        turn[:, 0] *= -1.0
    return stop_table(ready.books, ready.rules, ready.city, rows, turn)


def _real_decisions(policy: RoutingPolicy, tables: Tables, told: Told) -> tuple[Tensor, Tensor]:
    """Which decisions are not padding, and their logits (decisions, stops)."""
    real = (torch.arange(told.width) < told.counts[:, :, None]).flatten(1)
    return real, policy.scores(tables, told.decisions)[real]


def _prices(
    ready: Prepared, routes: IntArray, lengths: IntArray, key: Keys, finished_share: float
) -> FloatArray:
    """(plans, books) minutes: before and after relocation, weighed. Plans are finished in place."""
    keys = rng.spawn(rng.spawn(key, FINISH_CHILD), np.arange(routes.shape[1]))
    found = np.zeros(routes.shape[:2])
    for plan in range(len(routes)):
        before = finish_plans(ready, keys, routes[plan], lengths[plan], 0)
        after = finish_plans(ready, keys, routes[plan], lengths[plan], FINISHING_PASSES)
        found[plan] = (1.0 - finished_share) * before + finished_share * after
    # A plan that leaves somebody out is twice as bad as the best one, not a million times.
    return np.asarray(np.minimum(found, 2.0 * found.min(axis=0)) / MICROSECONDS_PER_MINUTE)
