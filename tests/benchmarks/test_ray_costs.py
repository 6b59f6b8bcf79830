"""What collecting through Ray costs, and what follows from it."""

import json

import pytest

from benchmarks.ray_costs import Costs
from helpers.training_runs import run_python
from hundredfold.cli import main
from hundredfold.core.errors import SettingsError
from hundredfold.profiling.ray_scaling import (
    FRAGMENTS,
    MOST_FRAGMENTS,
    Taken,
    enough,
    measure_nodes,
    those_that_count,
)
from hundredfold.profiling.scaling import Subject

COSTS = Costs(
    num_steps=100,
    actor_rate=10_000.0,
    learner_rate=50_000.0,
    adding_rate=200_000.0,
    sample_bytes=500.0,
    broadcast_bytes=1_000_000,
    broadcast_seconds=0.02,
)


def test_a_driver_takes_in_what_it_lays_down_and_learns_from():
    assert COSTS.intake_rate == pytest.approx(40_000.0)


def test_as_many_actors_are_predicted_as_keep_the_learner_busy():
    found = COSTS.predicted(1_000)
    assert found["epoch_seconds"] == pytest.approx(100_000 / 40_000)
    assert found["actors_to_saturate"] == 4
    assert found["driver_megabytes"] == pytest.approx(100.0)
    assert found["fragment_megabytes"] == pytest.approx(12.5)
    assert found["network_share"] == pytest.approx(40_000 * 500 / 1e9)


def test_more_envs_make_epochs_longer_and_need_no_more_actors():
    few, many = COSTS.predicted(1_000), COSTS.predicted(100_000)
    assert many["actors_to_saturate"] == few["actors_to_saturate"]
    assert many["epoch_seconds"] == pytest.approx(100 * few["epoch_seconds"])


def test_nodes_are_simulated_for_envs_that_wait_only():
    subject = Subject("cartpole", "batch", lambda stamps: None, None)
    with pytest.raises(SettingsError, match="only envs that wait"):
        measure_nodes(subject, None, [1, 2], [8], 1.0)


def fragments(*stolen):
    return [Taken(1.0, steps=100, waited=1.0, broadcast=0.0, stolen=share) for share in stolen]


def test_fragments_are_collected_until_enough_were_calm():
    calm = fragments(*[0.0] * FRAGMENTS)
    assert enough(calm, 1.0)
    assert not enough(calm, FRAGMENTS + 1.0)
    assert not enough(calm[1:] + fragments(0.3), 1.0)
    assert enough(calm + fragments(0.3), 1.0)


def test_on_a_machine_that_is_never_calm_the_calmest_fragments_count():
    noisy = fragments(*[0.5 - 0.01 * number for number in range(MOST_FRAGMENTS)])
    assert not enough(noisy[1:], 1.0)
    assert enough(noisy, 1.0)
    assert those_that_count(noisy) == noisy[: -FRAGMENTS - 1 : -1]


def test_all_calm_fragments_count_and_no_other():
    taken = fragments(*[0.0] * (FRAGMENTS + 2), 0.3)
    assert those_that_count(taken) == taken[:-1]


def test_nodes_go_with_the_backend_ray(capsys):
    assert main.main(["scale", "waiting", "--nodes", "1,2"]) != 0
    assert "--nodes goes with --backend ray" in capsys.readouterr().err


@pytest.mark.slow
def test_two_nodes_give_more_than_one():
    pytest.importorskip("ray")
    words = ["scale", "waiting", "--backend", "ray", "--nodes", "1,2", "--num-envs", "40"]
    words += ["--seconds", "4", "--json"]
    done = run_python(
        f"import sys; from hundredfold.cli import main; sys.exit(main.main({words!r}))",
        expect=0,
        timeout=280,
    )
    rows = json.loads(done.stdout)["rows"]
    assert [row["nodes"] for row in rows] == [1, 2]
    for row in rows:
        assert 0 < row["efficiency"] <= 1
        assert row["fragment_bytes"] > 0
