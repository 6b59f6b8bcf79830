"""Rows of a replay as the networks want them: drawn at once for many gradient steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hundredfold.core.batch import Array
from hundredfold.experience.replay import Replay
from hundredfold.learners.networks import Inputs


class Minibatch(NamedTuple):
    """Rows of one gradient step."""

    inputs: Tensor  # (2 x batch, width) what was seen, then what was seen at the end
    actions: Tensor  # (batch, 1)
    returns: Tensor  # (batch, 1)
    discounts: Tensor  # (batch, 1)
    mask: Tensor | None  # (batch, actions) of what was seen at the end


@dataclass(slots=True)
class Minibatches:
    """Rows of several gradient steps."""

    inputs: Tensor  # (steps, 2, batch, width)
    actions: Tensor  # (steps, batch, 1)
    returns: Tensor  # (steps, batch, 1)
    discounts: Tensor  # (steps, batch, 1)
    mask: Tensor | None  # (steps, batch, actions)

    def one_by_one(self) -> Iterator[Minibatch]:
        """Each gradient step's own part, without copying."""
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


def drawn_from(
    replay: Replay, steps: int, batch_size: int, inputs: Inputs, device: torch.device
) -> Minibatches:
    """Samples for so many gradient steps; their inputs are scaled, after the scale has learned."""
    shape = (steps, batch_size)
    rows, ends = replay.sample(steps * batch_size)
    both = np.stack([rows.reshape(shape), ends.reshape(shape)], axis=1).reshape(-1)

    def picked(array: Array, index: Array) -> Tensor:
        found = torch.from_numpy(array).index_select(0, torch.from_numpy(index))
        return found.to(device)

    observation = {name: picked(array, both) for name, array in replay.observation.items()}
    inputs.learn_scale(observation)
    return Minibatches(
        inputs(observation).reshape(steps, 2, batch_size, -1),
        picked(replay.actions, rows).long().reshape(*shape, 1),
        picked(replay.returns, rows).reshape(*shape, 1),
        picked(replay.discounts, rows).reshape(*shape, 1),
        None if replay.mask is None else picked(replay.mask, ends).reshape(*shape, -1),
    )
