"""HTTP API of the booking desk (FastAPI); docs/desk.md describes it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import date
from importlib import resources
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException

from hundredfold import __version__
from hundredfold.desk.api_page import api_page
from hundredfold.desk.models import (
    BookingView,
    ClosedDay,
    DayView,
    DeskConfig,
    DeskError,
    Manifest,
    Place,
    Problem,
    Quote,
    Reference,
    ResponseIn,
    RiderName,
    RiderView,
    TripIn,
    UndoIn,
    WhatIfIn,
    WhatIfView,
)
from hundredfold.desk.operations import DeskMetrics, JsonLog, Observer
from hundredfold.desk.recorded import trips_csv
from hundredfold.desk.security import Guard, GuardSettings
from hundredfold.desk.service import Desk
from hundredfold.desk.storage import JournalError
from hundredfold.desk.tds import TripRequest, TripRequestResponse, answer_trip_request
from hundredfold.desk.text import problems_text
from hundredfold.desk.views import manifest_csv, manifest_geojson
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES

__all__ = ["ServerOptions", "create_app"]

Day = Annotated[date, Path(description="Day of service, YYYY-MM-DD.")]
RequestId = Annotated[Reference, Path(description="Id of a request.")]
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in (400, 401, 403, 404, 409, 413, 422, 429, 503)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Access to the API and its page."""

    token: str | None = None
    """Secret of the clients; None for loopback only."""
    guard: GuardSettings = field(default_factory=GuardSettings)
    tile_url: str | None = None
    """URL template of map tiles for the page, such as https://tiles.example.org/{z}/{x}/{y}.png."""
    log: JsonLog = field(default_factory=lambda: JsonLog(None))
    """Where a JSON line per request goes."""


def create_app(desk: Desk, options: ServerOptions | None = None) -> FastAPI:
    """The API of a desk, which is closed when the server stops.

    Args:
        desk: The desk.
        options: Access and logs.
    """
    options = options or ServerOptions()
    metrics = DeskMetrics()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        desk.journal.close()

    app = FastAPI(
        title="hundredfold booking desk",
        version=__version__,
        description="Quotes, books and routes dial-a-ride trips. Times are minutes after midnight of the day.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses=PROBLEMS,
    )
    app.include_router(_day_routes(desk, metrics))
    app.include_router(_request_routes(desk, metrics))
    app.include_router(_other_routes(desk, metrics, options))
    _add_error_handlers(app)

    @app.get("/docs", include_in_schema=False)
    def read_docs() -> HTMLResponse:
        """The calls of the API, as a page without scripts."""
        return HTMLResponse(api_page(app.openapi()))

    page = resources.files("hundredfold.desk") / "page"
    app.mount("/", StaticFiles(directory=str(page), html=True), name="page")
    tile_host = None if options.tile_url is None else "/".join(options.tile_url.split("/")[:3])
    # The last one added is the first to see a request.
    app.add_middleware(Guard, token=options.token, settings=options.guard, tile_host=tile_host)
    app.add_middleware(Observer, metrics=metrics, log=options.log)
    return app


def _day_routes(desk: Desk, metrics: DeskMetrics) -> APIRouter:
    router = APIRouter(prefix="/v1/days/{day}", tags=["days"])

    @router.post("/requests", status_code=201)
    def request_trip(
        day: Day, trip: TripIn, offers: Annotated[int | None, Query(ge=0, le=64, description="Offers at most.")] = None
    ) -> Quote:
        """Request a trip: returns the trip as requested and the best offers."""
        quote = desk.request(day, trip, offers)
        metrics.quotes.labels(str(quote.servable).lower()).inc()
        return quote

    @router.get("")
    def read_day(day: Day) -> DayView:
        """Bookings, routes with times and figures of a day."""
        return desk.day(day)

    @router.post("/undo")
    def undo(day: Day, step: UndoIn | None = None) -> DayView:
        """Take back the last response, cancellation or closing of the day.

        With the day's version in the body: 409 if the day has changed since, so that nobody takes back
        the step of another clerk.
        """
        return desk.undo(day, None if step is None else step.version)

    @router.post("/what-if")
    def what_if(day: Day, change: WhatIfIn) -> WhatIfView:
        """The day after a change that is not made."""
        return desk.what_if(day, change)

    @router.post("/close")
    def close_day(day: Day) -> ClosedDay:
        """Optimise the routes a last time; returns a manifest per vehicle as CSV and GeoJSON."""
        view, city = desk.close_day(day), desk.base.city
        return ClosedDay(
            day=view,
            manifests=[
                Manifest(vehicle=route.vehicle, csv=manifest_csv(route), geojson=manifest_geojson(route, city))
                for route in view.routes
            ],
        )

    @router.get("/manifests/{vehicle}.csv", response_class=PlainTextResponse)
    def read_manifest(day: Day, vehicle: Annotated[int, Path(ge=1, le=10_000)]) -> PlainTextResponse:
        """The list of stops of one vehicle."""
        for route in desk.day(day).routes:
            if route.vehicle == vehicle:
                return PlainTextResponse(manifest_csv(route), media_type="text/csv")
        raise DeskError(404, "unknown_vehicle", f"Vehicle {vehicle} has no route on {day}.")

    return router


def _request_routes(desk: Desk, metrics: DeskMetrics) -> APIRouter:
    router = APIRouter(prefix="/v1/requests/{request_id}", tags=["requests"])

    @router.post("/response")
    def respond(request_id: RequestId, response: ResponseIn) -> BookingView:
        """Book an offer or the trip as requested, or note that the rider declined.

        409 with a new quote if the old one has expired or the day has changed.
        """
        view = desk.respond(request_id, response)
        metrics.responses.labels(response.choice).inc()
        return view

    @router.get("")
    def read_request(request_id: RequestId) -> BookingView:
        """A request and what became of it."""
        return desk.view(request_id)

    @router.delete("")
    def cancel(request_id: RequestId) -> BookingView:
        """Cancel a request or a booking."""
        view = desk.cancel(request_id)
        metrics.cancellations.inc()
        return view

    return router


def _other_routes(desk: Desk, metrics: DeskMetrics, options: ServerOptions) -> APIRouter:
    router = APIRouter(tags=["desk"])

    @router.get("/v1/riders/{rider:path}")
    def read_rider(rider: Annotated[RiderName, Path(description="Id of a rider.")]) -> RiderView:
        """How often a rider was given offers, and what they responded."""
        return desk.rider(rider)

    @router.get("/v1/places")
    def read_places() -> list[Place]:
        """Places that trips may start and end at."""
        return desk.places()

    @router.get("/v1/config")
    def read_config() -> DeskConfig:
        """What a page needs to know."""
        env, settings = desk.env_settings, desk.settings
        return DeskConfig(
            today=desk.clock.today(),
            time_zone=str(desk.clock.zone),
            policy=desk.policy.name,
            purposes=list(PURPOSE_NAMES),
            capacity=env.capacity,
            vehicles=env.fleet_size,
            day_minutes=env.day_minutes,
            window_minutes=settings.window_minutes,
            quote_minutes=settings.quote_minutes,
            offers_per_quote=settings.offers_per_quote,
            max_offers_per_week=settings.max_offers_per_week,
            tile_url=options.tile_url,
        )

    @router.get("/v1/export", response_class=StreamingResponse)
    def export() -> StreamingResponse:
        """The whole journal as JSON lines, for `hundredfold train dvrp --from-desk`."""
        return StreamingResponse(export_lines(desk), media_type="application/x-ndjson")

    @router.get("/v1/export/trips.csv", response_class=PlainTextResponse)
    def export_trips() -> PlainTextResponse:
        """All requested trips, for `hundredfold train dvrp --trips`."""
        events = (stored.event for stored in desk.journal.all_events())
        return PlainTextResponse(trips_csv(events, desk.base.city), media_type="text/csv")

    @router.post("/v1/tds/tripRequest", response_model_exclude_none=True)
    def tds_trip_request(telegram: TripRequest) -> TripRequestResponse:
        """Telegram 1A of TCRP Report 210, answered by 1B; the trip is quoted, not booked."""
        return answer_trip_request(desk, telegram)

    @router.get("/metrics", response_class=PlainTextResponse)
    def read_metrics() -> Response:
        """Metrics in the format of Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    @router.get("/healthz", response_class=JSONResponse)
    def health() -> JSONResponse:
        """200 if the database answers, else 503."""
        reachable = desk.journal.is_reachable()
        return JSONResponse({"status": "ok" if reachable else "database"}, status_code=200 if reachable else 503)

    return router


def export_lines(desk: Desk) -> Iterator[str]:
    """Every event of the journal as a JSON line."""
    for stored in desk.journal.all_events():
        event = stored.event
        row = {
            "seq": stored.seq,
            "at": stored.at.isoformat(),
            "day": event.day.isoformat(),
            "kind": event.kind,
            "request_id": event.request_id,
            "rider": event.rider,
            "data": event.data,
        }
        yield json.dumps(row) + "\n"


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(DeskError)
    def refused(_request: Request, error: DeskError) -> JSONResponse:
        problem = Problem(code=error.code, reason=error.reason, quote=error.quote)
        return JSONResponse(problem.model_dump(mode="json"), status_code=error.status)

    @app.exception_handler(RequestValidationError)
    def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        problem = Problem(code="invalid", reason=problems_text(error.errors(), skip=1))
        return JSONResponse(problem.model_dump(), status_code=422)

    @app.exception_handler(HTTPException)
    def http_error(_request: Request, error: HTTPException) -> JSONResponse:
        problem = Problem(code="http", reason=str(error.detail))
        return JSONResponse(problem.model_dump(), status_code=error.status_code, headers=error.headers)

    @app.exception_handler(JournalError)
    @app.exception_handler(DBAPIError)
    def unreachable(_request: Request, _error: Exception) -> JSONResponse:
        problem = Problem(code="database", reason="The database does not answer; nothing was stored. Try again.")
        return JSONResponse(problem.model_dump(), status_code=503)
