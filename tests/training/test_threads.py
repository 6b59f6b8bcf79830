"""`--threads auto`: measured for large updates, recorded in the run, kept when it is resumed."""

import pytest
import torch

import hundredfold
from helpers.ppo_learner import make_ppo
from helpers.training_runs import assert_same_run, truncated_run
from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.memory import GatedRecurrentUnit
from hundredfold.algorithms.ppo import PPOSettings
from hundredfold.cli.main import main
from hundredfold.core.errors import SettingsError
from hundredfold.envs.cartpole import CartPole
from hundredfold.training import build, process_setup
from hundredfold.training.process_setup import choose_threads
from hundredfold.training.run_folder import RunFolder

SMALL = {"num_envs": 4, "num_steps": 16, "epochs": 4, "eval_interval": 0, "save_interval": 2, "report": False}


@pytest.fixture(autouse=True)
def same_threads_afterwards():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def threads_of(path):
    return RunFolder.open(path).settings().machine.threads


@pytest.mark.parametrize(
    ("milliseconds", "expected"), [({1: 10, 2: 6, 4: 5}, 4), ({1: 10, 2: 6, 4: 9}, 2), ({1: 10, 2: 9, 4: 12}, 1)]
)
def test_the_fastest_number_is_chosen_if_it_is_worthwhile(monkeypatch, milliseconds, expected):
    clock, used = [0.0], [0]
    monkeypatch.setattr(process_setup.time, "perf_counter", lambda: clock[0])

    def work():
        clock[0] += milliseconds[used[0]] / 1e3

    def set_threads(threads):
        used[0] = threads

    threads, times = choose_threads(work, set_threads, cores=4)
    assert threads == used[0] == expected
    assert times == ", ".join(f"{value} ms with {number}" for number, value in milliseconds.items())


def test_threads_that_are_far_slower_are_measured_once(monkeypatch):
    clock, used = [0.0], []
    monkeypatch.setattr(process_setup.time, "perf_counter", lambda: clock[0])

    def work():
        clock[0] += {1: 0.01, 2: 0.5, 4: 0.029}[used[-1]]

    assert choose_threads(work, used.append, cores=4) == (1, "10 ms with 1, 500 ms with 2, 29 ms with 4")
    assert used.count(2) == 1
    assert used.count(1) == used.count(4) + 1  # left at the number chosen


def test_small_updates_use_one_thread_without_a_measurement(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "choose_threads", None)
    run = hundredfold.train("cartpole", save_dir=tmp_path, **SMALL)
    assert threads_of(run.path) == 1


def test_a_measured_number_is_said_recorded_and_kept(tmp_path, monkeypatch, capsys):
    def choose(work, set_threads, cores):
        work()
        set_threads(2)
        return 2, "10 ms with 1, 6 ms with 2"

    monkeypatch.setattr(build, "MIN_MEASURED_WORK", 0)
    monkeypatch.setattr(build, "usable_cores", lambda: 2)
    monkeypatch.setattr(build, "choose_threads", choose)
    whole = hundredfold.train("cartpole", save_dir=tmp_path, name="whole", quiet=False, **SMALL)
    assert "--threads auto: 2 (a gradient step takes 10 ms with 1, 6 ms with 2)" in capsys.readouterr().err
    assert torch.get_num_threads() == threads_of(whole.path) == 2
    monkeypatch.setattr(build, "choose_threads", None)
    half = truncated_run(whole.path, 2)
    torch.set_num_threads(1)
    assert hundredfold.train(resume=half, report=False).finished
    assert torch.get_num_threads() == threads_of(half) == 2
    assert_same_run(half, whole.path)


def test_the_measured_work_leaves_the_learner_as_it_was():
    learner, _ = make_ppo(CartPole, PPOSettings())
    before = {name: weight.clone() for name, weight in learner.network.state_dict().items()}
    learner.measured_pass()()
    assert all(torch.equal(weight, before[name]) for name, weight in learner.network.state_dict().items())
    assert all(weight.grad is None for weight in learner.network.parameters())
    assert learner.minibatch_rows == 128


@pytest.mark.parametrize("shared", [False, True])
def test_the_measured_work_of_a_memory_is_that_of_whole_sequences(monkeypatch, shared):
    network = NetworkSettings(hidden_sizes=(16,), memory="gru", memory_size=8, memory_steps=16, shared=shared)
    learner, collector = make_ppo(CartPole, PPOSettings(minibatch_size=100), network=network)
    single_step, rows = GatedRecurrentUnit._step, []

    def counted(self, projected, state):
        rows.append(len(state))
        return single_step(self, projected, state)

    monkeypatch.setattr(GatedRecurrentUnit, "_step", counted)
    learner.measured_pass()()
    measured, rows[:] = rows.copy(), []
    collector.collect(learner.policy, learner.buffer, 32)
    rows.clear()
    samples, _ = learner._compute_targets()
    samples.observation = learner.network.preprocess(samples.observation)
    rows.clear()
    batch = next(learner._minibatches(samples, 0))
    learner.network.logits_and_value(batch.observation, batch.sequences)
    assert measured == rows
    assert len(rows) == 16 * (1 if shared else 2)


def test_threads_are_a_number_or_auto(tmp_path, capsys):
    with pytest.raises(SettingsError, match="threads must be at least 1"):
        hundredfold.train("cartpole", threads=0, save_dir=tmp_path, **SMALL)
    with pytest.raises(SettingsError, match="threads is 'many'"):
        hundredfold.train("cartpole", threads="many", save_dir=tmp_path, **SMALL)
    with pytest.raises(SystemExit, match="2"):
        main(["train", "cartpole", "--threads", "many"])
    assert "--threads {auto}|INT" in capsys.readouterr().err
