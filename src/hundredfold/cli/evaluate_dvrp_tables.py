"""Tables that `hundredfold evaluate dvrp` prints: titles, columns and order of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from hundredfold.cli.output import Column, Row, print_rows
from hundredfold.envs.dvrp.evaluation import UPPER_BOUND
from hundredfold.envs.dvrp.policies import PRIVILEGED_POLICIES
from hundredfold.envs.dvrp.population import TYPE_NAMES

NEIGHBOURHOODS_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class TableLayout:
    """How rows are shown on a terminal: a table for each value of the keys they are grouped by."""

    title: str
    columns: tuple[Column, ...]
    group_by: tuple[str, ...] = ()


POLICY: Final = Column("policy")
INTERVAL: Final = Column(("ci_low", "ci_high"), "95 % interval", decimals=2)
SAVED: Final = (Column("mean", "saved %", decimals=2), INTERVAL)
MOVED: Final = Column("shift_minutes", "minutes moved", decimals=1)
OFFERS: Final = Column("offers_made", "offers", decimals=1)
ACCEPTED: Final = Column("accepted_pct", "accepted %", decimals=1)
ACCEPTANCE: Final = (Column("offers"), Column("predicted_pct", "predicted %", decimals=1), ACCEPTED)
LAYOUTS: Final = {
    "policies": TableLayout(
        "driving minutes saved, best first and privileged policies last; minutes moved and offers per day",
        (
            POLICY,
            *SAVED,
            MOVED,
            OFFERS,
            Column("offers_accepted", "accepted", 2, 1),
            Column("failed", "failed days", 3),
        ),
        ("split",),
    ),
    "demand": TableLayout(
        "effective numbers of pickup places, dropoff places and pairs of them; other requests of the day that are near "
        "in place and time, per request; share that accepts 10 minutes; driving minutes without offers",
        (
            Column("split"),
            Column("pickup_cells", "pickup places"),
            Column("dropoff_cells", "dropoff places", 2),
            Column("od_pairs", "trips between places", 2),
            Column("neighbours"),
            Column("earlier_10_pct", "10 min earlier %", decimals=1),
            Column("later_10_pct", "10 min later %", decimals=1),
            Column("baseline_cost", "driving minutes"),
        ),
        ("city",),
    ),
    "tradeoff": TableLayout(
        "driving minutes saved per day against minutes moved, by shift penalty",
        (POLICY, Column("shift_penalty"), Column("saved_minutes", "minutes saved", decimals=1), MOVED, OFFERS, *SAVED),
        ("split",),
    ),
    "equal_shift": TableLayout(
        "minutes saved per day more than a baseline at equal minutes moved",
        (POLICY, Column("baseline"), MOVED, Column("mean", "minutes saved more", decimals=2), INTERVAL),
    ),
    "fairness": TableLayout(
        "offers by group of customers, in percent of requests; minutes moved per request",
        (
            Column("by"),
            Column("group"),
            Column("requests", priority=2),
            Column("offered_pct", "offered %", decimals=1),
            ACCEPTED,
            Column("shifted_pct", "moved %", 2, 1),
            MOVED,
        ),
        ("policy", "split"),
    ),
    "beliefs": TableLayout(
        "accuracy of believed customer types (share of customers whose most likely type is the true one), and what "
        "the true acceptance rates of each type would give; calibration error of predicted acceptance (0 is perfect)",
        (
            POLICY,
            Column("responses"),
            Column("customers", priority=2),
            Column("type_accuracy", "accuracy", decimals=2),
            Column("bayes_optimal_accuracy", "true rates", decimals=2),
            Column("calibration_error", priority=2, decimals=4),
        ),
        ("split",),
    ),
    "confusion": TableLayout(
        "confusion matrix of customer types, in customers",
        (
            Column("true_type"),
            *(Column(f"predicted_{name}", f"predicted {name.replace('_', ' ')}") for name in TYPE_NAMES),
        ),
        ("policy",),
    ),
    "calibration": TableLayout(
        "offers by predicted acceptance probability, and share accepted", ACCEPTANCE, ("policy", "split")
    ),
    "calibration_by_group": TableLayout(
        "offers by group of requests, predicted and observed acceptance; neighbourhoods are squares of a 3 x 3 grid "
        "over the map, row 1 is the lowest",
        (Column("by"), Column("group"), *ACCEPTANCE),
        ("policy", "split"),
    ),
    "calibration_by_day": TableLayout(
        "offers of the warm-up by day: acceptance as predicted the days before, and observed",
        (Column("days"), *ACCEPTANCE),
        ("policy",),
    ),
}


def print_tables(name: str, rows: Sequence[Row], wide: bool) -> None:
    """Print a table of `LAYOUTS`, or one for each value of the keys that it is grouped by."""
    layout = LAYOUTS[name]
    if name in SHOWN_ROWS:
        rows = SHOWN_ROWS[name](rows)
    for group in dict.fromkeys(tuple(row[key] for key in layout.group_by) for row in rows):
        own = [row for row in rows if tuple(row[key] for key in layout.group_by) == group]
        days = f", {own[0]['episodes']} days" if "episodes" in own[0] else ""
        shown = [{key: value for key, value in row.items() if key not in layout.group_by} for row in own]
        title = f"{', '.join(('dvrp', *map(str, group)))}{days}: {layout.title}"
        print_rows(shown, command=(), as_json=False, title=title, columns=layout.columns, wide=wide, hint=False)
        print()


def _best_first(rows: Sequence[Row]) -> list[Row]:
    """Policies by what they save; those that know what no policy can know come last."""
    splits = list(dict.fromkeys(row["split"] for row in rows))
    privileged = (*PRIVILEGED_POLICIES, UPPER_BOUND)
    return sorted(rows, key=lambda row: (splits.index(row["split"]), row["policy"] in privileged, -row["mean"]))


def _without_small_neighbourhoods(rows: Sequence[Row]) -> list[Row]:
    """Fairness rows with only the largest of a city's many neighbourhoods; --json has all."""
    shown: list[Row] = []
    for group in dict.fromkeys((row["policy"], row["split"]) for row in rows):
        own = [row for row in rows if (row["policy"], row["split"]) == group]
        sizes = sorted(row["requests"] for row in own if row["by"] == "neighbourhood")
        smallest = sizes[-NEIGHBOURHOODS_SHOWN:][0] if sizes else 0
        shown += [row for row in own if row["by"] != "neighbourhood" or row["requests"] >= smallest]
    return shown


# How the rows of a table are ordered or shortened where it is printed; --json has all, as evaluated.
SHOWN_ROWS: Final[dict[str, Callable[[Sequence[Row]], list[Row]]]] = {
    "policies": _best_first,
    "fairness": _without_small_neighbourhoods,
}
