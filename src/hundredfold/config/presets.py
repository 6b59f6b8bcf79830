"""Where a run starts from: settings that suit an env before anyone changes them.

A starting point is what `hundredfold train ENV` does by itself; a preset is another one that can
be asked for by name. Those of DQN lay its own settings over the env's.

Settings that follow from the device alone.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import Final

from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.dqn import DQNSettings
from hundredfold.algorithms.ppo import PPOSettings
from hundredfold.backends.settings import WorkerSettings
from hundredfold.config.devices import Device, device_at_hand
from hundredfold.config.run import (
    Algorithm,
    EvaluationSettings,
    LengthSettings,
    MachineSettings,
    RunSettings,
    SavingSettings,
)
from hundredfold.core.errors import SettingsError, suggest
from hundredfold.envs.registry import canonical_name, settings_class
from hundredfold.rollout.rollout_buffer import RolloutSettings


def seed_004(start: RunSettings, algo: Algorithm, device: Device) -> RunSettings:
    """Settings by device from a fixed table; what it leaves open is as in Stable-Baselines3.

    A GPU is kept busy by 8 envs in processes, large batches and large networks; on a CPU one env
    and small networks do.
    """
    gpu = device.kind == "cuda"
    ppo = PPOSettings(
        minibatch_size=256 if gpu else 64,
        update_epochs=10 if gpu else 4,
        learning_rate=3e-4,
        anneal_learning_rate=False,
        entropy_coefficient=0.0,
        normalise_values=False,
    )
    dqn = DQNSettings(
        batch_size=128 if gpu else 32,
        replay_size=50_000 if gpu else 10_000,
        learning_rate=1e-4,
        train_frequency=4,
        gradient_steps=1,
        learning_starts=100,
        target_interval=2_500,  # gradient steps: 10,000 samples
        n_step=1,
        double_q=False,
        exploration_fraction=0.1,
        exploration_end=0.05,
    )
    large = {"ppo": (256, 256), "dqn": (256, 256, 256)}
    hidden = large[algo] if gpu else (128, 128)
    rollout = RolloutSettings(num_envs=8 if gpu else 1, num_steps=512 if gpu else 256)
    # Epochs are small here: judge and save as often as others do, by samples.
    interval = max(1, 20_480 // rollout.samples_per_epoch)
    return replace(
        start,
        algo=algo,
        rollout=rollout,
        evaluation=EvaluationSettings(eval_interval=interval, eval_episodes=16),
        saving=replace(start.saving, save_interval=interval),
        ppo=ppo,
        dqn=dqn,
        network=NetworkSettings(
            hidden_sizes=hidden, activation="tanh" if algo == "ppo" else "relu"
        ),
        machine=MachineSettings(backend="processes" if gpu else "in_process"),
    )


Maker = Callable[[str], RunSettings]


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings under a name."""

    env: str
    summary: str
    make: Maker


def starting_point(
    env: str, preset: str | None = None, algo: Algorithm = "ppo", device: str = "auto"
) -> RunSettings:
    """The settings of an env, by name or Gymnasium id, before anyone changes them."""
    name = canonical_name(env)
    if preset == SEED_004:
        start = STARTING_POINTS.get(name, _for_gymnasium)(name)
        return seed_004(start, algo, device_at_hand(device))
    if preset in (None, AUTO):
        start = STARTING_POINTS.get(name, _for_gymnasium)(name)
        return start if algo == "ppo" else _with_dqn(start)
    known = [key for key, entry in PRESETS.items() if entry.env == name]
    if preset not in known:
        raise SettingsError(
            f"there is no preset {preset!r} for {name}; "
            f"{suggest(preset or '', [*known, AUTO, SEED_004])}"
        )
    if algo != "ppo":
        raise SettingsError(f"the preset {preset} is for ppo; leave it away, or --algo {algo}.")
    return PRESETS[preset].make(name)


def plain_settings(env: str, named: Container[str]) -> RunSettings:
    """Every setting at its own default, for a settings file that names these tables."""
    belief_model = None
    if "belief_model" in named:
        from hundredfold.envs.dvrp.acceptance.belief_model import AcceptanceModelSettings

        belief_model = AcceptanceModelSettings()
    # A run can be read, and its policy loaded, where its env is not installed.
    env_settings = settings_class(env, installed=False)()
    return RunSettings(env=env, env_settings=env_settings, belief_model=belief_model)


def _for_corridor(env: str) -> RunSettings:
    return RunSettings(
        env=env,
        length=LengthSettings(steps=20_000),
        rollout=RolloutSettings(num_envs=16, num_steps=32),
        # 4 cells to walk and a reward at the end: small networks, quick steps.
        network=NetworkSettings(hidden_sizes=(32, 32)),
        ppo=PPOSettings(learning_rate=3e-3),
        env_settings=settings_class(env)(),
    )


def _for_cartpole(env: str) -> RunSettings:
    return RunSettings(
        env=env,
        length=LengthSettings(steps=200_000),
        # Short rollouts of many envs: an update every 2,048 samples, each on fresh data.
        rollout=RolloutSettings(num_envs=64, num_steps=32),
        env_settings=settings_class(env)(),
    )


def _for_dvrp(env: str) -> RunSettings:
    from hundredfold.envs.dvrp.acceptance.belief_model import AcceptanceModelSettings

    return RunSettings(
        env=env,
        length=LengthSettings(episodes=25_600),
        # One epoch is one whole day of every env.
        rollout=RolloutSettings(num_envs=256, num_steps=0),
        # Windows, prices and places come in very different sizes.
        network=NetworkSettings(hidden_sizes=(128, 128), normalise_observations=True),
        # A day is finite and its sum is what counts: no discount.
        # Days are alike: what they pay hardly changes its scale.
        ppo=PPOSettings(gamma=1.0, num_minibatches=8, value_norm_momentum=0.1),
        evaluation=EvaluationSettings(eval_interval=20, eval_episodes=64),
        saving=SavingSettings(save_interval=20, log_interval=10),
        # Counting takes milliseconds, so there is no reason to wait: learn from every 64 days.
        belief_model=AcceptanceModelSettings(acceptance_refit_interval=1_920),
        env_settings=settings_class(env)(
            cost_hint=True, acceptance_hint=True, mask_mode="threshold", oracle_threads=2
        ),
    )


def _seeds_64(env: str) -> RunSettings:
    from hundredfold.envs.dvrp.acceptance.belief_model import AcceptanceModelSettings

    return RunSettings(
        env=env,
        length=LengthSettings(episodes=1_000),
        rollout=RolloutSettings(num_envs=64, num_steps=0),
        network=NetworkSettings(hidden_sizes=(256, 256, 128), activation="tanh"),
        ppo=PPOSettings(
            learning_rate=3e-4,
            anneal_learning_rate=False,
            num_value_epochs=40,
            num_policy_epochs=10,
            minibatch_size=64,
            gamma=0.99,
            gae_lambda=0.95,
            clip_range=0.1,
            entropy_coefficient=0.05,
            value_coefficient=0.5,
            max_gradient_norm=0.5,
            normalise_values=False,
        ),
        evaluation=EvaluationSettings(eval_interval=5, eval_episodes=8, eval_seed=9999),
        saving=SavingSettings(save_interval=10, log_interval=1),
        belief_model=AcceptanceModelSettings(acceptance_model="embedding"),
        env_settings=settings_class(env)(observation="counts", mask_mode="sampled_type"),
    )


def _seeds_256(env: str) -> RunSettings:
    start = _seeds_64(env)
    return replace(
        start,
        length=LengthSettings(episodes=25_600),
        rollout=replace(start.rollout, num_envs=256),
        ppo=replace(
            start.ppo,
            learning_rate=5e-4,
            num_value_epochs=30,
            num_policy_epochs=8,
            minibatch_size=128,
        ),
    )


def _for_cage2(env: str) -> RunSettings:
    cage2 = settings_class(env)(
        # Blue remembers its own decoys, what red found at its first scan of a host, and how long
        # ago it saw or did something there: without a memory the 52 bits alone do not tell very
        # different situations apart.
        channels=("decoys", "scans", "scanned_decoys", "recency", "elapsed"),
        # Most of the 145 actions are useless most of the time, and blue can know it.
        action_mask="sensible",
        # The official table adds up three lengths, so early steps count three times.
        horizons=(30, 50, 100),
        # A sleeping red teaches little: one episode in nine is enough to leave it alone.
        red_weights=(1.0, 1.0, 0.25),
    )
    return RunSettings(
        env=env,
        length=LengthSettings(steps=18_000_000),
        rollout=RolloutSettings(num_envs=512, num_steps=100),
        network=NetworkSettings(hidden_sizes=(256, 256)),
        # A step of the env costs a tenth of a step of learning: rather new samples than old ones
        # a third and a fourth time. The entropy bonus starts high and ends at 0: the best defences
        # differ little from good ones, and it takes long to tell them apart.
        ppo=PPOSettings(
            gamma=0.995,
            update_epochs=2,
            num_minibatches=16,
            entropy_coefficient=0.05,
            anneal_entropy=True,
            value_norm_momentum=0.1,
        ),
        evaluation=EvaluationSettings(eval_interval=20, eval_episodes=900),
        saving=SavingSettings(save_interval=20, log_interval=10),
        env_settings=cage2,
    )


def _seed_003(env: str) -> RunSettings:
    """RLlib's PPO as first described: 20 workers x 5 envs, fragments of 100 steps.

    On a machine with fewer cores fewer workers hold as many envs; the batch stays what it is.
    """
    start = _for_cage2(env)
    return replace(
        start,
        engine="rllib",
        length=LengthSettings(steps=1_000_000),
        rollout=RolloutSettings(num_envs=100, num_steps=100),
        ppo=PPOSettings(minibatch_size=500),
        processes=WorkerSettings(workers=20),
    )


def _for_gymnasium(env: str) -> RunSettings:
    return RunSettings(
        env=env,
        length=LengthSettings(steps=250_000),
        rollout=RolloutSettings(num_envs=8, num_steps=128),
        env_settings=settings_class(env)(),
    )


def _with_dqn(start: RunSettings) -> RunSettings:
    """The same env learned with DQN."""
    changes: dict[str, DQNSettings] = {
        # Four cells and a reward at the end: there is little to gather before learning.
        "corridor": DQNSettings(learning_starts=200, replay_size=10_000),
        # A day is finite and its sum is what counts; prices come late in it.
        "dvrp": DQNSettings(gamma=1.0, learning_rate=5e-4, batch_size=256, train_frequency=1_024),
        # Steps are cheap here: learn from each of them less often, in larger batches.
        "cage2": DQNSettings(
            learning_rate=3e-4,
            batch_size=512,
            train_frequency=2_048,
            learning_starts=50_000,
            replay_size=500_000,
            target_interval=500,
            dueling=True,
        ),
    }
    return replace(
        start,
        algo="dqn",
        # What is gathered with random actions at first is worth more in a larger network.
        network=replace(
            start.network,
            hidden_sizes=tuple(max(128, width) for width in start.network.hidden_sizes),
        ),
        dqn=changes.get(start.env, DQNSettings()),
    )


STARTING_POINTS: dict[str, Maker] = {
    "corridor": _for_corridor,
    "cartpole": _for_cartpole,
    "dvrp": _for_dvrp,
    "cage2": _for_cage2,
}

# Presets for every env: what is measured decides, and what a table says about the device.
AUTO: Final = "auto"
SEED_004: Final = "seed-004"

PRESETS: dict[str, Preset] = {
    "ours": Preset("dvrp", "what `train dvrp` does by itself", _for_dvrp),
    "seeds-64": Preset(
        "dvrp", "64 envs, 40 value and 10 policy epochs, as first described", _seeds_64
    ),
    "seeds-256": Preset("dvrp", "the same scaled to 256 envs and 25,600 episodes", _seeds_256),
    "seed-003": Preset("cage2", "PPO of RLlib, 20 workers x 5 envs, batches of 10,000", _seed_003),
}
