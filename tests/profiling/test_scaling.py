"""Shares of the ideal, and the advice that follows from them."""

import numpy as np
import pytest

from hundredfold.backends.env_profile import StepCosts
from hundredfold.backends.settings import WorkerSettings
from hundredfold.envs.registry import settings_class
from hundredfold.profiling.scaling import LOSSES, Subject, advice, lanes_of, shares_of, subject_of
from hundredfold.profiling.timeline import PHASES, Account


def measured(step_seconds=0.010, **shares):
    return Account(100.0, step_seconds, {name: shares.get(name, 0.0) for name in PHASES})


def line(backend, rate, efficiency, num_envs=100, step_seconds_alone=0.01, **lost):
    return {
        "backend": backend,
        "num_envs": num_envs,
        "steps_per_second": rate,
        "efficiency": efficiency,
        "step_seconds_alone": step_seconds_alone,
        **{f"lost_to_{name}": lost.get(name, 0.0) for name in LOSSES},
    }


def subject(waits):
    costs = np.full(10, 0.01)
    found = StepCosts(costs, 0.02 * costs if waits else costs, 10 if waits else 0, 100)
    return Subject("some", "waiting" if waits else "computing", lambda stamps: None, found)


# --- shares


def test_lanes_nobody_uses_are_lost_to_stepping_one_by_one():
    shares = shares_of(measured(stepping=1.0), 0.010, used=1 / 8, kind="waiting")
    assert shares["stepping"] == pytest.approx(1 / 8)
    assert shares["one_by_one"] == pytest.approx(7 / 8)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_steps_that_take_longer_than_alone_are_no_gain():
    found = measured(step_seconds=0.020, stepping=0.8, moving=0.2)
    shares = shares_of(found, 0.015, used=1.0, kind="computing")
    assert shares["stepping"] == pytest.approx(0.6)
    assert shares["slower"] == pytest.approx(0.2)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_waiting_envs_are_forgiven_the_luck_of_the_draw():
    found = measured(step_seconds=0.0105, stepping=1.0)
    assert shares_of(found, 0.010, used=1.0, kind="waiting")["slower"] == 0.0
    assert shares_of(found, 0.010, used=1.0, kind="computing")["slower"] > 0.0


def test_steps_that_were_faster_than_alone_do_not_count_twice():
    shares = shares_of(measured(step_seconds=0.005, stepping=1.0), 0.010, 1.0, "computing")
    assert shares["stepping"] == pytest.approx(1.0)


# --- lanes and ideals


def test_waiting_envs_have_a_lane_each_and_computing_ones_share_a_worker():
    workers = WorkerSettings(workers=2)
    assert lanes_of(subject(True), "processes", 5, workers).tolist() == [0, 1, 2, 3, 4]
    assert lanes_of(subject(False), "first_ready", 5, workers).tolist() == [0, 0, 1, 1, 1]
    assert lanes_of(subject(True), "in_process", 3, workers).tolist() == [0, 0, 0]


def test_the_ideal_is_capped_by_cores_where_envs_compute_and_says_so():
    assert subject(True).most(100, cores=2) == 100
    assert subject(False).most(100, cores=2) == 2
    assert subject(False).most(1, cores=2) == 1
    assert "N times one env" in subject(True).ideal(2)
    assert "there are 2 cores" in subject(False).ideal(2)


def test_an_env_of_ours_is_held_against_a_batch_of_one():
    found = subject_of("corridor", settings_class("corridor")())
    assert found.kind == "batch"
    assert found.most(64, cores=2) == 64
    assert "batch of one" in found.ideal(2)


@pytest.mark.parametrize(("name", "kind"), [("waiting", "waiting"), ("computing", "computing")])
def test_envs_of_known_cost_are_recognised(name, kind):
    assert subject_of(name).kind == kind


# --- advice


def test_the_barrier_calls_for_first_ready():
    told = advice([line("processes", 2_700, 0.27, barrier=0.67, moving=0.06)])
    assert "92 % of the loss is the barrier" in told
    assert "use --backend first_ready" in told


def test_the_best_of_several_is_advised_with_what_holds_back_the_next():
    rows = [
        line("in_process", 100, 0.01, one_by_one=0.99),
        line("processes", 2_700, 0.27, barrier=0.7, moving=0.03),
        line("first_ready", 9_600, 0.96, moving=0.04),
        line("processes", 1e9, 1.0, num_envs=8),
    ]
    told = advice(rows)
    assert told.startswith("Use --backend first_ready: it reaches 96 % of the ideal with 100 envs.")
    assert "With processes, 96 % of the loss is the barrier" in told


def test_where_nothing_is_lost_nothing_is_advised():
    assert "next to nothing left to gain" in advice([line("first_ready", 1.0, 0.97, moving=0.03)])


def test_first_ready_is_not_advised_to_itself():
    told = advice([line("first_ready", 1.0, 0.7, barrier=0.3)])
    assert "smaller --batch-envs" in told


def test_cheap_steps_are_not_sent_to_other_processes():
    cheap = line("in_process", 1.0, 0.4, step_seconds_alone=1e-5, one_by_one=0.6)
    assert "gain little from other processes" in advice([cheap])
    costly = line("in_process", 1.0, 0.4, one_by_one=0.6)
    assert "use --backend processes or first_ready" in advice([costly])


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        ("moving", "show less in observations"),
        ("policy", "a faster policy"),
        ("learner", "fewer passes"),
        ("slower", "other work is on these cores"),
    ],
)
def test_every_loss_has_its_remedy(cause, remedy):
    assert remedy in advice([line("processes", 1.0, 0.5, **{cause: 0.5})])
