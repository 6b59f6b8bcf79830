"""Learned offers compared with the look-ahead heuristic on fresh days of dvrp.

Savings depend on how far trips are shifted, so policies are compared at equal shift: each run is
evaluated at growing shift penalties until it shifts less than look-ahead, and interpolated, day by
day, at the mean shift of look-ahead. They are also compared by what both are asked to maximise,
savings minus the shift penalty, with the penalty of the runs. Look-ahead uses the acceptance model of
the first run, so that only the decisions differ.

The scores of every policy are kept in a folder in parts of 256 days, if one is given: a comparison
that was interrupted continues there, and more days, runs or splits add to it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from hundredfold.cli.evaluate_dvrp_policies import EvaluatedPolicy, load_run_policy
from hundredfold.core.batch import FloatArray, StepBatch
from hundredfold.core.errors import SettingsError
from hundredfold.core.files import write_atomically
from hundredfold.core.statistics import NUM_RESAMPLES
from hundredfold.envs.dvrp.analysis import interpolated_at_shift
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.evaluation import NO_EXPLORATION, DayScorer, DayScores, evaluation_env_seed, simulate_days
from hundredfold.envs.dvrp.heuristics import OfferPolicy
from hundredfold.envs.dvrp.lookahead import LookaheadSettings
from hundredfold.envs.dvrp.policies import PolicyOptions, env_settings_for, make_policy
from hundredfold.envs.dvrp.settings import Split
from hundredfold.training.checkpoint import MANIFEST, load_checkpoint
from hundredfold.training.run_folder import RunFolder

Row = dict[str, Any]

# With the run's own penalty (0.002 by default) they span the shifts that look-ahead makes.
SHIFT_PENALTIES: Final = (0.04, 0.07, 0.12)
TIMED_ENVS: Final = 256
# Days that are simulated, scored and kept together.
DAYS_PER_PART: Final = 256
SCORE_NAMES: Final = tuple(field.name for field in fields(DayScores))


@dataclass(frozen=True, slots=True, kw_only=True)
class OffersSettings:
    """What to evaluate.

    Args:
        days: Days per split.
        seed: Seed of the days.
        splits: Demand to evaluate on.
        futures: Sampled futures per offer of the look-ahead heuristic.
        policy_futures: Numbers of sampled futures on top of the runs' networks.
        hindsight: Also evaluate the offers that are best when the whole day is known.
        decision_times: Also measure CPU milliseconds per decision.
        results: Folder for the scores of every policy; None keeps none.
    """

    days: int
    seed: int
    splits: tuple[Split, ...]
    futures: int
    policy_futures: tuple[int, ...]
    hindsight: bool
    decision_times: bool = True
    results: Path | None = None


@dataclass(frozen=True, slots=True)
class _Compared:
    """A policy and what its scores depend on, apart from settings, split and seed."""

    policy: EvaluatedPolicy
    identity: str

    @property
    def name(self) -> str:
        return f"{self.policy.name}, shift penalty {self.shift_penalty}"

    @property
    def shift_penalty(self) -> float:
        return self.policy.settings.effective_shift_penalty

    def with_shift_penalty(self, penalty: float) -> _Compared:
        return replace(self, policy=self.policy.with_shift_penalty(penalty))


def bench_offers(runs: Sequence[str], settings: OffersSettings, on_progress: Callable[[str], None]) -> list[Row]:
    """Rows per split: look-ahead, the runs, their difference at equal shift, and runs with look-ahead.

    Intervals (95 %) are bootstrapped over days, and over runs where there are several.
    """
    networks = [_network(folder) for folder in runs]
    first = networks[0].policy
    if any(network.policy.settings != first.settings for network in networks):
        raise SettingsError("the runs have different settings of dvrp; compare runs that differ in their seed only.")
    if not first.takes_shift_penalty or first.fitted is None:
        raise SettingsError("offers compares runs trained with --observation offers and an acceptance model.")
    scorer = DayScorer()
    rows: list[Row] = []
    for split in settings.splits:
        evaluator = _Evaluator(settings, split, scorer, on_progress)
        rows += [{"split": split, **row} for row in _split_rows(runs, networks, settings, evaluator)]
    return rows


def _split_rows(
    runs: Sequence[str], networks: Sequence[_Compared], settings: OffersSettings, evaluator: _Evaluator
) -> list[Row]:
    heuristic = _heuristic(networks[0], settings.futures)
    lookahead = evaluator.scores(heuristic)
    shift = float(lookahead.shift_minutes.mean())
    curves = [_curve(network, evaluator, shift) for network in networks]
    at_equal_shift = [
        interpolated_at_shift(
            [scores.improvement_pct for scores in curve],
            [float(scores.shift_minutes.mean()) for scores in curve],
            shift,
        )
        for curve in curves
    ]
    penalty = heuristic.shift_penalty
    at_equal_penalty = [_after_penalty(curve[0], penalty) - _after_penalty(lookahead, penalty) for curve in curves]
    rows = [
        _row(f"look-ahead, {settings.futures} futures", [lookahead], evaluator.decision_ms(heuristic.policy)),
        _row("network", [curve[0] for curve in curves], evaluator.decision_ms(networks[0].policy)),
        _difference("equal shift", np.stack(at_equal_shift) - lookahead.improvement_pct) | {"shift_minutes": shift},
        _difference(f"a shift penalty of {penalty:g}", np.stack(at_equal_penalty)),
    ]
    for samples in settings.policy_futures:
        with_futures = [_network(folder, samples) for folder in runs]
        scores = [evaluator.scores(policy) for policy in with_futures]
        rows.append(_row(f"network + {samples} futures", scores, evaluator.decision_ms(with_futures[0].policy)))
    if settings.hindsight:
        unmasked = replace(networks[0].policy.settings, mask_mode="none")
        policy = EvaluatedPolicy(name="hindsight", policy="hindsight", settings=unmasked)
        best = evaluator.scores(_Compared(policy, "hindsight"))
        rows.append(_row("hindsight", [best], None))
        for row in rows:
            if "failed" in row:  # not a difference
                row["of_hindsight_pct"] = 100.0 * row["mean"] / float(best.improvement_pct.mean())
    return rows


def _after_penalty(scores: DayScores, penalty: float) -> FloatArray:
    """(days,) improvement in percent after the shift penalty: what policies with this penalty are to maximise."""
    return np.asarray(scores.improvement_pct - 100.0 * penalty * scores.shift_minutes / scores.baseline_cost)


def _difference(where: str, difference: FloatArray) -> Row:
    """Row of the (runs, days) points by which the runs are ahead of look-ahead."""
    by_run = difference.mean(axis=1)
    return {
        "policy": f"network - look-ahead, at {where}",
        **_interval(difference),
        "lowest": float(by_run.min()),
        "highest": float(by_run.max()),
    }


def _curve(network: _Compared, evaluator: _Evaluator, shift: float) -> list[DayScores]:
    """Scores at the run's own shift penalty and at larger ones, until the mean shift is below `shift`."""
    curve = [evaluator.scores(network)]
    for penalty in SHIFT_PENALTIES:
        if curve[-1].shift_minutes.mean() < shift:
            break
        curve.append(evaluator.scores(network.with_shift_penalty(penalty)))
    return curve


class _Evaluator:
    """Scores and decision times of policies on the days of one split."""

    def __init__(
        self, settings: OffersSettings, split: Split, scorer: DayScorer, on_progress: Callable[[str], None]
    ) -> None:
        self.settings, self.split, self.scorer, self.on_progress = settings, split, scorer, on_progress

    def scores(self, compared: _Compared) -> DayScores:
        """Scores of all days, from the folder of results where they are there."""
        total = self.settings.days
        parts = [
            self._part(compared, first, min(DAYS_PER_PART, total - first)) for first in range(0, total, DAYS_PER_PART)
        ]
        return DayScores(*(np.concatenate([getattr(part, name) for part in parts]) for name in SCORE_NAMES))

    def _part(self, compared: _Compared, first: int, days: int) -> DayScores:
        file = self._file(compared, first, days)
        if file is not None and file.exists():
            stored = json.loads(file.read_text())["scores"]
            return DayScores(*(np.array(stored[name]) for name in SCORE_NAMES))
        start = time.process_time()
        scores = self._simulated(compared.policy, first, days)
        self.on_progress(
            f"{self.split}, days {first} to {first + days - 1}: {compared.name}: "
            f"{scores.improvement_pct.mean():.2f} %, {time.process_time() - start:.0f} s of CPU"
        )
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            part = {"policy": compared.name, "split": self.split, "seed": self.settings.seed, "first_day": first}
            part["scores"] = {name: getattr(scores, name).tolist() for name in SCORE_NAMES}
            write_atomically(file, json.dumps(part))
        return scores

    def _simulated(self, evaluated: EvaluatedPolicy, first: int, num_days: int) -> DayScores:
        env_settings = replace(evaluated.settings, split=self.split)
        days, population = simulate_days(
            evaluated.policy,
            env_settings,
            num_days,
            self.settings.seed,
            first_day=first,
            shared_params=evaluated.shared_params,
            options=evaluated.options,
        )
        return self.scorer.scores(days, population, env_settings)

    def _file(self, compared: _Compared, first: int, days: int) -> Path | None:
        if self.settings.results is None:
            return None
        # Costs do not depend on the number of threads.
        settings = replace(compared.policy.settings, split=self.split, oracle_threads=1)
        described = f"{compared.identity} {settings} {self.settings.seed} {first} {days}"
        return self.settings.results / f"{hashlib.sha256(described.encode()).hexdigest()[:32]}.json"

    def decision_ms(self, evaluated: EvaluatedPolicy) -> float | None:
        """CPU milliseconds per caller of one thread, for what the policy reads and for its decision.

        Trips have been requested once before: what is computed once for each trip is not counted.
        """
        if not self.settings.decision_times:
            return None
        options = evaluated.options
        one_thread = replace(evaluated.settings, split=self.split, oracle_threads=1)
        env_settings = env_settings_for(evaluated.policy, one_thread, options.shift_penalty)
        env = Dvrp(np.arange(TIMED_ENVS), env_settings)
        act = evaluated.policy
        if isinstance(act, str):
            act = make_policy(act, env.population, env_settings, self.settings.seed, options)
        env.set_shared_params({**(evaluated.shared_params or {}), **NO_EXPLORATION})
        out = env.reset(evaluation_env_seed(self.settings.seed))
        seconds = [self._decide_for_a_day(env, act, out) for _ in range(2)]
        return 1e3 * seconds[-1] / (TIMED_ENVS * env_settings.num_customers)

    def _decide_for_a_day(self, env: Dvrp, act: OfferPolicy, out: StepBatch) -> float:
        """CPU seconds of all decisions of a day."""
        seconds = 0.0
        for _ in range(env.settings.num_customers):
            start = time.process_time()
            env.observe()
            actions = act(out)
            seconds += time.process_time() - start
            env.step(actions)
        return seconds


def _network(folder: str, futures: int = 0) -> _Compared:
    """The best checkpoint of a run, with sampled futures on top; identified by its checksums."""
    run = RunFolder.open(Path(folder))
    epoch = load_checkpoint(run, "best", set()).epoch
    checksums = (run.checkpoints / f"{epoch:06d}" / MANIFEST).read_bytes()
    identity = f"{hashlib.sha256(checksums).hexdigest()} {futures}"
    return _Compared(load_run_policy(folder, "best", futures), identity)


def _heuristic(network: _Compared, futures: int) -> _Compared:
    assert network.policy.fitted is not None
    options = PolicyOptions(beliefs=network.policy.fitted.model, lookahead=LookaheadSettings(samples=futures))
    unmasked = replace(network.policy.settings, mask_mode="none")
    policy = EvaluatedPolicy(name="look-ahead", policy="lookahead", settings=unmasked, options=options)
    return _Compared(policy, f"look-ahead {futures} with the beliefs of {network.identity}")


def _row(name: str, scores: Sequence[DayScores], decision_ms: float | None) -> Row:
    return {
        "policy": name,
        **_interval(np.stack([one.improvement_pct for one in scores])),
        "lowest": float(min(one.improvement_pct.mean() for one in scores)),
        "highest": float(max(one.improvement_pct.mean() for one in scores)),
        "shift_minutes": float(np.mean([one.shift_minutes.mean() for one in scores])),
        "failed": int(sum(one.failed.sum() for one in scores)),
        "decision_ms": decision_ms,
    }


def _interval(values: FloatArray) -> Row:
    """Mean over (runs, days), with a bootstrap interval over both."""
    rng = np.random.default_rng(0)
    num_runs, num_days = values.shape
    means = [
        values[rng.integers(0, num_runs, num_runs)].mean(axis=0)[rng.integers(0, num_days, num_days)].mean()
        for _ in range(NUM_RESAMPLES)
    ]
    low, high = np.quantile(means, (0.025, 0.975))
    return {
        "runs": num_runs,
        "days": num_days,
        "mean": float(values.mean()),
        "ci_low": float(low),
        "ci_high": float(high),
    }
