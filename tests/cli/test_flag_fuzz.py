"""Every flag of every command with odd values: an answer each time, never a traceback or a hang.

The quick test parses and checks a sample of values and stops where the work would begin. The slow one runs
all of them for real on tiny settings, and interrupts what takes longer than some seconds as Ctrl-C would.
"""

import faulthandler
import os
import random
import re
import resource
import signal
import threading
from pathlib import Path

import pytest

import hundredfold
from hundredfold.cli import main
from hundredfold.envs.dvrp.data_template import write_template

VALUES = (
    *("", " ", "-", "--", "x", "é", "\x1b[31m", "a" * 5000, "None", "null", "true", "auto", "0x10", "1_0", "1,2"),
    *("-1", "0", "1", "2", "0.5", "-0.0", "1.5", "1e3", "1e-400", "1e400", "nan", "inf", "-inf", "7" * 25, "7" * 5000),
    *("/", ".", "..", "../..", "~", "/dev/null", "/proc/self/mem", "no/such/file", "a=b", "=", "[]", "{}", "%s", "1;2"),
)
# How much work is done: a large value is valid and only takes long.
WORK = {"epochs", "episodes", "steps", "days", "seeds", "updates", "trials", "parallel"}
SIZES = ["--epochs", "1", "--num-envs", "2", "--num-steps", "4", "--eval-episodes", "2", "--quiet"]
TRIP = ("rider=Ada", "pickup=Ferry Building", "dropoff=SF General", "pickup_time=09:10")
SECONDS = 5.0
HANG_SECONDS = 900
CODES = {0, 1, 2, 130}


def commands(run):
    """Each command with arguments that work, by name."""
    return {
        "train corridor": ["train", "corridor", *SIZES],
        "train dqn": ["train", "corridor", "--algo", "dqn", "--learning-starts", "4", *SIZES],
        "train Gymnasium": ["train", "CartPole-v1", "--backend", "in_process", *SIZES],
        "train processes": ["train", "CartPole-v1", "--backend", "processes", "--workers", "1", *SIZES],
        "train dvrp": ["train", "dvrp", "--num-customers", "3", *SIZES],
        "train cage2": ["train", "cage2", *SIZES],
        "resume": ["train", "--resume", run, "--quiet"],
        "estimate": ["estimate", "corridor", "--no-measure"],
        "evaluate run": ["evaluate", run, "--episodes", "2"],
        "evaluate cage2": ["evaluate", "cage2", "--policy", "sleep", "--episodes", "2"],
        "evaluate dvrp": ["evaluate", "dvrp", "--policy", "none", "--days", "2"],
        "compare": ["compare", "dvrp", "--num-envs", "2,4", "--seeds", "1", "--days", "2", "--episodes", "16"],
        "watch": ["watch", "corridor", "--policy", "random"],
        "watch cage2": ["watch", "cage2", "--policy", "sleep"],
        "verify": ["verify", "cage2"],
        "report": ["report", run],
        "export": ["export", run, "--torchscript"],
        "envs": ["envs"],
        "scale": ["scale", "corridor", "--num-envs", "2", "--seconds", "0.1"],
        "train-oracle": ["train-oracle", "--updates", "1", "--num-customers", "3", "--quiet"],
        "doctor": ["doctor"],
        "sweep": ["sweep", "corridor", "--trials", "1", "--search", "learning_rate=1e-3..1e-2", *SIZES[:-1]],
        "serve": ["serve", "--customers", "3", "--port", "0", "--database-url", "sqlite://", "--quiet"],
        "quote": ["quote", "--customers", "3", "--policy", "none", "--request", *TRIP],
        "data": ["data", "check", str(Path(run).parent / "data" / "trips.csv"), "--num-customers", "3"],
        "watch run": ["watch", run],
        "watch dvrp": ["watch", "dvrp", "--policy", "none"],
    }


# The functions that do the work of a command.
WORKERS = (
    *("cli.train.start_run", "cli.train.resume_run", "cli.estimate.estimate_run", "cli.evaluate.evaluate"),
    *("cli.cage2.evaluate_table", "cli.evaluate_dvrp._evaluate", "cli.compare.train_all", "cli.export.export"),
    *("cli.report.write_run_report", "cli.train_oracle.make_training", "envs.cage2.conformance.verify"),
    *("cli.watch.record_video", "envs.cage2.episodes.record_episodes", "envs.cage2.conformance.check_returns"),
    *("profiling.scaling.profile_env", "profiling.scaling.measure_scaling", "envs.dvrp.evaluation.simulate_days"),
    *("training.sweep.Sweep", "desk.service.Desk", "cli.data.check_data"),
)


class WorkBegins(BaseException):
    """Raised in place of a command's work."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    settings = {"epochs": 1, "num_envs": 2, "num_steps": 4, "eval_interval": 0}
    folder = tmp_path_factory.mktemp("runs")
    write_template(folder / "data")
    return str(hundredfold.train("corridor", save_dir=folder, **settings).path)


@pytest.fixture
def flags(run, capsys):
    """The flags of each command, from its help."""
    found = {}
    for name, argv in commands(run).items():
        capsys.readouterr()
        call([*argv, "--help"])
        text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        found[name] = sorted(set(re.findall(r"--[a-z][a-z0-9-]*", text)) - {"--help"})
    assert all(found[name] for name in found if name != "envs"), found
    assert sum(map(len, found.values())) > 300
    return found


def test_every_command_is_tried():
    assert {argv[0] for argv in commands("run").values()} == set(main.COMMANDS)


def call(argv):
    """Exit code of a command; tyro raises SystemExit."""
    try:
        return main.main(argv)
    except SystemExit as error:
        return error.code


def cases(run, flags, number, seed=0):
    """Pairs of a command line and its odd flag: every flag of every command, then every positional argument."""
    rng = random.Random(seed)
    made = []
    pairs = [(name, flag) for name, named in flags.items() for flag in named]
    rng.shuffle(pairs)  # a small sample has flags of many commands
    while len(made) < number:
        name, flag = pairs[len(made) % len(pairs)]
        argv, value = commands(run)[name], rng.choice(VALUES)
        if flag.removeprefix("--") in WORK and value.isdecimal() and len(value) > 2:
            value = "0"
        if len(made) % 10 == 9:
            made.append([argv[0], value, *argv[2:]])
        elif rng.random() < 0.1:
            made.append([*argv, flag])
        else:
            made.append([*argv, *([f"{flag}={value}"] if rng.random() < 0.5 else [flag, value])])
    return made


def check(argv, capsys):
    code = call(argv)
    captured = capsys.readouterr()
    assert code in CODES, argv
    assert "Traceback" not in captured.err, (argv, captured.err)
    # A quiet command that is interrupted has nothing to say.
    assert code in (0, 130) or captured.err.strip() or captured.out.strip(), argv


def test_odd_values_of_flags_are_checked_before_the_work_begins(run, flags, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def stop(*args, **options):
        raise WorkBegins

    for worker in WORKERS:
        monkeypatch.setattr(f"hundredfold.{worker}", stop)
    for argv in cases(run, flags, 150):
        try:
            check(argv, capsys)
        except WorkBegins:
            capsys.readouterr()


@pytest.mark.slow
def test_a_thousand_odd_values_of_flags_end_with_an_answer(run, flags, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (64 * 2**30, hard))
    try:
        for argv in cases(run, flags, 1200, seed=1):
            interrupt = threading.Timer(SECONDS, os.kill, (os.getpid(), signal.SIGINT))
            interrupt.start()
            with capsys.disabled():
                faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            try:
                check(argv, capsys)
            finally:
                interrupt.cancel()
                faulthandler.cancel_dump_traceback_later()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
