"""The decode loop as one kernel: a book's whole day without leaving compiled code.

Every decision touches the allowed moves alone, which are a fraction of the stops. Rows share
nothing, so routes do not depend on the batch or on threads.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.core.numba_kernels import fast_sum_kernel, kernel, noalloc_kernel, uniform
from hundredfold.core.rng import Keys
from hundredfold.routing.instance_arrays import FleetConstraints, InstanceArrays
from hundredfold.routing.lns import parallel_ranges
from hundredfold.routing.neural.model import NUM_MOVE_FEATURES, RoutingPolicy
from hundredfold.routing.neural.transitions import (
    ABOARD,
    AT,
    REQUESTS,
    STOPS,
    VEHICLE,
    Pace,
    begin,
    describe_moves,
    describe_state,
    list_moves,
    make_move,
    new_ride,
)
from hundredfold.routing.workspace import DEPOT

# Moves whose scores differ by less are equal, and the lowest stop wins; so two ways of adding up
# the same score choose the same route.
TIE: Final = np.float32(1e-4)
USUAL_HEAD: Final = 16


class DecoderWeights(NamedTuple):
    """What a decision multiplies with, (inputs, outputs) each."""

    heads: int
    state: FloatArray  # (state features, width)
    think: FloatArray  # (width, width)
    think_bias: FloatArray  # (width,)
    move_features: FloatArray  # (move features, move width)
    move_bias: FloatArray  # (move width,)
    move_glimpse: FloatArray  # (width, move width)
    move_score: FloatArray  # (move width,)


class Thought(NamedTuple):
    """Room for the numbers of one decision."""

    query: Any  # (width,)
    busy: Any  # (width,)
    glimpse: Any  # (width,)
    waiting: Any  # (width,) sum over open pickups
    hidden: Any  # (move width,)
    weight: Any  # (stops,)
    score: Any  # (stops,)


def turned(layer: Any) -> FloatArray:
    """A linear layer's weights as (inputs, outputs)."""
    return np.ascontiguousarray(layer.weight.detach().cpu().numpy().T, np.float32)


def decoder_weights(policy: RoutingPolicy) -> DecoderWeights:
    """The policy's weights as the kernel takes them."""

    def bias(layer: Any) -> FloatArray:
        return np.ascontiguousarray(layer.bias.detach().cpu().numpy(), np.float32)

    return DecoderWeights(
        heads=policy.size.heads,
        state=turned(policy.state),
        think=turned(policy.think),
        think_bias=bias(policy.think),
        move_features=turned(policy.move_features),
        move_bias=bias(policy.move_features),
        move_glimpse=turned(policy.move_glimpse),
        move_score=turned(policy.move_score)[:, 0].copy(),
    )


def decode_rows(
    books: InstanceArrays,
    rules: FleetConstraints,
    pace: Pace,
    weights: DecoderWeights,
    rows: IntArray,
    stops: FloatArray,
    book: FloatArray,
    keys: Keys,
    temperature: float,
    routes: IntArray,
    lengths: IntArray,
    threads: int,
) -> None:
    """Route the books in `rows`; `stops` and `book` are their tables, in the order of `rows`.

    `keys` (samples, books) are streams: every sample of a book is drawn from its own, at this
    temperature, and 0 is greedy. `routes` (samples, books, vehicles, width) and `lengths` (samples,
    books, vehicles) start as zeros.
    """
    parallel_ranges(
        threads,
        len(rows),
        lambda first, last: _decode_some(
            books,
            rules,
            pace,
            weights,
            rows,
            stops,
            book,
            keys,
            np.float32(temperature),
            routes,
            lengths,
            first,
            last,
        ),
    )


@kernel
def _decode_some(
    books: Any,
    rules: Any,
    pace: Any,
    weights: Any,
    rows: Any,
    stops: Any,
    book: Any,
    keys: Any,
    temperature: Any,
    routes: Any,
    lengths: Any,
    first: Any,
    last: Any,
) -> None:
    ride = new_ride(books.cell.shape[1] // 2)
    width, move_width = weights.think.shape[0], weights.move_score.shape[0]
    thought = Thought(
        np.zeros(width, np.float32),
        np.zeros(width, np.float32),
        np.zeros(width, np.float32),
        np.zeros(width, np.float32),
        np.zeros(move_width, np.float32),
        np.zeros(books.cell.shape[1], np.float32),
        np.zeros(books.cell.shape[1], np.float32),
    )
    for place in range(first, last):
        row = rows[place]
        for sample in range(keys.shape[0]):
            begin(ride, books, row)
            _decode_one(
                ride,
                thought,
                rules,
                pace,
                weights,
                stops[place],
                book[place],
                keys[sample, row],
                temperature,
                routes[sample, row],
                lengths[sample, row],
            )


@noalloc_kernel
def _decode_one(
    ride: Any,
    thought: Any,
    rules: Any,
    pace: Any,
    weights: Any,
    stops: Any,
    book: Any,
    key: Any,
    temperature: Any,
    routes: Any,
    lengths: Any,
) -> None:
    requests = ride.now[REQUESTS]
    _sum_open(thought.waiting, stops, requests)
    # Every move serves a stop or sends a vehicle home, so this many are enough for any day.
    limit = 2 * requests + rules.num_vehicles + 1
    for step in range(limit):
        count = list_moves(ride, rules)
        if count == 0:
            return
        chosen = np.int64(0)
        if count > 1:
            describe_state(ride, rules, pace)
            describe_moves(ride, rules, pace, count)
            score_moves(ride, thought, weights, stops, book, count)
            if temperature > 0.0:
                _add_luck(ride, thought, key, step * (2 * requests + 1), temperature, count)
            chosen = best_move(ride, thought.score, count)
        stop, there = ride.choice[chosen], ride.arrive[chosen]
        if stop != DEPOT:
            vehicle = ride.now[VEHICLE]
            routes[vehicle, ride.now[STOPS]] = stop
            lengths[vehicle] += 1
        make_move(ride, rules, stop, there)
        if stop % 2 == 1:
            _leave_open(thought.waiting, stops, stop)
        if ride.now[VEHICLE] >= rules.num_vehicles:
            return


@noalloc_kernel
def _sum_open(waiting: Any, stops: Any, requests: Any) -> None:
    width = len(waiting)
    for k in range(width):
        waiting[k] = 0.0
    for request in range(requests):
        row = stops[2 * request + 1]
        for k in range(width):
            waiting[k] += row[5 * width + k]


@noalloc_kernel
def _leave_open(waiting: Any, stops: Any, pickup: Any) -> None:
    width = len(waiting)
    row = stops[pickup]
    for k in range(width):
        waiting[k] -= row[5 * width + k]


@fast_sum_kernel
def score_moves(ride: Any, thought: Any, weights: Any, stops: Any, book: Any, count: Any) -> None:
    """Write the scores of the first `count` moves; `RoutingPolicy.scores` tells the same."""
    query, busy, glimpse = thought.query, thought.busy, thought.glimpse
    width = len(query)
    per_request = np.float32(1.0) / np.float32(ride.now[REQUESTS])
    here = stops[ride.now[AT]]
    for k in range(width):
        query[k] = here[3 * width + k] + book[k] + thought.waiting[k] * per_request
    _add_product(ride.state, weights.state, query)
    aboard = ride.now[ABOARD]
    if aboard > 0:
        share = np.float32(1.0) / np.float32(aboard)
        for slot in range(aboard):
            row = stops[ride.aboard[slot]]
            for k in range(width):
                query[k] += share * row[4 * width + k]
    for k in range(width):
        busy[k] = max(query[k], np.float32(0.0))
        query[k] += weights.think_bias[k]
    _add_product(busy, weights.think, query)
    # A loop of known length fits into registers.
    if width == weights.heads * USUAL_HEAD:
        _look(ride.choice, query, glimpse, thought.weight, USUAL_HEAD, stops, count)
    else:
        size = width // weights.heads
        _look(ride.choice, query, glimpse, thought.weight, size, stops, count)
    hidden, move_width = thought.hidden, len(thought.hidden)
    for k in range(move_width):
        hidden[k] = weights.move_bias[k]
    _add_product(glimpse, weights.move_glimpse, hidden)
    per_width = np.float32(1.0) / np.sqrt(np.float32(width))
    into = weights.move_features
    for move in range(count):
        row = stops[ride.choice[move]]
        total = np.float32(0.0)
        for k in range(width):
            total += glimpse[k] * row[2 * width + k]
        total *= per_width
        seen = ride.features[move]
        for k in range(move_width):
            value = hidden[k] + row[6 * width + k]
            # A constant number of features, so that the compiler unrolls this and runs along k.
            for feature in range(NUM_MOVE_FEATURES):
                value += seen[feature] * into[feature, k]
            total += max(value, np.float32(0.0)) * weights.move_score[k]
        thought.score[move] = total


@fast_sum_kernel
def _add_product(values: Any, matrix: Any, sums: Any) -> None:
    """Add values @ matrix to the sums, four rows at a time: each trip to memory does four sums."""
    rows = len(values)
    whole = rows - rows % 4
    for row in range(0, whole, 4):
        first, second = values[row], values[row + 1]
        third, fourth = values[row + 2], values[row + 3]
        for k in range(len(sums)):
            sums[k] += (
                first * matrix[row, k]
                + second * matrix[row + 1, k]
                + third * matrix[row + 2, k]
                + fourth * matrix[row + 3, k]
            )
    for row in range(whole, rows):
        for k in range(len(sums)):
            sums[k] += values[row] * matrix[row, k]


@partial(fast_sum_kernel, forceinline=True)
def _look(
    choice: Any, query: Any, glimpse: Any, weight: Any, size: Any, stops: Any, count: Any
) -> None:
    """One glimpse at the moves: attention per head of a size, softmax over what is allowed."""
    width = len(query)
    per_size = np.float32(1.0) / np.sqrt(np.float32(size))
    for start in range(0, width, size):
        most = np.float32(-1e30)
        for move in range(count):
            row = stops[choice[move]]
            total = np.float32(0.0)
            for k in range(size):
                total += query[start + k] * row[start + k]
            total *= per_size
            weight[move] = total
            most = max(most, total)
        whole = np.float32(0.0)
        for move in range(count):
            weight[move] = np.exp(weight[move] - most)
            whole += weight[move]
        for k in range(size):
            glimpse[start + k] = 0.0
        for move in range(count):
            share = weight[move] / whole
            row = stops[choice[move]]
            for k in range(size):
                glimpse[start + k] += share * row[width + start + k]


@noalloc_kernel
def _add_luck(ride: Any, thought: Any, key: Any, drawn: Any, temperature: Any, count: Any) -> None:
    """Add Gumbel noise, so that the largest score is a sample of the softmax."""
    for move in range(count):
        luck = uniform(key, np.uint64(drawn + ride.choice[move]))
        luck = -np.log(-np.log(luck + 1e-12))
        thought.score[move] += temperature * np.float32(luck)


@noalloc_kernel
def best_move(ride: Any, score: Any, count: Any) -> Any:
    """The move with the highest score; of equals the lowest stop."""
    most = score[0]
    for move in range(1, count):
        most = max(most, score[move])
    chosen = np.int64(-1)
    for move in range(count):
        if score[move] >= most - TIE and (chosen < 0 or ride.choice[move] < ride.choice[chosen]):
            chosen = np.int64(move)
    return chosen
