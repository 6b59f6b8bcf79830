"""Decoder of the attention model for CPUs: all steps of an instance in one Numba kernel.

A step computes keys, glimpse and logits of the feasible actions only, a fraction of the stops. Rows
share nothing, so routes do not depend on the batch or on threads.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.core.numba_kernels import fast_sum_kernel, kernel, noalloc_kernel, uniform
from hundredfold.core.rng import Keys
from hundredfold.routing.lns import parallel_ranges
from hundredfold.routing.neural.features import PolicyInputs
from hundredfold.routing.neural.model import NUM_ACTION_FEATURES, DecoderCache, RoutingPolicy
from hundredfold.routing.neural.transitions import (
    CURRENT_STOP,
    NUM_ONBOARD,
    NUM_REQUESTS,
    ROUTE_LENGTH,
    VEHICLE,
    apply_action,
    list_feasible_actions,
    new_decode_state,
    reset_decode_state,
    write_action_features,
    write_step_features,
)
from hundredfold.routing.workspace import DEPOT

# Logits that differ by less are equal, and the lowest stop wins: decoders that sum in another order
# choose the same route.
TIE_TOLERANCE: Final = np.float32(1e-4)
DEFAULT_HEAD_DIM: Final = 16


class DecoderWeights(NamedTuple):
    """Weights of the decoder's layers, (inputs, outputs) each."""

    num_heads: int
    step_context: FloatArray  # (step features, embed_dim)
    query_residual: FloatArray  # (embed_dim, embed_dim)
    query_residual_bias: FloatArray  # (embed_dim,)
    action_hidden: FloatArray  # (action features, action_hidden_dim)
    action_hidden_bias: FloatArray  # (action_hidden_dim,)
    action_glimpse: FloatArray  # (embed_dim, action_hidden_dim)
    action_score: FloatArray  # (action_hidden_dim,)


class Scratch(NamedTuple):
    """Arrays of one decoding step, allocated once per thread."""

    query: Any  # (embed_dim,)
    activated: Any  # (embed_dim,) ReLU of the query
    glimpse: Any  # (embed_dim,)
    pending_sum: Any  # (embed_dim,) query contribution of pending pickups
    hidden: Any  # (action_hidden_dim,)
    attention: Any  # (stops,)
    logits: Any  # (stops,) by action


def decoder_weights(policy: RoutingPolicy) -> DecoderWeights:
    """Copy the policy's decoder weights as the kernel takes them."""

    def weight(layer: Any) -> FloatArray:
        return np.ascontiguousarray(layer.weight.detach().cpu().numpy().T, np.float32)

    def bias(layer: Any) -> FloatArray:
        return np.ascontiguousarray(layer.bias.detach().cpu().numpy(), np.float32)

    return DecoderWeights(
        num_heads=policy.settings.num_heads,
        step_context=weight(policy.step_context),
        query_residual=weight(policy.query_residual),
        query_residual_bias=bias(policy.query_residual),
        action_hidden=weight(policy.action_hidden),
        action_hidden_bias=bias(policy.action_hidden),
        action_glimpse=weight(policy.action_glimpse),
        action_score=weight(policy.action_score)[:, 0].copy(),
    )


def decode(
    weights: DecoderWeights,
    inputs: PolicyInputs,
    rows: IntArray,
    cache: DecoderCache,
    keys: Keys,
    temperature: float,
    routes: IntArray,
    lengths: IntArray,
    threads: int = 1,
) -> None:
    """Construct routes of some instances, in place.

    Args:
        weights: Decoder weights of the policy.
        inputs: The batch of instances.
        rows: Instances to decode, all of one size.
        cache: Their encoded stops, in the order of `rows`, on the CPU.
        keys: (samples, instances) RNG stream of every sample.
        temperature: Scale of the Gumbel noise added to logits; 0 decodes greedily.
        routes: (samples, instances, vehicles, width) zeros, filled with stops.
        lengths: (samples, instances, vehicles) zeros, filled with stops per route.
        threads: Threads over instances.
    """
    stops, graph = cache.stops.detach().numpy(), cache.graph.detach().numpy()
    parallel_ranges(
        threads,
        len(rows),
        lambda first, last: _decode_range(
            inputs.instances,
            inputs.constraints,
            inputs.time_scale,
            weights,
            rows,
            stops,
            graph,
            keys,
            np.float32(temperature),
            routes,
            lengths,
            first,
            last,
        ),
    )


@kernel
def _decode_range(
    instances: Any,
    constraints: Any,
    scale: Any,
    weights: Any,
    rows: Any,
    stops: Any,
    graph: Any,
    keys: Any,
    temperature: Any,
    routes: Any,
    lengths: Any,
    first: Any,
    last: Any,
) -> None:
    state = new_decode_state(instances.cell.shape[1] // 2)
    dim, action_dim = weights.query_residual.shape[0], weights.action_score.shape[0]
    scratch = Scratch(
        np.zeros(dim, np.float32),
        np.zeros(dim, np.float32),
        np.zeros(dim, np.float32),
        np.zeros(dim, np.float32),
        np.zeros(action_dim, np.float32),
        np.zeros(instances.cell.shape[1], np.float32),
        np.zeros(instances.cell.shape[1], np.float32),
    )
    for index in range(first, last):
        row = rows[index]
        for sample in range(keys.shape[0]):
            reset_decode_state(state, instances, row)
            _decode_one(
                state,
                scratch,
                constraints,
                scale,
                weights,
                stops[index],
                graph[index],
                keys[sample, row],
                temperature,
                routes[sample, row],
                lengths[sample, row],
            )


@noalloc_kernel
def _decode_one(
    state: Any,
    scratch: Any,
    constraints: Any,
    scale: Any,
    weights: Any,
    stops: Any,
    graph: Any,
    key: Any,
    temperature: Any,
    routes: Any,
    lengths: Any,
) -> None:
    requests = state.scalars[NUM_REQUESTS]
    _sum_pending(scratch.pending_sum, stops, requests)
    # Every action serves a stop or ends a vehicle's route, so this many steps always suffice.
    max_steps = 2 * requests + constraints.num_vehicles + 1
    for step in range(max_steps):
        count = list_feasible_actions(state, constraints)
        if count == 0:
            return
        chosen = np.int64(0)
        if count > 1:
            write_step_features(state, constraints, scale)
            write_action_features(state, constraints, scale, count)
            score_actions(state, scratch, weights, stops, graph, count)
            if temperature > 0.0:
                first_draw = step * (2 * requests + 1)
                _add_gumbel_noise(state, scratch, key, first_draw, temperature, count)
            chosen = _best_action(state, scratch.logits, count)
        stop, start = state.action[chosen], state.service_start[chosen]
        if stop != DEPOT:
            vehicle = state.scalars[VEHICLE]
            routes[vehicle, state.scalars[ROUTE_LENGTH]] = stop
            lengths[vehicle] += 1
        apply_action(state, constraints, stop, start)
        if stop % 2 == 1:
            _subtract_pending(scratch.pending_sum, stops, stop)
        if state.scalars[VEHICLE] >= constraints.num_vehicles:
            return


@noalloc_kernel
def _sum_pending(pending_sum: Any, stops: Any, requests: Any) -> None:
    dim = len(pending_sum)
    for k in range(dim):
        pending_sum[k] = 0.0
    for request in range(requests):
        cached = stops[2 * request + 1]
        for k in range(dim):
            pending_sum[k] += cached[5 * dim + k]


@noalloc_kernel
def _subtract_pending(pending_sum: Any, stops: Any, pickup: Any) -> None:
    dim = len(pending_sum)
    cached = stops[pickup]
    for k in range(dim):
        pending_sum[k] -= cached[5 * dim + k]


@fast_sum_kernel
def score_actions(state: Any, scratch: Any, weights: Any, stops: Any, graph: Any, count: Any) -> None:
    """Write the logits of the first `count` actions, as `RoutingPolicy.logits` defines them.

    Offsets into a stop's cached projections follow `RoutingPolicy.cache_widths`.
    """
    query, activated, glimpse = scratch.query, scratch.activated, scratch.glimpse
    dim = len(query)
    per_request = np.float32(1.0) / np.float32(state.scalars[NUM_REQUESTS])
    current = stops[state.scalars[CURRENT_STOP]]
    for k in range(dim):
        query[k] = current[3 * dim + k] + graph[k] + scratch.pending_sum[k] * per_request
    _add_product(state.step_features, weights.step_context, query)
    num_onboard = state.scalars[NUM_ONBOARD]
    if num_onboard > 0:
        share = np.float32(1.0) / np.float32(num_onboard)
        for slot in range(num_onboard):
            cached = stops[state.onboard[slot]]
            for k in range(dim):
                query[k] += share * cached[4 * dim + k]
    for k in range(dim):
        activated[k] = max(query[k], np.float32(0.0))
        query[k] += weights.query_residual_bias[k]
    _add_product(activated, weights.query_residual, query)
    # A loop of constant length fits into registers.
    if dim == weights.num_heads * DEFAULT_HEAD_DIM:
        _attend(state.action, query, glimpse, scratch.attention, DEFAULT_HEAD_DIM, stops, count)
    else:
        head_dim = dim // weights.num_heads
        _attend(state.action, query, glimpse, scratch.attention, head_dim, stops, count)
    hidden, action_dim = scratch.hidden, len(scratch.hidden)
    for k in range(action_dim):
        hidden[k] = weights.action_hidden_bias[k]
    _add_product(glimpse, weights.action_glimpse, hidden)
    per_sqrt_dim = np.float32(1.0) / np.sqrt(np.float32(dim))
    action_hidden = weights.action_hidden
    for action in range(count):
        cached = stops[state.action[action]]
        logit = np.float32(0.0)
        for k in range(dim):
            logit += glimpse[k] * cached[2 * dim + k]
        logit *= per_sqrt_dim
        features = state.action_features[action]
        for k in range(action_dim):
            value = hidden[k] + cached[6 * dim + k]
            # A constant number of features: the compiler unrolls this loop and vectorises over k.
            for feature in range(NUM_ACTION_FEATURES):
                value += features[feature] * action_hidden[feature, k]
            logit += max(value, np.float32(0.0)) * weights.action_score[k]
        scratch.logits[action] = logit


@fast_sum_kernel
def _add_product(values: Any, matrix: Any, sums: Any) -> None:
    """Add values @ matrix to the sums, four rows per pass over `sums`."""
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
def _attend(actions: Any, query: Any, glimpse: Any, attention: Any, head_dim: Any, stops: Any, count: Any) -> None:
    """Attention glimpse: multi-head attention of the query over the feasible actions."""
    dim = len(query)
    per_sqrt_dim = np.float32(1.0) / np.sqrt(np.float32(head_dim))
    for start in range(0, dim, head_dim):
        most = np.float32(-1e30)
        for a in range(count):
            cached = stops[actions[a]]
            total = np.float32(0.0)
            for k in range(head_dim):
                total += query[start + k] * cached[start + k]
            total *= per_sqrt_dim
            attention[a] = total
            most = max(most, total)
        whole = np.float32(0.0)
        for a in range(count):
            attention[a] = np.exp(attention[a] - most)
            whole += attention[a]
        for k in range(head_dim):
            glimpse[start + k] = 0.0
        for a in range(count):
            share = attention[a] / whole
            cached = stops[actions[a]]
            for k in range(head_dim):
                glimpse[start + k] += share * cached[dim + start + k]


@noalloc_kernel
def _add_gumbel_noise(state: Any, scratch: Any, key: Any, first_draw: Any, temperature: Any, count: Any) -> None:
    """Add Gumbel noise to the logits, so that their maximum is a sample of the softmax."""
    for action in range(count):
        noise = uniform(key, np.uint64(first_draw + state.action[action]))
        noise = -np.log(-np.log(noise + 1e-12))
        scratch.logits[action] += temperature * np.float32(noise)


@noalloc_kernel
def _best_action(state: Any, logits: Any, count: Any) -> Any:
    """The action of the highest logit; among ties the lowest stop."""
    most = logits[0]
    for action in range(1, count):
        most = max(most, logits[action])
    chosen = np.int64(-1)
    for action in range(count):
        if logits[action] >= most - TIE_TOLERANCE and (chosen < 0 or state.action[action] < state.action[chosen]):
            chosen = np.int64(action)
    return chosen
