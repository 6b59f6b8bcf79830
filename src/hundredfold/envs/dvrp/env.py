"""Dial-a-ride booking as a batch env: offer each customer a time-window shift.

Customers request trips one after another. The agent makes each an offer (one of sixteen by
default), the customer accepts or refuses, and the trip is booked; after every booking the day's routes are updated. All
requests come before any vehicle leaves the depot.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import (
    ActionInputs,
    Array,
    Arrays,
    ArraySpec,
    BoolArray,
    EnvSpec,
    FloatArray,
    IntArray,
    StepBatch,
    with_prefix,
)
from hundredfold.core.protocols import SharedParams
from hundredfold.core.rng import Keys
from hundredfold.envs.batch_env import ArrayBatchEnv
from hundredfold.envs.dvrp.belief_masks import EnvBeliefs, mask_uniforms
from hundredfold.envs.dvrp.demand import (
    FUTURES_CHILD,
    MASKS_CHILD,
    ROUTES_CHILD,
    DemandSampler,
    population_for,
    responses,
    true_state_specs,
)
from hundredfold.envs.dvrp.observation import (
    CONTEXT,
    OFFERS,
    REMAINING,
    REMAINING_WIDTH,
    observation_specs,
    write_observation,
    write_remaining,
)
from hundredfold.envs.dvrp.offer_features import OfferFeatures
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.route_costs import RouteCosts
from hundredfold.envs.dvrp.sampled_futures import SampledFutures
from hundredfold.envs.dvrp.settings import DvrpSettings, Reward
from hundredfold.routing.incremental import CandidateCosts

FAILURE_REWARD: Final = -5000.0
FAILED_DAY_PCT: Final = -100.0

# Observations with one number per offer.
COST_HINT, ACCEPTANCE_HINT, LOGIT_BIAS = "cost_hint", "acceptance_hint", "logit_bias"
# Shift penalty times minutes of shift.
SHIFT_COST: Final = "shift_cost"
# Info with the estimated cost of every offer, in minutes relative to no change.
OFFER_COSTS: Final = "offer_costs"
# Offers that are less likely to be accepted have no features and no estimated costs.
MIN_LIKELY_PROBABILITY: Final = 0.05
# Late in the day a short search finds too little of what an offer makes possible.
FUTURE_LNS_ITERATIONS: Final = 24

INFO: Final = {
    "cost": ArraySpec((), "float64"),
    "baseline_cost": ArraySpec((), "float64"),
    "customer_id": ArraySpec((), "int64"),
    "trip_id": ArraySpec((), "int64"),
    "purpose": ArraySpec((), "int64"),
    "offer": ArraySpec((), "int64", 0),
    "offered": ArraySpec((), "bool"),
    "accepted": ArraySpec((), "bool"),
    "shift_minutes": ArraySpec((), "float64"),
    "failed": ArraySpec((), "bool"),
}
EPISODE_INFO: Final = {
    "improvement_pct": ArraySpec((), "float64"),
    "improvement_minutes": ArraySpec((), "float64"),
    "cost": ArraySpec((), "float64"),
    "baseline_cost": ArraySpec((), "float64"),
    "vehicles_used": ArraySpec((), "int64"),
    "offers_made": ArraySpec((), "int64"),
    "offers_accepted": ArraySpec((), "int64"),
    "acceptance_rate": ArraySpec((), "float64"),
    "shift_minutes_total": ArraySpec((), "float64"),
    "num_unserved": ArraySpec((), "int64"),
    "failed": ArraySpec((), "bool"),
}


class StepCosts(NamedTuple):
    """Costs around one booking, (envs,) driving minutes each."""

    before: FloatArray
    after: FloatArray
    baseline_before: FloatArray
    baseline_after: FloatArray
    # With this request booked unchanged; equal to `after` unless the reward needs it.
    unchanged: FloatArray


def step_rewards(kind: Reward, costs: StepCosts, shift_cost: FloatArray) -> FloatArray:
    """(envs,) rewards of one step.

    Over a day `marginal` sums to the driving minutes saved against the baseline and `step` to minus
    the day's cost, both less the shift penalties. `percent` and `counterfactual` do not sum to
    anything meaningful.

    Args:
        kind: Reward function.
        costs: Costs before and after the booking.
        shift_cost: (envs,) penalty of the accepted shift, in driving minutes.
    """
    if kind == "marginal":
        baseline = costs.baseline_after - costs.baseline_before
        return np.asarray(baseline - (costs.after - costs.before) - shift_cost, np.float64)
    if kind == "step":
        return np.asarray(costs.before - costs.after - shift_cost, np.float64)
    if kind == "percent":
        saved = improvement_pct(costs.baseline_after, costs.after)
        return np.asarray(saved - shift_cost, np.float64)
    return np.asarray(costs.unchanged - costs.after - shift_cost, np.float64)


def improvement_pct(baseline: FloatArray, cost: FloatArray) -> FloatArray:
    """Cost reduction in percent of the baseline; 0 where the baseline is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        saved = 100.0 * (baseline - cost) / baseline
    return np.where(baseline > 0.0, saved, 0.0)


def offer_columns(settings: DvrpSettings) -> tuple[str, ...]:
    """Names of the observations with one number per offer."""
    included = {
        COST_HINT: settings.cost_hint,
        ACCEPTANCE_HINT: settings.acceptance_hint or settings.observation == "offers",
        SHIFT_COST: settings.observation == "offers",
        LOGIT_BIAS: settings.mask_mode == "soft",
    }
    return tuple(name for name, is_included in included.items() if is_included)


def dvrp_spec(settings: DvrpSettings, population: Population, privileged: bool = False) -> EnvSpec:
    """Arrays of the env, with those of a privileged critic if wanted."""
    customers = settings.num_customers
    cells, offers = population.city.num_cells, population.offers
    num_offers = offers.num_offers
    by_offer = settings.observation == "offers"
    info = INFO | {"offer": ArraySpec((), "int64", 0, num_offers - 1)}
    return EnvSpec(
        name="dvrp",
        observation=observation_specs(settings.observation, customers, cells, num_offers, offer_columns(settings))
        | ({REMAINING: ArraySpec((customers, REMAINING_WIDTH))} if privileged else {}),
        privileged=(REMAINING,) if privileged else (),
        action_nvec=(num_offers,),
        has_mask=True,
        episode_steps=customers,
        info=info | ({OFFER_COSTS: ArraySpec((num_offers,))} if settings.future_samples else {}),
        episode_info=EPISODE_INFO,
        true_state=true_state_specs(customers, num_offers),
        logit_bias=LOGIT_BIAS if settings.mask_mode == "soft" else None,
        action_inputs=ActionInputs(OFFERS, CONTEXT, ACCEPTANCE_HINT, SHIFT_COST, offers.no_change)
        if by_offer
        else None,
        action_costs=OFFER_COSTS if settings.future_samples else None,
    )


class Dvrp(ArrayBatchEnv):
    """Dynamic dial-a-ride env: an action is an offer to the current customer.

    A refused offer books the trip as requested; no request is rejected. An episode is one day. It
    terminates after the last request, or earlier when `unserved="fail"` and a request fits no
    route. `out.true_state` holds the whole day, hidden tolerances and future requests included.

    Args:
        env_ids: (envs,) global ids, which select the envs' RNG streams.
        settings: Settings of the env; defaults if omitted.
        population: Customers and trips; by default those that the settings name.
        privileged: Observe later requests and all tolerances, too, for the value function.
    """

    def __init__(
        self,
        env_ids: IntArray,
        settings: DvrpSettings | None = None,
        population: Population | None = None,
        *,
        privileged: bool = False,
    ) -> None:
        self.settings = settings or DvrpSettings()
        self.population = population or population_for(self.settings)
        self.offers = self.population.offers
        super().__init__(dvrp_spec(self.settings, self.population, privileged), env_ids)
        self.demand = DemandSampler(self.population, self.settings.split, self.settings.num_customers)
        self.route_costs = RouteCosts(self.num_envs, self.population, self.settings)
        self.baseline_seconds = 0.0
        self.beliefs = EnvBeliefs(self.num_envs, self.population, self.settings.split, self.settings.future_samples > 0)
        by_offer, samples = self.settings.observation == "offers", self.settings.future_samples
        self.offer_features = OfferFeatures(self.population, self.settings) if by_offer else None
        self.futures = (
            SampledFutures(self.population, self.settings, samples, FUTURE_LNS_ITERATIONS) if samples else None
        )

    @property
    def oracle_seconds(self) -> float:
        """Seconds spent on routing so far, baselines included."""
        return self.route_costs.seconds + self.baseline_seconds

    def timings(self) -> dict[str, float]:
        return {"oracle": self.oracle_seconds}

    @property
    def true_state(self) -> Arrays:
        """Arrays of every env's current day; see `demand.true_state_specs`."""
        return self.out.true_state

    def start(self) -> None:
        self._start_days(np.ones(self.num_envs, bool))
        self.observe()

    def step(self, actions: IntArray) -> StepBatch:
        state, out, settings = self.true_state, self.out, self.settings
        at = (np.arange(self.num_envs), state["num_booked"].copy())
        accepted = responses(state, at, actions, self._episode_keys(), settings.response_noise, self.offers.no_change)
        applied = np.where(accepted, actions, self.offers.no_change)
        shift = self.offers.total_minutes[applied]
        if self.futures is not None:
            self._estimate_offer_costs(self.futures, at)
        costs = self._book(at, applied)

        state["offers"][at] = actions
        state["accepted"][at] = accepted
        failed = (self.route_costs.num_unserved > 0) & (settings.unserved == "fail")
        shift_cost = settings.effective_shift_penalty * shift
        out.reward[:] = step_rewards(settings.reward, costs, shift_cost)
        out.reward[failed] = FAILURE_REWARD
        out.terminated[:] = failed | (state["num_booked"] == settings.num_customers)
        out.truncated[:] = False

        info = out.info
        info["cost"][:] = costs.after
        info["baseline_cost"][:] = costs.baseline_after
        info["customer_id"][:] = state["customer_id"][at]
        info["trip_id"][:] = state["trip_id"][at]
        info["purpose"][:] = self.population.trips.purpose[info["trip_id"]]
        info["offer"][:] = actions
        info["offered"][:] = actions != self.offers.no_change
        info["accepted"][:] = accepted
        info["shift_minutes"][:] = shift
        info["failed"][:] = failed
        if out.terminated.any():
            self._end_days(out.terminated, failed)
        self.observe()
        return out

    def set_shared_params(self, shared_params: SharedParams) -> None:
        """Set the acceptance model's beliefs, from the next step on; see `EnvBeliefs`."""
        self.beliefs.set_shared_params(shared_params)

    def state_arrays(self) -> Arrays:
        return {
            **with_prefix("beliefs", self.beliefs.state_arrays()),
            **with_prefix("routes", self.route_costs.state_arrays()),
        }

    def refresh(self) -> None:
        self.route_costs.refresh()

    def _estimate_offer_costs(self, futures: SampledFutures, at: tuple[IntArray, IntArray]) -> None:
        """Write the mean cost of every offer over sampled futures; NaN where it is not estimated."""
        state = self.true_state
        evaluated = self._likely_offers(at, self._accept_probabilities(at))
        keys = rng.spawn(rng.spawn(self._episode_keys(), FUTURES_CHILD), at[1])
        costs = futures.final_costs(self.route_costs.routes, state, evaluated, keys, self.beliefs.shares_of).mean(
            axis=2
        )
        self.out.info[OFFER_COSTS][:] = np.where(evaluated, costs - costs[:, self.offers.no_change, None], np.nan)

    def _book(self, at: tuple[IntArray, IntArray], applied: IntArray) -> StepCosts:
        """Book every env's current request, shifted by the applied offer."""
        state = self.true_state
        cells, requested = state["cells"][at], state["requested_windows"][at]
        max_ride = state["max_ride_minutes"][at]
        keys = rng.spawn(self._episode_keys(), ROUTES_CHILD)
        before = state["cost"].copy()
        self.route_costs.riders[:] = self.population.riders[state["trip_id"][at]]
        unchanged: FloatArray | None = None
        if self.settings.reward == "counterfactual":
            unchanged = self.route_costs.cost_with(cells, requested, max_ride, keys)
        windows = self.offers.shifted_windows(requested, applied)
        after = self.route_costs.add(cells, windows, max_ride, keys)
        state["booked_windows"][at] = windows
        state["cost"][:] = after
        state["num_booked"] += 1
        return StepCosts(
            before=before,
            after=after,
            baseline_before=state["baseline_cost"][at],
            baseline_after=state["baseline_cost"][at[0], at[1] + 1],
            unchanged=after if unchanged is None else unchanged,
        )

    def _end_days(self, over: BoolArray, failed: BoolArray) -> None:
        """Write the episode infos and final observations, and start the next days."""
        state, info = self.true_state, self.out.episode_info
        cost = state["cost"]
        baseline = state["baseline_cost"][np.arange(self.num_envs), state["num_booked"]]
        made = state["offers"] != self.offers.no_change
        accepted = made & state["accepted"]
        info["improvement_pct"][:] = improvement_pct(baseline, cost)
        info["improvement_pct"][failed] = FAILED_DAY_PCT
        info["improvement_minutes"][:] = baseline - cost
        info["cost"][:] = cost
        info["baseline_cost"][:] = baseline
        info["vehicles_used"][:] = self.route_costs.vehicles_used
        info["offers_made"][:] = made.sum(axis=1)
        info["offers_accepted"][:] = accepted.sum(axis=1)
        info["acceptance_rate"][:] = accepted.sum(axis=1) / np.maximum(made.sum(axis=1), 1)
        shifts = np.where(accepted, self.offers.total_minutes[state["offers"]], 0.0)
        info["shift_minutes_total"][:] = shifts.sum(axis=1)
        info["num_unserved"][:] = self.route_costs.num_unserved
        info["failed"][:] = failed
        self._write_observation(self.out.final_observation)
        by_offer = () if self.offer_features is None else (OFFERS, CONTEXT)
        for name in (*by_offer, *offer_columns(self.settings)):
            self.out.final_observation[name][:] = 0.0
        self.episodes[over] += 1
        self._start_days(over)

    def _start_days(self, rows: BoolArray) -> None:
        """Sample new days for these rows and compute their baselines."""
        state = self.true_state
        keys = self._episode_keys()[rows]
        self.demand.write(state, rows, keys)
        self.route_costs.clear(rows)
        state["baseline_cost"][rows] = self._baseline_costs(rows, keys)

    def _baseline_costs(self, rows: BoolArray, keys: Keys) -> FloatArray:
        """(days, customers + 1) costs of these rows' days when no offer is made.

        Computed by the same incremental search on the same RNG streams as the agent's routes, so
        that both are bit-identical where no offer is made.
        """
        state, customers = self.true_state, self.settings.num_customers
        cells, requested = state["cells"][rows], state["requested_windows"][rows]
        max_ride = state["max_ride_minutes"][rows]
        route_keys = rng.spawn(keys, ROUTES_CHILD)
        baseline = RouteCosts(len(keys), self.population, self.settings)
        costs = np.zeros((len(keys), customers + 1))
        riders = self.population.riders[state["trip_id"][rows]]
        for number in range(customers):
            baseline.riders[:] = riders[:, number]
            costs[:, number + 1] = baseline.add(cells[:, number], requested[:, number], max_ride[:, number], route_keys)
        self.baseline_seconds += baseline.seconds
        return costs

    def _episode_keys(self) -> Keys:
        """(envs,) RNG keys of the current days."""
        return rng.spawn(self.env_keys, self.episodes)

    def observe(self) -> None:
        """Write the current observations and action masks."""
        state, observation = self.true_state, self.out.observation
        self._write_observation(observation)
        at = (np.arange(self.num_envs), state["num_booked"])
        assert self.out.mask is not None
        self.out.mask[:] = state["allowed"][at]
        self._apply_beliefs(at)
        if not self.settings.cost_hint and self.offer_features is None:
            return
        likely: BoolArray | None = None
        keys: Keys | None = None
        if self.offer_features is not None:
            keys = rng.spawn(self._episode_keys(), ROUTES_CHILD)
            likely = self._likely_offers(at, observation[ACCEPTANCE_HINT])
            observation[SHIFT_COST][:] = self.settings.effective_shift_penalty * self.offers.total_minutes
        windows = self.offers.windows_of_all(state["requested_windows"][at])
        self.route_costs.riders[:] = self.population.riders[state["trip_id"][at]]
        max_ride = state["max_ride_minutes"][at]
        added = self.route_costs.insertion_costs(state["cells"][at], windows, max_ride, likely, keys)
        relative = CandidateCosts(*(cost - cost[:, self.offers.no_change, None] for cost in added))
        if self.settings.cost_hint:
            observation[COST_HINT][:] = relative.insertion
        if self.offer_features is not None and likely is not None:
            self.offer_features.write(observation[OFFERS], observation[CONTEXT], state, likely, relative)

    def _apply_beliefs(self, at: tuple[IntArray, IntArray]) -> None:
        """Restrict the masks and write the hints that depend on beliefs."""
        settings, state, observation = self.settings, self.true_state, self.out.observation
        if settings.mask_mode == "none" and ACCEPTANCE_HINT not in observation:
            return
        customers = state["customer_id"][at]
        probabilities = self._accept_probabilities(at)
        uniforms = mask_uniforms(self._episode_keys(), at[1], MASKS_CHILD)
        assert self.out.mask is not None
        self.out.mask &= self.beliefs.masks(
            settings.mask_mode, settings.mask_threshold, customers, probabilities, state["accepts"][at], uniforms
        )
        if ACCEPTANCE_HINT in observation:
            observation[ACCEPTANCE_HINT][:] = probabilities
        if settings.mask_mode == "soft":
            observation[LOGIT_BIAS][:] = self.beliefs.logit_bias(settings.mask_strength, probabilities, uniforms)

    def _likely_offers(self, at: tuple[IntArray, IntArray], probabilities: Array) -> BoolArray:
        """(envs, offers) offers to the current customers that are worth an estimate, no change among them."""
        return self.offers.with_no_change(self.true_state["allowed"][at] & (probabilities >= MIN_LIKELY_PROBABILITY))

    def _accept_probabilities(self, at: tuple[IntArray, IntArray]) -> Array:
        """(envs, offers) believed acceptance probabilities of the current customers."""
        state = self.true_state
        customers, trips = state["customer_id"][at], state["trip_id"][at]
        return self.beliefs.accept_probabilities(customers, self.population.trips.purpose[trips], trips)

    def _write_observation(self, observation: Arrays) -> None:
        write_observation(
            self.settings.observation,
            observation,
            self.true_state,
            self.population,
            self.beliefs.customers,
            self.route_costs.schedule_summary(),
        )
        if REMAINING in observation:
            write_remaining(observation[REMAINING], self.true_state, self.population)
