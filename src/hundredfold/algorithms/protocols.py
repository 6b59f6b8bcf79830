"""The promise of a learner: it chooses, it hears what came of it, and from time to time it learns.

Whoever adds an algorithm writes a class with these methods; CONTRIBUTING.md says where its settings
and its rows go.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from hundredfold.core.batch import Array, Arrays, BoolArray, State, StepBatch
from hundredfold.rollout.collector import Policy, TransitionBuffer


class EvaluationPolicy(Policy, Protocol):
    """A policy that can also show the best it knows, without luck."""

    def act_deterministic(self, observation: Arrays, mask: BoolArray | None) -> Array:
        """One action per row."""
        ...


class LearnerBuffer(TransitionBuffer, Protocol):
    """Steps as one learner keeps them."""

    def truncate_here(self, batch: StepBatch) -> None:
        """Note that the episodes of these rows ended after their last step, unseen by us."""
        ...


class Learner(Protocol):
    """Turns experience into a better policy."""

    device: torch.device
    # Seconds of learning that happened while steps came in, since the beginning.
    learning_seconds: float

    @property
    def network(self) -> nn.Module:
        """What the policy acts with."""
        ...

    @property
    def policy(self) -> EvaluationPolicy:
        """What acts; it gets better in place."""
        ...

    @property
    def buffer(self) -> LearnerBuffer:
        """Where the collector puts what happens."""
        ...

    def update(self) -> dict[str, float]:
        """An epoch is over: learn if it is time; returns what there is to tell of it."""
        ...

    def state(self) -> Arrays:
        """Everything that is needed to go on; the weights that act begin with `network/`."""
        ...

    def restore(self, state: State) -> None:
        """Go on from a snapshot."""
        ...
