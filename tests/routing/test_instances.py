"""Readers of benchmark files, random instances, and gaps to the best known costs."""

from pathlib import Path

import numpy as np
import pytest

from hundredfold.routing.instances import (
    InstanceError,
    loose_instances,
    random_city,
    random_instances,
    read_instance,
    read_instances,
)
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.verifier import violations

DATA = Path(__file__).parents[3] / "shared" / "data" / "routing"

LI_LIM = """2\t10\t1
0\t0\t0\t0\t0\t100\t0\t0\t0
1\t3\t4\t-5\t0\t90\t2\t3\t0
2\t0\t8\t7\t5\t80\t1\t0\t4
3\t6\t8\t5\t10\t70\t3\t0\t1
4\t0\t4\t-7\t0\t60\t1\t2\t0
"""
CORDEAU = """2 4 480 3 30
0 0.0 0.0 0 0 0 480
1 3.0 4.0 3 1 0 1440
2 6.0 8.0 3 2 60 90
3 0.0 8.0 3 -1 100 115
4 0.0 4.0 3 -2 0 1440
"""


def written(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def test_li_lim_requests_are_paired_by_id(tmp_path):
    problem = read_instance(written(tmp_path, "tiny.txt", LI_LIM))
    assert problem.cells[0].tolist() == [[2, 4], [3, 1]]
    assert problem.riders[0].tolist() == [7, 5]
    assert problem.windows[0, 1].tolist() == [[10.0, 70.0], [0.0, 90.0]]
    assert problem.service_minutes[0, 1].tolist() == [3.0, 2.0]
    assert problem.travel.minutes[0, 1] == 5.0
    assert (problem.fleet.num_vehicles, problem.fleet.capacity) == (2, 10)
    assert not problem.has_duration_limits


@pytest.mark.parametrize("end", ["", "5 0.0 0.0 0 0 0 400\n"], ids=["one depot", "two depots"])
def test_cordeau_files_have_duration_limits_and_maybe_a_second_depot(tmp_path, end):
    problem = read_instance(written(tmp_path, "tiny.txt", CORDEAU + end))
    assert problem.cells[0].tolist() == [[1, 3], [2, 4]]
    assert problem.riders[0].tolist() == [1, 2]
    assert problem.max_ride_minutes[0].tolist() == [30.0, 30.0]
    assert problem.fleet.max_route_minutes == 480.0
    assert problem.fleet.depot_window == (0.0, 400.0 if end else 480.0)


def test_a_folder_is_read_with_its_reference_costs(tmp_path):
    written(tmp_path, "b.txt", CORDEAU)
    written(tmp_path, "a.txt", LI_LIM)
    written(tmp_path, "references.csv", "instance,reference\na,12.5\n")
    found = read_instances(tmp_path)
    assert [(each.name, each.reference_cost) for each in found] == [("a", 12.5), ("b", None)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0 lines"),
        ("1 2 3 4\n0 0 0 0\n", "line 1 has 4 numbers"),
        (LI_LIM + "5\t1\n", "line 7 has 2 columns"),
        (CORDEAU.replace("60 90", "60 x"), "line 4 has something that is not a number"),
        (CORDEAU.replace("2 4 480", "2 8 480"), "announces 8 stops and has 5 node lines"),
        (LI_LIM.replace("3\t0\n2", "0\t0\n2"), "neither pickup nor delivery"),
        ("\x00\x01 noise " * 1000, "lines|number"),
    ],
)
def test_errors_of_malformed_files_say_what_is_wrong(tmp_path, text, message):
    with pytest.raises(InstanceError, match=message):
        read_instance(written(tmp_path, "broken.txt", text))


def test_malformed_references_and_empty_folders_are_reported(tmp_path):
    with pytest.raises(InstanceError, match=r"no \.txt files"):
        read_instances(tmp_path)
    written(tmp_path, "a.txt", LI_LIM)
    written(tmp_path, "references.csv", "name,value\na,1\n")
    with pytest.raises(InstanceError, match="instance,reference"):
        read_instances(tmp_path)


def test_random_instances_are_reproducible_and_every_request_can_be_served():
    one, two = random_instances(5, 30, seed=3), random_instances(5, 30, seed=3)
    assert (one.windows == two.windows).all()
    assert (one.cells == two.cells).all()
    direct = one.travel.minutes[one.cells[..., 0], one.cells[..., 1]]
    assert (one.windows[:, :, 1, 1] - one.windows[:, :, 0, 0] >= direct).all()
    assert (random_instances(5, 30, seed=4).windows != one.windows).any()
    assert loose_instances(2, 30).riders.max() == 2


def test_random_city_has_plausible_asymmetric_travel_times():
    minutes = random_city(0).minutes
    apart = minutes[~np.eye(len(minutes), dtype=bool)]
    assert 15.0 < np.median(apart) < 25.0
    assert random_city(0).max_shortcut == 0
    assert (minutes != minutes.T).any()


def shared_instances(kind):
    folder = DATA / kind
    if not folder.is_dir():
        pytest.skip(f"the benchmark files are not at {folder}")
    return read_instances(folder)


def mean_gap(instances, **effort):
    oracle = LNSOracle(LNSSettings(**effort))
    gaps = []
    for instance in instances:
        solutions = oracle.solve(instance.problem)
        assert violations(instance.problem, solutions) == []
        gaps.append(100.0 * (solutions.cost[0] / instance.reference_cost - 1.0))
    return float(np.mean(gaps))


@pytest.mark.parametrize("kind", ["lilim", "darp"])
def test_small_benchmark_instances_are_solved_within_one_percent(kind):
    small = [each for each in shared_instances(kind) if each.problem.max_requests <= 55][:4]
    assert mean_gap(small, final_restarts=20) < 1.0


@pytest.mark.slow
def test_li_lim_within_half_a_percent_in_two_seconds():
    assert mean_gap(shared_instances("lilim"), seconds=2.0) < 0.5


@pytest.mark.slow
def test_cordeau_within_two_percent_in_five_seconds():
    assert mean_gap(shared_instances("darp"), seconds=5.0) < 2.0
