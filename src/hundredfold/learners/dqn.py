"""Deep Q-learning (Mnih et al. 2015): double, masked, over several steps, on many envs at once.

Learning goes on while steps come in: whenever `train_frequency` samples are new, the experience
lets the learner take `gradient_steps` steps, so their ratio is what the settings say whatever the
number of envs. Only allowed actions are taken, and only allowed actions count in what lies ahead.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hundredfold.core.batch import (
    Arrays,
    State,
    StepBatch,
    WorldSpec,
    with_prefix,
    without_prefix,
)
from hundredfold.core.errors import SettingsError, TrainingError
from hundredfold.experience.replay import Replay
from hundredfold.experience.rollout import Choice, RolloutSettings
from hundredfold.learners.convolution import layout_of
from hundredfold.learners.dqn_settings import DQNSettings
from hundredfold.learners.flat_adam import FlatAdam
from hundredfold.learners.minibatches import Minibatch, drawn_from
from hundredfold.learners.networks import NetworkSettings
from hundredfold.learners.ppo import MAX_BAD_GRADIENTS
from hundredfold.learners.q_network import HandGradients, QNetwork, flattened
from hundredfold.learners.q_policy import QPolicy, spread_epsilons
from hundredfold.learners.samples import Report
from hundredfold.learners.weights import load_network, network_arrays

COUNTERS: Final = ("samples", "new_samples", "gradient_steps")

# Minibatches that are drawn at once: bounds memory.
MAX_DRAWN: Final = 128


class LearningExperience:
    """Keeps steps in a replay, and tells the learner of each batch as soon as it is in."""

    def __init__(self, replay: Replay, after_batch: Callable[[int], None]) -> None:
        self.replay = replay
        self.after_batch = after_batch

    def add_choice(self, batch: StepBatch, choice: Choice) -> None:
        self.replay.add_choice(batch, choice)

    def add_outcome(self, batch: StepBatch) -> None:
        self.replay.add_outcome(batch)
        self.after_batch(len(batch))

    def cut_off_here(self, batch: StepBatch) -> None:
        """Note that the episodes of these rows ended after their last step, unseen by us."""
        self.replay.cut_off_here(batch)


class DQN:
    """Turns a replay into a better policy, a few gradient steps at a time."""

    def __init__(
        self,
        spec: WorldSpec,
        *,
        settings: DQNSettings,
        network: NetworkSettings,
        rollout: RolloutSettings,
        num_updates: int,
        seed: int,
        device: torch.device,
    ) -> None:
        refuse_what_dqn_cannot(spec)
        self.spec, self.settings, self.device = spec, settings, device
        self.num_envs = rollout.num_envs
        self.run_samples = num_updates * rollout.policy_update_interval * rollout.samples_per_epoch
        self.samples = 0
        self.new_samples = 0  # since the last bout of learning
        self.gradient_steps = 0
        self.skipped_gradients = self.skipped_in_a_row = 0
        self.learning_seconds = 0.0  # a part of collecting, since the beginning
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % 2**63)
            self.network = QNetwork(spec, network, settings.dueling).to(device)
            self.target = QNetwork(spec, network, settings.dueling).to(device)
        self.gradients = HandGradients(self.network, network.activation)
        self.target_weights, _ = flattened(self.target)
        # One scale of inputs for both.
        self.target.inputs = self.network.inputs
        self._move_target(1.0)
        self.policy = QPolicy(self.network, device, rollout.num_envs)
        self.replay = Replay(
            spec,
            num_envs=rollout.num_envs,
            rows_per_env=settings.rows_per_env(spec, rollout.num_envs),
            return_steps=settings.return_steps,
            gamma=settings.gamma,
            seed=seed,
        )
        self.experience = LearningExperience(self.replay, self._after_batch)
        self.optimiser = FlatAdam(
            self.gradients.weights, self.gradients.gradient, settings.learning_rate
        )
        self.report = Report()
        self._follow_epsilon()

    def update(self) -> dict[str, float]:
        """The epoch is over and all learning it had due is done; returns what happened."""
        found = {
            **self.report.means(),
            "gradient_steps": float(self.gradient_steps),
            "exploration": float(self.policy.epsilons.mean()),
            "replay_samples": float(len(self.replay)),
            "skipped_gradients": float(self.skipped_gradients),
        }
        self.report = Report()
        self.skipped_gradients = 0
        return found

    def state(self) -> Arrays:
        """Weights, optimiser, counters and, unless settings say otherwise, the replay."""
        replay = self.replay.state() if self.settings.save_replay else {}
        return {
            **{name: np.array(getattr(self, name)) for name in COUNTERS},
            "rows_chosen": np.array(self.policy.rows_chosen),
            **with_prefix("network", network_arrays(self.network)),
            **with_prefix("target", network_arrays(self.target)),
            **with_prefix("optimiser", self.optimiser.state()),
            **with_prefix("replay", replay),
        }

    def restore(self, state: State) -> None:
        for name in COUNTERS:
            setattr(self, name, int(state[name]))
        self.policy.rows_chosen = int(state["rows_chosen"])
        load_network(self.network, without_prefix("network", state))
        load_network(self.target, without_prefix("target", state))
        self.optimiser.restore(without_prefix("optimiser", state))
        replay = without_prefix("replay", state)
        if replay:
            self.replay.restore(replay)
        else:
            self.replay.forget()
            warnings.warn(
                "this run's checkpoints have no replay (save_replay is off): learning goes on "
                f"when {self.settings.learning_starts} new samples are gathered.",
                stacklevel=2,
            )
        self._follow_epsilon()

    # -- while collecting -----------------------------------------------------------------------

    def _after_batch(self, rows: int) -> None:
        """Count what came in, and take the gradient steps that are due."""
        self.samples += rows
        self._follow_epsilon()
        if len(self.replay) < max(self.settings.learning_starts, 1):
            return
        self.new_samples += rows
        bouts, self.new_samples = divmod(self.new_samples, self.settings.train_frequency)
        steps = bouts * self.settings.gradient_steps
        begin = time.perf_counter()
        for done in range(0, steps, MAX_DRAWN):
            self._learn(min(steps - done, MAX_DRAWN))
        self.learning_seconds += time.perf_counter() - begin

    @property
    def epsilon(self) -> float:
        """How often the most curious env explores by now."""
        settings = self.settings
        fall = settings.exploration_fraction * self.run_samples
        fallen = min(self.samples / fall, 1.0) if fall else 1.0
        return settings.exploration_start + fallen * (
            settings.exploration_end - settings.exploration_start
        )

    def _follow_epsilon(self) -> None:
        self.policy.epsilons = spread_epsilons(
            self.epsilon, self.settings.exploration_spread, self.num_envs
        )

    # -- learning -------------------------------------------------------------------------------

    @torch.no_grad()
    def _learn(self, steps: int) -> None:
        """So many gradient steps, on rows that are drawn at once."""
        drawn = drawn_from(
            self.replay, steps, self.settings.batch_size, self.network.inputs, self.device
        )
        batches = list(drawn.one_by_one())
        errors = torch.empty_like(drawn.returns)
        values = torch.empty_like(drawn.returns)
        interval = self.settings.target_interval
        step = 0
        while step < steps:
            # Until it moves again, the target network values all that is drawn in one pass.
            stop = min(steps, step + interval - self.gradient_steps % interval)
            future = self.target.values(drawn.inputs[step:stop, 1].flatten(0, 1))
            for ahead in future.reshape(stop - step, -1, future.shape[1]).unbind():
                self._descend(batches[step], ahead, errors[step], values[step])
                step += 1
            if self.gradient_steps % interval == 0:
                self._move_target(self.settings.target_rate)
        loss = F.huber_loss if self.settings.loss == "huber" else F.mse_loss
        self.report.add(q_loss=loss(errors, torch.zeros_like(errors)), q_value=values.mean())

    def _descend(self, batch: Minibatch, future: Tensor, error: Tensor, value: Tensor) -> None:
        """One gradient step; fills in the samples' errors and values."""
        settings, size = self.settings, len(future)
        values = self.gradients.forward(batch.inputs if settings.double_q else batch.inputs[:size])
        judge = values[size:] if settings.double_q else future
        if batch.mask is not None:
            judge = torch.where(batch.mask, judge, -torch.inf)
        next_values = future.gather(1, judge.argmax(dim=1, keepdim=True))
        targets = torch.addcmul(batch.returns, batch.discounts, next_values)
        torch.gather(values[:size], 1, batch.actions, out=value)
        torch.sub(value, targets, out=error)
        # How the mean of the Huber loss, or of the squares, changes with each sample's value.
        slope = error.clamp(-1.0, 1.0) if settings.loss == "huber" else error * 2.0
        slopes = torch.zeros_like(future).scatter_(1, batch.actions, slope.div_(size))
        self.gradients.backward(slopes)
        self._step()

    def _step(self) -> None:
        """Move the weights along the gradient, unless it is not finite."""
        self.gradient_steps += 1
        gradient, longest = self.gradients.gradient, self.settings.max_gradient_norm
        norm = float(torch.linalg.vector_norm(gradient))
        if math.isfinite(norm):
            if norm > longest:
                gradient *= longest / norm
            self.optimiser.step()
            self.skipped_in_a_row = 0
            return
        self.skipped_gradients += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row >= MAX_BAD_GRADIENTS:
            raise TrainingError(
                f"gradients were not finite {self.skipped_in_a_row} times in a row (gradient step "
                f"{self.gradient_steps}); check the world's rewards and observations for huge "
                "numbers, or lower the learning rate."
            )

    def _move_target(self, share: float) -> None:
        self.target_weights.lerp_(self.gradients.weights, share)


def refuse_what_dqn_cannot(spec: WorldSpec) -> None:
    """Worlds whose actions it cannot value one by one, or that it cannot see."""
    if spec.action_box is not None:
        raise SettingsError(
            f"an action of {spec.name} is made of numbers and DQN values single choices; use PPO."
        )
    if len(spec.choices) > 1:
        raise SettingsError(
            f"an action of {spec.name} has {len(spec.choices)} parts and DQN values single "
            "choices; use PPO."
        )
    if any(layout_of(array) for array in spec.observation.values()):
        raise SettingsError(f"{spec.name} shows pictures, which DQN cannot look at; use PPO.")
