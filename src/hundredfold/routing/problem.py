"""What a routing oracle is asked and what it answers: books of requests in, plans out.

A **book** is the list of one day's requests; a batch of books shares one table of travel times and
one fleet. Stop 0 is the depot; request i has its pickup at stop 2i+1 and its dropoff at stop 2i+2.

The price of a plan is its driving minutes over all routes, both depot legs included and waiting
free, plus `Fleet.extra_vehicle_minutes` for every vehicle beyond `Fleet.free_vehicles`. Oracles
count in whole ticks, so a price depends on the plan alone: not on the order of additions, the
batch it was found in or the number of threads.

Minutes as whole ticks of a microsecond, so that sums are exact and comparisons final.

Durations are rounded up and deadlines down: a plan that keeps its promises in ticks keeps them in
minutes. Tables of whole seconds or milliseconds lose nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import ArrayLike

from hundredfold.core.batch import Array, BoolArray, FloatArray, IntArray
from hundredfold.core.errors import SettingsError, ShapeError

MICROSECONDS_PER_MINUTE: Final = 60_000_000
TICKS_PER_MILLISECOND: Final = MICROSECONDS_PER_MINUTE // 60_000
# Stands for "no limit": beyond any day, and sums of a few of them still fit into 64 bits.
UNLIMITED: Final = 2**60
# Minutes that are whole ticks in decimals are rarely so in binary: forgive a thousandth of a tick.
_FORGIVEN: Final = 1e-3


def microseconds_up(minutes: Any) -> IntArray:
    """Whole ticks, rounded up; infinite becomes UNLIMITED."""
    scaled = np.asarray(minutes, np.float64) * MICROSECONDS_PER_MINUTE
    return np.ceil(np.minimum(scaled, UNLIMITED) - _FORGIVEN).astype(np.int64)


def microseconds_down(minutes: Any) -> IntArray:
    """Whole ticks, rounded down; infinite becomes UNLIMITED."""
    scaled = np.asarray(minutes, np.float64) * MICROSECONDS_PER_MINUTE
    return np.floor(np.minimum(scaled, UNLIMITED) + _FORGIVEN).astype(np.int64)


def to_minutes(ticks: IntArray) -> FloatArray:
    """Minutes of whole ticks."""
    return np.asarray(ticks / MICROSECONDS_PER_MINUTE, np.float64)


def milliseconds_up(ticks: Any) -> Any:
    """Whole milliseconds, rounded up: what other people's solvers count in."""
    return -(-ticks // TICKS_PER_MILLISECOND)


def milliseconds_down(ticks: Any) -> Any:
    """Whole milliseconds, rounded down."""
    return ticks // TICKS_PER_MILLISECOND


PICKUP, DROPOFF = 0, 1
EARLY, LATE = 0, 1
# Minutes beyond which sums of ticks might leave 64 bits; nobody drives for ten years.
LONGEST_DRIVE: Final = 5e6
LAST_MINUTE: Final = 1e9


class TravelTable:
    """Driving minutes between all cells, checked once and shared by every book.

    The table may be asymmetric, and a detour may be shorter than the direct way.
    """

    def __init__(self, minutes: ArrayLike) -> None:
        self.minutes: FloatArray = np.ascontiguousarray(minutes, np.float64)
        if self.minutes.ndim != 2 or self.minutes.shape[0] != self.minutes.shape[1]:
            raise ShapeError(
                f"travel times came as an array of shape {self.minutes.shape}; "
                "pass a square table of minutes, one row and one column per cell."
            )
        wrong = ~((self.minutes >= 0.0) & (self.minutes <= LONGEST_DRIVE))
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise SettingsError(
                f"the travel time from cell {row} to cell {column} is "
                f"{self.minutes[row, column]}; every entry must lie in 0..{LONGEST_DRIVE:.0f}."
            )
        self.microseconds: IntArray = microseconds_up(self.minutes)

    @property
    def num_cells(self) -> int:
        return len(self.minutes)

    @cached_property
    def max_shortcut(self) -> int:
        """The most that a stop on the way can save; 0 where the triangle inequality holds."""
        saved = 0
        for via in range(self.num_cells):
            detour = self.microseconds[:, via : via + 1] + self.microseconds[via : via + 1, :]
            saved = max(saved, int((self.microseconds - detour).max()))
        return saved


def classical_mds(distances: FloatArray) -> FloatArray:
    """Classical multidimensional scaling (Torgerson 1952) of distances to points in the plane.

    Args:
        distances: (cells, cells) in any unit; made symmetric by averaging both directions.

    Returns:
        (cells, 2) points whose mutual distances approximate `distances`, in the same unit.

    """
    squares = ((distances + distances.T) / 2.0) ** 2
    centred = squares - squares.mean(axis=0) - squares.mean(axis=1)[:, None] + squares.mean()
    values, vectors = np.linalg.eigh(-centred / 2.0)
    points = np.zeros((len(distances), 2))
    for axis in range(min(2, len(distances))):
        vector = vectors[:, -1 - axis] * np.sqrt(max(values[-1 - axis], 0.0))
        # The sign of an eigenvector is arbitrary; its largest entry is made positive.
        points[:, axis] = vector * np.sign(vector[np.abs(vector).argmax()] or 1.0)
    return points


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Equal vehicles that start and end at one depot."""

    num_vehicles: int = 5
    capacity: int = 8
    depot_cell: int = 0
    depot_window: tuple[float, float] = (0.0, 1440.0)
    """Minutes between which a vehicle may leave the depot and must be back."""
    max_route_minutes: float = np.inf
    """Longest time from leaving the depot to returning."""
    free_vehicles: int = 5
    extra_vehicle_minutes: float = 0.0
    """Price in minutes of every vehicle used beyond `free_vehicles`."""

    def __post_init__(self) -> None:
        if self.num_vehicles < 1 or self.capacity < 1:
            raise SettingsError(
                f"a fleet needs at least one vehicle with one seat, "
                f"got {self.num_vehicles} vehicles with {self.capacity} capacity."
            )
        if not self.depot_window[0] <= self.depot_window[1] < np.inf:
            raise SettingsError(
                f"the depot window {self.depot_window} is empty or endless; "
                "give (opening, closing) in minutes."
            )
        if (
            self.extra_vehicle_minutes < 0.0
            or self.max_route_minutes < 0.0
            or self.free_vehicles < 0
        ):
            raise SettingsError(
                f"extra_vehicle_minutes ({self.extra_vehicle_minutes}), max_route_minutes "
                f"({self.max_route_minutes}) and free_vehicles ({self.free_vehicles}) "
                "cannot be negative."
            )


@dataclass(slots=True, kw_only=True)
class RouteProblems:
    """A batch of books. Rows shorter than the widest one are padded.

    The axis of length 2 after the request is pickup, dropoff; the last one of windows early, late.
    """

    travel: TravelTable
    fleet: Fleet
    num_requests: IntArray  # (books,)
    cells: IntArray  # (books, requests, 2)
    windows: FloatArray  # (books, requests, 2, 2) minutes
    riders: IntArray  # (books, requests)
    service_minutes: FloatArray  # (books, requests, 2)
    max_ride_minutes: FloatArray  # (books, requests), inf where unlimited

    @classmethod
    def from_arrays(
        cls,
        travel: TravelTable,
        fleet: Fleet,
        cells: ArrayLike,
        windows: ArrayLike,
        *,
        num_requests: ArrayLike | None = None,
        riders: ArrayLike = 1,
        service_minutes: ArrayLike = 0.0,
        max_ride_minutes: ArrayLike = np.inf,
    ) -> RouteProblems:
        """Checked copies; what is left out takes its usual value, and one number fills an array."""
        where: IntArray = np.array(cells, np.int64)
        if where.ndim != 3 or where.shape[2] != 2:
            raise ShapeError(
                f"cells came with shape {where.shape}; pass (books, requests, 2): "
                "the pickup and the dropoff cell of every request."
            )
        books, requests, _ = where.shape
        count = requests if num_requests is None else num_requests
        problems = cls(
            travel=travel,
            fleet=fleet,
            num_requests=filled(count, (books,), np.int64, "num_requests"),
            cells=where,
            windows=filled(windows, (books, requests, 2, 2), np.float64, "windows"),
            riders=filled(riders, (books, requests), np.int64, "riders"),
            service_minutes=filled(
                service_minutes, (books, requests, 2), np.float64, "service_minutes"
            ),
            max_ride_minutes=filled(
                max_ride_minutes, (books, requests), np.float64, "max_ride_minutes"
            ),
        )
        problems._check_values()
        problems._clear_padding()
        return problems

    def __len__(self) -> int:
        return len(self.num_requests)

    @property
    def max_requests(self) -> int:
        """Requests of the widest row, padding included."""
        return int(self.cells.shape[1])

    @property
    def request_mask(self) -> BoolArray:
        """(books, requests) True where a request stands, False in the padding."""
        return np.arange(self.max_requests) < self.num_requests[:, None]

    @property
    def has_duration_limits(self) -> bool:
        """Whether some ride or route has a longest duration."""
        rides = np.isfinite(self.max_ride_minutes[self.request_mask]).any()
        return bool(rides) or np.isfinite(self.fleet.max_route_minutes)

    def rows(self, chosen: slice | IntArray | BoolArray) -> RouteProblems:
        """The chosen books as a batch of their own."""
        return RouteProblems(
            travel=self.travel,
            fleet=self.fleet,
            num_requests=self.num_requests[chosen],
            cells=self.cells[chosen],
            windows=self.windows[chosen],
            riders=self.riders[chosen],
            service_minutes=self.service_minutes[chosen],
            max_ride_minutes=self.max_ride_minutes[chosen],
        )

    def _check_values(self) -> None:
        booked = self.request_mask
        if ((self.num_requests < 0) | (self.num_requests > self.max_requests)).any():
            raise ShapeError(
                f"num_requests must lie in 0..{self.max_requests}, the width of the arrays; "
                f"got {self.num_requests.min()}..{self.num_requests.max()}."
            )
        places = self.cells[booked]
        depot = self.fleet.depot_cell
        if ((places < 0) | (places >= self.travel.num_cells)).any() or not (
            0 <= depot < self.travel.num_cells
        ):
            raise ShapeError(
                f"cells must lie in 0..{self.travel.num_cells - 1}, the size of the travel table, "
                f"and so must the depot cell, which is {depot}."
            )
        if not (np.abs(self.windows[booked]) <= LAST_MINUTE).all():
            raise ShapeError("some window is NaN or endless; give every window both ends.")
        if (self.riders[booked] < 1).any() or (self.service_minutes[booked] < 0.0).any():
            raise ShapeError("riders must be at least 1 and service_minutes at least 0.")
        if not (self.max_ride_minutes[booked] >= 0.0).all():
            raise ShapeError("max_ride_minutes must be >= 0; use inf where there is no limit.")

    def _clear_padding(self) -> None:
        padding = ~self.request_mask
        for array in (self.cells, self.windows, self.riders, self.service_minutes):
            array[padding] = 0
        self.max_ride_minutes[padding] = np.inf


@dataclass(slots=True, kw_only=True)
class Solutions:
    """One plan per book, in the order of the books."""

    cost: FloatArray  # (books,) minutes, inf where some request is left out
    driving_minutes: FloatArray  # (books,) of the requests that are served
    routes: IntArray  # (books, vehicles, width) stops without the depot, then zeros
    lengths: IntArray  # (books, vehicles) stops on each route
    vehicle: IntArray  # (books, requests), -1 where nobody comes
    stop_minutes: FloatArray  # (books, stops) start of service; NaN where nobody comes and at 0
    start_minutes: FloatArray  # (books, vehicles) leaving the depot, NaN while unused
    end_minutes: FloatArray  # (books, vehicles) back at the depot, NaN while unused
    unserved: BoolArray  # (books, requests)

    def __len__(self) -> int:
        return len(self.cost)

    @property
    def vehicles_used(self) -> IntArray:
        """(books,) vehicles that leave the depot."""
        return np.asarray(np.count_nonzero(self.lengths, axis=1))

    def route(self, book: int, vehicle: int) -> list[int]:
        """The stops of one vehicle, in driving order."""
        return [int(stop) for stop in self.routes[book, vehicle, : self.lengths[book, vehicle]]]


class Oracle(Protocol):
    """Prices books of requests, many at a time.

    * The same book has the same price, to the last bit, alone or in any batch, with any threads.
    * Every plan passes `verifier.violations`.
    """

    def solve(self, problems: RouteProblems) -> Solutions:
        """Return one plan per book, in order; a book that cannot be served is priced inf."""
        ...


def filled(values: ArrayLike, shape: tuple[int, ...], dtype: type, name: str) -> Array:
    """A copy of the values, stretched to this shape."""
    given: Array = np.asarray(values, dtype)
    try:
        return np.array(np.broadcast_to(given, shape), order="C")
    except ValueError:
        raise ShapeError(
            f"{name} came with shape {given.shape}; pass {shape} or something that fills it."
        ) from None
