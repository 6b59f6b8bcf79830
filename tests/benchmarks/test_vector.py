"""`python -m benchmarks vector`: measurements, rows, goals, and all systems on a few envs."""

import json

import pytest

from benchmarks import vector
from benchmarks.__main__ import main
from benchmarks.subjects import BackendSubject
from benchmarks.vector import Measurement, Workload, goal_of, measure, measure_with_low_steal, rows_of, subject_makers
from hundredfold.envs.registry import callable_factory
from hundredfold.profiling.scaling import HUNDREDFOLD
from hundredfold.profiling.workloads import ComputingEnv, LargeInfoEnv, WaitingEnv

WAITING = Workload("waiting 10 ms", WaitingEnv, 100, "waiting", "first_ready")


def row(rows, system, backend):
    (match,) = [row for row in rows if (row["system"], row["backend"]) == (system, backend)]
    return match


def test_rows_hold_medians_ratios_and_efficiency():
    measurements = {
        (HUNDREDFOLD, "first_ready"): [
            Measurement(9_000, 96.0, 1.0),
            Measurement(9_500, 97.0, 1.0),
            Measurement(1, 0.0, 1.0),
        ],
        ("gymnasium", "async"): [Measurement(2_250, 22.5, 1.0)] * 3,
    }
    rows = rows_of(WAITING, measurements)
    hundredfold, gymnasium = row(rows, HUNDREDFOLD, "first_ready"), row(rows, "gymnasium", "async")
    assert hundredfold["steps_per_second"] == 9_000
    assert (hundredfold["low"], hundredfold["high"], hundredfold["repeats"]) == (1, 9_500, 3)
    assert hundredfold["ratio_to_hundredfold"] == 1.0
    assert gymnasium["ratio_to_hundredfold"] == 0.25
    # Of the 100 seconds of 100 envs, 96 and 22.5 were spent in steps.
    assert hundredfold["efficiency"] == pytest.approx(0.96)
    assert gymnasium["efficiency"] == pytest.approx(0.225)
    assert hundredfold["reached"] is True
    assert "goal" not in gymnasium


class InstantSubject:
    """Steps take no time; measurements have the given steal fractions."""

    def __init__(self, monkeypatch, *steal_fractions):
        shares = iter(steal_fractions)
        monkeypatch.setattr(vector.StealTimeMonitor, "steal_fraction", lambda monitor: next(shares))

    def step_batch(self):
        return 1, 0.0

    def wait_until_idle(self):
        pass


def test_a_measurement_with_high_steal_time_is_repeated(monkeypatch):
    assert measure_with_low_steal(InstantSubject(monkeypatch, 0.3, 0.1, 0.01), 0.001).steal_fraction == 0.01


def test_the_measurement_with_the_lowest_steal_time_is_used_if_all_are_high(monkeypatch):
    assert measure_with_low_steal(InstantSubject(monkeypatch, 0.3, 0.1, 0.2, 0.4), 0.001).steal_fraction == 0.1


def test_rows_hold_the_median_steal_fraction():
    measurements = [Measurement(1, 1.0, 1.0, 0.0), Measurement(1, 1.0, 1.0, 0.25), Measurement(1, 1.0, 1.0, 0.01)]
    assert rows_of(WAITING, {(HUNDREDFOLD, "first_ready"): measurements})[0]["steal_fraction"] == 0.01


def test_a_goal_may_be_a_fraction_of_the_ideal():
    short = {"efficiency": 0.79, "steps_per_second": 1.0}
    goal = goal_of("waiting 10 ms", "first_ready, quarters", short, {})
    assert goal == {"goal": ">= 80 % of ideal", "reached": False}


def test_a_goal_may_be_a_multiple_of_another_system():
    measured = {"steps_per_second": 30_000.0}
    goal = goal_of("CartPole-v1", "processes, seeded once", measured, {"gymnasium async": 1_000.0})
    assert goal["reached"] is True
    assert "is 30.0x" in goal["goal"]


def test_there_is_no_goal_against_a_system_that_is_not_installed():
    assert goal_of("CartPole-v1", "batch env", {"steps_per_second": 1.0}, {}) == {}


def test_efficiency_of_computing_envs_is_relative_to_the_cores(monkeypatch):
    monkeypatch.setattr(vector, "usable_cores", lambda: 2)
    work = Workload("computing 1-5 ms", ComputingEnv, 100, "computing", "processes")
    (result,) = rows_of(work, {(HUNDREDFOLD, "processes"): [Measurement(1_000, 1.5, 1.0)]})
    assert result["efficiency"] == pytest.approx(0.75)


@pytest.mark.process
@pytest.mark.parametrize("backend", ["in_process", "processes", "first_ready"])
def test_a_backend_subject_becomes_idle_and_continues(backend):
    subject = BackendSubject(backend, callable_factory(LargeInfoEnv), 5)
    try:
        for _ in range(3):
            assert measure(subject, 0.01).steps > 0
            assert sorted(subject.ready_ids.tolist()) == [0, 1, 2, 3, 4]
    finally:
        subject.close()


@pytest.mark.process
def test_all_systems_step_the_same_few_envs(capsys, monkeypatch):
    few = (
        Workload(vector.CARTPOLE, vector.WORKLOADS[0].make_env, 3),
        Workload("waiting 10 ms", WaitingEnv, 3, "waiting", "first_ready"),
        Workload(vector.LARGE_INFO, LargeInfoEnv, 3),
    )
    monkeypatch.setattr(vector, "WORKLOADS", few)
    argv = ["vector", "--repeats", "1", "--seconds", "0.05", "--json"]
    assert main(argv) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["command"] == ["benchmarks", *argv]
    systems = {(row["env"], row["system"], row["backend"]) for row in output["rows"]}
    assert {
        ("CartPole-v1", HUNDREDFOLD, "batch env"),
        ("CartPole-v1", "gymnasium", "async"),
        ("waiting 10 ms", HUNDREDFOLD, "first_ready, quarters"),
        ("dict + 5 kB info", HUNDREDFOLD, "processes, infos read"),
        ("dict + 5 kB info", "gymnasium", "sync"),
    } <= systems
    assert ("waiting 10 ms", "gymnasium", "sync") not in systems
    for row in output["rows"]:
        assert row["num_envs"] == 3
        assert row["low"] <= row["steps_per_second"] <= row["high"]


def test_envpool_is_measured_if_installed():
    pytest.importorskip("envpool")
    makers = subject_makers(Workload(vector.CARTPOLE, vector.WORKLOADS[0].make_env, 3))
    assert (HUNDREDFOLD, "batch env") in makers
    subject = makers["envpool", ""]()
    try:
        assert measure(subject, 0.01).work_seconds > 0
    finally:
        subject.close()


def test_an_unknown_workload_exits_with_a_message(capsys):
    assert main(["vector", "--only", "chess"]) == 2
    assert "no workload name contains 'chess'" in capsys.readouterr().err
