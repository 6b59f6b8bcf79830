"""Search for better settings with Optuna: every trial trains runs in processes of their own, here or on a cluster.

The study lives in a SQLite file of the sweep's folder, next to the run folders, so that a sweep that
was killed continues where it stopped: finished trials are kept, unfinished runs are resumed bit for
bit, and what the sampler suggests depends only on the trial's number and on the trials before it.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import optuna

from hundredfold.core.errors import HundredfoldError, SettingsError, WorkerError
from hundredfold.core.files import write_atomically
from hundredfold.training.run_folder import RunFolder
from hundredfold.training.search_ranges import Distribution, as_flag, contains, describe
from hundredfold.training.trial_runs import StartRun, TrialRun

POLL_SECONDS: Final = 0.2
# Trials before unpromising ones are stopped, and stages of a run in which they are compared.
PRUNING_STARTUP_TRIALS: Final = 4
NUM_STAGES: Final = 20
# A run that misses the target counts as this many times its own seconds.
MISSED_TARGET: Final = 2.0
# Trials that may fail at the start before the sweep gives up.
MAX_FIRST_FAILURES: Final = 3
# A trial fails when its runs were lost this often with the node that they ran on.
MAX_LOSSES: Final = 3
LOG_LINES: Final = 12
# Finished trials, besides one per setting, before the importance of settings is estimated.
MIN_SPARE_TRIALS: Final = 3
PLAN_FILE: Final = "sweep.json"

Finish = optuna.trial.TrialState


class Evaluation(NamedTuple):
    """One evaluation of a run."""

    score: float  # mean return
    seconds: float  # wall clock of the run so far
    steps: int  # steps of all envs so far


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """What is searched; a sweep can only be continued with the same plan.

    Args:
        env: Name of the env.
        flags: Flags of `train` that the settings of all runs come from.
        search: Range of each setting, as text.
        seeds: Seeds of every trial.
        steps: Length of a run, in steps of all envs.
        target: If given, the seconds until this evaluated return are minimised; by default the
            last evaluated return is maximised.
    """

    env: str
    flags: tuple[str, ...]
    search: dict[str, str]
    seeds: tuple[int, ...]
    steps: int
    target: float | None = None

    def as_json(self) -> str:
        """The plan as it is stored."""
        return json.dumps(asdict(self), indent=1)

    def stage(self, evaluation: Evaluation) -> int:
        """How far a run has come: evaluations of different trials are compared at the same stage.

        A stage is a share of the steps, or where seconds are minimised a quarter of an octave of
        the seconds, so that settings with quick steps are not compared at equal steps.
        """
        if self.target is not None:
            return int(4 * math.log2(1.0 + evaluation.seconds))
        return evaluation.steps * NUM_STAGES // self.steps


@dataclass(frozen=True, slots=True)
class TrialResult:
    """A finished trial."""

    number: int
    params: dict[str, Any]
    score: float  # what is maximised: mean return, or minus seconds to the target
    seconds: float  # wall clock of all its runs
    returns: tuple[float, ...]  # last evaluated return of every seed

    @property
    def mean_return(self) -> float:
        """Last evaluated return, mean over seeds."""
        return float(np.mean(self.returns))


@dataclass(slots=True)
class _ActiveTrial:
    """A trial that is being trained, one seed after the other."""

    trial: optuna.Trial
    params: dict[str, Any]
    folder: Path
    process: TrialRun | None = None
    seed_index: int = 0
    reported: int = 0  # evaluations of the present run
    stage: int = -1  # of the last evaluation that was compared with other trials
    losses: int = 0  # runs that were lost with their node
    results: list[tuple[float, float, float]] = field(default_factory=list)  # score, seconds, return by seed

    @property
    def scores(self) -> list[float]:
        """Score of every finished seed."""
        return [score for score, _, _ in self.results]


class Sweep:
    """Trials of one study.

    Args:
        folder: Folder of the sweep; created, or continued if its plan is the same. The settings that all
            runs share are in its `start_file` before the first one starts.
        plan: What is searched.
        space: Parsed ranges.
        defaults: Values of the searched settings before the search, tried first if within range.
        start_run: Starts the training of one run.
        on_event: Called with a line about every start and end of a trial.
        named_flags: Flags with what runs pass to their env or join, besides the env itself.
    """

    def __init__(
        self,
        folder: Path,
        plan: SweepPlan,
        space: Mapping[str, Distribution],
        defaults: Mapping[str, Any],
        *,
        start_run: StartRun,
        on_event: Callable[[str], None],
        named_flags: Sequence[str] = (),
    ) -> None:
        self.folder, self.plan, self.space = folder, plan, dict(space)
        self.start_run, self.on_event, self.named_flags = start_run, on_event, tuple(named_flags)
        folder.mkdir(parents=True, exist_ok=True)
        self._check_plan()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(
            storage=f"sqlite:///{folder / 'study.db'}",
            study_name="sweep",
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(PRUNING_STARTUP_TRIALS),
            load_if_exists=True,
        )
        if all(contains(space[name], defaults[name]) for name in space) and not self.study.get_trials(deepcopy=False):
            self.study.enqueue_trial(dict(defaults))
        self.active: list[_ActiveTrial] = []

    def run(self, trials: int, parallel: int) -> None:
        """Train until this many trials have been made in total, `parallel` of them at a time."""
        folder = RunFolder(self.folder)
        folder.claim()
        try:
            for stale in self.study.get_trials(states=(Finish.RUNNING,)):
                self.active.append(self._continued(stale))
            while True:
                while len(self.active) < parallel and self._num_started() < trials:
                    self.active.append(self._next_trial())
                if not self.active:
                    return
                for active in list(self.active):
                    self._advance(active)
                time.sleep(POLL_SECONDS)
        finally:
            self._stop_all()
            folder.release()

    @property
    def start_file(self) -> Path:
        """Settings file with which every run starts; searched settings are flags."""
        return self.folder / "start.toml"

    def results(self) -> list[TrialResult]:
        """Finished trials, best first."""
        found = [
            TrialResult(trial.number, dict(trial.params), float(trial.values[0]), **_stored(trial))
            for trial in self.study.get_trials(states=(Finish.COMPLETE,))
        ]
        return sorted(found, key=lambda result: -result.score)

    def counts(self) -> dict[str, int]:
        """Number of trials by how they ended."""
        states = [trial.state for trial in self.study.get_trials(deepcopy=False)]
        names = {"finished": Finish.COMPLETE, "pruned": Finish.PRUNED, "failed": Finish.FAIL}
        return {name: states.count(state) for name, state in names.items()}

    def importances(self) -> dict[str, float]:
        """Share of each setting in the differences between trials; empty after too few of them."""
        if len(self.results()) < len(self.space) + MIN_SPARE_TRIALS:
            return {}
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return dict(optuna.importance.get_param_importances(self.study, evaluator=evaluator))

    def _check_plan(self) -> None:
        path = self.folder / PLAN_FILE
        if path.exists() and path.read_text() != self.plan.as_json():
            raise SettingsError(
                f"{self.folder} holds a sweep with another env, search, seeds, target or flags; repeat its command "
                f"(see {PLAN_FILE} there) or choose another --name."
            )
        write_atomically(path, self.plan.as_json())

    def _num_started(self) -> int:
        waiting = optuna.trial.TrialState.WAITING
        return sum(trial.state != waiting for trial in self.study.get_trials(deepcopy=False))

    def _next_trial(self) -> _ActiveTrial:
        number = len(self.study.get_trials(deepcopy=False))
        # Seeded anew for every trial, so that a continued sweep suggests what it would have suggested.
        self.study.sampler = optuna.samplers.TPESampler(seed=number, multivariate=True, constant_liar=True)
        trial = self.study.ask(fixed_distributions=self.space)
        self.on_event(f"trial {trial.number}: {describe(trial.params)}")
        return _ActiveTrial(trial, dict(trial.params), self._trial_folder(trial.number))

    def _continued(self, stale: optuna.trial.FrozenTrial) -> _ActiveTrial:
        """A trial that was being trained when the sweep was killed."""
        self.on_event(f"trial {stale.number} continues: {describe(stale.params)}")
        trial = optuna.Trial(self.study, stale._trial_id)
        active = _ActiveTrial(trial, dict(stale.params), self._trial_folder(stale.number))
        while (done := active.folder / f"seed-{self._seed(active)}.json").exists():
            active.results.append(tuple(json.loads(done.read_text())))
            active.seed_index += 1
            if active.seed_index == len(self.plan.seeds):
                break
        return active

    def _trial_folder(self, number: int) -> Path:
        folder = self.folder / "trials" / f"{number:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _seed(self, active: _ActiveTrial) -> int:
        return self.plan.seeds[active.seed_index]

    def _advance(self, active: _ActiveTrial) -> None:
        """Start the trial's next run, read its new evaluations, or end the trial."""
        if active.seed_index == len(self.plan.seeds):
            self._finish(active)
            return
        if active.process is None:
            if self._is_below_median(active):
                self._end(active, Finish.PRUNED)
            else:
                self._start(active)
            return
        try:
            code = active.process.poll()
        except WorkerError as error:
            self._lose(active, error)
            return
        evaluations = list(read_evaluations(active.folder / f"seed-{self._seed(active)}"))
        if self._is_pruned(active, evaluations):
            self._end(active, Finish.PRUNED)
        elif self._reached_target(evaluations) is not None or code == 0:
            self._end_run(active, evaluations)
        elif code is not None:
            self._fail(active, f"ended with exit code {code}")

    def _start(self, active: _ActiveTrial) -> None:
        seed = self._seed(active)
        run = active.folder / f"seed-{seed}"
        if run.exists() and RunFolder(run).is_claimed():
            return  # by a training whose sweep was killed: it saves and ends
        if run.exists() and not any(RunFolder(run).checkpoints.glob("*")):
            shutil.rmtree(run)  # killed before anything was saved
        if run.exists():
            # What it executes is named again, so that it needs no trust where another node has started it.
            flags = [self.plan.env, "--resume", str(run), *self.named_flags, "--quiet"]
        else:
            searched = [part for name, value in active.params.items() for part in as_flag(name, value)]
            place = ["--seed", str(seed), "--save-dir", str(active.folder), "--name", run.name, "--quiet"]
            flags = [self.plan.env, "--config", str(self.start_file), *searched, *place]
        active.reported, active.stage = 0, -1
        active.process = self.start_run(flags, active.folder / f"{run.name}.log")

    def _is_pruned(self, active: _ActiveTrial, evaluations: Sequence[Evaluation]) -> bool:
        """Report new evaluations of the first seed; whether they are too low beside those of other trials."""
        if active.seed_index > 0:
            return False
        new = False
        for evaluation in evaluations[active.reported :]:
            if (stage := self.plan.stage(evaluation)) > active.stage:
                active.trial.report(evaluation.score, stage)
                active.stage, new = stage, True
        active.reported = len(evaluations)
        # The first evaluation of a run says little about it.
        enough = len(evaluations) > 1 and self._reached_target(evaluations) is None
        return new and enough and active.trial.should_prune()

    def _is_below_median(self, active: _ActiveTrial) -> bool:
        """Whether the mean over the finished seeds is below the median of other trials over the same seeds."""
        scores = active.scores
        finished = [trial.user_attrs["scores"] for trial in self.study.get_trials(states=(Finish.COMPLETE,))]
        if not scores or len(finished) < PRUNING_STARTUP_TRIALS:
            return False
        others = [np.mean(other[: len(scores)]) for other in finished]
        return bool(np.mean(scores) < np.median(others))

    def _reached_target(self, evaluations: Sequence[Evaluation]) -> float | None:
        """Seconds until the target; None if there is none or it has not been reached."""
        target = self.plan.target
        return next((one.seconds for one in evaluations if target is not None and one.score >= target), None)

    def _end_run(self, active: _ActiveTrial, evaluations: Sequence[Evaluation]) -> None:
        _terminate(active.process)
        active.process = None
        if not evaluations:
            raise HundredfoldError(f"{active.folder} was not evaluated while training; see --eval-interval.")
        last = evaluations[-1]
        score = last.score
        if self.plan.target is not None:
            reached = self._reached_target(evaluations)
            score = -(MISSED_TARGET * last.seconds if reached is None else reached)
        result = (score, last.seconds, last.score)
        write_atomically(active.folder / f"seed-{self._seed(active)}.json", json.dumps(result))
        active.results.append(result)
        active.seed_index += 1

    def _finish(self, active: _ActiveTrial) -> None:
        scores, seconds, returns = (list(column) for column in zip(*active.results, strict=True))
        active.trial.set_user_attr("scores", scores)
        active.trial.set_user_attr("seconds", sum(seconds))
        active.trial.set_user_attr("returns", returns)
        self._end(active, Finish.COMPLETE, float(np.mean(scores)))

    def _lose(self, active: _ActiveTrial, error: WorkerError) -> None:
        """Start a run again that was lost with its node: it resumes from its last checkpoint."""
        active.process = None
        active.losses += 1
        self.on_event(f"trial {active.trial.number}: {error}")
        if active.losses == MAX_LOSSES:
            self._fail(active, f"was lost {MAX_LOSSES} times with its node")

    def _fail(self, active: _ActiveTrial, reason: str) -> None:
        log = active.folder / f"seed-{self._seed(active)}.log"
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else []
        self._end(active, Finish.FAIL)
        ended = [trial for trial in self.study.get_trials(deepcopy=False) if trial.state.is_finished()]
        if len(ended) >= MAX_FIRST_FAILURES and all(trial.state == Finish.FAIL for trial in ended):
            raise HundredfoldError(f"the first {len(ended)} trials failed; the last one {reason}:\n" + "\n".join(lines))

    def _end(self, active: _ActiveTrial, state: optuna.trial.TrialState, score: float | None = None) -> None:
        _terminate(active.process)
        self.active.remove(active)
        number = active.trial.number
        self.study.tell(number, score, state=state)
        if score is None:
            failed = f"failed; see the logs in {active.folder}"
            self.on_event(f"trial {number}: {'stopped early' if state == Finish.PRUNED else failed}")
        else:
            best = self.study.best_trial
            self.on_event(f"trial {number}: {self.describe_score(score)}; best is trial {best.number}")

    def describe_score(self, score: float) -> str:
        """A score with its meaning."""
        return f"return {score:,.4g}" if self.plan.target is None else f"target after {-score:,.1f} s"

    def _stop_all(self) -> None:
        """End all runs, which save themselves; their trials go on when the sweep is continued."""
        for wait in (False, True):  # all at once, then one after the other
            for active in self.active:
                _terminate(active.process, wait=wait)


def read_evaluations(run: Path) -> Iterator[Evaluation]:
    """Evaluations in the metrics of a run, whose last line may still be incomplete."""
    path = RunFolder(run).metrics_file
    if not path.exists():
        return
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            row = json.loads(line)
            if "eval/return_mean" in row:
                yield Evaluation(float(row["eval/return_mean"]), float(row["wall_seconds"]), int(row["total_steps"]))


def pareto_front(results: Sequence[TrialResult]) -> list[TrialResult]:
    """Trials that no other one beats in both return and seconds, quickest first."""
    front: list[TrialResult] = []
    for result in sorted(results, key=lambda one: (one.seconds, -one.mean_return)):
        if not front or result.mean_return > front[-1].mean_return:
            front.append(result)
    return front


def _stored(trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
    return {"seconds": float(trial.user_attrs["seconds"]), "returns": tuple(trial.user_attrs["returns"])}


def _terminate(process: TrialRun | None, *, wait: bool = True) -> None:
    """End a run, and wait until it has saved itself."""
    if process is None:
        return
    try:
        if process.poll() is None:
            process.terminate()
        if wait:
            process.wait()
    except WorkerError:
        return  # lost with its node, which has nothing left to end
