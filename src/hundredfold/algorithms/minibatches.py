"""What a PPO update works on: flattened rollout samples, metric means, gradient accumulation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from hundredfold.algorithms.memory import Sequences
from hundredfold.core.batch import Array, Float32Array
from hundredfold.core.errors import TrainingError
from hundredfold.rollout.rollout_buffer import MEMORY, RolloutBuffer


@dataclass(slots=True)
class RolloutSamples:
    """Samples of a rollout, or of one minibatch, as tensors.

    With a memory they are selected as whole sequences, otherwise as single rows.
    """

    observation: dict[str, Tensor]  # each (rows, ...)
    mask: Tensor | None  # (rows, num_logits), True = allowed
    actions: Tensor  # (rows, action dims)
    log_probs: Tensor  # (rows,) under the policy that sampled the actions
    advantages: Tensor  # (rows,)
    targets: Tensor  # (rows,) normalised value targets
    sequences: Sequences | None = None  # of networks with memory

    def __len__(self) -> int:
        """Number of rows, or of sequences."""
        return len(self.actions) if self.sequences is None else len(self.sequences.policy_state)

    def index_select(self, order: Tensor) -> RolloutSamples:
        """Copies of these rows or sequences, in this order."""
        return self._map(lambda part: part.index_select(0, order))

    def rows(self, start: int, stop: int) -> RolloutSamples:
        """Views of the rows or sequences `start..stop-1`."""
        return self._map(lambda part: part[start:stop])

    def shuffled_minibatches(self, size: int, seed: int) -> Iterator[RolloutSamples]:
        """All rows or sequences once, in an order drawn from the seed, `size` at a time."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        shuffled = self.index_select(order.to(self.actions.device))
        for start in range(0, len(self), size):
            yield shuffled.rows(start, start + size)

    def _map(self, select: Callable[[Tensor], Tensor]) -> RolloutSamples:
        select_rows, sequences = select, self.sequences
        if sequences is not None:
            count = len(self)

            def select_rows(part: Tensor) -> Tensor:
                return select(part.reshape(count, len(part) // count, *part.shape[1:])).flatten(0, 1)

        return RolloutSamples(
            {name: select_rows(part) for name, part in self.observation.items()},
            None if self.mask is None else select_rows(self.mask),
            select_rows(self.actions),
            select_rows(self.log_probs),
            select_rows(self.advantages),
            select_rows(self.targets),
            None if sequences is None else sequences.select(select),
        )


def flatten_rollout(
    rollout: RolloutBuffer,
    advantages: Float32Array,
    targets: Float32Array,
    device: torch.device,
    value_states: Float32Array | None = None,
) -> RolloutSamples:
    """A rollout as (steps x envs) rows of tensors; without memory, on the CPU, they share the rollout's.

    Args:
        rollout: A full rollout.
        advantages: (steps, envs) advantages.
        targets: (steps, envs) normalised value targets.
        device: Where the tensors go.
        value_states: (sequences of an env, envs, size) states of the value's memory before each
            sequence, for networks with memory.
    """
    num_rows = rollout.num_steps * rollout.num_envs

    def flat(array: Array) -> Tensor:
        if value_states is not None:
            array = _sequence_rows(array, len(value_states))
        return torch.from_numpy(array.reshape(num_rows, *array.shape[2:])).to(device)

    def flat_states(states: Array) -> Tensor:
        return torch.from_numpy(states.reshape(-1, states.shape[-1])).to(device)

    sequences = None
    if value_states is not None:
        # The first steps of sequences need no mark: their states are those the actions were chosen with.
        starts = np.zeros_like(rollout.ended)
        starts[1:] = rollout.ended[:-1]
        every = rollout.num_steps // len(value_states)
        policy_states = rollout.arrays[MEMORY][: rollout.num_steps : every]
        sequences = Sequences(flat_states(policy_states), flat_states(value_states), flat(starts))

    return RolloutSamples(
        {name: flat(array[:-1]) for name, array in rollout.observation.items()},
        None if rollout.mask is None else flat(rollout.mask),
        flat(rollout.actions).reshape(num_rows, -1),
        flat(rollout.log_probs),
        flat(advantages),
        flat(targets),
        sequences,
    )


def _sequence_rows(array: Array, num_sequences: int) -> Array:
    """A (steps, envs, ...) array as (sequences of an env x envs, steps of a sequence, ...)."""
    steps, envs, *shape = array.shape
    by_sequence = array.reshape(num_sequences, steps // num_sequences, envs, *shape)
    return by_sequence.swapaxes(1, 2).reshape(num_sequences * envs, steps // num_sequences, *shape)


class MetricMeans:
    """Means of metrics over minibatches; values stay on the device until they are read."""

    def __init__(self) -> None:
        self.values: dict[str, list[Tensor]] = {}

    def add(self, **values: Tensor) -> None:
        for name, value in values.items():
            self.values.setdefault(name, []).append(value.detach())

    def add_first_ratio_error(self, ratio_error: Tensor) -> None:
        """Largest |ratio - 1| of the first minibatch: rounding, or masks stored wrongly."""
        if "first_ratio_error" not in self.values:
            self.add(first_ratio_error=ratio_error.max())

    def last(self, name: str) -> float:
        return float(self.values[name][-1])

    def means(self) -> dict[str, float]:
        return {name: float(torch.stack(values).mean()) for name, values in self.values.items()}


class Minibatch(Protocol):
    """Rows that a loss is computed on."""

    def __len__(self) -> int: ...

    def rows(self, start: int, stop: int, /) -> Self: ...


Batch = TypeVar("Batch", bound=Minibatch)


class GradientAccumulator:
    """Gradient accumulation: splits minibatches into chunks once the device runs out of memory.

    Losses are means over rows, so the chunks' gradients, weighted by their rows, add up to that of
    the whole minibatch up to rounding.
    """

    def __init__(self) -> None:
        self.num_chunks = 1

    def backward(
        self, batch: Batch, loss_of: Callable[[Batch], Tensor], optimiser: torch.optim.Optimizer
    ) -> float | Tensor:
        """Put the gradient of a minibatch into the optimiser's parameters.

        Args:
            batch: The minibatch.
            loss_of: Mean loss over the rows it is given.
            optimiser: Its parameters receive the gradient.

        Returns:
            The loss.
        """
        while True:
            optimiser.zero_grad(set_to_none=True)
            try:
                return self._backward(batch, loss_of)
            except torch.OutOfMemoryError as error:
                if self.num_chunks >= len(batch):
                    raise TrainingError(
                        "a gradient step does not fit into the device's memory even one sample at "
                        "a time; use smaller networks (--hidden-sizes) or --device cpu."
                    ) from error
            self._halve(len(batch))

    def _backward(self, batch: Batch, loss_of: Callable[[Batch], Tensor]) -> float | Tensor:
        if self.num_chunks == 1:
            loss = loss_of(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()
        size = -(-len(batch) // self.num_chunks)
        total = 0.0
        for start in range(0, len(batch), size):
            chunk = batch.rows(start, start + size)
            loss = loss_of(chunk) * (len(chunk) / len(batch))
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total

    def _halve(self, num_rows: int) -> None:
        self.num_chunks = min(2 * self.num_chunks, num_rows)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        warnings.warn(
            f"a minibatch of {num_rows} did not fit into the device's memory; its gradient is "
            f"accumulated over {self.num_chunks} chunks from now on. A smaller --minibatch-size "
            "avoids this.",
            stacklevel=2,
        )
