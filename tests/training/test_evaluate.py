"""Evaluation counts whole episodes, as many from each env, and repeats."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hundredfold.backends import make_backend
from hundredfold.core.statistics import bootstrap_interval, standard_error
from hundredfold.envs.corridor import RIGHT, Corridor, CorridorSettings
from hundredfold.training.evaluate import evaluate, random_actor

LONG = CorridorSettings(max_episode_steps=1_000_000)


def judged(num_envs, act, episodes, seed, **options):
    envs = make_backend("in_process", Corridor, num_envs)
    return evaluate(envs, act, episodes, seed, max_steps=1000, **options)


def walk_right(batch):
    return np.full(len(batch), RIGHT)


def wander_or_walk(batch):
    """Odd envs wait two steps out of three, so their episodes are long."""
    wander_or_walk.steps += 1
    lazy = (batch.env_ids % 2 == 1) & (wander_or_walk.steps % 3 != 0)
    return np.where(lazy, 2, RIGHT)


def test_returns_are_those_of_the_walk():
    found = evaluate(
        make_backend("in_process", Corridor, 8), walk_right, 24, seed=1, max_steps=1000
    )
    assert len(found.returns) == 24
    assert_allclose(found.returns, 1 - 0.1 * found.lengths)
    assert found.info["reached_exit"].all()


def test_slow_envs_count_as_much_as_fast_ones():
    wander_or_walk.steps = 0
    found = evaluate(
        make_backend("in_process", Corridor, 4), wander_or_walk, 12, seed=1, max_steps=1000
    )
    lengths = found.lengths.reshape(4, 3)
    assert lengths[[1, 3]].min() > lengths[[0, 2]].max()


def test_the_same_seed_plays_the_same_episodes_on_every_backend():
    def played(name, seed):
        envs = make_backend(name, Corridor, 5)
        return evaluate(envs, random_actor(envs.spec, 0), 13, seed, max_steps=1000).returns

    one = played("in_process", 7)
    assert_array_equal(one, played("serial", 7))
    assert_array_equal(one, played("in_process", 7))
    assert not np.array_equal(one, played("in_process", 8))


def test_progress_is_told_and_reaches_the_end():
    heard = []
    evaluate(
        make_backend("in_process", Corridor, 3),
        walk_right,
        9,
        seed=0,
        max_steps=1000,
        on_progress=heard.append,
    )
    assert heard[-1] == 9
    assert heard == sorted(heard)


def test_a_random_actor_takes_every_allowed_action_and_no_other():
    envs = make_backend("in_process", Corridor, 64)
    act = random_actor(envs.spec, 3)
    envs.reset(0)
    counts = np.zeros(3)
    at_the_wall = np.zeros(3)
    for _ in range(200):
        batch = envs.recv()
        wall = batch.observation["cell"][:, 0] == 0
        actions = act(batch)
        counts += np.bincount(actions[~wall], minlength=3)
        at_the_wall += np.bincount(actions[wall], minlength=3)
        envs.send(actions)
    assert_allclose(counts / counts.sum(), 1 / 3, atol=0.02)
    assert at_the_wall[0] == 0
    assert_allclose(at_the_wall[1:] / at_the_wall.sum(), 1 / 2, atol=0.03)


def test_an_episode_without_end_is_cut_off_with_one_warning():
    def wait(batch):
        return np.full(len(batch), 2)

    envs = make_backend("in_process", partial(Corridor, settings=LONG), 3)
    with pytest.warns(UserWarning, match="6 evaluation episodes were truncated after 50 steps"):
        found = evaluate(envs, wait, 6, seed=0, max_steps=50)
    assert_array_equal(found.lengths, [50] * 6)


def test_no_seed_makes_evaluation_play_the_episodes_of_training():
    envs = make_backend("in_process", Corridor, 64)
    envs.reset(9999)
    trained_on = envs.recv().observation["cell"].copy()
    seen = []

    def look(batch):
        seen.append(batch.observation["cell"].copy())
        return walk_right(batch)

    evaluate(envs, look, 64, seed=9999, max_steps=100)
    assert not np.array_equal(seen[0], trained_on)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    draw = np.random.default_rng(5)
    hits = 0
    for _ in range(200):
        low, high = bootstrap_interval(draw.normal(3.0, 2.0, 100))
        hits += low <= 3.0 <= high
    assert 0.88 <= hits / 200 <= 0.99


def test_a_single_value_has_no_error_to_speak_of():
    assert standard_error(np.array([4.0])) == 0.0
    assert bootstrap_interval(np.array([4.0])) == (4.0, 4.0)


@pytest.mark.parametrize("episodes", [1, 3, 4, 5])
def test_exactly_as_many_episodes_as_asked_for(episodes):
    found = evaluate(
        make_backend("in_process", Corridor, 4), walk_right, episodes, seed=0, max_steps=1000
    )
    assert len(found.returns) == len(found.lengths) == episodes
