"""Scales of a network's inputs for RLlib, whose learner has no place for ones that change.

Random actions are played for a while before training; what the envs show then decides the scales.
"""

from __future__ import annotations

from contextlib import closing
from time import monotonic
from typing import Final

import numpy as np

from hundredfold.core.contracts import ForeignWorld, WorldFactory
from hundredfold.learners.networks import Inputs, tensors
from hundredfold.settings.run import RunSettings
from hundredfold.training.evaluate import random_actor

# No more envs than will be trained on, and not for long where they are slow.
MOST_ENVS: Final = 32
NUM_STEPS: Final = 64
MOST_SECONDS: Final = 10.0


def learn_first_scales(inputs: Inputs, make_world: WorldFactory, settings: RunSettings) -> None:
    """Set the scales from some steps of random allowed actions."""
    num_envs = min(MOST_ENVS, settings.rollout.num_envs)
    until = monotonic() + MOST_SECONDS
    with closing(make_world(np.arange(num_envs))) as world:
        if isinstance(world, ForeignWorld):
            world.guard = settings.processes.guard()
        act, batch = random_actor(world.spec, settings.seed), world.reset(settings.seed)
        for step in range(NUM_STEPS):
            inputs.learn_scale(tensors(batch.observation, inputs.mean.device))
            if step and monotonic() > until:
                break
            batch = world.step(act(batch))
