"""Meaning and unit of every number in dvrp: observations, offers, infos and true state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from hundredfold.core.batch import ArraySpec
from hundredfold.envs.dvrp.demand import true_state_specs
from hundredfold.envs.dvrp.env import EPISODE_INFO, INFO
from hundredfold.envs.dvrp.observation import observation_specs
from hundredfold.envs.dvrp.offer_features import DETOUR_LEVELS, DETOUR_LIMIT_MINUTES, SAVINGS_LEVELS
from hundredfold.envs.dvrp.population import TYPE_NAMES
from hundredfold.envs.dvrp.settings import DvrpSettings, ObservationLayout, offer_names
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES

Row = dict[str, Any]

_TYPES: Final = ", ".join(f"{number} {name}" for number, name in enumerate(TYPE_NAMES))
_PURPOSES: Final = ", ".join(f"{number} {name}" for number, name in enumerate(PURPOSE_NAMES))
_POSITIONS: Final = "latitude and longitude of pickup and dropoff, scaled to 0..1 over all places"
_WINDOWS: Final = "earliest and latest pickup, earliest and latest dropoff, minutes after midnight / 1440"
_DIRECT: Final = "direct drive from pickup to dropoff, minutes / 60"
_POTENTIALS: Final = (
    "driving minutes that one vehicle saves by serving both trips, the same with riders of both on board together, "
    "minutes by which the shared route is shorter than two direct drives, minutes by which its detour stays below 10, "
    "and by which the drive from this dropoff to the other's pickup, or from the other's dropoff to this pickup, stays "
    "below 15"
)
_LEVELS: Final = (
    f"chance that sharing with such a trip saves more than {', '.join(f'{level:g}' for level in SAVINGS_LEVELS)} "
    f"minutes, or takes {', '.join(f'{DETOUR_LIMIT_MINUTES - level:g}' for level in DETOUR_LEVELS)} minutes longer "
    "than two direct drives, or less"
)
_WITH_BOOKINGS: Final = f"with bookings of the day, largest, second largest and sum of six numbers each: {_POTENTIALS}"
_WITH_FUTURE: Final = "the same six numbers, expected sum over trips of known customers who have not called today"

# Layout of the observation (--observation), array, and meaning of its columns by the first one.
OBSERVATIONS: Final[tuple[tuple[ObservationLayout | str, str, dict[int, str]], ...]] = (
    (
        "booking",
        "request",
        {
            0: _POSITIONS,
            4: _WINDOWS,
            8: _DIRECT,
            9: f"purpose of the trip, 1 at its position and else 0: {', '.join(PURPOSE_NAMES)}",
            9 + len(PURPOSE_NAMES): "requests of the day that are booked, 0..1",
            10 + len(PURPOSE_NAMES): "believed probabilities that the customer accepts a later dropoff, an earlier "
            "pickup, neither, both; 0.25 each without an acceptance model",
            14 + len(PURPOSE_NAMES): "log(1 + offers that the customer has answered so far)",
        },
    ),
    ("booking", "cells", {0: "number of the pickup place and of the dropoff place"}),
    (
        "booking",
        "bookings",
        {
            0: _POSITIONS,
            4: f"booked windows: {_WINDOWS}",
            8: _DIRECT,
            9: "minutes by which the pickup was moved earlier and the dropoff later / 30",
            11: "number of its vehicle, from 1 on / vehicles; 0: not served",
            12: "planned pickup and dropoff time, minutes after midnight / 1440",
        },
    ),
    ("booking", "bookings_mask", {0: "1: the row of bookings has a booking; else the row is 0"}),
    (
        "offers",
        "offers",
        {
            0: "driving minutes that the offer adds, less those of no change",
            1: "the same where less than 0, else 0",
            2: "as column 0, after a short search has improved the routes",
            3: "the same where less than 0, else 0",
            4: "minutes by which the offer moves the pickup earlier and the dropoff later / 10",
            6: "minutes between earliest pickup and latest dropoff beyond the direct drive / 30",
            7: "minutes between latest pickup and earliest dropoff beyond the direct drive / 30",
            8: f"less those of no change, {_WITH_BOOKINGS}",
            26: _WITH_FUTURE,
            32: _LEVELS,
        },
    ),
    (
        "offers",
        "context",
        {
            0: "requests that are booked, requests that follow this one, both / requests of the day",
            2: "direct drive from pickup to dropoff, minutes / 20",
            3: "sine and cosine of the earliest pickup as an angle of 24 hours",
            5: "earliest pickup, hours after 13:00 / 6",
            6: "expected further requests, and bookings, within an hour of this pickup",
            8: "driving minutes of the routes / 500, and per booking / 20",
            10: "drive from the depot to the pickup, and from the dropoff to the depot, minutes / 20",
            12: "columns 8 and following of offers for no change / 10",
        },
    ),
    (
        "counts",
        "counts",
        {
            0: "number of bookings, a row per pickup place, dropoff place, and half hour of earliest and latest "
            "pickup, earliest and latest dropoff",
            1: "1: the current request has this place or half hour",
        },
    ),
    (
        "requests",
        "requests",
        {
            0: "number of the pickup place and of the dropoff place",
            2: "earliest and latest pickup, earliest and latest dropoff, minutes after midnight",
        },
    ),
    ("--cost-hint", "cost_hint", {0: "driving minutes that each offer adds, less those of no change"}),
    ("--acceptance-hint", "acceptance_hint", {0: "believed probability that each offer is accepted"}),
    ("offers", "shift_cost", {0: "--shift-penalty x minutes moved by each offer, in driving minutes"}),
    ("--mask-mode soft", "logit_bias", {0: "added to the logit of each offer"}),
)
INFO_MEANINGS: Final = {
    "cost": "driving minutes of the routes after this booking, plus --vehicle-cost",
    "baseline_cost": "the same if no offers had been made so far today",
    "customer_id": "number of the customer who called",
    "trip_id": "number of the trip",
    "purpose": _PURPOSES,
    "offer": "number of the offer that was made; see the table of offers",
    "offered": "whether that was any but no change",
    "accepted": "whether the customer accepted it",
    "shift_minutes": "minutes moved: pickup and dropoff together; 0 if refused",
    "failed": "whether a request could not be served and the day ended (--unserved fail)",
}
EPISODE_INFO_MEANINGS: Final = {
    "improvement_pct": "percent of the cost saved against the same day without offers; -100 if it failed",
    "improvement_minutes": "driving minutes saved against the same day without offers",
    "cost": "driving minutes of the day's routes, plus --vehicle-cost",
    "baseline_cost": "the same without offers",
    "vehicles_used": "vehicles that leave the depot",
    "offers_made": "offers other than no change",
    "offers_accepted": "of these the accepted ones",
    "acceptance_rate": "their share, 0..1",
    "shift_minutes_total": "minutes moved: pickups and dropoffs of all accepted offers",
    "num_unserved": "requests that no vehicle could serve",
    "failed": "as in a step",
}
TRUE_STATE_MEANINGS: Final = {
    "num_booked": "requests booked so far; number of the current request",
    "customer_id": "number of the customer",
    "trip_id": "number of the trip",
    "type": f"flexibility of the customer: {_TYPES}",
    "cells": "numbers of the pickup place and of the dropoff place",
    "requested_windows": "pickup, dropoff x earliest, latest; minutes after midnight",
    "booked_windows": "the same as booked",
    "max_ride_minutes": "longest ride allowed, in minutes; inf: no limit",
    "tolerance": "minutes by which the customer lets pickup and dropoff be moved",
    "accepts": "whether the customer would accept each offer",
    "allowed": "whether each offer may be made",
    "offers": "number of the offer that was made",
    "accepted": "whether it was accepted",
    "cost": "driving minutes of the routes so far, plus --vehicle-cost",
    "baseline_cost": "the same without offers after 0, 1, 2, ... bookings",
}


def observation_rows(settings: DvrpSettings) -> list[Row]:
    """One row per group of columns of an observation array: with which setting it exists, and its meaning."""
    customers, offers = settings.num_customers, settings.offer_table.num_offers
    layouts: dict[str, ObservationLayout] = {name: name for name in get_args(ObservationLayout)}
    rows: list[Row] = []
    for needed, array, meanings in OBSERVATIONS:
        layout = layouts.get(needed)
        specs = {} if layout is None else observation_specs(layout, customers, 1, offers, ())
        ends = [*list(meanings)[1:], specs[array].shape[-1] if array in specs else 1]
        for (start, meaning), end in zip(meanings.items(), ends, strict=True):
            columns = f"{start}" if end == start + 1 else f"{start}..{end - 1}"
            columns = "all" if len(meanings) == 1 else columns
            rows.append({"with": needed, "array": array, "columns": columns, "meaning": meaning})
    return rows


def offer_rows(settings: DvrpSettings) -> list[Row]:
    """One row per offer: its number and what it asks the customer for."""
    return [{"action": number, "offer": name} for number, name in enumerate(offer_names(settings))]


def tables(settings: DvrpSettings | None = None) -> dict[str, list[Row]]:
    """All tables of the legend by title.

    Args:
        settings: settings of the env; defaults if omitted.
    """
    settings = settings or DvrpSettings()
    state = true_state_specs(settings.num_customers, settings.offer_table.num_offers)
    return {
        "Observations by --observation (training uses offers) and other flags; a row per offer or per booking of the "
        "day": observation_rows(settings),
        "Actions: the offer to the customer who calls; an accepted one moves the time window, a refused one changes "
        "nothing": offer_rows(settings),
        "Infos of a step (one booking)": _meaning_rows("info", INFO, INFO_MEANINGS),
        "Infos at the end of a day": _meaning_rows("info", EPISODE_INFO, EPISODE_INFO_MEANINGS),
        "True state (`true_state` of a vector env), in order of request": _meaning_rows(
            "array", state, TRUE_STATE_MEANINGS
        ),
    }


def _meaning_rows(kind: str, arrays: Mapping[str, ArraySpec], meanings: Mapping[str, str]) -> list[Row]:
    return [{kind: name, "meaning": meanings[name]} for name in arrays]
