"""Presets: run settings for an env, each with the reason for its choices.

`preset_settings(env)` is what `hundredfold train ENV` uses; `--preset NAME` selects another one.
With `--algo dqn` or `pqn` the settings of that algorithm are added to those of the env.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import Final

from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.dqn import DQNSettings
from hundredfold.algorithms.ppo import PPOSettings
from hundredfold.algorithms.pqn import PQNSettings
from hundredfold.backends.settings import WorkerSettings
from hundredfold.config.devices import Device, detect_device
from hundredfold.config.run import (
    Algorithm,
    EngineName,
    EvaluationSettings,
    LengthSettings,
    MachineSettings,
    RunSettings,
    SavingSettings,
)
from hundredfold.core.errors import SettingsError, suggest
from hundredfold.envs.registry import canonical_name, settings_class
from hundredfold.rollout.rollout_buffer import RolloutSettings

# Steps per env of a rollout of PQN.
PQN_STEPS: Final = 16


def device_preset(start: RunSettings, algo: Algorithm, device: Device) -> RunSettings:
    """Settings by device from a fixed table; the rest are defaults of Stable-Baselines3.

    A GPU needs 8 envs in processes, large batches and large networks to be busy; a CPU does best
    with one env and small networks.

    Args:
        start: Settings of the env.
        algo: Learning algorithm.
        device: Device of the networks.
    """
    if algo == "pqn":
        raise SettingsError(
            f"preset {BY_DEVICE} has no settings for pqn, which needs many envs; remove --preset, or use --algo ppo "
            "or dqn."
        )
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
    # Epochs are small here: evaluate and save at the same number of samples as elsewhere.
    interval = max(1, 20_480 // rollout.samples_per_epoch)
    return replace(
        start,
        algo=algo,
        rollout=rollout,
        evaluation=EvaluationSettings(eval_interval=interval, eval_episodes=16),
        saving=replace(start.saving, save_interval=interval),
        ppo=ppo,
        dqn=dqn,
        network=NetworkSettings(hidden_sizes=hidden, activation="tanh" if algo == "ppo" else "relu"),
        machine=MachineSettings(backend="processes" if gpu else "in_process"),
    )


Maker = Callable[[str], RunSettings]


@dataclass(frozen=True, slots=True)
class Preset:
    """Named settings of one env."""

    env: str
    summary: str
    make: Maker


def preset_settings(
    env: str,
    preset: str | None = None,
    algo: Algorithm = "ppo",
    device: str = "auto",
    engine: EngineName = "hundredfold",
) -> RunSettings:
    """Run settings of an env, before flags and files change them.

    Args:
        env: Name of a built-in env or a Gymnasium id.
        preset: Name of a preset; None or "auto" for the env's own defaults.
        algo: Learning algorithm.
        device: Device of the networks, for the preset by-device: auto, cpu or cuda.
        engine: Training library; others learn from returns alone.
    """
    name = canonical_name(env)
    defaults = ENV_DEFAULTS if algo == "ppo" and engine == "hundredfold" else ENV_DEFAULTS | FROM_RETURNS
    if preset == BY_DEVICE:
        start = (ENV_DEFAULTS | FROM_RETURNS).get(name, _for_gymnasium)(name)
        return device_preset(start, algo, detect_device(device))
    if preset in (None, AUTO):
        start = defaults.get(name, _for_gymnasium)(name)
        return WITH_ALGORITHM[algo](start)
    known = [key for key, entry in PRESETS.items() if entry.env == name]
    if preset not in known:
        raise SettingsError(
            f"there is no preset {preset!r} for {name}; {suggest(preset or '', [*known, AUTO, BY_DEVICE])}"
        )
    if algo != "ppo":
        raise SettingsError(f"preset {preset} works with --algo ppo only; remove --preset or use --algo ppo.")
    return PRESETS[preset].make(name)


def default_settings(env: str, tables: Container[str]) -> RunSettings:
    """Every setting at its class default, for a settings file with these tables.

    Args:
        env: Name of the env.
        tables: Names of the tables in the file.
    """
    belief_model = None
    if "belief_model" in tables:
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
        # 4 cells and a reward at the end: small networks, large steps.
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
        length=LengthSettings(episodes=2_560),
        # One epoch is one whole day of every env. Futures say much about every decision, so that few
        # days are enough, and many small epochs keep the acceptance model fresh.
        rollout=RolloutSettings(num_envs=64, num_steps=0),
        # Weights are shared over offers: what is learned about one shift holds for all.
        network=NetworkSettings(
            architecture="per_action", hidden_sizes=(64, 64), activation="silu", normalise_observations=True
        ),
        # A return of a day says little about one offer; paired futures have 60 times the signal per
        # sample. One pass over all stored decisions per epoch, in large steps that become small.
        ppo=PPOSettings(
            advantages="futures", learning_rate=2e-3, update_epochs=1, minibatch_size=512, max_gradient_norm=5.0
        ),
        # The learning rate ends at 0, so that the last weights are the best: evaluate them only.
        evaluation=EvaluationSettings(eval_interval=40, eval_episodes=64),
        saving=SavingSettings(save_interval=20, log_interval=10),
        # A refit takes milliseconds: do it after every 64 days.
        belief_model=AcceptanceModelSettings(acceptance_refit_interval=1_920),
        # Offers that are hardly ever accepted are closed; the network weighs the rest by their chance.
        env_settings=settings_class(env)(
            observation="offers", future_samples=2, mask_mode="threshold", mask_threshold=0.1, oracle_threads=2
        ),
    )


def _dvrp_from_returns(env: str) -> RunSettings:
    """PPO with GAE on the returns of whole days."""
    from hundredfold.envs.dvrp.acceptance.belief_model import AcceptanceModelSettings

    return RunSettings(
        env=env,
        length=LengthSettings(episodes=25_600),
        # One epoch is one whole day of every env.
        rollout=RolloutSettings(num_envs=256, num_steps=0),
        # Time windows, costs and coordinates have very different scales.
        network=NetworkSettings(hidden_sizes=(128, 128), normalise_observations=True),
        # Episodes are finite and their sum counts: no discount. Returns hardly change in scale.
        ppo=PPOSettings(gamma=1.0, num_minibatches=8, value_norm_momentum=0.1),
        evaluation=EvaluationSettings(eval_interval=20, eval_episodes=64),
        saving=SavingSettings(save_interval=20, log_interval=10),
        # A refit takes milliseconds: do it after every 64 days.
        belief_model=AcceptanceModelSettings(acceptance_refit_interval=1_920),
        env_settings=settings_class(env)(cost_hint=True, acceptance_hint=True, mask_mode="threshold", oracle_threads=2),
    )


def _meta_train_64(env: str) -> RunSettings:
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


def _meta_train_256(env: str) -> RunSettings:
    start = _meta_train_64(env)
    return replace(
        start,
        length=LengthSettings(episodes=25_600),
        rollout=replace(start.rollout, num_envs=256),
        ppo=replace(start.ppo, learning_rate=5e-4, num_value_epochs=30, num_policy_epochs=8, minibatch_size=128),
    )


def _for_cage2(env: str) -> RunSettings:
    cage2 = settings_class(env)(
        # Memory of blue's decoys, of what red's first scan of a host found, and of how long ago
        # something was seen or done there: the 52 bits alone do not distinguish very different
        # states.
        channels=("decoys", "scans", "scanned_decoys", "recency", "elapsed"),
        # Most of the 145 actions are useless most of the time, visibly so.
        action_mask="sensible",
        # The official score adds up three horizons, so early steps count three times.
        horizons=(30, 50, 100),
        # A sleeping red agent teaches little: one episode in nine is enough.
        red_weights=(1.0, 1.0, 0.25),
    )
    return RunSettings(
        env=env,
        length=LengthSettings(steps=18_000_000),
        rollout=RolloutSettings(num_envs=512, num_steps=100),
        network=NetworkSettings(hidden_sizes=(256, 256)),
        # An env step costs a tenth of learning from it: prefer new samples to more passes over
        # old ones. The entropy bonus starts high and ends at 0: the best defences differ little
        # from good ones, and telling them apart takes long exploration.
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


def _rllib_20x5(env: str) -> RunSettings:
    """RLlib's PPO with 20 workers x 5 envs and fragments of 100 steps.

    On a machine with fewer cores fewer workers hold as many envs; the batch stays the same.
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
    """The same env with DQN."""
    changes: dict[str, DQNSettings] = {
        # Four cells and a reward at the end: little data is needed before learning starts.
        "corridor": DQNSettings(learning_starts=200, replay_size=10_000),
        # Episodes are finite and their sum counts; costs come late in them.
        "dvrp": DQNSettings(gamma=1.0, learning_rate=5e-4, batch_size=256, train_frequency=1_024),
        # Env steps are cheap: fewer gradient steps per sample, in larger batches.
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
        # Off-policy data of early exploration needs a larger network.
        network=replace(start.network, hidden_sizes=tuple(max(128, width) for width in start.network.hidden_sizes)),
        dqn=changes.get(start.env, DQNSettings()),
    )


def _with_pqn(start: RunSettings) -> RunSettings:
    """The same env with PQN."""
    changes: dict[str, PQNSettings] = {
        # Episodes are finite and their sum counts.
        "dvrp": PQNSettings(gamma=1.0, num_minibatches=16),
        # Long rollouts of many envs: more minibatches of the same size as elsewhere.
        "cage2": PQNSettings(gamma=0.995, num_minibatches=64),
        # Steps cost next to nothing: fresh samples are cheaper than a second pass over old ones.
        "cartpole": PQNSettings(update_epochs=1, num_minibatches=8),
    }
    rollout = start.rollout
    if start.env not in ("dvrp", "cage2"):
        # Targets are bootstrapped with the newest weights: short rollouts, many updates.
        rollout = replace(rollout, num_envs=max(32, rollout.num_envs), num_steps=PQN_STEPS)
    return replace(
        start,
        algo="pqn",
        rollout=rollout,
        network=replace(
            start.network,
            hidden_sizes=tuple(max(128, width) for width in start.network.hidden_sizes),
            normalise_observations=True,
        ),
        # Updates are small: evaluate and save as often per sample as with the rollouts of PPO.
        evaluation=replace(start.evaluation, eval_interval=_stretched(start, rollout, start.evaluation.eval_interval)),
        saving=replace(
            start.saving,
            save_interval=_stretched(start, rollout, start.saving.save_interval),
            log_interval=_stretched(start, rollout, start.saving.log_interval),
        ),
        pqn=changes.get(start.env, PQNSettings()),
    )


def _stretched(start: RunSettings, rollout: RolloutSettings, interval: int) -> int:
    """An interval of `start` in epochs of other rollouts that have about as many samples."""
    samples = start.rollout.num_envs * max(start.rollout.num_steps, 1)
    return max(interval, round(interval * samples / (rollout.num_envs * max(rollout.num_steps, 1))))


WITH_ALGORITHM: dict[Algorithm, Callable[[RunSettings], RunSettings]] = {
    "ppo": lambda start: start,
    "dqn": _with_dqn,
    "pqn": _with_pqn,
}

ENV_DEFAULTS: dict[str, Maker] = {
    "corridor": _for_corridor,
    "cartpole": _for_cartpole,
    "dvrp": _for_dvrp,
    "cage2": _for_cage2,
}

# Defaults of algorithms and libraries that learn from returns alone.
FROM_RETURNS: dict[str, Maker] = {"dvrp": _dvrp_from_returns}

# Presets for every env: automatic configuration from measurements, and a table by device.
AUTO: Final = "auto"
BY_DEVICE: Final = "by-device"

PRESETS: dict[str, Preset] = {
    "default": Preset("dvrp", "settings of `train dvrp`: a per-offer network, paired futures", _for_dvrp),
    "returns": Preset("dvrp", "PPO on the returns of 25,600 days, 256 envs", _dvrp_from_returns),
    "meta-train-64": Preset("dvrp", "64 envs, 40 value and 10 policy epochs, as in meta_train.py", _meta_train_64),
    "meta-train-256": Preset("dvrp", "the same scaled to 256 envs and 25,600 episodes", _meta_train_256),
    "rllib-20x5": Preset("cage2", "PPO of RLlib, 20 workers x 5 envs, batches of 10,000", _rllib_20x5),
}
