"""Deep Q-learning (Mnih et al. 2015): double, masked, over several steps, on many envs at once.

Learning goes on while steps come in: whenever `train_frequency` samples are new, the experience
lets the learner take `gradient_steps` steps, so their ratio is what the settings say whatever the
number of envs. Only allowed actions are taken, and only allowed actions count in what lies ahead.

How DQN learns: numbers that may be changed, and what they must keep to.

Rows of a replay as the networks want them: drawn at once for many gradient steps.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hundredfold.algorithms.actor_critic import Inputs, NetworkSettings
from hundredfold.algorithms.image_encoder import layout_of
from hundredfold.algorithms.minibatches import Report
from hundredfold.algorithms.policies import QPolicy, spread_epsilons
from hundredfold.algorithms.ppo import MAX_BAD_GRADIENTS
from hundredfold.algorithms.q_network import FlatAdam, HandGradients, QNetwork, flattened
from hundredfold.algorithms.weights import load_network, network_arrays
from hundredfold.core.batch import (
    Array,
    Arrays,
    EnvSpec,
    State,
    StepBatch,
    with_prefix,
    without_prefix,
)
from hundredfold.core.errors import SettingsError, TrainingError
from hundredfold.rollout.replay_buffer import ReplayBuffer, row_bytes
from hundredfold.rollout.rollout_buffer import ActionSample, RolloutSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class DQNSettings:
    """How DQN learns from its replay."""

    learning_rate: float = 2.3e-3
    """Step size of Adam."""
    gamma: float = 0.99
    """Discount per step."""
    batch_size: int = 64
    """Samples per gradient step."""
    train_frequency: int = 256
    """Samples between two bouts of learning; all envs together."""
    gradient_steps: int = 128
    """Gradient steps per bout; divided by train_frequency: gradient steps per sample."""
    learning_starts: int = 1_000
    """Samples that are gathered before the first bout."""
    replay_size: int = 100_000
    """Samples to keep."""
    replay_memory_gb: float = 0.0
    """Keep fewer samples if they would take more than this many GB of memory; 0: no limit."""
    save_replay: bool = True
    """Write the replay into checkpoints; without it a resumed run gathers a new one first."""
    return_steps: int = 3
    """Rewards that are summed up before the network's own estimate takes over."""
    double_q: bool = True
    """Let one network choose the next action and the other value it (van Hasselt et al. 2016)."""
    dueling: bool = False
    """Value the situation and the actions' differences apart (Wang et al. 2016)."""
    target_interval: int = 128
    """Gradient steps between two moves of the target network."""
    target_rate: float = 1.0
    """How far the target network moves towards the learning one (1: all the way)."""
    loss: Literal["huber", "mse"] = "huber"
    """Huber grows linearly for errors beyond 1, mse with their square."""
    max_gradient_norm: float = 10.0
    """Gradients longer than this are shortened to it."""
    exploration_start: float = 1.0
    """Share of random actions at the start."""
    exploration_end: float = 0.04
    """Share of random actions once it has fallen."""
    exploration_fraction: float = 0.16
    """Share of the run over which it falls."""
    exploration_spread: float = 0.0
    """Let env i of n explore with epsilon ** (1 + spread * i/(n-1)); 7 with exploration_end 0.4 is
    the spread of Ape-X; 0: all alike."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_gradient_norm", "target_rate"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"{name} must be above 0, got {getattr(self, name)}.")
        for name in ("replay_memory_gb", "exploration_spread", "learning_starts"):
            if not getattr(self, name) >= 0:
                raise SettingsError(f"{name} must not be negative, got {getattr(self, name)}.")
        for name in (
            "gamma", "target_rate", "exploration_start", "exploration_end", "exploration_fraction",
        ):  # fmt: skip
            if not 0 <= getattr(self, name) <= 1:
                raise SettingsError(f"{name} must lie in 0..1, got {getattr(self, name)}.")
        for name in (
            "batch_size", "train_frequency", "gradient_steps", "replay_size", "return_steps",
            "target_interval",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1, got {getattr(self, name)}.")

    def rows_per_env(self, spec: EnvSpec, num_envs: int) -> int:
        """Rows of each env's ring; refuses a replay that holds too little to learn from."""
        size = self.replay_size
        if self.replay_memory_gb:
            size = min(size, int(self.replay_memory_gb * 1e9) // row_bytes(spec))
        # One row more than it may look back on: what was seen last.
        rows = -(-size // num_envs) + 1
        least = max(self.learning_starts, num_envs * (self.return_steps + 1), self.batch_size)
        if size < least:
            limit = f" (of {self.replay_memory_gb:g} GB)" if size < self.replay_size else ""
            raise SettingsError(
                f"a replay of {size} samples{limit} is too small for {num_envs} envs, "
                f"return_steps {self.return_steps}, learning_starts {self.learning_starts} and "
                f"batch_size {self.batch_size}; it needs room for at least {least}."
            )
        return rows


class Minibatch(NamedTuple):
    """Rows of one gradient step."""

    inputs: Tensor  # (2 x batch, width) what was seen, then what was seen at the end
    actions: Tensor  # (batch, 1)
    returns: Tensor  # (batch, 1)
    discounts: Tensor  # (batch, 1)
    mask: Tensor | None  # (batch, actions) of what was seen at the end


@dataclass(slots=True)
class Minibatches:
    """Rows of several gradient steps."""

    inputs: Tensor  # (steps, 2, batch, width)
    actions: Tensor  # (steps, batch, 1)
    returns: Tensor  # (steps, batch, 1)
    discounts: Tensor  # (steps, batch, 1)
    mask: Tensor | None  # (steps, batch, actions)

    def one_by_one(self) -> Iterator[Minibatch]:
        """Each gradient step's own part, without copying."""
        masks = [None] * len(self.actions) if self.mask is None else self.mask.unbind()
        for inputs, actions, returns, discounts, mask in zip(
            self.inputs.flatten(1, 2).unbind(),
            self.actions.unbind(),
            self.returns.unbind(),
            self.discounts.unbind(),
            masks,
            strict=True,
        ):
            yield Minibatch(inputs, actions, returns, discounts, mask)


def drawn_from(
    replay: ReplayBuffer, steps: int, batch_size: int, inputs: Inputs, device: torch.device
) -> Minibatches:
    """Samples for so many gradient steps; their inputs are scaled, after the scale has learned."""
    shape = (steps, batch_size)
    rows, ends = replay.sample(steps * batch_size)
    both = np.stack([rows.reshape(shape), ends.reshape(shape)], axis=1).reshape(-1)

    def picked(array: Array, index: Array) -> Tensor:
        found = torch.from_numpy(array).index_select(0, torch.from_numpy(index))
        return found.to(device)

    observation = {name: picked(array, both) for name, array in replay.observation.items()}
    inputs.learn_scale(observation)
    return Minibatches(
        inputs(observation).reshape(steps, 2, batch_size, -1),
        picked(replay.actions, rows).long().reshape(*shape, 1),
        picked(replay.returns, rows).reshape(*shape, 1),
        picked(replay.discounts, rows).reshape(*shape, 1),
        None if replay.mask is None else picked(replay.mask, ends).reshape(*shape, -1),
    )


COUNTERS: Final = ("samples", "new_samples", "gradient_steps")

# Minibatches that are drawn at once: bounds memory.
MAX_DRAWN: Final = 128


class LearningExperience:
    """Keeps steps in a replay, and tells the learner of each batch as soon as it is in."""

    def __init__(self, replay: ReplayBuffer, after_batch: Callable[[int], None]) -> None:
        self.replay = replay
        self.after_batch = after_batch

    def add_actions(self, batch: StepBatch, choice: ActionSample) -> None:
        self.replay.add_actions(batch, choice)

    def add_transitions(self, batch: StepBatch) -> None:
        self.replay.add_transitions(batch)
        self.after_batch(len(batch))

    def truncate_here(self, batch: StepBatch) -> None:
        """Note that the episodes of these rows ended after their last step, unseen by us."""
        self.replay.truncate_here(batch)


class DQN:
    """Turns a replay into a better policy, a few gradient steps at a time."""

    def __init__(
        self,
        spec: EnvSpec,
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
        self.replay = ReplayBuffer(
            spec,
            num_envs=rollout.num_envs,
            rows_per_env=settings.rows_per_env(spec, rollout.num_envs),
            n_step=settings.return_steps,
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
            self.replay.clear()
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
                f"{self.gradient_steps}); check the env's rewards and observations for huge "
                "numbers, or lower the learning rate."
            )

    def _move_target(self, share: float) -> None:
        self.target_weights.lerp_(self.gradients.weights, share)


def refuse_what_dqn_cannot(spec: EnvSpec) -> None:
    """Envs whose actions it cannot value one by one, or that it cannot see."""
    if spec.continuous_action is not None:
        raise SettingsError(
            f"an action of {spec.name} is made of numbers and DQN values single choices; use PPO."
        )
    if len(spec.action_nvec) > 1:
        raise SettingsError(
            f"an action of {spec.name} has {len(spec.action_nvec)} parts and DQN values single "
            "choices; use PPO."
        )
    if any(layout_of(array) for array in spec.observation.values()):
        raise SettingsError(f"{spec.name} shows pictures, which DQN cannot look at; use PPO.")
