"""Settings fitted to what was measured: the env, the device, the memory; each with its reason.

A built-in env has settings made for it. What somebody else's env needs is not known, but what its
steps cost, how large its observations are and what there is to compute with can be measured, and
these decide more than anything else how many envs and how large batches pay. Values are few and
far apart, so that the same env on the same machine is fitted alike every time; whatever the user
has set stays as it is.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from hundredfold.algorithms.image_encoder import image_layout
from hundredfold.backends.auto_select import choose_from_profile, profile_env
from hundredfold.backends.env_profile import StepCosts
from hundredfold.config.devices import Device, detect_device
from hundredfold.config.run import RunSettings
from hundredfold.config.toml import with_overrides
from hundredfold.core.batch import EnvSpec
from hundredfold.core.formatting import format_bytes, format_duration
from hundredfold.core.protocols import EnvFactory
from hundredfold.envs.registry import env_factory
from hundredfold.rollout.replay_buffer import row_bytes
from hundredfold.training.engines import OWN

# Steps that cost less than so many seconds: a call of the policy costs as much as many of them.
CHEAP_SECONDS: Final = 150e-6
COSTLY_SECONDS: Final = 3e-3
# Samples of one PPO update: enough for steady advantages, few enough to learn often.
SAMPLES_PER_UPDATE: Final = 2_048
# Share of the free memory that experience may take.
MEMORY_SHARE: Final = 0.25
# Observations of more numbers than this deserve a wider network.
MANY_NUMBERS: Final = 64


@dataclass(frozen=True, slots=True)
class Fit:
    """A setting that was chosen for the user, and why."""

    name: str
    value: Any
    reason: str

    @property
    def told(self) -> str:
        """One line for the person who left the choice to us."""
        value = " ".join(map(str, self.value)) if isinstance(self.value, tuple) else self.value
        return f"  --{self.name.replace('_', '-')} {value}: {self.reason}"


def auto_configure(
    settings: RunSettings, given: Container[str], make_envs: EnvFactory | None = None
) -> tuple[RunSettings, list[str]]:
    """The settings of a run fitted to its env and this machine, and lines that say how and why.

    Somebody else's env is played for a moment. A built-in env has settings made for it, and an
    env that hangs tells nothing: these stay as they are.
    """
    factory = make_envs or env_factory(settings.env, settings.env_settings)
    here = settings.machine.backend in ("in_process", "serial")
    found = profile_env(factory, settings.processes, in_worker=not here)
    if not found.is_per_env:
        return settings, []
    lines = []
    if found.step_costs is not None:
        device = detect_device(settings.machine.device)
        settings, fits = fitted(settings, given, found.spec, found.step_costs, device)
        lines = [fit.told for fit in fits]
    if lines:
        lines.insert(0, f"fitted to {settings.env} and this machine; a flag sets it otherwise:")
    # Other engines have workers of their own.
    if settings.machine.backend == "auto" and settings.engine == OWN:
        choice = choose_from_profile(found, settings.rollout.num_envs, settings.processes)
        lines.append(choice.summary)
        machine = replace(settings.machine, backend=choice.backend)
        settings = replace(settings, machine=machine, processes=choice.settings)
    return settings, lines


def fitted(
    settings: RunSettings, given: Container[str], spec: EnvSpec, found: StepCosts, device: Device
) -> tuple[RunSettings, list[Fit]]:
    """The settings with everything fitted that the user did not set, and what that was."""
    fits: list[Fit] = []

    def fit(name: str, value: Any, reason: str) -> None:
        nonlocal settings
        if name in given:
            return
        settings = with_overrides(settings, {name: value})
        fits[:] = [fit for fit in fits if fit.name != name]
        fits.append(Fit(name, value, reason))

    fit("num_envs", *_num_envs(settings, found, device))
    if settings.algo == "ppo":
        fit("num_steps", *_num_steps(settings, spec, device))
        for name, value, reason in _by_spaces(settings, spec):
            fit(name, value, reason)
    else:
        fit("replay_size", *_replay_size(settings, spec, device))
        fit("batch_size", *_batch_size(device))
    fit("hidden_sizes", *_hidden(settings, spec, device))
    return settings, fits


def _num_envs(settings: RunSettings, found: StepCosts, device: Device) -> tuple[int, str]:
    step = format_duration(found.step_seconds)
    if found.waits:
        return 64, f"a step takes {step}, {100 * found.waiting_share:.0f} % of it waiting"
    least = 2 * device.cores
    if settings.engine == "sb3":
        return max(8, least), f"a step computes for {step}; every env is a process of its own"
    if settings.algo == "dqn":
        return max(8, least), f"a step computes for {step}; new samples at every gradient step"
    if found.step_seconds < CHEAP_SECONDS:
        return max(32, least), f"a step computes for only {step}: many share a call of the policy"
    if found.step_seconds < COSTLY_SECONDS:
        return max(16, least), f"a step computes for {step}"
    return max(
        8, least
    ), f"a step computes for {step}: no more than keeps {device.cores} cores busy"


def _num_steps(settings: RunSettings, spec: EnvSpec, device: Device) -> tuple[int, str]:
    num_envs = settings.rollout.num_envs
    steps = max(16, SAMPLES_PER_UPDATE // num_envs)
    memory = min(device.memory, device.device_memory)
    room = int(MEMORY_SHARE * memory) // (num_envs * row_bytes(spec))
    if room < steps:
        return max(room, 1), f"more observations would not fit into {format_bytes(memory)}"
    return steps, f"{steps * num_envs:,} samples per update"


def _by_spaces(settings: RunSettings, spec: EnvSpec) -> Iterator[tuple[str, Any, str]]:
    """What pictures and continuous actions ask for, where it goes with what the user has set."""
    joint, by_number = not settings.ppo.separate_epochs, not settings.ppo.minibatch_size
    if any(image_layout(array) for array in spec.observation.values()):
        if joint:
            yield "shared", True, "policy and value look at pictures with the same eyes"
        if by_number:
            yield "num_minibatches", 8, "more, smaller steps for a network that must learn to see"
    if spec.continuous_action is not None:
        if settings.engine != "rllib":  # which would keep the scales of random actions
            yield "normalise_observations", True, "continuous envs observe in units of their own"
        yield "entropy_coefficient", 0.0, "a reward for spread would widen actions without end"
        if joint:
            yield "update_epochs", 10, "aiming takes more passes than choosing"
        if by_number:
            yield "num_minibatches", 8, "in smaller steps"


def _replay_size(settings: RunSettings, spec: EnvSpec, device: Device) -> tuple[int, str]:
    wanted = settings.dqn.replay_size
    # A checkpoint keeps a copy, and for a moment there is another.
    copies = 3 if settings.dqn.save_replay else 1
    room = int(MEMORY_SHARE * device.memory) // (copies * row_bytes(spec))
    if room < wanted:
        return room, f"with its copies a quarter of {format_bytes(device.memory)} of free memory"
    return wanted, f"{format_bytes(wanted * row_bytes(spec))} of memory"


def _batch_size(device: Device) -> tuple[int, str]:
    if device.kind == "cuda":
        return 256, f"{device.name} takes no longer for them than for fewer"
    return 64, "a CPU takes longer for more"


def _hidden(settings: RunSettings, spec: EnvSpec, device: Device) -> tuple[tuple[int, ...], str]:
    numbers = sum(
        sum(array.categories) if array.categories else array.size
        for array in spec.observation.values()
    )
    seen = f"{numbers} numbers are observed"
    if device.kind == "cuda":
        return (256, 256), f"{seen}, and {device.name} has time for them"
    # Values of all actions at once ask more of a network than a preference for one of them.
    wide = numbers > MANY_NUMBERS or settings.algo == "dqn"
    return ((128, 128) if wide else (64, 64)), f"{seen}, on a CPU"
