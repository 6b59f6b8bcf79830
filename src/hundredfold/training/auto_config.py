"""Automatic configuration: settings of third-party envs from measurements, each with its reason.

Built-in envs have presets. For other envs the cost of a step, the size of observations and the
device are measured: they decide how many envs and how large batches pay. Values are few and far
apart, so that the same env on the same machine gets the same settings every time; settings that the
user chose stay as they are.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from hundredfold.algorithms.image_encoder import image_layout
from hundredfold.backends.auto_select import choose_from_profile, profile_env
from hundredfold.backends.env_profile import StepCosts
from hundredfold.config.devices import Device, detect_device
from hundredfold.config.presets import default_settings
from hundredfold.config.run import RunSettings
from hundredfold.config.toml import apply_table, to_table, with_overrides
from hundredfold.core.batch import EnvSpec
from hundredfold.core.files import read_sealed_json, sealed_json, write_atomically
from hundredfold.core.formatting import format_bytes, format_duration
from hundredfold.core.protocols import EnvFactory
from hundredfold.rollout.replay_buffer import row_bytes
from hundredfold.training.build import training_factory
from hundredfold.training.engines import OWN

# Below this a policy call costs as much as many steps.
CHEAP_SECONDS: Final = 150e-6
COSTLY_SECONDS: Final = 3e-3
# Samples of one PPO update: enough for low-variance advantages, few enough to update often.
SAMPLES_PER_UPDATE: Final = 2_048
# The same for PQN, whose targets use the newest weights.
SAMPLES_PER_PQN_UPDATE: Final = 512
# Share of the free memory that buffers may take.
MEMORY_SHARE: Final = 0.25
# Larger observations get a wider network.
MANY_INPUTS: Final = 64
# Steps of an evaluation that hardly count, where steps are cheap: 32 episodes of 500 steps.
CHEAP_EVALUATION_STEPS: Final = 16_000


@dataclass(frozen=True, slots=True)
class AutoSetting:
    """A setting that was chosen automatically, and why."""

    name: str
    value: Any
    reason: str

    @property
    def summary(self) -> str:
        """One line: flag, value and reason."""
        value = ",".join(map(str, self.value)) if isinstance(self.value, tuple) else self.value
        return f"  --{self.name.replace('_', '-')} {value}: {self.reason}"


def auto_configure(
    settings: RunSettings, given: Container[str], make_envs: EnvFactory | None = None
) -> tuple[RunSettings, list[str]]:
    """Fit settings to a third-party env and this machine.

    The env is profiled for a moment; settings of built-in envs, and of envs that hang while they
    are profiled, stay as they are.

    Args:
        settings: Run settings.
        given: Names of settings that the user chose.
        make_envs: Env factory; by default that of `settings.env`.

    Returns:
        The settings, and lines of text that name each choice and its reason.
    """
    factory = make_envs or training_factory(settings)
    here = settings.machine.backend in ("in_process", "serial")
    profile = profile_env(factory, settings.processes, in_worker=not here)
    if not profile.is_per_env:
        return settings, []
    lines = []
    if profile.step_costs is not None:
        device = detect_device(settings.machine.device)
        settings, chosen = choose_settings(settings, given, profile.spec, profile.step_costs, device)
        lines = [setting.summary for setting in chosen]
    if lines:
        lines.insert(0, f"chosen for {settings.env} and this machine; flags override:")
    # Other engines have workers of their own.
    if settings.machine.backend == "auto" and settings.engine == OWN:
        choice = choose_from_profile(profile, settings.rollout.num_envs, settings.processes)
        lines.append(choice.summary)
        machine = replace(settings.machine, backend=choice.backend)
        settings = replace(settings, machine=machine, processes=choice.settings)
    return settings, lines


def auto_configure_once(settings: RunSettings, given: Container[str], file: Path) -> tuple[RunSettings, list[str]]:
    """Like `auto_configure`, with the result kept in a file: the same settings for all runs that read it.

    Args:
        settings: Run settings.
        given: Names of settings that the user chose.
        file: Where the result is kept; used again if the same settings were asked for.
    """
    requested = to_table(settings)
    lines: list[str] = []
    try:
        table = read_sealed_json(file)
    except (FileNotFoundError, ValueError):  # not fitted, or the file was not written to its end
        table = {}
    if table.get("requested") != requested:
        fitted, lines = auto_configure(settings, given)
        table = {"requested": requested, "fitted": to_table(fitted)}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, sealed_json(table))
    found = table["fitted"]
    fitted = apply_table(default_settings(settings.env, found), found, str(file))
    # Others may have written the file: what is imported, called and joined is what the user names.
    return replace(fitted, env=settings.env, env_settings=settings.env_settings, ray=settings.ray), lines


def choose_settings(
    settings: RunSettings, given: Container[str], spec: EnvSpec, costs: StepCosts, device: Device
) -> tuple[RunSettings, list[AutoSetting]]:
    """Settings for measured step costs and a device.

    Args:
        settings: Run settings.
        given: Names of settings that the user chose; they stay.
        spec: Observation and action spec of the env.
        costs: Measured costs of a step.
        device: Device of the networks.

    Returns:
        The settings, and those that were chosen.
    """
    chosen: list[AutoSetting] = []

    def choose(name: str, value: Any, reason: str) -> None:
        nonlocal settings
        if name in given:
            return
        settings = with_overrides(settings, {name: value})
        chosen[:] = [setting for setting in chosen if setting.name != name]
        chosen.append(AutoSetting(name, value, reason))

    choose("num_envs", *_num_envs(settings, costs, device))
    if settings.algo != "dqn":
        choose("num_steps", *_num_steps(settings, spec, device))
    if settings.algo == "ppo":
        for name, value, reason in _by_spaces(settings, spec):
            choose(name, value, reason)
    if settings.algo == "dqn":
        choose("replay_size", *_replay_size(settings, spec, device))
        choose("batch_size", *_batch_size(device))
    choose("hidden_sizes", *_hidden_sizes(settings, spec, device))
    # Who sets their number or length wants these episodes.
    if settings.evaluation.eval_interval and "eval_episodes" not in given and "eval_max_steps" not in given:
        choose("eval_steps", *_eval_steps(settings, spec, costs))
    return settings, chosen


def _num_envs(settings: RunSettings, costs: StepCosts, device: Device) -> tuple[int, str]:
    step = format_duration(costs.step_seconds)
    if costs.waits:
        return 64, f"a step takes {step}, {100 * costs.waiting_share:.0f} % of it waiting"
    least = 2 * device.cores
    if settings.engine == "sb3":
        return max(8, least), f"a step computes for {step}; every env has its own process"
    if settings.algo == "dqn":
        return max(8, least), f"a step computes for {step}; new samples at every gradient step"
    if costs.step_seconds < CHEAP_SECONDS:
        return max(32, least), f"a step computes for only {step}: many share a policy call"
    if costs.step_seconds < COSTLY_SECONDS:
        return max(16, least), f"a step computes for {step}"
    reason = f"a step computes for {step}: enough to keep {device.cores} cores busy"
    return max(8, least), reason


def _num_steps(settings: RunSettings, spec: EnvSpec, device: Device) -> tuple[int, str]:
    num_envs = settings.rollout.num_envs
    steps = max(16, SAMPLES_PER_UPDATE // num_envs)
    if settings.algo == "pqn":
        steps = max(8, SAMPLES_PER_PQN_UPDATE // num_envs)
    memory = min(device.memory, device.device_memory)
    room = int(MEMORY_SHARE * memory) // (num_envs * row_bytes(spec))
    if room < steps:
        return max(room, 1), f"more observations would not fit into {format_bytes(memory)}"
    return steps, f"{steps * num_envs:,} samples per update"


def _by_spaces(settings: RunSettings, spec: EnvSpec) -> Iterator[tuple[str, Any, str]]:
    """Choices by the kind of observations and actions, where they fit the user's settings."""
    joint, by_number = not settings.ppo.separate_epochs, not settings.ppo.minibatch_size
    if any(image_layout(array) for array in spec.observation.values()):
        if joint and settings.network.critic == "observation":
            yield "shared", True, "share one image encoder between policy and value"
        if by_number:
            yield "num_minibatches", 8, "more, smaller gradient steps for an image encoder"
    elif spec.continuous_action is None:
        # With relu Acrobot-v1 was learned on none of the seeds tried. With tanh and large minibatches CartPole-v1
        # takes longer than with relu.
        if not settings.network.network_function:
            yield "activation", "tanh", "relu often learns nothing where rewards come late"
        if by_number:
            yield "num_minibatches", 8, "smaller minibatches"
    if spec.continuous_action is not None:
        if settings.engine != "rllib":  # whose statistics would be those of random actions
            yield ("normalise_observations", True, "inputs of continuous envs differ in scale")
        yield ("entropy_coefficient", 0.0, "an entropy bonus would widen actions without limit")
        if joint:
            yield "update_epochs", 10, "continuous control benefits from more epochs"
        if by_number:
            yield "num_minibatches", 8, "smaller minibatches"


def _replay_size(settings: RunSettings, spec: EnvSpec, device: Device) -> tuple[int, str]:
    wanted = settings.dqn.replay_size
    # The last snapshot holds a copy, and saving it another for a moment.
    copies = 3 if settings.dqn.save_replay else 1
    room = int(MEMORY_SHARE * device.memory) // (copies * row_bytes(spec))
    if room < wanted:
        return room, f"with its copies a quarter of {format_bytes(device.memory)} of free memory"
    return wanted, f"{format_bytes(wanted * row_bytes(spec))} of memory"


def _batch_size(device: Device) -> tuple[int, str]:
    if device.kind == "cuda":
        return 256, f"{device.name} takes no longer for them than for fewer"
    return 64, "a CPU takes longer for more"


def _hidden_sizes(settings: RunSettings, spec: EnvSpec, device: Device) -> tuple[tuple[int, ...], str]:
    num_inputs = sum(sum(array.categories) if array.categories else array.size for array in spec.observation.values())
    inputs = f"{num_inputs} inputs"
    if device.kind == "cuda":
        return (256, 256), f"{inputs}, on {device.name}"
    # Action values need a larger network than a policy.
    wide = num_inputs > MANY_INPUTS or settings.algo != "ppo"
    return ((128, 128) if wide else (64, 64)), f"{inputs}, on a CPU"


def _eval_steps(settings: RunSettings, spec: EnvSpec, costs: StepCosts) -> tuple[int, str]:
    """Whole episodes may take many times as long as the training between two evaluations."""
    epochs = min(settings.evaluation.eval_interval, settings.length.num_epochs(spec, settings.rollout))
    steps = epochs * settings.rollout.samples_per_epoch
    images = any(image_layout(array) for array in spec.observation.values())
    if costs.step_seconds < CHEAP_SECONDS and not images and steps < CHEAP_EVALUATION_STEPS:
        return CHEAP_EVALUATION_STEPS, "an evaluation of cheap steps takes seconds at most"
    return steps, "an evaluation takes no more steps than the training before it"
