"""Costs of collecting with Ray, the prediction from them, and scaling over nodes."""

import json
import os

import pytest

from benchmarks.ray_costs import Costs
from helpers.training_runs import run_python
from hundredfold.cli import main
from hundredfold.core.errors import SettingsError
from hundredfold.profiling.ray_scaling import (
    AUTH_MODE,
    MAX_FRAGMENTS,
    NUM_FRAGMENTS,
    FragmentMeasurement,
    enough,
    measure_nodes,
    same_authentication,
    select_fragments,
)
from hundredfold.profiling.scaling import MeasuredEnv

COSTS = Costs(
    num_steps=100,
    actor_rate=10_000.0,
    learner_rate=50_000.0,
    adding_rate=200_000.0,
    sample_bytes=500.0,
    broadcast_bytes=1_000_000,
    broadcast_seconds=0.02,
)


def test_the_intake_rate_covers_adding_and_learning():
    assert COSTS.intake_rate == pytest.approx(40_000.0)


def test_the_prediction_has_enough_actors_to_saturate_the_learner():
    prediction = COSTS.predicted(1_000)
    assert prediction["epoch_seconds"] == pytest.approx(100_000 / 40_000)
    assert prediction["actors_to_saturate"] == 4
    assert prediction["driver_megabytes"] == pytest.approx(100.0)
    assert prediction["fragment_megabytes"] == pytest.approx(12.5)
    assert prediction["network_share"] == pytest.approx(40_000 * 500 / 1e9)


def test_more_envs_make_epochs_longer_without_more_actors():
    few, many = COSTS.predicted(1_000), COSTS.predicted(100_000)
    assert many["actors_to_saturate"] == few["actors_to_saturate"]
    assert many["epoch_seconds"] == pytest.approx(100 * few["epoch_seconds"])


def test_simulated_nodes_need_envs_that_wait():
    measured_env = MeasuredEnv("cartpole", "batch", lambda stamps: None, None)
    with pytest.raises(SettingsError, match="needs an env that waits"):
        measure_nodes(measured_env, None, [1, 2], [8], 1.0)


def fragments(*steal_fraction):
    return [
        FragmentMeasurement(1.0, steps=100, waited_seconds=1.0, broadcast_seconds=0.0, steal_fraction=share)
        for share in steal_fraction
    ]


def test_fragments_are_collected_until_enough_have_low_steal_time():
    undisturbed = fragments(*[0.0] * NUM_FRAGMENTS)
    assert enough(undisturbed, 1.0)
    assert not enough(undisturbed, NUM_FRAGMENTS + 1.0)
    assert not enough(undisturbed[1:] + fragments(0.3), 1.0)
    assert enough(undisturbed + fragments(0.3), 1.0)


def test_fragments_with_the_lowest_steal_time_are_used_if_all_are_disturbed():
    disturbed = fragments(*[0.5 - 0.01 * number for number in range(MAX_FRAGMENTS)])
    assert not enough(disturbed[1:], 1.0)
    assert enough(disturbed, 1.0)
    assert select_fragments(disturbed) == disturbed[: -NUM_FRAGMENTS - 1 : -1]


def test_only_undisturbed_fragments_are_used():
    all_fragments = fragments(*[0.0] * (NUM_FRAGMENTS + 2), 0.3)
    assert select_fragments(all_fragments) == all_fragments[:-1]


def test_nodes_need_the_backend_ray(capsys):
    assert main.main(["scale", "waiting", "--nodes", "1,2"]) != 0
    assert "--nodes and --backend ray need each other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "has_token", "mode"), [("", True, "token"), ("", False, "disabled"), ("token", False, "token")]
)
def test_nodes_use_a_token_exactly_if_drivers_do(tmp_path, monkeypatch, given, has_token, mode):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (AUTH_MODE, "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    if given:
        monkeypatch.setenv(AUTH_MODE, given)
    if has_token:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("0123456789abcdef" * 4)
    with same_authentication():
        assert os.environ[AUTH_MODE] == mode
    assert os.environ.get(AUTH_MODE, "") == given


@pytest.mark.slow
@pytest.mark.ray
def test_scaling_over_two_simulated_nodes(tmp_path):
    """With a token of the user, as an earlier local cluster leaves it."""
    pytest.importorskip("ray")
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("0123456789abcdef" * 4)
    argv = ["scale", "waiting", "--backend", "ray", "--nodes", "1,2", "--num-envs", "40"]
    argv += ["--seconds", "4", "--json"]
    code = f"import sys; from hundredfold.cli import main; sys.exit(main.main({argv!r}))"
    done = run_python(code, expect=0, env={"HOME": str(tmp_path)})
    rows = json.loads(done.stdout)["rows"]
    assert [row["nodes"] for row in rows] == [1, 2]
    for row in rows:
        assert 0 < row["efficiency"] <= 1
        assert row["fragment_bytes"] > 0
