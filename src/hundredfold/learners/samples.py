"""What an update works on: rows of experience in any order, and averages of what was seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold.core.batch import Array
from hundredfold.experience.advantages import Floats
from hundredfold.experience.rollout import Rollout


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
    rollout: Rollout, advantages: Floats, targets: Floats, device: torch.device
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
