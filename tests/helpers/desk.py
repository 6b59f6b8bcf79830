"""Small booking desks for tests, and callers that respond as the built-in customers do."""

import csv
import threading
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta

import numpy as np
import uvicorn
from fastapi.testclient import TestClient

from helpers.processes import wait_until
from hundredfold.desk.models import DayView, Quote, ResponseIn, TripIn
from hundredfold.desk.population import rider_name
from hundredfold.desk.quoter import DeskPolicy
from hundredfold.desk.server import create_app
from hundredfold.desk.service import Desk
from hundredfold.desk.settings import DeskSettings
from hundredfold.desk.storage import Journal
from hundredfold.envs.dvrp.evaluation import EVALUATION_SEED, DayScorer, evaluation_env_seed
from hundredfold.envs.dvrp.settings import DvrpSettings

FIRST_DAY = date(2100, 1, 1)
ENV = DvrpSettings(num_customers=12, population_size=20, city="hubs")


class Clock:
    """A clock that tests set."""

    def __init__(self):
        self.time = datetime(2099, 12, 31, 12, 0, tzinfo=UTC)

    def __call__(self):
        return self.time

    def pass_minutes(self, minutes):
        self.time += timedelta(minutes=minutes)


def make_desk(url="sqlite://", *, env=ENV, policy="belief_greedy", now=None, **settings):
    """A desk of the built-in city, one of whose days is the evaluation's first day."""
    fixed = {"first_day": FIRST_DAY, "seed": evaluation_env_seed(EVALUATION_SEED), "time_zone": "UTC"}
    chosen = DeskSettings(**(fixed | settings))
    if isinstance(policy, str):
        policy = DeskPolicy(name=policy, settings=env)
    return Desk(policy, Journal(url), chosen, now or Clock())


def trip_of(population, customer, trip):
    """The request of a trip of the population, as a caller makes it."""
    pickup, dropoff = population.trips.windows[trip].tolist()
    names = [population.city.names[cell] for cell in population.trips.cells[trip]]
    return TripIn(
        rider=rider_name(population, customer),
        pickup=names[0],
        dropoff=names[1],
        pickup_window={"early": pickup[0], "late": pickup[1]},
        dropoff_window={"early": dropoff[0], "late": dropoff[1]},
        trip=trip,
    )


def respond_truthfully(population, quote, trip):
    """The response of a customer who accepts the recommended offer if it is tolerated."""
    offer = quote.recommended
    if offer is not None and population.accepts[trip, offer]:
        return ResponseIn(quote_id=quote.quote_id, choice="offer", offer=offer)
    return ResponseIn(quote_id=quote.quote_id, choice="as_requested")


class ApiDesk:
    """A desk behind its HTTP API, called like the desk itself."""

    def __init__(self, client):
        self.client = client

    def request(self, day, trip):
        answer = self.client.post(f"/v1/days/{day}/requests", json=trip.model_dump(exclude_none=True))
        assert answer.status_code == 201, answer.text
        return Quote.model_validate(answer.json())

    def respond(self, request_id, response):
        answer = self.client.post(f"/v1/requests/{request_id}/response", json=response.model_dump())
        assert answer.status_code == 200, answer.text

    def close_day(self, day):
        return DayView.model_validate(self.client.post(f"/v1/days/{day}/close").json()["day"])


def play_days(desk, days, population):
    """Book simulated days through the desk; returns offers and acceptance, (days, customers) each."""
    offers, accepted = np.full(days.trip_id.shape, -1), np.zeros(days.trip_id.shape, bool)
    for number in range(len(days.trip_id)):
        date = FIRST_DAY.fromordinal(FIRST_DAY.toordinal() + number)
        for at, (customer, trip) in enumerate(zip(days.customer_id[number], days.trip_id[number], strict=True)):
            quote = desk.request(date, trip_of(population, int(customer), int(trip)))
            response = respond_truthfully(population, quote, int(trip))
            desk.respond(quote.request_id, response)
            offers[number, at] = population.offers.no_change if quote.recommended is None else quote.recommended
            accepted[number, at] = response.choice == "offer" or quote.recommended is None
    return offers, accepted


def assert_saves_as_evaluated(desk, days, population, settings):
    """Book simulated days through the API: the same offers, and the saving that `evaluate` computes.

    A closed day has the routes of the same search as the evaluation, unless those that grew with the
    bookings are even better.
    """
    api = ApiDesk(TestClient(create_app(desk), base_url="http://localhost"))
    offers, accepted = play_days(api, days, population)
    np.testing.assert_array_equal(offers, days.offers)
    np.testing.assert_array_equal(accepted, days.accepted)
    scores = DayScorer().scores(days, population, settings)
    closed = [api.close_day(FIRST_DAY + timedelta(days=number)) for number in range(len(offers))]
    np.testing.assert_array_equal([view.shift_minutes for view in closed], scores.shift_minutes)
    driving, baseline = (
        np.array([getattr(view, f"{name}_minutes") for view in closed]) for name in ("driving", "baseline")
    )
    assert (driving <= scores.cost + 1e-6).all()
    assert (baseline <= scores.baseline_cost + 1e-6).all()
    same = np.isclose(driving, scores.cost) & np.isclose(baseline, scores.baseline_cost)
    assert same.mean() > 0.8
    saved = np.array([view.saved_pct for view in closed])
    np.testing.assert_allclose(saved[same], scores.improvement_pct[same], atol=1e-6)
    # Evaluations are printed with one digit after the point.
    assert abs(saved.mean() - scores.improvement_pct.mean()) < 0.1


@contextmanager
def running(app):
    """Serve an app on a free port of this machine; yields its address."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, "the desk")
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join()


def book_as_requested(desk, day, trip, **changes):
    """Request a trip and book it as requested."""
    quote = desk.request(day, trip.model_copy(update=changes))
    return desk.respond(quote.request_id, ResponseIn(quote_id=quote.quote_id, choice="as_requested"))


def trips(desk, number, seed=0):
    """Trips of different customers of the desk's population."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(desk.base.size)[:number]
    first, count = desk.base.first_trip, desk.base.customers.num_trips
    return [trip_of(desk.base, int(c), int(first[c] + rng.integers(count[c]))) for c in chosen]


def own_city(folder, minutes, trips, **settings):
    """Settings of a city of one's own, with files as an operator writes them.

    Args:
        folder: Where the files go.
        minutes: Driving minutes by pair of places; the first place is the depot.
        trips: Rows of customer, from, to, pickup window and dropoff window.
        settings: Further settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "matrix.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["minutes", *minutes], *([name, *row] for name, row in minutes.items())])
    with (folder / "trips.csv").open("w", newline="") as file:
        header = ["customer", "from", "to", "pickup_window", "dropoff_window"]
        csv.writer(file).writerows([header, *trips])
    return DvrpSettings(
        trips=str(folder / "trips.csv"),
        travel_times=str(folder / "matrix.csv"),
        depot=next(iter(minutes)),
        num_customers=len(trips),
        **settings,
    )
