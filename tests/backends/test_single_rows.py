"""Third-party envs stepped row by row, as threads do, equal those stepped together."""

from contextlib import closing

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from helpers import third_party_envs
from hundredfold.core.batch import copies
from hundredfold.core.errors import EnvError
from hundredfold.envs.gymnasium_factory import GymnasiumFactory
from hundredfold.envs.registry import callable_factory

FACTORIES = {
    "cartpole": GymnasiumFactory("CartPole-v1", {}),
    "dice": callable_factory(third_party_envs.DiceEnv),
    "dict": callable_factory(third_party_envs.DictObservation),
    "number": callable_factory(third_party_envs.DiscreteObservation),
}


def recorded(make_envs, steps, step):
    """All outputs of a batch of six while it is stepped this way."""
    with closing(make_envs(np.arange(6))) as env:
        env.reset(5)
        outputs = []
        for number in range(steps):
            draw = np.random.default_rng(number)
            step(env, draw.integers(0, 2, 6))
            outputs.append(copies(env.out.arrays()) | {"infos": repr(env.infos)})
        return outputs


def one_by_one(env, actions):
    for row in (3, 0, 5, 1, 4, 2):
        env.step_row(row, actions)


def all_together(env, actions):
    env.step_rows(0, 6, actions)


@pytest.mark.parametrize("make_envs", FACTORIES.values(), ids=FACTORIES)
def test_rows_are_the_same_stepped_singly_and_together(make_envs):
    alone, together = (recorded(make_envs, 60, step) for step in (one_by_one, all_together))
    assert any(one["terminated"].any() or one["truncated"].any() for one in together)
    for one, other in zip(alone, together, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize(
    "make_env", [third_party_envs.NanObservation, third_party_envs.InfReward, third_party_envs.WrongObservationShape]
)
def test_invalid_results_of_a_single_row_are_refused(make_env):
    with closing(callable_factory(make_env)(np.arange(2))) as env:
        env.reset(0)
        for _ in range(make_env.fault_step - 1):
            env.step_row(1, np.zeros(2, np.int64))
        with pytest.raises(EnvError, match="env 1 of"):
            env.step_row(1, np.zeros(2, np.int64))


def test_an_env_made_by_id_keeps_its_time_limit_and_loses_order_enforcing():
    env = GymnasiumFactory("CartPole-v1", {}).make_env()
    assert isinstance(env, TimeLimit)
    assert not isinstance(env.env, OrderEnforcing)
    assert isinstance(gymnasium.make("CartPole-v1", disable_env_checker=True).env, OrderEnforcing)
    assert env.spec.id == "CartPole-v1"
