"""The two decode loops of the neural oracle: the same moves, every promise kept, always an end."""

from itertools import permutations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from helpers.small_instances import small_instances
from hundredfold.core import rng
from hundredfold.routing.instances import loose_instances, random_instances
from hundredfold.routing.lns import instance_keys
from hundredfold.routing.neural.features import features_in_tensors, pair_features, stop_table
from hundredfold.routing.neural.inputs import prepared
from hundredfold.routing.neural.losses import told_again
from hundredfold.routing.neural.model import PolicySettings, RoutingPolicy
from hundredfold.routing.neural.oracle import NeuralSettings, Router
from hundredfold.routing.neural.torch_decoder import all_in_time
from hundredfold.routing.neural.transitions import plans_hold
from hundredfold.routing.neural.weights import load_policy

BOOKS = {
    "days": lambda: random_instances(6, 12, seed=1),
    "loose": lambda: loose_instances(6, 10, seed=2),
    "limited": lambda: small_instances(12, 5, seed=3, limited=True),
    "shortcuts": lambda: small_instances(12, 5, seed=4, metric=False),
    "crowded": lambda: small_instances(12, 6, seed=5, crowded=True),
}


def random_policy(seed=0):
    torch.manual_seed(seed)
    size = PolicySettings(width=32, heads=4, layers=1, feed_forward=32, move_width=8)
    return RoutingPolicy(size).eval().requires_grad_(False)


def routes_of(books, policy, samples=1, **settings):
    ready = prepared(books)
    keys = rng.spawn(instance_keys(ready.books)[None], np.arange(samples)[:, None])
    return Router(policy, NeuralSettings(**settings)).routes(ready, keys)


@pytest.mark.parametrize("kind", BOOKS)
def test_both_loops_drive_the_same_routes(kind):
    books = BOOKS[kind]()
    for policy in (load_policy(), random_policy()):
        compiled = routes_of(books, policy, samples=3)
        batched = routes_of(books, policy, samples=3, batched_decode=True)
        assert_array_equal(compiled[1], batched[1])
        assert_array_equal(compiled[0], batched[0])


@pytest.mark.parametrize("kind", BOOKS)
def test_whatever_the_policy_decides_is_feasible_and_strands_nobody(kind):
    books = BOOKS[kind]()
    ready = prepared(books)
    for seed in range(3):
        routes, lengths = routes_of(books, random_policy(seed), samples=2)
        for sample in range(2):
            assert plans_hold(ready.books, ready.rules, routes[sample], lengths[sample]).all()


def test_samples_differ_and_repeat():
    books = random_instances(4, 12, seed=6)
    first, _ = routes_of(books, load_policy(), samples=6, temperature=2.0)
    again, _ = routes_of(books, load_policy(), samples=6, temperature=2.0)
    assert_array_equal(first, again)
    assert len({routes.tobytes() for routes in first}) > 1


def test_a_broken_plan_is_noticed():
    books = random_instances(1, 3, seed=7)
    ready = prepared(books)
    good, lengths = routes_of(books, load_policy())
    vehicle = int(lengths[0, 0].argmax())
    stops = good[0, 0, vehicle, : lengths[0, 0, vehicle]]
    pickups_last = np.sort(stops % 2, kind="stable")
    assert plans_hold(ready.books, ready.rules, good[0], lengths[0])[0]
    for wrong in (stops[np.argsort(stops % 2, kind="stable")], np.full_like(stops, stops[0])):
        broken = good[0].copy()
        broken[0, vehicle, : len(stops)] = wrong
        assert not plans_hold(ready.books, ready.rules, broken, lengths[0])[0]
    assert pickups_last[0] == 0  # there was a dropoff to come first


def test_an_impossible_request_is_left_out_and_decoding_ends():
    books = random_instances(2, 8, seed=8)
    books.riders[0, 3] = books.fleet.capacity + 1
    books.windows[1, 5, 1] = books.windows[1, 5, 0, 0] - 60.0
    for batched in (False, True):
        routes, lengths = routes_of(books, load_policy(), batched_decode=batched)
        assert 7 not in routes[0, 0]
        assert 11 not in routes[0, 1]
        assert (lengths[0].sum(axis=1) <= 14).all()


def test_the_model_scores_a_plan_as_the_kernel_did():
    books = random_instances(5, 12, seed=9)
    ready, policy = prepared(books), load_policy()
    routes, lengths = routes_of(books, policy)
    rows = np.arange(len(books))
    told = told_again(ready.books, ready.rules, ready.pace, rows, routes, lengths)
    tables = policy.encode(stop_table(ready.books, ready.rules, ready.city, rows), ready.drive)
    scores = policy.scores(tables, told.decisions)
    real = torch.arange(told.width) < told.counts
    assert int(told.counts.min()) > 5
    assert_array_equal(scores[real].argmax(dim=1), told.chosen[real])


def test_pairs_of_stops_look_the_same_compiled_and_in_tensors():
    books = small_instances(5, 6, seed=11, limited=True, full=True)
    ready = prepared(books)
    table = stop_table(ready.books, ready.rules, ready.city, np.arange(5))
    expected = features_in_tensors(table, ready.drive)
    assert_allclose(pair_features(table, ready.drive), expected, atol=1e-6)
    assert len(np.unique(expected[:, 5])) == 2


def test_reachability_is_exact():
    rng = np.random.default_rng(10)
    stops, moves, places = 12, 300, 3
    travel = rng.integers(1, 30, (stops, stops))
    early = np.sort(rng.integers(0, 60, stops))
    due = rng.integers(20, 90, (moves, places))
    aboard = np.array([rng.permutation([4, 6, 8, 10])[:places] for _ in range(moves)])
    aboard[rng.random((moves, places)) < 0.2] = 0
    there, home_by = rng.integers(0, 40, moves), rng.integers(50, 120, moves)
    expected = [
        any(
            in_time(travel, early, 2, there[m], order, home_by[m])
            for order in permutations(
                [(stop, due[m, k]) for k, stop in enumerate(aboard[m]) if stop > 0]
            )
        )
        for m in range(moves)
    ]
    each = (moves, 1)
    found = all_in_time(
        torch.from_numpy(np.tile(travel, (moves, 1, 1))),
        torch.from_numpy(np.tile(early, each)),
        torch.full((moves, stops), 1000),
        torch.full((moves, stops), 1000),
        torch.from_numpy(aboard),
        torch.from_numpy(due),
        torch.full((moves,), 2),
        torch.from_numpy(there),
        torch.from_numpy(home_by),
    )
    assert_array_equal(found.numpy(), expected)
    assert 0.1 < np.mean(expected) < 0.9


def in_time(travel, early, here, time, order, home_by):
    for stop, due in order:
        time = max(time + travel[here, stop], early[stop])
        if time > due:
            return False
        here = stop
    return time + travel[here, 0] <= home_by
