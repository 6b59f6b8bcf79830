"""`hundredfold sweep ENV`: search for better settings with Optuna (extra: sweep)."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hundredfold.cli.output import note, print_rows
from hundredfold.cli.train import (
    SaveDir,
    automatic_defaults,
    base_settings,
    explicit_settings,
    parse,
    remove_flag,
    wants_help,
)
from hundredfold.config.presets import AUTO
from hundredfold.config.run import RunSettings
from hundredfold.config.toml import to_toml, used_fields
from hundredfold.core.errors import MissingExtraError, SettingsError, is_installed, suggest
from hundredfold.core.files import write_atomically
from hundredfold.core.toml_files import read_toml
from hundredfold.envs.registry import ENVS, canonical_name, env_factory
from hundredfold.training.auto_config import auto_configure_once
from hundredfold.training.memory import spec_of
from hundredfold.training.run_folder import RunFolder, check_name
from hundredfold.training.trial_runs import RayTrainings, StartRun, start_training
from hundredfold.training.trust import executed_by

if TYPE_CHECKING:
    from hundredfold.training.search_ranges import Distribution
    from hundredfold.training.sweep import Sweep, TrialResult

HELP: Final = """usage: hundredfold sweep ENV --search NAME=RANGE [--search ...] [...]

Trains with many settings and searches for the best. A RANGE is low..high,
log:low..high or choices a,b,c; NAME is a flag of train, such as

  hundredfold sweep Acrobot-v1 --search learning_rate=log:1e-4..1e-2

Unpromising trials are stopped early. Run the same command again to continue a
sweep that was stopped or killed. Flags of train hold for all trials.
`hundredfold sweep ENV --help` shows all flags."""

# Searched if neither --search nor --space is given.
DEFAULT_SEARCH: Final = {
    "ppo": {
        "learning_rate": "log:1e-4..1e-2",
        "entropy_coefficient": "log:1e-4..3e-2",
        "gae_lambda": "0.8..1.0",
        "update_epochs": "2..12",
        "clip_range": "0.1..0.3",
    },
    "dqn": {"learning_rate": "log:1e-4..3e-3", "gamma": "0.95..0.999"},
    "pqn": {
        "learning_rate": "log:1e-4..1e-2",
        "gamma": "0.95..0.999",
        "q_lambda": "0.5..1.0",
        "update_epochs": "1..4",
        "num_minibatches": "2,4,8,16",
    },
}
OWN_FLAGS: Final = (
    *("--space", "--trials", "--seeds", "--parallel", "--target", "--save-dir", "--ckpt-dir", "--name"),
    *("--ray-address", "--trial-cpus", "--trial-gpus"),
)
OWN_SWITCHES: Final = ("--json", "--no-json", "--wide", "--no-wide")
SHOWN_TRIALS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """Options of the search; --search NAME=RANGE may be repeated."""

    space: Path | None = None
    """TOML file with a table [search] of ranges, such as learning_rate = "log:1e-4..1e-2"."""
    trials: int = 30
    """Trials in total; a larger number continues a finished sweep."""
    seeds: int = 1
    """Runs per trial, with consecutive seeds; a trial's score is their mean."""
    parallel: int = 1
    """Trials trained at the same time."""
    ray_address: str | None = None
    """Ray cluster whose nodes train the trials: auto, host:port, ray://host:port, or local (a new cluster on
    this machine). All nodes need hundredfold and the folder --save-dir, shared under the same path."""
    trial_cpus: float = 1.0
    """With --ray-address: cores that Ray reserves for a trial."""
    trial_gpus: float = 0.0
    """With --ray-address: GPUs that Ray reserves for a trial; it sees no others."""
    target: float | None = None
    """Evaluated return to reach: minimises the seconds until then, and stops runs there. By default
    the last evaluated return is maximised."""
    preset: str | None = None
    """Preset to start from instead of the env's own settings."""
    config: Path | None = None
    """Settings file (TOML) to start from; flags override it."""
    save_dir: SaveDir = Path("runs")
    """Folder for the sweep's folder."""
    name: str | None = None
    """Name of the sweep's folder; by default sweep-ENV."""
    wide: bool = False
    """Show all columns, however wide the table gets."""
    json: bool = False
    """Print one JSON object and nothing else."""


def run(argv: Sequence[str]) -> int:
    """Print the best trials and write page and settings file; 130 when the user stopped it."""
    arguments = list(argv)
    if not arguments or arguments[0].startswith("-"):
        print(HELP)
        if wants_help(arguments):
            return 0
        raise SettingsError("sweep expects ENV as its first argument, before any flag.")
    env = canonical_name(arguments.pop(0))
    search, arguments = _take_searches(arguments)
    defaults = automatic_defaults(base_settings(env, arguments), arguments)
    options, settings = parse(arguments, defaults, SweepOptions, "sweep")
    _check(options, settings)
    if options.space is not None:
        search = {name: str(text) for name, text in _search_table(options.space).items()} | search
    search = search or DEFAULT_SEARCH.get(settings.algo, {})
    space = _space(search, settings)
    with _trainings(options) as start_run:
        sweep = _sweep(env, search, space, arguments, options, settings, start_run)
        stopped = _run_until_stopped(sweep, options)
    if stopped and not options.json:
        note(f"stopped; run the same command again to continue {sweep.folder}")
    results = sweep.results()
    if results:
        _write_results(sweep, ["sweep", *argv])
        rows = [
            {"trial": result.number, **score_of(result, options.target), "seconds": result.seconds, **result.params}
            for result in (results if options.json else results[:SHOWN_TRIALS])
        ]
        title = f"{env}: best trials, mean over seeds"
        print_rows(rows, command=["sweep", *argv], as_json=options.json, title=title, wide=options.wide)
        best = sweep.folder / "best.toml"
        note(f"settings  {best}")
        note(f"train     hundredfold train {env} --config {best}")
        note(f"page      {sweep.folder / 'sweep.html'}")
    return 130 if stopped else 0


def score_of(result: TrialResult, target: float | None) -> dict[str, float]:
    """The figure that the search improves, by its name."""
    return {"evaluated_return": result.score} if target is None else {"seconds_to_target": -result.score}


def _take_searches(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Ranges of all --search flags by the name of the setting, and the other arguments."""
    search: dict[str, str] = {}
    others: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        flag, equals, text = argument.partition("=")
        if flag != "--search":
            others.append(argument)
            continue
        text = text if equals else next(rest, "")
        name, equals, values = text.partition("=")
        if not equals or not name or not values:
            raise SettingsError(f"--search expects NAME=RANGE, such as learning_rate=log:1e-4..1e-2; got {text!r}.")
        search[name.removeprefix("--").replace("-", "_")] = values
    return search, others


def _search_table(path: Path) -> dict[str, Any]:
    table = read_toml(path).get("search")
    if not isinstance(table, dict) or not table:
        raise SettingsError(f'{path}: expected a table [search] with lines such as learning_rate = "log:1e-4..1e-2".')
    return table


def _check(options: SweepOptions, settings: RunSettings) -> None:
    for name in ("trials", "seeds", "parallel"):
        if getattr(options, name) < 1:
            raise SettingsError(f"--{name} must be at least 1, got {getattr(options, name)}.")
    if settings.evaluation.eval_interval < 1:
        raise SettingsError("sweep compares evaluations; --eval-interval must be at least 1.")
    for name in ("trial_cpus", "trial_gpus"):
        if not 0 <= getattr(options, name) < math.inf:
            raise SettingsError(f"--{name.replace('_', '-')} must be at least 0, got {getattr(options, name)}.")
    check_name(options.name)
    if not is_installed("optuna"):
        raise MissingExtraError("optuna", "sweep", "sweep")


@contextmanager
def _trainings(options: SweepOptions) -> Iterator[StartRun]:
    """What starts trainings: here, or on the nodes of a cluster."""
    if options.ray_address is None:
        yield start_training
        return
    cluster = RayTrainings(options.ray_address, options.parallel, cpus=options.trial_cpus, gpus=options.trial_gpus)
    try:
        yield cluster.start
    finally:
        cluster.close()


def _space(search: dict[str, str], settings: RunSettings) -> dict[str, Distribution]:
    """Parsed ranges by the name of the setting."""
    from hundredfold.training.search_ranges import parse_range

    if not search:
        raise SettingsError(f"there are no default ranges for {settings.algo}; give --search NAME=RANGE.")
    present = _values(settings)
    for name in search:
        if name not in present:
            raise SettingsError(f"--search {name}: there is no setting of this name; {suggest(name, present)}")
    return {name: parse_range(name, text, present[name]) for name, text in search.items()}


def _sweep(
    env: str,
    search: dict[str, str],
    space: dict[str, Distribution],
    arguments: Sequence[str],
    options: SweepOptions,
    settings: RunSettings,
    start_run: StartRun,
) -> Sweep:
    from hundredfold.training.sweep import Sweep, SweepPlan

    folder = options.save_dir / (options.name or f"sweep-{env.replace('/', '-').replace(':', '-')}")
    if options.ray_address is not None:
        folder = folder.resolve()  # the working directory of another node may be another one
    flags = list(arguments)
    for flag in OWN_FLAGS:
        flags = remove_flag(flags, flag)
    flags = [flag for flag in flags if flag not in OWN_SWITCHES]
    if env not in ENVS and options.preset in (None, AUTO):
        settings, lines = auto_configure_once(settings, explicit_settings(arguments), folder / "fitted.json")
        if lines and not options.json:
            note("\n".join(lines))
    resolved = settings.resolved(spec_of(env_factory(env, settings.env_settings)))
    plan = SweepPlan(
        env=env,
        flags=tuple(flags),
        search=search,
        seeds=tuple(settings.seed + number for number in range(options.seeds)),
        steps=resolved.length.epochs * resolved.rollout.samples_per_epoch,
        target=options.target,
    )
    start = _values(settings)
    made = Sweep(
        folder,
        plan,
        space,
        {name: start[name] for name in search},
        start_run=start_run,
        on_event=(lambda line: None) if options.json else note,
        named_flags=_named_flags(settings),
    )
    write_atomically(made.start_file, to_toml(settings))
    return made


def _named_flags(settings: RunSettings) -> list[str]:
    """Flags with which a run is resumed by anyone: what it imports, passes to its env and joins."""
    present, flags = _values(settings), []
    for name in executed_by(settings):
        if name != "env":
            value = present[name]
            flags += [f"--{name.replace('_', '-')}", *(value if isinstance(value, tuple) else (value,))]
    return flags


def _values(settings: Any) -> dict[str, Any]:
    """Every setting by its own name, whatever table it belongs to."""
    values: dict[str, Any] = {}
    for item in used_fields(settings):
        value = getattr(settings, item.name)
        values |= _values(value) if is_dataclass(value) else {item.name: value}
    return values


def _run_until_stopped(sweep: Sweep, options: SweepOptions) -> bool:
    """Train; True if Ctrl-C or SIGTERM stopped it."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        sweep.run(options.trials, options.parallel)
    except KeyboardInterrupt:
        return True
    finally:
        signal.signal(signal.SIGTERM, before)
    return False


def _write_results(sweep: Sweep, command: Sequence[str]) -> None:
    """The winner's settings, a page, and its figures as JSON."""
    from hundredfold.report.sweep_page import draw_sweep

    best, *_ = results = sweep.results()
    winner = sweep.folder / "trials" / f"{best.number:04d}" / f"seed-{sweep.plan.seeds[0]}"
    write_atomically(sweep.folder / "best.toml", RunFolder(winner).settings_file.read_text())
    importances = sweep.importances()
    record = {
        "command": list(command),
        "counts": sweep.counts(),
        "importances": importances,
        "trials": [asdict(result) for result in results],
    }
    write_atomically(sweep.folder / "results.json", json.dumps(record, indent=1))
    page = draw_sweep(
        sweep.plan.env,
        results,
        sweep.counts(),
        importances,
        target=sweep.plan.target,
        command=f"hundredfold {' '.join(command)}",
    )
    write_atomically(sweep.folder / "sweep.html", page)


def _train_until_parent_dies(argv: Sequence[str]) -> int:
    from hundredfold.cli.main import main

    def watch() -> None:
        os.read(0, 1)  # returns when the pipe is closed
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
    return main(["train", *argv])


if __name__ == "__main__":
    sys.exit(_train_until_parent_dies(sys.argv[1:]))
