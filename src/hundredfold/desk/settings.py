"""Settings of the booking desk: quotes, limits of the operator, learning and random numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from typing import Final

from hundredfold.core.bounds import AtLeastOne, NonNegative, NonNegativeInt, Positive, check_bounds
from hundredfold.envs.dvrp.population import WINDOW_MINUTES
from hundredfold.envs.dvrp.settings import Service

# US paratransit may negotiate a pickup time up to an hour from the time requested (49 CFR 37.131(b)(2)).
ADA_MAX_SHIFT_MINUTES: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskSettings:
    """How the desk quotes, and what it may offer."""

    offers_per_quote: NonNegativeInt = 3
    """Offers of a quote, at most; the trip as requested comes in addition."""
    quote_minutes: Positive = 5.0
    """Minutes until a quote expires."""
    window_minutes: Positive = WINDOW_MINUTES
    """Width of the time windows that follow from a wanted pickup or appointment time."""
    max_shift_minutes: NonNegative | None = None
    """Largest shift of a pickup or dropoff that may be offered; --service operator: 60, the limit of
    US paratransit."""
    appointments_on_time: bool = True
    """Never offer a dropoff later than a requested appointment."""
    max_offers_per_week: NonNegativeInt | None = None
    """Quotes with offers that one rider gets in seven days, at most; then the trip as requested only."""
    time_zone: str | None = None
    """Time zone of days and times of day, such as America/New_York; by default that of the machine."""
    learn: bool = True
    """Update the acceptance model with every response."""
    max_bookings: AtLeastOne = 1000
    """Bookings of one day, at most."""
    seed: int = 0
    """Seed of the search for routes."""
    first_day: date = date(2000, 1, 1)
    """The day with number 0; a day's number selects its stream of random numbers."""

    def __post_init__(self) -> None:
        check_bounds(self)


def with_service(settings: DeskSettings, service: Service) -> DeskSettings:
    """The settings with the defaults of a service filled in."""
    if service == "operator" and settings.max_shift_minutes is None:
        return replace(settings, max_shift_minutes=ADA_MAX_SHIFT_MINUTES)
    return settings
