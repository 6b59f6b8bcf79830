"""Trade-off and fairness of offer policies, and concentration of demand.

Trade-off: driving minutes saved against minutes of shift. A policy with a shift penalty is
simulated at several penalties, which gives a curve; any other policy is a point. Policies are
compared at equal shift, interpolating linearly between the points of a curve (mixing two policies
day by day reaches every point in between) and towards the origin (making no offers).

Fairness: who receives offers, accepts and is shifted, and how unevenly shifts are distributed.

Demand: how many places trips start from and lead to, how many trips of a day could share a vehicle,
and how many customers accept a small shift. Offers save more where demand is concentrated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hundredfold.core.batch import Array, FloatArray, IntArray
from hundredfold.core.statistics import bootstrap_interval
from hundredfold.envs.dvrp.acceptance.metrics import prediction_scores
from hundredfold.envs.dvrp.acceptance.stranger_prior import customer_attributes
from hundredfold.envs.dvrp.evaluation import DayScores, Row, SimulatedDays
from hundredfold.envs.dvrp.population import TYPE_NAMES, Population
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES
from hundredfold.routing.problem import DROPOFF, EARLY, PICKUP

SHIFT_PENALTIES: Final = (0.0, 0.002, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
# Requests of a day are neighbours if their pickups are this close in driving time and in time.
NEIGHBOUR_DRIVING_MINUTES, NEIGHBOUR_MINUTES = 10.0, 30.0
# A shift that many customers accept, in minutes.
SMALL_SHIFT: Final = 10


@dataclass(frozen=True, slots=True)
class TradeOffPoint:
    """Scores of a policy at one shift penalty; None if it takes none."""

    policy: str
    shift_penalty: float | None
    scores: DayScores

    def row(self) -> Row:
        """Means per day: minutes saved, minutes of shift, improvement in percent."""
        summary = self.scores.summary()
        return {
            "policy": self.policy,
            "shift_penalty": self.shift_penalty,
            "saved_minutes": float(self.scores.saved_minutes.mean()),
            "shift_minutes": summary["shift_minutes"],
            "offers_made": summary["offers_made"],
            "mean": summary["mean"],
            "ci_low": summary["ci_low"],
            "ci_high": summary["ci_high"],
        }


def interpolated_at_shift(values: Sequence[FloatArray], shifts: Sequence[float], shift: float) -> FloatArray:
    """(days,) values of a policy, interpolated between shift penalties at a mean shift per day.

    Beyond the largest shift it is the values there: the policy cannot shift any further.

    Args:
        values: for every shift penalty the (days,) minutes or percentages saved.
        shifts: for every shift penalty the mean shift per day.
        shift: the mean shift per day at which to compare; nothing is saved at 0.
    """
    saved = np.stack([np.zeros(len(values[0])), *values])
    at = np.array([0.0, *shifts])
    order = np.argsort(at, kind="stable")
    saved, at = saved[order], at[order]
    after = int(np.searchsorted(at, shift, side="left"))
    if after == len(at):
        return np.asarray(saved[-1], np.float64)
    if after == 0:
        return np.asarray(saved[0], np.float64)
    weight = (shift - at[after - 1]) / (at[after] - at[after - 1])
    return np.asarray((1.0 - weight) * saved[after - 1] + weight * saved[after], np.float64)


def saved_minutes_at(curve: Sequence[TradeOffPoint], shift_minutes: float) -> FloatArray:
    """(days,) minutes saved by a curve's policy at this mean shift per day; see `interpolated_at_shift`."""
    values = [point.scores.saved_minutes for point in curve]
    return interpolated_at_shift(values, [float(point.scores.shift_minutes.mean()) for point in curve], shift_minutes)


def compare_at_equal_shift(point: TradeOffPoint, curve: Sequence[TradeOffPoint]) -> Row:
    """Minutes per day that a policy saves more than a curve at equal shift.

    The interval is a paired bootstrap over days. A policy that shifts more than every point of the
    curve is compared with the curve's last point.
    """
    shift = float(point.scores.shift_minutes.mean())
    difference = point.scores.saved_minutes - saved_minutes_at(curve, shift)
    low, high = bootstrap_interval(difference)
    return {
        "policy": point.policy,
        "baseline": curve[0].policy,
        "shift_minutes": shift,
        "baseline_shift_minutes": min(shift, max(float(other.scores.shift_minutes.mean()) for other in curve)),
        "saved_minutes": float(point.scores.saved_minutes.mean()),
        "mean": float(difference.mean()),
        "ci_low": low,
        "ci_high": high,
    }


def fairness_rows(days: SimulatedDays, population: Population) -> list[Row]:
    """One row for all requests, then one per type, purpose, neighbourhood, age and occupation.

    Groups without requests are omitted. On a failed day, later requests count as without offer.
    """
    rows = [overall_row(days)]
    for name, groups in request_groups(days, population).items():
        rows += [{"by": name, "group": str(group), **_shares(days, groups == group)} for group in np.unique(groups)]
    return rows


def overall_row(days: SimulatedDays) -> Row:
    """All requests, and how unevenly shifts and offers are distributed over customers.

    `gini` is the Gini coefficient of total shift per customer; `max_offers` and `mean_offers` are
    offers per customer over all days.
    """
    customers, index = np.unique(days.customer_id, return_inverse=True)
    index = index.reshape(days.customer_id.shape)
    shifts = np.zeros(len(customers))
    np.add.at(shifts, index, days.shift_minutes)
    offers = np.bincount(index[days.made], minlength=len(customers))
    return {
        "by": "all",
        "group": "all",
        **_shares(days, np.ones(days.customer_id.shape, bool)),
        "customers": len(customers),
        "gini": gini(shifts),
        "max_offers": int(offers.max()),
        "mean_offers": float(offers.mean()),
    }


def request_groups(days: SimulatedDays, population: Population) -> dict[str, Array]:
    """(days, customers) the group of every request, by attribute."""
    ids, attributes = days.customer_id, customer_attributes(population)
    return {
        "type": np.array(TYPE_NAMES)[population.customers.types[ids]],
        "purpose": np.array(PURPOSE_NAMES)[population.trips.purpose[days.trip_id]],
        "neighbourhood": np.array(population.city.names)[days.cells[..., PICKUP]],
        "age": attributes["age"][ids],
        "occupation": attributes["occupation"][ids],
    }


def calibration_groups(days: SimulatedDays, population: Population, trip_rates: Array) -> dict[str, Array]:
    """(days, customers) the groups by which acceptance probabilities are scored.

    Args:
        days: Simulated days.
        population: Customers and trips.
        trip_rates: (trips, offers) acceptance rates of remembered trips, NaN of others; or no rows.
    """
    remembered = np.zeros(len(population.trips.purpose), bool)
    if len(trip_rates):
        remembered = ~np.isnan(trip_rates[:, 0])
    homes = customer_attributes(population)["neighbourhood"]
    return {
        **request_groups(days, population),
        "neighbourhood": homes[days.customer_id],
        "trip": np.where(remembered[days.trip_id], "with responses", "without responses"),
    }


def calibration_by_group(groups: Mapping[str, Array], predicted: FloatArray, accepted: Array) -> list[Row]:
    """Predicted and observed acceptance, a row per group.

    Args:
        groups: (offers,) the group of every offer, by attribute.
        predicted: (offers,) predicted probabilities of acceptance.
        accepted: (offers,) whether they were accepted, or the true probability of it.
    """
    return [
        {"by": name, "group": str(group), **calibration_row(predicted[rows], accepted[rows])}
        for name, labels in groups.items()
        for group in np.unique(labels)
        for rows in [labels == group]
    ]


def calibration_row(predicted: FloatArray, accepted: Array) -> Row:
    """Predicted and observed acceptance of some offers; arguments as in `calibration_by_group`."""
    scores = prediction_scores(predicted, accepted)
    return {
        "offers": scores.offers,
        "predicted_pct": 100.0 * scores.predicted,
        "accepted_pct": 100.0 * scores.accepted,
        "offer_brier_score": scores.brier_score,
        "offer_log_loss": scores.log_loss,
    }


def demand_row(days: SimulatedDays, scores: DayScores, population: Population) -> Row:
    """Concentration of the requests of these days, acceptance of small offers, and cost.

    `pickup_cells`, `dropoff_cells` and `od_pairs` (origin-destination pairs) are effective numbers.
    `neighbours` is the mean number of other requests of the same day that are picked up within 10
    minutes of driving and whose pickup windows start within 30 minutes. `earlier_10_pct` and
    `later_10_pct` are the shares of requests that accept a shift of 10 minutes, None if no offer has
    that size.
    """
    cells, travel = days.cells, population.city.travel_minutes
    pickup, start = cells[..., PICKUP], days.requested_windows[..., PICKUP, EARLY]
    near = travel[pickup[:, :, None], pickup[:, None, :]] <= NEIGHBOUR_DRIVING_MINUTES
    near &= np.abs(start[:, :, None] - start[:, None, :]) <= NEIGHBOUR_MINUTES
    accepts, offers = population.accepts[days.trip_id], population.offers
    accepted_pct: list[float | None] = [None, None]
    if SMALL_SHIFT in offers.sizes:
        small = (offers.find(SMALL_SHIFT, 0), offers.find(0, SMALL_SHIFT))
        accepted_pct = [100.0 * float(accepts[..., offer].mean()) for offer in small]
    return {
        "pickup_cells": effective_number(pickup),
        "dropoff_cells": effective_number(cells[..., DROPOFF]),
        "od_pairs": effective_number(pickup * population.city.num_cells + cells[..., DROPOFF]),
        "neighbours": float(near.sum(axis=2).mean()) - 1.0,
        "ride_minutes": float(travel[pickup, cells[..., DROPOFF]].mean()),
        "earlier_10_pct": accepted_pct[0],
        "later_10_pct": accepted_pct[1],
        "baseline_cost": float(scores.baseline_cost.mean()),
    }


def effective_number(categories: IntArray) -> float:
    """Effective number of categories: 1 / sum of squared shares (inverse Simpson index)."""
    _, counts = np.unique(categories, return_counts=True)
    return float(counts.sum() ** 2 / (counts.astype(np.float64) ** 2).sum())


def gini(values: FloatArray) -> float:
    """Gini coefficient: 0 if all values are equal, near 1 if one has everything; 0 for sum 0."""
    total = float(values.sum())
    if total == 0.0:
        return 0.0
    ranked = np.sort(values)
    number = len(ranked)
    weights = 2.0 * np.arange(1, number + 1) - number - 1.0
    return float(weights @ ranked / (number * total))


def _shares(days: SimulatedDays, selected: Array) -> Row:
    made = days.made[selected]
    accepted = days.accepted[selected] & made
    return {
        "requests": len(made),
        "offered_pct": 100.0 * float(made.mean()),
        "accepted_pct": 100.0 * float(accepted.sum() / made.sum()) if made.any() else None,
        "shifted_pct": 100.0 * float(accepted.mean()),
        "shift_minutes": float(days.shift_minutes[selected].mean()),
    }
