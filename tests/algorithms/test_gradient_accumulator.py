"""Gradient accumulation after an out-of-memory error: the same gradient, computed in chunks."""

import warnings

import numpy as np
import pytest
import torch

from helpers.ppo_learner import make_ppo
from hundredfold.algorithms.minibatches import GradientAccumulator
from hundredfold.algorithms.ppo import PPOSettings
from hundredfold.core.errors import TrainingError
from hundredfold.envs.cartpole import CartPole


def limit_memory(learner, rows):
    """Let the network raise an out-of-memory error for more rows than this."""
    both, value = learner.network.logits_and_value, learner.network.normalised_value

    def check_rows(observation):
        if torch.is_grad_enabled() and len(next(iter(observation.values()))) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def limited_both(observation, sequences=None):
        check_rows(observation)
        return both(observation, sequences)

    def limited_value(observation, sequences=None):
        check_rows(observation)
        return value(observation, sequences)

    learner.network.logits_and_value, learner.network.normalised_value = limited_both, limited_value


def updated(settings, rows=None):
    learner, collector = make_ppo(CartPole, settings)
    if rows is not None:
        limit_memory(learner, rows)
    collector.collect(learner.policy, learner.buffer, learner.buffer.num_steps)
    learner.update()
    return learner


@pytest.mark.parametrize("style", [{}, {"num_value_epochs": 2, "num_policy_epochs": 1}])
def test_a_minibatch_that_does_not_fit_is_accumulated_in_chunks_with_the_same_result(style):
    settings = PPOSettings(num_minibatches=2, **style)
    whole = updated(settings)
    rows = len(whole.buffer.all_env_ids) * whole.buffer.num_steps // 2
    with pytest.warns(UserWarning, match=r"over \d+ chunks") as caught:
        split = updated(settings, rows=rows // 3)
    assert split.accumulator.num_chunks == 4
    assert [str(w.message).split(" chunks")[0][-1] for w in caught] == ["2", "4"]
    for one, other in zip(whole.network.parameters(), split.network.parameters(), strict=True):
        np.testing.assert_allclose(one.detach(), other.detach(), rtol=1e-3, atol=1e-4)


class Numbers(list):
    """A minibatch of numbers."""

    def rows(self, start, stop):
        return Numbers(self[start:stop])


@pytest.mark.parametrize("num_chunks", [1, 2, 3])
def test_loss_and_gradient_are_means_over_all_rows(num_chunks):
    weight = torch.nn.Parameter(torch.tensor(2.0))
    accumulator = GradientAccumulator()
    accumulator.num_chunks = num_chunks
    numbers = Numbers([1.0, 2.0, 3.0, 4.0, 10.0])
    loss = accumulator.backward(
        numbers, lambda rows: (weight * torch.tensor(rows)).mean(), torch.optim.SGD([weight], lr=1.0)
    )
    assert float(loss) == pytest.approx(8.0)
    assert float(weight.grad) == pytest.approx(4.0)


def test_the_number_of_chunks_is_part_of_the_state():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        split = updated(PPOSettings(), rows=8)
    other, _ = make_ppo(CartPole, PPOSettings())
    other.restore(split.state())
    assert other.accumulator.num_chunks == split.accumulator.num_chunks > 1


def test_a_single_sample_that_does_not_fit_raises_an_error_with_advice():
    raises = pytest.raises(TrainingError, match=r"use smaller networks .* or --device cpu")
    with pytest.warns(UserWarning, match="chunks"), raises:
        updated(PPOSettings(), rows=0)
