"""`--red module:Class`: red agents of the user's own, in Python."""

import json
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hundredfold
from helpers.cage2_game import NUM_ACTIONS
from helpers.cage2_reds import Recorder
from helpers.training_runs import assert_same_run, truncated_run
from hundredfold.cli.main import main
from hundredfold.core.errors import SettingsError
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.network import NONE
from hundredfold.envs.cage2.random_draws import RecordedDrawError
from hundredfold.envs.cage2.red_agents import OWN

EXAMPLES = Path(__file__).parents[3] / "examples"
SMALL_NETWORK = str(EXAMPLES / "small_network.toml")
PYTHON = {"b_line": "helpers.cage2_reds:BLine", "meander": "helpers.cage2_reds:Meander"}
RUN = {
    **{"num_envs": 8, "num_steps": 16, "horizons": (12,), "hidden_sizes": (16,), "epochs": 4, "backend": "in_process"},
    **{"save_interval": 2, "eval_interval": 2, "eval_episodes": 4, "report": False},
}


@pytest.fixture
def examples_on_path(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLES)])


def random_steps(env, seed, steps):
    generator = np.random.default_rng(seed)
    for _ in range(steps):
        yield env.step(generator.integers(0, env.spec.num_logits, env.num_envs))


def outputs(out):
    arrays = {**out.observation, **out.true_state, **out.info, "reward": out.reward, "terminated": out.terminated}
    return {name: array.copy() for name, array in arrays.items()}


def trajectory(env, seed=5, steps=150):
    return [outputs(env.reset(seed)), *(outputs(out) for out in random_steps(env, seed, steps))]


def assert_equal_steps(one, other):
    for step, (left, right) in enumerate(zip(one, other, strict=True)):
        for name, array in left.items():
            assert_array_equal(array, right[name], err_msg=f"{name} after step {step}")


@pytest.mark.parametrize("network_file", [None, SMALL_NETWORK], ids=["standard", "small"])
@pytest.mark.parametrize("ruleset", ["current", "leaderboard"])
@pytest.mark.parametrize("red", PYTHON)
def test_agents_in_python_equal_those_of_the_kernels_step_by_step(red, ruleset, network_file):
    settings = {"horizons": (30, 60), "ruleset": ruleset, "green": "scan", "network_file": network_file}
    kernel, python = (Cage2(np.arange(24), Cage2Settings(red=name, **settings)) for name in (red, PYTHON[red]))
    steps = trajectory(kernel)
    assert_equal_steps(trajectory(python), steps)
    assert {code for step in steps for code in step["red_action"]} == set(range(6))


def test_a_restored_agent_continues_exactly():
    env = Cage2(np.arange(6), Cage2Settings(red=PYTHON["meander"], horizons=(40,)))
    env.reset(1)
    list(random_steps(env, 1, 25))
    state, copy = env.state(), pickle.loads(pickle.dumps(env))
    rest = [outputs(out) for out in random_steps(env, 2, 60)]
    assert_equal_steps([outputs(out) for out in random_steps(copy, 2, 60)], rest)
    env.restore(state)
    assert_equal_steps([outputs(out) for out in random_steps(env, 2, 60)], rest)


def test_draws_come_from_the_streams_of_the_episodes():
    def draws(env_ids, seed):
        Recorder.draws.clear()
        env = Cage2(np.array(env_ids), Cage2Settings(red="helpers.cage2_reds:Recorder", horizons=(3,)))
        env.reset(seed)
        list(random_steps(env, 0, 6))
        return np.array(Recorder.draws)  # (steps, kinds, envs)

    both = draws([0, 1], 7)
    assert_array_equal(draws([1], 7)[..., 0], both[..., 1])
    assert len(np.unique(both[:, :3])) == 6 * 3 * 2
    assert len(np.unique(np.concatenate([both[:, :3], draws([0, 1], 8)[:, :3]]))) == 2 * 6 * 3 * 2
    assert both[:, 3, 0].tolist() == [1, 2, 3, 1, 2, 3]
    assert (both[:, 4] == 0).all()
    assert (both[:, 5] == NONE).all()


def test_episodes_of_an_own_agent_are_marked():
    env = Cage2(np.arange(2), Cage2Settings(red=PYTHON["b_line"], horizons=(2,)))
    env.reset(0)
    *_, out = random_steps(env, 0, 2)
    assert out.terminated.all()
    assert out.episode_info["red"].tolist() == [OWN, OWN]


@pytest.mark.parametrize(
    ("red", "message"),
    [
        ("helpers.cage2_redz:BLine", "helpers.cage2_redz cannot be imported"),
        ("helpers.cage2_reds:Blin", "has no class 'Blin'"),
        ("helpers.cage2_reds:WithoutState", "is not a red agent: it has no method state"),
        ("helpers.cage2_reds:WithoutArguments", r"cannot be made as WithoutArguments\(num_envs, network\)"),
        ("helpers.cage2_reds:WrongMemory", r"with 3 rows, one per env; 'first' is int64\[2\]"),
        ("helpers.cage2_reds:OneArray", "must return two arrays, actions and targets"),
        ("helpers.cage2_reds:Cheat", "chose ExploitRemoteService Op_Server0, which red does not know yet"),
    ],
)
def test_agents_that_cannot_play_are_refused(red, message):
    with pytest.raises(SettingsError, match=message):
        trajectory(Cage2(np.arange(3), Cage2Settings(red=red)), steps=1)


def test_an_action_that_red_does_not_have_is_refused():
    env = Cage2(np.arange(3), Cage2Settings(red="helpers.cage2_reds:WrongAction"))
    env.reset(0)
    with pytest.raises(RecordedDrawError, match=r"helpers.cage2_reds:WrongAction=\(9, 0\) is not a red action"):
        env.step(np.zeros(3, int))


def test_an_unknown_built_in_agent_is_refused():
    with pytest.raises(SettingsError, match="did you mean meander"):
        Cage2Settings(red="meanders")


def test_a_run_against_an_own_agent_resumes_bit_for_bit(tmp_path):
    whole = hundredfold.train("cage2", red=PYTHON["meander"], save_dir=tmp_path, name="whole", **RUN)
    half = truncated_run(whole.path, 2)
    # A copy is not the folder that this user made.
    with pytest.raises(SettingsError, match=r"imports the Python module 'helpers.cage2_reds'.*--trust-run"):
        hundredfold.train(resume=half, report=False)
    with pytest.raises(SettingsError, match="--trust-run"):
        hundredfold.evaluate(half, episodes=2)
    assert hundredfold.train(resume=half, report=False, trust_run=True).finished
    assert_same_run(half, whole.path)
    # Neither loading the policy nor the official evaluation imports the agent.
    shutil.move(half, tmp_path / "moved")
    hundredfold.load(tmp_path / "moved").act({"bits": np.zeros(52), **ZEROS}, np.arange(NUM_ACTIONS) == 0)
    assert main(["evaluate", str(tmp_path / "moved"), "--episodes", "2", "--json"]) == 0


ZEROS = {
    **{"decoys": np.zeros((13, 8)), "scans": np.zeros(13), "scanned_decoys": np.zeros((13, 8))},
    **{"recency": np.zeros((13, 5)), "elapsed": np.zeros(1)},
}


@pytest.mark.process
def test_own_agents_play_the_same_in_worker_processes(tmp_path):
    settings = {**RUN, "epochs": 2, "red": PYTHON["b_line"]}
    runs = [
        hundredfold.train("cage2", save_dir=tmp_path, name=backend, **{**settings, "backend": backend, "workers": 2})
        for backend in ("in_process", "processes")
    ]
    assert_same_run(*(run.path for run in runs))


@pytest.mark.parametrize("network_file", [None, SMALL_NETWORK], ids=["standard", "small"])
def test_the_agent_of_the_examples_reaches_the_server(examples_on_path, network_file):
    env = Cage2(np.arange(20), Cage2Settings(red="red_agent:Wanderer", horizons=(100,), network_file=network_file))
    env.reset(0)
    actions, stopped = set(), False
    for _ in range(99):
        out = env.step(np.zeros(20, int))
        actions |= set(out.info["red_action"].tolist())
        stopped |= not out.true_state["ot_up"].all()
    assert actions == {1, 2, 3, 4, 5}
    assert stopped


def test_the_command_line_evaluates_against_an_own_agent(examples_on_path, capsys, tmp_path):
    log = tmp_path / "episodes.jsonl"
    argv = ["evaluate", "cage2", "--policy", "sleep", "--red", "red_agent:Wanderer", "--episodes", "4", "--json"]
    assert main([*argv, "--log-episodes", str(log)]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["red"] for row in rows] == ["red_agent:Wanderer"] * 3 + ["total"]
    assert rows[2]["mean"] < rows[0]["mean"] < 0
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(logged) == 4 * (30 + 50 + 100)
    assert logged[0]["red_agent"] == "red_agent:Wanderer"
