"""`bench vector`: turns, rows and goals, and all systems on a few envs."""

import json

import pytest

from benchmarks import vector
from benchmarks.__main__ import main
from benchmarks.subjects import OurPlayer
from benchmarks.vector import Turn, Workload, calm_turn, contestants, goal_of, rows_of, take_turn
from hundredfold.envs.registry import callable_factory
from hundredfold.profiling.measure import OURS
from hundredfold.profiling.workloads import Computing, Talkative, Waiting

WAITING = Workload("waiting 10 ms", Waiting, 100, "waiting", "first_ready")


def row(rows, system, backend):
    (found,) = [row for row in rows if (row["system"], row["backend"]) == (system, backend)]
    return found


def test_rows_tell_medians_ratios_and_shares_of_the_ideal():
    turns = {
        (OURS, "first_ready"): [Turn(9_000, 96.0, 1.0), Turn(9_500, 97.0, 1.0), Turn(1, 0.0, 1.0)],
        ("gymnasium", "async"): [Turn(2_250, 22.5, 1.0)] * 3,
    }
    rows = rows_of(WAITING, turns)
    ours, theirs = row(rows, OURS, "first_ready"), row(rows, "gymnasium", "async")
    assert ours["steps_per_second"] == 9_000
    assert (ours["low"], ours["high"], ours["repeats"]) == (1, 9_500, 3)
    assert ours["ratio_to_ours"] == 1.0
    assert theirs["ratio_to_ours"] == 0.25
    # 100 envs had 100 seconds between them and were at work for 96 and 22.5.
    assert ours["efficiency"] == pytest.approx(0.96)
    assert theirs["efficiency"] == pytest.approx(0.225)
    assert ours["reached"] is True
    assert "goal" not in theirs


class Scripted:
    """Steps at once; a watch beside it says that the host took these shares, turn by turn."""

    def __init__(self, monkeypatch, *stolen):
        shares = iter(stolen)
        monkeypatch.setattr(vector.HostWatch, "stolen", lambda watch: next(shares))

    def advance(self):
        return 1, 0.0

    def rest(self):
        pass


def test_a_turn_that_the_host_disturbed_is_taken_again(monkeypatch):
    assert calm_turn(Scripted(monkeypatch, 0.3, 0.1, 0.01), 0.001).stolen == 0.01


def test_the_calmest_turn_counts_when_none_is_calm(monkeypatch):
    assert calm_turn(Scripted(monkeypatch, 0.3, 0.1, 0.2, 0.4), 0.001).stolen == 0.1


def test_rows_tell_what_the_host_took():
    turns = [Turn(1, 1.0, 1.0, 0.0), Turn(1, 1.0, 1.0, 0.25), Turn(1, 1.0, 1.0, 0.01)]
    assert rows_of(WAITING, {(OURS, "first_ready"): turns})[0]["stolen"] == 0.01


def test_a_goal_may_be_a_share_of_the_ideal():
    short = {"efficiency": 0.79, "steps_per_second": 1.0}
    goal = goal_of("waiting 10 ms", "first_ready, quarters", short, {})
    assert goal == {"goal": ">= 80 % of ideal", "reached": False}


def test_a_goal_may_be_a_multiple_of_a_peer():
    mine = {"steps_per_second": 30_000.0}
    goal = goal_of("CartPole-v1", "processes, seeded once", mine, {"gymnasium async": 1_000.0})
    assert goal["reached"] is True
    assert "is 30.0x" in goal["goal"]


def test_nothing_is_claimed_against_a_peer_that_is_not_there():
    assert goal_of("CartPole-v1", "batch env", {"steps_per_second": 1.0}, {}) == {}


def test_computing_envs_are_held_against_the_cores(monkeypatch):
    monkeypatch.setattr(vector, "usable_cores", lambda: 2)
    work = Workload("computing 1-5 ms", Computing, 100, "computing", "processes")
    (found,) = rows_of(work, {(OURS, "processes"): [Turn(1_000, 1.5, 1.0)]})
    assert found["efficiency"] == pytest.approx(0.75)


@pytest.mark.parametrize("backend", ["in_process", "processes", "first_ready"])
def test_a_player_rests_and_goes_on(backend):
    player = OurPlayer(backend, callable_factory(Talkative), 5)
    try:
        for _ in range(3):
            assert take_turn(player, 0.01).steps > 0
            assert sorted(player.waiting.tolist()) == [0, 1, 2, 3, 4]
    finally:
        player.close()


def test_all_systems_step_the_same_few_envs(capsys, monkeypatch):
    few = (
        Workload(vector.CARTPOLE, vector.WORKLOADS[0].make_env, 3),
        Workload("waiting 10 ms", Waiting, 3, "waiting", "first_ready"),
        Workload(vector.TALKATIVE, Talkative, 3),
    )
    monkeypatch.setattr(vector, "WORKLOADS", few)
    words = ["vector", "--repeats", "1", "--seconds", "0.05", "--json"]
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["command"] == ["benchmarks", *words]
    found = {(row["env"], row["system"], row["backend"]) for row in answer["rows"]}
    assert {
        ("CartPole-v1", OURS, "batch env"),
        ("CartPole-v1", "gymnasium", "async"),
        ("waiting 10 ms", OURS, "first_ready, quarters"),
        ("dict + 5 kB info", OURS, "processes, infos read"),
        ("dict + 5 kB info", "gymnasium", "sync"),
    } <= found
    assert ("waiting 10 ms", "gymnasium", "sync") not in found
    for one in answer["rows"]:
        assert one["num_envs"] == 3
        assert one["low"] <= one["steps_per_second"] <= one["high"]


def test_envpool_stands_beside_the_batch_env_where_it_is_installed():
    pytest.importorskip("envpool")
    found = contestants(Workload(vector.CARTPOLE, vector.WORKLOADS[0].make_env, 3))
    assert (OURS, "batch env") in found
    player = found["envpool", ""]()
    try:
        assert take_turn(player, 0.01).worked > 0
    finally:
        player.close()


def test_a_workload_that_is_not_there_is_refused(capsys):
    assert main(["vector", "--only", "chess"]) == 2
    assert "no workload has 'chess' in its name" in capsys.readouterr().err
