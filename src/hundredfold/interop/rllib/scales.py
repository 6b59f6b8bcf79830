"""Scales of a network's inputs for RLlib, whose learner has no place for ones that change.

Random actions are played for a while before training; what the envs show then decides the scales.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

import numpy as np
import torch

from hundredfold.core.contracts import ForeignWorld, WorldFactory
from hundredfold.core.faults import Guard
from hundredfold.learners.networks import Inputs, tensors
from hundredfold.training.evaluate import random_actor

NUM_ENVS: Final = 32
NUM_STEPS: Final = 64


def learn_first_scales(
    inputs: Inputs, make_world: WorldFactory, seed: int, guard: Guard | None = None
) -> None:
    """Set the scales from some steps of random allowed actions."""
    with closing(make_world(np.arange(NUM_ENVS))) as world:
        if guard is not None and isinstance(world, ForeignWorld):
            world.guard = guard
        act, batch = random_actor(world.spec, seed), world.reset(seed)
        for _ in range(NUM_STEPS):
            inputs.learn_scale(tensors(batch.observation, torch.device("cpu")))
            batch = world.step(act(batch))
