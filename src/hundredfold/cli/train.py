"""`hundredfold train ENV`: settings from defaults, file and flags, in that order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, make_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from hundredfold.api import resume_run, start_run, with_length
from hundredfold.cli.output import note
from hundredfold.config.presets import AUTO, preset_settings
from hundredfold.config.run import ALGORITHMS, Algorithm, EngineName, RunSettings
from hundredfold.config.toml import apply_table, read_toml, used_fields
from hundredfold.core.errors import SettingsError, suggest
from hundredfold.envs.registry import canonical_name
from hundredfold.training.console import describe_run
from hundredfold.training.estimate import fitting_num_envs
from hundredfold.training.run_folder import RunFolder

Chosen = TypeVar("Chosen")

# Words that people who come from other scripts type.
_SYNONYMS = {"--customers": "--num-customers", "--ckpt-dir": "--save-dir"}

HELP = """usage: hundredfold train ENV [flags]
       hundredfold train --resume RUN [flags]
       hundredfold train --eval --resume RUN     the same as hundredfold evaluate RUN

ENV is one of ours (`hundredfold envs` lists them) or any Gymnasium id.
`hundredfold train ENV --help` shows the flags and defaults of that env."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Where the run goes and what is shown."""

    preset: str | None = None
    """What settings start from: auto (made for the env, fitted to device and env), by-device (a
    table by device); dvrp also has ours, meta-train-64 and meta-train-256, cage2 has rllib-20x5."""
    config: Path | None = None
    """A settings file (TOML), such as a run's settings.toml; flags win over it."""
    resume: Path | None = None
    """Continue this run folder, bit for bit."""
    save_dir: Path = Path("runs")
    """Where run folders are made."""
    name: str | None = None
    """Name of the run folder; by default env, time and seed."""
    wandb: bool = False
    """Log to Weights & Biases as well (needs the extra of that name)."""
    quiet: bool = False
    """Show nothing but errors."""


def run(arguments: Sequence[str]) -> int:
    """Train or resume; 130 when the user stopped it."""
    words = spelled(arguments)
    named = bool(words) and not words[0].startswith("-")
    resume = value_of(words, "--resume")
    if not named and resume is None:
        print(HELP)
        if set(words) & {"-h", "--help"}:
            return 0
        raise SettingsError("train needs a ENV as its first word, before any flag.")
    if "--eval" in words:
        return _evaluate(resume)
    kept = RunFolder.open(Path(resume)).settings() if resume else None
    for flag in ("--preset", "--config"):
        if kept and value_of(words, flag):
            raise SettingsError(f"a resumed run keeps its settings; leave {flag} away.")
    env = canonical_name(words.pop(0)) if named else kept.env if kept else ""
    if kept and env != kept.env:
        raise SettingsError(f"{resume} is a run on {kept.env}, not on {env}.")
    options, settings = parse(words, kept or starting_settings(env, words), Options)
    if options.resume:
        if options.name is not None:
            raise SettingsError("a resumed run keeps its folder; leave --name away.")
        done = resume_run(options.resume, settings, wandb=options.wandb, quiet=options.quiet)
    else:
        done = start_run(
            settings,
            given=given_names(words) if options.preset in (None, AUTO) else None,
            save_dir=options.save_dir,
            name=options.name,
            wandb=options.wandb,
            quiet=options.quiet,
        )
    if not options.quiet and done.finished:
        print(describe_run(done.path, done.metrics))
    return 0 if done.finished else 130


def given_names(words: Sequence[str]) -> set[str]:
    """The settings that flags or a settings file name."""
    config = value_of(words, "--config")
    tables = read_toml(Path(config)).values() if config else ()
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    return {
        *(flag.removeprefix("--").removeprefix("no-").replace("-", "_") for flag in flags),
        *(name for table in tables if isinstance(table, dict) for name in table),
    }


def _evaluate(run: str | None) -> int:
    """`train --eval --resume RUN`: how older scripts ask for an evaluation."""
    if run is None:
        raise SettingsError("--eval judges a run: name it with --resume RUN.")
    code: int = import_module("hundredfold.cli.evaluate").run([run])
    return code


def spelled(arguments: Sequence[str]) -> list[str]:
    """The words as our own flags spell them."""
    return [_SYNONYMS.get(word, word) for word in arguments]


def starting_settings(env: str, words: Sequence[str]) -> RunSettings:
    """What flags change: the preset or the env's own settings, and a settings file over them."""
    config = value_of(words, "--config")
    table = read_toml(Path(config)) if config else {}
    algo = algorithm_of(value_of(words, "--algo") or table.get("algo", "ppo"))
    device = value_of(words, "--device") or table.get("machine", {}).get("device", "auto")
    settings = preset_settings(env, value_of(words, "--preset"), algo, device)
    if config is None:
        return settings
    named_env = table.get("env", env)
    if named_env != env:
        raise SettingsError(f"{config} is for {named_env}, not for {env}.")
    if table.get("algo", algo) != algo:
        raise SettingsError(f"{config} is for {table['algo']}, not for {algo}.")
    return apply_table(with_length(settings, table.get("length", {})), table, config)


def parse(
    words: Sequence[str], defaults: RunSettings, options: type[Chosen], command: str = "train"
) -> tuple[Chosen, RunSettings]:
    """Flags over defaults; the flags of the env's own settings are among them."""
    _refuse_flags_of_others(words, defaults)
    given = {flag: True for flag in ("epochs", "episodes", "steps") if _is_given(words, flag)}
    defaults = with_length(defaults, given)
    fitted = value_of(words, "--num-envs") == "auto"
    if fitted:
        words = without(words, "--num-envs")
    parts = {item.name: getattr(defaults, item.name) for item in used_fields(defaults)}
    del parts["env"]
    # An env without a belief model has no flags for one.
    parts = {name: part for name, part in parts.items() if part is not None}
    kinds: dict[str, Any] = {name: type(part) for name, part in parts.items()}
    kinds["seed"] = Annotated[int, tyro.conf.arg(help="Everything random follows from this.")]
    # Read before all other flags, because it says which flags there are.
    kinds["algo"] = Annotated[
        Algorithm, tyro.conf.arg(help="Who learns; each has flags of its own (see --algo dqn -h).")
    ]
    kinds["engine"] = Annotated[
        EngineName,
        tyro.conf.arg(help="Whose code learns: ours, Stable-Baselines3 (sb3) or RLlib (rllib)."),
    ]
    shape = make_dataclass("Flags", [("options", options), *kinds.items()], frozen=True)
    parsed: Any = tyro.cli(
        shape,
        args=list(words),
        default=shape(options=options(), **parts),
        prog=f"hundredfold {command} {defaults.env}",
        description=f"{command.capitalize()} {defaults.env}.",
        config=(tyro.conf.OmitArgPrefixes,),
    )
    settings = replace(defaults, **{name: getattr(parsed, name) for name in parts})
    if fitted:
        num_envs, reason = fitting_num_envs(settings)
        note(f"--num-envs auto: {num_envs} ({reason})")
        settings = replace(settings, rollout=replace(settings.rollout, num_envs=num_envs))
    return parsed.options, settings


def algorithm_of(name: str) -> Algorithm:
    """The algorithm of this name."""
    for known in ALGORITHMS:
        if name == known:
            return known
    raise SettingsError(f"there is no algorithm {name!r}; {suggest(name, ALGORITHMS)}")


def value_of(words: Sequence[str], flag: str) -> str | None:
    """The word behind a flag that must be known before the others can be read."""
    for place, word in enumerate(words):
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
        if word == flag:
            if place + 1 == len(words):
                raise SettingsError(f"{flag} needs a word behind it.")
            return words[place + 1]
    return None


def _refuse_flags_of_others(words: Sequence[str], settings: RunSettings) -> None:
    """A flag of an algorithm that plays no part gets an answer of its own."""
    known = {item.name for name in _tables(settings) for item in fields(getattr(settings, name))}
    for table in settings.unused:
        for item in fields(getattr(settings, table)):
            flag = item.name.replace("_", "-")
            if item.name not in known and any(
                _is_given(words, way) for way in (flag, f"no-{flag}")
            ):
                raise SettingsError(
                    f"--{flag} is a flag of {table}, and this run learns with {settings.algo}; "
                    f"leave it away, or use --algo {table}."
                )


def _tables(settings: RunSettings) -> list[str]:
    named = [item.name for item in used_fields(settings)]
    return [name for name in named if is_dataclass(getattr(settings, name))]


def _is_given(words: Sequence[str], flag: str) -> bool:
    return any(word == f"--{flag}" or word.startswith(f"--{flag}=") for word in words)


def without(words: Sequence[str], flag: str) -> list[str]:
    """The words without a flag and the word behind it."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word == flag:
            skip = True
        elif not word.startswith(f"{flag}="):
            kept.append(word)
    return kept
