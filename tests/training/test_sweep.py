"""Sweeps: ranges, trials in processes of their own or on a Ray cluster, stopping early, going on after a kill."""

import json
import os
import re
import signal
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from helpers.browser import BROWSER, inspect_page
from helpers.processes import run_process, start_process, wait_until
from helpers.ray_pool import shared_cluster
from hundredfold.cli.main import main
from hundredfold.cli.sweep import DEFAULT_SEARCH, SweepOptions, _named_flags, _space, _values
from hundredfold.cli.train import base_settings, parse
from hundredfold.config.run import ALGORITHMS
from hundredfold.config.toml import to_toml
from hundredfold.core.errors import CheckpointError, HundredfoldError, SettingsError, WorkerError
from hundredfold.report.sweep_page import draw_sweep
from hundredfold.training import sweep as training_sweep
from hundredfold.training.run_folder import RunFolder
from hundredfold.training.search_ranges import as_flag, parse_range
from hundredfold.training.sweep import Evaluation, Sweep, SweepPlan, TrialResult, pareto_front
from hundredfold.training.trial_runs import STOPPED, RayTrainings, TrainingActor

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


def sweep(folder, *, flags=(), seeds=(0,), target=None, default=0.9, start=start_stand_in):
    plan = SweepPlan(env="env", flags=tuple(flags), search=RATES, seeds=seeds, steps=4, target=target)
    space = {"learning_rate": parse_range("learning_rate", RATES["learning_rate"], 0.5)}
    events = []

    def start_run(given, log):
        return start([*given, *flags], log)

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


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_ranges_searched_by_default_are_settings_of_their_algorithm(algo):
    settings = base_settings("CartPole-v1", ["--algo", algo])
    for name, found in _space(DEFAULT_SEARCH[algo], settings).items():
        for value in getattr(found, "choices", None) or (found.low, found.high):
            flags = ["--algo", algo, *as_flag(name, value)]
            _, changed = parse(flags, settings, SweepOptions, "sweep")
            assert _values(changed)[name] == pytest.approx(value)


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


def test_a_trial_whose_first_seeds_are_below_the_median_gets_no_further_ones(tmp_path):
    made, _ = sweep(tmp_path, seeds=(0, 1, 2))
    for rate in (0.1, 0.2, 0.3, 0.4):
        made.study.enqueue_trial({"learning_rate": rate})
    made.run(trials=5, parallel=1)
    assert made.counts()["finished"] == 5
    # The other trials have a median of 3.6 after one seed and of 4.1 after two.
    active = made._next_trial()
    for scores, below in (([3.7], False), ([3.7, 4.7], False), ([3.7, 4.3], True), ([1.0], True)):
        active.results = [(score, 1.0, score) for score in scores]
        active.seed_index = len(scores)
        assert made._is_below_median(active) == below
    made.active.append(active)
    made._advance(active)
    assert made.counts()["pruned"] == 1
    assert not list(active.folder.glob("seed-*.log"))


def test_a_target_stops_runs_and_counts_seconds(tmp_path):
    made, _ = sweep(tmp_path, target=0.3, flags=("--hang", "1"))
    made.run(trials=1, parallel=1)
    (result,) = made.results()
    assert result.score == pytest.approx(-9.0)  # 0.9 * 10 s: reached at the first evaluation
    missed, _ = sweep(tmp_path / "missed", target=50.0)
    missed.run(trials=1, parallel=1)
    assert missed.results()[0].score == pytest.approx(-2 * 36.0)


def test_a_sweep_whose_first_trials_all_fail_shows_the_output(tmp_path):
    made, events = sweep(tmp_path, flags=("--fail", "1"))
    with pytest.raises(HundredfoldError, match="cannot train"):
        made.run(trials=9, parallel=1)
    assert events[1] == f"trial 0: failed; see the logs in {tmp_path / 'trials' / '0000'}"
    assert made.counts()["failed"] == 3


class LostRun:
    """Stands in for a training whose node was lost."""

    def poll(self):
        raise WorkerError("its node was lost.")

    def terminate(self):
        raise AssertionError("a lost run cannot be asked to end")

    def wait(self):
        raise WorkerError("its node was lost.")


def test_a_run_that_was_lost_with_its_node_is_started_again(tmp_path):
    started = []

    def start(flags, log):
        started.append(log)
        return LostRun() if len(started) < 3 else start_stand_in(flags, log)

    made, events = sweep(tmp_path, start=start)
    made.run(trials=1, parallel=1)
    assert len(started) == 3
    assert made.counts() == {"finished": 1, "pruned": 0, "failed": 0}
    assert events.count("trial 0: its node was lost.") == 2


def test_a_trial_that_is_lost_again_and_again_fails(tmp_path):
    made, events = sweep(tmp_path, start=lambda flags, log: LostRun())
    with pytest.raises(HundredfoldError, match="the last one was lost 3 times with its node"):
        made.run(trials=9, parallel=2)
    assert made.counts()["failed"] == 3
    assert events.count("trial 0: its node was lost.") == 3


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


def rows_of(capsys):
    """Rows that a sweep has printed, without the times that they took."""
    rows = json.loads(capsys.readouterr().out)["rows"]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.mark.process
def test_ranges_come_from_a_file_and_trials_are_trained_in_parallel(capsys, tmp_path):
    space = tmp_path / "space.toml"
    space.write_text('[search]\nlearning_rate = "1e-3,3e-3"\nnum_steps = "16,32"\nactivation = "tanh,relu"\n')
    flags = "--num-envs 8 --steps 512 --eval-interval 1 --eval-episodes 2 --trials 3 --seeds 2 --parallel 3 --json"
    command = ["sweep", "cartpole", *flags.split(), "--save-dir", str(tmp_path), "--name", "s", "--space", str(space)]
    # A flag takes precedence over the file.
    assert main([*command, "--search", "num_steps=16,64"]) == 0
    rows = rows_of(capsys)
    assert sorted(row["trial"] for row in rows) == [0, 1, 2]
    for row in rows:
        assert row["learning_rate"] in (1e-3, 3e-3)
        assert row["num_steps"] in (16, 64)
        assert row["activation"] in ("tanh", "relu")
        for seed in (42, 43):
            run = RunFolder.open(tmp_path / "s" / "trials" / f"{row['trial']:04d}" / f"seed-{seed}")
            used = _values(run.settings())
            assert {name: used[name] for name in ("learning_rate", "num_steps", "activation", "seed")} == {
                **{name: row[name] for name in ("learning_rate", "num_steps", "activation")},
                "seed": seed,
            }
    # Trials were trained at the same time: each began before the first one had ended.
    begun, ended = (
        [path.stat().st_mtime for path in sorted((tmp_path / "s").glob(f"trials/*/{name}"))]
        for name in ("seed-42/settings.toml", "seed-43.json")
    )
    assert max(begun) < min(ended)


@pytest.mark.parametrize("text", ["learning_rate = 1", "[search]", "[ranges]\nlearning_rate = 'log:1e-4..1e-2'"])
def test_a_file_without_ranges_is_refused(capsys, tmp_path, text):
    space = tmp_path / "space.toml"
    space.write_text(text)
    assert main(["sweep", "cartpole", "--space", str(space), "--save-dir", str(tmp_path)]) == 2
    assert "expected a table [search]" in capsys.readouterr().err


def test_what_runs_execute_is_named_when_they_are_resumed():
    ray = ["--backend", "ray", "--address", "auto"]
    frozen = ["--env-kwargs", "is_slippery=false", "map_name=4x4"]
    _, third_party = parse([*ray, *frozen], base_settings("FrozenLake-v1", []), SweepOptions, "sweep")
    assert _named_flags(third_party) == [*frozen, "--address", "auto"]
    _, own_red = parse(["--red", "my_module:Red"], base_settings("cage2", []), SweepOptions, "sweep")
    assert _named_flags(own_red) == ["--red", "my_module:Red"]
    assert _named_flags(base_settings("cartpole", [])) == []


@pytest.mark.process
def test_a_run_of_a_sweep_needs_no_trust_where_another_user_has_started_it(capsys, tmp_path, monkeypatch):
    flags = "--num-envs 4 --num-steps 8 --epochs 2 --eval-interval 1 --eval-episodes 1 --backend in_process --json"
    search = ["--search", "learning_rate=1e-3,3e-3", "--env-kwargs", "is_slippery=false", "map_name=4x4"]
    command = ["sweep", "FrozenLake-v1", *flags.split(), *search, "--save-dir", str(tmp_path), "--name", "s"]
    assert main([*command, "--trials", "1"]) == 0
    whole = rows_of(capsys)
    # As if the sweep had been killed before the trial was told to be finished.
    (tmp_path / "s" / "study.db").unlink()
    (tmp_path / "s" / "trials" / "0000" / "seed-42.json").unlink()
    (tmp_path / "s" / "trials" / "0000" / "seed-42" / ".origin").write_text("of another user\n")
    assert main([*command, "--trials", "1"]) == 0
    assert rows_of(capsys) == whole


@pytest.mark.ray
def test_a_sweep_on_a_cluster_finds_the_same_trials_as_one_on_this_machine(capsys, tmp_path):
    shared_cluster()
    flags = "--search learning_rate=log:1e-4..1e-2 --num-envs 8 --steps 512 --eval-interval 1 --eval-episodes 2"
    command = ["sweep", "cartpole", *flags.split(), "--trials", "2", "--save-dir", str(tmp_path), "--json"]
    assert main([*command, "--name", "here"]) == 0
    here = rows_of(capsys)
    assert main([*command, "--name", "cluster", "--ray-address", "local"]) == 0
    assert rows_of(capsys) == here
    # It is continued without the cluster, as the plan is the same.
    assert main([*command, "--name", "cluster"]) == 0
    assert rows_of(capsys) == here


@pytest.mark.slow
@pytest.mark.ray
def test_a_sweep_on_two_nodes_that_loses_one_finds_the_same_trials(tmp_path):
    flags = "--search learning_rate=log:1e-4..1e-2 --num-envs 8 --steps 32768 --save-interval 4 --eval-interval 8"
    command = ["sweep", "cartpole", *flags.split(), "--trials", "2", "--parallel", "2", "--save-dir", str(tmp_path)]
    path = os.pathsep.join((str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")))
    code = "from helpers import lost_node; lost_node.sweep()"
    done = run_process(
        [sys.executable, "-c", code, *command, "--name", "lost"],
        env={"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0"},
    )
    assert "its node was lost" in done.stderr
    run_process([sys.executable, "-m", "hundredfold", *command, "--name", "whole"])
    lost, whole = (json.loads((tmp_path / name / "results.json").read_text())["trials"] for name in ("lost", "whole"))
    for trial in (*lost, *whole):
        del trial["seconds"]
    assert lost == whole


@pytest.mark.ray
def test_a_training_whose_actor_is_killed_ends_and_continues_from_its_checkpoint(tmp_path):
    ray = shared_cluster()
    trainings = RayTrainings("local", 1)
    started = []

    def start(flags, log):
        started.append((trainings.start(flags, log), flags))
        return started[-1][0]

    flags = "--num-envs 8 --num-steps 16 --epochs 60 --save-interval 1 --eval-interval 2 --eval-episodes 2"
    _, settings = parse(flags.split(), base_settings("cartpole", []), SweepOptions, "sweep")
    plan = SweepPlan(env="cartpole", flags=(), search=RATES, seeds=(0,), steps=8 * 16 * 60)
    space = {"learning_rate": parse_range("learning_rate", RATES["learning_rate"], 0.5)}
    made = Sweep(tmp_path, plan, space, {"learning_rate": 1e-3}, start_run=start, on_event=lambda line: None)
    made.start_file.write_text(to_toml(settings))
    run = RunFolder(made.folder / "trials" / "0000" / "seed-0")
    active = made._next_trial()
    made.active.append(active)
    made._advance(active)
    wait_until(lambda: list(run.checkpoints.glob("*/manifest.json")), "the first checkpoint")
    ray.kill(started[0][0].actor)
    with pytest.raises(WorkerError, match="its node was lost or ended it"):
        started[0][0].wait()
    made.active.clear()
    # Waits until nothing writes to the folder any more.
    made.run(trials=1, parallel=1)
    assert made.counts() == {"finished": 1, "pruned": 0, "failed": 0}
    (_, flags) = started[1]
    assert flags[:3] == ["cartpole", "--resume", str(run.path)]
    assert len(started) == 2
    trainings.close()


@pytest.mark.ray
def test_a_training_that_waits_for_cores_can_be_ended(tmp_path):
    shared_cluster()
    with pytest.warns(UserWarning, match="no node of the cluster has 1000 cores"):
        trainings = RayTrainings("local", 1, cpus=1000)
    waiting = trainings.start(["cartpole"], tmp_path / "seed-0.log")
    assert waiting.poll() is None
    waiting.terminate()
    with pytest.raises(WorkerError, match="its node was lost or ended it"):
        waiting.wait()
    trainings.close()


@pytest.mark.ray
def test_a_node_without_the_folder_of_the_sweep_is_an_error(tmp_path):
    shared_cluster()
    trainings = RayTrainings("local", 1)
    with pytest.raises(SettingsError, match=r"does not see .*/missing: .* share under the same path"):
        trainings.start(["cartpole"], tmp_path / "missing" / "seed-0.log").wait()
    trainings.close()


def test_a_training_that_was_stopped_before_it_began_does_not_begin(tmp_path):
    actor = TrainingActor()
    actor.stop()
    assert actor.train(["cartpole"], tmp_path / "seed-0.log", Path.cwd()) == STOPPED
    assert not list(tmp_path.iterdir())


@BROWSER
@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_of_a_sweep_is_drawn_at_every_width(tmp_path, width):
    results = [
        TrialResult(n, {"learning_rate": 10.0**-n, "activation": "tanh"}, 100.0 - n * n, 5.0 + n, (90.0, 110.0 - n))
        for n in range(1, 6)
    ]
    page = tmp_path / "sweep.html"
    shares = {"learning_rate": 0.7, "activation": 0.3}
    counts = {"finished": 5, "pruned": 2, "failed": 0}
    page.write_text(draw_sweep("cartpole", results, counts, shares, target=None, command="hundredfold sweep"), "utf-8")
    seen = inspect_page(page, width, tmp_path / "profile")
    assert seen["sections"] == ["Trials", "Return against time", "Which settings matter", "Best trials"]
    assert seen["charts"] == seen["drawn"] == 3
    assert seen["failed"] == []
    assert seen["rows"] == 5
    assert seen["wanted_width"] <= seen["given_width"] <= width


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
        (["--trial-cpus", "-1"], "--trial-cpus must be at least 0"),
        (["--trial-gpus", "nan"], "--trial-gpus must be at least 0"),
    ],
)
def test_bad_flags_get_a_clear_error(capsys, tmp_path, flags, words):
    assert main(["sweep", "cartpole", *flags, "--save-dir", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_help_of_a_sweep_on_a_gymnasium_env_shows_the_settings_that_its_trials_start_from(capsys):
    with pytest.raises(SystemExit):
        main(["sweep", "CartPole-v1", "--help"])
    captured = capsys.readouterr()
    for flag in ("num-envs", "num-steps", "hidden-sizes"):
        chosen = re.search(rf"--{flag} (\S+):", captured.err).group(1)
        assert re.search(rf"--{flag} .*?\(default: {chosen}\)", captured.out, re.DOTALL)
