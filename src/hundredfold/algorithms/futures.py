"""Learning from the estimated costs of all actions, instead of from the returns of those taken.

Where an env estimates what every action of a step would cost (`EnvSpec.action_costs`; dvrp does so
by sampled futures with common random numbers, the vine estimates of Schulman et al. 2015), one step
says something about every action, with far less noise than a return. The estimates do not depend on
the action taken, so that old decisions can be learned from again: they are kept in a buffer.

`regression` fits the predicted costs of a `PerActionActor`. `policy_gradient` lowers the expected
cost of its policy, a sum over all actions (Sutton et al. 2000, without sampling).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from hundredfold.algorithms.minibatches import MetricMeans
from hundredfold.algorithms.per_action import PerActionActor
from hundredfold.algorithms.ppo import PPO
from hundredfold.core import rng
from hundredfold.core.batch import Array, Arrays, EnvSpec, State, with_prefix, without_prefix
from hundredfold.core.errors import SettingsError
from hundredfold.rollout.rollout_buffer import ACTION_COSTS

# Estimated costs are clipped to this size, in the env's unit.
MAX_COST: Final = 60.0
# Weight of an action that never takes effect, compared with one that certainly does.
MIN_WEIGHT: Final = 0.25
WEIGHT_DECAY: Final = 0.01
# Decisions per minibatch if the settings name no size.
MINIBATCH_SIZE: Final = 512


@dataclass(slots=True)
class Decisions:
    """A minibatch of decisions."""

    observation: dict[str, Tensor]  # each (rows, ...)
    costs: Tensor  # (rows, actions), NaN = not estimated

    def __len__(self) -> int:
        return len(self.costs)

    def rows(self, start: int, stop: int) -> Decisions:
        """Views of the rows `start..stop-1`."""
        return Decisions({name: part[start:stop] for name, part in self.observation.items()}, self.costs[start:stop])


class DecisionBuffer:
    """Ring buffer of decisions with the estimated costs of all actions.

    Half precision: features are minutes, and estimates are far less exact.

    Args:
        spec: Observation and action spec of the env.
        names: Observations to store.
        capacity: Decisions to keep.
    """

    def __init__(self, spec: EnvSpec, names: tuple[str, ...], capacity: int) -> None:
        shapes = {name: spec.observation[name].shape for name in names} | {ACTION_COSTS: (spec.num_logits,)}
        self.arrays: Arrays = {name: np.zeros((capacity, *shape), np.float16) for name, shape in shapes.items()}
        self.capacity, self.added = capacity, 0

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, arrays: State) -> None:
        """Append rows, replacing the oldest ones when the buffer is full."""
        count = len(arrays[ACTION_COSTS])
        at = (self.added + np.arange(count)) % self.capacity
        for name, stored in self.arrays.items():
            stored[at] = arrays[name]
        self.added += count

    def sample(self, rows: Array, device: torch.device) -> Decisions:
        """These rows as single-precision tensors."""
        parts = {
            name: torch.from_numpy(array[rows].astype(np.float32)).to(device) for name, array in self.arrays.items()
        }
        costs = parts.pop(ACTION_COSTS)
        return Decisions(parts, costs)

    def state(self) -> Arrays:
        """Snapshot of the filled part."""
        return {"added": np.array(self.added)} | {
            name: array[: len(self)].copy() for name, array in self.arrays.items()
        }

    def restore(self, state: State) -> None:
        """Continue from a snapshot."""
        self.added = int(state["added"])
        for name, array in self.arrays.items():
            array[: len(self)] = state[name]


class FuturesLearner(PPO):
    """Learner of action costs; network, rollout buffer and schedules are those of PPO.

    The critic is not trained. Arguments as for `PPO`.
    """

    def __init__(self, spec: EnvSpec, *parts: Any, **arguments: Any) -> None:
        if spec.action_costs is None:
            raise SettingsError(
                f"--advantages futures needs an env that estimates the cost of every action, which {spec.name} does "
                "not do with these settings; for dvrp set --future-samples to 2 or more."
            )
        super().__init__(spec, *parts, **arguments)
        if self.network.privileged is not None:
            raise SettingsError("--advantages futures trains no critic; use --critic privileged with --advantages gae.")
        self.decisions = DecisionBuffer(spec, self.actor.inputs, self.settings.futures_replay_size)

    @property
    def actor(self) -> PerActionActor:
        """The policy network."""
        actor = self.network.per_action
        if actor is None:
            raise SettingsError("--advantages futures trains a policy network of --architecture per_action (or joint).")
        return actor

    def update(self) -> dict[str, float]:
        """Learn from all stored decisions once the rollout is full.

        Returns:
            Losses and diagnostics, averaged over minibatches; empty while the rollout fills.
        """
        if not self.buffer.full:
            return {}
        self._set_learning_rate()
        self.skipped_gradients = 0
        self._store_rollout()
        metrics = MetricMeans()
        loss_of = self._regression_loss if self.settings.futures_loss == "regression" else self._expected_cost
        parameters = list(self.actor.parameters())
        for epoch in range(self.settings.update_epochs):
            for batch in self._decision_batches(epoch):
                self._gradient_step("policy", parameters, batch, lambda part: loss_of(part, metrics))
        self.updates += 1
        self.buffer.clear()
        return {**metrics.means(), "skipped_gradients": float(self.skipped_gradients)}

    def state(self) -> Arrays:
        return super().state() | with_prefix("decisions", self.decisions.state())

    def restore(self, state: State) -> None:
        super().restore(state)
        self.decisions.restore(without_prefix("decisions", state))

    def _store_rollout(self) -> None:
        """Move the decisions of the rollout to the buffer, and update the input statistics."""
        rollout = self.buffer
        rows = rollout.num_steps * rollout.num_envs

        def flat(array: Array) -> Array:
            return array.reshape(rows, *array.shape[2:])

        observation = {name: flat(rollout.observation[name][:-1]) for name in self.actor.inputs}
        costs = flat(rollout.arrays[ACTION_COSTS][: rollout.num_steps])
        self.decisions.add({**observation, ACTION_COSTS: np.clip(costs, -MAX_COST, MAX_COST)})
        self.actor.update_stats({name: torch.from_numpy(array).to(self.device) for name, array in observation.items()})

    def _decision_batches(self, epoch: int) -> Iterator[Decisions]:
        """Shuffled minibatches of all stored decisions; the order depends on seed, update and epoch."""
        count, size = len(self.decisions), self.settings.minibatch_size or MINIBATCH_SIZE
        key = rng.spawn(rng.spawn(self.shuffle_key, self.updates), epoch)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(int(key >> np.uint64(1)))).numpy()
        for start in range(0, count, size):
            yield self.decisions.sample(order[start : start + size], self.device)

    def _regression_loss(self, batch: Decisions, metrics: MetricMeans) -> Tensor:
        """Weighted squared error of predicted costs; likely actions count more."""
        names = self.actor.names
        known = batch.costs.isfinite()
        known[:, names.reference] = False
        weights = known * (MIN_WEIGHT + batch.observation[names.probability])
        targets = batch.costs.nan_to_num()
        errors = (self.actor.costs(batch.observation) - targets).square()
        total = weights.sum().clamp(min=1e-6)
        loss = (weights * errors).sum() / total
        with torch.no_grad():
            mean = (weights * targets).sum() / total
            variance = (weights * (targets - mean).square()).sum() / total
            metrics.add(policy_loss=loss, cost_variance=variance)
        return loss

    def _expected_cost(self, batch: Decisions, metrics: MetricMeans) -> Tensor:
        """Expected cost of the policy over estimated actions, minus the entropy bonus."""
        names, observation = self.actor.names, batch.observation
        known = batch.costs.isfinite()
        known[:, names.reference] = True
        logits = self.actor(observation).masked_fill(~known, -torch.inf)
        log_probs = torch.log_softmax(logits, dim=-1).masked_fill(~known, 0.0)
        probs = torch.softmax(logits, dim=-1)
        costs = observation[names.probability] * (batch.costs.nan_to_num() + observation[names.penalty])
        expected = (probs * costs).sum(dim=-1).mean()
        entropy = -(probs * log_probs).sum(dim=-1).mean()
        metrics.add(policy_loss=expected, entropy=entropy)
        return expected - self.entropy_coefficient * entropy

    def _make_optimisers(self) -> dict[str, torch.optim.Adam]:
        parameters = self.network.policy_parameters()
        return {
            "policy": torch.optim.AdamW(
                parameters, lr=self.settings.learning_rate, weight_decay=WEIGHT_DECAY, fused=True
            )
        }
