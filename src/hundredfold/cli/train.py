"""`hundredfold train ENV`: settings from preset, file and flags, in that order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, make_dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_args

import tyro

from hundredfold.api import resume_run, start_run, with_length
from hundredfold.cli.flags import parse_flags
from hundredfold.cli.output import note, print_text
from hundredfold.config.presets import AUTO, preset_settings
from hundredfold.config.run import ALGORITHMS, Algorithm, EngineName, RunSettings
from hundredfold.config.toml import apply_table, used_fields
from hundredfold.core.errors import SettingsError, suggest
from hundredfold.core.toml_files import read_toml
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.registry import ENVS, canonical_name
from hundredfold.training.auto_config import auto_configure
from hundredfold.training.console import describe_run
from hundredfold.training.estimate import auto_num_envs
from hundredfold.training.run_folder import RunFolder
from hundredfold.training.trust import require_trust

if TYPE_CHECKING:
    from hundredfold.envs.dvrp.acceptance.model import Responses

Options = TypeVar("Options")

# `--ckpt-dir` is the flag of `meta_train.py`.
SaveDir = Annotated[Path, tyro.conf.arg(aliases=("--ckpt-dir",))]

HELP = """usage: hundredfold train ENV [flags]
       hundredfold train --resume RUN [flags]   --steps N extends it to N steps
       hundredfold train ENV --init-from RUN    a new run from weights of RUN
       hundredfold train --eval --resume RUN    like hundredfold evaluate RUN

ENV is a built-in env (`hundredfold envs` lists them) or any Gymnasium id.
`hundredfold train ENV --help` shows the flags and defaults of that env."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Run folder and console output."""

    preset: str | None = None
    """Settings to start from: auto (the env's own, or fitted to a Gymnasium env and the device) or
    by-device (a table by device); dvrp also has default, returns, meta-train-64 and meta-train-256, cage2
    has rllib-20x5."""
    config: Path | None = None
    """Settings file (TOML), such as a run's settings.toml; flags override it."""
    resume: Path | None = None
    """Run folder to resume, bit for bit; a larger --steps, --episodes or --epochs (total length)
    extends a finished run."""
    init_from: Path | None = None
    """Run folder on the same env whose weights (best checkpoint) a new run starts from."""
    from_desk: str | None = None
    """Booking desk whose recorded responses the acceptance model of dvrp starts from: its address, its
    database, or a file of GET /v1/export."""
    trust_run: bool = False
    """With --resume: import modules and join Ray clusters that only the run folder names."""
    save_dir: SaveDir = Path("runs")
    """Folder for run folders."""
    name: str | None = None
    """Name of the run folder; by default env, time and seed."""
    wandb: bool = False
    """Also log to Weights & Biases (extra: wandb)."""
    quiet: bool = False
    """Print errors only."""


def run(argv: Sequence[str]) -> int:
    """Train or resume; 130 when the user stopped it."""
    arguments = list(argv)
    named = bool(arguments) and not arguments[0].startswith("-")
    resume = peek_flag(arguments, "--resume")
    if not named and resume is None:
        print(HELP)
        if wants_help(arguments):
            return 0
        raise SettingsError("train expects ENV as its first argument, before any flag.")
    if "--eval" in arguments:
        return _evaluate(resume)
    saved = RunFolder.open(Path(resume)).settings() if resume else None
    for flag in ("--preset", "--config", "--init-from", "--from-desk"):
        if saved and peek_flag(arguments, flag):
            raise SettingsError(f"{flag} cannot be combined with --resume: a resumed run keeps its settings.")
    if saved and peek_flag(arguments, "--num-envs") == "auto":
        raise SettingsError("--num-envs cannot change when a run is resumed; remove --num-envs auto.")
    env = canonical_name(arguments.pop(0)) if named else saved.env if saved else ""
    if saved and env != saved.env:
        raise SettingsError(f"{resume} is a run on {saved.env}, not on {env}.")
    defaults = saved or automatic_defaults(base_settings(env, arguments), arguments)
    options, settings = parse(arguments, defaults, RunOptions)
    if options.resume:
        if options.name is not None:
            raise SettingsError("--name cannot be combined with --resume: a resumed run keeps its folder.")
        given = explicit_settings(arguments) | ({"env"} if named else set())
        require_trust(RunFolder.open(options.resume), settings, given, options.trust_run)
        done = resume_run(options.resume, settings, wandb=options.wandb, quiet=options.quiet)
    else:
        done = start_run(
            settings,
            given=explicit_settings(arguments) if options.preset in (None, AUTO) else None,
            init_from=options.init_from,
            recorded=None if options.from_desk is None else read_desk(options.from_desk, settings, options.quiet),
            save_dir=options.save_dir,
            name=options.name,
            wandb=options.wandb,
            quiet=options.quiet,
        )
    if not options.quiet and done.finished:
        print_text(describe_run(done.path, done.metrics))
    return 0 if done.finished else 130


def read_desk(source: str, settings: RunSettings, quiet: bool) -> Responses:
    """Responses that a booking desk has recorded."""
    from hundredfold.cli.desk import require_serve_extra

    require_serve_extra()
    from hundredfold.desk.recorded import read_events, recorded_responses

    if not isinstance(settings.env_settings, DvrpSettings):
        raise SettingsError(f"--from-desk is for dvrp, not for {settings.env}.")
    found = recorded_responses(read_events(source), settings.env_settings)
    if not quiet:
        note(
            f"from the desk: {len(found.responses):,} responses; {found.num_skipped:,} skipped, of riders or trips "
            "that the training does not have (GET /v1/export/trips.csv has them all, for --trips)"
        )
    return found.responses


def explicit_settings(argv: Sequence[str]) -> set[str]:
    """Names of the settings that flags or a settings file set."""
    config = peek_flag(argv, "--config")
    tables = read_toml(Path(config)).values() if config else ()
    flags = [argument.partition("=")[0] for argument in argv if argument.startswith("--")]
    return {
        *(flag.removeprefix("--").removeprefix("no-").replace("-", "_") for flag in flags),
        *(name for table in tables if isinstance(table, dict) for name in table),
    }


def wants_help(argv: Sequence[str]) -> bool:
    """Whether the arguments ask for help."""
    return bool({"-h", "--help"} & set(argv))


def automatic_defaults(settings: RunSettings, argv: Sequence[str]) -> RunSettings:
    """Where help is asked for, the settings that a training with these flags would choose; else unchanged."""
    if not wants_help(argv) or settings.env in ENVS or peek_flag(argv, "--preset") not in (None, AUTO):
        return settings
    settings, lines = auto_configure(settings, explicit_settings(argv))
    note("\n".join(lines))
    return settings


def _evaluate(run: str | None) -> int:
    """`train --eval --resume RUN` is the same as `evaluate RUN`."""
    if run is None:
        raise SettingsError("--eval needs a run to evaluate: pass --resume RUN.")
    code: int = resolve_name("hundredfold.cli.evaluate:run")([run])
    return code


def num_customers_flag(argv: Sequence[str]) -> list[str]:
    """Arguments with --customers, as `meta_train.py` calls it, written as --num-customers.

    An alias of tyro would stand in the annotation of the setting, but workers import the settings of
    an env, and start without tyro.
    """
    return [re.sub("^--customers(?==|$)", "--num-customers", argument) for argument in argv]


def base_settings(env: str, argv: Sequence[str]) -> RunSettings:
    """Settings before flags: a preset or the env's own, updated from a settings file.

    Args:
        env: Name of the env.
        argv: All arguments; --preset, --config, --init-from, --algo and --device are read.
    """
    config = peek_flag(argv, "--config")
    table = read_toml(Path(config)) if config else {}
    init_from = peek_flag(argv, "--init-from")
    source = RunFolder.open(Path(init_from)).settings() if init_from else None
    algo = algorithm_of(peek_flag(argv, "--algo") or table.get("algo", source.algo if source else "ppo"))
    device = peek_flag(argv, "--device") or table.get("machine", {}).get("device", "auto")
    engine = engine_of(peek_flag(argv, "--engine") or table.get("engine", "hundredfold"))
    settings = preset_settings(env, peek_flag(argv, "--preset"), algo, device, engine)
    if source is not None:
        settings = replace(settings, network=source.network)
    if config is None:
        return settings
    named_env = table.get("env", env)
    if named_env != env:
        raise SettingsError(f"{config} is for {named_env}, not for {env}.")
    if table.get("algo", algo) != algo:
        raise SettingsError(f"{config} is for {table['algo']}, not for {algo}.")
    return apply_table(with_length(settings, table.get("length", {})), table, config)


def parse(
    argv: Sequence[str], defaults: RunSettings, options: type[Options], command: str = "train"
) -> tuple[Options, RunSettings]:
    """Parse all flags, those of the env's own settings included.

    Args:
        argv: Arguments without the env.
        defaults: Settings before flags.
        options: Dataclass of the command's own flags.
        command: Name of the command, for help.

    Returns:
        The command's options and the run settings.
    """
    argv = num_customers_flag(argv)
    _check_algorithm_flags(argv, defaults)
    given = {flag: True for flag in ("epochs", "episodes", "steps") if _is_given(argv, flag)}
    defaults = with_length(defaults, given)
    auto_envs = peek_flag(argv, "--num-envs") == "auto"
    if auto_envs:
        argv = remove_flag(argv, "--num-envs")
    tables = {item.name: getattr(defaults, item.name) for item in used_fields(defaults)}
    del tables["env"]
    # An env without a belief model has no flags for one.
    tables = {name: table for name, table in tables.items() if table is not None}
    kinds: dict[str, Any] = {name: type(table) for name, table in tables.items()}
    kinds["seed"] = Annotated[int, tyro.conf.arg(help="Seed of all random numbers of the run.")]
    # The algorithm decides which other flags exist.
    kinds["algo"] = Annotated[
        Algorithm, tyro.conf.arg(help="Learning algorithm; each has its own flags (see --algo dqn -h, --algo pqn -h).")
    ]
    kinds["engine"] = Annotated[
        EngineName, tyro.conf.arg(help="Training library: hundredfold, sb3 (Stable-Baselines3) or rllib.")
    ]
    shape = make_dataclass("Flags", [("run", options), *kinds.items()], frozen=True)
    parsed: Any = parse_flags(
        shape,
        argv,
        f"hundredfold {command} {defaults.env}",
        default=shape(run=options(), **tables),
        description=f"{command.capitalize()} {defaults.env}.",
        config=(tyro.conf.OmitArgPrefixes,),
    )
    settings = replace(defaults, **{name: getattr(parsed, name) for name in tables})
    if auto_envs:
        num_envs, reason = auto_num_envs(settings)
        note(f"--num-envs auto: {num_envs} ({reason})")
        settings = replace(settings, rollout=replace(settings.rollout, num_envs=num_envs))
    return parsed.run, settings


def algorithm_of(name: str) -> Algorithm:
    """The algorithm of this name."""
    for known in ALGORITHMS:
        if name == known:
            return known
    raise SettingsError(f"there is no algorithm {name!r}; {suggest(name, ALGORITHMS)}")


def engine_of(name: str) -> EngineName:
    """The training engine of this name."""
    for known in get_args(EngineName):
        if name == known:
            return cast(EngineName, known)
    raise SettingsError(f"there is no engine {name!r}; {suggest(name, get_args(EngineName))}")


def peek_flag(argv: Sequence[str], flag: str) -> str | None:
    """Value of a flag that is needed before the others can be parsed; None if absent."""
    for index, argument in enumerate(argv):
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
        if argument == flag:
            if index + 1 == len(argv):
                raise SettingsError(f"{flag} expects a value.")
            return argv[index + 1]
    return None


def _check_algorithm_flags(argv: Sequence[str], settings: RunSettings) -> None:
    """Raise a SettingsError for flags of an algorithm that is not used."""
    known = {item.name for name in _tables(settings) for item in fields(getattr(settings, name))}
    for table in settings.unused:
        for item in fields(getattr(settings, table)):
            flag = item.name.replace("_", "-")
            if item.name not in known and any(_is_given(argv, name) for name in (flag, f"no-{flag}")):
                raise SettingsError(
                    f"--{flag} is a flag of {table}, but this run uses --algo {settings.algo}; "
                    f"remove it or use --algo {table}."
                )


def _tables(settings: RunSettings) -> list[str]:
    named = [item.name for item in used_fields(settings)]
    return [name for name in named if is_dataclass(getattr(settings, name))]


def _is_given(argv: Sequence[str], flag: str) -> bool:
    return any(argument == f"--{flag}" or argument.startswith(f"--{flag}=") for argument in argv)


def remove_flag(argv: Sequence[str], flag: str) -> list[str]:
    """Arguments without a flag and its value."""
    remaining, skip = [], False
    for argument in argv:
        if skip:
            skip = False
        elif argument == flag:
            skip = True
        elif not argument.startswith(f"{flag}="):
            remaining.append(argument)
    return remaining
