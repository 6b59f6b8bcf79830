"""Quotes: which offers a request gets, what each changes, and one sentence why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hundredfold.core.batch import BoolArray, FloatArray
from hundredfold.desk.day import Booking, DeskDay, Trial
from hundredfold.desk.models import AsRequested, Offer, Window, clock
from hundredfold.envs.dvrp.city import City, great_circle_km
from hundredfold.envs.dvrp.heuristics import OfferPolicy
from hundredfold.envs.dvrp.offers import OfferTable
from hundredfold.routing.problem import DROPOFF, EARLY, LATE, PICKUP, Solutions

__all__ = ["QuotedOffers", "offer_of_minutes", "offers_within", "quote_offers", "reason_for", "window"]

# Changes of driving below this are called none.
NEGLIGIBLE_MINUTES: Final = 0.5


@dataclass(frozen=True, slots=True)
class QuotedOffers:
    """The priced part of a quote."""

    as_requested: AsRequested
    offers: list[Offer]
    recommended: int | None

    @property
    def servable(self) -> bool:
        """Whether the trip can be booked at all."""
        return self.as_requested.bookable or bool(self.offers)


def offers_within(table: OfferTable, max_shift_minutes: float | None, *, never_later: bool) -> BoolArray:
    """(offers,) offers that stay within the operator's limits.

    Args:
        table: All offers.
        max_shift_minutes: Largest shift of pickup or dropoff; None for no limit.
        never_later: Whether the dropoff must not move later.
    """
    allowed = np.ones(table.num_offers, bool)
    if max_shift_minutes is not None:
        allowed &= (np.abs(table.minutes) <= max_shift_minutes).all(axis=1)
    if never_later:
        allowed &= table.minutes[:, DROPOFF] <= 0.0
    return np.asarray(allowed, bool)


def offer_of_minutes(table: OfferTable, minutes: Sequence[float]) -> int | None:
    """The offer that shifts by these minutes (earlier pickup, later dropoff); None if there is none."""
    found = np.flatnonzero((np.array(minutes) == table.minutes).all(axis=1))
    return int(found[0]) if len(found) else None


def quote_offers(
    day: DeskDay,
    booking: Booking,
    policy: OfferPolicy | None,
    probabilities: FloatArray,
    allowed: BoolArray,
    number: int,
) -> QuotedOffers:
    """Price a request: as requested, and under the best offers.

    The policy's own decision comes first. Then come offers by expected saving, which is the believed
    probability of acceptance times what the cheapest insertion saves, less the shift penalty.

    Args:
        day: The day so far.
        booking: The request, with its booked windows as requested.
        policy: Decides for one offer, or for none; None for the offer of the largest expected saving.
        probabilities: (offers,) believed acceptance probabilities.
        allowed: (offers,) offers within the operator's limits.
        number: Offers to return, at most.
    """
    table = day.population.offers
    batch = day.observe_request(booking, allowed)
    within = day.true_state["allowed"][0, len(day.bookings)] & allowed
    costs = day.insertion_costs(booking)
    unchanged = day.trial(booking)
    order = _order(day, costs, probabilities, within, unchanged.feasible)
    decision = int(policy(batch)[0]) if policy is not None else next(iter(order), table.no_change)
    offers: list[Offer] = []
    for offer in [decision, *(other for other in order if other != decision)]:
        if len(offers) == number:
            break
        if offer == table.no_change or not within[offer]:
            continue
        windows = table.windows_of_all(booking.requested_windows)[offer]
        trial = day.trial(replace(booking, booked_windows=windows))
        if trial.feasible:
            offers.append(_offer(day, offer, windows, trial, unchanged, probabilities, offer == decision))
    # Where the trip cannot be booked as requested, the cheapest offer stands in for it.
    recommended = next((offer.offer for offer in offers if offer.recommended), None)
    if recommended is None and offers and not unchanged.feasible:
        recommended, offers[0].recommended = offers[0].offer, True
    return QuotedOffers(_as_requested(day, booking, unchanged), offers, recommended)


def _order(day: DeskDay, costs: FloatArray, probabilities: FloatArray, within: BoolArray, bookable: bool) -> list[int]:
    """Offers worth making, best first."""
    table = day.population.offers
    penalty = day.settings.effective_shift_penalty * table.total_minutes
    usable = within & np.isfinite(costs)
    usable[table.no_change] = False
    if not bookable:
        scores = costs + penalty
        return [int(offer) for offer in np.argsort(scores, kind="stable") if usable[offer]]
    # No change may have no cheapest insertion although a longer search finds one: then the rest is no saving.
    saved = np.where(usable, costs[table.no_change] - costs, 0.0) - penalty
    expected = probabilities * np.where(np.isfinite(saved), saved, 0.0)
    order = np.argsort(-expected, kind="stable")
    return [int(offer) for offer in order if usable[offer] and expected[offer] > 0.0]


def _offer(
    day: DeskDay,
    offer: int,
    windows: FloatArray,
    trial: Trial,
    unchanged: Trial,
    probabilities: FloatArray,
    recommended: bool,
) -> Offer:
    minutes = day.population.offers.minutes[offer]
    change = trial.cost - unchanged.cost if unchanged.feasible else None
    probability = float(probabilities[offer])
    pickup, dropoff, vehicle = _scheduled(trial.solution, len(day.bookings))
    return Offer(
        offer=offer,
        earlier_minutes=float(minutes[PICKUP]),
        later_minutes=float(minutes[DROPOFF]),
        pickup_window=window(windows[PICKUP]),
        dropoff_window=window(windows[DROPOFF]),
        added_minutes=trial.cost - day.cost,
        change_minutes=change,
        probability=probability,
        expected_saving_minutes=None if change is None else -probability * change,
        vehicle=vehicle,
        pickup_minute=pickup,
        dropoff_minute=dropoff,
        recommended=recommended,
        reason=reason_for(day.population.city, day, trial.solution, len(day.bookings), change),
    )


def _as_requested(day: DeskDay, booking: Booking, trial: Trial) -> AsRequested:
    windows = {
        "pickup_window": window(booking.requested_windows[PICKUP]),
        "dropoff_window": window(booking.requested_windows[DROPOFF]),
    }
    if not trial.feasible:
        return AsRequested(
            bookable=False,
            added_minutes=None,
            vehicle=None,
            pickup_minute=None,
            dropoff_minute=None,
            reason="No vehicle is free at these times.",
            **windows,
        )
    pickup, dropoff, vehicle = _scheduled(trial.solution, len(day.bookings))
    return AsRequested(
        bookable=True,
        added_minutes=trial.cost - day.cost,
        vehicle=vehicle,
        pickup_minute=pickup,
        dropoff_minute=dropoff,
        reason=reason_for(day.population.city, day, trial.solution, len(day.bookings), None),
        **windows,
    )


def window(minutes: FloatArray) -> Window:
    """A (2,) time window as a model."""
    return Window(early=float(minutes[EARLY]), late=float(minutes[LATE]))


def _scheduled(solution: Solutions, request: int) -> tuple[float, float, int]:
    """Pickup and dropoff minute of a request, and its vehicle counted from 1."""
    minutes = solution.stop_minutes[0]
    return float(minutes[2 * request + 1]), float(minutes[2 * request + 2]), int(solution.vehicle[0, request]) + 1


def reason_for(city: City, day: DeskDay, solution: Solutions, request: int, change: float | None) -> str:
    """One sentence: what the booking saves, and which stop nearby makes it so."""
    vehicle = int(solution.vehicle[0, request])
    nearest = _nearest_stop(city, day, solution, request, vehicle)
    if nearest is None:
        text = f"vehicle {vehicle + 1} would drive for this trip alone"
    else:
        distance, minute = nearest
        text = f"vehicle {vehicle + 1} stops {distance} at {clock(minute)}"
    if change is None or abs(change) < NEGLIGIBLE_MINUTES:
        return f"{text[0].upper()}{text[1:]}."
    verb = "Saves" if change < 0 else "Adds"
    return f"{verb} {abs(change):.0f} min of driving: {text}."


def _nearest_stop(
    city: City, day: DeskDay, solution: Solutions, request: int, vehicle: int
) -> tuple[str, float] | None:
    """Distance and time of the nearest stop of another rider beside this one's on the route."""
    route, own = solution.route(0, vehicle), (2 * request + 1, 2 * request + 2)
    cells = day.population.trips.cells
    own_cells = day.true_state["cells"][0, request]
    found: list[tuple[float, int, int, float]] = []
    for side, stop in enumerate(own):
        at = route.index(stop)
        for other in route[max(at - 1, 0) : at] + route[at + 1 : at + 2]:
            if other not in own:
                here, there = int(own_cells[side]), int(cells[day.bookings[(other - 1) // 2].trip, (other - 1) % 2])
                minutes = min(city.travel_minutes[here, there], city.travel_minutes[there, here])
                found.append((float(minutes), here, there, float(solution.stop_minutes[0, other])))
    if not found:
        return None
    minutes, here, there, minute = min(found)
    return _distance(city, here, there, minutes), minute


def _distance(city: City, here: int, there: int, minutes: float) -> str:
    if here == there:
        return "at the same place"
    if city.degrees is not None and not np.isnan(city.degrees[[here, there]]).any():
        metres = 1000.0 * float(great_circle_km(city.degrees[[here, there]])[0, 1])
        return f"{round(metres / 50.0) * 50} m away" if metres < 1000.0 else f"{metres / 1000.0:.1f} km away"
    return f"{minutes:.0f} min away"
