"""Report data of a dvrp run: policies, a median day, responses and belief metrics."""

import json

import numpy as np
import pytest

from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.evaluation import evaluate_policy, simulate_days
from hundredfold.envs.dvrp.policies import always_largest, no_offer, privileged_largest
from hundredfold.envs.dvrp.population import NUM_TYPES
from hundredfold.envs.dvrp.report_beliefs import belief_record, true_rates
from hundredfold.envs.dvrp.report_data import (
    RememberedPlans,
    matched_vehicles,
    median_row,
    record_report_data,
)
from hundredfold.envs.dvrp.route_costs import day_problems
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings

SETTINGS = DvrpSettings(num_customers=6, num_vehicles=3, lns_iterations=2)
DAYS = 8
HEADINGS = [
    *("traveler_id", "flexibility", "trip_purpose", "departure_location", "arrival_location"),
    *("departure_time_window", "arrival_time_window", "origin_h3", "destination_h3"),
    *("origin_gps", "destination_gps"),
]


def perfect_knowledge(settings):
    """What an acceptance model would tell that knows everybody."""
    population = population_for(settings)
    return {
        "type_probabilities": np.eye(NUM_TYPES)[population.customers.types],
        "response_counts": np.full(population.size, 40),
        "accept_given_type": true_rates(population),
    }


@pytest.fixture(scope="module")
def report_data():
    return record_report_data(
        privileged_largest,
        SETTINGS,
        shared_params=perfect_knowledge(SETTINGS),
        days=DAYS,
        rules=("none", "random", "hindsight"),
    )


def test_everything_comes_back_from_json_as_it_was(report_data):
    assert json.loads(json.dumps(report_data, allow_nan=False)) == report_data


def test_the_run_and_the_rules_are_judged_as_evaluation_does(report_data):
    rows = report_data["policies"]
    assert [(row["policy"], row["split"]) for row in rows] == [
        ("this run", "known"),
        ("this run", "unseen_trips"),
        ("this run", "unseen_customers"),
        ("none", "known"),
        ("random", "known"),
        ("hindsight", "known"),
    ]
    assert rows[:3] == evaluate_policy(privileged_largest, SETTINGS, days=DAYS, name="this run")
    assert rows[3] == evaluate_policy("none", SETTINGS, days=DAYS, splits=("known",))[0]


def test_the_day_shown_is_neither_the_best_nor_the_worst(report_data):
    day = report_data["day"]
    before, after = (day[plan]["driving_minutes"] for plan in ("before", "after"))
    assert day["improvement_pct"] == pytest.approx(100 * (before - after) / before, abs=1e-2)
    low, high = day["quartiles_pct"]
    assert low <= day["improvement_pct"] <= high


@pytest.mark.parametrize(("plan", "windows"), [("before", "asked"), ("after", "booked")])
def test_both_plans_serve_everybody_inside_the_windows(report_data, plan, windows):
    day = report_data["day"]
    routes = day[plan]["routes"]
    stops = [stop for route in routes for stop in route["stops"]]
    assert sorted(stops) == list(range(1, 2 * SETTINGS.num_customers + 1))
    assert len({route["vehicle"] for route in routes}) == len(routes) <= SETTINGS.num_vehicles
    for route in routes:
        times = [route["leaves"], *route["minutes"], route["returns"]]
        assert times == sorted(times)
        for stop, minute in zip(route["stops"], route["minutes"], strict=True):
            early, late = day["calls"][(stop - 1) // 2][windows][(stop - 1) % 2]
            assert early - 0.01 <= minute <= late + 0.01


def test_windows_move_by_what_was_accepted_and_not_otherwise(report_data):
    answers = {call["answer"] for call in report_data["day"]["calls"]}
    assert answers <= {"accepted", "no offer"}
    for call in report_data["day"]["calls"]:
        earlier, later = call["offer"]
        assert call["booked"][0] == [minute - earlier for minute in call["asked"][0]]
        assert call["booked"][1] == [minute + later for minute in call["asked"][1]]


def test_refusals_are_told_and_leave_windows_alone():
    shown = record_report_data(always_largest, SETTINGS, days=2, rules=("none", "belief_largest"))
    assert shown["acceptance_model"] is None
    # Nobody is there to be believed.
    assert shown["policies"][-1]["policy"] == "none"
    refused = [call for call in shown["day"]["calls"] if call["answer"] == "refused"]
    assert refused
    assert all(call["asked"] == call["booked"] for call in refused)


def test_the_policy_sees_what_the_acceptance_model_believes_and_the_rules_do_not():
    settings = DvrpSettings(
        num_customers=6, lns_iterations=0, tolerances="types", mask_mode="threshold"
    )
    told = record_report_data(
        always_largest,
        settings,
        shared_params=perfect_knowledge(settings),
        days=DAYS,
        rules=("always_largest", "privileged_largest", "belief_largest"),
    )
    run, run_on_new_trips, run_on_new_people, rule, knowing, believing = told["policies"]
    for row in (run, run_on_new_trips, run_on_new_people):
        assert row["offers_accepted"] == row["offers_made"] > 0
    assert rule["offers_accepted"] < rule["offers_made"]
    # Masked by true beliefs, the largest open offer is the largest acceptable one.
    assert run["cost"] == knowing["cost"] == believing["cost"]


def test_offers_are_counted_for_every_call_of_every_day(report_data):
    by_type, by_purpose = report_data["answers"]["by_type"], report_data["answers"]["by_purpose"]
    calls = DAYS * SETTINGS.num_customers
    assert np.sum(by_type["made"]) == np.sum(by_purpose["made"]) == calls
    assert np.shape(by_type["made"]) == (NUM_TYPES, 16)
    assert np.shape(by_purpose["made"]) == (len(PURPOSE_NAMES), 16)
    # Only what is truly acceptable is offered, so everything is accepted.
    assert by_type["made"] == by_type["accepted"]


def test_a_acceptance_model_that_knows_everybody_is_told_to(report_data):
    belief_model = report_data["acceptance_model"]
    assert belief_model["accuracy"] == 1.0
    assert np.sum(belief_model["confusion"]) == belief_model["people"] == SETTINGS.people
    assert np.trace(belief_model["confusion"]) == belief_model["people"]
    found = belief_model["by_answers"]["accuracy"]
    assert np.abs(np.subtract(found["acceptance_model"], found["true rates"])).max() < 0.05


def test_hard_types_are_known_after_few_answers_and_chances_are_exact():
    settings = DvrpSettings(num_customers=30, lns_iterations=0, tolerances="types")
    played, population = simulate_days("random", settings, 24, 3)
    found = belief_record(played, played, population, perfect_knowledge(settings))
    accuracy = found["by_answers"]["accuracy"]["acceptance_model"]
    assert accuracy[0] < 0.7
    assert accuracy[-1] > 0.95
    possible = found["calibration"]["possible"]
    assert possible["believed"] == possible["accepted"] == [0.0, 1.0]
    assert possible["brier"] == 0.0


def test_a_acceptance_model_that_knows_nothing_is_told_so():
    population = population_for(SETTINGS)
    played, _ = simulate_days("random", SETTINGS, 60, 3)
    nothing = {
        "type_probabilities": np.full((population.size, NUM_TYPES), 0.25),
        "response_counts": np.zeros(population.size),
        "accept_given_type": np.full((NUM_TYPES, len(PURPOSE_NAMES), 16), 0.5),
    }
    found = belief_record(played, played, population, nothing)
    accuracy = found["by_answers"]["accuracy"]
    assert len(set(accuracy["acceptance_model"])) == 1
    assert accuracy["true rates"][-1] > accuracy["acceptance_model"][-1]
    assert found["calibration"]["possible"]["believed"] == [0.5]
    assert found["calibration"]["possible"]["brier"] == 0.25


def test_nobody_asked_leaves_nothing_to_learn_from():
    played, population = simulate_days(no_offer, SETTINGS, 2, 3)
    found = belief_record(played, played, population, perfect_knowledge(SETTINGS))
    assert found["by_answers"]["answers"] == []
    assert found["calibration"]["made"]["count"] == []


def test_days_on_which_somebody_is_left_out_are_not_shown():
    settings = DvrpSettings(num_customers=24, num_vehicles=1, capacity=1, lns_iterations=0)
    shown = record_report_data(no_offer, settings, days=2, rules=())
    assert shown["policies"][0]["failed"] == 2
    assert shown["day"] is None


def test_the_middle_of_an_even_number_is_the_lower_one():
    values = np.array([5.0, 1.0, 9.0, 3.0, 100.0])
    assert median_row(values, np.array([True, True, True, True, False])) == 3


def test_vehicles_that_share_most_customers_keep_their_colour():
    before = np.array([0, 0, 0, 1, 1, 2])
    after = np.array([2, 2, 2, 0, 0, 1])
    assert matched_vehicles(before, after, 4).tolist() == [1, 2, 0, 3]


def test_the_same_books_are_solved_once():
    played, population = simulate_days("random", SETTINGS, 3, 1)
    problems = day_problems(
        played.cells, played.requested_windows, played.max_ride_minutes, population, SETTINGS
    )
    closing = RememberedPlans(LNSOracle(LNSSettings()))
    plans = closing.solve(problems)
    assert closing.solve(problems.rows(slice(None))) is plans
    assert closing.solve(problems.rows(slice(2))) is not plans


def test_a_map_of_ones_own_city_takes_its_coordinates_from_the_trips(tmp_path):
    rows = [
        [
            *(str(person), "inflexible for any schedule changes", "work", "home", "there"),
            *("08:00-08:30", "08:20-08:50", "a", "b", "[37.5, -122.25]", "[37.75, -122.5]"),
        ]
        for person in range(1, 5)
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
    shown = record_report_data(no_offer, settings, days=2, rules=("none",))
    city = shown["day"]["city"]
    assert (city["unit"], city["names"], city["depot"]) == ("degrees", ["a", "b", "c"], 0)
    assert city["points"] == [[37.5, -122.25], [37.75, -122.5], None]
    # Nobody is left for a split of unseen people, so only the known one is told.
    assert [row["split"] for row in shown["policies"]] == ["known", "known"]
