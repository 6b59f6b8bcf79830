"""The sixteen offers: shifts of time windows, their feasibility and their acceptance.

An offer shifts the pickup window earlier by 0 to 30 minutes and the dropoff window later by 0 to
30 minutes; it never widens them. Windows are (..., 2, 2): pickup and dropoff, early and late, in
minutes after midnight.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from hundredfold.core.batch import BoolArray, FloatArray, IntArray
from hundredfold.routing.problem import DROPOFF, EARLY, LATE, PICKUP

NUM_OFFERS: Final = 16
NO_CHANGE: Final = 12

EARLIER: Final = (30, 20, 10, 0)
LATER: Final = (0, 10, 20, 30)
# (offers, 2): minutes by which the pickup is earlier and the dropoff later.
OFFER_MINUTES: Final[FloatArray] = np.array(
    [(EARLIER[offer // 4], LATER[offer % 4]) for offer in range(NUM_OFFERS)], np.float64
)
TOTAL_MINUTES: Final[FloatArray] = OFFER_MINUTES.sum(axis=1)
# (offers, 2, 1): added to both ends of the pickup and of the dropoff window.
_SHIFTS: Final = (OFFER_MINUTES * (-1.0, 1.0))[:, :, None]


def shifted_windows(windows: FloatArray, offers: IntArray) -> FloatArray:
    """Time windows (..., 2, 2) shifted by the offers (...)."""
    return np.asarray(windows + _SHIFTS[offers], np.float64)


def windows_of_all_offers(windows: FloatArray) -> FloatArray:
    """(..., offers, 2, 2) time windows under every offer."""
    return np.asarray(windows[..., None, :, :] + _SHIFTS, np.float64)


def widest_windows(windows: FloatArray, acceptable: BoolArray) -> FloatArray:
    """(..., 2, 2) from the earliest to the latest time within the windows of any acceptable offer.

    Args:
        windows: (..., 2, 2) requested time windows.
        acceptable: (..., offers) offers that may be booked.
    """
    shifted = windows_of_all_offers(windows)
    chosen = acceptable[..., None]
    earliest = np.where(chosen, shifted[..., EARLY], np.inf).min(axis=-2)
    latest = np.where(chosen, shifted[..., LATE], -np.inf).max(axis=-2)
    return np.stack([earliest, latest], axis=-1)


def tolerated_offers(tolerance: FloatArray) -> BoolArray:
    """Offers within a tolerance; offer 12 (no change) always is.

    Args:
        tolerance: (..., 2) minutes the pickup may be earlier and the dropoff later.

    Returns:
        (..., offers).
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
    """Whether a dedicated vehicle can serve each trip within the day.

    Args:
        windows: (..., 2, 2) time windows.
        cells: (..., 2) pickup and dropoff cells.
        travel_minutes: (cells, cells) travel times.
        depot_cell: Where vehicles start and end.
        day_minutes: End of the day.
        service_minutes: Service time at each stop.
        max_ride_minutes: Ride-time limit, one number or (...).
    """
    pickup, dropoff = cells[..., PICKUP], cells[..., DROPOFF]
    latest_pickup = windows[..., PICKUP, LATE]
    pickup_at = np.maximum(windows[..., PICKUP, EARLY], travel_minutes[depot_cell, pickup])
    direct = travel_minutes[pickup, dropoff]
    dropoff_at = np.maximum(windows[..., DROPOFF, EARLY], pickup_at + service_minutes + direct)
    # Picking up as late as possible gives the shortest ride.
    shortest_ride = np.maximum(direct, windows[..., DROPOFF, EARLY] - latest_pickup - service_minutes)
    back_at = dropoff_at + service_minutes + travel_minutes[dropoff, depot_cell]
    in_day = (windows[..., PICKUP, EARLY] >= 0.0) & (windows[..., DROPOFF, LATE] <= day_minutes)
    on_time = (pickup_at <= latest_pickup) & (dropoff_at <= windows[..., DROPOFF, LATE])
    within_limits = (shortest_ride <= max_ride_minutes) & (back_at <= day_minutes)
    return np.asarray(in_day & on_time & within_limits, bool)


def allowed_offers(
    windows: FloatArray,
    cells: IntArray,
    travel_minutes: FloatArray,
    depot_cell: int,
    day_minutes: float,
    service_minutes: float = 0.0,
    max_ride_minutes: ArrayLike = np.inf,
) -> BoolArray:
    """(trips, offers) offers under which a trip stays within the day and can be served.

    Offer 12 (no change) is always allowed. An offer that moves a window out of the day is forbidden
    instead of clamped, which would shorten the window. Arguments as in `servable_alone`.
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
