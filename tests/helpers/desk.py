"""Small booking desks for tests, and callers that respond as the built-in customers do."""

from datetime import UTC, date, datetime, timedelta

import numpy as np

from hundredfold.desk.models import DayView, Quote, ResponseIn, TripIn
from hundredfold.desk.population import rider_name
from hundredfold.desk.service import Desk, DeskPolicy
from hundredfold.desk.settings import DeskSettings
from hundredfold.desk.storage import Journal
from hundredfold.envs.dvrp.evaluation import EVALUATION_SEED, evaluation_env_seed
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
    chosen = DeskSettings(first_day=FIRST_DAY, seed=evaluation_env_seed(EVALUATION_SEED), **settings)
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
