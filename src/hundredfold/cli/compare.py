"""`hundredfold compare ENV`: settings (arms) compared over seeds on the same episodes."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import torch
import tyro

from hundredfold.api import evaluate, resume_run, start_run
from hundredfold.cli.evaluate_dvrp_policies import load_run_policy
from hundredfold.cli.flags import whole_number
from hundredfold.cli.output import machine, note, print_rows, print_text
from hundredfold.cli.train import (
    SaveDir,
    automatic_defaults,
    base_settings,
    explicit_settings,
    parse,
    peek_flag,
    remove_flag,
    wants_help,
)
from hundredfold.config.presets import AUTO
from hundredfold.config.run import RunSettings
from hundredfold.core import rng
from hundredfold.core.batch import FloatArray
from hundredfold.core.bounds import AtLeastOne, check_bounds
from hundredfold.core.errors import SettingsError, suggest
from hundredfold.core.files import write_atomically
from hundredfold.core.formatting import format_duration, format_table_number
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.evaluation import EVALUATION_SEED, SPLITS, DayScorer, evaluation_env_seed, simulate_days
from hundredfold.envs.registry import ENVS, canonical_name, env_factory
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.training.auto_config import auto_configure_once
from hundredfold.training.compare import (
    RETURN,
    Arm,
    Comparison,
    Row,
    Scores,
    compare_runs,
    highest_common_level,
    num_envs_arms,
    read_curve,
    scores_of,
    train_all,
)
from hundredfold.training.engines import OWN
from hundredfold.training.memory import spec_of

ARM_NAME: Final = re.compile(r"[\w.+-]{1,40}")
# Evaluations during a run, where neither flag nor file sets their interval.
NUM_EVALUATIONS: Final = 10
# Keeps the final evaluation's episodes apart from those of evaluations during training.
FINAL_EVALUATION: Final = 0x66696E616C
IMPROVEMENT: Final = "eval/avg_improvement_pct"
# Share of pairs of runs in which the other arm scores higher.
IMPROVED: Final = "improvement_probability"
# Improvement in percent that dvrp is to reach.
DVRP_TARGET: Final = 5.0
# Of the comparison of numbers of envs in dvrp, unless flags or a file say otherwise.
DVRP_NUM_ENVS: Final = "64,256"
DVRP_FLAGS: Final = {
    "--preset": "returns",
    "--city": "hubs",
    "--episodes": "12800",
    "--eval-interval": "4",
    "--eval-episodes": "128",
}

HELP = """usage: hundredfold compare ENV --arm "NAME: FLAGS" --arm "NAME: FLAGS" [...]
       hundredfold compare ENV --arm small.toml --arm large.toml [...]
       hundredfold compare ENV --num-envs 64,256 [...]
       hundredfold compare dvrp --arms ablations [...]

Trains every arm with several seeds and evaluates all runs on the same episodes.
Flags of train outside of arms hold for all of them. Run it again to continue
where it stopped.
`hundredfold compare ENV --help` shows all flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """Arms and seeds. --num-envs 64,256 compares numbers of envs, as `compare dvrp` does without arms.

    Arms are evaluated ten times during training, unless --eval-interval is given.
    """

    arm: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """An arm, repeated for each: "NAME: flags of train", or a settings file (TOML) whose name without
    .toml names the arm. Differences are from the first arm."""
    arms: str | None = None
    """A set of arms: ablations (dvrp: the default training without mask, shared weights, regression,
    futures, trip memory, stranger prior)."""
    seeds: AtLeastOne = 5
    """Runs per arm, with consecutive seeds from --seed."""
    final_episodes: Annotated[AtLeastOne, tyro.conf.arg(aliases=("--days",))] = 256
    """Episodes on which finished runs are evaluated, the same for all; for dvrp days per split."""
    final_seed: int = EVALUATION_SEED
    """Seed of these episodes."""
    target: float | None = None
    """Evaluated score whose first reach is reported (samples, seconds); by default the highest that
    every arm reaches, for dvrp 5 % if all do."""
    preset: str | None = None
    """Preset to start from instead of the env's own settings."""
    config: Path | None = None
    """Settings file (TOML); flags override it."""
    save_dir: SaveDir = Path("runs/compare")
    """Where the run folders, compare.json and compare.html are written."""
    wide: bool = False
    """Show all columns, however wide the tables get."""
    json: bool = False
    """Print one JSON object and nothing else."""

    def __post_init__(self) -> None:
        check_bounds(self)


def run(argv: Sequence[str]) -> int:
    """Print tables by arm; 130 when the user stopped it."""
    arguments = list(argv)
    if not arguments or arguments[0].startswith("-"):
        print(HELP)
        if wants_help(arguments):
            return 0
        raise SettingsError("compare expects ENV as its first argument, before any flag.")
    env = canonical_name(arguments.pop(0))
    torch.set_num_threads(1)  # more threads are slower on a busy machine
    options, arms = _arms(env, arguments)
    seeds = [arms[0].settings.seed + number for number in range(options.seeds)]
    runs = train_all(arms, seeds, options.save_dir, _train)
    if runs is None:
        note(f"stopped; run the same command again to continue in {options.save_dir}")
        return 130
    measure = _dvrp_measure if env == "dvrp" else _return_measure
    comparison = measure(options, arms).compare(arms, [(arm.name, path) for arm, _, path in runs], options.target)
    command = ["compare", *argv]
    _write_results(env, options.save_dir, comparison, command)
    _print_results(env, comparison, command, options)
    note(f"report {options.save_dir / 'compare.html'}")
    return 0


# --- arms


def _arms(env: str, arguments: list[str]) -> tuple[CompareOptions, list[Arm]]:
    """The arms that the flags describe, and the options of the comparison."""
    flags_of_arms, common = _split_arms(arguments)
    set_name = peek_flag(common, "--arms")
    counts = peek_flag(common, "--num-envs")
    if not flags_of_arms and set_name is None:
        if counts is not None or env == "dvrp":
            return _num_envs_arms(env, counts or DVRP_NUM_ENVS, remove_flag(common, "--num-envs"))
        if not wants_help(common):
            raise SettingsError('there is nothing to compare: pass --arm "NAME: FLAGS" twice, or --num-envs 64,256.')
    if counts is not None and "," in counts:
        raise SettingsError(f"--num-envs {counts} cannot be combined with arms; write an --arm for each number.")
    defaults = automatic_defaults(base_settings(env, common), common)
    options, settings = parse(common, defaults, CompareOptions, "compare")
    named = {} if set_name is None else _arm_set(env, set_name, settings)
    for name, flags in flags_of_arms:
        if name in named:
            raise SettingsError(f"two arms are called {name!r}; arms need different names.")
        named[name] = flags
    arms = [_arm(env, name, common, flags, options) for name, flags in named.items()]
    if env == "dvrp":
        _check_same_days(arms, options.final_seed)
    return options, arms


def _split_arms(arguments: Sequence[str]) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """Name and flags of every --arm, and the arguments without them."""
    arms, common = [], list(arguments)
    while (text := peek_flag(common, "--arm")) is not None:
        at = next(at for at, argument in enumerate(common) if argument == "--arm" or argument.startswith("--arm="))
        del common[at : at + (2 if common[at] == "--arm" else 1)]
        name, colon, flags = text.partition(":")
        if not colon and text.endswith(".toml"):
            name, flags = Path(text).stem, f"--config {shlex.quote(text)}"
        elif not colon:
            raise SettingsError(
                f'--arm is {text!r}; expected "NAME: FLAGS", such as --arm "slow: --learning-rate 1e-4", or the path '
                "of a .toml file."
            )
        if not ARM_NAME.fullmatch(name.strip()):
            raise SettingsError(
                f"an arm is called {name.strip()!r}; expected the name of a folder: up to 40 letters, digits, . _ + -"
            )
        try:
            arms.append((name.strip(), shlex.split(flags)))
        except ValueError as error:
            raise SettingsError(f"--arm {text!r} cannot be split into flags: {error}.") from error
    return arms, common


def _arm(env: str, name: str, common: Sequence[str], flags: Sequence[str], options: CompareOptions) -> Arm:
    """An arm whose flags are added to the common ones."""
    argv = list(common)
    for flag in ("--preset", "--config", "--algo", "--engine", "--device"):  # read before all others are parsed
        if peek_flag(flags, flag) is not None:
            argv = remove_flag(argv, flag)
    argv += flags
    own, settings = parse(argv, base_settings(env, argv), CompareOptions, f"compare, arm {name}:")
    if replace(own, preset=options.preset, config=options.config) != options or peek_flag(flags, "--seed"):
        raise SettingsError(
            f"arm {name!r} has flags of the comparison; write seeds, episodes and folder outside of it."
        )
    given = explicit_settings(argv)
    if env not in ENVS and own.preset in (None, AUTO):
        settings, lines = auto_configure_once(settings, given, options.save_dir / "arms" / f"{name}.json")
        if lines:
            note("\n".join([f"arm {name}", *lines]))
    settings = settings.resolved(spec_of(env_factory(env, settings.env_settings)))
    if "eval_interval" not in given:
        interval = max(1, settings.length.epochs // NUM_EVALUATIONS)
        settings = replace(settings, evaluation=replace(settings.evaluation, eval_interval=interval))
    _check_evaluations(settings)
    return Arm(name, settings)


def _num_envs_arms(env: str, counts: str, common: list[str]) -> tuple[CompareOptions, list[Arm]]:
    """An arm per number of envs, with a control."""
    defaults: list[str] = []
    if env == "dvrp" and peek_flag(common, "--config") is None:
        replaced = {"--episodes": ("--steps", "--epochs"), "--city": ("--trips",)}
        for flag, value in DVRP_FLAGS.items():
            if all(peek_flag(common, name) is None for name in (flag, *replaced.get(flag, ()))):
                defaults += [flag, value]
    try:
        num_envs = [whole_number(part) for part in counts.split(",")]
    except ValueError as error:
        raise SettingsError(
            f"--num-envs expects numbers separated by commas, such as 64,256; got {counts!r}."
        ) from error
    # Parsed before the flags given, so that help shows them.
    _, base = parse(defaults, base_settings(env, [*common, *defaults]), CompareOptions, "compare")
    base = replace(base, rollout=replace(base.rollout, num_envs=min(num_envs)))
    options, settings = parse(common, base, CompareOptions, "compare")
    if settings.engine != OWN:
        raise SettingsError("numbers of envs are compared with the default engine; for others name arms by --arm.")
    _check_evaluations(settings)
    spec = spec_of(env_factory(env, settings.env_settings))
    arms = num_envs_arms(settings, num_envs, spec)
    if len(arms) > len(num_envs) and not options.json:
        few, many = min(num_envs), max(num_envs)
        note(f"{arms[-1].name}: a control with {few} envs that collects as much per update as {many} envs")
    return options, arms


def _check_evaluations(settings: RunSettings) -> None:
    if settings.evaluation.eval_interval < 1:
        raise SettingsError("compare draws evaluations during training; --eval-interval must be at least 1.")


def _arm_set(env: str, name: str, settings: RunSettings) -> dict[str, list[str]]:
    sets = ARM_SETS.get(env, {})
    if name not in sets:
        raise SettingsError(
            f"there is no set of arms {name!r} for {env}; {suggest(name, sets, otherwise='dvrp has ablations.')}"
        )
    return {arm: shlex.split(flags) for arm, flags in sets[name](settings).items()}


def _ablations(settings: RunSettings) -> dict[str, str]:
    """The default training of dvrp without one of its parts each."""
    # Learning rate, passes and norms of `--preset returns`; the network stays.
    returns = (
        "--advantages gae --future-samples 0 --gamma 1 --learning-rate 1e-3 --update-epochs 4 --max-gradient-norm 0.5 "
        "--value-norm-momentum 0.1"
    )
    longer = "" if not settings.length.episodes else f" --episodes {10 * settings.length.episodes}"
    return {
        "default": "",
        "no-mask": "--mask-mode none",
        # Wider, so that its size is no handicap.
        "no-shared-weights": "--architecture joint --hidden-sizes 256 256",
        "policy-gradient": "--futures-loss policy_gradient",
        "returns": returns,
        # Samples of returns are cheaper: about the wall clock of the default.
        **({"returns-x10": f"{returns}{longer}"} if longer else {}),
        "no-trip-memory": "--no-trip-memory",
        "no-stranger-prior": "--no-stranger-prior",
    }


ARM_SETS: Final[dict[str, dict[str, Callable[[RunSettings], dict[str, str]]]]] = {"dvrp": {"ablations": _ablations}}


def _check_same_days(arms: Sequence[Arm], seed: int) -> None:
    """Raise a SettingsError unless all arms of dvrp book the same days."""
    first: tuple[FloatArray, ...] | None = None
    for arm in arms:
        env = Dvrp(np.arange(2), replace(arm.settings.env_settings, future_samples=0))
        env.reset(evaluation_env_seed(seed))
        days = tuple(env.true_state[name].copy() for name in ("requested_windows", "cells", "max_ride_minutes"))
        first = first or days
        if any(not np.array_equal(mine, theirs) for mine, theirs in zip(days, first, strict=True)):
            raise SettingsError(
                f"arms {arms[0].name} and {arm.name} have different days (city, customers or trips), on which they "
                "cannot be compared; compare each city by itself."
            )


# --- training and evaluation


def _train(settings: RunSettings, path: Path, number: str) -> bool:
    note(f"training {path} ({number})")
    if (path / "settings.toml").exists():
        if settings.engine == OWN:
            return resume_run(path, quiet=True, report=False).finished
        shutil.rmtree(path)  # other engines cannot resume
    return start_run(settings, save_dir=path.parent, name=path.name, quiet=True, report=False).finished


@dataclass(frozen=True, slots=True)
class _Measure:
    """How runs on an env are evaluated."""

    evaluate: Callable[[Path], Scores]
    conditions: Mapping[str, int]  # number and seed of the episodes
    metric: str  # evaluated during training
    target: float | None = None  # level to report if every arm reaches it

    def compare(self, arms: Sequence[Arm], runs: Sequence[tuple[str, Path]], level: float | None) -> Comparison:
        """Evaluate all runs and compare them."""
        paths = {arm.name: [path for name, path in runs if name == arm.name] for arm in arms}
        curves = {name: [read_curve(path, self.metric) for path in found] for name, found in paths.items()}
        scores = {
            name: [scores_of(path, self.evaluate, self.conditions) for path in found] for name, found in paths.items()
        }
        if level is None:
            level = highest_common_level(curves, self.target)
        return compare_runs(arms, scores, curves, level)


def _return_measure(options: CompareOptions, arms: Sequence[Arm]) -> _Measure:
    """Returns of whole episodes that are the same for all runs."""
    seed = int(rng.spawn(rng.seed_key(options.final_seed), FINAL_EVALUATION)) >> 1
    # Which episodes are played depends on the number of envs.
    num_envs = min(options.final_episodes, *(arm.settings.rollout.num_envs for arm in arms))

    def returns(path: Path) -> Scores:
        note(f"evaluating {path}")
        # The user named the env of all these runs: `train_all` refuses folders with other settings.
        evaluation = evaluate(
            path, episodes=options.final_episodes, num_envs=num_envs, seed=seed, checkpoint="last", trust_run=True
        )
        return {"all": evaluation.returns}

    return _Measure(returns, {**_conditions(options), "num_envs": num_envs}, RETURN)


def _conditions(options: CompareOptions) -> dict[str, int]:
    return {"episodes": options.final_episodes, "seed": options.final_seed}


def _dvrp_measure(options: CompareOptions, arms: Sequence[Arm]) -> _Measure:
    """Improvement in percent on the same days; costs without offers are computed once."""
    scorer = DayScorer(LNSOracle(LNSSettings(threads=os.cpu_count() or 1)))

    def improvements(path: Path) -> Scores:
        note(f"evaluating {path}")
        evaluated = load_run_policy(str(path), checkpoint="last")
        scores: dict[str, FloatArray] = {}
        for split in SPLITS:
            settings = replace(evaluated.settings, split=split)
            simulated, population = simulate_days(
                evaluated.policy,
                settings,
                options.final_episodes,
                options.final_seed,
                shared_params=evaluated.shared_params,
            )
            scores[split] = scorer.scores(simulated, population, settings).improvement_pct
        return scores

    return _Measure(improvements, _conditions(options), IMPROVEMENT, DVRP_TARGET)


# --- results


def _print_results(env: str, comparison: Comparison, command: Sequence[str], options: CompareOptions) -> None:
    if options.json:
        rows = [*comparison.scores, *({"table": "training", **row} for row in comparison.training)]
        print_rows(rows, command=command, as_json=True)
        return
    unit = "improvement in %" if env == "dvrp" else "return"

    def show(rows: Sequence[Row], summarise: Callable[[Row], Row], title: str) -> None:
        shown = [summarise(row) | (row if options.wide else {}) for row in rows]
        print_rows(shown, command=command, as_json=False, title=title, wide=options.wide, hint=False)

    for split, verdict in comparison.verdicts.items():
        rows = [row for row in comparison.scores if row["split"] == split]
        of_split = "" if split == "all" else f", {split.replace('_', ' ')}"
        show(rows, _shown_scores, f"{env}{of_split}: {unit} (95 % interval)")
        if len(rows) > 1:
            print()
            first = rows[0]["arm"]
            chance = f"; P(higher): probability that a run scores higher than one of {first}"
            title = f"compared with {first}, paired by seed and episode{chance if IMPROVED in rows[1] else ''}"
            show(rows[1:], _shown_difference, title)
            print_text(verdict)
            print()
    level = comparison.training[0]["level"]
    title = (
        f"{env}: length of training, and until the mean over seeds reached {format_table_number(level)} (empty: not "
        "reached)"
    )
    show(comparison.training, _shown_training, title)
    if not options.wide:
        note("more columns with --wide")


def _shown_scores(row: Row) -> Row:
    return {
        "arm": row["arm"],
        "mean": _with_interval(row, "mean", "ci"),
        "interquartile mean": _with_interval(row, "iqm", "iqm"),
    }


def _shown_difference(row: Row) -> Row:
    shown = {"arm": row["arm"], "difference": _with_interval(row, "difference", "difference")}
    return shown | ({"P(higher)": _with_interval(row, IMPROVED, IMPROVED)} if IMPROVED in row else {})


def _shown_training(row: Row) -> Row:
    return {
        "arm": row["arm"],
        "epochs": row["epochs"],
        "samples": row["samples"],
        "time": format_duration(row["seconds"]),
        "samples until": None if (samples := row.get("samples_to_level")) is None else round(samples),
        "time until": format_duration(row["seconds_to_level"]) if "seconds_to_level" in row else "",
    }


def _with_interval(row: Row, value: str, interval: str) -> str:
    """`2.24 (2.03 to 2.46)`, with at least two digits of the interval's width."""
    middle, low, high = (row[name] for name in (value, f"{interval}_low", f"{interval}_high"))
    decimals = min(max(1 - math.floor(math.log10(high - low)), 2 if high - low < 10 else 0), 6) if high > low else 2
    return f"{middle:,.{decimals}f} ({low:,.{decimals}f} to {high:,.{decimals}f})"


def _write_results(env: str, folder: Path, comparison: Comparison, command: Sequence[str]) -> None:
    """`compare.json` holds everything the report shows."""
    from hundredfold.report.command_pages import draw_comparison

    curves: Mapping[str, list[dict[str, Any]]] = {
        name: [
            {key: getattr(curve, key).tolist() for key in ("epochs", "samples", "seconds", "score")} for curve in arm
        ]
        for name, arm in comparison.curves.items()
    }
    record = {
        "command": list(command),
        "machine": machine(),
        "scores": comparison.scores,
        "training": comparison.training,
        "verdicts": comparison.verdicts,
        "curves": curves,
    }
    write_atomically(folder / "compare.json", json.dumps(record, indent=1))
    page = draw_comparison(env, comparison, f"hundredfold {shlex.join(command)}")
    write_atomically(folder / "compare.html", page)
