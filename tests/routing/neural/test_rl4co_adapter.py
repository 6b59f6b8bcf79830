"""The RL4CO adapter with a fake policy and, where RL4CO is installed, with a real one."""

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


def all_day_instances(num_instances=5, requests=4, capacity=8, vehicles=1):
    """Instances that any order of stops can serve."""
    rng = np.random.default_rng(1)
    fleet = Fleet(num_vehicles=vehicles, capacity=capacity)
    cells = rng.integers(1, 60, (num_instances, requests, 2))
    return RouteProblems.from_arrays(random_city(3), fleet, cells, np.array([0.0, 1440.0]))


class PickupsFirst:
    """Policy that serves all pickups, then all dropoffs, and records its calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, td, phase, decode_type):
        self.calls.append((td, phase, decode_type))
        batch, stops = td["demand"].shape
        actions = torch.arange(1, stops).repeat(batch, 1)
        return {"reward": -torch.arange(1.0, batch + 1.0), "actions": actions}


def test_the_policy_is_called_as_by_rl4co_and_minus_reward_is_the_cost():
    policy = PickupsFirst()
    costs = Rl4coOracle(policy, minutes_per_unit=10.0).costs(all_day_instances(3))
    assert_array_equal(costs, [10.0, 20.0, 30.0])
    [(_, phase, decode_type)] = policy.calls
    assert (phase, decode_type) == ("test", "greedy")


def test_actions_become_verified_routes():
    problems = all_day_instances()
    solutions = Rl4coOracle(PickupsFirst()).solve(problems)
    assert violations(problems, solutions) == []
    assert solutions.route(0, 0) == [1, 3, 5, 7, 2, 4, 6, 8]
    assert (solutions.cost >= ExactOracle().solve(problems).cost).all()


def test_a_zero_between_stops_starts_the_next_vehicle():
    problems = all_day_instances(requests=2, vehicles=2)
    # Pickup 1, dropoff 1, depot, pickup 2, dropoff 2 in RL4CO's numbering.
    tour = torch.tensor([[0, 1, 3, 0, 2, 4, 0]]).repeat(5, 1)

    def policy(td, phase, decode_type):
        return {"reward": torch.zeros(5), "actions": tour}

    solutions = Rl4coOracle(policy).solve(problems)
    assert solutions.route(2, 0) == [1, 2]
    assert solutions.route(2, 1) == [3, 4]


def test_infeasible_routes_are_rebuilt_by_insertion():
    problems = small_instances(10, 4, seed=6, full=True)
    solutions = Rl4coOracle(PickupsFirst()).solve(problems)
    assert violations(problems, solutions) == []
    assert not solutions.unserved.any()


def test_td_has_the_documented_layout():
    problems = small_instances(6, 4, seed=7, limited=True, full=True)
    td = tensordict_of(problems, np.arange(6))
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
    assert_array_equal(td["demand"][2, 1:5], problems.riders[2])
    assert_array_equal(td["demand"][2, 5:], -problems.riders[2])
    assert_allclose(td["time_windows"][2, 1:5], problems.windows[2, :, 0], rtol=1e-6)
    assert_allclose(td["time_windows"][2, 5:], problems.windows[2, :, 1], rtol=1e-6)
    minutes = problems.travel.minutes[problems.cells[2, 0, 0], problems.cells[2, 3, 1]]
    assert float(td["travel_minutes"][2, 1, 8]) == pytest.approx(minutes, rel=1e-6)
    assert 0.0 <= float(td["locs"].min()) <= float(td["locs"].max()) <= 1.0 + 1e-6


def test_outputs_of_wrong_shape_are_rejected():
    with pytest.raises(ShapeError, match="reward"):
        Rl4coOracle(lambda td, phase, decode_type: {"reward": torch.zeros(2)}).costs(all_day_instances(3))
    with pytest.raises(ShapeError, match="no actions"):
        Rl4coOracle(lambda td, phase, decode_type: {"reward": torch.zeros(3)}).solve(all_day_instances(3))
    with pytest.raises(ShapeError, match="up to 99"):
        Rl4coOracle(lambda td, phase, decode_type: {"reward": torch.zeros(3), "actions": torch.full((3, 2), 99)}).solve(
            all_day_instances(3)
        )


def test_a_real_rl4co_policy_solves_instances():
    pytest.importorskip("rl4co")
    from rl4co.envs import PDPEnv
    from rl4co.models.zoo.am import AttentionModelPolicy

    torch.manual_seed(0)
    problems = all_day_instances(requests=5)
    policy = AttentionModelPolicy(env_name="pdp", embed_dim=32, num_heads=4).eval()
    oracle = Rl4coOracle(policy, minutes_per_unit=minutes_per_side(problems))
    solutions = oracle.solve(problems)
    assert violations(problems, solutions) == []
    assert (solutions.lengths == 10).all()
    # The reward is RL4CO's own: the length of its tour on the unit square.
    td = tensordict_of(problems, np.arange(5))
    env = PDPEnv(generator_params={"num_loc": 10})
    tour = torch.from_numpy(solutions.routes[:, 0])
    rl4co_tour = torch.where(tour % 2 == 1, (tour + 1) // 2, tour // 2 + 5)
    expected = -env.get_reward(td, rl4co_tour).numpy() * minutes_per_side(problems)
    assert_allclose(oracle.costs(problems), expected, rtol=1e-5)
