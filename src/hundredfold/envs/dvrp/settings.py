"""Settings of the dial-a-ride env: fleet, demand, reward, observation, masks, data and oracle.

`--service` selects the defaults of several settings: `research` has no ride-time limit and a tiny
shift penalty; `operator` limits ride times and penalises shifts noticeably.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Final, Literal, get_args

from annotated_types import Interval

from hundredfold.core.bounds import AtLeastOne, Fraction, NonNegative, NonNegativeInt, check_bounds
from hundredfold.core.errors import SettingsError, suggest
from hundredfold.envs.dvrp.offers import DEFAULT_SIZES, OfferDirections, OfferTable, offer_table

Reward = Literal["marginal", "step", "percent", "counterfactual"]
ObservationLayout = Literal["booking", "offers", "counts", "requests"]
CityName = Literal["spread", "hubs"]
Tolerances = Literal["soft", "types", "unlimited"]
Split = Literal["known", "unseen_trips", "unseen_customers", "all"]
Service = Literal["research", "operator"]
Unserved = Literal["fail", "penalty"]
OracleName = Literal["insertion", "neural"]
MaskMode = Literal["none", "threshold", "sampled_type", "soft", "privileged"]

# Added to `max_ride_factor` times the direct ride, which alone would leave short rides no slack.
RIDE_SLACK_MINUTES: Final = 15.0
MIN_FLEET_SIZE, CUSTOMERS_PER_VEHICLE = 5, 8
# Responses are stored with the offer in one byte.
MAX_OFFERS: Final = 128
# Settings that name files of the user.
DATA_FILES: Final = ("trips", "travel_times", "vehicles", "recorded_responses")
# Defaults by service.
SHIFT_PENALTY: Final = {"research": 0.002, "operator": 0.05}
POPULATION_SIZE: Final = {"research": 30, "operator": 200}
RIDE_FACTOR: Final = {"research": None, "operator": 2.0}
# Default by city.
SOFTNESS: Final = {"spread": 0.5, "hubs": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class DvrpSettings:
    """The dial-a-ride env: one episode is one day of requests, booked one by one."""

    service: Service = "research"
    """Defaults of other settings. `operator`: ride-time limit, larger shift penalty, a population
    of 200 with the trip purposes of paratransit."""
    num_customers: AtLeastOne = 30
    """Customers who request a trip in one day; the number of steps of an episode."""
    num_vehicles: AtLeastOne | None = None
    """Vehicles in the fleet; by default 5, or one per 8 customers if that is more."""
    capacity: AtLeastOne = 8
    """Seats of one vehicle."""
    vehicle_cost: Annotated[float, Interval(ge=0, le=10_000)] = 0.0
    """Fixed cost of every vehicle used on a day, in driving minutes."""
    service_minutes: NonNegative = 0.0
    """Service time at each stop (boarding or alighting), in minutes."""
    max_ride_minutes: NonNegative | None = None
    """Ride-time limit in minutes; inf removes every limit."""
    max_ride_factor: NonNegative | None = None
    """Ride-time limit as a multiple of the direct ride, plus 15 minutes; operator: 2."""
    day_minutes: Annotated[int, Interval(ge=60, le=2880)] = 1440
    """End of the day in minutes after midnight; windows and returns to the depot lie before it."""
    offer_minutes: tuple[Annotated[int, Interval(ge=0, le=60)], ...] = DEFAULT_SIZES
    """Minutes by which an offer may shift the pickup window and the dropoff window, each on its own:
    ascending from 0, at most 60. 0,10,20,30 makes 16 offers."""
    offer_directions: OfferDirections = "outward"
    """`outward` offers earlier pickups and later dropoffs; `both` also offers to move the whole trip
    earlier or later."""
    reward: Reward = "marginal"
    """`marginal`: driving minutes saved against the same day without offers; `step`: minus the
    driving minutes added; `percent`: improvement so far; `counterfactual`: minutes saved against
    booking this request unchanged."""
    shift_penalty: NonNegative | None = None
    """Driving minutes charged per accepted minute of shift; research 0.002, operator 0.05."""
    unserved: Unserved = "fail"
    """When a request fits no route: `fail` ends the day with reward -5000, `penalty` charges 200
    minutes per unserved customer."""
    observation: ObservationLayout = "booking"
    """Observation layout: `booking` (features of the request, all bookings and their schedule),
    `offers` (features of every offer and of the day, for --architecture per_action), `counts` (sums of
    one-hots) or `requests` (raw numbers, a row per booking)."""
    cost_hint: bool = False
    """Observe the insertion cost of each offer, in minutes relative to no change."""
    acceptance_hint: bool = False
    """Observe the acceptance probability of each offer, as the acceptance model believes it."""
    future_samples: NonNegativeInt = 0
    """Sampled futures per request that estimate the cost of every offer, for --advantages futures;
    0 estimates none."""
    mask_mode: MaskMode = "none"
    """Action mask from the acceptance model: `none` allows all offers, `threshold` those probably
    accepted, `sampled_type` those of a customer type sampled from the belief, `soft` adds a logit
    bias instead, `privileged` allows those truly accepted (an upper bound)."""
    mask_threshold: Fraction = 0.5
    """Minimum acceptance probability of an offer allowed by mask_mode=threshold."""
    mask_strength: NonNegative = 1.0
    """Scale of the logit bias of mask_mode=soft, which is mask_strength * log P(accept)."""
    tolerances: Tolerances = "soft"
    """Shift a customer tolerates: `soft` varies by trip, `types` is by customer type 0 minutes or the
    largest offer, `unlimited` accepts every offer."""
    softness: Fraction | None = None
    """Tolerance of inflexible customers in the synthetic population: 0 none on average, 1 large;
    spread 0.5, hubs 1."""
    response_noise: Fraction = 0.0
    """Probability that the response to an offer is flipped."""
    population_size: AtLeastOne | None = None
    """Customers in the synthetic population, of whom num_customers request a trip each day;
    research 30, operator 200."""
    city: CityName = "spread"
    """Synthetic city: `spread` has homes and destinations everywhere; in `hubs` most trips start in
    a few neighbouring places and lead to the centre, and customers tolerate more."""
    city_seed: int = 0
    """Seed of travel times, customers and their trips; independent of the run's seed."""
    split: Split = "known"
    """Demand to sample from: `known` customers and trips, `unseen_trips` of known customers,
    `unseen_customers`, or `all`."""
    trips: str | None = None
    """CSV file of your own trips; see docs/your-data.md and `hundredfold data template`."""
    travel_times: str | None = None
    """CSV file of travel times between the places of your trips, in seconds; by default they follow
    from coordinates, speed_kmh and detour_factor."""
    vehicles: str | None = None
    """CSV file of your vehicle types: how many, seats, wheelchair places and shifts; replaces
    num_vehicles and capacity."""
    speed_kmh: Annotated[float, Interval(gt=0, le=1000)] = 30.0
    """Speed on the road in km/h, for your trips without travel_times."""
    detour_factor: Annotated[float, Interval(ge=1, le=100)] = 1.3
    """Length of the road relative to the straight line, for your trips without travel_times."""
    recorded_responses: str | None = None
    """CSV file of recorded responses to every offer of every trip; replaces tolerances."""
    depot: str | None = None
    """Place of the depot, as your files name it; by default the most central place."""
    earliest_pickup: int = 0
    """Skip trips of your file with a pickup window before this minute of the day."""
    latest_dropoff: int = 2880
    """Skip trips of your file with a dropoff window after this minute of the day."""
    oracle: OracleName = "insertion"
    """Routing oracle: `insertion` inserts each request into the current routes and improves them
    by large neighbourhood search; `neural` also decodes all envs' routes in one batch and keeps
    the cheaper."""
    improve_passes: NonNegativeInt = 1
    """Relocate passes over the routes after each booking, and over every solution of `neural`."""
    lns_iterations: NonNegativeInt = 4
    """Iterations of large neighbourhood search after each booking; unused by `neural`."""
    oracle_threads: AtLeastOne = 1
    """Threads over envs; costs are bit-identical for every number of threads."""
    oracle_batch: AtLeastOne = 128
    """Batch size of `neural`, in instances; halved when memory runs out."""
    oracle_samples: AtLeastOne = 1
    """Solutions that `neural` decodes per instance, the first greedily; the cheapest is used."""
    oracle_weights: str | None = None
    """Weights of `neural` from `hundredfold train-oracle`; by default the shipped ones."""
    oracle_device: str = "cpu"
    """Torch device of `neural`: cpu, cuda or cuda:1."""

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            given = getattr(self, name)
            if given not in known:
                raise SettingsError(f"{name} has no {given!r}; {suggest(given, known)}")
        object.__setattr__(self, "offer_minutes", tuple(self.offer_minutes))
        check_bounds(self)
        self._check_offers()
        if self.max_ride_factor == float("inf"):
            raise SettingsError("max_ride_factor must be finite; use max_ride_minutes=inf to remove the limit.")
        if self.trips is None and (self.travel_times or self.vehicles or self.recorded_responses or self.depot):
            raise SettingsError(
                "travel_times, vehicles, recorded_responses and depot need your trips as well: --trips trips.csv."
            )
        if self.vehicles is not None and (self.num_vehicles is not None or self.oracle != "insertion"):
            raise SettingsError(
                "the file of vehicles says how many there are, and needs the oracle insertion; omit num_vehicles "
                "and oracle."
            )
        if self.trips is not None and self.city != "spread":
            raise SettingsError(f"city={self.city} is a synthetic city; omit it to use the city of {self.trips}.")
        if self.population_size is not None and self.population_size < self.num_customers:
            raise SettingsError(
                f"num_customers ({self.num_customers}) exceeds population_size "
                f"({self.population_size}); raise population_size or lower num_customers."
            )

    def _check_offers(self) -> None:
        sizes = self.offer_minutes
        written = ",".join(map(str, sizes))
        if len(sizes) < 2 or sizes[0] != 0 or any(one >= other for one, other in pairwise(sizes)):
            raise SettingsError(
                f"offer_minutes must be at least two sizes that ascend from 0, such as 0,10,20,30, got {written!r}."
            )
        number = len(sizes) ** 2 + (len(sizes) * (len(sizes) - 1) if self.offer_directions == "both" else 0)
        if number > MAX_OFFERS:
            raise SettingsError(
                f"offer_minutes {written} with offer_directions={self.offer_directions} makes {number} offers; at "
                f"most {MAX_OFFERS} are possible, so use fewer sizes."
            )
        if self.recorded_responses is not None and self.offer_directions != "outward":
            raise SettingsError(
                f"recorded_responses has no sign of shifts, so offer_directions={self.offer_directions} needs "
                "tolerances instead; remove one of them."
            )

    @property
    def offer_table(self) -> OfferTable:
        """The offers that may be made."""
        return offer_table(self.offer_minutes, self.offer_directions)

    @property
    def data_files(self) -> dict[str, str]:
        """Paths of the user's own files, by name of the setting; a run keeps copies of them."""
        paths = {name: getattr(self, name) for name in DATA_FILES}
        return {name: path for name, path in paths.items() if path is not None}

    @property
    def belief_inputs(self) -> tuple[str, ...]:
        """The settings, as name=value, whose observations or masks come from an acceptance model."""
        needed = {
            "acceptance_hint=True": self.acceptance_hint,
            "observation=offers": self.observation == "offers",
            f"mask_mode={self.mask_mode}": self.mask_mode in ("threshold", "sampled_type", "soft"),
        }
        return tuple(name for name, is_needed in needed.items() if is_needed)

    @property
    def fleet_size(self) -> int:
        """Number of vehicles, with its default filled in."""
        default = max(MIN_FLEET_SIZE, -(-self.num_customers // CUSTOMERS_PER_VEHICLE))
        return self.num_vehicles or default

    @property
    def num_known_customers(self) -> int:
        """Known customers of the synthetic population; there are as many unseen ones."""
        return self.population_size or max(POPULATION_SIZE[self.service], self.num_customers)

    @property
    def effective_shift_penalty(self) -> float:
        """`shift_penalty` with its default filled in."""
        given = self.shift_penalty
        return SHIFT_PENALTY[self.service] if given is None else given

    @property
    def effective_softness(self) -> float:
        """`softness` with its default filled in."""
        return SOFTNESS[self.city] if self.softness is None else self.softness

    @property
    def effective_ride_factor(self) -> float | None:
        """`max_ride_factor` with its default filled in; None without such a limit."""
        if self.max_ride_factor is None and self.max_ride_minutes is None:
            return RIDE_FACTOR[self.service]
        return self.max_ride_factor


_CHOICES: Final = {
    "service": get_args(Service),
    "reward": get_args(Reward),
    "unserved": get_args(Unserved),
    "observation": get_args(ObservationLayout),
    "offer_directions": get_args(OfferDirections),
    "tolerances": get_args(Tolerances),
    "city": get_args(CityName),
    "split": get_args(Split),
    "mask_mode": get_args(MaskMode),
    "oracle": get_args(OracleName),
}


def offer_names(settings: DvrpSettings) -> tuple[str, ...]:
    """Names of the offers, which are the actions."""
    return settings.offer_table.names
