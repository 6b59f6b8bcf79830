"""`hundredfold compare dvrp`: numbers of envs compared over seeds on the same days."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from hundredfold.api import resume_run, start_run
from hundredfold.cli.evaluate_dvrp_policies import load_run_policy
from hundredfold.cli.output import note, print_rows
from hundredfold.cli.train import SaveDir, base_settings, parse, peek_flag, remove_flag
from hundredfold.config.run import LengthSettings, RunSettings
from hundredfold.core.batch import FloatArray
from hundredfold.core.errors import SettingsError
from hundredfold.core.files import write_atomically
from hundredfold.envs.dvrp.evaluation import EVALUATION_SEED, SPLITS, DayScorer, simulate_days
from hundredfold.envs.registry import canonical_name, env_factory
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.training.compare import Curve, make_arms, summary, train_all
from hundredfold.training.engines import OWN

DEFAULT_EPISODES: Final = 25_600

HELP = """usage: hundredfold compare dvrp --num-envs 64,256 --seeds 5 [flags of train]

Trains every number of envs, and a control that collects as much with the fewest, over several
seeds; evaluates all of them on the same days. Run it again to continue where it stopped.
`hundredfold compare dvrp --help` shows all flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """Options of the comparison; --num-envs takes several numbers separated by commas."""

    seeds: int = 5
    """Runs per arm, with consecutive seeds."""
    days: int = 256
    """Days per split on which the finished runs are evaluated."""
    preset: str | None = None
    """Preset to start from instead of the env's own settings."""
    config: Path | None = None
    """Settings file (TOML); flags override it."""
    save_dir: SaveDir = Path("runs/compare")
    """Where the run folders, compare.json and compare.html are written."""
    json: bool = False
    """Print one JSON object and nothing else."""


def run(argv: Sequence[str]) -> int:
    """Print a row per arm; 130 when the user stopped it."""
    arguments = list(argv)
    if not arguments or arguments[0].startswith("-"):
        print(HELP)
        if set(arguments) & {"-h", "--help"}:
            return 0
        raise SettingsError("compare expects ENV as its first argument, before any flag.")
    env = canonical_name(arguments.pop(0))
    if env != "dvrp":
        raise SettingsError(f"compare works with dvrp only, got {env}.")
    num_envs = _numbers(peek_flag(arguments, "--num-envs") or "64,256")
    arguments = remove_flag(arguments, "--num-envs")
    start = base_settings(env, arguments)
    if peek_flag(arguments, "--config") is None:
        start = replace(start, length=LengthSettings(episodes=DEFAULT_EPISODES))
    options, settings = parse(arguments, start, CompareOptions, "compare")
    if settings.algo != "ppo" or settings.engine != OWN:
        raise SettingsError("compare works with --algo ppo and the default engine only; remove --algo and --engine.")
    if options.seeds < 1 or options.days < 2:
        raise SettingsError(f"seeds ({options.seeds}) must be at least 1 and days ({options.days}) at least 2.")
    settings = replace(settings, rollout=replace(settings.rollout, num_envs=min(num_envs)))
    steps = env_factory(env, settings.env_settings)(np.arange(1)).spec.episode_steps
    assert steps is not None, "a day of dvrp has a fixed number of calls"
    arms = make_arms(settings, num_envs, steps)
    seeds = [settings.seed + number for number in range(options.seeds)]
    runs = train_all(arms, seeds, options.save_dir, _train)
    if runs is None:
        note(f"stopped; run the same command again to continue in {options.save_dir}")
        return 130
    rows, curves = summary(runs, DayEvaluator(options.days))
    command = ["compare", *argv]
    _write_results(env, options.save_dir, rows, curves, command)
    print_rows(rows, command=command, as_json=options.json, title=f"{env}: improvement in %")
    note(f"report {options.save_dir / 'compare.html'}")
    return 0


class DayEvaluator:
    """Evaluates policies on the same days; costs without negotiation are computed once."""

    def __init__(self, days: int) -> None:
        self.days = days
        threads = os.cpu_count() or 1
        self.scorer = DayScorer(LNSOracle(LNSSettings(threads=threads)))

    def __call__(self, path: Path) -> dict[str, FloatArray]:
        """(days,) improvement in percent by split."""
        note(f"evaluating {path}")
        evaluated = load_run_policy(str(path), checkpoint="last")
        improvement: dict[str, FloatArray] = {}
        for split in SPLITS:
            settings = replace(evaluated.settings, split=split)
            simulated, population = simulate_days(
                evaluated.policy, settings, self.days, EVALUATION_SEED, shared_params=evaluated.shared_params
            )
            improvement[split] = self.scorer.scores(simulated, population, settings).improvement_pct
        return improvement


def _train(settings: RunSettings, folder: Path, name: str) -> bool:
    note(f"training {folder / name}")
    if (folder / name / "settings.toml").exists():
        return resume_run(folder / name, quiet=True, report=False).finished
    return start_run(settings, save_dir=folder, name=name, quiet=True, report=False).finished


def _write_results(
    env: str, folder: Path, rows: Sequence[dict[str, object]], curves: dict[str, list[Curve]], command: Sequence[str]
) -> None:
    """`compare.json` holds everything the report shows."""
    from hundredfold.report.command_pages import draw_comparison

    curve_table = {
        name: [
            {
                "epochs": curve.epochs.tolist(),
                "samples": curve.samples.tolist(),
                "seconds": curve.seconds.tolist(),
                "score": curve.score.tolist(),
            }
            for curve in arm
        ]
        for name, arm in curves.items()
    }
    record = {"command": list(command), "rows": list(rows), "curves": curve_table}
    write_atomically(folder / "compare.json", json.dumps(record, indent=1))
    page = draw_comparison(env, rows, curves, f"hundredfold {' '.join(command)}")
    write_atomically(folder / "compare.html", page)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise SettingsError(f"--num-envs expects numbers separated by commas, such as 64,256; got {text!r}.") from error
