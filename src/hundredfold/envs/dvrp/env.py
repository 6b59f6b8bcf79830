"""A day of dial-a-ride bookings as a batch env.

Customers call one after another; each hears one of sixteen offers, answers, and is booked. After
every booking the whole day's book is priced by a kept plan. All calls come before any vehicle
moves. This module puts the parts together: `days` draws who calls, `offers` moves windows,
`beliefs` turns what an acceptance model says into masks, `pricing` keeps the plans, `rewards` pays
and `view` shows.

What a step pays, in driving minutes saved, less the price of customers' patience.

Over a whole day `marginal` sums to what the day saved against its baseline, and `step` to minus
what the day cost; both less patience. `percent` and `counterfactual` have no such meaning and are
kept for study.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import (
    Arrays,
    ArraySpec,
    BoolArray,
    EnvSpec,
    FloatArray,
    IntArray,
    State,
    StepBatch,
    with_prefix,
)
from hundredfold.core.protocols import SharedParams
from hundredfold.core.rng import Keys
from hundredfold.envs.batch_env import ArrayBatchEnv
from hundredfold.envs.dvrp.belief_masks import Beliefs, mask_luck
from hundredfold.envs.dvrp.demand import (
    MASKS_CHILD,
    PLANS_CHILD,
    DemandSampler,
    answers,
    population_for,
    true_state_specs,
)
from hundredfold.envs.dvrp.observation import observation_specs, write_observation
from hundredfold.envs.dvrp.offers import (
    NO_CHANGE,
    NUM_OFFERS,
    TOTAL_MINUTES,
    shifted_windows,
    windows_of_all_offers,
)
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.route_costs import RouteCosts
from hundredfold.envs.dvrp.settings import DvrpSettings, Reward

FAILURE_REWARD: Final = -5000.0


class StepCosts(NamedTuple):
    """Prices around one booking, each (envs,) in minutes."""

    before: FloatArray
    after: FloatArray
    baseline_before: FloatArray
    baseline_after: FloatArray
    # The book with this request as asked; equal to `after` unless the reward needs it.
    as_asked: FloatArray


def step_rewards(kind: Reward, prices: StepCosts, patience_cost: FloatArray) -> FloatArray:
    """(envs,) rewards of one step."""
    if kind == "marginal":
        baseline = prices.baseline_after - prices.baseline_before
        return np.asarray(baseline - (prices.after - prices.before) - patience_cost, np.float64)
    if kind == "step":
        return np.asarray(prices.before - prices.after - patience_cost, np.float64)
    if kind == "percent":
        saved = improvement_pct(prices.baseline_after, prices.after)
        return np.asarray(saved - patience_cost, np.float64)
    return np.asarray(prices.as_asked - prices.after - patience_cost, np.float64)


def improvement_pct(baseline: FloatArray, price: FloatArray) -> FloatArray:
    """How far prices lie below their baseline, in percent; 0 where there is nothing to drive."""
    with np.errstate(divide="ignore", invalid="ignore"):
        saved = 100.0 * (baseline - price) / baseline
    return np.where(baseline > 0.0, saved, 0.0)


FAILED_DAY_PCT: Final = -100.0

INFO: Final = {
    "cost": ArraySpec((), "float64"),
    "baseline_cost": ArraySpec((), "float64"),
    "customer_id": ArraySpec((), "int64"),
    "purpose": ArraySpec((), "int64"),
    "offer": ArraySpec((), "int64", 0, NUM_OFFERS - 1),
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
    "accepted_rate": ArraySpec((), "float64"),
    "shift_minutes_total": ArraySpec((), "float64"),
    "left_out": ArraySpec((), "int64"),
    "failed": ArraySpec((), "bool"),
}


PRICE_HINT, ACCEPT_HINT, LEANING = "cost_hint", "acceptance_hint", "leaning"


def offer_columns(settings: DvrpSettings) -> tuple[str, ...]:
    """Observations with one number per offer that these settings ask for."""
    wanted = {
        PRICE_HINT: settings.cost_hint,
        ACCEPT_HINT: settings.acceptance_hint,
        LEANING: settings.mask_mode == "soft",
    }
    return tuple(name for name, is_wanted in wanted.items() if is_wanted)


def dvrp_spec(settings: DvrpSettings, population: Population) -> EnvSpec:
    """The arrays of the env."""
    customers = settings.num_customers
    cells = population.city.num_cells
    return EnvSpec(
        name="dvrp",
        observation=observation_specs(
            settings.observation, customers, cells, offer_columns(settings)
        ),
        action_nvec=(NUM_OFFERS,),
        has_mask=True,
        episode_steps=customers,
        info=INFO,
        episode_info=EPISODE_INFO,
        true_state=true_state_specs(customers),
        logit_bias=LEANING if settings.mask_mode == "soft" else None,
    )


class Dvrp(ArrayBatchEnv):
    """Offer each caller a change of plans, so that the day costs few driving minutes.

    A step is one call. A refused offer books the trip as asked; nobody is turned away. The day ends
    `terminated` after the last call, or earlier when `unserved="fail"` and somebody cannot be
    served. `out.true_state` holds the whole day, hidden things and future callers included.
    """

    def __init__(self, env_ids: IntArray, settings: DvrpSettings | None = None) -> None:
        self.settings = settings or DvrpSettings()
        self.population = population_for(self.settings)
        super().__init__(dvrp_spec(self.settings, self.population), env_ids)
        self.draw = DemandSampler(self.population, self.settings.split, self.settings.num_customers)
        self.plans = RouteCosts(self.num_envs, self.population, self.settings)
        self.baseline_seconds = 0.0
        self.beliefs = Beliefs(self.num_envs, self.population)

    @property
    def oracle_seconds(self) -> float:
        """Seconds spent on prices so far, baselines included."""
        return self.plans.seconds + self.baseline_seconds

    def timings(self) -> dict[str, float]:
        return {"oracle": self.oracle_seconds}

    @property
    def true_state(self) -> Arrays:
        """The arrays of every env's day; see `days.true_state_specs`."""
        return self.out.true_state

    def start(self) -> None:
        self._begin_days(np.ones(self.num_envs, bool))
        self._show()

    def step(self, actions: IntArray) -> StepBatch:
        day, out, settings = self.true_state, self.out, self.settings
        at = (np.arange(self.num_envs), day["num_booked"].copy())
        accepted = answers(day, at, actions, self._episode_keys(), settings.response_noise)
        held = np.where(accepted, actions, NO_CHANGE)
        shift = TOTAL_MINUTES[held]
        prices = self._book(at, held)

        day["offers"][at] = actions
        day["accepted"][at] = accepted
        failed = (self.plans.left_out > 0) & (settings.unserved == "fail")
        out.reward[:] = step_rewards(settings.reward, prices, settings.patience * shift)
        out.reward[failed] = FAILURE_REWARD
        out.terminated[:] = failed | (day["num_booked"] == settings.num_customers)
        out.truncated[:] = False

        info = out.info
        info["cost"][:] = prices.after
        info["baseline_cost"][:] = prices.baseline_after
        info["customer_id"][:] = day["customer_id"][at]
        info["purpose"][:] = self.population.trips.purpose[day["trip_id"][at]]
        info["offer"][:] = actions
        info["offered"][:] = actions != NO_CHANGE
        info["accepted"][:] = accepted
        info["shift_minutes"][:] = shift
        info["failed"][:] = failed
        if out.terminated.any():
            self._finish_days(out.terminated, failed)
        self._show()
        return out

    def set_shared_params(self, shared_params: SharedParams) -> None:
        """Beliefs of an acceptance model; they count from the next step on."""
        self.beliefs.set_shared_params(shared_params)

    def state_arrays(self) -> Arrays:
        return {
            **with_prefix("beliefs", self.beliefs.arrays()),
            **with_prefix("plans", self.plans.arrays()),
        }

    def restore(self, state: State) -> StepBatch:
        super().restore(state)
        self.plans.refresh()
        return self.out

    def _book(self, at: tuple[IntArray, IntArray], held: IntArray) -> StepCosts:
        """Put everybody's request into the plans, moved by the offer that holds."""
        day = self.true_state
        cells, asked = day["cells"][at], day["requested_windows"][at]
        ride = day["max_ride_minutes"][at]
        keys = rng.spawn(self._episode_keys(), PLANS_CHILD)
        before = day["cost"].copy()
        as_asked: FloatArray | None = None
        if self.settings.reward == "counterfactual":
            as_asked = self.plans.price_with(cells, asked, ride, keys)
        windows = shifted_windows(asked, held)
        after = self.plans.add(cells, windows, ride, keys)
        day["booked_windows"][at] = windows
        day["cost"][:] = after
        day["num_booked"] += 1
        return StepCosts(
            before=before,
            after=after,
            baseline_before=day["baseline_cost"][at],
            baseline_after=day["baseline_cost"][at[0], at[1] + 1],
            as_asked=after if as_asked is None else as_asked,
        )

    def _finish_days(self, over: BoolArray, failed: BoolArray) -> None:
        """Tell what came of the days that are over, and begin new ones in their place."""
        day, told = self.true_state, self.out.episode_info
        cost = day["cost"]
        baseline = day["baseline_cost"][np.arange(self.num_envs), day["num_booked"]]
        made = day["offers"] != NO_CHANGE
        yes = made & day["accepted"]
        told["improvement_pct"][:] = improvement_pct(baseline, cost)
        told["improvement_pct"][failed] = FAILED_DAY_PCT
        told["improvement_minutes"][:] = baseline - cost
        told["cost"][:] = cost
        told["baseline_cost"][:] = baseline
        told["vehicles_used"][:] = self.plans.vehicles_used
        told["offers_made"][:] = made.sum(axis=1)
        told["offers_accepted"][:] = yes.sum(axis=1)
        told["accepted_rate"][:] = yes.sum(axis=1) / np.maximum(made.sum(axis=1), 1)
        told["shift_minutes_total"][:] = np.where(yes, TOTAL_MINUTES[day["offers"]], 0.0).sum(
            axis=1
        )
        told["left_out"][:] = self.plans.left_out
        told["failed"][:] = failed
        self._write_observation(self.out.final_observation)
        for name in offer_columns(self.settings):
            self.out.final_observation[name][:] = 0.0
        self.episodes[over] += 1
        self._begin_days(over)

    def _begin_days(self, rows: BoolArray) -> None:
        """Draw new days for these rows and price them as they were asked."""
        day = self.true_state
        keys = self._episode_keys()[rows]
        self.draw.write(day, rows, keys)
        self.plans.clear(rows)
        day["baseline_cost"][rows] = self._baseline_prices(rows, keys)

    def _baseline_prices(self, rows: BoolArray, keys: Keys) -> FloatArray:
        """(days, customers + 1) prices of these rows' days when nothing is offered.

        They are kept by the very process that keeps the agent's plans, on the same streams: where
        no offer is made, the two agree to the last bit.
        """
        day, customers = self.true_state, self.settings.num_customers
        cells, asked = day["cells"][rows], day["requested_windows"][rows]
        ride = day["max_ride_minutes"][rows]
        plan_keys = rng.spawn(keys, PLANS_CHILD)
        plans = RouteCosts(len(keys), self.population, self.settings)
        prices = np.zeros((len(keys), customers + 1))
        for call in range(customers):
            prices[:, call + 1] = plans.add(
                cells[:, call], asked[:, call], ride[:, call], plan_keys
            )
        self.baseline_seconds += plans.seconds
        return prices

    def _episode_keys(self) -> Keys:
        """(envs,) the stream of every env's current day."""
        return rng.spawn(self.env_keys, self.episodes)

    def _show(self) -> None:
        """Write what everybody sees and may do now."""
        day, seen = self.true_state, self.out.observation
        self._write_observation(seen)
        at = (np.arange(self.num_envs), day["num_booked"])
        assert self.out.mask is not None
        self.out.mask[:] = day["allowed"][at]
        self._apply_beliefs(at)
        if self.settings.cost_hint:
            windows = windows_of_all_offers(day["requested_windows"][at])
            added = self.plans.added_minutes(day["cells"][at], windows, day["max_ride_minutes"][at])
            seen[PRICE_HINT][:] = added - added[:, NO_CHANGE, None]

    def _apply_beliefs(self, at: tuple[IntArray, IntArray]) -> None:
        """Let what an acceptance model believes of the callers bear on mask and view."""
        settings, day, seen = self.settings, self.true_state, self.out.observation
        if settings.mask_mode == "none" and not settings.acceptance_hint:
            return
        people = day["customer_id"][at]
        purposes = self.population.trips.purpose[day["trip_id"][at]]
        chances = self.beliefs.accept_chances(people, purposes)
        luck = mask_luck(self._episode_keys(), at[1], MASKS_CHILD)
        assert self.out.mask is not None
        self.out.mask &= self.beliefs.masks(
            settings.mask_mode, settings.mask_threshold, people, chances, day["accepts"][at], luck
        )
        if settings.acceptance_hint:
            seen[ACCEPT_HINT][:] = chances
        if settings.mask_mode == "soft":
            seen[LEANING][:] = self.beliefs.leanings(settings.mask_strength, chances, luck)

    def _write_observation(self, seen: Arrays) -> None:
        write_observation(
            self.settings.observation,
            seen,
            self.true_state,
            self.population,
            self.beliefs.people,
            self.plans.glance(),
        )
