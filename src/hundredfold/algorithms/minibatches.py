"""What an update works on: rows of experience in any order, and averages of what was seen.

Gradients of a minibatch that may be too large for the device: taken in pieces where they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold.core.batch import Array
from hundredfold.core.errors import TrainingError
from hundredfold.rollout.gae import Floats
from hundredfold.rollout.rollout_buffer import RolloutBuffer


@dataclass(slots=True)
class Samples:
    """Rows to learn from, in any order."""

    observation: dict[str, Tensor]  # each (rows, ...)
    mask: Tensor | None  # (rows, num_logits)
    actions: Tensor  # (rows, parts)
    log_probs: Tensor  # (rows,) when they were chosen
    advantages: Tensor  # (rows,)
    targets: Tensor  # (rows,) of the scaled value

    def __len__(self) -> int:
        return len(self.actions)

    def picked(self, order: Tensor) -> Samples:
        """The rows in another order."""
        return Samples(
            {name: part.index_select(0, order) for name, part in self.observation.items()},
            None if self.mask is None else self.mask.index_select(0, order),
            *(
                part.index_select(0, order)
                for part in (self.actions, self.log_probs, self.advantages, self.targets)
            ),
        )

    def rows(self, start: int, stop: int) -> Samples:
        """A run of rows, without copying."""
        cut = slice(start, stop)
        return Samples(
            {name: part[cut] for name, part in self.observation.items()},
            None if self.mask is None else self.mask[cut],
            *(part[cut] for part in (self.actions, self.log_probs, self.advantages, self.targets)),
        )

    def shuffled_parts(self, size: int, seed: int) -> Iterator[Samples]:
        """All rows once, in an order drawn from the seed, `size` at a time."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        shuffled = self.picked(order.to(self.actions.device))
        for start in range(0, len(self), size):
            yield shuffled.rows(start, start + size)


def samples_of(
    rollout: RolloutBuffer, advantages: Floats, targets: Floats, device: torch.device
) -> Samples:
    """The rollout as one long list of rows; on the CPU it shares the rollout's memory."""
    rows = rollout.num_steps * rollout.num_envs

    def flat(array: Array) -> Tensor:
        return torch.from_numpy(array.reshape(rows, *array.shape[2:])).to(device)

    return Samples(
        {name: flat(array[:-1]) for name, array in rollout.observation.items()},
        None if rollout.mask is None else flat(rollout.mask),
        flat(rollout.actions).reshape(rows, -1),
        flat(rollout.log_probs),
        flat(advantages),
        flat(targets),
    )


class Report:
    """Averages of what minibatches report, without waiting for the device each time."""

    def __init__(self) -> None:
        self.values: dict[str, list[Tensor]] = {}

    def add(self, **values: Tensor) -> None:
        for name, value in values.items():
            self.values.setdefault(name, []).append(value.detach())

    def first_ratio(self, away: Tensor) -> None:
        """How far the first minibatch's ratios are from 1: rounding, or masks stored wrongly."""
        if "first_ratio_error" not in self.values:
            self.add(first_ratio_error=away.max())

    def last(self, name: str) -> float:
        return float(self.values[name][-1])

    def means(self) -> dict[str, float]:
        return {name: float(torch.stack(found).mean()) for name, found in self.values.items()}


class Pieces:
    """Into how many pieces minibatches are cut: one, until the device's memory runs out.

    Losses are means over rows, so the pieces' gradients, weighted by their rows, add up to that of
    the whole: only rounding tells the difference.
    """

    def __init__(self) -> None:
        self.count = 1

    def backward(
        self,
        batch: Samples,
        loss_of: Callable[[Samples], Tensor],
        optimiser: torch.optim.Optimizer,
    ) -> float | Tensor:
        """Leave the loss's gradient in the optimiser's parameters; returns the loss."""
        while True:
            optimiser.zero_grad(set_to_none=True)
            try:
                return self._backward(batch, loss_of)
            except torch.OutOfMemoryError as error:
                if self.count >= len(batch):
                    raise TrainingError(
                        "a gradient step does not fit into the device's memory even one sample at "
                        "a time; use smaller networks (--hidden) or --device cpu."
                    ) from error
            self._halve(len(batch))

    def _backward(self, batch: Samples, loss_of: Callable[[Samples], Tensor]) -> float | Tensor:
        if self.count == 1:
            loss = loss_of(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()
        size = -(-len(batch) // self.count)
        whole = 0.0
        for start in range(0, len(batch), size):
            piece = batch.rows(start, start + size)
            loss = loss_of(piece) * (len(piece) / len(batch))
            loss.backward()  # type: ignore[no-untyped-call]
            whole += float(loss.detach())
        return whole

    def _halve(self, rows: int) -> None:
        self.count = min(2 * self.count, rows)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        warnings.warn(
            f"a minibatch of {rows} did not fit into the device's memory; it is taken in "
            f"{self.count} pieces from now on. A smaller --minibatch-size does the same sooner.",
            stacklevel=2,
        )
