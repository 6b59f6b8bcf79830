"""Proximal policy optimisation (Schulman et al. 2017), masked.

Advantages and value targets are computed once per update, per env, with the values the collecting
weights give; masks and log-probabilities are the ones the actions were chosen under, so the ratio
of the first minibatch is 1. Two styles of update: joint epochs over one loss, or separate numbers
of value and policy epochs with an optimiser each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hundredfold.algorithms.actor_critic import ActorCritic, NetworkSettings, tensors
from hundredfold.algorithms.minibatches import Pieces, Report, Samples, samples_of
from hundredfold.algorithms.policies import NetworkPolicy
from hundredfold.algorithms.weights import (
    load_network,
    load_optimiser,
    network_arrays,
    optimiser_arrays,
)
from hundredfold.core import rng
from hundredfold.core.batch import Arrays, EnvSpec, State, slice_rows, with_prefix, without_prefix
from hundredfold.core.errors import SettingsError, TrainingError
from hundredfold.rollout.gae import Floats, compute_gae
from hundredfold.rollout.rollout_buffer import RolloutBuffer, RolloutSettings

# Rows per forward pass when values of a whole rollout are asked for: bounds memory, not results.
VALUE_CHUNK: Final = 65_536
# The same where there are pictures, of which every pixel passes through many channels.
PICTURE_CHUNK: Final = 512
MIN_SCALE: Final = 0.01
MAX_BAD_GRADIENTS: Final = 20
SHUFFLE_BRANCH: Final = 0x73687566666C65


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOSettings:
    """How PPO learns from a rollout."""

    learning_rate: float = 1e-3
    """Step size of Adam at the start."""
    anneal_learning_rate: bool = True
    """Let the learning rate fall to 0 over the run."""
    gamma: float = 0.99
    """Discount per step; 1 when a fixed number of steps is summed up."""
    gae_lambda: float = 0.95
    """How far advantages look ahead before they trust the value (0..1)."""
    update_epochs: int = 4
    """Passes over a rollout per update."""
    num_value_epochs: int = 0
    """With num_policy_epochs: separate passes for the value, instead of update_epochs."""
    num_policy_epochs: int = 0
    """With num_value_epochs: separate passes for the policy, instead of update_epochs."""
    num_minibatches: int = 4
    """Parts a rollout is split into; each makes one gradient step per pass."""
    minibatch_size: int = 0
    """Samples per gradient step; overrides num_minibatches when above 0."""
    clip: float = 0.2
    """How far the probability of an action may move in one update, as a share."""
    entropy_coefficient: float = 0.01
    """Weight of the bonus for staying undecided."""
    anneal_entropy: bool = False
    """Let the entropy bonus fall to 0 over the run."""
    value_coefficient: float = 0.5
    """Weight of the value loss in joint epochs."""
    max_gradient_norm: float = 0.5
    """Gradients longer than this are shortened to it."""
    target_kl: float = 0.0
    """Stop passes early when the policy has moved this far (times 1.5); 0 never stops."""
    normalise_advantages: bool = True
    """Scale the advantages of a rollout to mean 0 and spread 1."""
    normalise_values: bool = True
    """Learn values on targets scaled to mean 0 and spread 1."""
    value_scale_share: float = 0.5
    """What the newest rollout counts for in that scale; less follows more slowly, more calmly."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "clip", "max_gradient_norm"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"{name} must be above 0, got {getattr(self, name)}.")
        for name in ("entropy_coefficient", "value_coefficient", "target_kl"):
            if not getattr(self, name) >= 0:
                raise SettingsError(f"{name} must not be negative, got {getattr(self, name)}.")
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingsError(f"{name} must lie in 0..1, got {getattr(self, name)}.")
        if not 0 < self.value_scale_share <= 1:
            raise SettingsError(
                f"value_scale_share must lie above 0 and not above 1, got {self.value_scale_share}."
            )
        if min(self.num_value_epochs, self.num_policy_epochs) < 0 or (
            bool(self.num_value_epochs) != bool(self.num_policy_epochs)
        ):
            raise SettingsError(
                f"num_value_epochs ({self.num_value_epochs}) and num_policy_epochs "
                f"({self.num_policy_epochs}) go together: set both to at least 1, or both to 0 for "
                "joint epochs."
            )
        if min(self.update_epochs, self.num_minibatches) < 1 or self.minibatch_size < 0:
            raise SettingsError(
                f"update_epochs ({self.update_epochs}) and num_minibatches "
                f"({self.num_minibatches}) must be at least 1, and minibatch_size "
                f"({self.minibatch_size}) not negative."
            )

    @property
    def separate_epochs(self) -> bool:
        return self.num_value_epochs > 0


class PPO:
    """Turns rollouts into a better policy."""

    def __init__(
        self,
        spec: EnvSpec,
        *,
        settings: PPOSettings,
        network: NetworkSettings,
        rollout: RolloutSettings,
        num_updates: int,
        seed: int,
        device: torch.device,
    ) -> None:
        if settings.separate_epochs and network.shared:
            raise SettingsError(
                "separate value and policy epochs pull a shared network two ways; "
                "turn off shared, or use update_epochs."
            )
        self.spec, self.settings, self.device = spec, settings, device
        self.num_updates = num_updates
        self.updates = 0
        self.learning_seconds = 0.0  # nothing is learned while steps come in
        self.skipped_gradients = 0  # in this update
        self.skipped_in_a_row: dict[str, int] = {}
        self.shuffle_key = rng.spawn(rng.seed_key(seed), SHUFFLE_BRANCH)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % 2**63)
            self.network = ActorCritic(spec, network).to(device)
        self.policy = NetworkPolicy(self.network, device)
        self.experience = RolloutBuffer(
            spec, rollout.num_envs, rollout.num_steps * rollout.policy_update_interval
        )
        self.optimisers = self._make_optimisers()
        self.pieces = Pieces()

    def update(self) -> dict[str, float]:
        """Learn from the rollout once it is full; returns what happened, empty while it fills."""
        if not self.experience.full:
            return {}
        self._set_learning_rate()
        self.skipped_gradients = 0
        samples, outlook = self._look_back()
        seen = samples.observation
        samples.observation = self.network.prepared(seen)
        if self.settings.separate_epochs:
            report = self._separate_epochs(samples)
        else:
            report = self._joint_epochs(samples)
        self.network.inputs.learn_scale(seen)
        self.updates += 1
        self.experience.clear()
        return {**report, **outlook, "skipped_gradients": float(self.skipped_gradients)}

    def state(self) -> Arrays:
        """Weights, optimisers, scales and counters as plain arrays."""
        return {
            "updates": np.array(self.updates),
            **({} if self.pieces.count == 1 else {"pieces": np.array(self.pieces.count)}),
            **with_prefix("network", network_arrays(self.network)),
            **with_prefix("rollout", self.experience.state()),
            **{
                f"optimiser/{name}/{key}": array
                for name, optimiser in self.optimisers.items()
                for key, array in optimiser_arrays(optimiser).items()
            },
        }

    def restore(self, state: State) -> None:
        self.updates = int(state["updates"])
        self.pieces.count = int(state.get("pieces", 1))
        load_network(self.network, without_prefix("network", state))
        self.experience.restore(without_prefix("rollout", state))
        for name, optimiser in self.optimisers.items():
            load_optimiser(optimiser, without_prefix(f"optimiser/{name}", state))

    # -- looking back ---------------------------------------------------------------------------

    def _look_back(self) -> tuple[Samples, dict[str, float]]:
        """Advantages and value targets of the whole rollout, and how good the values were."""
        rollout, settings = self.experience, self.settings
        values = self._values(rollout.observation).reshape(rollout.num_steps + 1, rollout.num_envs)
        next_values = values[1:].copy()
        next_values[rollout.terminated] = 0.0
        # Bootstrapping from final_observation: the row after it belongs to the next episode.
        if rollout.truncations:
            steps, env_ids, final = rollout.all_truncations()
            next_values[steps, env_ids] = self._values(
                {name: array[None] for name, array in final.items()}
            )
        advantages = compute_gae(
            rollout.rewards,
            values[:-1],
            next_values,
            rollout.ended,
            settings.gamma,
            settings.gae_lambda,
        )
        returns = advantages + values[:-1]
        outlook = {"explained_variance": _explained(values[:-1], returns)}
        self._follow_scale(returns)
        if settings.normalise_advantages:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        targets = (returns - float(self.network.value_mean)) / float(self.network.value_spread)
        return samples_of(rollout, advantages, targets, self.device), outlook

    @torch.inference_mode()
    def _values(self, observation: Arrays) -> Floats:
        """(rows,) values of (steps, envs, ...) observations, a bounded number of rows at a time."""
        flat = {name: array.reshape(-1, *array.shape[2:]) for name, array in observation.items()}
        rows = len(next(iter(flat.values())))
        found = np.empty(rows, np.float32)
        size = PICTURE_CHUNK if self.network.pictures else VALUE_CHUNK
        for start in range(0, rows, size):
            cut = slice(start, start + size)
            part = tensors(slice_rows(flat, cut), self.device)
            found[cut] = self.network.value(part).cpu().numpy()
        return found

    def _follow_scale(self, returns: Floats) -> None:
        if not self.settings.normalise_values:
            return
        share = max(1.0 / (self.updates + 1), self.settings.value_scale_share)
        mean, spread = float(self.network.value_mean), float(self.network.value_spread)
        new_mean, new_variance = float(returns.mean()), float(returns.var())
        mixed_mean = (1 - share) * mean + share * new_mean
        mixed_square = (1 - share) * (spread**2 + mean**2) + share * (new_variance + new_mean**2)
        variance = max(mixed_square - mixed_mean**2, 0.0)
        # Returns that hardly vary must not blow up the first one that does.
        floor = max(MIN_SCALE * abs(mixed_mean), 1e-4)
        self.network.rescale_values(
            mixed_mean, max(variance**0.5, floor), keep_values=self.updates > 0
        )

    # -- learning -------------------------------------------------------------------------------

    def _joint_epochs(self, samples: Samples) -> dict[str, float]:
        """Policy and value together, one loss, one optimiser."""
        settings, report = self.settings, Report()
        parameters = list(self.network.parameters())

        def loss_of(batch: Samples) -> Tensor:
            logits, scaled_values = self.network.both(batch.observation)
            policy_loss = self._policy_loss(batch, logits, report)
            value_loss = F.mse_loss(scaled_values, batch.targets)
            report.add(value_loss=value_loss)
            return policy_loss + settings.value_coefficient * value_loss

        for number in range(settings.update_epochs):
            for batch in self._minibatches(samples, number):
                self._descend("joint", parameters, batch, loss_of)
            if self._moved_too_far(report):
                break
        return report.means()

    def _separate_epochs(self, samples: Samples) -> dict[str, float]:
        """First the value, then the policy, each for its own number of epochs."""
        settings, report = self.settings, Report()

        def value_loss_of(batch: Samples) -> Tensor:
            value_loss = F.mse_loss(self.network.scaled_value(batch.observation), batch.targets)
            report.add(value_loss=value_loss)
            return value_loss

        def policy_loss_of(batch: Samples) -> Tensor:
            return self._policy_loss(batch, self.network.logits(batch.observation), report)

        parameters = self.network.value_parameters()
        for number in range(settings.num_value_epochs):
            for batch in self._minibatches(samples, number):
                self._descend("value", parameters, batch, value_loss_of)
        parameters = self.network.policy_parameters()
        for number in range(settings.num_policy_epochs):
            for batch in self._minibatches(samples, settings.num_value_epochs + number):
                self._descend("policy", parameters, batch, policy_loss_of)
            if self._moved_too_far(report):
                break
        return report.means()

    def _policy_loss(self, batch: Samples, logits: Tensor, report: Report) -> Tensor:
        """The clipped objective, less the bonus for entropy."""
        clip = self.settings.clip
        options = self.network.options(logits, batch.mask)
        log_ratio = options.log_prob(batch.actions) - batch.log_probs
        ratio = log_ratio.exp()
        gain = torch.minimum(
            ratio * batch.advantages, ratio.clamp(1 - clip, 1 + clip) * batch.advantages
        ).mean()
        entropy = options.entropy().mean()
        with torch.no_grad():
            away = (ratio - 1).abs()
            report.first_ratio(away)
            report.add(
                policy_loss=-gain,
                entropy=entropy,
                # Always positive and of low variance: http://joschu.net/blog/kl-approx.html
                approx_kl=(ratio - 1 - log_ratio).mean(),
                clip_fraction=(away > clip).float().mean(),
            )
        return -gain - self.entropy_coefficient * entropy

    def _descend(
        self,
        name: str,
        parameters: list[nn.Parameter],
        batch: Samples,
        loss_of: Callable[[Samples], Tensor],
    ) -> None:
        """One gradient step, skipped when the gradient is not finite."""
        optimiser = self.optimisers[name]
        loss = self.pieces.backward(batch, loss_of, optimiser)
        norm = nn.utils.clip_grad_norm_(parameters, self.settings.max_gradient_norm)
        if torch.isfinite(norm):
            optimiser.step()
            self.skipped_in_a_row[name] = 0
            return
        self.skipped_gradients += 1
        in_a_row = self.skipped_in_a_row[name] = self.skipped_in_a_row.get(name, 0) + 1
        if in_a_row >= MAX_BAD_GRADIENTS:
            raise TrainingError(
                f"gradients were not finite {in_a_row} times in a row (update "
                f"{self.updates + 1}, {name} loss {float(loss):g}); check the env's rewards and "
                "observations for huge numbers, or lower the learning rate."
            )

    def _moved_too_far(self, report: Report) -> bool:
        limit = 1.5 * self.settings.target_kl
        return limit > 0 and report.last("approx_kl") > limit

    def _minibatches(self, samples: Samples, epoch: int) -> Iterator[Samples]:
        """Shuffled parts of the samples; the order is a matter of seed, update and epoch alone."""
        size = self.settings.minibatch_size or -(-len(samples) // self.settings.num_minibatches)
        key = rng.spawn(rng.spawn(self.shuffle_key, self.updates), epoch)
        return samples.shuffled_parts(size, seed=int(key >> np.uint64(1)))

    # -- schedules ------------------------------------------------------------------------------

    @property
    def left(self) -> float:
        """The share of the run that lies ahead, 1 at the start."""
        return max(1.0 - self.updates / self.num_updates, 0.0)

    @property
    def learning_rate(self) -> float:
        return self.settings.learning_rate * (
            self.left if self.settings.anneal_learning_rate else 1
        )

    @property
    def entropy_coefficient(self) -> float:
        return self.settings.entropy_coefficient * (
            self.left if self.settings.anneal_entropy else 1
        )

    def _set_learning_rate(self) -> None:
        for optimiser in self.optimisers.values():
            for group in optimiser.param_groups:
                group["lr"] = self.learning_rate

    def _make_optimisers(self) -> dict[str, torch.optim.Adam]:
        groups = (
            {
                "value": self.network.value_parameters(),
                "policy": self.network.policy_parameters(),
            }
            if self.settings.separate_epochs
            else {"joint": list(self.network.parameters())}
        )
        return {
            name: torch.optim.Adam(parameters, lr=self.settings.learning_rate, eps=1e-5, fused=True)
            for name, parameters in groups.items()
        }


def _explained(values: Floats, returns: Floats) -> float:
    """1 when values foresee returns exactly, 0 when a constant would do as well."""
    spread = float(returns.var())
    return 1.0 - float((returns - values).var()) / spread if spread > 0 else 0.0
