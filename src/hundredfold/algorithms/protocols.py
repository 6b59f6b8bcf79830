"""Interfaces of learning algorithms.

A new algorithm is a class with the methods of `Learner`; CONTRIBUTING.md says where its settings
and registry entries go.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from hundredfold.core.batch import Array, Arrays, BoolArray, State, StepBatch
from hundredfold.rollout.collector import Policy, TransitionBuffer


class EvaluationPolicy(Policy, Protocol):
    """A policy that can also act deterministically."""

    def act_deterministic(self, observation: Arrays, mask: BoolArray | None) -> Array:
        """The preferred action of each row.

        Args:
            observation: Named arrays, each (rows, ...).
            mask: (rows, num_logits), True = allowed; None allows everything.
        """
        ...


class LearnerBuffer(TransitionBuffer, Protocol):
    """Where a learner stores transitions: a rollout buffer or a replay buffer."""

    def truncate_here(self, batch: StepBatch) -> None:
        """Mark the episodes of these rows as truncated after their last stored step."""
        ...


class Learner(Protocol):
    """A learning algorithm with its network, policy and buffer."""

    device: torch.device
    # Seconds spent learning while collecting, over the whole run.
    learning_seconds: float

    @property
    def network(self) -> nn.Module:
        """Network of the policy."""
        ...

    @property
    def policy(self) -> EvaluationPolicy:
        """The policy; updates change it in place."""
        ...

    @property
    def buffer(self) -> LearnerBuffer:
        """Where the collector stores transitions."""
        ...

    def update(self) -> dict[str, float]:
        """End of an epoch: learn if an update is due; returns losses and diagnostics."""
        ...

    def state(self) -> Arrays:
        """A snapshot of plain arrays; the policy's weights are under `network/`."""
        ...

    def restore(self, state: State) -> None:
        """Continue from a snapshot."""
        ...

    def load_weights(self, weights: State) -> None:
        """Start from the weights of another run; raises a CheckpointError on another architecture."""
        ...
