"""`hundredfold evaluate dvrp`: evaluate runs and baseline policies on fixed days."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hundredfold.cli.evaluate_dvrp_policies import (
    EvaluatedPolicy,
    PolicyLoader,
    belief_row,
    calibration_group_rows,
    calibration_rows,
    confusion_rows,
    warm_up_rows,
)
from hundredfold.cli.evaluate_dvrp_tables import print_tables
from hundredfold.cli.flags import parse_flags
from hundredfold.cli.output import Row, note, print_rows
from hundredfold.cli.train import num_customers_flag
from hundredfold.core.bounds import AtLeastOne, NonNegative, NonNegativeInt, check_bounds
from hundredfold.core.errors import SettingsError
from hundredfold.envs.dvrp.analysis import (
    SHIFT_PENALTIES,
    TradeOffPoint,
    compare_at_equal_shift,
    demand_row,
    fairness_rows,
)
from hundredfold.envs.dvrp.belief_warmup import WarmUpSettings
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.evaluation import (
    EVALUATION_SEED,
    SPLITS,
    UPPER_BOUND,
    DayScorer,
    DayScores,
    SimulatedDays,
    simulate_days,
)
from hundredfold.envs.dvrp.lookahead import LookaheadSettings
from hundredfold.envs.dvrp.offers import OfferDirections
from hundredfold.envs.dvrp.policies import POLICIES, SHIFT_PENALTY_POLICIES
from hundredfold.envs.dvrp.settings import CityName, DvrpSettings, Split
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings

# Policies of `--tradeoff` without --baselines.
TRADEOFF_POLICIES: Final = (*SHIFT_PENALTY_POLICIES, "thompson", "random", "privileged_largest")
# Settings of the env in which policies given by name are evaluated.
ENV_FLAGS: Final = ("city", "num_customers", "offer_minutes", "offer_directions", "vehicle_cost")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateDvrp:
    """Improvement over the same days without offers, in percent of driving minutes.

    All policies book the same fixed days, which one oracle then solves from scratch; intervals are
    bootstrapped. Belief policies (belief_largest, thompson, belief_greedy, lookahead) first fit an
    acceptance model on warm-up days.
    """

    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|ENV")]
    """A run folder of dvrp; or dvrp, with --policy."""
    policy: str | None = None
    """A run folder or a policy: none, random, always_largest, greedy_optimistic, greedy_expected,
    belief_greedy, privileged_greedy, belief_largest, privileged_largest, thompson, lookahead,
    hindsight, fully_flexible, upper_bound."""
    baselines: tuple[str, ...] = ()
    """Policies to compare with, evaluated on the same days; or upper_bound, the improvement that
    no offers whatsoever exceed (extra: routing)."""
    runs: tuple[str, ...] = ()
    """Further run folders to evaluate."""
    city: CityName | None = None
    """Synthetic city of policies given by name: spread (default) or hubs. A run keeps its city."""
    num_customers: AtLeastOne | None = None
    """Requests per day of policies given by name (default 30; --customers); the fleet grows with them. A
    run keeps its own."""
    offer_minutes: tuple[int, ...] | None = None
    """Sizes of offers of policies given by name, in minutes (default 0,10,20,30). A run keeps its own."""
    offer_directions: OfferDirections | None = None
    """Directions of offers of policies given by name: outward (default) or both. A run keeps its own."""
    vehicle_cost: NonNegative | None = None
    """Fixed cost per vehicle and day of policies given by name, in driving minutes (default 0). A run
    keeps its own."""
    days: AtLeastOne = 256
    """Days per split."""
    splits: tuple[Split, ...] = SPLITS
    """Demand to evaluate on: known customers and trips, unseen trips, unseen customers."""
    seed: int = EVALUATION_SEED
    """Seed of the days."""
    checkpoint: str = "best"
    """Checkpoint of a run: best, last or an epoch."""
    lookahead: NonNegativeInt = 0
    """Sampled futures for each of the best offers of a run, at decision time; 0 decides by the
    network alone. For runs with --observation offers."""
    lookahead_samples: AtLeastOne = 16
    """Sampled futures per offer of the lookahead policy."""
    warm_up_days: NonNegativeInt | None = None
    """Warm-up days on which belief policies fit an acceptance model of their own; by default 200, or
    none after a run, whose acceptance model they share so that only the decisions differ."""
    trip_memory: bool = True
    """Acceptance models of belief policies remember how far each recurring trip may be shifted."""
    stranger_prior: bool = True
    """Acceptance models of belief policies expect of customers without responses what others of
    their age, occupation and neighbourhood responded."""
    shift_penalty: NonNegative | None = None
    """Driving minutes charged per minute of shift when deciding, for policies that can choose (runs
    with --observation offers, and heuristics that weigh shifts); by default the run's own."""
    tradeoff: bool = False
    """Evaluate policies at several shift penalties: minutes saved against minutes of shift. Uses
    the first split only."""
    shift_penalties: tuple[NonNegative, ...] = SHIFT_PENALTIES
    """Shift penalties of --tradeoff, in driving minutes per minute of shift."""
    demand: bool = False
    """Report how concentrated the demand is; needs no policy."""
    fairness: bool = False
    """Report offers and shifts by customer type, purpose, neighbourhood, age and occupation."""
    belief_metrics: bool = False
    """Report accuracy and calibration of the acceptance models."""
    wide: bool = False
    """Show all columns, however wide the tables get."""
    json: bool = False
    """Print one JSON object; rows of tables other than the first have the key `table`."""

    def __post_init__(self) -> None:
        check_bounds(self)
        for name in ("splits", "shift_penalties"):
            if not getattr(self, name):
                raise SettingsError(f"{name} must not be empty.")


def run(argv: Sequence[str]) -> int:
    """Print a row per policy and split, and the further tables asked for."""
    args = parse_flags(EvaluateDvrp, num_customers_flag(argv), "hundredfold evaluate")
    torch.set_num_threads(1)  # more threads are slower on a busy machine
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=console,
        disable=args.json or not console.is_terminal,
    ) as progress:
        tables = _evaluate(args, _ProgressBar(progress)).by_name
    if args.json:
        first = next(iter(tables))
        rows = [row if name == first else {"table": name, **row} for name, rows in tables.items() for row in rows]
        print_rows(rows, command=["evaluate", *argv], as_json=True)
        return 0
    for name, rows in tables.items():
        print_tables(name, rows, args.wide)
    if not args.wide:
        note("more columns with --wide")
    return 0


@dataclass(slots=True)
class _Tables:
    """Rows by table, in the order in which tables are printed."""

    by_name: dict[str, list[Row]] = field(default_factory=dict)

    def add(self, name: str, rows: Sequence[Row]) -> None:
        if rows:
            self.by_name.setdefault(name, []).extend(rows)


class _ProgressBar:
    """Progress over all announced days, of evaluation and warm-up."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.task = progress.add_task("days", total=0, rate="")
        self.total = self.done = 0
        self.start = time.perf_counter()

    def announce(self, num_days: int) -> Callable[[int], None]:
        """Add days to the total; the returned callback takes how many of them are done."""
        before = self.done
        self.total += num_days
        self.progress.update(self.task, total=self.total)

        def update(done: int) -> None:
            self.done = before + done
            rate = self.done / max(time.perf_counter() - self.start, 1e-9)
            self.progress.update(self.task, completed=self.done, rate=f"{rate:.1f} days/s")

        return update


def _evaluate(args: EvaluateDvrp, bar: _ProgressBar) -> _Tables:
    loader = PolicyLoader(
        seed=args.seed,
        warm_up_settings=WarmUpSettings()
        if args.warm_up_days is None
        else WarmUpSettings(warm_up_days=args.warm_up_days),
        lookahead=LookaheadSettings(samples=args.lookahead_samples),
        policy_lookahead=args.lookahead,
        checkpoint=args.checkpoint,
        trip_memory=args.trip_memory,
        stranger_prior=args.stranger_prior,
        announce=bar.announce,
    )
    policies = _policies(args, loader)
    scorer = DayScorer(LNSOracle(LNSSettings(threads=os.cpu_count() or 1)))
    tables = _Tables()
    settings = policies[0].settings if policies else _named_settings(args)
    if args.demand:
        _add_demand(args, settings, scorer, bar, tables)
    if args.tradeoff:
        _add_tradeoff(args, policies, scorer, bar, tables)
        if not (args.fairness or args.belief_metrics):
            return tables
    splits = args.splits[:1] if args.tradeoff else args.splits
    for evaluated in policies:
        for split in splits:
            start = time.perf_counter()
            days, scores = _simulate(args, evaluated, split, scorer, bar)
            seconds = (time.perf_counter() - start) / args.days
            labels = {"policy": evaluated.name, "split": split}
            if not args.tradeoff:
                tables.add("policies", [{**labels, **scores.summary(), "seconds": seconds}])
            population = population_for(replace(evaluated.settings, split=split))
            if args.fairness:
                groups = fairness_rows(days, population)
                tables.add("fairness", [{**labels, **row} for row in groups])
            if args.belief_metrics and evaluated.fitted is not None:
                tables.add("beliefs", [{**labels, **belief_row(evaluated, days, population)}])
                bins = calibration_rows(evaluated, days, population)
                tables.add("calibration", [{**labels, **row} for row in bins])
                by_group = calibration_group_rows(evaluated, days, population)
                tables.add("calibration_by_group", [{**labels, **row} for row in by_group])
        if args.belief_metrics and evaluated.fitted is not None:
            tables.add("confusion", confusion_rows(evaluated, population_for(evaluated.settings)))
            tables.add("calibration_by_day", warm_up_rows(evaluated))
    if UPPER_BOUND in (args.policy, *args.baselines):
        _add_upper_bound(args, settings, scorer, bar, tables)
    return tables


def _policies(args: EvaluateDvrp, loader: PolicyLoader) -> list[EvaluatedPolicy]:
    """The policy named first, baselines in its env without masks, and further runs."""
    name = args.policy or args.target
    if args.tradeoff and UPPER_BOUND in args.baselines:
        raise SettingsError(f"{UPPER_BOUND} makes no offers and has no place in --tradeoff; evaluate it without.")
    if name in ("dvrp", UPPER_BOUND):
        if not (args.policy or args.tradeoff or args.demand or args.baselines or args.runs):
            raise SettingsError(f"no policy to evaluate: pass --policy with a run folder or {', '.join(POLICIES)}.")
        settings = _named_settings(args)
        baselines = args.baselines or (TRADEOFF_POLICIES if args.tradeoff else ())
        first: list[EvaluatedPolicy] = []
    else:
        if name not in POLICIES:
            _refuse_env_flags(args, name)
        first = [loader.by_name(name, _named_settings(args))]
        settings, baselines = first[0].settings, args.baselines
    if args.warm_up_days is None and first and not isinstance(first[0].policy, str):
        loader.shared = first[0].fitted
    unmasked = replace(settings, mask_mode="none")
    others = [loader.by_name(baseline, unmasked) for baseline in baselines if baseline not in (name, UPPER_BOUND)]
    policies = [*first, *others, *(loader.run(folder) for folder in args.runs)]
    if args.shift_penalty is None:
        return policies
    if not any(policy.takes_shift_penalty for policy in policies):
        raise SettingsError(
            "--shift-penalty changes nothing here: none of these policies weighs shifts when it decides. Runs trained "
            f"with --observation offers do, and {', '.join(SHIFT_PENALTY_POLICIES)}."
        )
    penalty = args.shift_penalty
    return [policy.with_shift_penalty(penalty) if policy.takes_shift_penalty else policy for policy in policies]


def _named_settings(args: EvaluateDvrp) -> DvrpSettings:
    """Settings of the env in which policies given by name are evaluated."""
    return DvrpSettings(**_env_flags(args))


def _env_flags(args: EvaluateDvrp) -> dict[str, Any]:
    """Settings of the env that were given."""
    return {name: getattr(args, name) for name in ENV_FLAGS if getattr(args, name) is not None}


def _refuse_env_flags(args: EvaluateDvrp, run: str) -> None:
    for name in _env_flags(args):
        flag = name.removeprefix("num_")
        what = flag.replace("_", " ") if flag == name else f"number of {flag}"
        flag = flag.replace("_", "-")
        raise SettingsError(f"--{flag} cannot be combined with the run {run}: a run is evaluated with its own {what}.")


def _simulate(
    args: EvaluateDvrp, evaluated: EvaluatedPolicy, split: Split, scorer: DayScorer, bar: _ProgressBar
) -> tuple[SimulatedDays, DayScores]:
    settings = replace(evaluated.settings, split=split, oracle_threads=os.cpu_count() or 1)
    days, population = simulate_days(
        evaluated.policy,
        settings,
        args.days,
        args.seed,
        on_progress=bar.announce(args.days),
        shared_params=evaluated.shared_params,
        options=evaluated.options,
    )
    return days, scorer.scores(days, population, settings)


def _add_demand(
    args: EvaluateDvrp, settings: DvrpSettings, scorer: DayScorer, bar: _ProgressBar, tables: _Tables
) -> None:
    """Concentration of the demand of every split, without offers."""
    no_offers = EvaluatedPolicy(name="none", policy="none", settings=settings)
    for split in args.splits:
        days, scores = _simulate(args, no_offers, split, scorer, bar)
        population = population_for(replace(settings, split=split))
        labels = {"city": settings.trips or settings.city, "split": split}
        tables.add("demand", [{**labels, **demand_row(days, scores, population)}])


def _add_upper_bound(
    args: EvaluateDvrp, settings: DvrpSettings, scorer: DayScorer, bar: _ProgressBar, tables: _Tables
) -> None:
    """The improvement that no offers exceed, as the last rows of the policies."""
    no_offers = EvaluatedPolicy(name="none", policy="none", settings=settings)
    for split in args.splits:
        start = time.perf_counter()
        days, _ = _simulate(args, no_offers, split, scorer, bar)
        in_split = replace(settings, split=split, oracle_threads=os.cpu_count() or 1)
        row = scorer.upper_bound(days, population_for(in_split), in_split)
        seconds = (time.perf_counter() - start) / args.days
        tables.add("policies", [{"policy": UPPER_BOUND, "split": split, **row, "seconds": seconds}])


def _add_tradeoff(
    args: EvaluateDvrp, policies: Sequence[EvaluatedPolicy], scorer: DayScorer, bar: _ProgressBar, tables: _Tables
) -> None:
    """Curves of policies with a shift penalty, points of the others, and their comparison."""
    split = args.splits[0]
    curves: list[list[TradeOffPoint]] = []
    points: list[TradeOffPoint] = []
    for evaluated in policies:
        if evaluated.takes_shift_penalty:
            curve = []
            for penalty in args.shift_penalties:
                at_penalty = evaluated.with_shift_penalty(penalty)
                _, scores = _simulate(args, at_penalty, split, scorer, bar)
                curve.append(TradeOffPoint(evaluated.name, penalty, scores))
            curves.append(curve)
        else:
            trained = not isinstance(evaluated.policy, str)
            trained_at = evaluated.settings.effective_shift_penalty if trained else None
            _, scores = _simulate(args, evaluated, split, scorer, bar)
            points.append(TradeOffPoint(evaluated.name, trained_at, scores))
    everything = [point for curve in curves for point in curve] + points
    tables.add("tradeoff", [{**point.row(), "split": split} for point in everything])
    first_points = [curve[0] for curve in curves]
    tables.add(
        "equal_shift",
        [
            compare_at_equal_shift(point, curve)
            for point in (*points, *first_points)
            for curve in curves
            if point.policy != curve[0].policy
        ],
    )
