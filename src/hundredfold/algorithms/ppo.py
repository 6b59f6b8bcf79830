"""Proximal policy optimisation (Schulman et al. 2017) with action masks.

`PPO.update` shows the algorithm in order: value targets and advantages of a full rollout,
minibatches, clipped loss, gradient step. Advantages and targets are computed once per update from
the values of the collecting weights; masks and log-probabilities are stored as the actions were
sampled, so the probability ratio of the first minibatch is 1. Policy and value are trained either
jointly on one loss (`update_epochs`) or one after the other (`num_value_epochs`,
`num_policy_epochs`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self

import numpy as np
import torch
from annotated_types import Interval
from torch import Tensor, nn
from torch.nn import functional as F

from hundredfold.algorithms.actor_critic import ActorCritic, NetworkSettings, tensors
from hundredfold.algorithms.custom_network import make_actor_critic
from hundredfold.algorithms.memory import Sequences
from hundredfold.algorithms.minibatches import Batch, GradientAccumulator, MetricMeans, RolloutSamples, flatten_rollout
from hundredfold.algorithms.policies import NetworkPolicy
from hundredfold.algorithms.value_memory import ValueMemory
from hundredfold.algorithms.weights import load_network, load_optimiser, network_arrays, optimiser_arrays
from hundredfold.core import rng
from hundredfold.core.batch import Arrays, EnvSpec, Float32Array, State, slice_rows, with_prefix, without_prefix
from hundredfold.core.bounds import AtLeastOne, Fraction, NonNegative, NonNegativeInt, Positive, check_bounds
from hundredfold.core.errors import SettingsError, TrainingError
from hundredfold.rollout.gae import compute_gae
from hundredfold.rollout.rollout_buffer import RolloutBuffer, RolloutSettings

# Rows per forward pass when a whole rollout is valued: bounds memory, not results.
VALUE_CHUNK: Final = 65_536
# The same for images, whose activations are larger.
IMAGE_VALUE_CHUNK: Final = 512
# The value normaliser's standard deviation is at least this share of its mean.
MIN_RELATIVE_STD: Final = 0.01
MAX_SKIPPED_GRADIENTS: Final = 20
SHUFFLE_STREAM: Final = 0x73687566666C65


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOSettings:
    """Hyperparameters of PPO."""

    advantages: Literal["gae", "futures"] = "gae"
    """`gae` estimates advantages of the actions taken from returns; `futures` learns from the
    estimated costs of all actions (dvrp with --future-samples), without a critic."""
    futures_loss: Literal["regression", "policy_gradient"] = "regression"
    """Loss of advantages=futures: fit the estimated costs, or lower the policy's expected cost."""
    futures_replay_size: AtLeastOne = 40_960
    """Decisions that advantages=futures keeps and learns from again."""
    learning_rate: Positive = 1e-3
    """Adam learning rate at the start."""
    anneal_learning_rate: bool = True
    """Anneal the learning rate linearly to 0 over the run."""
    gamma: Fraction = 0.99
    """Discount factor per step; 1 for undiscounted episodes of fixed length."""
    gae_lambda: Fraction = 0.95
    """GAE lambda: 0 is one-step TD, 1 is Monte Carlo."""
    update_epochs: AtLeastOne = 4
    """Passes over a rollout per update."""
    num_value_epochs: NonNegativeInt = 0
    """Separate passes for the value, with num_policy_epochs, instead of update_epochs."""
    num_policy_epochs: NonNegativeInt = 0
    """Separate passes for the policy, with num_value_epochs, instead of update_epochs."""
    num_minibatches: AtLeastOne = 4
    """Minibatches per pass; each makes one gradient step."""
    minibatch_size: NonNegativeInt = 0
    """Samples per minibatch; overrides num_minibatches when above 0."""
    clip_range: Positive = 0.2
    """PPO clip range of the probability ratio."""
    entropy_coefficient: NonNegative = 0.01
    """Entropy bonus coefficient."""
    anneal_entropy: bool = False
    """Anneal the entropy bonus linearly to 0 over the run."""
    value_coefficient: NonNegative = 0.5
    """Value loss coefficient in joint epochs."""
    max_gradient_norm: Positive = 0.5
    """Global gradient-norm clipping threshold."""
    target_kl: NonNegative = 0.0
    """Stop an update early when the approximate KL exceeds 1.5 times this; 0 never stops."""
    normalise_advantages: bool = True
    """Normalise the advantages of a rollout to mean 0 and standard deviation 1."""
    normalise_values: bool = True
    """Normalise value targets by a running mean and standard deviation (PopArt)."""
    value_norm_momentum: Annotated[float, Interval(gt=0, le=1)] = 0.5
    """Weight of the newest rollout in the running statistics of value targets."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if bool(self.num_value_epochs) != bool(self.num_policy_epochs):
            raise SettingsError(
                f"num_value_epochs ({self.num_value_epochs}) and num_policy_epochs "
                f"({self.num_policy_epochs}) go together: set both to at least 1, or both to 0 for "
                "joint epochs."
            )

    @property
    def separate_epochs(self) -> bool:
        """Whether value and policy are trained one after the other."""
        return self.num_value_epochs > 0


class PPO:
    """PPO learner: a network and a rollout buffer that are handed in, a policy and optimisers.

    Args:
        spec: Observation and action spec of the env.
        network: Policy and value network, on its device.
        buffer: Rollout buffer of one update.
        settings: Hyperparameters.
        num_updates: Updates of the whole run, for annealing.
        seed: Seed of the minibatch order.
        device: Device of the network.
    """

    def __init__(
        self,
        spec: EnvSpec,
        network: ActorCritic,
        buffer: RolloutBuffer,
        *,
        settings: PPOSettings,
        num_updates: int,
        seed: int,
        device: torch.device,
    ) -> None:
        if settings.separate_epochs and network.settings.shared:
            raise SettingsError(
                "separate value and policy epochs cannot train a shared network; turn off shared, or use update_epochs."
            )
        self.spec, self.settings, self.device = spec, settings, device
        self.num_updates = num_updates
        self.updates = 0
        self.learning_seconds = 0.0  # PPO does not learn while it collects
        self.skipped_gradients = 0  # in this update
        self.skipped_in_a_row: dict[str, int] = {}
        self.shuffle_key = rng.spawn(rng.seed_key(seed), SHUFFLE_STREAM)
        self.network, self.buffer = network, buffer
        self.policy = NetworkPolicy(network, device)
        self.value_memory = ValueMemory(network, buffer.num_envs, buffer.num_steps) if network.memory_size else None
        self.optimisers = self._make_optimisers()
        self.accumulator = GradientAccumulator()

    @classmethod
    def build(
        cls,
        spec: EnvSpec,
        *,
        settings: PPOSettings,
        network: NetworkSettings,
        rollout: RolloutSettings,
        num_updates: int,
        seed: int,
        device: torch.device,
    ) -> Self:
        """A learner with a new network and an empty buffer.

        Args:
            spec: Observation and action spec of the env.
            settings: Hyperparameters.
            network: Architecture of the network.
            rollout: Number of envs and steps of one update.
            num_updates: Updates of the whole run, for annealing.
            seed: Seed of initial weights and minibatch order.
            device: Device of the network.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % 2**63)
            made = make_actor_critic(spec, network).to(device)
        num_steps = rollout.num_steps * rollout.policy_update_interval
        buffer = RolloutBuffer(spec, rollout.num_envs, num_steps, made.memory_size)
        return cls(spec, made, buffer, settings=settings, num_updates=num_updates, seed=seed, device=device)

    def update(self) -> dict[str, float]:
        """Learn from the rollout once it is full.

        Returns:
            Losses and diagnostics, averaged over minibatches; empty while the rollout fills.
        """
        if not self.buffer.full:
            return {}
        self._set_learning_rate()
        self.skipped_gradients = 0
        samples, value_stats = self._compute_targets()
        raw_observation = samples.observation
        samples.observation = self.network.preprocess(raw_observation)
        metrics = self._train_separately(samples) if self.settings.separate_epochs else self._train_jointly(samples)
        self.network.update_stats(raw_observation)
        self.updates += 1
        self.buffer.clear()
        return {**metrics, **value_stats, "skipped_gradients": float(self.skipped_gradients)}

    @property
    def minibatch_rows(self) -> int:
        """Samples of a full minibatch."""
        steps = self._steps_per_unit
        return steps * self._minibatch_size(self.buffer.num_steps * self.buffer.num_envs // steps)

    def measured_pass(self) -> Callable[[], None]:
        """A function that does the work of one gradient step on a copy of the network, to measure its time."""
        network, rows, sequences = copy.deepcopy(self.network), self.minibatch_rows, None
        observation = {name: array.empty(rows) for name, array in self.spec.observation.items()}
        inputs = network.preprocess(tensors(observation, self.device))
        if self.value_memory is not None:
            state = torch.zeros(rows // self._steps_per_unit, network.memory_size, device=self.device)
            sequences = Sequences(state, state, torch.zeros(rows, dtype=torch.bool, device=self.device))

        def gradient_pass() -> None:
            logits, values = network.logits_and_value(inputs, sequences)
            (logits.square().mean() + values.square().mean()).backward()  # type: ignore[no-untyped-call]

        return gradient_pass

    # -- targets --------------------------------------------------------------------------------

    def _compute_targets(self) -> tuple[RolloutSamples, dict[str, float]]:
        """Advantages and normalised value targets of the whole rollout, and value diagnostics."""
        rollout, settings, value_states = self.buffer, self.settings, None
        if self.value_memory is None:
            values = self._values(rollout.observation).reshape(rollout.num_steps + 1, rollout.num_envs)
        else:
            values, value_states = self.value_memory.values(rollout, self.device, self._chunk)
        next_values = values[1:].copy()
        next_values[rollout.terminated] = 0.0
        # Bootstrap truncated episodes from their final observation: the next row is a new episode.
        if rollout.truncations:
            steps, env_ids, final = rollout.all_truncations()
            if self.value_memory is None:
                final_values = self._values({name: array[None] for name, array in final.items()})
            else:
                final_values = self.value_memory.final_values(steps, env_ids, final, self.device)
            next_values[steps, env_ids] = final_values
        advantages = compute_gae(
            rollout.rewards, values[:-1], next_values, rollout.ended, settings.gamma, settings.gae_lambda
        )
        returns = advantages + values[:-1]
        value_stats = {"explained_variance": explained_variance(values[:-1], returns)}
        self._update_value_norm(returns)
        if settings.normalise_advantages:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        targets = (returns - float(self.network.value_mean)) / float(self.network.value_std)
        return flatten_rollout(rollout, advantages, targets, self.device, value_states), value_stats

    @torch.inference_mode()
    def _values(self, observation: Arrays) -> Float32Array:
        """(rows,) values of (steps, envs, ...) observations, in chunks that bound memory."""
        flat = {name: array.reshape(-1, *array.shape[2:]) for name, array in observation.items()}
        num_rows = len(next(iter(flat.values())))
        values = np.empty(num_rows, np.float32)
        for start in range(0, num_rows, self._chunk):
            rows = slice(start, start + self._chunk)
            part = tensors(slice_rows(flat, rows), self.device)
            values[rows] = self.network.value(part).cpu().numpy()
        return values

    @property
    def _chunk(self) -> int:
        """Rows valued at a time."""
        return IMAGE_VALUE_CHUNK if self.network.images else VALUE_CHUNK

    def _update_value_norm(self, returns: Float32Array) -> None:
        """Fold a rollout's returns into the running mean and std of value targets."""
        if not self.settings.normalise_values:
            return
        weight = max(1.0 / (self.updates + 1), self.settings.value_norm_momentum)
        mean, std = float(self.network.value_mean), float(self.network.value_std)
        # A new network's values mean nothing yet; those of another run's weights do.
        is_new = self.updates == 0 and (mean, std) == (0.0, 1.0)
        self.network.rescale_values(*mixed_mean_and_std(mean, std, returns, weight), keep_values=not is_new)

    # -- minibatches and losses -----------------------------------------------------------------

    def _train_jointly(self, samples: RolloutSamples) -> dict[str, float]:
        """Epochs over one loss of policy and value, with one optimiser."""
        settings, metrics = self.settings, MetricMeans()
        parameters = list(self.network.parameters())

        def loss_of(batch: RolloutSamples) -> Tensor:
            logits, normalised_values = self.network.logits_and_value(batch.observation, batch.sequences)
            policy_loss = self._policy_loss(batch, logits, metrics)
            value_loss = F.mse_loss(normalised_values, batch.targets)
            metrics.add(value_loss=value_loss)
            return policy_loss + settings.value_coefficient * value_loss

        for epoch in range(settings.update_epochs):
            for batch in self._minibatches(samples, epoch):
                self._gradient_step("joint", parameters, batch, loss_of)
            if self._kl_exceeded(metrics):
                break
        return metrics.means()

    def _train_separately(self, samples: RolloutSamples) -> dict[str, float]:
        """Epochs of the value, then epochs of the policy, each with its own optimiser."""
        settings, metrics = self.settings, MetricMeans()

        def value_loss_of(batch: RolloutSamples) -> Tensor:
            values = self.network.normalised_value(batch.observation, batch.sequences)
            value_loss = F.mse_loss(values, batch.targets)
            metrics.add(value_loss=value_loss)
            return value_loss

        def policy_loss_of(batch: RolloutSamples) -> Tensor:
            return self._policy_loss(batch, self.network.logits(batch.observation, batch.sequences), metrics)

        parameters = self.network.value_parameters()
        for epoch in range(settings.num_value_epochs):
            for batch in self._minibatches(samples, epoch):
                self._gradient_step("value", parameters, batch, value_loss_of)
        parameters = self.network.policy_parameters()
        for epoch in range(settings.num_policy_epochs):
            for batch in self._minibatches(samples, settings.num_value_epochs + epoch):
                self._gradient_step("policy", parameters, batch, policy_loss_of)
            if self._kl_exceeded(metrics):
                break
        return metrics.means()

    def _minibatches(self, samples: RolloutSamples, epoch: int) -> Iterator[RolloutSamples]:
        """Shuffled minibatches; their order depends on seed, update and epoch alone."""
        size = self._minibatch_size(len(samples))
        key = rng.spawn(rng.spawn(self.shuffle_key, self.updates), epoch)
        return samples.shuffled_minibatches(size, seed=int(key >> np.uint64(1)))

    @property
    def _steps_per_unit(self) -> int:
        """Steps that minibatches keep together: those of a sequence with a memory, otherwise 1."""
        return 1 if self.value_memory is None else self.value_memory.sequence_steps

    def _minibatch_size(self, units: int) -> int:
        """Rows, or sequences, of a full minibatch.

        Args:
            units: Rows, or sequences, of a rollout.
        """
        size = -(-units // self.settings.num_minibatches)
        if self.settings.minibatch_size:
            # As many sequences, if there are any, as have this number of rows.
            size = -(-self.settings.minibatch_size * units // (self.buffer.num_steps * self.buffer.num_envs))
        return min(size, units)

    def _policy_loss(self, batch: RolloutSamples, logits: Tensor, metrics: MetricMeans) -> Tensor:
        """Clipped surrogate objective minus the entropy bonus."""
        clip_range = self.settings.clip_range
        distribution = self.network.distribution(logits, batch.mask)
        log_ratio = distribution.log_prob(batch.actions) - batch.log_probs
        ratio = log_ratio.exp()
        clipped_ratio = ratio.clamp(1 - clip_range, 1 + clip_range)
        objective = torch.minimum(ratio * batch.advantages, clipped_ratio * batch.advantages).mean()
        entropy = distribution.entropy().mean()
        with torch.no_grad():
            ratio_error = (ratio - 1).abs()
            metrics.add_first_ratio_error(ratio_error)
            metrics.add(
                policy_loss=-objective,
                entropy=entropy,
                # Positive and of low variance: http://joschu.net/blog/kl-approx.html
                approx_kl=(ratio - 1 - log_ratio).mean(),
                clip_fraction=(ratio_error > clip_range).float().mean(),
            )
        return -objective - self.entropy_coefficient * entropy

    def _gradient_step(
        self, name: str, parameters: list[nn.Parameter], batch: Batch, loss_of: Callable[[Batch], Tensor]
    ) -> None:
        """One optimiser step with gradient clipping; skipped when the gradient is not finite."""
        optimiser = self.optimisers[name]
        loss = self.accumulator.backward(batch, loss_of, optimiser)
        norm = nn.utils.clip_grad_norm_(parameters, self.settings.max_gradient_norm)
        if torch.isfinite(norm):
            optimiser.step()
            self.skipped_in_a_row[name] = 0
            return
        self.skipped_gradients += 1
        in_a_row = self.skipped_in_a_row[name] = self.skipped_in_a_row.get(name, 0) + 1
        if in_a_row >= MAX_SKIPPED_GRADIENTS:
            raise TrainingError(
                f"gradients were not finite {in_a_row} times in a row (update "
                f"{self.updates + 1}, {name} loss {float(loss):g}); check the env's rewards and "
                "observations for huge numbers, or lower the learning rate."
            )

    def _kl_exceeded(self, metrics: MetricMeans) -> bool:
        limit = 1.5 * self.settings.target_kl
        return limit > 0 and metrics.last("approx_kl") > limit

    # -- schedules ------------------------------------------------------------------------------

    @property
    def remaining(self) -> float:
        """Remaining fraction of the run, 1 at the start."""
        return max(1.0 - self.updates / self.num_updates, 0.0)

    @property
    def learning_rate(self) -> float:
        annealed = self.remaining if self.settings.anneal_learning_rate else 1
        return self.settings.learning_rate * annealed

    @property
    def entropy_coefficient(self) -> float:
        annealed = self.remaining if self.settings.anneal_entropy else 1
        return self.settings.entropy_coefficient * annealed

    def _set_learning_rate(self) -> None:
        for optimiser in self.optimisers.values():
            for group in optimiser.param_groups:
                group["lr"] = self.learning_rate

    def _make_optimisers(self) -> dict[str, torch.optim.Adam]:
        if self.settings.separate_epochs:
            groups = {"value": self.network.value_parameters(), "policy": self.network.policy_parameters()}
        else:
            groups = {"joint": list(self.network.parameters())}
        return {
            name: torch.optim.Adam(parameters, lr=self.settings.learning_rate, eps=1e-5, fused=True)
            for name, parameters in groups.items()
        }

    # -- snapshots ------------------------------------------------------------------------------

    def state(self) -> Arrays:
        """Weights, optimisers, normalisers, rollout and counters as plain arrays."""
        num_chunks = self.accumulator.num_chunks
        return {
            "updates": np.array(self.updates),
            **({} if num_chunks == 1 else {"gradient_chunks": np.array(num_chunks)}),
            **with_prefix("network", network_arrays(self.network)),
            **with_prefix("rollout", self.buffer.state()),
            **({} if self.value_memory is None else {"value_memory": self.value_memory.state.copy()}),
            **{
                f"optimiser/{name}/{key}": array
                for name, optimiser in self.optimisers.items()
                for key, array in optimiser_arrays(optimiser).items()
            },
        }

    def restore(self, state: State) -> None:
        """Continue from a snapshot."""
        self.updates = int(state["updates"])
        self.accumulator.num_chunks = int(state.get("gradient_chunks", 1))
        load_network(self.network, without_prefix("network", state))
        self.buffer.restore(without_prefix("rollout", state))
        if self.value_memory is not None:
            self.value_memory.state[...] = state["value_memory"]
        for name, optimiser in self.optimisers.items():
            load_optimiser(optimiser, without_prefix(f"optimiser/{name}", state))

    def load_weights(self, weights: State) -> None:
        """Start from the weights of another run; optimisers and schedules start anew."""
        load_network(self.network, weights)


def mixed_mean_and_std(mean: float, std: float, returns: Float32Array, weight: float) -> tuple[float, float]:
    """Running mean and standard deviation of value targets after another rollout.

    Args:
        mean: Running mean before it.
        std: Running standard deviation before it.
        returns: Value targets of the rollout.
        weight: Weight of the rollout, 0 to 1.
    """
    new_mean, new_variance = float(returns.mean()), float(returns.var())
    mixed_mean = (1 - weight) * mean + weight * new_mean
    mixed_square = (1 - weight) * (std**2 + mean**2) + weight * (new_variance + new_mean**2)
    variance = max(mixed_square - mixed_mean**2, 0.0)
    # Returns that hardly vary must not blow up the first one that does.
    floor = max(MIN_RELATIVE_STD * abs(mixed_mean), 1e-4)
    return mixed_mean, max(variance**0.5, floor)


def explained_variance(values: Float32Array, returns: Float32Array) -> float:
    """Share of the returns' variance that values explain: 1 is perfect, 0 as good as the mean."""
    variance = float(returns.var())
    return 1.0 - float((returns - values).var()) / variance if variance > 0 else 0.0
