"""Learned offers compared with the look-ahead heuristic on fresh days of dvrp.

Savings depend on how far trips are shifted, so policies are compared at equal shift: each run is
evaluated at several shift penalties and interpolated, day by day, at the mean shift of look-ahead.
Look-ahead uses the acceptance model of the first run, so that only the decisions differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from hundredfold.cli.evaluate_dvrp_policies import EvaluatedPolicy, load_run_policy
from hundredfold.core.batch import FloatArray
from hundredfold.core.errors import SettingsError
from hundredfold.core.statistics import NUM_RESAMPLES
from hundredfold.envs.dvrp.analysis import interpolated_at_shift
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.evaluation import NO_EXPLORATION, DayScorer, DayScores, evaluation_env_seed, simulate_days
from hundredfold.envs.dvrp.lookahead import LookaheadSettings
from hundredfold.envs.dvrp.policies import PolicyOptions, env_settings_for, make_policy
from hundredfold.envs.dvrp.settings import Split

Row = dict[str, Any]

# With the run's own penalty (0.002 by default) they span the shifts that look-ahead makes.
SHIFT_PENALTIES: Final = (0.02, 0.04, 0.07, 0.12)
TIMED_ENVS: Final = 256


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
    """

    days: int
    seed: int
    splits: tuple[Split, ...]
    futures: int
    policy_futures: tuple[int, ...]
    hindsight: bool


def bench_offers(runs: Sequence[str], settings: OffersSettings, on_progress: Callable[[str], None]) -> list[Row]:
    """Rows per split: look-ahead, the runs, their difference at equal shift, and runs with look-ahead.

    Intervals (95 %) are bootstrapped over days, and over runs where there are several.
    """
    networks = [load_run_policy(folder, "best") for folder in runs]
    if any(network.settings != networks[0].settings for network in networks):
        raise SettingsError("the runs have different settings of dvrp; compare runs that differ in their seed only.")
    if not networks[0].takes_shift_penalty or networks[0].fitted is None:
        raise SettingsError("offers compares runs trained with --observation offers and an acceptance model.")
    scorer = DayScorer()
    rows: list[Row] = []
    for split in settings.splits:
        evaluator = _Evaluator(settings, split, scorer, on_progress)
        rows += [{"split": split, **row} for row in _split_rows(runs, networks, settings, evaluator)]
    return rows


def _split_rows(
    runs: Sequence[str], networks: Sequence[EvaluatedPolicy], settings: OffersSettings, evaluator: _Evaluator
) -> list[Row]:
    heuristic = _heuristic(networks[0], settings.futures)
    lookahead = evaluator.scores(heuristic)
    own = [evaluator.scores(network) for network in networks]
    curves = [
        [scores, *(evaluator.scores(network.with_shift_penalty(penalty)) for penalty in SHIFT_PENALTIES)]
        for network, scores in zip(networks, own, strict=True)
    ]
    shift = float(lookahead.shift_minutes.mean())
    at_equal_shift = [
        interpolated_at_shift(
            [scores.improvement_pct for scores in curve],
            [float(scores.shift_minutes.mean()) for scores in curve],
            shift,
        )
        for curve in curves
    ]
    rows = [
        _row(f"look-ahead, {settings.futures} futures", [lookahead], evaluator.decision_ms(heuristic)),
        _row("network", own, evaluator.decision_ms(networks[0])),
        {
            "policy": "network - look-ahead, at equal shift",
            **_interval(np.stack(at_equal_shift) - lookahead.improvement_pct),
            "shift_minutes": shift,
        },
    ]
    for samples in settings.policy_futures:
        with_futures = [load_run_policy(folder, "best", samples) for folder in runs]
        scores = [evaluator.scores(policy) for policy in with_futures]
        rows.append(_row(f"network + {samples} futures", scores, evaluator.decision_ms(with_futures[0])))
    if settings.hindsight:
        unmasked = replace(networks[0].settings, mask_mode="none")
        best = evaluator.scores(EvaluatedPolicy(name="hindsight", policy="hindsight", settings=unmasked))
        rows.append(_row("hindsight", [best], None))
        for row in rows:
            if "lowest" not in row:  # a difference
                continue
            row["of_hindsight_pct"] = 100.0 * row["mean"] / float(best.improvement_pct.mean())
    return rows


class _Evaluator:
    """Scores and decision times of policies on the days of one split."""

    def __init__(
        self, settings: OffersSettings, split: Split, scorer: DayScorer, on_progress: Callable[[str], None]
    ) -> None:
        self.settings, self.split, self.scorer, self.on_progress = settings, split, scorer, on_progress

    def scores(self, evaluated: EvaluatedPolicy) -> DayScores:
        start = time.perf_counter()
        env_settings = replace(evaluated.settings, split=self.split)
        days, population = simulate_days(
            evaluated.policy,
            env_settings,
            self.settings.days,
            self.settings.seed,
            shared_params=evaluated.shared_params,
            options=evaluated.options,
        )
        scores = self.scorer.scores(days, population, env_settings)
        self.on_progress(
            f"{self.split}: {evaluated.name}, shift penalty {env_settings.effective_shift_penalty}: "
            f"{scores.improvement_pct.mean():.2f} %, {time.perf_counter() - start:.0f} s"
        )
        return scores

    def decision_ms(self, evaluated: EvaluatedPolicy) -> float:
        """CPU milliseconds per caller, for what the policy reads and for its decision."""
        options = evaluated.options
        env_settings = env_settings_for(
            evaluated.policy, replace(evaluated.settings, split=self.split), options.shift_penalty
        )
        env = Dvrp(np.arange(TIMED_ENVS), env_settings)
        act = evaluated.policy
        if isinstance(act, str):
            act = make_policy(act, env.population, env_settings, self.settings.seed, options)
        env.set_shared_params({**(evaluated.shared_params or {}), **NO_EXPLORATION})
        out = env.reset(evaluation_env_seed(self.settings.seed))
        seconds = 0.0
        for _ in range(env_settings.num_customers):
            start = time.process_time()
            env.observe()
            actions = act(out)
            seconds += time.process_time() - start
            env.step(actions)
        return 1e3 * seconds / (TIMED_ENVS * env_settings.num_customers)


def _heuristic(network: EvaluatedPolicy, futures: int) -> EvaluatedPolicy:
    assert network.fitted is not None
    options = PolicyOptions(beliefs=network.fitted.model, lookahead=LookaheadSettings(samples=futures))
    unmasked = replace(network.settings, mask_mode="none")
    return EvaluatedPolicy(name="look-ahead", policy="lookahead", settings=unmasked, options=options)


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
