"""Where a run starts from: settings that suit a world before anyone changes them."""

from __future__ import annotations

from collections.abc import Callable

from hundredfold.experience.rollout import RolloutSettings
from hundredfold.learners.networks import NetworkSettings
from hundredfold.learners.ppo import PPOSettings
from hundredfold.settings.run import (
    EvaluationSettings,
    LengthSettings,
    RunSettings,
    SavingSettings,
)
from hundredfold.worlds import own_name, settings_class


def starting_point(world: str) -> RunSettings:
    """The default settings of a world, by name or Gymnasium id."""
    name = own_name(world)
    return STARTING_POINTS.get(name, _for_gymnasium)(name)


def _for_corridor(world: str) -> RunSettings:
    return RunSettings(
        world=world,
        length=LengthSettings(steps=20_000),
        rollout=RolloutSettings(num_envs=16, num_steps=32),
        # 4 cells to walk and a reward at the end: small networks, quick steps.
        network=NetworkSettings(hidden=(32, 32)),
        ppo=PPOSettings(learning_rate=3e-3),
        world_settings=settings_class(world)(),
    )


def _for_cartpole(world: str) -> RunSettings:
    return RunSettings(
        world=world,
        length=LengthSettings(steps=200_000),
        # Short rollouts of many envs: an update every 2,048 samples, each on fresh data.
        rollout=RolloutSettings(num_envs=64, num_steps=32),
        world_settings=settings_class(world)(),
    )


def _for_dvrp(world: str) -> RunSettings:
    return RunSettings(
        world=world,
        length=LengthSettings(episodes=6_400),
        # One epoch is one whole day of every env.
        rollout=RolloutSettings(num_envs=64, num_steps=0),
        # Windows, prices and places come in very different sizes.
        network=NetworkSettings(hidden=(128, 128), normalise_observations=True),
        # A day is finite and its sum is what counts: no discount.
        ppo=PPOSettings(gamma=1.0, num_minibatches=8),
        evaluation=EvaluationSettings(eval_interval=20, eval_episodes=64),
        saving=SavingSettings(save_interval=20, log_interval=10),
        world_settings=settings_class(world)(price_hint=True),
    )


def _for_cage2(world: str) -> RunSettings:
    cage2 = settings_class(world)(
        # Blue remembers its own decoys and the scans it saw, and counts the steps: without a memory
        # the 52 bits alone do not tell two very different situations apart.
        channels=("decoys", "scans", "elapsed"),
        # The official table adds up three lengths, so early steps count three times.
        horizons=(30, 50, 100),
        # A sleeping red teaches little: one episode in nine is enough to leave it alone.
        mix=(1.0, 1.0, 0.25),
    )
    return RunSettings(
        world=world,
        length=LengthSettings(steps=13_000_000),
        rollout=RolloutSettings(num_envs=256, num_steps=100),
        network=NetworkSettings(hidden=(256, 256)),
        ppo=PPOSettings(
            gamma=0.995, num_minibatches=8, entropy_coefficient=0.02, anneal_entropy=True
        ),
        evaluation=EvaluationSettings(eval_interval=20, eval_episodes=300),
        saving=SavingSettings(save_interval=20, log_interval=10),
        world_settings=cage2,
    )


def _for_gymnasium(world: str) -> RunSettings:
    return RunSettings(
        world=world,
        length=LengthSettings(steps=250_000),
        rollout=RolloutSettings(num_envs=8, num_steps=128),
        world_settings=settings_class(world)(),
    )


STARTING_POINTS: dict[str, Callable[[str], RunSettings]] = {
    "corridor": _for_corridor,
    "cartpole": _for_cartpole,
    "dvrp": _for_dvrp,
    "cage2": _for_cage2,
}
