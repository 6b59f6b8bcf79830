"""`hundredfold plan ENV`: what a training will be, before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hundredfold.cli.output import Row, note, print_rows
from hundredfold.cli.train import given_names, parse, spelled, starting_settings
from hundredfold.config.presets import AUTO
from hundredfold.config.toml import to_toml
from hundredfold.core.errors import SettingsError
from hundredfold.core.formatting import format_duration
from hundredfold.envs.registry import ENVS, canonical_name
from hundredfold.training.auto_config import auto_configure
from hundredfold.training.estimate import ENOUGH_EPOCHS, Plan, make_plan
from hundredfold.training.run_folder import write_atomically

HELP = """usage: hundredfold plan ENV [flags of train] [--apply FILE] [--no-measure] [--json]

Tells epochs, samples, memory and time of a training, and what would suit it better.
`hundredfold plan ENV --help` shows all flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What the plan is for."""

    preset: str | None = None
    """Start from the settings of this name instead of the env's own."""
    config: Path | None = None
    """A settings file (TOML); flags win over it."""
    apply: Path | None = None
    """Write the settings with every advice taken to this file, for `train --config`."""
    measure: bool = True
    """Measure two epochs of at most 256 envs, with one pass of the update, to estimate the time."""
    json: bool = False
    """Print one JSON object and nothing else."""


def run(arguments: Sequence[str]) -> int:
    """Rows of what, how much and why."""
    words = spelled(arguments)
    if not words or words[0].startswith("-"):
        print(HELP)
        if set(words) & {"-h", "--help"}:
            return 0
        raise SettingsError("plan needs a ENV as its first word, before any flag.")
    env = canonical_name(words.pop(0))
    start = starting_settings(env, words)
    options, settings = parse(words, start, PlanOptions, "plan")
    if options.preset in (None, AUTO) and env not in ENVS:
        settings, lines = auto_configure(settings, given_names(words))
        for line in lines:
            note(line)
    plan = make_plan(
        settings,
        start,
        measure=options.measure,
        cuda=settings.machine.device == "cuda",
    )
    for text in plan.warnings:
        note(f"warning: {text}")
    print_rows(
        list(plan_rows(plan)),
        command=["plan", *arguments],
        as_json=options.json,
        title=f"plan for {env}: {settings.rollout.num_envs} envs",
    )
    if options.apply:
        write_atomically(options.apply, to_toml(plan.advised))
        note(f"wrote {options.apply}; train with: hundredfold train {env} --config {options.apply}")
    return 0


def plan_rows(plan: Plan) -> Iterator[Row]:
    """One row per fact, then one per options."""
    rollout, epochs = plan.settings.rollout, plan.settings.length.epochs
    yield _row("epochs", epochs, "", "one epoch is one rollout of every env")
    yield _row("samples per epoch", rollout.samples_per_epoch, "", "envs x steps")
    yield _row("samples", rollout.samples_per_epoch * epochs, "", "of the whole run")
    how = "passes x minibatches"
    if plan.settings.algo == "dqn":
        how = "samples x gradient_steps / train_frequency"
    yield _row("gradient steps per epoch", plan.gradient_steps, "", how)
    for name, size in plan.memory.items():
        yield _row(f"memory: {name}", round(size / 2**20, 2), "MB", "counted on the arrays")
    total = round(sum(plan.memory.values()) / 2**20, 2)
    yield _row("memory: all of it", total, "MB", "without the networks")
    yield _row("largest num_envs", plan.largest_num_envs, "", "fits into half of the free memory")
    timing = plan.timing
    if timing is not None:
        how = "modelled, not measured: no CUDA device here" if timing.update_is_modelled else ""
        measured = "measured on this machine, scaled up"
        yield _row("seconds per epoch: collect", round(timing.collect, 3), "s", measured)
        yield _row("seconds per epoch: update", round(timing.update, 3), "s", how or measured)
        seconds = timing.epoch * epochs
        yield _row(
            "time",
            round(seconds, 1),
            "s",
            f"{format_duration(seconds)}, evaluations and refits not counted",
        )
        enough = timing.epoch * ENOUGH_EPOCHS
        yield _row(f"time of {ENOUGH_EPOCHS} epochs", round(enough), "s", format_duration(enough))
    for change in plan.changes:
        what = f"options: --{change.setting.replace('_', '-')}"
        yield _row(what, change.advised, f"instead of {change.present}", change.reason)


def _row(what: str, value: object, unit: str, reason: str) -> Row:
    return {"what": what, "value": value, "unit": unit, "reason": reason}
