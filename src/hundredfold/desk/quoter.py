"""Which policy decides, and what it quotes: offers within the operator's limits, kept for a while."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from hundredfold.core.batch import BoolArray
from hundredfold.core.errors import SettingsError
from hundredfold.desk.day import DeskDay
from hundredfold.desk.learning import DeskBeliefs
from hundredfold.desk.models import Quote
from hundredfold.desk.population import DeskPopulation
from hundredfold.desk.quoting import offers_within, quote_offers
from hundredfold.desk.records import DayRecord, RequestRecord
from hundredfold.desk.settings import DeskSettings
from hundredfold.desk.storage import StoredEvent
from hundredfold.desk.times import DeskClock
from hundredfold.envs.dvrp.acceptance.belief_model import AcceptanceModel
from hundredfold.envs.dvrp.heuristics import OfferPolicy
from hundredfold.envs.dvrp.policies import SHIFT_PENALTY_POLICIES, PolicyOptions, env_settings_for, make_policy
from hundredfold.envs.dvrp.settings import DvrpSettings

__all__ = ["WEEK", "DeskPolicy", "Quoter"]

WEEK: Final = timedelta(days=7)
# Observation layouts whose size depends on the number of requests.
SIZED_LAYOUTS: Final = ("booking", "requests")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskPolicy:
    """The policy that decides what is offered, and the env it was made for."""

    name: str
    """A policy of `POLICIES`, or the run folder of a trained one."""
    settings: DvrpSettings
    """Settings of its env: city, fleet, limits."""
    act: OfferPolicy | None = None
    """The trained policy; None for one of `POLICIES`."""
    beliefs: AcceptanceModel | None = None
    """Acceptance model of the run."""

    @property
    def env_settings(self) -> DvrpSettings:
        """Settings of a day: all trips count, and neither fleet nor riders limit the number of requests."""
        if self.settings.vehicles is not None:
            raise SettingsError(
                f"the desk routes identical vehicles, but {self.name} was trained with those of "
                f"{self.settings.vehicles}; train without --vehicles for the desk."
            )
        settings = env_settings_for(self.act or self.name, self.settings, self.settings.effective_shift_penalty)
        return replace(settings, split="all", num_vehicles=settings.fleet_size, population_size=None)


class Quoter:
    """Prices requests for a desk, and counts the offers that riders were given.

    Args:
        policy: The policy that decides.
        settings: Quotes and limits.
        riders: Riders and trips of the desk.
        beliefs: Acceptance probabilities of all riders.
        clock: The present time.
    """

    def __init__(
        self, policy: DeskPolicy, settings: DeskSettings, riders: DeskPopulation, beliefs: DeskBeliefs, clock: DeskClock
    ) -> None:
        self.policy, self.settings, self.riders, self.beliefs, self.clock = policy, settings, riders, beliefs, clock
        self.env_settings = policy.env_settings
        # Times at which riders were last given offers, by rider and request.
        self.offered: dict[str, dict[str, datetime]] = {}

    def quote(self, record: DayRecord, request: RequestRecord, free: BoolArray, number: int | None) -> Quote:
        """Price a request.

        Args:
            record: The day.
            request: The request.
            free: (offers,) offers at whose times the rider has no other booking.
            number: Offers to return, at most; by default that of the settings.
        """
        settings, notes = self.settings, []
        record.make_room()
        live = record.live
        if self.beliefs.params is not None and live.beliefs_version != self.beliefs.version:
            live.set_shared_params(self.beliefs.params)
            live.beliefs_version = self.beliefs.version
        limit = settings.max_offers_per_week
        number = settings.offers_per_quote if number is None else number
        if limit is not None and self.offers_this_week(request.rider) >= limit:
            number = 0
            notes.append(f"This rider was given offers {limit} times in the last seven days, the most allowed.")
        population = self.riders.population
        allowed = offers_within(
            population.offers,
            settings.max_shift_minutes,
            never_later=request.is_appointment and settings.appointments_on_time,
        )
        priced = quote_offers(
            live,
            request.booking(),
            self._policy_of(live),
            self.beliefs.accept_probabilities(
                request.customer, int(population.trips.purpose[request.trip]), request.trip
            ),
            allowed & free,
            number,
        )
        return Quote(
            request_id=request.request_id,
            quote_id=secrets.token_hex(8),
            day=record.day,
            version=record.version,
            rider=request.rider,
            expires_at=self.clock.now() + timedelta(minutes=settings.quote_minutes),
            servable=priced.servable,
            as_requested=priced.as_requested,
            offers=priced.offers,
            recommended=priced.recommended,
            policy=self.policy.name,
            notes=notes,
        )

    def note_offers(self, stored: StoredEvent) -> None:
        """Count the offers of a quote that was stored."""
        if stored.event.data["offers"]:
            times = self.offered.setdefault(stored.event.rider or "", {})
            times[stored.event.request_id or ""] = stored.at

    def offers_this_week(self, rider: str) -> int:
        """Quotes with offers that a rider was given in the last seven days."""
        since = self.clock.now() - WEEK
        return sum(at >= since for at in self.offered.get(rider, {}).values())

    def _policy_of(self, live: DeskDay) -> OfferPolicy | None:
        """The policy of a day; None if the day exceeds what a network of fixed size was trained for."""
        if self.policy.act is not None:
            env = self.env_settings
            outgrown = env.observation in SIZED_LAYOUTS and live.settings.num_customers != env.num_customers
            return None if outgrown else self.policy.act
        if live.policy is None:
            name = self.policy.name
            penalty = self.policy.settings.effective_shift_penalty if name in SHIFT_PENALTY_POLICIES else None
            options = PolicyOptions(beliefs=self.beliefs.model, shift_penalty=penalty)
            live.policy = make_policy(name, self.riders.population, live.settings, self.settings.seed, options)
        return live.policy
