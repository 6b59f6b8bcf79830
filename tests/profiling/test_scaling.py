"""Efficiency, losses and advice of scaling measurements, and CPU steal time."""

from collections import namedtuple
from dataclasses import replace

import numpy as np
import psutil
import pytest

from hundredfold.backends.env_profile import StepCosts
from hundredfold.backends.settings import WorkerSettings
from hundredfold.envs.registry import settings_class
from hundredfold.profiling.scaling import (
    LOSSES,
    MeasuredEnv,
    ScaleSettings,
    StealTimeMonitor,
    advice,
    ideal_shares,
    lane_ids,
    measure_scaling,
    profile_env,
    relative_speed,
)
from hundredfold.profiling.timeline import PHASES, TimeBreakdown


def measured(step_seconds=0.010, **shares):
    return TimeBreakdown(100.0, step_seconds, {name: shares.get(name, 0.0) for name in PHASES})


def row_of(backend, rate, efficiency, num_envs=100, step_seconds_alone=0.01, **lost):
    return {
        "backend": backend,
        "num_envs": num_envs,
        "steps_per_second": rate,
        "efficiency": efficiency,
        "step_seconds_alone": step_seconds_alone,
        **{f"lost_to_{name}": lost.get(name, 0.0) for name in LOSSES},
    }


def measured_env(waits):
    seconds = np.full(10, 0.01)
    costs = StepCosts(seconds, 0.02 * seconds if waits else seconds, 10 if waits else 0, 100)
    return MeasuredEnv("some", "waiting" if waits else "computing", lambda stamps: None, costs)


# --- shares


def test_unused_lanes_are_lost_to_serial_stepping():
    shares = ideal_shares(measured(stepping=1.0), 1.0, used=1 / 8)
    assert shares["stepping"] == pytest.approx(1 / 8)
    assert shares["serial"] == pytest.approx(7 / 8)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_steps_slower_than_alone_are_a_loss():
    breakdown = measured(step_seconds=0.020, stepping=0.8, transfer=0.2)
    shares = ideal_shares(breakdown, relative_speed(0.020, 0.015, "computing"), used=1.0)
    assert shares["stepping"] == pytest.approx(0.6)
    assert shares["slowdown"] == pytest.approx(0.2)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_small_slowdowns_of_waiting_envs_do_not_count():
    assert relative_speed(0.0105, 0.010, "waiting") == 1.0
    assert relative_speed(0.0105, 0.010, "computing") < 1.0


def test_steps_faster_than_alone_exceed_the_ideal_as_their_rate_does():
    speed = relative_speed(0.005, 0.010, "computing")
    shares = ideal_shares(measured(step_seconds=0.005, stepping=0.75, transfer=0.25), speed, used=1.0)
    assert shares["stepping"] == pytest.approx(1.5)
    assert shares["slowdown"] == pytest.approx(-0.75)
    assert sum(shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("seconds", [0.008, 0.0125])
@pytest.mark.parametrize("kind", ["waiting", "computing", "batch", "part of a batch"])
def test_efficiency_is_the_rate_relative_to_the_ideal(kind, seconds, monkeypatch):
    # Half of the time of all lanes is spent stepping; alone a step takes 10 ms.
    lanes = 3 if kind == "waiting" else 1
    rows_per_step = 3 if kind == "batch" else 1
    kind = kind.removeprefix("part of a ")
    breakdown = measured(step_seconds=seconds, stepping=0.5, transfer=0.5)
    rate = 0.5 * lanes * rows_per_step / seconds

    def measure(env, backend, num_envs, settings):
        return measured(stepping=1.0) if num_envs == 1 else replace(breakdown, steps_per_second=rate)

    monkeypatch.setattr("hundredfold.profiling.scaling.measure_one", measure)
    env = replace(measured_env(True), kind=kind)
    backend = "processes" if kind == "waiting" else "in_process"
    settings = ScaleSettings(num_envs=(3,), backends=(backend,), workers=WorkerSettings(workers=1))
    (row,) = measure_scaling(env, settings, on_progress=lambda text: None)
    assert row["efficiency"] == pytest.approx(row["steps_per_second"] / row["ideal_steps_per_second"])
    assert row["efficiency"] + sum(row[f"lost_to_{name}"] for name in LOSSES) == pytest.approx(1.0)


# --- lanes and ideals


def test_waiting_envs_have_a_lane_each_and_computing_envs_one_per_worker():
    workers = WorkerSettings(workers=2)
    assert lane_ids(measured_env(True), "processes", 5, workers).tolist() == [0, 1, 2, 3, 4]
    assert lane_ids(measured_env(False), "first_ready", 5, workers).tolist() == [0, 0, 1, 1, 1]
    assert lane_ids(measured_env(True), "in_process", 3, workers).tolist() == [0, 0, 0]


def test_the_ideal_of_computing_envs_is_limited_by_cores():
    assert measured_env(True).ideal_speedup(100, cores=2) == 100
    assert measured_env(False).ideal_speedup(100, cores=2) == 2
    assert measured_env(False).ideal_speedup(1, cores=2) == 1
    assert "N times one env" in measured_env(True).describe_ideal(2)
    assert "there are 2 cores" in measured_env(False).describe_ideal(2)


def test_built_in_envs_are_compared_with_a_batch_of_one():
    env = profile_env("corridor", settings_class("corridor")())
    assert env.kind == "batch"
    assert env.ideal_speedup(64, cores=2) == 64
    assert "batch of one" in env.describe_ideal(2)


@pytest.mark.parametrize(("name", "kind"), [("waiting", "waiting"), ("computing", "computing")])
def test_synthetic_envs_have_the_kind_of_their_name(name, kind):
    assert profile_env(name).kind == kind


# --- advice


def test_advice_against_the_barrier_is_first_ready():
    text = advice([row_of("processes", 2_700, 0.27, barrier=0.67, transfer=0.06)])
    assert "92 % of the loss is the barrier" in text
    assert "use --backend first_ready" in text


def test_advice_is_the_fastest_backend_and_the_loss_of_the_second():
    rows = [
        row_of("in_process", 100, 0.01, serial=0.99),
        row_of("processes", 2_700, 0.27, barrier=0.7, transfer=0.03),
        row_of("first_ready", 9_600, 0.96, transfer=0.04),
        row_of("processes", 1e9, 1.0, num_envs=8),
    ]
    text = advice(rows)
    assert text.startswith("Use --backend first_ready: it reaches 96 % of the ideal with 100 envs.")
    assert "With processes, 96 % of the loss is the barrier" in text


def test_there_is_no_advice_near_the_ideal():
    assert "almost nothing left to gain" in advice([row_of("first_ready", 1.0, 0.97, transfer=0.03)])


def test_advice_for_the_barrier_of_first_ready_is_a_smaller_batch():
    text = advice([row_of("first_ready", 1.0, 0.7, barrier=0.3)])
    assert "smaller --batch-envs" in text


def test_advice_for_the_data_of_one_process_is_not_that_process():
    text = advice([row_of("in_process", 1.0, 0.4, transfer=0.6, slowdown=-0.2)])
    assert "100 % of the loss is data transfer" in text
    assert "use --backend in_process" not in text


def test_advice_for_cheap_steps_is_not_other_processes():
    cheap = row_of("in_process", 1.0, 0.4, step_seconds_alone=1e-5, serial=0.6)
    assert "gain little from other processes" in advice([cheap])
    costly = row_of("in_process", 1.0, 0.4, serial=0.6)
    assert "use --backend processes or first_ready" in advice([costly])


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        ("transfer", "smaller observations"),
        ("policy", "a faster policy"),
        ("learner", "fewer update epochs"),
        ("slowdown", "other load is on these cores"),
    ],
)
def test_every_loss_has_a_remedy(cause, remedy):
    assert remedy in advice([row_of("processes", 1.0, 0.5, **{cause: 0.5})])


# --- steal time


LinuxTimes = namedtuple("LinuxTimes", "user nice system idle iowait irq softirq steal guest")
OtherTimes = namedtuple("OtherTimes", "user system idle")


def monitor_between(monkeypatch, before, after):
    monkeypatch.setattr(psutil, "cpu_times", lambda: before)
    monitor = StealTimeMonitor()
    monkeypatch.setattr(psutil, "cpu_times", lambda: after)
    return monitor


def test_steal_is_a_fraction_of_the_time_of_all_cores(monkeypatch):
    before = LinuxTimes(100, 0, 50, 1000, 0, 0, 0, 10, 7)
    after = LinuxTimes(160, 0, 50, 1020, 0, 0, 0, 30, 47)
    assert monitor_between(monkeypatch, before, after).steal_fraction() == pytest.approx(0.2)


def test_steal_is_zero_if_no_time_has_passed(monkeypatch):
    times = LinuxTimes(1, 2, 3, 4, 5, 6, 7, 8, 0)
    assert monitor_between(monkeypatch, times, times).steal_fraction() == 0.0


def test_steal_is_zero_where_the_system_does_not_report_it(monkeypatch):
    monitor = monitor_between(monkeypatch, OtherTimes(1, 2, 3), OtherTimes(2, 3, 4))
    assert monitor.steal_fraction() == 0.0


def test_steal_on_this_machine_is_a_fraction():
    assert 0.0 <= StealTimeMonitor().steal_fraction() <= 1.0
