"""The sixteen offers, what they do to windows, and who may or will accept them.

An offer moves the pickup window earlier and the dropoff window later; it never widens them. Windows
are (..., 2, 2): pickup and dropoff, early and late, in minutes after midnight.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from hundredfold.core.batch import BoolArray, FloatArray, IntArray
from hundredfold.routing.problem import DROPOFF, EARLY, LATE, PICKUP

NUM_OFFERS: Final = 16
NO_CHANGE: Final = 12
LARGEST: Final = 3

EARLIER: Final = (30, 20, 10, 0)
LATER: Final = (0, 10, 20, 30)
# (offers, 2): minutes by which the pickup comes earlier and the dropoff later.
OFFER_MINUTES: Final[FloatArray] = np.array(
    [(EARLIER[offer // 4], LATER[offer % 4]) for offer in range(NUM_OFFERS)], np.float64
)
TOTAL_MINUTES: Final[FloatArray] = OFFER_MINUTES.sum(axis=1)
# (offers, 2, 1): what is added to both ends of the pickup and of the dropoff window.
_MOVES: Final = (OFFER_MINUTES * (-1.0, 1.0))[:, :, None]


def shifted_windows(windows: FloatArray, offers: IntArray) -> FloatArray:
    """The windows under an offer that holds; `windows` (..., 2, 2), `offers` (...)."""
    return np.asarray(windows + _MOVES[offers], np.float64)


def windows_of_all_offers(windows: FloatArray) -> FloatArray:
    """(..., offers, 2, 2): the windows as each offer would move them."""
    return np.asarray(windows[..., None, :, :] + _MOVES, np.float64)


def tolerated_offers(tolerance: FloatArray) -> BoolArray:
    """(..., offers): which offers stay within what is tolerated; (..., 2) minutes earlier, later.

    Offer 12 asks for nothing, so everybody accepts it.
    """
    within: BoolArray = np.asarray((tolerance[..., None, :] >= OFFER_MINUTES).all(axis=-1))
    within[..., NO_CHANGE] = True
    return within


def servable_alone(
    windows: FloatArray,
    cells: IntArray,
    travel_minutes: FloatArray,
    depot_cell: int,
    day_minutes: float,
    service_minutes: float = 0.0,
    max_ride_minutes: ArrayLike = np.inf,
) -> BoolArray:
    """(...) whether a vehicle with nothing else to do can serve the trip within the day.

    `windows` (..., 2, 2), `cells` (..., 2); the ride limit is one number or (...).
    """
    pickup, dropoff = cells[..., PICKUP], cells[..., DROPOFF]
    latest_pickup = windows[..., PICKUP, LATE]
    arrival = np.maximum(windows[..., PICKUP, EARLY], travel_minutes[depot_cell, pickup])
    direct = travel_minutes[pickup, dropoff]
    reached = np.maximum(windows[..., DROPOFF, EARLY], arrival + service_minutes + direct)
    # Picking up as late as possible gives the shortest ride.
    shortest_ride = np.maximum(
        direct, windows[..., DROPOFF, EARLY] - latest_pickup - service_minutes
    )
    home = reached + service_minutes + travel_minutes[dropoff, depot_cell]
    inside = (windows[..., PICKUP, EARLY] >= 0.0) & (windows[..., DROPOFF, LATE] <= day_minutes)
    on_time = (arrival <= latest_pickup) & (reached <= windows[..., DROPOFF, LATE])
    kept = (shortest_ride <= max_ride_minutes) & (home <= day_minutes)
    return np.asarray(inside & on_time & kept, bool)


def allowed_offers(
    windows: FloatArray,
    cells: IntArray,
    travel_minutes: FloatArray,
    depot_cell: int,
    day_minutes: float,
    service_minutes: float = 0.0,
    max_ride_minutes: ArrayLike = np.inf,
) -> BoolArray:
    """(trips, offers): offers that keep the trip inside the day and servable; 12 always is one.

    A window that would leave the day is forbidden rather than clamped: clamping would shorten it.
    """
    allowed = servable_alone(
        windows_of_all_offers(windows),
        cells[..., None, :],
        travel_minutes,
        depot_cell,
        day_minutes,
        service_minutes,
        np.asarray(max_ride_minutes)[..., None],
    )
    allowed[..., NO_CHANGE] = True
    return allowed
