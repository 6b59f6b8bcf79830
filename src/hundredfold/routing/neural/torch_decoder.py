"""Decoder of the attention model for GPUs: one step of all instances and samples at a time.

The same actions, features, logits and random draws as `transitions.py` and `decoder.py`, in tensor
operations. Instances whose routes are finished leave the loop.

Shapes: B instances, K samples, R = B x K rows, N stops.
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
from hundredfold.routing.neural.decoder import TIE_TOLERANCE
from hundredfold.routing.neural.feasibility import UNREACHABLE, can_deliver_all_torch
from hundredfold.routing.neural.features import PolicyInputs, TimeScale
from hundredfold.routing.neural.model import (
    NUM_ACTION_FEATURES,
    NUM_STEP_FEATURES,
    DecoderCache,
    DecodingSteps,
    RoutingPolicy,
)
from hundredfold.routing.neural.transitions import FEATURE_CLIP, MAX_ONBOARD, REQUESTS_SCALE, VEHICLES_SCALE

CLIP: Final = float(FEATURE_CLIP)
_ALL_BITS: Final = 2**64 - 1


@dataclass(slots=True)
class InstanceTensors:
    """The instances that are still being decoded; times in microseconds."""

    travel: Tensor  # (B, N, N) service at the first, then the drive to the second
    early: Tensor  # (B, N)
    late: Tensor  # (B, N)
    riders: Tensor  # (B, N)
    max_ride: Tensor  # (B, N)


@dataclass(slots=True)
class BatchDecodeState:
    """`transitions.DecodeState` of every row; times in microseconds."""

    instance: Tensor  # (R,) into `InstanceTensors`
    current_stop: Tensor  # (R,)
    time: Tensor  # (R,)
    load: Tensor  # (R,)
    vehicle: Tensor  # (R,)
    return_by: Tensor  # (R,)
    route_length: Tensor  # (R,) stops of this vehicle so far
    pending: Tensor  # (R, N) True at pickups not yet served
    onboard: Tensor  # (R, MAX_ONBOARD) dropoffs in order of boarding, then zeros
    deadline: Tensor  # (R, MAX_ONBOARD)

    @property
    def num_onboard(self) -> Tensor:
        """(R,) requests on board."""
        return (self.onboard > 0).sum(dim=1)


@torch.inference_mode()
def decode_torch(
    policy: RoutingPolicy,
    inputs: PolicyInputs,
    rows: IntArray,
    cache: DecoderCache,
    keys: Keys,
    temperature: float,
    routes: IntArray,
    lengths: IntArray,
) -> None:
    """Construct routes of instances of one size; see `decoder.decode` for the arguments."""
    device = cache.stops.device
    constraints, samples = inputs.constraints, len(keys)
    instances = _instance_tensors(inputs.instances, rows, device)
    num_instances, num_stops = instances.early.shape
    state = _initial_state(instances, samples)
    row_keys = torch.from_numpy(keys[:, rows].T.reshape(-1).astype(np.int64)).to(device)
    live = torch.arange(num_instances, device=device)
    visits: list[Tensor] = []
    for step in range(num_stops + constraints.num_vehicles):
        mask, start = _feasible_actions(instances, state, constraints)
        active = mask.any(dim=1).view(-1, samples).any(dim=1)
        if not bool(active.all()):
            live, cache = live[active], DecoderCache(cache.stops[active], cache.graph[active])
            if not len(live):
                break
            active_rows = active.repeat_interleave(samples)
            instances = InstanceTensors(*(getattr(instances, field.name)[active] for field in fields(InstanceTensors)))
            state = BatchDecodeState(*(getattr(state, field.name)[active_rows] for field in fields(BatchDecodeState)))
            state.instance = torch.arange(len(live), device=device).repeat_interleave(samples)
            row_keys, mask, start = row_keys[active_rows], mask[active_rows], start[active_rows]
        done = ~mask.any(dim=1)
        logits = _logits(policy, inputs, instances, state, cache, mask, start, samples)
        if temperature > 0.0:
            noise = _gumbel_noise(row_keys, step * num_stops, num_stops)
            logits = logits + temperature * noise.float()
        logits = logits.masked_fill(~mask, -torch.inf)
        best = logits.amax(dim=1, keepdim=True)
        chosen = (logits >= best - float(TIE_TOLERANCE)).to(torch.int8).argmax(dim=1)
        chosen = torch.where(done, 0, chosen)
        visits.append(
            torch.stack(
                [
                    live.repeat_interleave(samples),
                    torch.arange(samples, device=device).repeat(len(live)),
                    state.vehicle,
                    state.route_length,
                    chosen,
                ]
            )[:, chosen > 0]
        )
        _apply_actions(instances, state, constraints, chosen, start, done)
    _write_routes(torch.cat(visits, dim=1).cpu().numpy(), rows, routes, lengths)


def _instance_tensors(arrays: InstanceArrays, rows: IntArray, device: torch.device) -> InstanceTensors:
    num_stops = 2 * int(arrays.num_requests[rows[0]]) + 1

    def part(values: IntArray) -> Tensor:
        return torch.from_numpy(values[rows, :num_stops]).to(device)

    cell = part(arrays.cell)
    drive = torch.from_numpy(arrays.drive).to(device)
    travel = part(arrays.service)[:, :, None] + drive[cell[:, :, None], cell[:, None, :]]
    return InstanceTensors(travel, part(arrays.early), part(arrays.late), part(arrays.riders), part(arrays.max_ride))


def _initial_state(instances: InstanceTensors, samples: int) -> BatchDecodeState:
    """All requests pending, the first vehicle in the depot."""
    num_instances, num_stops = instances.early.shape
    instance = torch.arange(num_instances, device=instances.early.device)
    instance = instance.repeat_interleave(samples)
    zeros = torch.zeros_like(instance)
    pending = torch.zeros((len(instance), num_stops), dtype=torch.bool, device=instance.device)
    pending[:, 1::2] = True
    slots = zeros[:, None].repeat(1, MAX_ONBOARD)
    return BatchDecodeState(
        instance=instance,
        current_stop=zeros,
        time=instances.early[instance, 0],
        load=zeros,
        vehicle=zeros,
        return_by=instances.late[instance, 0],
        route_length=zeros,
        pending=pending,
        onboard=slots,
        deadline=slots.clone(),
    )


def _feasible_actions(
    instances: InstanceTensors, state: BatchDecodeState, constraints: FleetConstraints
) -> tuple[Tensor, Tensor]:
    """(R, N) action mask, and the start of service at each stop."""
    instance = state.instance
    num_stops = state.pending.shape[1]
    leg = instances.travel[instance, state.current_stop]
    start = torch.maximum(state.time[:, None] + leg, instances.early[instance])
    onboard = state.num_onboard
    fits = state.load[:, None] + instances.riders[instance] <= constraints.capacity
    pickups = state.pending & fits & (onboard < MAX_ONBOARD)[:, None]
    pickups &= start <= instances.late[instance]
    dropoffs = torch.zeros_like(pickups)
    in_time = (state.onboard > 0) & (start.gather(1, state.onboard) <= state.deadline)
    dropoffs.scatter_(1, state.onboard, in_time)
    dropoffs[:, 0] = False
    from_depot = state.current_stop == 0
    return_by = state.return_by[:, None].expand(-1, num_stops)
    departure = start - leg
    return_by = torch.where(from_depot[:, None], torch.minimum(return_by, departure + constraints.max_route), return_by)
    mask = pickups | dropoffs
    row, stop = mask.nonzero(as_tuple=True)
    deliverable = can_deliver_all_torch(
        instances.travel[instance[row]],
        instances.early[instance[row]],
        instances.late[instance[row]],
        instances.max_ride[instance[row]],
        state.onboard[row],
        state.deadline[row],
        stop,
        start[row, stop],
        return_by[row, stop],
    )
    mask[row[~deliverable], stop[~deliverable]] = False
    is_last = state.vehicle + 1 >= constraints.num_vehicles
    all_served = ~state.pending.any(dim=1) & (onboard == 0)
    may_return = ~from_depot & (onboard == 0) & ~(is_last & mask.any(dim=1)) & ~all_served
    mask[:, 0] = may_return
    # The episode ends when the last vehicle is back.
    mask &= (state.vehicle < constraints.num_vehicles)[:, None]
    return mask, start


def _logits(
    policy: RoutingPolicy,
    inputs: PolicyInputs,
    instances: InstanceTensors,
    state: BatchDecodeState,
    cache: DecoderCache,
    mask: Tensor,
    start: Tensor,
    samples: int,
) -> Tensor:
    """(R, N) action logits; samples of an instance are its decoding steps for the policy."""
    num_instances, num_stops = len(cache.graph), mask.shape[1]
    shape = (num_instances, samples, num_stops)
    mask = mask.clone()
    mask[:, 0] |= ~mask.any(dim=1)  # a softmax over no actions would be NaN
    onboard = torch.zeros(mask.shape, device=mask.device)
    share = (state.onboard > 0).float() / state.num_onboard.clamp(min=1)[:, None]
    onboard.scatter_add_(1, state.onboard, share)
    pending = state.pending.float() / (num_stops // 2)
    scale = inputs.time_scale
    features = _action_features(instances, state, inputs.constraints, scale, mask, start)
    step_features = _step_features(state, inputs.constraints, scale)
    steps = DecodingSteps(
        current_stop=state.current_stop.view(num_instances, samples),
        step_features=step_features.view(num_instances, samples, -1),
        onboard=onboard.view(shape),
        pending=pending.view(shape),
        action_mask=mask.view(shape),
        action_index=mask.reshape(-1).nonzero().squeeze(1),
        action_features=features[mask],
    )
    return policy.logits(cache, steps).view(-1, num_stops)


def _step_features(state: BatchDecodeState, constraints: FleetConstraints, scale: TimeScale) -> Tensor:
    """(R, step features), as `transitions.write_step_features`."""
    requests = state.pending.shape[1] // 2
    vehicles, vehicle = constraints.num_vehicles, state.vehicle.float()
    features = torch.zeros((len(vehicle), NUM_STEP_FEATURES), device=vehicle.device)
    features[:, 0] = (4.0 * (state.time.double() - scale.day_start) * scale.per_day - 2.0).float()
    features[:, 1] = state.load.float() / constraints.capacity
    features[:, 2] = vehicle / vehicles
    features[:, 3] = (vehicles - vehicle) / float(VEHICLES_SCALE)
    features[:, 4] = state.pending.sum(dim=1).float() / requests
    features[:, 5] = requests / float(REQUESTS_SCALE)
    features[:, 6] = (state.route_length.float() * vehicles / (2.0 * requests)).clamp(max=CLIP)
    open_cost = min(constraints.extra_vehicle_cost * scale.per_mean_drive, CLIP)
    features[:, 7] = torch.where(state.vehicle + 1 >= constraints.free_vehicles, open_cost, 0.0)
    return features


def _action_features(
    instances: InstanceTensors,
    state: BatchDecodeState,
    constraints: FleetConstraints,
    scale: TimeScale,
    mask: Tensor,
    start: Tensor,
) -> Tensor:
    """(R, N, action features), valid where `mask`; as `transitions.write_action_features`."""
    instance, device = state.instance, state.time.device
    travel, late = instances.travel[instance], instances.late[instance]
    num_rows, num_stops = mask.shape
    stop = torch.arange(num_stops, device=device)
    is_pickup, is_depot = stop % 2 == 1, stop == 0
    dropoff = torch.where(is_pickup, stop + 1, 0)
    leg = travel[torch.arange(num_rows, device=device), state.current_stop]
    wait = start - state.time[:, None] - leg
    from_depot = (state.current_stop == 0)[:, None]
    # A vehicle never waits for the depot's window.
    arrival = torch.where(is_depot, state.time[:, None] + leg, start)
    wait = torch.where(is_depot, 0, wait)

    def in_mean_drives(microseconds: Tensor) -> Tensor:
        return (microseconds.double() * scale.per_mean_drive).float()

    def clipped(microseconds: Tensor) -> Tensor:
        return in_mean_drives(microseconds).clamp(max=CLIP)

    to_depot = travel[:, :, 0]
    features = torch.zeros((num_rows, num_stops, NUM_ACTION_FEATURES), device=device)
    features[..., 0] = in_mean_drives(leg)
    features[..., 1] = clipped(wait)
    features[..., 2] = clipped(late - arrival)
    features[..., 3] = is_depot.float()
    features[..., 4] = (~is_pickup & ~is_depot).float()
    features[..., 5] = from_depot.float()
    features[..., 6] = in_mean_drives(to_depot)
    features[..., 7] = in_mean_drives(leg + to_depot - leg[:, :1])
    features[..., 8] = torch.where(from_depot, 0.0, clipped(arrival - state.time[:, None]))
    deadline = torch.minimum(late[:, dropoff], arrival + instances.max_ride[instance])
    ride_slack = clipped(deadline - arrival - travel[:, stop, dropoff])
    features[..., 9] = torch.where(is_pickup, ride_slack, 0.0)
    load_after = state.load[:, None] + instances.riders[instance]
    features[..., 10] = load_after.float() / constraints.capacity
    features[..., 11] = _min_onboard_slack(state, travel, arrival, stop, scale)
    early = instances.early[instance]
    nearest, soonest = _next_pickup(state, travel, arrival, late, early, stop)
    features[..., 12] = torch.where(is_depot, 0.0, clipped(nearest))
    features[..., 13] = torch.where(is_depot, 0.0, clipped(soonest))
    best_leg = _best_predecessor_leg(state, travel, late, early, stop)
    features[..., 14] = torch.where(is_pickup, in_mean_drives(leg - best_leg).clamp(-CLIP, CLIP), 0.0)
    customers = mask & ~is_depot
    closest = torch.where(customers, leg, UNREACHABLE).amin(dim=1, keepdim=True)
    features[..., 15] = torch.where(
        customers.any(dim=1, keepdim=True), in_mean_drives(leg - closest).clamp(-CLIP, CLIP), 0.0
    )
    return features


def _min_onboard_slack(
    state: BatchDecodeState, travel: Tensor, arrival: Tensor, stop: Tensor, scale: TimeScale
) -> Tensor:
    """(R, N) least slack, in mean drives, of the riders on board after each action."""
    rows = torch.arange(len(travel), device=travel.device)
    onboard = state.onboard[:, None, :]
    ride = travel[rows[:, None, None], stop[None, :, None], onboard]
    slack = state.deadline[:, None, :] - arrival[:, :, None] - ride
    counts = (onboard > 0) & (onboard != stop[None, :, None])
    scaled = (slack.double() * scale.per_mean_drive).float()
    return torch.where(counts, scaled, CLIP).amin(dim=2).clamp(max=CLIP)


def _next_pickup(
    state: BatchDecodeState, travel: Tensor, arrival: Tensor, late: Tensor, early: Tensor, stop: Tensor
) -> tuple[Tensor, Tensor]:
    """(R, N) microseconds to the nearest and to the soonest pending pickup after each action."""
    reached = arrival[:, :, None] + travel
    counts = state.pending[:, None, :] & (reached <= late[:, None, :])
    counts &= stop[:, None] != stop[None, :]
    nearest = torch.where(counts, travel, UNREACHABLE).amin(dim=2)
    delay = torch.maximum(reached, early[:, None, :]) - arrival[:, :, None]
    return nearest, torch.where(counts, delay, UNREACHABLE).amin(dim=2)


def _best_predecessor_leg(state: BatchDecodeState, travel: Tensor, late: Tensor, early: Tensor, stop: Tensor) -> Tensor:
    """(R, N) microseconds of the shortest leg to each stop from the depot or a pending stop."""
    pending = state.pending.clone()
    pending[:, 2::2] = state.pending[:, 1::2]
    request = (stop + 1) // 2
    in_time = early[:, :, None] + travel <= late[:, None, :]
    counts = pending[:, :, None] & in_time & (request[:, None] != request[None, :])
    return torch.minimum(torch.where(counts, travel, UNREACHABLE).amin(dim=1), travel[:, 0])


def _apply_actions(
    instances: InstanceTensors,
    state: BatchDecodeState,
    constraints: FleetConstraints,
    chosen: Tensor,
    start: Tensor,
    done: Tensor,
) -> None:
    """Drive each row to its chosen stop, in place; rows that are done stay where they are."""
    instance = state.instance
    row = torch.arange(len(chosen), device=chosen.device)
    returns = (chosen == 0) & ~done
    begins = start[row, chosen]
    leaves_depot = (state.current_stop == 0) & (chosen > 0)
    departure = begins - instances.travel[instance, 0, chosen]
    depot_closes = instances.late[instance, 0]
    return_by = torch.minimum(depot_closes, departure + constraints.max_route)
    state.return_by = torch.where(leaves_depot, return_by, torch.where(returns, depot_closes, state.return_by))
    state.load = torch.where(returns, 0, state.load + instances.riders[instance, chosen])
    state.time = torch.where(returns, instances.early[instance, 0], torch.where(done, state.time, begins))
    state.current_stop = torch.where(done, state.current_stop, chosen)
    state.vehicle = state.vehicle + returns
    state.route_length = torch.where(returns, 0, state.route_length + (chosen > 0))
    state.pending[row, chosen] = False
    _drop_off(state, chosen)
    picked_up = chosen % 2 == 1
    slot = state.num_onboard.clamp(max=MAX_ONBOARD - 1)
    dropoff = torch.where(picked_up, chosen + 1, 0)
    deadline = torch.minimum(instances.late[instance, dropoff], begins + instances.max_ride[instance, chosen])
    state.onboard[row, slot] = torch.where(picked_up, dropoff, state.onboard[row, slot])
    state.deadline[row, slot] = torch.where(picked_up, deadline, state.deadline[row, slot])


def _drop_off(state: BatchDecodeState, chosen: Tensor) -> None:
    """Remove requests delivered at the chosen stops; the others keep their boarding order."""
    delivered = (state.onboard > 0) & (state.onboard == chosen[:, None])
    onboard = torch.where(delivered, 0, state.onboard)
    order = (onboard == 0).to(torch.int8).argsort(dim=1, stable=True)
    state.onboard = onboard.gather(1, order)
    state.deadline = state.deadline.gather(1, order)


def _gumbel_noise(keys: Tensor, first_draw: int, num_stops: int) -> Tensor:
    """(R, N) Gumbel noise from the draws of `rng.uniforms`, in wrapping 64-bit arithmetic."""
    count = first_draw + torch.arange(num_stops, device=keys.device)
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
    """Logical shift to the right of int64 bits."""
    return (bits >> by) & (_ALL_BITS >> by)


def _signed(constant: np.uint64) -> int:
    return int(np.int64(constant.astype(np.int64)))


def _write_routes(visits: IntArray, rows: IntArray, routes: IntArray, lengths: IntArray) -> None:
    """Write visits (5, visits): instance, sample, vehicle, position, stop."""
    instance, sample, vehicle, position, stop = visits
    routes[sample, rows[instance], vehicle, position] = stop
    np.add.at(lengths, (sample, rows[instance], vehicle), 1)
