"""Trained policies of run folders: load and copy them, with the envs and beliefs that belong to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hundredfold.algorithms.custom_network import NetworkFunction, using_network
from hundredfold.algorithms.loaded_policy import LoadedPolicy
from hundredfold.config.devices import torch_device
from hundredfold.config.presets import preset_settings
from hundredfold.config.run import RunSettings
from hundredfold.core.batch import with_prefix, without_prefix
from hundredfold.core.errors import SettingsError
from hundredfold.core.protocols import EnvFactory, SharedParams
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.registry import callable_factory, env_factory
from hundredfold.training.build import load_belief_model, policy_from_weights
from hundredfold.training.checkpoint import load_checkpoint, save_checkpoint
from hundredfold.training.run_folder import RunFolder
from hundredfold.training.trust import require_trust


def load(
    run: str | Path, checkpoint: str | int = "best", device: str = "cpu", network: NetworkFunction | None = None
) -> LoadedPolicy:
    """Load the policy of a run.

    Args:
        run: Run folder.
        checkpoint: "best", "last" or an epoch.
        device: Device of the network.
        network: Function that makes the network, for runs that were trained with one.
    """
    folder = RunFolder.open(Path(run))
    settings = folder.settings()
    saved = load_checkpoint(folder, str(checkpoint), parts={"learner"})
    weights = without_prefix("network", saved.parts["learner"])
    with using_network(network):
        policy = policy_from_weights(settings, saved.spec, weights, torch_device(device))
    return LoadedPolicy(policy, saved.spec, saved.epoch, settings.seed)


def belief_params(run: str | Path, checkpoint: str | int = "best") -> SharedParams | None:
    """Parameters of a run's belief model at a checkpoint; None if the run has none."""
    belief_model = load_belief_model(RunFolder.open(Path(run)), str(checkpoint))
    return None if belief_model is None else belief_model.params(exploring=False)


def export_policy_folder(run: str | Path, path: str | Path, checkpoint: str = "best") -> Path:
    """Copy what `load` needs of a run, and nothing else, to a new folder.

    Args:
        run: Run folder.
        path: Folder to create.
        checkpoint: "best", "last" or an epoch.
    """
    source = RunFolder.open(Path(run))
    saved = load_checkpoint(source, checkpoint, parts={"learner"})
    network = without_prefix("network", saved.parts["learner"])
    saved.parts = {"learner": with_prefix("network", network)}
    target = RunFolder.create(source.settings(), Path(path).parent, Path(path).name, keep_data=False)
    save_checkpoint(target, saved)
    target.release()
    return target.path


def evaluation_envs(
    target: str | Path, make_env: Callable[[], Any] | None, trust_run: bool, shift_penalty: float | None = None
) -> tuple[RunSettings, EnvFactory]:
    """Settings and env factory of a run, or of an env by its preset.

    Args:
        target: Run folder, or a built-in env or Gymnasium id.
        make_env: Function that makes the env, for runs on a user's function.
        trust_run: Import the module of an env that only the run folder names.
        shift_penalty: Shift penalty of dvrp instead of that of the training.
    """
    is_run = (Path(target) / "settings.toml").exists()
    settings = RunFolder.open(Path(target)).settings() if is_run else preset_settings(str(target))
    if is_run and make_env is None:
        # Evaluation never joins the cluster of a run.
        require_trust(RunFolder.open(Path(target)), settings, {"address"}, trust_run)
    if shift_penalty is not None:
        settings = _with_shift_penalty(settings, shift_penalty)
    if isinstance(settings.env_settings, DvrpSettings):
        # Estimates of all offers are for training only.
        settings = replace(settings, env_settings=replace(settings.env_settings, future_samples=0))
    # A policy needs no privileged arrays, so these envs have none.
    if make_env is None:
        return settings, env_factory(settings.env, settings.env_settings)
    return settings, callable_factory(make_env, settings.env_settings if is_run else None)


def _with_shift_penalty(settings: RunSettings, shift_penalty: float) -> RunSettings:
    """The same settings with another shift penalty, for policies that observe it."""
    env_settings = settings.env_settings
    if not isinstance(env_settings, DvrpSettings) or env_settings.observation != "offers":
        raise SettingsError(
            f"shift_penalty={shift_penalty:g} changes nothing here: it is an input of policies of dvrp that were "
            f"trained with observation='offers', and this is {settings.env} without it."
        )
    return replace(settings, env_settings=replace(env_settings, shift_penalty=shift_penalty))
