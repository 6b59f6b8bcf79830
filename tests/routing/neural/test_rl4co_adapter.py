"""Policies in the manner of RL4CO as an oracle: a stand-in and, where installed, a real one."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from helpers.small_instances import small_instances
from hundredfold.core.errors import ShapeError
from hundredfold.routing.exact_oracle import ExactOracle
from hundredfold.routing.instances import random_city
from hundredfold.routing.neural.rl4co_adapter import Rl4coOracle, minutes_per_side, tensordict_of
from hundredfold.routing.problem import Fleet, RouteProblems
from hundredfold.routing.verifier import violations


def all_day_books(num_books=5, requests=4, capacity=8, vehicles=1):
    """Books that any order of stops can serve."""
    rng = np.random.default_rng(1)
    fleet = Fleet(num_vehicles=vehicles, capacity=capacity)
    cells = rng.integers(1, 60, (num_books, requests, 2))
    return RouteProblems.from_arrays(random_city(3), fleet, cells, np.array([0.0, 1440.0]))


class InOrder:
    """Picks everybody up, then lets everybody off; tells what it was asked."""

    def __init__(self, homes=()):
        self.homes = homes
        self.asked = []

    def __call__(self, td, phase, decode_type):
        self.asked.append((td, phase, decode_type))
        books, stops = td["demand"].shape
        actions = torch.arange(1, stops).repeat(books, 1)
        for place in self.homes:
            home = torch.zeros((books, 1), dtype=torch.int64)
            actions = torch.cat([actions[:, :place], home, actions[:, place:]], dim=1)
        return {"reward": -torch.arange(1.0, books + 1.0), "actions": actions}


def test_a_policy_is_called_as_rl4co_calls_it_and_minus_reward_is_the_cost():
    policy = InOrder()
    costs = Rl4coOracle(policy, minutes_per_unit=10.0).costs(all_day_books(3))
    assert_array_equal(costs, [10.0, 20.0, 30.0])
    [(_, phase, decode_type)] = policy.asked
    assert (phase, decode_type) == ("test", "greedy")


def test_actions_become_routes_priced_by_our_rule():
    books = all_day_books()
    plans = Rl4coOracle(InOrder()).solve(books)
    assert violations(books, plans) == []
    assert plans.route(0, 0) == [1, 3, 5, 7, 2, 4, 6, 8]
    assert (plans.cost >= ExactOracle().solve(books).cost).all()


def test_a_zero_between_stops_begins_the_next_vehicle():
    books = all_day_books(requests=2, vehicles=2)
    # Pickup 1, dropoff 1, home, pickup 2, dropoff 2 in RL4CO's numbers.
    tour = torch.tensor([[0, 1, 3, 0, 2, 4, 0]]).repeat(5, 1)

    def policy(td, phase, decode_type):
        return {"reward": torch.zeros(5), "actions": tour}

    plans = Rl4coOracle(policy).solve(books)
    assert plans.route(2, 0) == [1, 2]
    assert plans.route(2, 1) == [3, 4]


def test_routes_that_cannot_be_driven_are_built_anew():
    books = small_instances(10, 4, seed=6, full=True)
    plans = Rl4coOracle(InOrder()).solve(books)
    assert violations(books, plans) == []
    assert not plans.unserved.any()


def test_the_layout_is_the_one_that_is_documented():
    books = small_instances(6, 4, seed=7, limited=True, full=True)
    td = tensordict_of(books, np.arange(6))
    shapes = {name: tuple(td[name].shape) for name in td.keys()}  # noqa: SIM118
    assert shapes == {
        "locs": (6, 9, 2),
        "depot": (6, 2),
        "time_windows": (6, 9, 2),
        "travel_minutes": (6, 9, 9),
        "demand": (6, 9),
        "service_minutes": (6, 9),
        "max_ride_minutes": (6, 9),
        "capacity": (6, 1),
        "num_vehicles": (6, 1),
        "current_node": (6, 1),
        "to_deliver": (6, 9),
        "available": (6, 9),
        "i": (6, 1),
        "action_mask": (6, 9),
        "done": (6, 1),
    }
    # Pickups first, then dropoffs, request by request.
    assert_array_equal(td["demand"][2, 1:5], books.riders[2])
    assert_array_equal(td["demand"][2, 5:], -books.riders[2])
    assert_allclose(td["time_windows"][2, 1:5], books.windows[2, :, 0], rtol=1e-6)
    assert_allclose(td["time_windows"][2, 5:], books.windows[2, :, 1], rtol=1e-6)
    minutes = books.travel.minutes[books.cells[2, 0, 0], books.cells[2, 3, 1]]
    assert float(td["travel_minutes"][2, 1, 8]) == pytest.approx(minutes, rel=1e-6)
    assert 0.0 <= float(td["locs"].min()) <= float(td["locs"].max()) <= 1.0 + 1e-6


def test_answers_of_another_shape_are_refused():
    with pytest.raises(ShapeError, match="reward"):
        Rl4coOracle(lambda td, phase, decode_type: {"reward": torch.zeros(2)}).costs(
            all_day_books(3)
        )
    with pytest.raises(ShapeError, match="no actions"):
        Rl4coOracle(lambda td, phase, decode_type: {"reward": torch.zeros(3)}).solve(
            all_day_books(3)
        )
    with pytest.raises(ShapeError, match="reach 99"):
        Rl4coOracle(
            lambda td, phase, decode_type: {
                "reward": torch.zeros(3),
                "actions": torch.full((3, 2), 99),
            }
        ).solve(all_day_books(3))


def test_a_real_policy_of_rl4co_routes_our_books():
    pytest.importorskip("rl4co")
    from rl4co.envs import PDPEnv
    from rl4co.models.zoo.am import AttentionModelPolicy

    torch.manual_seed(0)
    books = all_day_books(requests=5)
    policy = AttentionModelPolicy(env_name="pdp", embed_dim=32, num_heads=4).eval()
    oracle = Rl4coOracle(policy, minutes_per_unit=minutes_per_side(books))
    plans = oracle.solve(books)
    assert violations(books, plans) == []
    assert (plans.lengths == 10).all()
    # The reward is RL4CO's own: the length of its tour on the map that we drew.
    td = tensordict_of(books, np.arange(5))
    env = PDPEnv(generator_params={"num_loc": 10})
    tour = torch.from_numpy(plans.routes[:, 0])
    theirs = torch.where(tour % 2 == 1, (tour + 1) // 2, tour // 2 + 5)
    expected = -env.get_reward(td, theirs).numpy() * minutes_per_side(books)
    assert_allclose(oracle.costs(books), expected, rtol=1e-5)
