"""What a day of dial-a-ride is like: fleet, callers, reward, view and data.

A service fixes what its settings leave open: `research` has no ride-time limit and asks hardly
anything for shifting people; `operator` promises short rides and gives patience a price.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from hundredfold.core.errors import SettingsError, suggest

Reward = Literal["marginal", "step", "percent", "counterfactual"]
ObservationLayout = Literal["booking", "counts", "requests"]
Tolerances = Literal["soft", "types", "unlimited"]
Split = Literal["known", "unseen_trips", "unseen_customers", "all"]
Service = Literal["research", "operator"]
Unserved = Literal["fail", "penalty"]
OracleName = Literal["insertion", "neural"]
MaskMode = Literal["none", "threshold", "sampled_type", "soft", "privileged"]

# A ride limit of `factor` times the direct ride would leave short rides no room at all.
RIDE_GRACE_MINUTES: Final = 15.0
FLEET_SIZE, RIDERS_PER_VEHICLE = 5, 8
# What the scenarios say where a setting is left open.
PATIENCE: Final = {"research": 0.002, "operator": 0.05}
TRAVELLERS: Final = {"research": 30, "operator": 200}
RIDE_FACTOR: Final = {"research": None, "operator": 2.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class DvrpSettings:
    """Everything that decides what a day of bookings is like and what the agent sees of it."""

    service: Service = "research"
    """`operator`: ride-time limit, patience price, 200 travellers with paratransit purposes."""
    num_customers: int = 30
    """Customers who call in one day; an episode has as many steps."""
    num_vehicles: int | None = None
    """Vehicles that may leave the depot; by default 5, or one per 8 customers if that is more."""
    capacity: int = 8
    """Riders that fit into one vehicle."""
    service_minutes: float = 0.0
    """Minutes that boarding and alighting take at each stop."""
    max_ride_minutes: float | None = None
    """Longest time a rider may sit in the vehicle, in minutes; inf lifts any limit."""
    max_ride_factor: float | None = None
    """Longest ride as a multiple of the direct one, plus 15 minutes; operator: 2."""
    day_minutes: int = 1440
    """Minute at which the day ends; every window and every vehicle's return lies before it."""
    reward: Reward = "marginal"
    """`marginal`: minutes saved against the same day without offers; `step`: minus minutes added;
    `percent`: improvement so far; `counterfactual`: against booking this request as asked."""
    shift_penalty: float | None = None
    """Driving minutes that one minute of accepted shift costs; research 0.002, operator 0.05."""
    unserved: Unserved = "fail"
    """When somebody cannot be served: `fail` ends the day at -5000, `penalty` charges 200 minutes
    for each."""
    observation: ObservationLayout = "booking"
    """What the agent sees: `booking` (everything known about request, book and plan), or plainer:
    `counts` (sums of one-hots) or `requests` (a row of raw numbers per booking)."""
    cost_hint: bool = False
    """Show what each offer would add to the plan if accepted, in minutes against offer 12."""
    acceptance_hint: bool = False
    """Show how likely an acceptance model believes each offer to be accepted, from 0 to 1."""
    mask_mode: MaskMode = "none"
    """Which offers an acceptance model's beliefs leave open: `none` all, `threshold` those probably
    accepted, `sampled_type` those of a type drawn from the belief, `soft` all with a leaning,
    `known` only those truly accepted (an upper bound)."""
    mask_threshold: float = 0.5
    """Least chance of acceptance that `threshold` allows."""
    mask_strength: float = 1.0
    """How hard `soft` leans against refusals: times log P(accept), added to the logits."""
    tolerances: Tolerances = "soft"
    """`soft` varies by trip, `types` is 30 or 0 minutes by personality, `unlimited` accepts all."""
    softness: float = 0.5
    """How much an inflexible side tolerates in the built-in city: 0 nothing on average, 1 much."""
    response_noise: float = 0.0
    """Chance that an answer to a real offer is the opposite of what the customer meant."""
    population_size: int | None = None
    """People who may call, of whom num_customers do each day; research 30, operator 200."""
    city_seed: int = 0
    """Travel times, people and their trips follow from this number, whatever the run's seed."""
    split: Split = "known"
    """Who calls: `known` people and trips, `unseen_trips` of known people, `unseen_customers`, or
    `all`."""
    trips: str | None = None
    """CSV file with your own trips; needs travel_times."""
    travel_times: str | None = None
    """CSV file with driving seconds between the cells of your trips."""
    recorded_responses: str | None = None
    """CSV file with recorded answers for every trip and offer, instead of tolerances."""
    depot: str | None = None
    """Label of the depot's cell in travel_times; by default the most central cell."""
    earliest_pickup: int = 0
    """Leave out trips of yours whose pickup window begins before this minute of the day."""
    latest_dropoff: int = 2880
    """Leave out trips of yours whose dropoff window ends after this minute of the day."""
    oracle: OracleName = "insertion"
    """What prices a book: `insertion` extends the kept plan and searches around it; `neural` routes
    all envs' books in one batched pass and keeps its plan where that is cheaper."""
    improve_passes: int = 1
    """Relocate passes over the kept plan after each booking, and over every plan of `neural`."""
    lns_iterations: int = 4
    """Rounds of large neighbourhood search on the kept plan after each booking; `neural` does
    without."""
    oracle_threads: int = 1
    """Threads that share the envs' plans; prices stay the same to the last bit."""
    oracle_batch: int = 128
    """Books in one batched call of `neural`; more are split, and halved when memory runs out."""
    oracle_samples: int = 1
    """Plans that `neural` makes of each book, the first greedy; the cheapest counts."""
    oracle_weights: str | None = None
    """Weights of `neural` from `hundredfold train-oracle`; by default those that come along."""
    oracle_device: str = "cpu"
    """Where `neural` computes: cpu, cuda or cuda:1."""

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            given = getattr(self, name)
            if given not in known:
                raise SettingsError(f"{name} has no {given!r}; {suggest(given, known)}")
        _at_least(self, 1, "num_customers", "num_vehicles", "capacity", "population_size")
        _at_least(self, 1, "oracle_threads", "oracle_batch", "oracle_samples")
        _at_least(self, 0, "service_minutes", "max_ride_minutes", "max_ride_factor", "softness")
        _at_least(self, 0, "shift_penalty", "response_noise", "improve_passes")
        _at_least(self, 0, "lns_iterations", "mask_threshold", "mask_strength")
        if not 60 <= self.day_minutes <= 2880:
            raise SettingsError(f"day_minutes must lie in 60..2880, got {self.day_minutes}.")
        if self.max_ride_factor == float("inf"):
            raise SettingsError(
                "max_ride_factor must be finite; max_ride_minutes=inf lifts the limit."
            )
        for name in ("softness", "response_noise", "mask_threshold"):
            if getattr(self, name) > 1.0:
                raise SettingsError(f"{name} must lie in 0..1, got {getattr(self, name)}.")
        if (self.trips is None) != (self.travel_times is None):
            raise SettingsError(
                "your own city needs both files: --trips trips.csv and --travel-times matrix.csv."
            )
        if self.trips is None and (self.recorded_responses or self.depot):
            raise SettingsError(
                "recorded_responses and depot belong to your own data; give trips as well."
            )
        if self.population_size is not None and self.population_size < self.num_customers:
            raise SettingsError(
                f"{self.num_customers} customers cannot call out of {self.population_size} "
                "travellers; raise population_size or lower num_customers."
            )

    @property
    def fleet_size(self) -> int:
        """Vehicles that may leave the depot."""
        return self.num_vehicles or max(FLEET_SIZE, -(-self.num_customers // RIDERS_PER_VEHICLE))

    @property
    def people(self) -> int:
        """Known people of the built-in city."""
        return self.population_size or max(TRAVELLERS[self.service], self.num_customers)

    @property
    def patience(self) -> float:
        """Driving minutes that one minute of shift costs."""
        given = self.shift_penalty
        return PATIENCE[self.service] if given is None else given

    @property
    def ride_factor(self) -> float | None:
        """Multiple of the direct ride that the longest ride may take, before the grace."""
        if self.max_ride_factor is None and self.max_ride_minutes is None:
            return RIDE_FACTOR[self.service]
        return self.max_ride_factor


_CHOICES: Final = {
    "service": get_args(Service),
    "reward": get_args(Reward),
    "unserved": get_args(Unserved),
    "observation": get_args(ObservationLayout),
    "tolerances": get_args(Tolerances),
    "split": get_args(Split),
    "mask_mode": get_args(MaskMode),
    "oracle": get_args(OracleName),
}


def _at_least(settings: DvrpSettings, least: int, *names: str) -> None:
    for name in names:
        given = getattr(settings, name)
        if given is not None and not given >= least:
            raise SettingsError(f"{name} must be at least {least}, got {given}.")
