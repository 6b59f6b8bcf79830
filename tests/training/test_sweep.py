"""Sweeps: ranges, trials in processes of their own, stopping early, going on after a kill."""

import json
import signal
import sys
import textwrap

import pytest

pytest.importorskip("optuna")

from helpers.processes import run_process, start_process, wait_until
from hundredfold.cli.main import main
from hundredfold.core.errors import CheckpointError, HundredfoldError, SettingsError
from hundredfold.training import sweep as training_sweep
from hundredfold.training.run_folder import RunFolder
from hundredfold.training.sweep import Evaluation, Sweep, SweepPlan, TrialResult, pareto_front, parse_range

# Stands in for a training: writes evaluations of a known function of the learning rate.
TRAINING = textwrap.dedent(
    """
    import json, pathlib, sys, time
    flags = dict(zip(sys.argv[2::2], sys.argv[3::2]))
    rate, seed = float(flags["--learning-rate"]), int(flags["--seed"])
    run = pathlib.Path(flags["--save-dir"], flags["--name"])
    (run / "checkpoints").mkdir(parents=True)
    if "--fail" in flags:
        sys.exit("cannot train")
    with (run / "metrics.jsonl").open("w") as file:
        for epoch in range(1, 5):
            score = (1 - abs(rate - 0.3)) * epoch + seed
            row = {"eval/return_mean": score, "wall_seconds": 10.0 * epoch * rate, "total_steps": epoch}
            file.write(json.dumps(row) + "\\n")
            file.flush()
    if flags.get("--hang"):
        time.sleep(1000)
    """
)
RATES = {"learning_rate": "0.0..1.0"}


@pytest.fixture(autouse=True)
def poll_often(monkeypatch):
    monkeypatch.setattr(training_sweep, "POLL_SECONDS", 0.01)


def start_stand_in(flags, log):
    arguments = [flag for flag in flags if flag != "--quiet"]
    with log.open("ab") as output:
        return start_process([sys.executable, "-c", TRAINING, *arguments], stdout=output, stderr=output)


def sweep(folder, *, flags=(), seeds=(0,), target=None, default=0.9):
    plan = SweepPlan(env="env", flags=tuple(flags), search=RATES, seeds=seeds, steps=4, target=target)
    space = {"learning_rate": parse_range("learning_rate", RATES["learning_rate"], 0.5)}
    events = []

    def start_run(given, log):
        return start_stand_in([*given, *flags], log)

    made = Sweep(folder, plan, space, {"learning_rate": default}, start_run=start_run, on_event=events.append)
    return made, events


@pytest.mark.parametrize(
    ("text", "value", "inside", "outside"),
    [
        ("log:1e-4..1e-2", 0.001, 0.01, 0.02),
        ("0.1..0.3", 0.2, 0.1, 0.35),
        ("2..1e1", 4, 10, 11),
        ("16,32,64", 16, 32, 48),
        ("relu,tanh", "relu", "tanh", "silu"),
        ("true,false", True, False, None),
    ],
)
def test_ranges_follow_the_type_of_the_setting(text, value, inside, outside):
    found = parse_range("x", text, value)
    known = getattr(found, "choices", None)
    if known is not None:
        assert inside in known
        assert outside not in known
    else:
        assert found.low <= inside <= found.high < outside
        assert found.log == text.startswith("log:")
        assert isinstance(found.low, type(value))


@pytest.mark.parametrize(
    ("text", "value"),
    [("1..0", 0.5), ("log:0..1", 0.5), ("16", 16), ("a..b", 0.5), ("1.5..2", 1), ("x..y", "relu"), ("nan..1", 0.5)],
)
def test_ranges_that_make_no_sense_are_refused(text, value):
    with pytest.raises(SettingsError, match="--search x"):
        parse_range("x", text, value)


def test_the_settings_as_given_are_tried_first_and_the_search_beats_them(tmp_path):
    made, _ = sweep(tmp_path, seeds=(0, 2))
    made.run(trials=6, parallel=2)
    results = made.results()
    first = next(result for result in results if result.number == 0)
    assert first.params == {"learning_rate": 0.9}
    assert first.returns == pytest.approx((1.6, 3.6))
    assert first.score == pytest.approx(2.6)
    assert first.seconds == pytest.approx(72.0)
    assert results[0].score > first.score
    assert sum(made.counts().values()) == 6


def test_unpromising_trials_are_stopped_early(tmp_path):
    made, events = sweep(tmp_path, default=0.3)
    made.run(trials=8, parallel=1)
    pruned = made.counts()["pruned"]
    assert pruned > 0
    assert sum("stopped early" in event for event in events) == pruned
    assert made.counts()["finished"] == 8 - pruned


def test_a_target_stops_runs_and_counts_seconds(tmp_path):
    made, _ = sweep(tmp_path, target=0.3, flags=("--hang", "1"))
    made.run(trials=1, parallel=1)
    (result,) = made.results()
    assert result.score == pytest.approx(-9.0)  # 0.9 * 10 s: reached at the first evaluation
    missed, _ = sweep(tmp_path / "missed", target=50.0)
    missed.run(trials=1, parallel=1)
    assert missed.results()[0].score == pytest.approx(-2 * 36.0)


def test_a_sweep_whose_first_trials_all_fail_shows_the_output(tmp_path):
    made, _ = sweep(tmp_path, flags=("--fail", "1"))
    with pytest.raises(HundredfoldError, match="cannot train"):
        made.run(trials=9, parallel=1)
    assert made.counts()["failed"] == 3


def test_a_stopped_trial_goes_on_and_another_plan_is_refused(tmp_path):
    made, _ = sweep(tmp_path, flags=("--hang", "1"))
    active = made._next_trial()
    made.active.append(active)
    made._advance(active)
    wait_until(lambda: list(active.folder.glob("seed-0/metrics.jsonl")), "the metrics")
    made._stop_all()
    assert active.process.returncode == -signal.SIGTERM
    again, events = sweep(tmp_path, flags=("--hang", "1"))
    (stale,) = again.study.get_trials(deepcopy=False)
    assert again._continued(stale).params == active.params
    assert events == ["trial 0 continues: learning_rate 0.9"]
    with pytest.raises(SettingsError, match="another env, search"):
        sweep(tmp_path, flags=("--other", "1"))


def test_trials_are_compared_at_equal_steps_or_where_seconds_count_at_equal_seconds():
    by_steps = SweepPlan(env="env", flags=(), search=RATES, seeds=(0,), steps=4000)
    by_seconds = SweepPlan(env="env", flags=(), search=RATES, seeds=(0,), steps=4000, target=1.0)
    slow, quick = Evaluation(0.5, 9.0, 2000), Evaluation(0.5, 3.0, 2000)
    assert by_steps.stage(slow) == by_steps.stage(quick) == 10
    assert by_seconds.stage(quick) < by_seconds.stage(slow)
    assert by_seconds.stage(slow) == by_seconds.stage(Evaluation(0.5, 9.0, 500))


def test_two_processes_cannot_search_in_one_folder(tmp_path):
    made, _ = sweep(tmp_path)
    other = RunFolder(tmp_path)
    other.claim()
    with pytest.raises(CheckpointError, match="another process"):
        made.run(trials=1, parallel=1)
    other.release()
    made.run(trials=1, parallel=1)
    assert made.counts()["finished"] == 1


def test_a_run_waits_until_the_one_of_a_killed_sweep_has_saved_and_ended(tmp_path):
    made, _ = sweep(tmp_path)
    active = made._next_trial()
    made.active.append(active)
    orphan = RunFolder(active.folder / "seed-0")
    orphan.path.mkdir()
    orphan.claim()
    made._advance(active)
    assert active.process is None
    assert orphan.path.exists()
    orphan.release()
    made.active.clear()
    made.run(trials=1, parallel=1)
    assert made.counts() == {"finished": 1, "pruned": 0, "failed": 0}


def test_no_trial_on_the_front_is_beaten_in_both():
    trials = [
        TrialResult(n, {}, 0.0, s, (value - 1, value + 1))
        for n, (value, s) in enumerate([(1, 5), (3, 9), (2, 5), (2, 8), (0, 1)])
    ]
    assert [one.number for one in pareto_front(trials)] == [4, 2, 1]


@pytest.mark.process
def test_a_sweep_of_real_trainings_writes_settings_that_train_takes(capsys, tmp_path):
    flags = "--search learning_rate=1e-3,3e-3 --num-envs 8 --steps 1024 --eval-interval 1 --eval-episodes 2"
    command = ["sweep", "cartpole", *flags.split(), "--save-dir", str(tmp_path), "--name", "s", "--json"]
    assert main([*command, "--trials", "1"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["trial"], row["learning_rate"]) for row in rows] == [(0, 1e-3)]
    folder = tmp_path / "s"
    assert "Best trials" in (folder / "sweep.html").read_text()
    assert json.loads((folder / "results.json").read_text())["counts"]["finished"] == 1
    train = ["train", "cartpole", "--config", str(folder / "best.toml"), "--save-dir", str(tmp_path), "--name", "again"]
    assert main([*train, "--quiet"]) == 0
    metrics = [json.loads(line) for line in (tmp_path / "again" / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["eval/return_mean"] == rows[0]["evaluated_return"]


@pytest.mark.slow
@pytest.mark.process
def test_a_sweep_killed_three_times_finds_the_same_trials(tmp_path):
    flags = "--search learning_rate=log:1e-4..1e-2 --num-envs 8 --steps 8192 --eval-interval 2 --trials 4"
    command = [sys.executable, "-m", "hundredfold", "sweep", "cartpole", *flags.split(), "--save-dir", str(tmp_path)]
    for finished in (1, 2, 3):
        process = start_process([*command, "--name", "killed"], start_new_session=True)
        wait_until(lambda count=finished: len(list(tmp_path.glob("killed/trials/*/seed-42.json"))) >= count, "a trial")
        process.kill()
        process.wait()
    for name in ("killed", "whole"):
        run_process([*command, "--name", name])
    killed, whole = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("killed", "whole"))
    for trial in (*killed["trials"], *whole["trials"]):
        del trial["seconds"]
    assert killed["trials"] == whole["trials"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--search", "learning_rat=1..2"], "did you mean learning_rate"),
        (["--search", "learning_rate"], "expects NAME=RANGE"),
        (["--eval-interval", "0"], "--eval-interval must be at least 1"),
        (["--trials", "0"], "--trials must be at least 1"),
    ],
)
def test_bad_flags_get_a_clear_error(capsys, tmp_path, flags, words):
    assert main(["sweep", "cartpole", *flags, "--save-dir", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
