"""Benchmark of policies with memory."""

import gymnasium
import numpy as np
import pytest

from benchmarks import memory
from benchmarks.learning import LearningResult


def test_the_env_hides_the_velocities_of_cartpole():
    hidden, whole = gymnasium.make(memory.ENV), gymnasium.make("CartPole-v1")
    assert hidden.reset(seed=3)[0].shape == (2,) == hidden.observation_space.shape
    whole.reset(seed=3)
    for _ in range(3):
        np.testing.assert_array_equal(hidden.step(1)[0], whole.step(1)[0][[0, 2]])


@pytest.mark.slow
def test_rows_compare_all_systems():
    rows = memory.bench_memory(seeds=1, samples=4096, on_progress=lambda line: None)
    assert [row["system"] for row in rows] == [memory.HUNDREDFOLD, memory.WITHOUT_MEMORY, memory.RECURRENT_PPO]
    assert all(row["samples_to_target"] == 4096 and row["solved"] == "0 of 1" for row in rows)


def test_recurrent_ppo_is_trained_and_evaluated():
    pytest.importorskip("sb3_contrib")
    result = memory.train_recurrent_ppo(memory.settings(1), seed=0)
    assert result.samples == memory.EVALUATION_INTERVAL * memory.NUM_ENVS * memory.NUM_STEPS
    assert not result.solved
    assert 8 <= result.best < memory.TARGET


def test_speeds_are_relative_to_hundredfold_with_memory():
    runs = {memory.HUNDREDFOLD: 100.0, memory.RECURRENT_PPO: 25.0}
    rows = memory.result_rows({name: [LearningResult(10, True, 500.0, rate, 1.0)] for name, rate in runs.items()})
    assert [row["ratio_to_hundredfold"] for row in rows] == [1.0, 0.25]
    assert rows[0]["solved"] == "1 of 1"
