"""`hundredfold evaluate dvrp`: minutes saved on fixed days, by runs and by rules beside them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hundredfold.cli.evaluate_dvrp_policies import (
    EvaluatedPolicies,
    EvaluatedPolicy,
    belief_row,
    calibration_rows,
    confusion_rows,
)
from hundredfold.cli.output import Row, print_rows
from hundredfold.core.errors import SettingsError
from hundredfold.envs.dvrp.analysis import (
    SHIFT_PENALTIES,
    TradeOffPoint,
    compare_at_equal_shift,
    fairness_rows,
)
from hundredfold.envs.dvrp.belief_warmup import WarmUpSettings
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.evaluation import (
    SPLITS,
    DayScorer,
    DayScores,
    SimulatedDays,
    simulate_days,
)
from hundredfold.envs.dvrp.lookahead import LookaheadSettings
from hundredfold.envs.dvrp.policies import POLICIES, SHIFT_PENALTY_POLICIES
from hundredfold.envs.dvrp.settings import DvrpSettings, Split
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings

# What `--tradeoff` draws when nobody is named.
USUAL_TRADEOFF = (*SHIFT_PENALTY_POLICIES, "thompson", "random", "privileged_largest")
SHOWN_NEIGHBOURHOODS = 8
TITLES = {
    "policies": "improvement in percent (mean, 95 % interval), driving minutes, offers per day",
    "tradeoff": "driving minutes saved a day against minutes moved, by the price of a minute",
    "equal_minutes": "minutes saved more a day than a curve that moves as many (95 % interval)",
    "fairness": "who is asked, in percent of callers, and minutes moved per caller",
    "beliefs": "how well people are known, beside the best that the same answers allow",
    "confusion": "true types and what they are taken for, people",
    "calibration": "offers by the believed chance of a yes, and how many were accepted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateDvrp:
    """Improvement over the same days without offers, in percent of the driving minutes.

    Days are fixed and paired; one closing oracle prices all of them, with a bootstrap interval.
    Rules that believe (belief_largest, thompson, belief_greedy, lookahead) first learn on days
    of their own.
    """

    target: Annotated[str, tyro.conf.Positional]
    """A run folder on dvrp; or the word dvrp, with --policy."""
    policy: str | None = None
    """A run folder, or a rule: none, random, always_largest, greedy_optimistic, greedy_expected,
    belief_greedy, privileged_greedy, belief_largest, privileged_largest, thompson, lookahead,
    hindsight, fully_flexible."""
    baselines: tuple[str, ...] = ()
    """Rules to play on the same days, for comparison."""
    runs: tuple[str, ...] = ()
    """More run folders to judge."""
    days: int = 256
    """Days per split."""
    splits: tuple[Split, ...] = SPLITS
    """Who calls: known people and trips, unseen trips of known people, unseen customers."""
    seed: int = 9999
    """Seed of the days; the same seed gives the same days."""
    checkpoint: str = "best"
    """Which checkpoint of a run: best, last or the number of an epoch."""
    lookahead_samples: int = 16
    """Futures that the rule lookahead tries every offer on."""
    warm_up_days: int = 200
    """Days on which the rules that believe get to know people before they are evaluated."""
    tradeoff: bool = False
    """Play the rules that know prices at several of them: minutes saved against minutes moved.
    With several splits, only the first is played."""
    shift_penalties: tuple[float, ...] = SHIFT_PENALTIES
    """Prices of a minute moved, in driving minutes, for --tradeoff."""
    fairness: bool = False
    """Show who is asked and moved: by type, purpose, neighbourhood, age and occupation."""
    belief_metrics: bool = False
    """Show how well a run's acceptance model or a learning rule knows the customers."""
    json: bool = False
    """Print one JSON object and nothing else; rows of tables other than the first name theirs."""

    def __post_init__(self) -> None:
        if self.days < 1 or not self.splits:
            raise SettingsError(f"days ({self.days}) must be at least 1, and splits not empty.")
        if any(price < 0.0 for price in self.shift_penalties) or not self.shift_penalties:
            raise SettingsError(
                f"shift_penalties must be at least one number >= 0, got {self.shift_penalties}."
            )


def run(arguments: Sequence[str]) -> int:
    """A row per policy and split, and what else was asked for."""
    args = tyro.cli(EvaluateDvrp, args=list(arguments), prog="hundredfold evaluate")
    torch.set_num_threads(1)  # two threads collapse when the machine is busy
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
        found = _judge_all(args, _Bar(progress))
    if args.json:
        rows = [
            row if name == found.first else {"table": name, **row}
            for name, rows in found.tables.items()
            for row in rows
        ]
        print_rows(rows, command=["evaluate", *arguments], as_json=True)
        return 0
    for name, rows in found.tables.items():
        shown = _busiest(rows) if name == "fairness" else rows
        print_rows(
            shown, command=["evaluate", *arguments], as_json=False, title=f"dvrp: {TITLES[name]}"
        )
    return 0


def _busiest(rows: Sequence[Row]) -> list[Row]:
    """Without the neighbourhoods from which few call: a city has dozens. `--json` has them all."""
    kept: list[Row] = []
    for who in dict.fromkeys((row["policy"], row["split"]) for row in rows):
        mine = [row for row in rows if (row["policy"], row["split"]) == who]
        callers = sorted(row["callers"] for row in mine if row["by"] == "neighbourhood")
        least = callers[-SHOWN_NEIGHBOURHOODS:][0] if callers else 0
        kept += [row for row in mine if row["by"] != "neighbourhood" or row["callers"] >= least]
    return kept


@dataclass(slots=True)
class _Found:
    """Tables by name, in the order in which they are shown."""

    tables: dict[str, list[Row]] = field(default_factory=dict)

    @property
    def first(self) -> str:
        return next(iter(self.tables))

    def add(self, name: str, rows: Sequence[Row]) -> None:
        self.tables.setdefault(name, []).extend(rows)


class _Bar:
    """Days played or learned on, of all that will be."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.task = progress.add_task("days", total=0, rate="")
        self.total = self.done = 0
        self.began = time.perf_counter()

    def expect(self, days: int) -> Callable[[int], None]:
        """Announce some days; the function hears how many of them are done."""
        before = self.done
        self.total += days
        self.progress.update(self.task, total=self.total)

        def tell(done: int) -> None:
            self.done = before + done
            rate = self.done / max(time.perf_counter() - self.began, 1e-9)
            self.progress.update(self.task, completed=self.done, rate=f"{rate:.1f} days/s")

        return tell


def _judge_all(args: EvaluateDvrp, bar: _Bar) -> _Found:
    makers = EvaluatedPolicies(
        seed=args.seed,
        learning=WarmUpSettings(warm_up_days=args.warm_up_days),
        lookahead=LookaheadSettings(samples=args.lookahead_samples),
        checkpoint=args.checkpoint,
        expect=bar.expect,
    )
    contenders = _contenders(args, makers)
    oracle = LNSOracle(LNSSettings(threads=os.cpu_count() or 1))
    found, closing = _Found(), DayScorer(oracle)
    if args.tradeoff:
        _trade_off(args, contenders, closing, bar, found)
        if not (args.fairness or args.belief_metrics):
            return found
    splits = args.splits[:1] if args.tradeoff else args.splits
    for contender in contenders:
        for split in splits:
            began = time.perf_counter()
            played, scores = _played(args, contender, split, closing, bar)
            seconds = (time.perf_counter() - began) / args.days
            who = {"policy": contender.name, "split": split}
            if not args.tradeoff:
                found.add("policies", [{**who, **scores.summary(), "seconds": seconds}])
            population = population_for(replace(contender.settings, split=split))
            if args.fairness:
                rows = fairness_rows(played, population)
                found.add("fairness", [{**who, **row} for row in rows])
            if args.belief_metrics and contender.learned is not None:
                found.add("beliefs", [{**who, **belief_row(contender, played, population)}])
                rows = calibration_rows(contender, played, population)
                found.add("calibration", [{**who, **row} for row in rows])
        if args.belief_metrics and contender.learned is not None:
            found.add("confusion", confusion_rows(contender, population_for(contender.settings)))
    return found


def _contenders(args: EvaluateDvrp, makers: EvaluatedPolicies) -> list[EvaluatedPolicy]:
    """Whoever was named first, the rules beside it in its env, and more runs."""
    name = args.policy or args.target
    if name == "dvrp":
        if not args.tradeoff and not args.baselines and not args.runs:
            raise SettingsError(
                f"say which policy to play: --policy RUN, or {', '.join(POLICIES)}."
            )
        settings = DvrpSettings()
        rules = args.baselines or (USUAL_TRADEOFF if args.tradeoff else ())
        first: list[EvaluatedPolicy] = []
    else:
        first = [makers.named(name, DvrpSettings())]
        settings, rules = first[0].settings, args.baselines
    unmasked = replace(settings, mask_mode="none")
    beside = [makers.named(rule, unmasked) for rule in rules if rule != name]
    return [*first, *beside, *(makers.run(folder) for folder in args.runs)]


def _played(
    args: EvaluateDvrp, contender: EvaluatedPolicy, split: Split, closing: DayScorer, bar: _Bar
) -> tuple[SimulatedDays, DayScores]:
    settings = replace(contender.settings, split=split, oracle_threads=os.cpu_count() or 1)
    played, population = simulate_days(
        contender.policy,
        settings,
        args.days,
        args.seed,
        on_progress=bar.expect(args.days),
        shared_params=contender.shared_params,
        options=contender.options,
    )
    return played, closing.scores(played, population, settings)


def _trade_off(
    args: EvaluateDvrp,
    contenders: Sequence[EvaluatedPolicy],
    closing: DayScorer,
    bar: _Bar,
    found: _Found,
) -> None:
    """Curves of rules that know prices, dots of the others, and all dots against all curves."""
    split = args.splits[0]
    curves: list[list[TradeOffPoint]] = []
    dots: list[TradeOffPoint] = []
    for contender in contenders:
        if contender.policy in SHIFT_PENALTY_POLICIES:
            curves.append(
                [
                    TradeOffPoint(
                        contender.name,
                        price,
                        _played(args, contender.at_shift_penalty(price), split, closing, bar)[1],
                    )
                    for price in args.shift_penalties
                ]
            )
        else:
            price = None if isinstance(contender.policy, str) else contender.settings.patience
            scores = _played(args, contender, split, closing, bar)[1]
            dots.append(TradeOffPoint(contender.name, price, scores))
    points = [point for curve in curves for point in curve] + dots
    found.add("tradeoff", [{**point.row(), "split": split} for point in points])
    cheapest_points = [curve[0] for curve in curves]
    found.add(
        "equal_minutes",
        [
            compare_at_equal_shift(point, curve)
            for point in (*dots, *cheapest_points)
            for curve in curves
            if point.policy != curve[0].policy
        ],
    )
