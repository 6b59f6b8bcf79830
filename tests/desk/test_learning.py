"""Trained policies at the desk, and training that continues from recorded responses."""

import json

import numpy as np
import pytest

from helpers.desk import ENV, FIRST_DAY, assert_saves_as_evaluated, make_desk, play_days, running
from hundredfold.api import start_run, train
from hundredfold.cli import main
from hundredfold.cli.desk import DeskOptions, desk_policy
from hundredfold.cli.train import read_desk
from hundredfold.core.errors import SettingsError
from hundredfold.desk.recorded import read_events, recorded_responses, trips_csv
from hundredfold.desk.server import ServerOptions, create_app, export_lines
from hundredfold.envs.dvrp.evaluation import EVALUATION_SEED, simulate_days
from hundredfold.training.build import load_belief_model
from hundredfold.training.run_folder import RunFolder

NUM_CUSTOMERS = 6


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    done = train(
        "dvrp",
        num_customers=NUM_CUSTOMERS,
        population_size=12,
        city="hubs",
        num_envs=4,
        epochs=2,
        num_steps=12,
        eval_episodes=2,
        future_samples=2,
        save_dir=tmp_path_factory.mktemp("runs"),
        report=False,
    )
    return done.path


@pytest.mark.parametrize("num_days", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_a_run_saves_at_the_desk_what_evaluate_says(run_folder, num_days):
    policy = desk_policy(DeskOptions(run=str(run_folder)))
    days, population = simulate_days(
        policy.act, policy.settings, num_days, EVALUATION_SEED, shared_params=policy.beliefs.params(exploring=False)
    )
    assert days.made.any()
    assert_saves_as_evaluated(make_desk(policy=policy, learn=False), days, population, policy.settings)


def test_training_reads_a_running_desk_with_its_token(run_folder, tmp_path, monkeypatch):
    policy = desk_policy(DeskOptions(run=str(run_folder)))
    desk = make_desk(f"sqlite:///{tmp_path / 'desk.db'}", policy=policy)
    days, population = simulate_days("always_largest", policy.settings, 1, EVALUATION_SEED)
    play_days(desk, days, population)
    expected = recorded_responses(read_events(str(tmp_path / "desk.db")), policy.settings).responses.arrays()
    settings = RunFolder.open(run_folder).settings()
    with running(create_app(desk, ServerOptions(token="a token of this desk"))) as address:
        monkeypatch.delenv("HUNDREDFOLD_DESK_TOKEN", raising=False)
        with pytest.raises(SettingsError, match="set HUNDREDFOLD_DESK_TOKEN"):
            read_desk(address, settings, quiet=True)
        monkeypatch.setenv("HUNDREDFOLD_DESK_TOKEN", "a token of this desk")
        recorded = read_desk(address, settings, quiet=True).arrays()
    assert len(expected["offer"]) > 0
    for name, column in expected.items():
        np.testing.assert_array_equal(recorded[name], column)
    with pytest.raises(SettingsError, match="cannot read"):
        read_desk(address, settings, quiet=True)


def test_training_continues_from_the_responses_of_a_desk(run_folder, tmp_path):
    policy = desk_policy(DeskOptions(run=str(run_folder)))
    desk = make_desk(f"sqlite:///{tmp_path / 'desk.db'}", policy=policy)
    days, population = simulate_days("always_largest", policy.settings, 2, EVALUATION_SEED)
    play_days(desk, days, population)
    (tmp_path / "export.jsonl").write_text("".join(export_lines(desk)))
    from_file = recorded_responses(read_events(str(tmp_path / "export.jsonl")), policy.settings)
    from_database = recorded_responses(read_events(str(tmp_path / "desk.db")), policy.settings)
    assert len(from_file.responses) > 0
    assert from_file.num_skipped == 0
    for name, column in from_file.responses.arrays().items():
        np.testing.assert_array_equal(column, from_database.responses.arrays()[name])
    settings = RunFolder.open(run_folder).settings()
    recorded = read_desk(str(tmp_path / "desk.db"), settings, quiet=True)
    start_run(
        settings, recorded=recorded, init_from=run_folder, save_dir=tmp_path, name="second", quiet=True, report=False
    )
    model = load_belief_model(RunFolder.open(tmp_path / "second"), "last")
    rows = model.responses.rows()
    for name, column in from_file.responses.arrays().items():
        np.testing.assert_array_equal(rows.arrays()[name][: len(column)], column)
    trips = trips_csv((event for _, event in read_events(str(tmp_path / "desk.db"))), desk.base.city)
    assert len(trips.splitlines()) == 1 + 2 * NUM_CUSTOMERS
    desk.journal.close()


def test_recorded_responses_of_unknown_riders_are_skipped(tmp_path):
    desk = make_desk()
    events = []
    for number, rider in enumerate(("customer-1", "a stranger")):
        trip = {
            "rider": rider,
            "pickup": "Union Square",
            "dropoff": "SF General",
            "passengers": 1,
            "purpose": "medical",
            "windows": [[540.0, 570.0], [555.0, 585.0]],
            "is_appointment": False,
        }
        answer = {"choice": "offer", "minutes": [10.0, 0.0], "refused": [[30.0, 30.0]]}
        events.append({"seq": 2 * number, "kind": "request", "request_id": rider, "data": trip})
        events.append({"seq": 2 * number + 1, "kind": "response", "request_id": rider, "data": answer})
    lines = [json.dumps({**event, "day": FIRST_DAY.isoformat(), "rider": None}) for event in events]
    (tmp_path / "export.jsonl").write_text("\n".join(lines))
    found = recorded_responses(read_events(str(tmp_path / "export.jsonl")), ENV)
    assert (len(found.responses), found.num_skipped) == (0, 4), "neither made this trip before"
    desk.journal.close()


@pytest.mark.parametrize("content", ["", "not json", '{"seq": 1}'])
def test_a_source_that_is_no_desk_is_named(tmp_path, content):
    path = tmp_path / "wrong.jsonl"
    path.write_text(content)
    if content:
        with pytest.raises(SettingsError, match="line 1"):
            read_events(str(path))
    else:
        assert read_events(str(path)) == []
    with pytest.raises(SettingsError, match="no file"):
        read_events(str(tmp_path / "absent.db"))


def test_from_desk_is_for_dvrp(capsys, tmp_path):
    assert main.main(["train", "corridor", "--from-desk", str(tmp_path / "desk.db")]) == 2
    assert "--from-desk is for dvrp" in capsys.readouterr().err
