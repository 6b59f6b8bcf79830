"""`hundredfold estimate ENV`: size, memory and time of a training before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hundredfold.cli.output import Column, Row, format_cell, note, print_rows
from hundredfold.cli.train import automatic_defaults, base_settings, parse
from hundredfold.config.toml import to_toml
from hundredfold.core.errors import SettingsError
from hundredfold.core.files import write_atomically
from hundredfold.core.formatting import format_bytes, format_duration
from hundredfold.envs.registry import ENVS, canonical_name
from hundredfold.training.estimate import ENVS_MEMORY, Estimate, enough_epochs, estimate_run

COLUMNS = (Column("what"), Column("value", is_number=True), Column("reason"))
LARGEST = "largest num_envs"
HELP = """usage: hundredfold estimate ENV [flags of train]
       [--write-config FILE] [--no-measure] [--json]

Estimates epochs, samples, memory and time of a training, and recommends
settings.
`hundredfold estimate ENV --help` shows all flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateOptions:
    """Options of the estimate."""

    preset: str | None = None
    """Preset to start from instead of the env's own settings."""
    config: Path | None = None
    """Settings file (TOML); flags override it."""
    write_config: Path | None = None
    """Write the recommended settings to this file, for `train --config`."""
    measure: bool = True
    """Measure two epochs of at most 256 envs, with one pass of the update, to estimate the time."""
    wide: bool = False
    """Show all columns, however wide the table gets."""
    json: bool = False
    """Print one JSON object and nothing else."""


def run(argv: Sequence[str]) -> int:
    """Print the estimate."""
    arguments = list(argv)
    if not arguments or arguments[0].startswith("-"):
        print(HELP)
        if set(arguments) & {"-h", "--help"}:
            return 0
        raise SettingsError("estimate expects ENV as its first argument, before any flag.")
    env = canonical_name(arguments.pop(0))
    start = base_settings(env, arguments)
    if set(arguments) & {"-h", "--help"}:
        start = automatic_defaults(start, arguments)
    options, settings = parse(arguments, start, EstimateOptions, "estimate")
    settings = automatic_defaults(settings, arguments)
    estimate = estimate_run(settings, start, measure=options.measure, cuda=settings.machine.device == "cuda")
    for text in estimate.warnings:
        note(f"warning: {text}")
    rows = list(estimate_rows(estimate))
    print_rows(
        rows if options.json else [shown_row(row) for row in rows],
        command=["estimate", *argv],
        as_json=options.json,
        columns=COLUMNS,
        hint=False,
        wide=options.wide,
        title=f"estimate for {env}: {settings.rollout.num_envs} envs",
    )
    if options.write_config:
        write_atomically(options.write_config, to_toml(estimate.recommended))
        path = options.write_config
        note(f"wrote {path}; train with: hundredfold train {env} --config {path}")
    return 0


def estimate_rows(estimate: Estimate) -> Iterator[Row]:
    """Rows of facts, then of recommended settings."""
    rollout, epochs = estimate.settings.rollout, estimate.settings.length.epochs
    yield _row("epochs", epochs, "", "one rollout of every env each")
    yield _row("samples per epoch", rollout.samples_per_epoch, "", "envs x steps")
    yield _row("samples", rollout.samples_per_epoch * epochs, "", "of the whole run")
    how = "passes x minibatches"
    if estimate.settings.algo == "dqn":
        how = "samples x gradient_steps / train_frequency"
    yield _row("gradient steps per epoch", estimate.gradient_steps, "", how)
    for name, size in estimate.memory.items():
        third_party = name == ENVS_MEMORY and estimate.settings.env not in ENVS
        how = "measured, with their worker processes" if third_party else "counted on the arrays"
        if size:
            yield _memory_row(f"memory: {name}", size, how)
    yield _memory_row("memory: total", sum(estimate.memory.values()), "without the networks")
    yield _row(LARGEST, estimate.largest_num_envs, "", "fits into half of the free memory")
    timing = estimate.timing
    if timing is not None:
        how = "modelled, not measured: no CUDA device here" if timing.update_is_modelled else ""
        measured = "measured on this machine, scaled up"
        yield _row("time per epoch: collect", round(timing.collect, 4), "s", measured)
        yield _row("time per epoch: update", round(timing.update, 4), "s", how or measured)
        seconds = timing.epoch * epochs
        how = "evaluations and refits not counted"
        yield _row("time", round(seconds, 1), "s", how)
        enough = enough_epochs(estimate.settings)
        yield _row(f"time of {enough} epochs", round(timing.epoch * enough, 1), "s", "")
    for change in estimate.recommendations:
        what = f"recommended: --{change.setting.replace('_', '-')}"
        yield _row(what, change.recommended, f"instead of {change.present}", change.reason)


def shown_row(row: Row) -> Row:
    """A row for people: the value with its unit, and no more digits than an estimate has."""
    value, unit, reason = row["value"], row["unit"], row["reason"]
    if "bytes" in row:
        text = format_bytes(row["bytes"])
    elif unit == "s":
        text = format_duration(value)
    elif row["what"] == LARGEST:
        text = f"{float(f'{value:.2g}'):,.0f}"
    else:
        text = format_cell(value)
    if unit.startswith("instead of"):
        reason = f"{unit}: {reason}"
    return {"what": row["what"], "value": text, "reason": reason, **({"bytes": row["bytes"]} if "bytes" in row else {})}


def _memory_row(what: str, size: int, reason: str) -> Row:
    number, unit = format_bytes(size).split()
    return {**_row(what, float(number), unit, reason), "bytes": size}


def _row(what: str, value: object, unit: str, reason: str) -> Row:
    return {"what": what, "value": value, "unit": unit, "reason": reason}
