"""Report data of a dvrp run: policies, a median day, responses and belief metrics."""

import json
from dataclasses import replace

import numpy as np
import pytest

from helpers.offers import TOTAL_MINUTES
from hundredfold.envs.dvrp import heuristics
from hundredfold.envs.dvrp.acceptance.metrics import true_accept_rates
from hundredfold.envs.dvrp.day_record import matched_vehicles
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.env import OFFER_COSTS, SHIFT_COST
from hundredfold.envs.dvrp.evaluation import evaluate_policy, simulate_days
from hundredfold.envs.dvrp.offers import DEFAULT_OFFERS
from hundredfold.envs.dvrp.population import NUM_TYPES
from hundredfold.envs.dvrp.report_data import (
    CachedSolver,
    belief_record,
    median_row,
    quartiles,
    record_report_data,
    record_within,
)
from hundredfold.envs.dvrp.route_costs import day_problems
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings

SETTINGS = DvrpSettings(num_customers=6, num_vehicles=3, lns_iterations=2)
DAYS = 8
no_offer = heuristics.no_offer(DEFAULT_OFFERS)
always_largest = heuristics.always_largest(DEFAULT_OFFERS)
privileged_largest = heuristics.privileged_largest(DEFAULT_OFFERS)
HEADINGS = [
    *("traveler_id", "flexibility", "trip_purpose", "departure_location", "arrival_location"),
    *("departure_time_window", "arrival_time_window", "origin_h3", "destination_h3"),
    *("origin_gps", "destination_gps"),
]


def perfect_params(settings):
    """Parameters of an acceptance model that knows all types and rates."""
    population = population_for(settings)
    return {
        "type_probabilities": np.eye(NUM_TYPES)[population.customers.types],
        "response_counts": np.full(population.size, 40),
        "accept_given_type": true_accept_rates(population),
    }


@pytest.fixture(scope="module")
def report_data():
    return record_report_data(
        privileged_largest,
        SETTINGS,
        shared_params=perfect_params(SETTINGS),
        days=DAYS,
        baselines=("none", "random", "hindsight"),
    )


def test_report_data_survive_json(report_data):
    assert json.loads(json.dumps(report_data, allow_nan=False)) == report_data


def test_policies_are_scored_like_in_evaluation(report_data):
    rows = report_data["policies"]
    assert [(row["policy"], row["split"]) for row in rows] == [
        ("this run", "known"),
        ("this run", "unseen_trips"),
        ("this run", "unseen_customers"),
        ("none", "known"),
        ("random", "known"),
        ("hindsight", "known"),
    ]
    assert rows[:3] == evaluate_policy(privileged_largest, SETTINGS, num_days=DAYS, name="this run")
    assert rows[3] == evaluate_policy("none", SETTINGS, num_days=DAYS, splits=("known",))[0]


def test_a_run_that_takes_a_shift_penalty_is_a_curve():
    settings = replace(SETTINGS, observation="offers", shift_penalty=0.05, future_samples=1)
    observed = []

    def act(batch):
        """Large offers unless they are charged for."""
        penalty = batch.observation[SHIFT_COST].max() / TOTAL_MINUTES.max()
        observed.append(round(float(penalty), 4))
        assert OFFER_COSTS not in batch.info, "estimates of all offers are for training only"
        return no_offer(batch) if penalty > 0.07 else privileged_largest(batch)

    found = record_report_data(act, settings, days=2, baselines=("none", "greedy_expected", "privileged_largest"))
    assert set(observed) == {0.0, 0.02, 0.05, 0.1, 0.2}
    curve = {row["shift_penalty"]: row for row in found["trade_off"]}
    assert list(curve) == [0.0, 0.02, 0.05, 0.1, 0.2]
    assert curve[0.1]["shift_minutes"] == curve[0.1]["saved_minutes"] == 0.0
    # The run itself is the point at its own penalty.
    run = found["policies"][0]
    assert curve[0.05]["shift_minutes"] == run["shift_minutes"] > 0
    assert curve[0.05]["saved_minutes"] == pytest.approx(run["baseline_cost"] - run["cost"])


def test_heuristics_are_compared_with_the_run_on_the_same_days(report_data):
    """Only those that need neither training nor the customers' responses in advance."""
    (random,) = report_data["equal_shift"]
    by_name = {row["policy"]: row for row in report_data["policies"] if row["split"] == "known"}
    assert random["policy"] == "random"
    assert random["saved_minutes"] == pytest.approx(by_name["random"]["baseline_cost"] - by_name["random"]["cost"])
    assert random["ci_low"] <= random["mean"] <= random["ci_high"]
    # A policy without a shift penalty is one point, reached in proportion by offers on some days only.
    (point,) = report_data["trade_off"]
    share = random["shift_minutes"] / by_name["this run"]["shift_minutes"]
    assert 0 < share < 1
    assert random["mean"] == pytest.approx(random["saved_minutes"] - share * point["saved_minutes"])


def test_a_heuristic_that_shifts_more_is_compared_with_the_run_as_it_is():
    settings = replace(SETTINGS, observation="offers", shift_penalty=0.05)

    def act(batch):
        """Shifts most at the penalty of 0, which the run was not trained with."""
        return privileged_largest(batch) if batch.observation[SHIFT_COST].max() == 0 else no_offer(batch)

    found = record_report_data(act, settings, days=2, baselines=("random",))
    (random,) = found["equal_shift"]
    assert random["shift_minutes"] > random["baseline_shift_minutes"] == 0.0
    assert random["mean"] == random["saved_minutes"]


def test_lookahead_uses_the_acceptance_model_of_the_run():
    params = perfect_params(SETTINGS)
    known = record_report_data(no_offer, SETTINGS, shared_params=params, days=2, baselines=("lookahead",))
    params["accept_given_type"] = np.zeros_like(params["accept_given_type"])
    hopeless = record_report_data(no_offer, SETTINGS, shared_params=params, days=2, baselines=("lookahead",))
    assert known["policies"][-1]["offers_made"] > 0
    assert hopeless["policies"][-1]["offers_made"] == 0
    assert [row["policy"] for row in known["equal_shift"]] == ["lookahead"]


def test_the_day_shown_lies_within_the_quartiles(report_data):
    day = report_data["day"]
    before, after = (day[plan]["driving_minutes"] for plan in ("before", "after"))
    assert day["improvement_pct"] == pytest.approx(100 * (before - after) / before, abs=1e-2)
    low, high = day["quartiles_pct"]
    assert low <= day["improvement_pct"] <= high


@pytest.mark.parametrize(("plan", "windows"), [("before", "requested"), ("after", "booked")])
def test_both_solutions_serve_all_calls_within_their_windows(report_data, plan, windows):
    day = report_data["day"]
    routes = day[plan]["routes"]
    stops = [stop for route in routes for stop in route["stops"]]
    assert sorted(stops) == list(range(1, 2 * SETTINGS.num_customers + 1))
    assert len({route["vehicle"] for route in routes}) == len(routes) <= SETTINGS.num_vehicles
    for route in routes:
        times = [route["start_minutes"], *route["stop_minutes"], route["end_minutes"]]
        assert times == sorted(times)
        for stop, minute in zip(route["stops"], route["stop_minutes"], strict=True):
            early, late = day["calls"][(stop - 1) // 2][windows][(stop - 1) % 2]
            assert early - 0.01 <= minute <= late + 0.01


def test_windows_move_by_the_accepted_offer_only(report_data):
    responses = {call["response"] for call in report_data["day"]["calls"]}
    assert responses <= {"accepted", "no offer"}
    for call in report_data["day"]["calls"]:
        earlier, later = call["offer"]
        assert call["booked"][0] == [minute - earlier for minute in call["requested"][0]]
        assert call["booked"][1] == [minute + later for minute in call["requested"][1]]


def test_refused_offers_leave_windows_unchanged():
    shown = record_report_data(always_largest, SETTINGS, days=2, baselines=("none", "belief_largest"))
    assert shown["beliefs"] is None
    assert shown["policies"][-1]["policy"] == "none"
    refused = [call for call in shown["day"]["calls"] if call["response"] == "refused"]
    assert refused
    assert all(call["requested"] == call["booked"] for call in refused)


def test_the_policy_sees_beliefs_and_heuristics_do_not():
    settings = DvrpSettings(num_customers=6, lns_iterations=0, tolerances="types", mask_mode="threshold")
    found = record_report_data(
        always_largest,
        settings,
        shared_params=perfect_params(settings),
        days=DAYS,
        baselines=("always_largest", "privileged_largest", "belief_largest"),
    )
    run, run_on_new_trips, run_on_new_people, rule, knowing, believing = found["policies"]
    for row in (run, run_on_new_trips, run_on_new_people):
        assert row["offers_accepted"] == row["offers_made"] > 0
    assert rule["offers_accepted"] < rule["offers_made"]
    # Masked by true beliefs, the largest open offer is the largest acceptable one.
    assert run["cost"] == knowing["cost"] == believing["cost"]


def test_every_call_of_every_day_is_counted(report_data):
    by_type, by_purpose = (report_data["responses"][key] for key in ("by_type", "by_purpose"))
    calls = DAYS * SETTINGS.num_customers
    assert np.sum(by_type["made"]) == np.sum(by_purpose["made"]) == calls
    assert np.shape(by_type["made"]) == (NUM_TYPES, 16)
    assert np.shape(by_purpose["made"]) == (len(PURPOSE_NAMES), 16)
    # The privileged policy offers only what is accepted.
    assert by_type["made"] == by_type["accepted"]


def test_perfect_beliefs_have_perfect_accuracy(report_data):
    beliefs = report_data["beliefs"]
    assert beliefs["accuracy"] == 1.0
    assert np.sum(beliefs["confusion"]) == beliefs["customers"] == SETTINGS.num_known_customers
    assert np.trace(beliefs["confusion"]) == beliefs["customers"]
    found = beliefs["by_responses"]["accuracy"]
    assert np.abs(np.subtract(found["learned"], found["true"])).max() < 0.05


def test_strict_types_are_known_after_few_responses_and_calibration_is_exact():
    settings = DvrpSettings(num_customers=30, lns_iterations=0, tolerances="types")
    simulated, population = simulate_days("random", settings, 24, 3)
    found = belief_record(simulated, simulated, population, perfect_params(settings))
    accuracy = found["by_responses"]["accuracy"]["learned"]
    assert accuracy[0] < 0.7
    assert accuracy[-1] > 0.95
    possible = found["calibration"]["possible"]
    assert possible["believed"] == possible["accepted"] == [0.0, 1.0]
    assert possible["brier_score"] == 0.0


def test_uniform_beliefs_do_not_learn_from_responses():
    population = population_for(SETTINGS)
    simulated, _ = simulate_days("random", SETTINGS, 60, 3)
    nothing = {
        "type_probabilities": np.full((population.size, NUM_TYPES), 0.25),
        "response_counts": np.zeros(population.size),
        "accept_given_type": np.full((NUM_TYPES, len(PURPOSE_NAMES), 16), 0.5),
    }
    found = belief_record(simulated, simulated, population, nothing)
    accuracy = found["by_responses"]["accuracy"]
    assert len(set(accuracy["learned"])) == 1
    assert accuracy["true"][-1] > accuracy["learned"][-1]
    assert found["calibration"]["possible"]["believed"] == [0.5]
    assert found["calibration"]["possible"]["brier_score"] == 0.25


def test_without_offers_there_are_no_responses_to_measure():
    simulated, population = simulate_days(no_offer, SETTINGS, 2, 3)
    found = belief_record(simulated, simulated, population, perfect_params(SETTINGS))
    assert found["by_responses"]["responses"] == []
    assert found["calibration"]["made"]["count"] == []


def test_a_day_with_unserved_customers_is_not_shown():
    settings = DvrpSettings(num_customers=24, num_vehicles=1, capacity=1, lns_iterations=0)
    shown = record_report_data(no_offer, settings, days=2, baselines=())
    assert shown["policies"][0]["failed"] == 2
    assert shown["day"] is None


@pytest.mark.parametrize("days", [1, 2, 3, 8])
def test_the_median_lies_between_the_quartiles_of_few_days(days):
    values = np.arange(days) ** 2.0
    low, high = quartiles(values)
    assert low <= values[median_row(values, values >= 0.0)] <= high
    assert np.mean((values >= low) & (values <= high)) >= 0.5


def test_median_row_is_the_lower_median():
    values = np.array([5.0, 1.0, 9.0, 3.0, 100.0])
    assert median_row(values, np.array([True, True, True, True, False])) == 3


def test_vehicles_that_share_most_customers_are_matched():
    before = np.array([0, 0, 0, 1, 1, 2])
    after = np.array([2, 2, 2, 0, 0, 1])
    assert matched_vehicles(before, after, 4).tolist() == [1, 2, 0, 3]


def test_the_same_problems_are_solved_once():
    simulated, population = simulate_days("random", SETTINGS, 3, 1)
    problems = day_problems(
        simulated.cells, simulated.requested_windows, simulated.max_ride_minutes, population, SETTINGS
    )
    closing = CachedSolver(LNSOracle(LNSSettings()))
    plans = closing.solve(problems)
    assert closing.solve(problems.rows(slice(None))) is plans
    assert closing.solve(problems.rows(slice(2))) is not plans


def test_coordinates_of_own_data_come_from_the_trips_file(tmp_path):
    rows = [
        [
            *(str(customer), "inflexible for any schedule changes", "work", "home", "there"),
            *("08:00-08:30", "08:20-08:50", "a", "b", "[37.75, -122.475]", "[37.75, -122.5]"),
        ]
        for customer in range(1, 5)
    ]
    lines = [",".join(f'"{cell}"' for cell in row) for row in [HEADINGS, *rows]]
    (tmp_path / "trips.csv").write_text("\n".join(lines))
    (tmp_path / "matrix.csv").write_text(",a,b,c\na,0,300,60\nb,300,0,60\nc,60,60,0\n")
    settings = DvrpSettings(
        num_customers=4,
        lns_iterations=0,
        trips=str(tmp_path / "trips.csv"),
        travel_times=str(tmp_path / "matrix.csv"),
        depot="a",
    )
    shown = record_report_data(no_offer, settings, days=2, baselines=("none",))
    city = shown["day"]["city"]
    assert (city["unit"], city["names"], city["depot"]) == ("degrees", ["a", "b", "c"], 0)
    assert city["points"] == [[37.75, -122.475], [37.75, -122.5], None]
    # There are no unseen customers, so only the known split is evaluated.
    assert [row["split"] for row in shown["policies"]] == ["known", "known"]


@pytest.mark.parametrize(
    ("day_seconds", "limit", "simulated"),
    [(0.1, 60, [2, 8, 64]), (1.0, 60, [2, 8, 50]), (5.0, 60, [2, 8]), (40.0, 60, [2])],
    ids=["all", "fewer", "the trial", "the warm-up"],
)
def test_report_days_are_bounded_by_time(day_seconds, limit, simulated):
    """The simulation of all days is not started if the first ones show that it would take too long."""
    now, calls = 0.0, []

    def record(days, in_time):
        nonlocal now
        now += days * day_seconds
        calls.append(days)
        return {"days": days}

    found = record_within(limit, record, 64, clock=lambda: now)
    assert calls == simulated
    assert found == {"days": simulated[-1], "planned_days": 64}
    assert now <= limit or calls == [2]


def test_without_time_for_the_first_days_there_are_no_report_data():
    """The simulation of the trained policy itself stops in the middle of a day."""
    steps = iter(range(100))

    def record(days, in_time):
        return record_report_data(always_largest, SETTINGS, days=days, in_time=in_time)

    assert record_within(5, record, 64, clock=lambda: float(next(steps))) is None
    assert next(steps) < 10


def test_few_report_days_need_no_trial():
    calls = []
    record_within(60, lambda days, in_time: calls.append(days) or {"days": days}, 6, clock=lambda: 0.0)
    assert calls == [2, 6]


def time_left(*answers):
    """Enough time for the calls of the first day, then as given."""
    remaining = iter([True] * SETTINGS.num_customers + list(answers))
    return lambda: next(remaining)


def test_without_time_the_remaining_baselines_are_left_out():
    in_time = time_left(False, False, True, False)  # two splits, then the baselines
    found = record_report_data(always_largest, SETTINGS, days=2, baselines=("none", "random"), in_time=in_time)
    assert [row["policy"] for row in found["policies"]] == ["this run", "none"]
    assert found["left_out"] == ["random"]


def test_without_time_the_remaining_shift_penalties_are_left_out():
    settings = replace(SETTINGS, observation="offers", shift_penalty=0.05)
    in_time = time_left(False, False, True, False, False, False)  # two splits, then four penalties
    found = record_report_data(no_offer, settings, days=2, baselines=(), in_time=in_time)
    assert [row["shift_penalty"] for row in found["trade_off"]] == [0.0, 0.05]
    assert found["left_out"] == [f"this run at shift penalty {penalty}" for penalty in (0.02, 0.1, 0.2)]
