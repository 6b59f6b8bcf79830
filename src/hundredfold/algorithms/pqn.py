"""Parallelised Q-learning (PQN, Gallici et al. 2025): no replay buffer, no target network, many envs.

`PQN.update` shows the algorithm in order: Q(lambda) targets of a full rollout, minibatches, gradient
steps on the TD error. Fresh samples of many envs replace the replay buffer, and layer normalisation
in every hidden layer keeps learning stable without a target network. Values are learned normalised
(PopArt), so that the learning rate does not depend on the scale of rewards. Only allowed actions
are taken, and only allowed actions count in bootstrapped targets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hundredfold.algorithms.actor_critic import NetworkSettings, tensors
from hundredfold.algorithms.dqn import check_supported, raise_not_finite
from hundredfold.algorithms.policies import QPolicy
from hundredfold.algorithms.ppo import MAX_SKIPPED_GRADIENTS, SHUFFLE_STREAM, VALUE_CHUNK, mixed_mean_and_std
from hundredfold.algorithms.q_network import FlatAdam, ManualGradients, QNetwork
from hundredfold.algorithms.weights import load_network, network_arrays
from hundredfold.core import rng
from hundredfold.core.batch import Array, Arrays, BoolArray, EnvSpec, Float32Array, State, with_prefix, without_prefix
from hundredfold.core.bounds import AtLeastOne, Fraction, Positive, check_bounds
from hundredfold.rollout.gae import compute_gae
from hundredfold.rollout.rollout_buffer import RolloutBuffer, RolloutSettings

# Weight of the newest rollout in the running statistics of value targets.
VALUE_NORM_MOMENTUM: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PQNSettings:
    """Hyperparameters of PQN."""

    learning_rate: Positive = 1e-3
    """Adam learning rate at the start."""
    anneal_learning_rate: bool = True
    """Anneal the learning rate linearly to 0 over the run."""
    gamma: Fraction = 0.99
    """Discount factor per step."""
    q_lambda: Fraction = 0.95
    """Lambda of Q(lambda) targets: 0 bootstraps after one step, 1 at the end of the rollout."""
    update_epochs: AtLeastOne = 2
    """Passes over a rollout per update."""
    num_minibatches: AtLeastOne = 4
    """Minibatches per pass; each makes one gradient step."""
    max_gradient_norm: Positive = 10.0
    """Global gradient-norm clipping threshold."""
    exploration_start: Fraction = 1.0
    """Initial epsilon: probability of a random action."""
    exploration_end: Fraction = 0.05
    """Final epsilon."""
    exploration_fraction: Fraction = 0.2
    """Fraction of the run over which epsilon falls linearly."""

    def __post_init__(self) -> None:
        check_bounds(self)


class PQN:
    """PQN learner: a Q-network with layer normalisation, its policy, a rollout buffer and an optimiser.

    Args:
        spec: Observation and action spec of the env; one discrete action, no images.
        settings: Hyperparameters.
        network: Sizes of the Q-network.
        rollout: Number of envs and steps of one update.
        num_updates: Updates of the whole run, for exploration and annealing.
        seed: Seed of initial weights and minibatch order.
        device: Device of the network.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        settings: PQNSettings,
        network: NetworkSettings,
        rollout: RolloutSettings,
        num_updates: int,
        seed: int,
        device: torch.device,
    ) -> None:
        check_supported(spec, "PQN")
        self.spec, self.settings, self.device = spec, settings, device
        self.num_updates = num_updates
        self.updates = 0
        self.gradient_steps = 0
        self.skipped_gradients = self.skipped_in_a_row = 0
        self.learning_seconds = 0.0  # all learning takes place in `update`
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % 2**63)
            self.network = make_q_network(spec, network).to(device)
        self.gradients = ManualGradients(self.network, network.activation)
        self.optimiser = FlatAdam(self.gradients.weights, self.gradients.gradient, settings.learning_rate)
        self.policy = QPolicy(self.network, device, rollout.num_envs)
        num_steps = rollout.num_steps * rollout.policy_update_interval
        self.buffer = RolloutBuffer(spec, rollout.num_envs, num_steps, last_mask=True)
        self.shuffle_key = rng.spawn(rng.seed_key(seed), SHUFFLE_STREAM)
        self._set_epsilons()

    @torch.no_grad()
    def update(self) -> dict[str, float]:
        """Learn from the rollout once it is full.

        Returns:
            Losses and diagnostics, averaged over all samples; empty while the rollout fills.
        """
        if not self.buffer.full:
            return {}
        self.optimiser.learning_rate = self.learning_rate
        self.skipped_gradients = 0
        values: list[Tensor] = []
        targets: list[Tensor] = []
        observation = self._flat_observation()
        samples = self._compute_targets(self.network.inputs(observation))
        for epoch in range(self.settings.update_epochs):
            for batch in self._minibatches(samples, epoch):
                values.append(self._gradient_step(batch))
                targets.append(batch.targets)
        self.network.inputs.update_stats({name: rows[: len(samples.actions)] for name, rows in observation.items()})
        exploration = self.epsilon
        self.updates += 1
        self.buffer.clear()
        self._set_epsilons()
        return {
            **self._losses(torch.cat(values), torch.cat(targets)),
            "gradient_steps": float(self.gradient_steps),
            "exploration": exploration,
            "skipped_gradients": float(self.skipped_gradients),
        }

    # -- targets --------------------------------------------------------------------------------

    def _flat_observation(self) -> dict[str, Tensor]:
        """The rollout's observations as ((steps + 1) x envs, ...) rows."""
        return tensors(
            {name: array.reshape(-1, *array.shape[2:]) for name, array in self.buffer.observation.items()}, self.device
        )

    def _compute_targets(self, inputs: Tensor) -> Samples:
        """Q(lambda) targets of the whole rollout, from the values of the collecting weights.

        With the state value V = max Q over allowed actions, the target of a step is
        r + gamma * ((1 - lambda) * V' + lambda * the next step's target): GAE plus V.

        Args:
            inputs: ((steps + 1) x envs, width) inputs of all observations.
        """
        rollout, settings = self.buffer, self.settings
        shape = (rollout.num_steps + 1, rollout.num_envs)
        values = self._state_values(inputs, _flat_rows(rollout.observation_mask)).reshape(shape)
        next_values = values[1:].copy()
        next_values[rollout.terminated] = 0.0
        # Bootstrap truncated episodes from their final observation: the next row is a new episode.
        if rollout.truncations:
            steps, env_ids, final = rollout.all_truncations()
            # No env returns the mask of a final observation: the one before it stands for it.
            mask = None if rollout.mask is None else rollout.mask[steps, env_ids]
            final_inputs = self.network.inputs(tensors(final, self.device))
            next_values[steps, env_ids] = self._state_values(final_inputs, mask)
        advantages = compute_gae(
            rollout.rewards, values[:-1], next_values, rollout.ended, settings.gamma, settings.q_lambda
        )
        targets = advantages + values[:-1]
        self._update_value_norm(targets)
        targets = (targets - float(self.network.value_mean)) / float(self.network.value_std)

        def column(array: Array) -> Tensor:
            return torch.from_numpy(array.reshape(-1, 1)).to(self.device)

        return Samples(inputs[: targets.size], column(rollout.actions).long(), column(targets))

    def _update_value_norm(self, targets: Float32Array) -> None:
        """Fold a rollout's targets into the running mean and std of value targets."""
        weight = max(1.0 / (self.updates + 1), VALUE_NORM_MOMENTUM)
        mean, std = float(self.network.value_mean), float(self.network.value_std)
        # A new network's values mean nothing yet; those of another run's weights do.
        is_new = self.updates == 0 and (mean, std) == (0.0, 1.0)
        self.network.rescale_values(*mixed_mean_and_std(mean, std, targets, weight), keep_values=not is_new)

    @torch.no_grad()
    def _state_values(self, inputs: Tensor, mask: BoolArray | None) -> Float32Array:
        """(rows,) highest value of the allowed actions, in chunks that bound memory."""
        values = np.empty(len(inputs), np.float32)
        for start in range(0, len(inputs), VALUE_CHUNK):
            rows = slice(start, start + VALUE_CHUNK)
            q_values = self.network.values(inputs[rows]).cpu()
            if mask is not None:
                q_values = torch.where(torch.from_numpy(mask[rows]), q_values, -torch.inf)
            values[rows] = q_values.amax(dim=1).numpy()
        return values

    # -- gradient steps -------------------------------------------------------------------------

    def _minibatches(self, samples: Samples, epoch: int) -> Iterator[Samples]:
        """Shuffled minibatches; their order depends on seed, update and epoch alone."""
        num_rows = len(samples.actions)
        key = rng.spawn(rng.spawn(self.shuffle_key, self.updates), epoch)
        order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(int(key >> np.uint64(1))))
        size = -(-num_rows // self.settings.num_minibatches)
        shuffled = [part.index_select(0, order.to(self.device)) for part in samples]
        for start in range(0, num_rows, size):
            yield Samples(*(part[start : start + size] for part in shuffled))

    def _gradient_step(self, batch: Samples) -> Tensor:
        """One gradient step on the mean Huber loss of the TD errors.

        Returns:
            (rows, 1) normalised values of the actions taken, before the step.
        """
        q_values = self.gradients.forward(batch.inputs)
        values = q_values.gather(1, batch.actions)
        slope = (values - batch.targets).clamp_(-1.0, 1.0).div_(len(values))
        self.gradients.backward(torch.zeros_like(q_values).scatter_(1, batch.actions, slope))
        self.gradient_steps += 1
        if self.optimiser.clipped_step(self.settings.max_gradient_norm):
            self.skipped_in_a_row = 0
            return values
        self.skipped_gradients += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row >= MAX_SKIPPED_GRADIENTS:
            raise_not_finite(self.skipped_in_a_row, self.gradient_steps)
        return values

    def _losses(self, values: Tensor, targets: Tensor) -> dict[str, float]:
        """Mean loss and mean value, in the env's units, of all samples of an update."""
        mean_value = values.mean() * self.network.value_std + self.network.value_mean
        return {"q_loss": float(F.huber_loss(values, targets)), "q_value": float(mean_value)}

    # -- schedules ------------------------------------------------------------------------------

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next update."""
        annealed = max(1.0 - self.updates / self.num_updates, 0.0) if self.settings.anneal_learning_rate else 1.0
        return self.settings.learning_rate * annealed

    @property
    def epsilon(self) -> float:
        """Epsilon of the rollout that is being collected."""
        settings = self.settings
        duration = settings.exploration_fraction * self.num_updates
        progress = min(self.updates / duration, 1.0) if duration else 1.0
        return settings.exploration_start + progress * (settings.exploration_end - settings.exploration_start)

    def _set_epsilons(self) -> None:
        self.policy.epsilons[:] = self.epsilon

    # -- snapshots ------------------------------------------------------------------------------

    def state(self) -> Arrays:
        """Weights, optimiser, input statistics, rollout and counters as plain arrays."""
        return {
            "updates": np.array(self.updates),
            "gradient_steps": np.array(self.gradient_steps),
            "rows_sampled": np.array(self.policy.rows_sampled),
            **with_prefix("network", network_arrays(self.network)),
            **with_prefix("optimiser", self.optimiser.state()),
            **with_prefix("rollout", self.buffer.state()),
        }

    def restore(self, state: State) -> None:
        """Continue from a snapshot."""
        self.updates = int(state["updates"])
        self.gradient_steps = int(state["gradient_steps"])
        self.policy.rows_sampled = int(state["rows_sampled"])
        load_network(self.network, without_prefix("network", state))
        self.optimiser.restore(without_prefix("optimiser", state))
        self.buffer.restore(without_prefix("rollout", state))
        self._set_epsilons()

    def load_weights(self, weights: State) -> None:
        """Start from the weights of another run; optimiser and schedules start anew."""
        load_network(self.network, weights)


class Samples(NamedTuple):
    """Samples of a rollout, or of one minibatch."""

    inputs: Tensor  # (rows, width)
    actions: Tensor  # (rows, 1)
    targets: Tensor  # (rows, 1) normalised Q(lambda) targets


def make_q_network(spec: EnvSpec, settings: NetworkSettings) -> QNetwork:
    """The Q-network of PQN: layer normalisation, and values learned normalised."""
    return QNetwork(spec, settings, dueling=False, layer_norm=True, value_norm=True)


def _flat_rows(mask: BoolArray | None) -> BoolArray | None:
    """A (steps, envs, actions) mask as (steps x envs, actions) rows."""
    return None if mask is None else mask.reshape(-1, mask.shape[2])
