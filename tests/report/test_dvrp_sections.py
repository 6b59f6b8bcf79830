"""Report sections of a dvrp run: from files alone, with missing data, in a browser."""

from __future__ import annotations

import html
import json
import warnings
from itertools import combinations, pairwise

import numpy as np
import pytest

from helpers.browser import BROWSER, inspect_page
from helpers.run_folders import make_run, metrics
from hundredfold.core.errors import CheckpointError
from hundredfold.core.formatting import MINUS
from hundredfold.envs.dvrp.acceptance.metrics import true_accept_rates
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.evaluation import SPLITS, UPPER_BOUND
from hundredfold.envs.dvrp.offers import offer_table
from hundredfold.envs.dvrp.policies import POLICIES, make_policy
from hundredfold.envs.dvrp.population import NUM_TYPES
from hundredfold.envs.dvrp.report_data import record_report_data
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.report import dvrp_sections as dvrp_sections_module
from hundredfold.report.dvrp_day import PHONE_HEIGHT, PHONE_WIDTH, route_map, timetable, vehicle_timeline, window_chart
from hundredfold.report.dvrp_figures import acceptance_maps, policy_bars, trade_off
from hundredfold.report.dvrp_sections import DESCRIPTIONS, dvrp_sections, verdict
from hundredfold.report.page import write_report
from hundredfold.report.run_data import read_report_data, write_report_data
from hundredfold.report.run_sections import Table

SETTINGS = DvrpSettings(num_customers=8, num_vehicles=3, lns_iterations=2)
SECTIONS = [
    "Comparison with simple rules and bounds",
    "Minutes saved against minutes moved",
    "New trips and new customers",
    "A typical day",
    "The same day by time",
    "Timetable of that day",
    "Offers and acceptance",
    "What is known about customers",
    "Savings during training",
]
NUM_FIGURES = 1 + 1 + 1 + 2 + 3 + 4 + 5 + 1


@pytest.fixture(scope="module")
def report_data():
    """Eight simulated days with random offers and a perfect acceptance model."""
    population = population_for(SETTINGS)
    shared_params = {
        "type_probabilities": np.eye(NUM_TYPES)[population.customers.types],
        "response_counts": np.full(population.size, 40),
        "accept_given_type": true_accept_rates(population),
    }
    act = make_policy("random", population, SETTINGS, seed=3)
    baselines = ("none", "random", "privileged_largest", "hindsight")
    return record_report_data(act, SETTINGS, shared_params=shared_params, days=8, baselines=baselines)


@pytest.fixture
def folder(tmp_path):
    return dvrp_run(tmp_path / "run")


def dvrp_run(path):
    rows = metrics(20)
    for row in rows:
        row["avg_improvement_pct"] = row["epoch"] / 10
        row |= {"acceptance/predicted_rate": 0.5, "acceptance/accepted_rate": row["epoch"] / 40}
        row["acceptance/offer_brier_score"] = 0.1
        if "eval/return_mean" in row:
            row["eval/avg_improvement_pct"] = row["epoch"] / 8
    return make_run(path, rows, env="dvrp", best=20)


def test_report_data_round_trip(folder, report_data):
    assert read_report_data(folder) is None
    write_report_data(folder, report_data)
    assert read_report_data(folder) == report_data


def test_invalid_report_data_raise(folder):
    for text, message in (("{", "is damaged"), ("[]", "is damaged"), ('{"format": 99}', "has format 99")):
        (folder.path / "report_data.json").write_text(text)
        with pytest.raises(CheckpointError, match=message):
            read_report_data(folder)


def test_all_sections_are_drawn_from_files_alone(folder, report_data):
    write_report_data(folder, json.loads(json.dumps(report_data)))
    sections = dvrp_sections(folder)
    assert [section.title for section in sections] == SECTIONS
    figures = [part for one in sections for part in one.contents if not isinstance(part, Table)]
    assert len(figures) == NUM_FIGURES
    assert all(len(figure.data) for figure in figures)


def test_calibration_is_drawn_by_day_and_by_group(folder, report_data):
    write_report_data(folder, report_data)
    *_, by_day, by_group = dvrp_sections(folder)[-2].contents
    predicted, accepted = by_day.data
    assert list(predicted.y) == [50.0] * 20
    assert accepted.y[-1] == 50.0
    assert by_day.layout.title.text == "Believed and observed acceptance by day"
    rows = report_data["beliefs"]["by_group"]
    assert list(by_group.data[1].x) == [round(row["accepted_pct"], 1) for row in rows]
    assert {row["by"] for row in rows} == {"type", "purpose", "neighbourhood", "age", "occupation", "trip"}


def test_without_report_data_the_command_is_named(folder):
    improvement, missing = dvrp_sections(folder)
    assert improvement.title == SECTIONS[-1]
    assert missing.contents == ()
    assert f"hundredfold report {folder.path}" in missing.explanation


def test_missing_parts_of_the_report_data_are_left_out(folder, report_data):
    known = [row for row in report_data["policies"] if row["split"] == "known"]
    less = {**report_data, "beliefs": None, "day": None, "policies": known}
    write_report_data(folder, less)
    titles = [section.title for section in dvrp_sections(folder)]
    assert titles == [*SECTIONS[:2], "A typical day", "Offers and acceptance", SECTIONS[-1]]


def test_fewer_days_than_planned_are_mentioned(folder, report_data):
    write_report_data(folder, report_data)
    assert not any("--days" in section.explanation for section in dvrp_sections(folder))
    write_report_data(folder, {**report_data, "planned_days": 64, "left_out": ["hindsight"]})
    (text,) = [section.explanation for section in dvrp_sections(folder) if "too long" in section.explanation]
    assert "Left out: hindsight." in text
    assert "--days 64" in text


def test_broken_report_data_do_not_lose_the_rest(folder):
    (folder.path / "report_data.json").write_text("[]")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        page = write_report(folder).read_text("utf-8")
    assert any("could not be drawn" in str(one.message) for one in warned)
    assert "Learner diagnostics" in page
    assert "is damaged (it is not a JSON object)" in page


def test_the_improvement_curve_has_both_axes_and_evaluations(folder):
    (figure,) = dvrp_sections(folder)[0].contents
    training, evaluated = figure.data
    assert training.meta["clock"][-1] == 1.0
    assert list(evaluated.y) == [5 / 8, 10 / 8, 15 / 8, 20 / 8]
    assert figure.layout.yaxis.title.text == "% of driving minutes saved"


def test_routes_start_and_end_at_the_depot_and_pass_every_stop(report_data):
    day = report_data["day"]
    depot = day["city"]["points"][day["city"]["depot"]]
    figure = route_map(day, day["after"], "After", compare=day["before"])
    vehicles = [trace for trace in figure.data if str(trace.name).startswith("vehicle")]
    assert len(vehicles) == len(day["after"]["routes"])
    for trace in vehicles:
        assert [trace.y[0], trace.x[0]] == [trace.y[-1], trace.x[-1]] == depot
    assert sum(len(trace.x) - 2 for trace in vehicles) == 2 * SETTINGS.num_customers
    # A degree to the east is shorter than one to the north.
    assert figure.layout.yaxis.scaleratio == pytest.approx(1.265, abs=0.01)


def test_stops_are_numbered_in_order_on_the_map_and_in_the_time_line(report_data):
    day = report_data["day"]
    figure = vehicle_timeline(day, day["after"], "Vehicles")
    routes = sorted(day["after"]["routes"], key=lambda route: route["vehicle"])
    assert list(figure.layout.yaxis.ticktext) == [f"vehicle {route['vehicle'] + 1} " for route in routes]
    stops = [trace for trace in figure.data if trace.mode == "markers+text"]
    for row, route in enumerate(routes):
        own = [trace for trace in stops if trace.y and trace.y[0] == row]
        numbered = {
            int(text.split(":")[0].removeprefix("stop ")): (x, n)
            for trace in own
            for text, x, n in zip(trace.hovertext, trace.x, trace.text, strict=True)
        }
        assert [numbered[k + 1][0] for k in range(len(route["stops"]))] == list(route["stop_minutes"])
        assert all(n in ("", str(k)) for k, (_, n) in numbered.items())
        assert any(n for _, n in numbered.values())
    bands = [trace for trace in figure.data if trace.mode == "lines" and trace.opacity < 1]
    # A vehicle is empty at its end.
    assert all(max(band.x) <= route["stop_minutes"][-1] for route in routes[:1] for band in bands if band.y[0] == 0)


def test_numbers_of_stops_that_would_overlap_on_a_phone_are_left_out(report_data):
    day = report_data["day"]
    route = day["after"]["routes"][0]
    count = 2 * SETTINGS.num_customers
    # One vehicle picks up and drops off one customer after the other, two minutes apart.
    stops, minutes = list(range(1, count + 1)), [480.0 + 2 * k for k in range(count)]
    busy = {**route, "stops": stops, "stop_minutes": minutes, "start_minutes": 470.0, "end_minutes": 470.0 + 24 * 60}
    figure = vehicle_timeline(day, {**day["after"], "routes": [busy]}, "Vehicles")
    shown = [
        [x for x, n in zip(trace.x, trace.text, strict=True) if n]
        for trace in figure.data
        if trace.mode == "markers+text"
    ]
    assert all(later - earlier >= 72 for xs in shown for earlier, later in pairwise(xs))
    home = [{**call, "cells": [0, 0]} for call in day["calls"]]
    figure = route_map({**day, "calls": home}, {**day["after"], "routes": [busy]}, "After")
    (labels,) = [trace.text for trace in figure.data if trace.name == f"vehicle {route['vehicle'] + 1}"]
    assert [text for text in labels if text] == [f"1, 2 \N{HORIZONTAL ELLIPSIS} {count}"]


def map_labels(figure):
    """Pixel boxes (left, right, lower, upper) of all labels of a map, as large as on a phone."""
    (west, east), (south, north) = figure.layout.xaxis.range, figure.layout.yaxis.range
    ratio = figure.layout.yaxis.scaleratio
    scale = min(PHONE_WIDTH / (east - west), PHONE_HEIGHT / (ratio * (north - south)))
    boxes = []
    for trace in figure.data:
        if trace.name == "scale":
            column, line = scale * (trace.x[0] - west), scale * ratio * (trace.y[0] - south)
            boxes.append((column, column + 5 * len(trace.text[0]), line - 2, line + 12, trace.text[0]))
            continue
        if "text" not in (trace.mode or ""):
            continue
        assert trace.cliponaxis is False, "labels at the edge would be cut"
        for x, y, text, side in zip(trace.x, trace.y, trace.text, trace.textposition, strict=True):
            if text:
                width, (vertical, horizontal) = 5 * len(html.unescape(text)), side.split()
                column, line = scale * (x - west), scale * ratio * (y - south)
                left = column - {"left": width + 4, "center": width / 2, "right": -4}[horizontal]
                lower = line + {"top": 4, "middle": -5, "bottom": -14}[vertical]
                boxes.append((left, left + width, lower, lower + 10, text))
    return boxes


@pytest.mark.parametrize("spread", [1.0, 0.1])
def test_labels_of_the_map_do_not_overlap_on_a_phone(report_data, spread):
    day = json.loads(json.dumps(report_data["day"]))
    city = day["city"]
    # All places but the first close together, as near a hub.
    first = city["points"][0]
    # One is where the scale bar is.
    city["points"][1] = [min(point[axis] for point in city["points"]) for axis in (0, 1)]
    city["points"][1:] = [
        [a + spread * (b - a) for a, b in zip(first, point, strict=True)] if k % 3 else point
        for k, point in enumerate(city["points"][1:])
    ]
    labels = map_labels(route_map(day, day["after"], "After"))
    assert len(labels) > 3
    assert all(label[3] <= PHONE_HEIGHT + 8 for label in labels)
    for one, other in combinations(labels, 2):
        apart = one[1] <= other[0] or one[0] >= other[1] or one[3] <= other[2] or one[2] >= other[3]
        assert apart, (one, other)


def test_a_place_shows_every_stop_of_a_vehicle_once_and_vehicles_on_different_sides(report_data):
    day = report_data["day"]
    figure = route_map(day, day["after"], "After")
    sides = set()
    for route in day["after"]["routes"]:
        (trace,) = (one for one in figure.data if one.name == f"vehicle {route['vehicle'] + 1}")
        named = [int(number) for text in trace.text if text for number in text.split(", ")]
        assert len(set(named)) == len(named)
        assert set(named) <= {k + 1 for k in range(len(route["stops"]))}
        assert len(named) >= len(route["stops"]) / 2
        labels = [
            (x, y, side)
            for x, y, side, text in zip(trace.x, trace.y, trace.textposition, trace.text, strict=True)
            if text
        ]
        assert len({label[:2] for label in labels}) == len(labels)
        assert not sides & set(labels)
        sides |= set(labels)


def test_the_timetable_has_every_stop_with_time_place_and_customer(report_data):
    day = json.loads(json.dumps(report_data["day"]))
    day["calls"][0]["customer"] = "Frau <b>M"
    rows = timetable(day, day["after"])
    assert len(rows) == 2 * len(day["calls"])
    pickups = [row for row in rows if row[4] == "Frau <b>M"]
    assert [row[3] for row in pickups] == ["pickup", "dropoff"]
    assert [row[5] for row in pickups] == [day["city"]["names"][cell] for cell in day["calls"][0]["cells"]]
    assert pickups[0][2] <= pickups[1][2]
    # Empty at the end of every route.
    assert sum(row[6] == 0 for row in rows) >= len(day["after"]["routes"])
    hovered = str(route_map(day, day["after"], "After").to_dict())
    assert "Frau &lt;b&gt;M" in hovered
    assert "<b>M" not in hovered


def test_place_names_on_the_map_do_not_overlap(report_data):
    day = report_data["day"]
    _, names, places = route_map(day, day["after"], "After").data[:3]
    assert names.marker.size == places.marker.size, "else names begin on the dots"
    assert 3 <= len(names.text) <= len(places.text)
    assert set(names.text) <= set(places.text)


def test_every_policy_of_the_comparison_is_explained(folder, report_data):
    write_report_data(folder, report_data)
    glossary = dvrp_sections(folder)[0].contents[1]
    assert [row[0] for row in glossary.rows] == list(dict.fromkeys(row["policy"] for row in report_data["policies"]))
    assert all(row[1] for row in glossary.rows)
    assert set(DESCRIPTIONS) == {*POLICIES, UPPER_BOUND}


def test_unknown_positions_leave_a_gap(report_data):
    day = json.loads(json.dumps(report_data["day"]))
    unknown = day["calls"][0]["cells"][0]
    day["city"]["points"][unknown] = None
    gaps = [
        point
        for trace in route_map(day, day["before"], "Before").data
        if str(trace.name).startswith("vehicle")
        for point in trace.x
        if point is None
    ]
    assert gaps


def test_a_city_without_coordinates_is_drawn_on_a_square(report_data):
    day = json.loads(json.dumps(report_data["day"]))
    day["city"]["unit"] = "square"
    figure = route_map(day, day["before"], "Before")
    assert figure.layout.yaxis.scaleratio == 1.0
    assert not any("km" in str(trace.text) for trace in figure.data)


def test_every_customer_has_a_row_and_refusals_a_cross(report_data):
    day = report_data["day"]
    figure = window_chart(day)
    assert len(figure.layout.yaxis.ticktext) == SETTINGS.num_customers
    traces = {trace.name: trace for trace in figure.data}
    refused = [call for call in day["calls"] if call["response"] == "refused"]
    assert refused
    assert len(traces["refused"].x) == len(refused)
    assert len(traces["ride"].x) == 3 * SETTINGS.num_customers
    # Rides begin within the booked pickup windows.
    begins = list(traces["ride"].x[::3])
    for begin, base, width in zip(begins, traces["pickup"].base, traces["pickup"].x, strict=True):
        assert base - 0.01 <= begin <= base + width + 0.01


def test_hindsight_is_a_line_and_this_run_is_highlighted(report_data):
    rows = [row for row in report_data["policies"] if row["split"] == SPLITS[0]]
    figure = policy_bars(rows)
    (bars,) = figure.data
    assert sorted(bars.y) == ["none", "privileged_largest", "random", "this run"]
    assert list(bars.x) == sorted(bars.x)
    assert len(set(bars.marker.color)) == 2
    (line,) = figure.layout.shapes
    assert line.x0 == next(row["mean"] for row in rows if row["policy"] == "hindsight")


def test_trade_off_labels_do_not_overlap(report_data):
    row = report_data["policies"][0]
    together = [{**row, "policy": f"policy {number}"} for number in range(4)]
    (dots,) = trade_off(together).data
    assert len(set(dots.textposition)) == 4


def test_a_number_of_the_curve_without_room_is_left_out(report_data):
    row = {**report_data["policies"][0], "saved_minutes": 80.0, "shift_minutes": 600.0}
    close = [{**row, "policy": f"policy {number}", "shift_minutes": 610.0 + 10 * number} for number in range(3)]
    points = [
        {"policy": "this run", "shift_penalty": penalty, "saved_minutes": 80.0 * (1 - penalty), "shift_minutes": shift}
        for penalty, shift in ((0.0, 600.0), (0.02, 595.0), (0.5, 30.0))
    ]
    curve, dots = trade_off([row, *close], points).data
    assert list(curve.text) == ["", "", "0.5"]
    assert list(dots.text) == ["this run", "policy 0", "policy 1", "policy 2"]


def test_a_policy_at_several_shift_penalties_is_a_curve(report_data):
    row = {**report_data["policies"][0], "saved_minutes": 20.0, "shift_minutes": 120.0}
    points = [
        {"policy": "this run", "shift_penalty": penalty, "saved_minutes": 20.0, "shift_minutes": shift}
        for penalty, shift in ((0.5, 30.0), (0.0, 300.0), (0.1, 120.0))
    ]
    curve, dots = trade_off([row], points).data
    assert list(curve.x) == [300.0, 120.0, 30.0]
    assert list(curve.customdata) == ["0", "0.1", "0.5"]
    assert list(curve.text) == ["0", "", "0.5"], "the run's own penalty is labelled by the run's dot"
    assert len(dots.x) == 1
    # One penalty is the run itself.
    (dots,) = trade_off([row], points[-1:]).data
    assert list(dots.text) == ["this run"]


@pytest.mark.parametrize("penalties", [(0.05,), (0.0, 0.05)], ids=["a point", "a curve"])
def test_the_trade_off_says_how_to_choose(folder, report_data, penalties):
    curve = [{**report_data["trade_off"][0], "shift_penalty": penalty} for penalty in penalties]
    write_report_data(folder, {**report_data, "trade_off": curve})
    section = next(one for one in dvrp_sections(folder) if one.title.startswith("Minutes saved"))
    assert "`hundredfold evaluate RUN --shift-penalty 0.05`" in section.explanation
    assert ("--observation offers" in section.explanation) == (len(penalties) == 1)
    assert "<code>hundredfold evaluate RUN --shift-penalty 0.05</code>" in write_report(folder).read_text("utf-8")


def heuristic(policy, saved, mean, low, high, shift=100.0):
    """A comparison with a run that shifts 120 minutes."""
    return {
        "policy": policy,
        "shift_minutes": shift,
        "baseline_shift_minutes": min(shift, 120.0),
        "saved_minutes": saved,
        "mean": mean,
        "ci_low": low,
        "ci_high": high,
    }


def test_only_the_splits_that_were_evaluated_are_named(report_data):
    run = report_data["policies"][0]

    def text(*splits):
        rows = [{**run, "split": split} for split in splits]
        sections = dvrp_sections_module._policies({**report_data, "policies": rows})
        return next(section.explanation for section in sections if section.title == "New trips and new customers")

    assert text("known", "unseen_customers").endswith(
        ": on known customers and trips and on customers it has never met."
    )
    assert "on new trips of known customers and on" in text("known", "unseen_trips", "unseen_customers")


def verdict_text(report_data, heuristics, **changes):
    run = {**report_data["policies"][0], "mean": 3.44, "ci_low": 2.5, "ci_high": 4.26, "failed": 0}
    run |= {"cost": 970.0, "baseline_cost": 1005.0, "shift_minutes": 120.0}
    card = verdict({**report_data, "days": 64, "policies": [run], "equal_shift": heuristics, **changes})
    assert card.value == "3.4 %"
    return "\n".join([card.note, *card.details])


def test_the_verdict_states_savings_interval_days_and_minutes_moved(report_data):
    text = verdict_text(report_data, [heuristic("lookahead", 30.0, -4.0, -6.0, -2.0)])
    sentence, *details = text.splitlines()
    assert sentence == (
        "The offers of this run save 35 of 1,005 driving minutes a day; "
        "no heuristic that needs no training does better."
    )
    assert details[:2] == [
        "How sure: 64 simulated days; 95 % interval 2.5 to 4.3 %.",
        "What it costs: times of customers are moved by 120 minutes a day, 15 minutes per customer.",
    ]
    assert all(len(line) < 200 and line.endswith(".") for line in (sentence, *details))


def test_the_verdict_says_when_savings_may_be_chance_or_are_none(report_data):
    run = {**report_data["policies"][0], "mean": -0.4, "ci_low": -1.0, "ci_high": 0.2, "failed": 1}
    run |= {"cost": 1009.0, "baseline_cost": 1005.0, "shift_minutes": 120.0}
    card = verdict({**report_data, "days": 64, "policies": [run], "equal_shift": []})
    assert card.note.startswith("The offers of this run add 4 driving minutes to 1,005 a day, which may be chance; ")
    assert card.details[-1] == f"1 day with a customer who was not served: such a day counts as {MINUS}100 %."


def test_the_verdict_names_the_best_heuristic(report_data):
    weak = heuristic("random", 4.0, -20.0, -25.0, -15.0)
    worse = verdict_text(report_data, [weak, heuristic("lookahead", 30.0, -4.0, -6.0, -2.0)])
    assert "; no heuristic that needs no training does better." in worse
    assert "Best heuristic on the same days: lookahead. When both move customers equally, it saves 4.0 " in worse
    assert f"{MINUS}6.0 to {MINUS}2.0" in worse
    unclear = verdict_text(report_data, [weak, heuristic("lookahead", 36.0, 1.0, -2.0, 4.0, shift=250.0)])
    assert "does clearly better" in unclear
    assert "lookahead. Moving customers by 250 minutes, it saves 1.0 minutes a day more than this run" in unclear
    # One that is surely better is named before one that may be.
    much = heuristic("belief_largest", 40.0, 4.0, -2.0, 10.0, shift=250.0)
    better = verdict_text(report_data, [much, heuristic("lookahead", 36.0, 3.0, 1.0, 5.0)])
    assert "; the heuristic lookahead, which needs no training, does better when both move customers equally." in better
    gentle = verdict_text(report_data, [weak, heuristic("greedy_expected", 12.0, 3.0, 1.0, 5.0, shift=30.0)])
    assert "does better, but only if customers are moved by no more than 30 minutes a day." in gentle
    assert (
        "It moves customers by only 30 minutes a day, and saves 12. Moving them as little, it saves 3.0 min" in gentle
    )


def test_the_verdict_says_that_lookahead_was_left_out_and_why(report_data):
    weak = [heuristic("random", 4.0, -20.0, -25.0, -15.0)]
    no_time = verdict_text(report_data, weak, left_out=["lookahead"])
    assert "Not compared: the heuristic lookahead; there was no time for it." in no_time
    assert "the heuristic lookahead; it needs an acceptance model." in verdict_text(report_data, weak)
    assert "compared with no heuristic" in verdict_text(report_data, [])
    assert "so few days do not tell" in verdict_text(report_data, weak, days=2)


def test_the_verdict_gives_no_interval_of_very_few_days(report_data):
    text = verdict_text(report_data, [], days=2, planned_days=200)
    assert "interval" not in text
    assert "How sure: not sure, 2 simulated days can be very different from most; " in text
    assert "`hundredfold report RUN --days 200` plays more." in text
    assert "--days 64" in verdict_text(report_data, [], days=7)


def test_policies_that_were_left_out_are_explained(report_data):
    sections = dvrp_sections_module._policies({**report_data, "left_out": ["greedy_expected"]})
    glossary = next(part for part in sections[0].contents if getattr(part, "title", "") == "What the policies do")
    assert ["greedy_expected", DESCRIPTIONS["greedy_expected"]] in [list(row) for row in glossary.rows]


def test_assumptions_about_own_data_are_named(folder, report_data):
    write_report_data(folder, report_data)
    assert "Your data" not in [section.title for section in dvrp_sections(folder)]
    write_report_data(folder, {**report_data, "data_notes": ["No flexibility was given."]})
    (shown,) = [section for section in dvrp_sections(folder) if section.title == "Your data"]
    assert list(shown.contents[0].rows) == [["No flexibility was given."]]


def test_the_first_card_is_the_verdict(folder, report_data):
    write_report_data(folder, report_data)
    page = write_report(folder).read_text("utf-8")
    cards = page[page.index('<dl class="cards">') :]
    assert cards.index("The offers of this run") < cards.index("best evaluated return")
    # Data of earlier versions compare no heuristics.
    write_report_data(folder, {key: part for key, part in report_data.items() if key != "equal_shift"})
    assert "a heuristic" not in dvrp_sections(folder)[0].card.note


def test_offers_never_made_are_blank():
    offers = [(earlier, later) for earlier in (30, 20, 10, 0) for later in (0, 10, 20, 30)]
    made, accepted = [0] * 16, [0] * 16
    made[3], accepted[3] = 8, 2  # half an hour both ways
    counts = {"made": [made, [0] * 16], "accepted": [accepted, [0] * 16]}
    figure = acceptance_maps("Acceptance", ["some", "none"], counts, offers, columns=2)
    (heatmap,) = figure.data
    assert heatmap.z[3][3] == 25.0
    assert sum(value is not None for row in heatmap.z for value in row) == 1


def test_squares_without_an_offer_are_blank_and_many_squares_have_no_text():
    for sizes, shown in (((0, 10, 20), 1), ((0, 10, 20, 30, 60), 0)):
        table = offer_table(sizes, "both")
        made, accepted = [0] * table.num_offers, [0] * table.num_offers
        place = table.find(-10, 20)
        made[place], accepted[place] = 4, 3
        counts = {"made": [made], "accepted": [accepted]}
        figure = acceptance_maps("Acceptance", ["all"], counts, table.minutes.astype(int).tolist(), columns=2)
        (heatmap,) = figure.data
        up, right = heatmap.y.index("-10"), heatmap.x.index("20")
        assert heatmap.z[up][right] == 75.0
        texts = [text for row in heatmap.text for text in row]
        assert None not in texts
        assert [text for text in texts if text] == ["75"] * shown


@BROWSER
@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1200], ids=["phone", "desktop"])
def test_a_browser_draws_every_figure_within_the_width(tmp_path, report_data, width):
    folder = dvrp_run(tmp_path / "run")
    write_report_data(folder, report_data)
    seen = inspect_page(write_report(folder), width, tmp_path / "profile")
    assert [title for title in seen["sections"] if title in SECTIONS] == SECTIONS
    # Besides dvrp's own: learning, two averages, six diagnostics, shares and throughput, and one
    # other metric that changes.
    assert seen["charts"] == seen["drawn"] == NUM_FIGURES + 1 + 2 + 6 + 2 + 1
    assert seen["failed"] == []
    assert seen["wanted_width"] <= seen["given_width"] <= width
    assert seen["by_time"] == "wall-clock time (s)"
