"""Corridor: rewards, masks, ends and tolls are what can be computed by hand."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.trajectories import record_env_trajectory
from hundredfold.core import rng
from hundredfold.core.errors import SettingsError
from hundredfold.envs.corridor import LEFT, RIGHT, WAIT, Corridor, CorridorSettings


def corridor(num_envs=32, **settings):
    env = Corridor(np.arange(num_envs), CorridorSettings(**settings))
    env.reset(3)
    return env


def step_all(env, action):
    return env.step(np.full(env.num_envs, action))


def place(env, cell):
    """Place all envs in this cell."""
    state = env.state()
    state["out/true_state/cell"][:] = cell
    state["out/observation/cell"][:] = cell
    return env.restore(state)


def episode_returns(env, act):
    """Start cell, return and length of every env's first episode under `act(cells)`."""
    starts = env.out.observation["cell"][:, 0].copy()
    totals, lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)
    running = np.ones(env.num_envs, bool)
    while running.any():
        out = env.step(act(env.out.observation["cell"][:, 0]))
        totals[running] += out.reward[running]
        lengths[running] += 1
        running &= ~out.ended
    return starts, totals, lengths


def best_returns(length, max_steps):
    """The optimal return from every cell, by backward induction."""
    value = np.zeros(length + 1)
    for _ in range(max_steps):
        right = -0.1 + np.where(np.arange(length) + 1 == length, 1.0, value[1:])
        left = np.where(np.arange(length) > 0, -0.1 + np.roll(value[:-1], 1), -np.inf)
        value[:-1] = np.max([right, left, -0.1 + value[:-1]], axis=0)
    return value[:-1]


@pytest.mark.parametrize("length", [2, 3, 6, 11])
def test_walking_right_earns_the_optimal_return(length):
    starts, returns, lengths = episode_returns(corridor(64, length=length), lambda cells: np.full(len(cells), RIGHT))
    assert_allclose(returns, 1 - 0.1 * (length - starts), atol=1e-12)
    assert_allclose(returns, best_returns(length, 30)[starts], atol=1e-12)
    assert_array_equal(lengths, length - starts)


def test_random_walks_earn_less():
    rng = np.random.default_rng(0)

    def walk_randomly(cells):
        return np.where(cells > 0, rng.integers(0, 3, len(cells)), RIGHT)

    starts, returns, _ = episode_returns(corridor(64), walk_randomly)
    assert (returns <= best_returns(6, 30)[starts] + 1e-12).all()
    assert returns.mean() < best_returns(6, 30)[starts].mean() - 0.3


def test_waiting_is_allowed_and_useless():
    _, returns, lengths = episode_returns(corridor(), lambda cells: np.full(len(cells), WAIT))
    assert_allclose(returns, -3.0)
    assert set(lengths) == {30}


def test_actions_move_by_one_cell():
    env = corridor()
    for action, cell in ((LEFT, 2), (RIGHT, 4), (WAIT, 3)):
        place(env, 3)
        out = step_all(env, action)
        assert set(out.observation["cell"][:, 0]) == {cell}
        assert set(out.true_state["cell"]) == {cell}
        assert set(out.reward) == {-0.1}


def test_only_left_at_the_wall_is_masked():
    env = corridor()
    for cell in range(6):
        out = walk_to(env, cell)
        assert_array_equal(out.mask, np.tile([cell > 0, True, True], (env.num_envs, 1)))


def walk_to(env, cell):
    """Reach `cell` by a step, so that the env itself wrote the mask."""
    place(env, max(cell - 1, 0))
    return step_all(env, RIGHT if cell else WAIT)


def test_the_exit_terminates_and_the_next_episode_starts_in_the_same_step():
    env = corridor(64)
    place(env, 5)
    out = step_all(env, RIGHT)
    assert out.terminated.all()
    assert not out.truncated.any()
    assert out.episode_info["reached_exit"].all()
    assert_allclose(out.reward, 0.9)
    assert set(out.final_observation["cell"][:, 0]) == {5}
    expected = rng.integers(rng.stream_keys(3, np.arange(64), 1), 0, 3)
    assert_array_equal(out.observation["cell"][:, 0], expected)


def test_the_step_limit_truncates_and_keeps_the_final_observation():
    env = corridor(max_episode_steps=4)
    starts = env.out.observation["cell"][:, 0].copy()
    for _ in range(3):
        assert not step_all(env, WAIT).ended.any()
    out = step_all(env, WAIT)
    assert out.truncated.all()
    assert not out.terminated.any()
    assert not out.episode_info["reached_exit"].any()
    assert_array_equal(out.final_observation["cell"][:, 0], starts)


def test_reaching_the_exit_at_the_step_limit_terminates_and_does_not_truncate():
    env = corridor(max_episode_steps=1)
    place(env, 5)
    out = step_all(env, RIGHT)
    assert out.terminated.all()
    assert not out.truncated.any()


def test_the_step_count_restarts_with_every_episode():
    env = corridor(max_episode_steps=7)
    for _ in range(3):
        ends = [bool(step_all(env, WAIT).truncated.all()) for _ in range(7)]
        assert ends == [False] * 6 + [True]


@pytest.mark.parametrize(("length", "cells"), [(2, {0}), (6, {0, 1, 2}), (9, {0, 1, 2, 3})])
def test_start_cells_are_uniform_over_the_left_half(length, cells):
    env = corridor(6000, length=length)
    counts = np.bincount(env.out.observation["cell"][:, 0])
    assert set(np.flatnonzero(counts)) == cells
    assert np.abs(counts - 6000 / len(cells)).max() < 5 * np.sqrt(6000 / len(cells))


def test_start_cells_come_from_the_rng_stream_of_env_and_episode():
    env = Corridor(np.array([4, 1]))
    out = env.reset(9)
    keys = rng.stream_keys(9, [4, 1], 0)
    assert_array_equal(out.observation["cell"][:, 0], rng.integers(keys, 0, 3))


# --- tolls


def test_a_toll_is_paid_on_entering_a_cell():
    env = corridor()
    env.set_shared_params({"toll": np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])})
    for action, paid in ((LEFT, 0.2), (RIGHT, 0.4), (WAIT, 0.0)):
        place(env, 3)
        out = step_all(env, action)
        assert_allclose(out.info["toll_paid"], paid)
        assert_allclose(out.reward, -0.1 - paid)


def test_leaving_through_the_exit_is_free():
    env = corridor()
    env.set_shared_params({"toll": np.full(6, 0.5)})
    place(env, 5)
    out = step_all(env, RIGHT)
    assert not out.info["toll_paid"].any()
    assert_allclose(out.reward, 0.9)


def test_reset_clears_the_toll_info():
    env = corridor()
    env.set_shared_params({"toll": np.full(6, 0.5)})
    assert step_all(env, RIGHT).info["toll_paid"].any()
    assert not env.reset(3).info["toll_paid"].any()


def test_tolls_are_part_of_a_snapshot():
    env = corridor(4)
    env.set_shared_params({"toll": np.arange(6.0)})
    other = corridor(4)
    other.restore(env.state())
    assert_array_equal(step_all(other, RIGHT).reward, step_all(env, RIGHT).reward)


def test_without_tolls_nothing_is_paid():
    assert not record_env_trajectory(corridor(), 3, 40)["info/toll_paid"].any()


@pytest.mark.parametrize("settings", [{"length": 1}, {"length": 0}, {"max_episode_steps": 0}])
def test_settings_out_of_bounds_are_refused(settings):
    name, value = next(iter(settings.items()))
    with pytest.raises(SettingsError, match=f"{name} must be at least .*, got {value}"):
        CorridorSettings(**settings)
