"""`hundredfold train WORLD`: settings from defaults, file and flags, in that order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from hundredfold.api import resume_run, start_run, with_length
from hundredfold.core.errors import SettingsError
from hundredfold.settings.load import read_toml, updated
from hundredfold.settings.presets import starting_point
from hundredfold.settings.run import RunSettings
from hundredfold.training.console import describe_run
from hundredfold.training.run_folder import RunFolder
from hundredfold.worlds import own_name

# Words that people who come from other scripts type.
_SYNONYMS = {"--customers": "--num-customers"}

HELP = """usage: hundredfold train WORLD [flags]
       hundredfold train --resume RUN [flags]

WORLD is one of ours (`hundredfold worlds` lists them) or any Gymnasium id.
`hundredfold train WORLD --help` shows the flags and defaults of that world."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Where the run goes and what is shown."""

    config: Path | None = None
    """A settings file (TOML), such as a run's settings.toml; flags win over it."""
    resume: Path | None = None
    """Continue this run folder, bit for bit."""
    save_dir: Path = Path("runs")
    """Where run folders are made."""
    name: str | None = None
    """Name of the run folder; by default world, time and seed."""
    wandb: bool = False
    """Log to Weights & Biases as well (needs the extra of that name)."""
    quiet: bool = False
    """Show nothing but errors."""


def run(arguments: Sequence[str]) -> int:
    """Train or resume; 130 when the user stopped it."""
    words = [_SYNONYMS.get(word, word) for word in arguments]
    named = bool(words) and not words[0].startswith("-")
    resume = _value_of(words, "--resume")
    if not named and resume is None:
        print(HELP)
        if set(words) & {"-h", "--help"}:
            return 0
        raise SettingsError("train needs a WORLD as its first word, before any flag.")
    kept = RunFolder.open(Path(resume)).settings() if resume else None
    world = own_name(words.pop(0)) if named else kept.world if kept else ""
    if kept and world != kept.world:
        raise SettingsError(f"{resume} is a run on {kept.world}, not on {world}.")
    defaults = kept or starting_point(world)
    config = _value_of(words, "--config")
    if config:
        table = read_toml(Path(config))
        named_world = table.get("world", world)
        if named_world != world:
            raise SettingsError(f"{config} is for {named_world}, not for {world}.")
        defaults = updated(with_length(defaults, table.get("length", {})), table, config)
    options, settings = parse(words, defaults)
    if options.resume:
        if options.name is not None:
            raise SettingsError("a resumed run keeps its folder; leave --name away.")
        done = resume_run(options.resume, settings, wandb=options.wandb, quiet=options.quiet)
    else:
        done = start_run(
            settings,
            save_dir=options.save_dir,
            name=options.name,
            wandb=options.wandb,
            quiet=options.quiet,
        )
    if not options.quiet and done.finished:
        print(describe_run(done.path, done.metrics))
    return 0 if done.finished else 130


def parse(words: Sequence[str], defaults: RunSettings) -> tuple[Options, RunSettings]:
    """Flags over defaults; the flags of the world's own settings are among them."""
    given = {flag: True for flag in ("epochs", "episodes", "steps") if _is_given(words, flag)}
    defaults = with_length(defaults, given)
    parts = {item.name: getattr(defaults, item.name) for item in fields(defaults)}
    del parts["world"]
    kinds: dict[str, Any] = {name: type(part) for name, part in parts.items()}
    kinds["seed"] = Annotated[int, tyro.conf.arg(help="Everything random follows from this.")]
    shape = make_dataclass("Train", [("run", Options), *kinds.items()], frozen=True)
    parsed: Any = tyro.cli(
        shape,
        args=list(words),
        default=shape(run=Options(), **parts),
        prog=f"hundredfold train {defaults.world}",
        description=f"Train an agent on {defaults.world}.",
        config=(tyro.conf.OmitArgPrefixes,),
    )
    return parsed.run, replace(defaults, **{name: getattr(parsed, name) for name in parts})


def _value_of(words: Sequence[str], flag: str) -> str | None:
    """The word behind a flag that must be known before the others can be read."""
    for place, word in enumerate(words):
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
        if word == flag:
            if place + 1 == len(words):
                raise SettingsError(f"{flag} needs a path behind it.")
            return words[place + 1]
    return None


def _is_given(words: Sequence[str], flag: str) -> bool:
    return any(word == f"--{flag}" or word.startswith(f"--{flag}=") for word in words)
