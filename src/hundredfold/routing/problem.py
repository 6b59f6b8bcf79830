"""Dial-a-ride problems and their solutions: what a routing oracle takes and what it returns.

A batch of **instances** shares one travel-time matrix and one fleet; an instance is one day's
requests. Stop 0 is the depot; request i is picked up at stop 2i+1 and dropped off at stop 2i+2.

The cost of a solution is its driving minutes over all routes, both depot legs included and waiting
free, plus `Fleet.extra_vehicle_minutes` for every vehicle beyond `Fleet.free_vehicles`.

Oracles compute in integer microseconds, so sums are exact and a cost depends on the routes alone:
not on the order of additions, the batch or the number of threads. Durations are rounded up and
deadlines down, so a schedule that is feasible in microseconds is feasible in minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, Protocol

import numpy as np
from annotated_types import Ge, Interval
from numpy.typing import ArrayLike

from hundredfold.core.batch import Array, BoolArray, FloatArray, IntArray
from hundredfold.core.bounds import AtLeastOne, NonNegative, NonNegativeInt, check_bounds
from hundredfold.core.errors import SettingsError, ShapeError

PICKUP, DROPOFF = 0, 1
EARLY, LATE = 0, 1

MICROSECONDS_PER_MINUTE: Final = 60_000_000
MICROSECONDS_PER_MILLISECOND: Final = 1_000
# "No limit": beyond any day, and sums of a few of them still fit into 64 bits.
UNLIMITED: Final = 2**60
# Cost of an insertion or a solution that does not exist.
INFEASIBLE: Final = UNLIMITED
# Minutes that are whole microseconds in decimal are rarely so in binary.
_ROUNDING_TOLERANCE: Final = 1e-3
# Minutes beyond which sums of microseconds might overflow 64 bits.
MAX_TRAVEL_MINUTES: Final = 5e6
MAX_TIME_MINUTES: Final = 1e9


def microseconds_up(minutes: Any) -> IntArray:
    """Minutes as integer microseconds, rounded up; infinity becomes UNLIMITED."""
    scaled = np.asarray(minutes, np.float64) * MICROSECONDS_PER_MINUTE
    return np.ceil(np.minimum(scaled, UNLIMITED) - _ROUNDING_TOLERANCE).astype(np.int64)


def microseconds_down(minutes: Any) -> IntArray:
    """Minutes as integer microseconds, rounded down; infinity becomes UNLIMITED."""
    scaled = np.asarray(minutes, np.float64) * MICROSECONDS_PER_MINUTE
    return np.floor(np.minimum(scaled, UNLIMITED) + _ROUNDING_TOLERANCE).astype(np.int64)


def to_minutes(microseconds: IntArray) -> FloatArray:
    """Integer microseconds as minutes."""
    return np.asarray(microseconds / MICROSECONDS_PER_MINUTE, np.float64)


def milliseconds_up(microseconds: Any) -> Any:
    """Microseconds as integer milliseconds, rounded up: the unit of OR-Tools and PyVRP models."""
    return -(-microseconds // MICROSECONDS_PER_MILLISECOND)


def milliseconds_down(microseconds: Any) -> Any:
    """Microseconds as integer milliseconds, rounded down."""
    return microseconds // MICROSECONDS_PER_MILLISECOND


class TravelTable:
    """Travel-time matrix between all cells, checked once and shared by every instance.

    It may be asymmetric and violate the triangle inequality.

    Args:
        minutes: (cells, cells) driving minutes from row to column.
    """

    def __init__(self, minutes: ArrayLike) -> None:
        self.minutes: FloatArray = np.ascontiguousarray(minutes, np.float64)
        if self.minutes.ndim != 2 or self.minutes.shape[0] != self.minutes.shape[1]:
            raise ShapeError(
                f"travel times came as an array of shape {self.minutes.shape}; "
                "pass a square matrix of minutes, one row and one column per cell."
            )
        wrong = ~((self.minutes >= 0.0) & (self.minutes <= MAX_TRAVEL_MINUTES))
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise SettingsError(
                f"the travel time from cell {row} to cell {column} is "
                f"{self.minutes[row, column]}; every entry must lie in "
                f"0..{MAX_TRAVEL_MINUTES:.0f}."
            )
        self.microseconds: IntArray = microseconds_up(self.minutes)

    @property
    def num_cells(self) -> int:
        return len(self.minutes)

    @cached_property
    def max_shortcut(self) -> int:
        """Largest violation of the triangle inequality in microseconds; 0 where it holds."""
        largest = 0
        for via in range(self.num_cells):
            detour = self.microseconds[:, via : via + 1] + self.microseconds[via : via + 1, :]
            largest = max(largest, int((self.microseconds - detour).max()))
        return largest


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


# Riders are packed into one integer: those on seats plus `WHEELCHAIR` for each one in a wheelchair. The
# highest bit of each half, which no load reaches, shows in a subtraction whether that half was enough.
WHEELCHAIR: Final = 2**20
MAX_RIDERS: Final = 2**19 - 1
ROOM_BITS: Final = 2**19 + 2**39


@dataclass(frozen=True, slots=True, kw_only=True)
class VehicleType:
    """Vehicles with the same places and the same shift."""

    count: AtLeastOne = 1
    seats: Annotated[int, Interval(ge=0, le=MAX_RIDERS)] = 8
    wheelchairs: Annotated[int, Interval(ge=0, le=MAX_RIDERS)] = 0
    """Places for wheelchairs, besides the seats."""
    shift: tuple[float, float] = (0.0, 1440.0)
    """Minutes between which a vehicle may leave the depot and must be back."""
    name: str = ""

    def __post_init__(self) -> None:
        check_bounds(self)
        if not 0.0 <= self.shift[0] < self.shift[1] < np.inf:
            raise SettingsError(f"a shift must be (start, end) in minutes after midnight, got {self.shift}.")

    @property
    def places(self) -> int:
        """Seats and wheelchair places, packed like riders."""
        return self.seats + WHEELCHAIR * self.wheelchairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Vehicles that start and end at one depot: identical ones, or of several types."""

    num_vehicles: AtLeastOne = 5
    capacity: Annotated[int, Ge(1)] = 8
    """Riders a vehicle can carry at once; with several types the most that any can, packed."""
    depot_cell: int = 0
    depot_window: tuple[float, float] = (0.0, 1440.0)
    """Minutes between which a vehicle may leave the depot and must be back."""
    types: tuple[VehicleType, ...] = ()
    """Types of vehicles in the order of the vehicles, see `of_types`; empty if all are identical."""
    max_route_minutes: NonNegative = np.inf
    """Longest time from leaving the depot to returning."""
    free_vehicles: NonNegativeInt = 5
    """Vehicles without a fixed cost."""
    extra_vehicle_minutes: NonNegative = 0.0
    """Fixed cost in minutes of every vehicle used beyond `free_vehicles`."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.depot_window[0] <= self.depot_window[1] < np.inf:
            raise SettingsError(
                f"depot_window must be (opening, closing) in minutes, finite and not empty, got {self.depot_window}."
            )

    @classmethod
    def of_types(cls, types: Sequence[VehicleType], **options: Any) -> Fleet:
        """A fleet of vehicles of these types, one type after another.

        Args:
            types: At least one.
            options: Further fields of the fleet.
        """
        return cls(
            num_vehicles=sum(kind.count for kind in types),
            capacity=max(kind.seats for kind in types) + WHEELCHAIR * max(kind.wheelchairs for kind in types),
            depot_window=(min(kind.shift[0] for kind in types), max(kind.shift[1] for kind in types)),
            types=tuple(types),
            **options,
        )

    @property
    def vehicle_types(self) -> tuple[VehicleType, ...]:
        """(vehicles,) type of every vehicle."""
        if not self.types:
            seats = min(self.capacity, MAX_RIDERS)
            # Riders of identical vehicles have no wheelchairs.
            return (VehicleType(seats=seats, wheelchairs=0, shift=self.depot_window),) * self.num_vehicles
        return tuple(kind for kind in self.types for _ in range(kind.count))

    def require_identical(self, oracle: str) -> None:
        """Raise a SettingsError if there are several types of vehicles."""
        if self.types:
            raise SettingsError(f"{oracle} supports identical vehicles only, without types; use `insertion`.")


@dataclass(slots=True, kw_only=True)
class RouteProblems:
    """A batch of dial-a-ride instances; rows with fewer requests than the widest are padded.

    The axis of length 2 after the request is (pickup, dropoff); the last axis of `windows` is
    (earliest, latest) start of service. Build it with `from_arrays`, which checks values.
    """

    travel: TravelTable
    fleet: Fleet
    num_requests: IntArray  # (instances,)
    cells: IntArray  # (instances, requests, 2)
    windows: FloatArray  # (instances, requests, 2, 2) minutes
    riders: IntArray  # (instances, requests)
    service_minutes: FloatArray  # (instances, requests, 2)
    max_ride_minutes: FloatArray  # (instances, requests), inf where unlimited

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
        """Copy and check a batch of instances; arrays broadcast to the shapes given here.

        Args:
            travel: travel-time matrix.
            fleet: vehicles and depot.
            cells: (instances, requests, 2) pickup and dropoff cell.
            windows: (instances, requests, 2, 2) time windows in minutes.
            num_requests: (instances,) requests that count, all by default; the rest is padding.
            riders: (instances, requests) seats a request takes, plus `WHEELCHAIR` for each wheelchair.
            service_minutes: (instances, requests, 2) duration of service at the stop.
            max_ride_minutes: (instances, requests) ride-time limit, from the end of the pickup's
                service to the start of the dropoff's.

        """
        where: IntArray = np.array(cells, np.int64)
        if where.ndim != 3 or where.shape[2] != 2:
            raise ShapeError(
                f"cells came with shape {where.shape}; pass (instances, requests, 2): "
                "the pickup and the dropoff cell of every request."
            )
        shape = where.shape[:2]
        count = shape[1] if num_requests is None else num_requests
        problems = cls(
            travel=travel,
            fleet=fleet,
            num_requests=broadcast_copy(count, shape[:1], np.int64, "num_requests"),
            cells=where,
            windows=broadcast_copy(windows, (*shape, 2, 2), np.float64, "windows"),
            riders=broadcast_copy(riders, shape, np.int64, "riders"),
            service_minutes=broadcast_copy(service_minutes, (*shape, 2), np.float64, "service_minutes"),
            max_ride_minutes=broadcast_copy(max_ride_minutes, shape, np.float64, "max_ride_minutes"),
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
        """(instances, requests) False in the padding."""
        return np.arange(self.max_requests) < self.num_requests[:, None]

    @property
    def has_duration_limits(self) -> bool:
        """Whether any ride time or route duration is limited."""
        rides = np.isfinite(self.max_ride_minutes[self.request_mask]).any()
        return bool(rides) or np.isfinite(self.fleet.max_route_minutes)

    def rows(self, chosen: slice | IntArray | BoolArray) -> RouteProblems:
        """The chosen instances as a batch of their own."""
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
        if ((self.num_requests < 0) | (self.num_requests > self.max_requests)).any():
            raise ShapeError(
                f"num_requests must lie in 0..{self.max_requests}, the width of the arrays; "
                f"got {self.num_requests.min()}..{self.num_requests.max()}."
            )
        if not 0 <= self.fleet.depot_cell < self.travel.num_cells:
            raise ShapeError(
                f"depot_cell must lie in 0..{self.travel.num_cells - 1}, the size of the travel "
                f"table; got {self.fleet.depot_cell}."
            )
        mask = self.request_mask
        check_requests(
            self.travel,
            self.cells[mask],
            self.windows[mask],
            self.riders[mask],
            self.service_minutes[mask],
            self.max_ride_minutes[mask],
        )

    def _clear_padding(self) -> None:
        padding = ~self.request_mask
        for array in (self.cells, self.windows, self.riders, self.service_minutes):
            array[padding] = 0
        self.max_ride_minutes[padding] = np.inf


@dataclass(slots=True, kw_only=True)
class Solutions:
    """Routes, schedule and cost of every instance of a batch, in its order."""

    cost: FloatArray  # (instances,) minutes, inf where a request is unserved
    driving_minutes: FloatArray  # (instances,) for the requests that are served
    routes: IntArray  # (instances, vehicles, width) stops without the depot, then zeros
    lengths: IntArray  # (instances, vehicles) stops on each route
    vehicle: IntArray  # (instances, requests), -1 where unserved
    stop_minutes: FloatArray  # (instances, stops) start of service; NaN where unserved and at 0
    start_minutes: FloatArray  # (instances, vehicles) leaving the depot, NaN if unused
    end_minutes: FloatArray  # (instances, vehicles) back at the depot, NaN if unused
    unserved: BoolArray  # (instances, requests)

    def __len__(self) -> int:
        return len(self.cost)

    @property
    def vehicles_used(self) -> IntArray:
        """(instances,) vehicles that leave the depot."""
        return np.asarray(np.count_nonzero(self.lengths, axis=1))

    def route(self, instance: int, vehicle: int) -> list[int]:
        """The stops of one vehicle, in driving order."""
        length = self.lengths[instance, vehicle]
        return [int(stop) for stop in self.routes[instance, vehicle, :length]]


class Oracle(Protocol):
    """Computes routes and costs for batches of instances.

    * The same instance has the same cost, to the last bit, alone or in any batch, with any number
      of threads.
    * Every solution passes `verifier.violations`.
    """

    def solve(self, problems: RouteProblems) -> Solutions:
        """Return one solution per instance, in order; its cost is inf if a request is unserved."""
        ...


def check_requests(
    travel: TravelTable,
    cells: IntArray,
    windows: FloatArray,
    riders: IntArray,
    service_minutes: FloatArray,
    max_ride_minutes: FloatArray,
) -> None:
    """Raise a ShapeError for requests with values that kernels cannot handle."""
    if ((cells < 0) | (cells >= travel.num_cells)).any():
        raise ShapeError(
            f"cells must lie in 0..{travel.num_cells - 1}, the size of the travel table; "
            f"got {cells.min()}..{cells.max()}."
        )
    if not (np.abs(windows) <= MAX_TIME_MINUTES).all():
        raise ShapeError("a time window is NaN or endless; give every window both ends.")
    if (riders < 1).any() or (riders % WHEELCHAIR > MAX_RIDERS).any() or (riders // WHEELCHAIR > MAX_RIDERS).any():
        raise ShapeError(f"riders must be at least 1 and at most {MAX_RIDERS}; got {riders.min()}..{riders.max()}.")
    if (service_minutes < 0.0).any():
        raise ShapeError("service_minutes must be at least 0.")
    if not (max_ride_minutes >= 0.0).all():
        raise ShapeError("max_ride_minutes must be >= 0; use inf where there is no limit.")


def broadcast_copy(values: ArrayLike, shape: tuple[int, ...], dtype: type, name: str) -> Array:
    """A copy of the values, broadcast to this shape; `name` is for the error message."""
    given: Array = np.asarray(values, dtype)
    try:
        return np.array(np.broadcast_to(given, shape), order="C")
    except ValueError:
        raise ShapeError(f"{name} came with shape {given.shape}; pass {shape} or what broadcasts to it.") from None
