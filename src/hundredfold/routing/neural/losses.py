"""Losses of the routing policy: imitation of searched solutions, and REINFORCE.

Both need the logits of every decoding step behind given routes. `teacher_force` replays the routes
through the decoder's transitions and records its inputs, so all steps are scored in one pass.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hundredfold.core import rng
from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.core.numba_kernels import kernel, noalloc_kernel
from hundredfold.core.rng import Keys
from hundredfold.routing.instance_arrays import InstanceArrays
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.neural.decoder import decode, decoder_weights
from hundredfold.routing.neural.features import EncoderInputs, PolicyInputs, encoder_inputs, policy_inputs
from hundredfold.routing.neural.model import (
    NUM_ACTION_FEATURES,
    NUM_STEP_FEATURES,
    DecoderCache,
    DecodingSteps,
    RoutingPolicy,
)
from hundredfold.routing.neural.oracle import complete_routes
from hundredfold.routing.neural.transitions import (
    CURRENT_STOP,
    NUM_ONBOARD,
    NUM_REQUESTS,
    apply_action,
    list_feasible_actions,
    new_decode_state,
    reset_decode_state,
    write_action_features,
    write_step_features,
)
from hundredfold.routing.problem import MICROSECONDS_PER_MINUTE, RouteProblems
from hundredfold.routing.workspace import DEPOT

Baseline = Literal["shared", "greedy"]

ROTATION_CHILD, SAMPLE_CHILD, IMPROVE_CHILD = range(3)
IMPROVE_PASSES: Final = 2
# Typical standard deviation of sampled costs on a full day, relative to the cost. A constant: a
# batch's own standard deviation would amplify noise on small instances, whose costs hardly differ.
ADVANTAGE_SCALE: Final = 0.02


def imitation_loss(
    policy: RoutingPolicy, problems: RouteProblems, key: Keys, lns_iterations: int
) -> tuple[Tensor, dict[str, float]]:
    """Behaviour cloning: cross-entropy of the actions of a teacher's solutions.

    Args:
        policy: The policy to train.
        problems: Instances of one size.
        key: RNG stream of the data augmentation.
        lns_iterations: Iterations of the teacher, large neighbourhood search.
    Returns:
        The loss, and its metrics.
    """
    teacher = LNSOracle(LNSSettings(lns_iterations=lns_iterations, final_restarts=1))
    solutions = teacher.solve(problems)
    inputs = policy_inputs(problems)
    sort_vehicles_by_start(inputs.instances, solutions.routes, solutions.lengths)
    rows = np.arange(len(problems))
    forced = teacher_force(inputs, rows, solutions.routes[None], solutions.lengths[None])
    cache = policy.encode(augmented_inputs(inputs, rows, key), inputs.drive)
    is_step, logits = _step_logits(policy, cache, forced)
    if not len(logits):
        return cache.stops.sum() * 0.0, {"loss": 0.0, "accuracy": 1.0}
    actions = forced.actions[is_step]
    loss = F.cross_entropy(logits, actions)
    accuracy = (logits.argmax(dim=1) == actions).float().mean()
    return loss, {"loss": float(loss.detach()), "accuracy": float(accuracy)}


def reinforce_loss(
    policy: RoutingPolicy,
    problems: RouteProblems,
    key: Keys,
    samples: int,
    baseline: Baseline,
    improved_cost_weight: float,
) -> tuple[Tensor, dict[str, float]]:
    """REINFORCE (Williams 1992) on solutions sampled from the policy.

    Args:
        policy: The policy to train.
        problems: Instances of one size.
        key: RNG stream of augmentation and sampling.
        samples: Solutions sampled per instance.
        baseline: "shared", the mean cost of an instance's samples (POMO, Kwon et al. 2020), or
            "greedy", the cost of the policy's own greedy solution (self-critical training, Rennie
            et al. 2017; Kool et al. 2019 use the greedy rollout of an older policy).
        improved_cost_weight: Weight in 0..1 of the cost after local search; the rest is before.
    Returns:
        The loss, and its metrics.
    """
    inputs = policy_inputs(problems)
    rows = np.arange(len(problems))
    cache = policy.encode(augmented_inputs(inputs, rows, key), inputs.drive)
    has_greedy = baseline == "greedy"
    num_solutions = samples + has_greedy
    keys = rng.spawn(rng.spawn(key, SAMPLE_CHILD), np.arange(num_solutions * len(rows)))
    keys = keys.reshape(num_solutions, len(rows))
    routes, lengths = _sample_routes(policy, inputs, cache, rows, keys, has_greedy)
    forced = teacher_force(inputs, rows, routes, lengths)
    costs = _costs_in_minutes(inputs, routes, lengths, key, improved_cost_weight)
    mean_cost = costs.mean(axis=0, keepdims=True)
    advantage = ((costs[:1] if has_greedy else mean_cost) - costs) / np.maximum(mean_cost, 1.0)
    weight = torch.from_numpy((advantage / ADVANTAGE_SCALE).astype(np.float32))

    is_step, logits = _step_logits(policy, cache, forced)
    if not len(logits):
        return cache.stops.sum() * 0.0, {"loss": 0.0, "cost_minutes": float(costs.mean())}
    log_prob = -F.cross_entropy(logits, forced.actions[is_step], reduction="none")
    # Every step is weighted by the advantage of the solution it belongs to.
    step_weight = weight.T.repeat_interleave(forced.max_steps, dim=1)[is_step]
    loss = -(log_prob * step_weight).sum() / num_solutions / len(rows)
    return loss, {
        "loss": float(loss.detach()),
        "cost_minutes": float(costs.mean()),
        "advantage_std_pct": 100.0 * float(advantage.std()),
    }


class TeacherForcedBatch(NamedTuple):
    """Decoding steps of given routes and the actions taken, solutions of an instance in a row."""

    steps: DecodingSteps
    actions: Tensor  # (instances, steps) the stop driven to
    num_steps: Tensor  # (instances, solutions) steps of each solution; the rest is padding
    max_steps: int  # steps per solution, padding included


class _Recording(NamedTuple):
    current_stop: Any  # (instances, steps)
    step_features: Any  # (instances, steps, step features)
    onboard: Any  # (instances, steps, stops)
    pending: Any  # (instances, steps, stops)
    action_mask: Any  # (instances, steps, stops)
    action_features: Any  # (instances, steps, stops, action features), written where feasible
    actions: Any  # (instances, steps)
    num_steps: Any  # (instances, solutions)


def teacher_force(inputs: PolicyInputs, rows: IntArray, routes: IntArray, lengths: IntArray) -> TeacherForcedBatch:
    """Teacher forcing: decoder inputs and actions of the steps that construct given routes.

    Steps with a single feasible action are omitted. A solution is followed up to an action that is
    infeasible for the decoder, which happens under ride-time limits only.

    Args:
        inputs: The batch of instances.
        rows: Instances of one size.
        routes: (solutions, instances, vehicles, width) stops.
        lengths: (solutions, instances, vehicles) stops on each route.
    """
    num_stops = 2 * int(inputs.instances.num_requests[rows[0]]) + 1
    max_steps = num_stops + inputs.constraints.num_vehicles
    shape = (len(rows), len(routes) * max_steps)
    recording = _Recording(
        np.zeros(shape, np.int64),
        np.zeros((*shape, NUM_STEP_FEATURES), np.float32),
        np.zeros((*shape, num_stops), np.float32),
        np.zeros((*shape, num_stops), np.float32),
        np.zeros((*shape, num_stops), np.bool_),
        np.empty((*shape, num_stops, NUM_ACTION_FEATURES), np.float32),
        np.zeros(shape, np.int64),
        np.zeros((len(rows), len(routes)), np.int64),
    )
    _record_batch(inputs.instances, inputs.constraints, inputs.time_scale, rows, routes, lengths, max_steps, recording)
    return _as_batch(recording, max_steps)


def _as_batch(recording: _Recording, width: int) -> TeacherForcedBatch:
    """Remove padding that no solution uses, and list feasible actions in one axis."""
    rows, solutions = recording.num_steps.shape
    max_steps = max(1, int(recording.num_steps.max()))

    def trim(values: FloatArray) -> FloatArray:
        by_solution = values.reshape(rows, solutions, width, *values.shape[2:])[:, :, :max_steps]
        return by_solution.reshape(rows, solutions * max_steps, *values.shape[2:])

    mask = trim(recording.action_mask)
    features = recording.action_features
    features = features.reshape(rows, solutions, width, *features.shape[2:])[:, :, :max_steps]
    features = features[mask.reshape(rows, solutions, max_steps, -1)]
    action_index = np.flatnonzero(mask)
    # A softmax over no actions would be NaN: padding attends to the depot.
    mask[~mask.any(axis=2), 0] = True
    steps = DecodingSteps(
        current_stop=torch.from_numpy(trim(recording.current_stop)),
        step_features=torch.from_numpy(trim(recording.step_features)),
        onboard=torch.from_numpy(trim(recording.onboard)),
        pending=torch.from_numpy(trim(recording.pending)),
        action_mask=torch.from_numpy(mask),
        action_index=torch.from_numpy(action_index),
        action_features=torch.from_numpy(features),
    )
    actions = torch.from_numpy(trim(recording.actions))
    return TeacherForcedBatch(steps, actions, torch.from_numpy(recording.num_steps), max_steps)


@kernel
def _record_batch(
    instances: Any, constraints: Any, scale: Any, rows: Any, routes: Any, lengths: Any, max_steps: Any, recording: Any
) -> None:
    state = new_decode_state(instances.cell.shape[1] // 2)
    for index in range(len(rows)):
        for solution in range(len(routes)):
            reset_decode_state(state, instances, rows[index])
            recording.num_steps[index, solution] = _record_solution(
                state,
                constraints,
                scale,
                routes[solution, rows[index]],
                lengths[solution, rows[index]],
                recording,
                index,
                solution * max_steps,
            )


@noalloc_kernel
def _record_solution(
    state: Any, constraints: Any, scale: Any, routes: Any, lengths: Any, recording: Any, index: Any, first_step: Any
) -> Any:
    """Follow one solution; returns the number of recorded steps."""
    num_steps = 0
    for vehicle in range(len(lengths)):
        length = lengths[vehicle]
        if length == 0:
            continue
        for k in range(length + 1):
            stop = routes[vehicle, k] if k < length else DEPOT
            count = list_feasible_actions(state, constraints)
            if count == 0:
                break
            taken = -1
            for action in range(count):
                if state.action[action] == stop:
                    taken = action
            if taken < 0:
                return num_steps
            if count > 1:
                write_step_features(state, constraints, scale)
                write_action_features(state, constraints, scale, count)
                _record_step(state, recording, index, first_step + num_steps, count, stop)
                num_steps += 1
            apply_action(state, constraints, stop, state.service_start[taken])
    return num_steps


@noalloc_kernel
def _record_step(state: Any, recording: Any, index: Any, step: Any, count: Any, stop: Any) -> None:
    scalars = state.scalars
    recording.current_stop[index, step] = scalars[CURRENT_STOP]
    recording.actions[index, step] = stop
    for k in range(len(state.step_features)):
        recording.step_features[index, step, k] = state.step_features[k]
    num_onboard, num_requests = scalars[NUM_ONBOARD], scalars[NUM_REQUESTS]
    for slot in range(num_onboard):
        share = np.float32(1.0) / np.float32(num_onboard)
        recording.onboard[index, step, state.onboard[slot]] = share
    for request in range(num_requests):
        if state.pending[request]:
            share = np.float32(1.0) / np.float32(num_requests)
            recording.pending[index, step, 2 * request + 1] = share
    for action in range(count):
        to_stop = state.action[action]
        recording.action_mask[index, step, to_stop] = True
        for k in range(state.action_features.shape[1]):
            recording.action_features[index, step, to_stop, k] = state.action_features[action, k]


def sort_vehicles_by_start(instances: InstanceArrays, routes: IntArray, lengths: IntArray) -> None:
    """Sort the vehicles of every solution by the window of their first stop, unused last; in place.

    Vehicles are interchangeable, and the policy routes them one after the other: it learns best
    when the next one is always the earliest.
    """
    first = np.take_along_axis(instances.early, routes[:, :, 0], axis=1)
    first = np.where(lengths > 0, first, np.iinfo(np.int64).max)
    order = np.argsort(first, axis=1, kind="stable")
    routes[:] = np.take_along_axis(routes, order[:, :, None], axis=1)
    lengths[:] = np.take_along_axis(lengths, order, axis=1)


def augmented_inputs(inputs: PolicyInputs, rows: IntArray, key: Keys) -> EncoderInputs:
    """Encoder inputs with randomly rotated and reflected coordinates (data augmentation)."""
    uniforms = rng.uniforms(rng.spawn(key, ROTATION_CHILD), np.arange(2))
    angle = 2.0 * np.pi * uniforms[0]
    rotation = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    if uniforms[1] < 0.5:
        rotation[:, 0] *= -1.0
    return encoder_inputs(inputs, rows, rotation)


def _step_logits(policy: RoutingPolicy, cache: DecoderCache, forced: TeacherForcedBatch) -> tuple[Tensor, Tensor]:
    """(instances, steps) True where not padding, and the logits (steps, stops) there."""
    is_step = (torch.arange(forced.max_steps) < forced.num_steps[:, :, None]).flatten(1)
    return is_step, policy.logits(cache, forced.steps)[is_step]


def _sample_routes(
    policy: RoutingPolicy, inputs: PolicyInputs, cache: DecoderCache, rows: IntArray, keys: Keys, first_is_greedy: bool
) -> tuple[IntArray, IntArray]:
    """(solutions, instances, vehicles, width) routes of the current policy, and their lengths."""
    shape = (*keys.shape, inputs.constraints.num_vehicles)
    routes = np.zeros((*shape, inputs.instances.cell.shape[1] - 1), np.int64)
    lengths = np.zeros(shape, np.int64)
    weights = decoder_weights(policy)
    first = 0.0 if first_is_greedy else 1.0
    for part, temperature in ((slice(0, 1), first), (slice(1, None), 1.0)):
        out = (routes[part], lengths[part])
        decode(weights, inputs, rows, cache, keys[part], temperature, *out)
    return routes, lengths


def _costs_in_minutes(
    inputs: PolicyInputs, routes: IntArray, lengths: IntArray, key: Keys, improved_cost_weight: float
) -> FloatArray:
    """(solutions, instances) weighted costs before and after local search, which is in place."""
    keys = rng.spawn(rng.spawn(key, IMPROVE_CHILD), np.arange(routes.shape[1]))
    costs = np.zeros(routes.shape[:2])
    for k in range(len(routes)):
        before = complete_routes(inputs, keys, routes[k], lengths[k], 0)
        after = complete_routes(inputs, keys, routes[k], lengths[k], IMPROVE_PASSES)
        costs[k] = (1.0 - improved_cost_weight) * before + improved_cost_weight * after
    # An unserved request counts as twice the best cost, not as its huge penalty.
    return np.asarray(np.minimum(costs, 2.0 * costs.min(axis=0)) / MICROSECONDS_PER_MINUTE)
