"""Views of a day for callers: bookings, routes with times, figures, manifests."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection
from datetime import date

import numpy as np

from hundredfold.desk.day import Booking, DeskDay, total_shift
from hundredfold.desk.models import BookingView, DayView, Json, LastStep, Place, RouteView, StopView, TripView, clock
from hundredfold.desk.quoting import window
from hundredfold.desk.records import DayRecord, RequestRecord
from hundredfold.envs.dvrp.city import City
from hundredfold.envs.dvrp.env import improvement_pct
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES
from hundredfold.routing.problem import DROPOFF, PICKUP, Solutions

__all__ = [
    "booking_view",
    "day_view",
    "manifest_csv",
    "manifest_geojson",
    "places",
    "route_views",
    "schedule_of",
    "trip_views",
]


def places(city: City) -> list[Place]:
    """All places of a city."""
    found = []
    for cell, name in enumerate(city.names):
        degrees = None if city.degrees is None or np.isnan(city.degrees[cell]).any() else city.degrees[cell]
        # Positions are (north, east), as latitude and longitude are.
        y, x = city.positions[cell]
        found.append(
            Place(
                name=name,
                x=float(x),
                y=float(y),
                latitude=None if degrees is None else float(degrees[0]),
                longitude=None if degrees is None else float(degrees[1]),
            )
        )
    return found


Schedule = dict[str, tuple[int, float, float]]


def schedule_of(record: DayRecord, solution: Solutions | None = None) -> Schedule:
    """Vehicle (from 1), pickup and dropoff minute of every booking, by request id.

    Args:
        record: The day.
        solution: Its routes, if they are at hand.
    """
    solution = solution or record.solution
    vehicles, minutes = solution.vehicle[0], solution.stop_minutes[0]
    return {
        booking.request_id: (int(vehicles[number]) + 1, float(minutes[2 * number + 1]), float(minutes[2 * number + 2]))
        for number, booking in enumerate(record.live.bookings)
    }


def booking_view(day: date, request: RequestRecord, schedule: Schedule) -> BookingView:
    """A request, with its vehicle and times if the schedule has it."""
    view = BookingView(
        request_id=request.request_id,
        day=day,
        rider=request.rider,
        pickup=request.pickup,
        dropoff=request.dropoff,
        passengers=request.passengers,
        purpose=request.purpose,
        status=request.status,
        requested_pickup_window=window(request.windows[PICKUP]),
        requested_dropoff_window=window(request.windows[DROPOFF]),
        quote=request.quote if request.status == "quoted" else None,
    )
    if request.status == "booked" and request.booked_windows is not None:
        view.pickup_window = window(request.booked_windows[PICKUP])
        view.dropoff_window = window(request.booked_windows[DROPOFF])
        view.shift_minutes = request.shift_minutes
        if request.request_id in schedule:
            view.vehicle, view.pickup_minute, view.dropoff_minute = schedule[request.request_id]
    return view


def day_view(record: DayRecord) -> DayView:
    """Bookings, routes and figures of a day."""
    live, solution = record.live, record.solution
    names = {request.request_id: request.rider for request in record.requests.values()}
    driving, baseline = float(solution.driving_minutes[0]), record.baseline_minutes
    requests, schedule = list(record.requests.values()), schedule_of(record, solution)
    return DayView(
        day=record.day,
        version=record.version,
        closed=record.is_closed,
        depot=live.population.city.names[live.population.city.depot_cell],
        vehicles=live.settings.fleet_size,
        bookings=[booking_view(record.day, request, schedule) for request in requests],
        routes=route_views(live, solution, live.bookings, names, record.passed_by),
        driving_minutes=driving,
        baseline_minutes=baseline,
        saved_minutes=baseline - driving,
        saved_pct=float(improvement_pct(np.array(baseline), np.array(driving))),
        shift_minutes=total_shift(record.travelling),
        requests=len(requests),
        offers_made=sum(request.offer_made for request in requests),
        offers_accepted=sum(request.response.get("choice") == "offer" for request in requests),
        denials=sum(request.status == "denied" for request in requests),
        cancellations=record.cancellations,
        last_step=_last_step(record),
    )


def _last_step(record: DayRecord) -> LastStep | None:
    last = record.last_change
    if last is None:
        return None
    return LastStep.model_validate(
        {"kind": last.event.kind, "request_id": last.event.request_id, "rider": last.event.rider}
    )


def route_views(
    live: DeskDay, solution: Solutions, bookings: list[Booking], names: dict[str, str], passed_by: Collection[str] = ()
) -> list[RouteView]:
    """Routes with times, one per vehicle that is used.

    Args:
        live: The day, for its city.
        solution: Routes of the bookings.
        bookings: In the order of the requests of the solution.
        names: Rider of each request id.
        passed_by: Request ids at which vehicles drive by without a stop.
    """
    city, views = live.population.city, []
    for vehicle in range(solution.lengths.shape[1]):
        stops, on_board, here, driving = [], 0, city.depot_cell, 0.0
        for stop in solution.route(0, vehicle):
            booking, side = bookings[(stop - 1) // 2], (stop - 1) % 2
            cell = int(live.population.trips.cells[booking.trip, side])
            driving += float(city.travel_minutes[here, cell])
            here = cell
            if booking.request_id in passed_by:
                continue
            on_board += booking.passengers if side == PICKUP else -booking.passengers
            minute = float(solution.stop_minutes[0, stop])
            stops.append(
                StopView(
                    request_id=booking.request_id,
                    rider=names.get(booking.request_id, ""),
                    kind="pickup" if side == PICKUP else "dropoff",
                    place=city.names[cell],
                    minute=minute,
                    time=clock(minute),
                    passengers=booking.passengers,
                    on_board=on_board,
                )
            )
        if stops:
            views.append(
                RouteView(
                    vehicle=vehicle + 1,
                    start_minute=float(solution.start_minutes[0, vehicle]),
                    end_minute=float(solution.end_minutes[0, vehicle]),
                    driving_minutes=driving + float(city.travel_minutes[here, city.depot_cell]),
                    stops=stops,
                )
            )
    return views


def trip_views(population: Population, trips: list[int]) -> list[TripView]:
    """Recurring trips of a rider, by their numbers in the population."""
    table, names = population.trips, population.city.names
    return [
        TripView(
            trip=trip,
            pickup=names[table.cells[trip, PICKUP]],
            dropoff=names[table.cells[trip, DROPOFF]],
            pickup_window=window(table.windows[trip, PICKUP]),
            dropoff_window=window(table.windows[trip, DROPOFF]),
            purpose=PURPOSE_NAMES[table.purpose[trip]],
        )
        for trip in trips
    ]


def manifest_csv(route: RouteView) -> str:
    """A driver's list of stops, as CSV with a header."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["vehicle", "stop", "time", "kind", "place", "rider", "passengers", "on_board", "request_id"])
    for number, stop in enumerate(route.stops, start=1):
        cells = [stop.time, stop.kind, stop.place, stop.rider, stop.passengers, stop.on_board, stop.request_id]
        # A leading sign would make a spreadsheet compute the text.
        safe = [f"'{cell}" if str(cell)[:1] in ("=", "+", "-", "@") else cell for cell in cells]
        writer.writerow([route.vehicle, number, *safe])
    return file.getvalue()


def manifest_geojson(route: RouteView, city: City) -> Json:
    """The route as GeoJSON: a line from and to the depot and a point per stop; needs coordinates."""
    cells = {name: cell for cell, name in enumerate(city.names)}
    path = [city.depot_cell, *(cells[stop.place] for stop in route.stops), city.depot_cell]
    if city.degrees is None or np.isnan(city.degrees[path]).any():
        return {"type": "FeatureCollection", "features": []}
    points = [[float(city.degrees[cell, 1]), float(city.degrees[cell, 0])] for cell in path]
    line = {
        "type": "Feature",
        "geometry": {"type": "LineString", "coordinates": points},
        "properties": {"vehicle": route.vehicle, "driving_minutes": route.driving_minutes},
    }
    stops = [
        {
            "type": "Feature",
            "geometry": {"type": "Point", "coordinates": point},
            "properties": {**stop.model_dump(), "stop": number},
        }
        for number, (stop, point) in enumerate(zip(route.stops, points[1:-1], strict=True), start=1)
    ]
    return {"type": "FeatureCollection", "features": [line, *stops]}
