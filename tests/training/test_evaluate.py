"""Evaluation: complete episodes, the same number from every env, reproducible by seed."""

from functools import partial
from itertools import count

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hundredfold.backends import make_backend
from hundredfold.core.statistics import bootstrap_interval, standard_error
from hundredfold.envs.corridor import RIGHT, WAIT, Corridor, CorridorSettings
from hundredfold.training.evaluate import evaluate, random_actor

LONG = CorridorSettings(max_episode_steps=1_000_000)


def evaluate_corridor(num_envs, act, episodes, seed, **options):
    backend = make_backend("in_process", Corridor, num_envs)
    return evaluate(backend, act, episodes, seed, max_steps=1000, **options)


def walk_right(batch):
    return np.full(len(batch), RIGHT)


def walk_slowly_in_odd_envs():
    """A policy whose odd envs wait two steps out of three, so that their episodes are long."""
    steps = count(1)

    def act(batch):
        waits = (batch.env_ids % 2 == 1) & (next(steps) % 3 != 0)
        return np.where(waits, WAIT, RIGHT)

    return act


def test_returns_equal_those_of_a_known_walk():
    evaluation = evaluate_corridor(8, walk_right, 24, seed=1)
    assert len(evaluation.returns) == 24
    assert_allclose(evaluation.returns, 1 - 0.1 * evaluation.lengths)
    assert evaluation.info["reached_exit"].all()


def test_slow_envs_count_as_much_as_fast_ones():
    evaluation = evaluate_corridor(4, walk_slowly_in_odd_envs(), 12, seed=1)
    lengths = evaluation.lengths.reshape(4, 3)
    assert lengths[[1, 3]].min() > lengths[[0, 2]].max()


def test_the_same_seed_gives_the_same_episodes_on_every_backend():
    def returns(name, seed):
        backend = make_backend(name, Corridor, 5)
        return evaluate(backend, random_actor(backend.spec, 0), 13, seed, max_steps=1000).returns

    expected = returns("in_process", 7)
    assert_array_equal(returns("serial", 7), expected)
    assert_array_equal(returns("in_process", 7), expected)
    assert not np.array_equal(returns("in_process", 8), expected)


def test_after_its_steps_an_evaluation_counts_the_rounds_that_every_env_has_finished():
    whole = evaluate_corridor(4, walk_slowly_in_odd_envs(), 12, seed=1)
    slowest = int(whole.lengths.reshape(4, 3)[:, :2].sum(axis=1).max())
    limited = evaluate_corridor(4, walk_slowly_in_odd_envs(), 12, seed=1, total_steps=4 * slowest)
    assert_array_equal(limited.returns.reshape(4, 2), whole.returns.reshape(4, 3)[:, :2])
    assert_array_equal(limited.lengths.reshape(4, 2), whole.lengths.reshape(4, 3)[:, :2])
    assert limited.info["reached_exit"].shape == (8,)
    assert "truncated" not in limited.metrics()


def test_the_first_episodes_count_truncated_if_not_every_env_has_finished_its_own():
    first = evaluate_corridor(4, walk_slowly_in_odd_envs(), 4, seed=1).lengths
    limited = evaluate_corridor(4, walk_slowly_in_odd_envs(), 12, seed=1, total_steps=4 * int(first.min()))
    assert_array_equal(limited.lengths, np.minimum(first, first.min()))
    assert limited.metrics()["truncated"] == (first > first.min()).sum() > 0


def test_progress_increases_to_the_number_of_episodes():
    progress = []
    evaluate_corridor(3, walk_right, 9, seed=0, on_progress=progress.append)
    assert progress[-1] == 9
    assert progress == sorted(progress)


def test_random_actions_are_uniform_over_allowed_actions():
    backend = make_backend("in_process", Corridor, 64)
    act = random_actor(backend.spec, 3)
    backend.reset(0)
    counts = np.zeros(3)
    at_the_wall = np.zeros(3)
    for _ in range(200):
        batch = backend.recv()
        wall = batch.observation["cell"][:, 0] == 0
        actions = act(batch)
        counts += np.bincount(actions[~wall], minlength=3)
        at_the_wall += np.bincount(actions[wall], minlength=3)
        backend.send(actions)
    assert_allclose(counts / counts.sum(), 1 / 3, atol=0.02)
    assert at_the_wall[0] == 0
    assert_allclose(at_the_wall[1:] / at_the_wall.sum(), 1 / 2, atol=0.03)


def test_endless_episodes_are_truncated_with_one_warning():
    def wait(batch):
        return np.full(len(batch), WAIT)

    backend = make_backend("in_process", partial(Corridor, settings=LONG), 3)
    with pytest.warns(UserWarning, match="6 evaluation episodes were truncated after 50 steps"):
        evaluation = evaluate(backend, wait, 6, seed=0, max_steps=50)
    assert_array_equal(evaluation.lengths, [50] * 6)


def test_evaluation_never_uses_the_random_streams_of_training():
    backend = make_backend("in_process", Corridor, 64)
    backend.reset(9999)
    training_cells = backend.recv().observation["cell"].copy()
    evaluation_cells = []

    def record_and_walk(batch):
        evaluation_cells.append(batch.observation["cell"].copy())
        return walk_right(batch)

    evaluate(backend, record_and_walk, 64, seed=9999, max_steps=100)
    assert not np.array_equal(evaluation_cells[0], training_cells)


def test_bootstrap_intervals_have_about_their_nominal_coverage():
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(200):
        low, high = bootstrap_interval(rng.normal(3.0, 2.0, 100))
        hits += low <= 3.0 <= high
    assert 0.88 <= hits / 200 <= 0.99


def test_a_single_value_has_zero_standard_error():
    assert standard_error(np.array([4.0])) == 0.0
    assert bootstrap_interval(np.array([4.0])) == (4.0, 4.0)


@pytest.mark.parametrize("episodes", [1, 3, 4, 5])
def test_the_requested_number_of_episodes_is_returned(episodes):
    evaluation = evaluate_corridor(4, walk_right, episodes, seed=0)
    assert len(evaluation.returns) == len(evaluation.lengths) == episodes
