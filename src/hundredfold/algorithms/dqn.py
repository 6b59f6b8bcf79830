"""Deep Q-learning (Mnih et al. 2015): double, dueling, masked, n-step, on many envs at once.

DQN learns while transitions arrive: after every `train_frequency` samples the buffer lets the
learner take `gradient_steps` gradient steps, so their ratio does not depend on the number of envs.
Only allowed actions are taken, and only allowed actions count in bootstrapped targets.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Literal, NamedTuple

import numpy as np
import torch
from annotated_types import Interval
from torch import Tensor
from torch.nn import functional as F

from hundredfold.algorithms.actor_critic import InputLayer, NetworkSettings
from hundredfold.algorithms.image_encoder import image_layout
from hundredfold.algorithms.minibatches import MetricMeans
from hundredfold.algorithms.policies import QPolicy, apex_epsilons
from hundredfold.algorithms.ppo import MAX_SKIPPED_GRADIENTS
from hundredfold.algorithms.q_network import FlatAdam, ManualGradients, QNetwork, flatten_parameters
from hundredfold.algorithms.weights import load_network, network_arrays
from hundredfold.core.batch import Array, Arrays, EnvSpec, State, StepBatch, with_prefix, without_prefix
from hundredfold.core.bounds import AtLeastOne, Fraction, NonNegative, NonNegativeInt, Positive, check_bounds
from hundredfold.core.errors import SettingsError, TrainingError
from hundredfold.rollout.replay_buffer import ReplayBuffer, row_bytes
from hundredfold.rollout.rollout_buffer import ActionSample, RolloutSettings

COUNTERS: Final = ("samples", "new_samples", "gradient_steps")

# Minibatches that are sampled at once: bounds memory.
MAX_SAMPLED_BATCHES: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class DQNSettings:
    """Hyperparameters of DQN."""

    learning_rate: Positive = 2.3e-3
    """Adam learning rate."""
    gamma: Fraction = 0.99
    """Discount factor per step."""
    batch_size: AtLeastOne = 64
    """Samples per gradient step."""
    train_frequency: AtLeastOne = 256
    """Samples, of all envs together, between two training phases."""
    gradient_steps: AtLeastOne = 128
    """Gradient steps per training phase."""
    learning_starts: NonNegativeInt = 1_000
    """Samples that are collected before the first training phase."""
    replay_size: AtLeastOne = 100_000
    """Capacity of the replay buffer in samples."""
    replay_memory_gb: Annotated[float, Interval(ge=0, lt=math.inf)] = 0.0
    """Memory limit of the replay buffer in GB; 0 sets no limit."""
    save_replay: bool = True
    """Save the replay buffer in checkpoints; without it a resumed run fills a new one first."""
    n_step: AtLeastOne = 3
    """Rewards summed before bootstrapping (n-step returns)."""
    double_q: bool = True
    """Double Q-learning (van Hasselt et al. 2016)."""
    dueling: bool = False
    """Dueling network: separate state value and advantages (Wang et al. 2016)."""
    target_interval: AtLeastOne = 128
    """Gradient steps between two updates of the target network."""
    tau: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Target network update rate: 1 copies the weights, less averages them (Polyak)."""
    loss: Literal["huber", "mse"] = "huber"
    """Loss of the TD error."""
    max_gradient_norm: Positive = 10.0
    """Global gradient-norm clipping threshold."""
    exploration_start: Fraction = 1.0
    """Initial epsilon: probability of a random action."""
    exploration_end: Fraction = 0.04
    """Final epsilon."""
    exploration_fraction: Fraction = 0.16
    """Fraction of the run over which epsilon falls linearly."""
    epsilon_alpha: NonNegative = 0.0
    """Different epsilons per env as in Ape-X: env i of n explores with
    epsilon ** (1 + alpha * i / (n - 1)). Ape-X uses 7 with exploration_end 0.4; 0: all alike."""

    def __post_init__(self) -> None:
        check_bounds(self)

    def rows_per_env(self, spec: EnvSpec, num_envs: int) -> int:
        """Rows of each env's ring buffer; raises when the buffer is too small to learn from."""
        size = self.replay_size
        if self.replay_memory_gb:
            size = min(size, int(self.replay_memory_gb * 1e9) // row_bytes(spec))
        # One more row for the newest observation.
        rows = -(-size // num_envs) + 1
        needed = max(self.learning_starts, num_envs * (self.n_step + 1), self.batch_size)
        if size < needed:
            limit = f" (of {self.replay_memory_gb:g} GB)" if size < self.replay_size else ""
            raise SettingsError(
                f"a replay buffer of {size} samples{limit} is too small for {num_envs} envs, "
                f"n_step {self.n_step}, learning_starts {self.learning_starts} and "
                f"batch_size {self.batch_size}; it needs at least {needed}."
            )
        return rows


class DQN:
    """DQN learner: online and target networks, their policy, a replay buffer and an optimiser.

    Args:
        spec: Observation and action spec of the env; one discrete action, no images.
        settings: Hyperparameters.
        network: Sizes of the Q-network.
        rollout: Number of envs and steps per epoch.
        num_updates: Updates of the whole run, for the exploration schedule.
        seed: Seed of initial weights and replay sampling.
        device: Device of the networks.
    """

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
        check_supported(spec)
        self.spec, self.settings, self.device = spec, settings, device
        self.num_envs = rollout.num_envs
        self.run_samples = num_updates * rollout.policy_update_interval * rollout.samples_per_epoch
        self.samples = 0
        self.new_samples = 0  # since the last training phase
        self.gradient_steps = 0
        self.skipped_gradients = self.skipped_in_a_row = 0
        self.learning_seconds = 0.0  # spent learning while collecting
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % 2**63)
            self.network = QNetwork(spec, network, settings.dueling).to(device)
            self.target = QNetwork(spec, network, settings.dueling).to(device)
        self.gradients = ManualGradients(self.network, network.activation)
        self.target_weights, _ = flatten_parameters(self.target)
        # Both networks normalise inputs by the same statistics.
        self.target.inputs = self.network.inputs
        self._update_target(1.0)
        self.policy = QPolicy(self.network, device, rollout.num_envs)
        self.replay = ReplayBuffer(
            spec,
            num_envs=rollout.num_envs,
            rows_per_env=settings.rows_per_env(spec, rollout.num_envs),
            n_step=settings.n_step,
            gamma=settings.gamma,
            seed=seed,
        )
        self.buffer = TrainingReplayBuffer(self.replay, self._after_batch)
        self.optimiser = FlatAdam(self.gradients.weights, self.gradients.gradient, settings.learning_rate)
        self.metrics = MetricMeans()
        self._set_epsilons()

    def update(self) -> dict[str, float]:
        """End of an epoch: all training phases that were due are done.

        Returns:
            Losses and diagnostics of the epoch.
        """
        metrics = {
            **self.metrics.means(),
            "gradient_steps": float(self.gradient_steps),
            "exploration": float(self.policy.epsilons.mean()),
            "replay_samples": float(len(self.replay)),
            "skipped_gradients": float(self.skipped_gradients),
        }
        self.metrics = MetricMeans()
        self.skipped_gradients = 0
        return metrics

    # -- while collecting -----------------------------------------------------------------------

    def _after_batch(self, num_rows: int) -> None:
        """Count new samples and take the gradient steps that are due."""
        self.samples += num_rows
        self._set_epsilons()
        if len(self.replay) < max(self.settings.learning_starts, 1):
            return
        self.new_samples += num_rows
        phases, self.new_samples = divmod(self.new_samples, self.settings.train_frequency)
        steps = phases * self.settings.gradient_steps
        start = time.perf_counter()
        for done in range(0, steps, MAX_SAMPLED_BATCHES):
            self._train(min(steps - done, MAX_SAMPLED_BATCHES))
        self.learning_seconds += time.perf_counter() - start

    @property
    def epsilon(self) -> float:
        """Present epsilon of the schedule."""
        settings = self.settings
        duration = settings.exploration_fraction * self.run_samples
        progress = min(self.samples / duration, 1.0) if duration else 1.0
        return settings.exploration_start + progress * (settings.exploration_end - settings.exploration_start)

    def _set_epsilons(self) -> None:
        self.policy.epsilons = apex_epsilons(self.epsilon, self.settings.epsilon_alpha, self.num_envs)

    # -- gradient steps -------------------------------------------------------------------------

    @torch.no_grad()
    def _train(self, steps: int) -> None:
        """Several gradient steps on minibatches that are sampled at once."""
        sampled = sample_minibatches(self.replay, steps, self.settings.batch_size, self.network.inputs, self.device)
        batches = list(sampled.one_by_one())
        errors = torch.empty_like(sampled.returns)
        values = torch.empty_like(sampled.returns)
        interval = self.settings.target_interval
        step = 0
        while step < steps:
            # Until its next update the target network values all minibatches in one pass.
            stop = min(steps, step + interval - self.gradient_steps % interval)
            target_values = self.target.values(sampled.inputs[step:stop, 1].flatten(0, 1))
            per_step = target_values.reshape(stop - step, -1, target_values.shape[1])
            for batch_target_values in per_step.unbind():
                self._gradient_step(batches[step], batch_target_values, errors[step], values[step])
                step += 1
            if self.gradient_steps % interval == 0:
                self._update_target(self.settings.tau)
        loss = F.huber_loss if self.settings.loss == "huber" else F.mse_loss
        self.metrics.add(q_loss=loss(errors, torch.zeros_like(errors)), q_value=values.mean())

    def _gradient_step(self, batch: Minibatch, target_values: Tensor, td_error: Tensor, value: Tensor) -> None:
        """One gradient step on the TD error; fills in the samples' TD errors and values."""
        settings, size = self.settings, len(target_values)
        values = self.gradients.forward(batch.inputs if settings.double_q else batch.inputs[:size])
        # Double Q-learning: the online network selects the next action, the target values it.
        selecting = values[size:] if settings.double_q else target_values
        if batch.mask is not None:
            selecting = torch.where(batch.mask, selecting, -torch.inf)
        next_values = target_values.gather(1, selecting.argmax(dim=1, keepdim=True))
        targets = torch.addcmul(batch.returns, batch.discounts, next_values)
        torch.gather(values[:size], 1, batch.actions, out=value)
        torch.sub(value, targets, out=td_error)
        # Derivative of the mean Huber or squared loss with respect to each sample's value.
        slope = td_error.clamp(-1.0, 1.0) if settings.loss == "huber" else td_error * 2.0
        gradient = torch.zeros_like(target_values).scatter_(1, batch.actions, slope.div_(size))
        self.gradients.backward(gradient)
        self._optimiser_step()

    def _optimiser_step(self) -> None:
        """Adam step with gradient clipping; skipped when the gradient is not finite."""
        self.gradient_steps += 1
        if self.optimiser.clipped_step(self.settings.max_gradient_norm):
            self.skipped_in_a_row = 0
            return
        self.skipped_gradients += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row >= MAX_SKIPPED_GRADIENTS:
            raise_not_finite(self.skipped_in_a_row, self.gradient_steps)

    def _update_target(self, tau: float) -> None:
        self.target_weights.lerp_(self.gradients.weights, tau)

    # -- snapshots ------------------------------------------------------------------------------

    def state(self) -> Arrays:
        """Weights, optimiser, counters and, with save_replay, the replay buffer."""
        replay = self.replay.state() if self.settings.save_replay else {}
        return {
            **{name: np.array(getattr(self, name)) for name in COUNTERS},
            "rows_sampled": np.array(self.policy.rows_sampled),
            **with_prefix("network", network_arrays(self.network)),
            **with_prefix("target", network_arrays(self.target)),
            **with_prefix("optimiser", self.optimiser.state()),
            **with_prefix("replay", replay),
        }

    def restore(self, state: State) -> None:
        """Continue from a snapshot."""
        for name in COUNTERS:
            setattr(self, name, int(state[name]))
        self.policy.rows_sampled = int(state["rows_sampled"])
        load_network(self.network, without_prefix("network", state))
        load_network(self.target, without_prefix("target", state))
        self.optimiser.restore(without_prefix("optimiser", state))
        replay = without_prefix("replay", state)
        if replay:
            self.replay.restore(replay)
        else:
            self.replay.clear()
            warnings.warn(
                "this run's checkpoints have no replay buffer (save_replay is off): learning "
                f"continues after {self.settings.learning_starts} new samples.",
                stacklevel=2,
            )
        self._set_epsilons()

    def load_weights(self, weights: State) -> None:
        """Start from the weights of another run; replay buffer and schedules start anew."""
        load_network(self.network, weights)
        self._update_target(1.0)


class TrainingReplayBuffer:
    """Stores transitions in a replay buffer and calls the learner after each batch."""

    def __init__(self, replay: ReplayBuffer, after_batch: Callable[[int], None]) -> None:
        self.replay = replay
        self.after_batch = after_batch

    def add_actions(self, batch: StepBatch, sample: ActionSample) -> None:
        self.replay.add_actions(batch, sample)

    def add_transitions(self, batch: StepBatch) -> None:
        self.replay.add_transitions(batch)
        self.after_batch(len(batch))

    def truncate_here(self, batch: StepBatch) -> None:
        """Mark the episodes of these rows as truncated after their last stored step."""
        self.replay.truncate_here(batch)


class Minibatch(NamedTuple):
    """Samples of one gradient step."""

    inputs: Tensor  # (2 x batch, width) observations, then bootstrap observations
    actions: Tensor  # (batch, 1)
    returns: Tensor  # (batch, 1) n-step returns
    discounts: Tensor  # (batch, 1) of the bootstrapped value
    mask: Tensor | None  # (batch, actions) of the bootstrap observations


@dataclass(slots=True)
class Minibatches:
    """Samples of several gradient steps."""

    inputs: Tensor  # (steps, 2, batch, width)
    actions: Tensor  # (steps, batch, 1)
    returns: Tensor  # (steps, batch, 1)
    discounts: Tensor  # (steps, batch, 1)
    mask: Tensor | None  # (steps, batch, actions)

    def one_by_one(self) -> Iterator[Minibatch]:
        """Each gradient step's minibatch, as views."""
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


def sample_minibatches(
    replay: ReplayBuffer, steps: int, batch_size: int, inputs: InputLayer, device: torch.device
) -> Minibatches:
    """Sample minibatches of several gradient steps at once.

    Args:
        replay: Where to sample from.
        steps: Number of minibatches.
        batch_size: Samples of each.
        inputs: Flattens and normalises observations, after its statistics were updated with them.
        device: Where the tensors go.
    """
    shape = (steps, batch_size)
    rows, ends = replay.sample(steps * batch_size)
    both = np.stack([rows.reshape(shape), ends.reshape(shape)], axis=1).reshape(-1)

    def select(array: Array, index: Array) -> Tensor:
        return torch.from_numpy(array).index_select(0, torch.from_numpy(index)).to(device)

    observation = {name: select(array, both) for name, array in replay.observation.items()}
    inputs.update_stats(observation)
    return Minibatches(
        inputs(observation).reshape(steps, 2, batch_size, -1),
        select(replay.actions, rows).long().reshape(*shape, 1),
        select(replay.returns, rows).reshape(*shape, 1),
        select(replay.discounts, rows).reshape(*shape, 1),
        None if replay.mask is None else select(replay.mask, ends).reshape(*shape, -1),
    )


def check_supported(spec: EnvSpec, algorithm: str = "DQN") -> None:
    """Raise a SettingsError for envs that Q-learning cannot train on.

    Args:
        spec: Observation and action spec of the env.
        algorithm: Name of the algorithm, for the message.
    """
    if spec.continuous_action is not None:
        raise SettingsError(f"{spec.name} has continuous actions; {algorithm} needs one discrete action. Use PPO.")
    if len(spec.action_nvec) > 1:
        raise SettingsError(
            f"actions of {spec.name} have {len(spec.action_nvec)} dimensions; {algorithm} needs one discrete action. "
            "Use PPO."
        )
    if any(image_layout(array) for array in spec.observation.values()):
        raise SettingsError(f"{spec.name} observes images, which {algorithm} does not support. Use PPO.")


def raise_not_finite(in_a_row: int, gradient_step: int) -> None:
    """Raise a TrainingError after so many gradients in a row that were not finite."""
    raise TrainingError(
        f"gradients were not finite {in_a_row} times in a row (gradient step {gradient_step}); check the env's "
        "rewards and observations for huge numbers, or lower the learning rate."
    )
