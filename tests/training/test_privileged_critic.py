"""`--critic privileged`: the value function sees arrays that the policy does not."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import hundredfold
from helpers.cage2_game import NUM_HOSTS
from helpers.third_party_envs import HiddenInInfo, HiddenNumber, HiddenReward
from helpers.training_runs import assert_same_run, read_metrics, truncated_run
from hundredfold.core.errors import SettingsError
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.state import HOST_FACTS, PRIVILEGED
from hundredfold.envs.dvrp.env import Dvrp, DvrpSettings
from hundredfold.envs.dvrp.observation import REMAINING

SMALL = {"num_envs": 8, "num_steps": 16, "eval_interval": 2, "eval_episodes": 4, "save_interval": 2, "report": False}
CAGE2 = {**SMALL, "critic": "privileged", "epochs": 4, "horizons": (20,), "hidden_sizes": (16,), "channels": ()}
HIDDEN = {
    **SMALL,
    "eval_interval": 0,
    "backend": "in_process",
    "epochs": 8,
    "learning_rate": 3e-3,
    "gae_lambda": 1.0,
    "gamma": 1.0,
}


@pytest.mark.parametrize(("env", "key"), [(HiddenReward, "reward"), (HiddenInInfo, "secret")])
def test_only_a_privileged_critic_explains_rewards_that_the_policy_cannot_foresee(tmp_path, env, key):
    explained = {}
    for critic in ("observation", "privileged"):
        run = hundredfold.train(env, critic=critic, privileged_keys=(key,), save_dir=tmp_path, name=critic, **HIDDEN)
        explained[critic] = np.mean([row["explained_variance"] for row in read_metrics(run.path)[-3:]])
    assert explained["observation"] < 0.5
    assert explained["privileged"] > 0.9


def test_a_number_of_the_info_may_be_an_integer_at_first_and_a_fraction_later(tmp_path):
    given = {**HIDDEN, "epochs": 2, "on_env_error": "stop", "critic": "privileged", "privileged_keys": ("secret",)}
    assert hundredfold.train(HiddenNumber, save_dir=tmp_path, **given).finished


def test_a_trained_policy_needs_no_privileged_input(tmp_path):
    run = hundredfold.train(
        HiddenReward, critic="privileged", privileged_keys=("reward",), save_dir=tmp_path, **HIDDEN | {"epochs": 2}
    )
    policy = run.policy()
    assert policy.act(np.zeros(1, np.float32), mask=[False, True]) == 1
    exported = hundredfold.export(run.path, torchscript=True)
    assert exported[0].exists()
    assert len(hundredfold.evaluate(run.path, make_env=HiddenReward, episodes=4).returns) == 4


def test_cage2_trains_resumes_and_evaluates_with_a_privileged_critic(tmp_path):
    whole = hundredfold.train("cage2", save_dir=tmp_path, name="whole", **CAGE2)
    half = truncated_run(whole.path, 2)
    assert hundredfold.train(resume=half, report=False).finished
    assert_same_run(half, whole.path)
    policy = whole.policy()
    assert policy.act({"bits": np.zeros(52, np.uint8)}, mask=np.arange(145) == 7) == 7
    network = policy.policy.network
    assert network.value_layers[0].in_features == network.policy_layers[0].in_features + PRIVILEGED["true_state"].size
    assert len(hundredfold.evaluate(whole.path, episodes=4).returns) == 4


@pytest.mark.parametrize("memory_steps", [0, 4])
def test_a_privileged_critic_with_memory_resumes_bit_for_bit(tmp_path, memory_steps):
    memory = {"memory": "gru", "memory_size": 8, "memory_steps": memory_steps}
    whole = hundredfold.train("cage2", save_dir=tmp_path, name="whole", **CAGE2, **memory)
    half = truncated_run(whole.path, 2)
    assert hundredfold.train(resume=half, report=False).finished
    assert_same_run(half, whole.path)
    rows = read_metrics(whole.path)
    assert all(row["first_ratio_error"] < 1e-4 for row in rows)
    policy = whole.policy()
    for _ in range(2):
        assert policy.act({"bits": np.zeros(52, np.uint8)}, mask=np.arange(145) == 7) == 7
    assert policy.memory.shape == (1, 8)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_an_exported_onnx_policy_has_no_privileged_inputs(tmp_path, memory):
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra [export] is missing")
    pytest.importorskip("onnxscript", reason="the extra [export] is missing")
    run = hundredfold.train("cage2", save_dir=tmp_path, **{**CAGE2, "epochs": 1}, memory=memory, memory_size=8)
    (path,) = hundredfold.export(run.path, onnx=tmp_path / "policy.onnx", checkpoint="last")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    remembers = ["memory"] if memory == "gru" else []
    assert [item.name for item in session.get_inputs()] == ["bits", "mask", *remembers]
    bits = np.random.default_rng(0).integers(0, 2, (5, 52)).astype(np.uint8)
    feed = {"bits": bits, "mask": np.ones((5, 145), bool)}
    if remembers:
        feed["memory"] = np.zeros((5, 8), np.float32)
    (actions,) = session.run(["action"], feed)
    assert_array_equal(actions, hundredfold.load(run.path, "last").act({"bits": bits}, feed["mask"]))


def test_dvrp_trains_and_resumes_with_a_privileged_critic(tmp_path):
    day = {"num_customers": 5, "lns_iterations": 1, "oracle_threads": 1, "num_envs": 4, "num_steps": 5, "epochs": 4}
    own = {"preset": "returns", "critic": "privileged", "backend": "in_process", "hidden_sizes": (16,)}
    saved = {"eval_interval": 2, "eval_episodes": 4, "save_interval": 2, "report": False, "minibatch_size": 10}
    whole = hundredfold.train("dvrp", save_dir=tmp_path, name="whole", **day, **own, **saved)
    half = truncated_run(whole.path, 2)
    assert hundredfold.train(resume=half, report=False).finished
    assert_same_run(half, whole.path)
    network = whole.policy().policy.network
    assert network.value_layers[0].in_features > network.policy_layers[0].in_features
    assert len(hundredfold.evaluate(whole.path, episodes=2).returns) == 2


@pytest.mark.parametrize("backend", ["serial", pytest.param("processes", marks=pytest.mark.process)])
def test_privileged_runs_are_the_same_on_other_backends(tmp_path, backend):
    runs = [
        hundredfold.train("cage2", save_dir=tmp_path, name=name, backend=name, **CAGE2)
        for name in ("in_process", backend)
    ]
    assert_same_run(*(run.path for run in runs))


@pytest.mark.process
def test_first_ready_trains_a_privileged_critic_on_a_third_party_env(tmp_path):
    settings = {**HIDDEN, "backend": "first_ready", "workers": 2, "epochs": 3, "critic": "privileged"}
    run = hundredfold.train(HiddenInInfo, privileged_keys=("secret",), save_dir=tmp_path, **settings)
    assert run.finished
    assert read_metrics(run.path)[0]["first_ratio_error"] < 1e-4


@pytest.mark.process
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_a_privileged_first_ready_run_continues_from_its_checkpoint(tmp_path, memory):
    settings = {**CAGE2, "backend": "first_ready", "workers": 2, "memory": memory, "memory_size": 8}
    whole = hundredfold.train("cage2", save_dir=tmp_path, name="whole", **settings)
    half = truncated_run(whole.path, 2)
    copies = [Path(shutil.copytree(half, tmp_path / name)) for name in ("one", "other")]
    assert hundredfold.train(resume=half, report=False).finished
    # Which envs are ready first differs from run to run; what was before the checkpoint does not.
    assert read_metrics(half)[:2] == read_metrics(whole.path)[:2]
    # In one process the rest is exact.
    for copy in copies:
        assert hundredfold.train(resume=copy, report=False, backend="in_process").finished
    assert_same_run(*copies)


def test_privileged_state_of_cage2_is_the_true_state():
    env = Cage2(np.arange(6), Cage2Settings(horizons=(12,)), privileged=True)
    plain = Cage2(np.arange(6), Cage2Settings(horizons=(12,)))
    env.reset(3)
    plain.reset(3)
    generator = np.random.default_rng(0)
    for _ in range(30):
        actions = generator.integers(0, 145, 6)
        out, expected = env.step(actions), plain.step(actions)
        assert_array_equal(out.observation["bits"], expected.observation["bits"])
        assert_array_equal(out.reward, expected.reward)
        facts, state = out.observation["true_state"], expected.true_state
        by_host = facts[:, : HOST_FACTS * NUM_HOSTS].reshape(6, HOST_FACTS, NUM_HOSTS)
        assert_array_equal(by_host[:, 0], state["known"])
        assert_array_equal(by_host[:, 2].astype(int) + by_host[:, 3].astype(int), state["access"])
        rest = facts[:, HOST_FACTS * NUM_HOSTS :]
        assert_array_equal(rest[:, 0], state["ot_up"])
        assert_array_equal((rest[:, 1:4] @ [1, 2, 4]).astype(int), state["red_subnets"])
        assert_array_equal(rest[:, 4:7].argmax(axis=1), plain.hidden["red"])
        assert_allclose(rest[:, 8] + rest[:, 9], 0.12, rtol=1e-6)
        assert not out.final_observation["true_state"][out.terminated].any()


def test_privileged_requests_of_dvrp_are_those_to_come_with_their_tolerances():
    settings = DvrpSettings(num_customers=4, lns_iterations=1)
    env = Dvrp(np.arange(3), settings, privileged=True)
    out = env.reset(1)
    whole = out.observation[REMAINING].copy()
    assert_allclose(whole[..., 9:], out.true_state["tolerance"] / 60, rtol=1e-6)
    assert whole[..., :9].any(axis=-1).all()
    for step in range(1, 4):
        out = env.step(np.full(3, 12))
        assert_array_equal(out.observation[REMAINING][:, : 4 - step], whole[:, step:])
        assert not out.observation[REMAINING][:, 4 - step :].any()
    env.step(np.full(3, 12))
    assert not env.out.final_observation[REMAINING].any()


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        ("cartpole", {}, "hides nothing from the policy"),
        ("cage2", {"shared": True}, "turn off shared"),
        ("cage2", {"algo": "dqn"}, "works with --algo ppo only"),
        ("cage2", {"engine": "sb3"}, "works with --engine hundredfold only"),
        ("dvrp", {"advantages": "futures", "num_customers": 4}, "trains no critic"),
        (HiddenReward, {}, "needs --privileged-keys"),
        (
            HiddenReward,
            {"privileged_keys": ("absent",)},
            r"no privileged key 'absent'.*the info of its first reset secret",
        ),
        (HiddenReward, {"privileged_keys": ("step", "reward")}, "no observation besides its reward, step"),
    ],
)
def test_settings_without_a_privileged_critic_are_refused(tmp_path, env, settings, message):
    given = {"backend": "in_process", "epochs": 1, "num_envs": 2, "num_steps": 4, "critic": "privileged", **settings}
    with pytest.raises(SettingsError, match=message):
        hundredfold.train(env, save_dir=tmp_path, **given)
