"""Other offers than the sixteen: sizes and directions as settings, followed by every part."""

import tomllib
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import tomli_w
from numpy.testing import assert_allclose, assert_array_equal

import hundredfold
from hundredfold.core.errors import CheckpointError, SettingsError, ShapeError
from hundredfold.envs.dvrp.acceptance.bayes import bayesian_type_model
from hundredfold.envs.dvrp.acceptance.embedding import EmbeddingTypeModel
from hundredfold.envs.dvrp.acceptance.model import (
    ResponseBuffer,
    accept_likelihood,
    guessed_prior,
    prior_for,
    tolerance_survival,
)
from hundredfold.envs.dvrp.belief_warmup import WarmUpSettings, warm_up
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.env import OFFER_COSTS, Dvrp
from hundredfold.envs.dvrp.evaluation import DayScorer, simulate_days
from hundredfold.envs.dvrp.policies import POLICIES, PolicyOptions
from hundredfold.envs.dvrp.population import FLEXIBLE_SIDES
from hundredfold.envs.dvrp.report_data import record_report_data
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES
from hundredfold.training.build import load_belief_model
from hundredfold.training.run_folder import RunFolder

WIDE = DvrpSettings(
    offer_minutes=(0, 15, 45), offer_directions="both", num_customers=6, num_vehicles=3, lns_iterations=0, city="hubs"
)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"offer_minutes": ()}, "at least two sizes that ascend from 0"),
        ({"offer_minutes": (0,)}, "at least two sizes that ascend from 0"),
        ({"offer_minutes": (10, 20)}, "such as 0,10,20,30, got '10,20'"),
        ({"offer_minutes": (0, 20, 10)}, "ascend from 0"),
        ({"offer_minutes": (0, 10, 10)}, "ascend from 0"),
        ({"offer_minutes": (0, 90)}, "offer_minutes must be at least 0 and at most 60"),
        ({"offer_minutes": tuple(range(0, 60, 5))}, "makes 144 offers; at most 128"),
        ({"offer_minutes": tuple(range(0, 61, 7)), "offer_directions": "both"}, "makes 153 offers"),
        ({"offer_directions": "inward"}, "offer_directions has no 'inward'"),
        (
            {"offer_directions": "both", "trips": "t", "travel_times": "m", "recorded_responses": "r"},
            "offer_directions=both needs tolerances",
        ),
    ],
)
def test_offers_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(SettingsError, match=message):
        DvrpSettings(**settings)


def test_the_default_is_the_sixteen_offers():
    assert DvrpSettings(offer_minutes=[0, 10, 20, 30]) == DvrpSettings()
    assert population_for(DvrpSettings()).offers.num_offers == 16
    assert population_for(WIDE).offers.num_offers == 9 + 6


def test_larger_offers_meet_the_same_customers_who_tolerate_no_less():
    usual, wide = (population_for(settings) for settings in (DvrpSettings(), DvrpSettings(offer_minutes=(0, 30, 60))))
    assert_array_equal(usual.trips.windows, wide.trips.windows)
    assert_array_equal(usual.trips.tolerance, np.minimum(wide.trips.tolerance, 30.0))
    assert 0.0 < (wide.trips.tolerance > 30.0).mean() < 0.2
    strict = population_for(DvrpSettings(offer_minutes=(0, 60), tolerances="types"))
    types = np.repeat(strict.customers.types, strict.customers.num_trips)
    assert_array_equal(strict.trips.tolerance, np.where(FLEXIBLE_SIDES[types], 60.0, 0.0))


def test_an_episode_books_the_shifted_windows_of_accepted_offers():
    env = Dvrp(np.arange(40), replace(WIDE, unserved="penalty"))
    out, offers, rng = env.reset(3), env.offers, np.random.default_rng(0)
    kinds = set()
    for number in range(WIDE.num_customers - 1):
        requested = env.true_state["requested_windows"][:, number].copy()
        tolerance = env.true_state["tolerance"][:, number].copy()
        assert out.mask[:, offers.no_change].all()
        actions = np.where(out.mask, rng.random(out.mask.shape), -1.0).argmax(axis=1)
        out = env.step(actions)
        accepted = (np.abs(offers.minutes[actions]) <= tolerance).all(axis=1)
        assert_array_equal(out.info["accepted"], accepted)
        expected = requested + (np.where(accepted, 1, 0)[:, None] * offers.minutes[actions] * (-1, 1))[..., None]
        assert_array_equal(env.true_state["booked_windows"][:, number], expected)
        assert_array_equal(out.info["shift_minutes"], accepted * np.abs(offers.minutes[actions]).sum(axis=1))
        kinds |= {tuple(np.sign(pair)) for pair in offers.minutes[actions[accepted]].tolist()}
    assert {(1, 1), (-1, 1), (1, -1), (0, 0)} <= kinds


def test_the_prior_knows_how_often_each_size_is_tolerated():
    settings = DvrpSettings(offer_minutes=(0, 7, 15, 35), population_size=400)
    population = population_for(settings)
    types = np.repeat(population.customers.types, population.customers.num_trips)
    survival = tolerance_survival(settings)
    for flexible in (0, 1):
        rows = (FLEXIBLE_SIDES[types, 0] == flexible) & (population.trips.purpose == PURPOSE_NAMES.index("recreation"))
        found = [(population.trips.tolerance[rows, 0] >= size).mean() for size in settings.offer_minutes]
        assert_allclose(survival[flexible, 0, PURPOSE_NAMES.index("recreation")], found, atol=0.03)


def test_a_guess_about_unknown_customers_falls_with_the_size_of_the_offer():
    offers = DvrpSettings(offer_minutes=(0, 5, 30, 60)).offer_table
    rates = guessed_prior(2, offers=offers).accept_given_type
    assert rates.shape == (4, 2, 16)
    later = rates[:, 0, offers.outward[-1]]
    assert (np.diff(later, axis=1) < 0.0).all()


def test_acceptance_depends_on_minutes_and_not_on_the_direction():
    offers = WIDE.offer_table
    likelihood = accept_likelihood(0.1, offers)
    assert likelihood.shape == (15, 9)
    for earlier, later in ((15, -15), (-15, 45)):
        assert_array_equal(likelihood[offers.find(earlier, later)], likelihood[offers.find(abs(earlier), abs(later))])


@pytest.fixture(scope="module")
def model():
    population = population_for(WIDE)
    fitted = bayesian_type_model(population, prior_for(WIDE))
    responses = ResponseBuffer(offers=population.offers)
    warm_up("thompson", WIDE, fitted, responses, WarmUpSettings(warm_up_days=60), seed=1)
    assert (responses.rows().offer != population.offers.no_change).all()
    return fitted


def test_the_model_learns_the_tolerances_behind_the_responses(model):
    population = population_for(WIDE)
    known = np.isfinite(model.trip_accept_rates[:, 0])
    assert known.sum() > 100
    believed = model.trip_accept_rates[known] >= 0.5
    assert (believed == population.accepts[known]).mean() > 0.8


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_makes_these_offers(model, name):
    days, population = simulate_days(name, WIDE, 12, 5, options=PolicyOptions(beliefs=model))
    offers = population.offers
    assert (days.made.sum() > 0) == (name != "none")
    scores = DayScorer().scores(days, population, WIDE)
    assert not scores.failed.any()
    moved = np.abs(days.booked_windows - days.requested_windows)[..., 0].sum(axis=2)
    assert_array_equal(moved, days.shift_minutes)
    if name in ("privileged_largest", "privileged_greedy", "hindsight"):
        assert days.accepted[days.made].all()
    if name == "hindsight":
        pytest.importorskip("ortools")
        assert (offers.minutes[days.offers].min(axis=2) < 0).any(), "moves some trips in one direction"
        assert DayScorer().upper_bound(days, population, WIDE)["mean"] >= scores.improvement_pct.mean() > 0.0


def test_futures_estimate_every_offer():
    env = Dvrp(np.arange(4), replace(WIDE, observation="offers", future_samples=2))
    out = env.reset(2)
    assert out.observation["offers"].shape[1] == 15
    assert_array_equal(out.observation["offers"][0, :, 4:6], (env.offers.minutes / 10.0).astype(np.float32))
    env.step(np.full(4, env.offers.no_change))
    costs = out.info[OFFER_COSTS]
    assert costs.shape == (4, 15)
    assert_array_equal(costs[:, env.offers.no_change], 0.0)


def test_beliefs_about_other_offers_are_refused():
    env = Dvrp(np.arange(2), WIDE)
    with pytest.raises(ShapeError, match=r"expected \(4, 10, 15\).*one column per offer"):
        env.set_shared_params({"accept_given_type": np.ones((4, 10, 16), np.float32)})


def test_the_embedding_model_learns_from_shifts_in_both_directions():
    offers = WIDE.offer_table
    responses = ResponseBuffer(offers=offers)
    moves = np.array([offers.find(15, 0), offers.find(-15, 15), offers.find(15, -15), offers.find(0, 45)])
    for customer in range(4):
        accepted = np.full(4, customer % 2 == 0)
        responses.add(np.full(4, customer), np.zeros(4, int), np.zeros(4, int), moves, accepted)
    fitted = EmbeddingTypeModel(4, 10, seed=0, epochs=60, offers=offers)
    fitted.refit(responses.rows())
    flexible = fitted.type_probabilities(np.arange(4))[:, 3]
    assert flexible[::2].min() > flexible[1::2].max()


def test_a_report_lists_these_offers(model):
    shown = record_report_data(lambda batch: np.full(len(batch), 2), WIDE, days=2, baselines=("hindsight",))
    offers = WIDE.offer_table
    assert shown["offers"] == offers.minutes.astype(int).tolist()
    assert np.array(shown["responses"]["by_type"]["made"]).shape == (4, 15)
    assert shown["day"]["calls"][0]["offer"] == [45, 45]


def test_gymnasium_env_takes_the_settings():
    env = gymnasium.make("hundredfold/DVRP-v0", offer_minutes=(0, 60), num_customers=4)
    assert env.action_space.n == 4
    env.reset(seed=1)
    env.step(3)
    env.close()


def test_a_run_keeps_its_offers_and_an_older_one_has_the_sixteen(tmp_path):
    small = {"epochs": 2, "num_envs": 4, "num_customers": 4, "future_samples": 2, "hidden_sizes": (8,)}
    run = hundredfold.train(
        "dvrp",
        save_dir=tmp_path,
        report=False,
        eval_episodes=2,
        offer_minutes=(0, 20, 60),
        offer_directions="both",
        vehicle_cost=15.0,
        **small,
    )
    file = run.path / "settings.toml"
    assert "offer_minutes = [\n    0,\n    20,\n    60,\n]" in file.read_text()
    assert hundredfold.load(run.path).spec.action_nvec == (15,)
    with pytest.raises(SettingsError, match=r"env_settings\.offer_minutes cannot change"):
        hundredfold.train(resume=run.path, offer_minutes=(0, 10), epochs=3)
    # Written before there was a choice of offers.
    table = tomllib.loads(file.read_text())
    del table["env_settings"]["offer_minutes"], table["env_settings"]["offer_directions"]
    file.write_text(tomli_w.dumps(table))
    assert RunFolder.open(run.path).settings().env_settings.offer_minutes == (0, 10, 20, 30)
    with pytest.raises(CheckpointError, match="the settings it was made with"):
        load_belief_model(RunFolder.open(run.path), "last")


def test_a_vehicle_costs_its_fixed_minutes():
    # Without improvement a booking costs what its insertion was quoted at.
    settings = replace(WIDE, vehicle_cost=40.0, improve_passes=0, unserved="penalty")
    env, free = (Dvrp(np.arange(24), replace(settings, vehicle_cost=cost)) for cost in (40.0, 0.0))
    state = env.reset(4).true_state
    free.reset(4)
    unchanged = np.full(24, env.offers.no_change)
    for number in range(settings.num_customers - 1):
        windows, max_ride = state["requested_windows"][:, number, None], state["max_ride_minutes"][:, number]
        quoted = env.route_costs.insertion_costs(state["cells"][:, number], windows, max_ride).insertion[:, 0]
        expected = state["cost"] + quoted
        env.step(unchanged)
        free.step(unchanged)
        routes = env.route_costs.routes
        assert_allclose(state["cost"], expected)
        assert_allclose(state["cost"], routes.driving_minutes + 40.0 * routes.vehicles_used)
    assert env.route_costs.vehicles_used.sum() < free.route_costs.vehicles_used.sum()


def test_customers_left_out_cost_no_vehicle_but_those_served_do():
    settings = replace(WIDE, num_vehicles=1, capacity=1, vehicle_cost=40.0, unserved="penalty")
    env = Dvrp(np.arange(24), settings)
    env.reset(4)
    for _ in range(settings.num_customers - 1):
        env.step(np.full(24, env.offers.no_change))
    left_out = env.route_costs.num_unserved
    assert left_out.any()
    driving = env.route_costs.routes.driving_minutes
    assert_allclose(env.true_state["cost"], driving + 40.0 + 200.0 * left_out)
