"""Recorded days of a desk, for further training: responses to offers, and trips as a CSV file."""

from __future__ import annotations

import csv
import io
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

from hundredfold.core.errors import SettingsError
from hundredfold.desk.intake import Intake
from hundredfold.desk.learning import OfferResponse, to_responses
from hundredfold.desk.models import clock
from hundredfold.desk.population import DeskPopulation
from hundredfold.desk.quoting import offer_of_minutes
from hundredfold.desk.records import REQUEST, RESPONSE, UNDO
from hundredfold.desk.storage import Event, read_journal
from hundredfold.envs.dvrp.acceptance.model import Responses
from hundredfold.envs.dvrp.city import City
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.settings import DvrpSettings

__all__ = ["RecordedResponses", "read_events", "recorded_responses", "trips_csv"]

# Environment variable with the token of a desk that --from-desk reads over HTTP.
TOKEN_VARIABLE: Final = "HUNDREDFOLD_DESK_TOKEN"

NumberedEvents = list[tuple[int, Event]]


@dataclass(frozen=True, slots=True)
class RecordedResponses:
    """Responses that a training can use."""

    responses: Responses
    num_skipped: int  # of riders or trips that the population does not have


def read_events(source: str) -> NumberedEvents:
    """Numbered events of a desk.

    Args:
        source: Address of a running desk (http://...), a file of `GET /v1/export`, an SQLite file, or
            a database URL.
    """
    if source.startswith(("http://", "https://")):
        return list(_parse_lines(_download(source), source))
    if "://" in source:
        return read_journal(source)
    path = Path(source)
    if not path.is_file():
        raise SettingsError(f"--from-desk: there is no file {source}; pass a desk's database, export or address.")
    with path.open("rb") as file:
        is_sqlite = file.read(15) == b"SQLite format 3"
    if is_sqlite:
        return read_journal(f"sqlite:///{path}")
    return list(_parse_lines(path.read_text(encoding="utf-8", errors="replace").splitlines(), source))


def recorded_responses(events: NumberedEvents, settings: DvrpSettings) -> RecordedResponses:
    """Responses to offers, in the numbers of the population that the settings name.

    Args:
        events: Events of a desk.
        settings: Env of the training. Responses of riders or trips that its population does not
            have, and to offers that it does not make, are skipped.
    """
    base = population_for(settings)
    riders = DeskPopulation(base, settings, len(events))
    intake = Intake(riders, settings, 0.0)
    undone = {event.data["seq"] for _, event in events if event.kind == UNDO}
    requests = {event.request_id: event for _, event in events if event.kind == REQUEST}
    rows: list[OfferResponse] = []
    num_skipped = 0
    for number, event in events:
        if event.kind != RESPONSE or number in undone:
            continue
        data, request = event.data, requests[event.request_id].data
        given = [(minutes, False) for minutes in data["refused"]]
        given += [(data["minutes"], True)] if data["choice"] == "offer" else []
        if request["pickup"] not in intake.cells or request["dropoff"] not in intake.cells:
            num_skipped += len(given)
            continue
        record = intake.read(requests[event.request_id])
        for minutes, accepted in given:
            offer = offer_of_minutes(base.offers, minutes)
            if offer is None or record.customer >= base.size or record.trip >= len(base.trips.purpose):
                num_skipped += 1
            else:
                purpose = int(base.trips.purpose[record.trip])
                rows.append(OfferResponse(record.customer, record.trip, purpose, offer, accepted))
    return RecordedResponses(to_responses(rows), num_skipped)


def trips_csv(events: Iterable[Event], city: City) -> str:
    """All requested trips as a file for --trips, so that a training samples recorded days."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    header = ["customer", "from", "to", "pickup_window", "dropoff_window", "purpose"]
    coordinates = ["from_lat", "from_lon", "to_lat", "to_lon"] if city.degrees is not None else []
    writer.writerow([*header, *coordinates])
    cells = {name: cell for cell, name in enumerate(city.names)}
    for event in events:
        if event.kind != REQUEST:
            continue
        data = event.data
        ends = (data["pickup"], data["dropoff"])
        windows = [f"{clock(early)}-{clock(late)}" for early, late in data["windows"]]
        places = [] if city.degrees is None else [city.degrees[cells[name]] for name in ends]
        degrees = [f"{float(value):.6f}" for place in places for value in place]
        writer.writerow([data["rider"], *ends, *windows, data["purpose"], *degrees])
    return file.getvalue()


def _download(address: str) -> list[str]:
    token = os.environ.get(TOKEN_VARIABLE)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{address.rstrip('/')}/v1/export", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            text: str = answer.read().decode()
    except urllib.error.HTTPError as error:
        hint = f"; set {TOKEN_VARIABLE} to the desk's token" if error.code == 401 else ""
        raise SettingsError(f"--from-desk: {address} answered {error.code}{hint}.") from error
    except (OSError, ValueError) as error:
        raise SettingsError(f"--from-desk: cannot read {address}: {error}.") from error
    return text.splitlines()


def _parse_lines(lines: Iterable[str], source: str) -> Iterator[tuple[int, Event]]:
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            event = Event(
                row["kind"], date.fromisoformat(row["day"]), row["request_id"], row["rider"], dict(row["data"])
            )
            yield int(row["seq"]), event
        except (ValueError, KeyError, TypeError) as error:
            raise SettingsError(
                f"--from-desk: line {number} of {source} is no event of a desk; pass what GET /v1/export returns."
            ) from error
