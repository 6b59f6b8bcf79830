"""Offers: shifts of time windows, their feasibility and their acceptance.

An offer shifts the pickup window and the dropoff window; it never widens them. Windows are
(..., 2, 2): pickup and dropoff, early and late, in minutes after midnight.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike

from hundredfold.core.batch import Array, BoolArray, FloatArray, IntArray
from hundredfold.routing.problem import DROPOFF, EARLY, LATE, PICKUP

OfferDirections = Literal["outward", "both"]

DEFAULT_SIZES: Final = (0, 10, 20, 30)


@dataclass(frozen=True, eq=False)
class OfferTable:
    """The offers that may be made to a customer; the number of an offer is its row.

    The outward offers (pickup earlier, dropoff later) come first: from the earliest pickup to the
    requested one and, for each pickup, from the requested dropoff to the latest one.
    """

    sizes: FloatArray  # (sizes,) minutes by which a window may be shifted, ascending from 0
    minutes: FloatArray  # (offers, 2) minutes of earlier pickup and of later dropoff; may be negative

    @property
    def num_offers(self) -> int:
        return len(self.minutes)

    @property
    def largest_minutes(self) -> float:
        """The largest shift of a window."""
        return float(self.sizes[-1])

    @cached_property
    def no_change(self) -> int:
        """The offer that shifts nothing."""
        return self.find(0, 0)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """(offers,) readable names, such as `pickup 20 min earlier, dropoff 10 min later`."""
        return tuple(_offer_name(earlier, later) for earlier, later in self.minutes.tolist())

    @cached_property
    def total_minutes(self) -> FloatArray:
        """(offers,) minutes of shift, of both windows together."""
        return np.asarray(np.abs(self.minutes).sum(axis=1), np.float64)

    @cached_property
    def window_shifts(self) -> FloatArray:
        """(offers, 2, 1) minutes added to both ends of the pickup and of the dropoff window."""
        return np.asarray((self.minutes * (-1.0, 1.0))[:, :, None], np.float64)

    @property
    def outward(self) -> IntArray:
        """(sizes, sizes) the outward offers: pickups from earliest to requested, dropoffs from requested to latest."""
        return np.arange(len(self.sizes) ** 2).reshape(len(self.sizes), -1)

    def find(self, earlier: float, later: float) -> int:
        """The offer of this many minutes of earlier pickup and of later dropoff; ValueError if there is none."""
        rows: list[list[float]] = self.minutes.tolist()
        return rows.index([earlier, later])

    def shifted_windows(self, windows: FloatArray, offers: IntArray) -> FloatArray:
        """Time windows (..., 2, 2) shifted by the offers (...)."""
        return np.asarray(windows + self.window_shifts[offers], np.float64)

    def windows_of_all(self, windows: FloatArray) -> FloatArray:
        """(..., offers, 2, 2) time windows (..., 2, 2) under every offer."""
        return np.asarray(windows[..., None, :, :] + self.window_shifts, np.float64)

    def widest_windows(self, windows: FloatArray, acceptable: BoolArray) -> FloatArray:
        """(..., 2, 2) from the earliest to the latest time within the windows of any acceptable offer.

        Args:
            windows: (..., 2, 2) requested time windows.
            acceptable: (..., offers) offers that may be booked.
        """
        shifted = self.windows_of_all(windows)
        chosen = acceptable[..., None]
        earliest = np.where(chosen, shifted[..., EARLY], np.inf).min(axis=-2)
        latest = np.where(chosen, shifted[..., LATE], -np.inf).max(axis=-2)
        return np.stack([earliest, latest], axis=-1)

    def tolerated(self, tolerance: FloatArray) -> BoolArray:
        """Offers within a tolerance; no change always is.

        Args:
            tolerance: (..., 2) minutes by which the pickup and the dropoff may be shifted.

        Returns:
            (..., offers).
        """
        within: BoolArray = np.asarray((tolerance[..., None, :] >= np.abs(self.minutes)).all(axis=-1))
        return self.with_no_change(within)

    def allowed(
        self,
        windows: FloatArray,
        cells: IntArray,
        travel_minutes: FloatArray,
        depot_cell: int,
        day_minutes: float,
        service_minutes: float = 0.0,
        max_ride_minutes: ArrayLike = np.inf,
        shift: tuple[float, float] | None = None,
    ) -> BoolArray:
        """(trips, offers) offers under which a trip stays within the day and can be served.

        No change is always allowed. An offer that moves a window out of the day is forbidden instead
        of clamped, which would shorten the window. Arguments as in `servable_alone`.
        """
        servable = servable_alone(
            self.windows_of_all(windows),
            cells[..., None, :],
            travel_minutes,
            depot_cell,
            day_minutes,
            service_minutes,
            np.asarray(max_ride_minutes)[..., None],
            shift,
        )
        return self.with_no_change(servable)

    def with_no_change(self, allowed: BoolArray) -> BoolArray:
        """Allow no change in the (..., offers) mask, in place, and return it."""
        allowed[..., self.no_change] = True
        return allowed

    def largest(self, allowed: BoolArray) -> IntArray:
        """(rows,) the allowed offer with the largest shift; the first of ties."""
        return np.asarray(np.where(allowed, self.total_minutes, -1.0).argmax(axis=1), np.int64)

    def cheapest(self, cost: Array, allowed: BoolArray) -> IntArray:
        """(rows,) the allowed offer with the lowest cost; ties go to the smallest shift."""
        by_size = np.where(allowed, cost, np.inf)[:, self._by_size]
        return np.asarray(self._by_size[by_size.argmin(axis=1)], np.int64)

    @cached_property
    def _by_size(self) -> IntArray:
        """(offers,) by total shift, smallest first."""
        return np.argsort(self.total_minutes, kind="stable")


@lru_cache(maxsize=16)
def offer_table(sizes: tuple[int, ...] = DEFAULT_SIZES, directions: OfferDirections = "outward") -> OfferTable:
    """The offers of some sizes; by default the sixteen of 0, 10, 20 and 30 minutes.

    Args:
        sizes: Minutes by which each window may be shifted, ascending from 0.
        directions: `outward` makes pickups earlier and dropoffs later; `both` also moves both stops
            of a trip in the same direction. A pickup is never moved further towards the dropoff than
            the dropoff is moved away, nor the reverse: with less time between them, whatever fits
            the windows also fits those of a smaller shift.
    """
    outward = [(earlier, later) for earlier in reversed(sizes) for later in sizes]
    shifts = sizes[1:]
    both_later = [(-earlier, later) for earlier in shifts for later in shifts if earlier <= later]
    both_earlier = [(earlier, -later) for earlier in shifts for later in shifts if later <= earlier]
    pairs = outward if directions == "outward" else [*outward, *both_later, *both_earlier]
    return OfferTable(np.array(sizes, np.float64), np.array(pairs, np.float64))


DEFAULT_OFFERS: Final = offer_table()


def servable_alone(
    windows: FloatArray,
    cells: IntArray,
    travel_minutes: FloatArray,
    depot_cell: int,
    day_minutes: float,
    service_minutes: float = 0.0,
    max_ride_minutes: ArrayLike = np.inf,
    shift: tuple[float, float] | None = None,
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
        shift: When the vehicle may leave the depot and must be back, in minutes; by default the day.
    """
    begin, end = shift or (0.0, day_minutes)
    pickup, dropoff = cells[..., PICKUP], cells[..., DROPOFF]
    latest_pickup = windows[..., PICKUP, LATE]
    pickup_at = np.maximum(windows[..., PICKUP, EARLY], begin + travel_minutes[depot_cell, pickup])
    direct = travel_minutes[pickup, dropoff]
    dropoff_at = np.maximum(windows[..., DROPOFF, EARLY], pickup_at + service_minutes + direct)
    # Picking up as late as possible gives the shortest ride.
    shortest_ride = np.maximum(direct, windows[..., DROPOFF, EARLY] - latest_pickup - service_minutes)
    back_at = dropoff_at + service_minutes + travel_minutes[dropoff, depot_cell]
    in_day = (windows[..., PICKUP, EARLY] >= 0.0) & (windows[..., DROPOFF, LATE] <= day_minutes)
    on_time = (pickup_at <= latest_pickup) & (dropoff_at <= windows[..., DROPOFF, LATE])
    within_limits = (shortest_ride <= max_ride_minutes) & (back_at <= end)
    return np.asarray(in_day & on_time & within_limits, bool)


def _offer_name(earlier: float, later: float) -> str:
    parts = [
        f"{stop} {abs(minutes):g} min {'later' if minutes > 0 else 'earlier'}"
        for stop, minutes in (("pickup", -earlier), ("dropoff", later))
        if minutes
    ]
    return ", ".join(parts) or "no change"
