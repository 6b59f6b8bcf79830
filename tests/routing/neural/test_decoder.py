"""The two decoders of the neural oracle agree, construct feasible routes, and terminate."""

from itertools import permutations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from helpers.small_instances import small_instances
from hundredfold.core import rng
from hundredfold.routing.instances import loose_instances, random_instances
from hundredfold.routing.lns import instance_keys
from hundredfold.routing.neural.feasibility import are_feasible, can_deliver_all_torch
from hundredfold.routing.neural.features import edge_features, edge_features_torch, encoder_inputs, policy_inputs
from hundredfold.routing.neural.losses import teacher_force
from hundredfold.routing.neural.model import PolicySettings, RoutingPolicy, load_policy
from hundredfold.routing.neural.oracle import NeuralSettings, PolicyInference

INSTANCES = {
    "days": lambda: random_instances(6, 12, seed=1),
    "loose": lambda: loose_instances(6, 10, seed=2),
    "limited": lambda: small_instances(12, 5, seed=3, limited=True),
    "shortcuts": lambda: small_instances(12, 5, seed=4, metric=False),
    "crowded": lambda: small_instances(12, 6, seed=5, crowded=True),
}


def random_policy(seed=0):
    torch.manual_seed(seed)
    settings = PolicySettings(embed_dim=32, num_heads=4, num_encoder_layers=1, feedforward_dim=32, action_hidden_dim=8)
    return RoutingPolicy(settings).eval().requires_grad_(False)


def decoded_routes(problems, policy, samples=1, **settings):
    inputs = policy_inputs(problems)
    keys = rng.spawn(instance_keys(inputs.instances)[None], np.arange(samples)[:, None])
    return PolicyInference(policy, NeuralSettings(**settings)).routes(inputs, keys)


def feasible(problems, routes, lengths):
    inputs = policy_inputs(problems)
    return are_feasible(inputs.instances, inputs.constraints, routes, lengths)


@pytest.mark.parametrize("kind", INSTANCES)
def test_numba_and_torch_decoder_construct_the_same_routes(kind):
    problems = INSTANCES[kind]()
    for policy in (load_policy(), random_policy()):
        routes, lengths = decoded_routes(problems, policy, samples=3)
        others = decoded_routes(problems, policy, samples=3, torch_decoder=True)
        assert_array_equal(others[1], lengths)
        assert_array_equal(others[0], routes)


@pytest.mark.parametrize("kind", INSTANCES)
def test_routes_of_random_policies_are_feasible(kind):
    problems = INSTANCES[kind]()
    for seed in range(3):
        routes, lengths = decoded_routes(problems, random_policy(seed), samples=2)
        for sample in range(2):
            assert feasible(problems, routes[sample], lengths[sample]).all()


def test_samples_differ_and_are_reproducible():
    problems = random_instances(4, 12, seed=6)
    first, _ = decoded_routes(problems, load_policy(), samples=6, temperature=2.0)
    again, _ = decoded_routes(problems, load_policy(), samples=6, temperature=2.0)
    assert_array_equal(first, again)
    assert len({routes.tobytes() for routes in first}) > 1


def test_infeasible_routes_are_detected():
    problems = random_instances(1, 3, seed=7)
    good, lengths = decoded_routes(problems, load_policy())
    vehicle = int(lengths[0, 0].argmax())
    stops = good[0, 0, vehicle, : lengths[0, 0, vehicle]]
    pickups_last = np.sort(stops % 2, kind="stable")
    assert feasible(problems, good[0], lengths[0])[0]
    for wrong in (stops[np.argsort(stops % 2, kind="stable")], np.full_like(stops, stops[0])):
        broken = good[0].copy()
        broken[0, vehicle, : len(stops)] = wrong
        assert not feasible(problems, broken, lengths[0])[0]
    assert pickups_last[0] == 0  # there was a dropoff to come first


def test_an_impossible_request_stays_unserved_and_decoding_terminates():
    problems = random_instances(2, 8, seed=8)
    problems.riders[0, 3] = problems.fleet.capacity + 1
    problems.windows[1, 5, 1] = problems.windows[1, 5, 0, 0] - 60.0
    for torch_decoder in (False, True):
        routes, lengths = decoded_routes(problems, load_policy(), torch_decoder=torch_decoder)
        assert 7 not in routes[0, 0]
        assert 11 not in routes[0, 1]
        assert (lengths[0].sum(axis=1) <= 14).all()


def test_teacher_forced_logits_prefer_the_actions_of_the_numba_decoder():
    problems = random_instances(5, 12, seed=9)
    inputs, policy = policy_inputs(problems), load_policy()
    routes, lengths = decoded_routes(problems, policy)
    rows = np.arange(len(problems))
    forced = teacher_force(inputs, rows, routes, lengths)
    cache = policy.encode(encoder_inputs(inputs, rows), inputs.drive)
    logits = policy.logits(cache, forced.steps)
    is_step = torch.arange(forced.max_steps) < forced.num_steps
    assert int(forced.num_steps.min()) > 5
    assert_array_equal(logits[is_step].argmax(dim=1), forced.actions[is_step])


def test_edge_features_are_the_same_in_numba_and_torch():
    problems = small_instances(5, 6, seed=11, limited=True, full=True)
    inputs = policy_inputs(problems)
    encoded = encoder_inputs(inputs, np.arange(5))
    expected = edge_features_torch(encoded, inputs.drive)
    assert_allclose(edge_features(encoded, inputs.drive), expected, atol=1e-6)
    assert len(np.unique(expected[:, 5])) == 2


def test_delivery_check_agrees_with_all_orders_of_dropoffs():
    rng = np.random.default_rng(10)
    stops, actions, slots = 12, 300, 3
    travel = rng.integers(1, 30, (stops, stops))
    early = np.sort(rng.integers(0, 60, stops))
    deadline = rng.integers(20, 90, (actions, slots))
    onboard = np.array([rng.permutation([4, 6, 8, 10])[:slots] for _ in range(actions)])
    onboard[rng.random((actions, slots)) < 0.2] = 0
    start, return_by = rng.integers(0, 40, actions), rng.integers(50, 120, actions)
    expected = [
        any(
            in_time(travel, early, 2, start[a], order, return_by[a])
            for order in permutations([(stop, deadline[a, k]) for k, stop in enumerate(onboard[a]) if stop > 0])
        )
        for a in range(actions)
    ]
    each = (actions, 1)
    found = can_deliver_all_torch(
        torch.from_numpy(np.tile(travel, (actions, 1, 1))),
        torch.from_numpy(np.tile(early, each)),
        torch.full((actions, stops), 1000),
        torch.full((actions, stops), 1000),
        torch.from_numpy(onboard),
        torch.from_numpy(deadline),
        torch.full((actions,), 2),
        torch.from_numpy(start),
        torch.from_numpy(return_by),
    )
    assert_array_equal(found.numpy(), expected)
    assert 0.1 < np.mean(expected) < 0.9


def in_time(travel, early, here, time, order, return_by):
    for stop, deadline in order:
        time = max(time + travel[here, stop], early[stop])
        if time > deadline:
            return False
        here = stop
    return time + travel[here, 0] <= return_by
