"""`--memory gru`: policies that remember their episode."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import hundredfold
from helpers.batch_envs import Spotlight
from helpers.ppo_learner import make_ppo
from helpers.third_party_envs import ImageAndVectorGoalEnv, Recall, RecallPicture, UnevenBoxActions
from helpers.training_runs import assert_same_run, read_metrics, truncated_run
from helpers.trajectories import record_trajectory
from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.memory import GatedRecurrentUnit, sequence_steps
from hundredfold.algorithms.policies import BatchActor
from hundredfold.algorithms.ppo import PPOSettings
from hundredfold.backends import make_backend
from hundredfold.cli.desk import DeskOptions, desk_policy
from hundredfold.cli.main import main
from hundredfold.core.errors import SettingsError, ShapeError
from hundredfold.envs.cage2.blue_agent import BlueAgent
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.evaluation import evaluation_cells
from hundredfold.envs.cage2.report_data import record_report_data
from hundredfold.envs.cartpole import CartPole
from hundredfold.envs.registry import callable_factory
from hundredfold.rollout.rollout_buffer import MEMORY
from hundredfold.training.run_folder import RunFolder

RECALL = {"num_envs": 32, "num_steps": 20, "epochs": 30, "learning_rate": 5e-3, "memory_size": 16, "num_minibatches": 2}
QUIET = {"backend": "in_process", "eval_interval": 0, "save_interval": 99, "report": False, "seed": 1}
SMALL = {"memory": "gru", "memory_size": 8, "num_envs": 6, "num_steps": 16, "hidden_sizes": (16,), "report": False}
SAVED = {"save_interval": 3, "keep_last": 9, "eval_interval": 3, "eval_episodes": 4}


@pytest.fixture(scope="module")
def recalling(tmp_path_factory):
    return hundredfold.train(Recall, memory="gru", save_dir=tmp_path_factory.mktemp("runs"), **RECALL, **QUIET)


def play(act, begin=lambda: None, episodes=20):
    """Returns of an episode after the other in one env."""
    env, returns = Recall(), []
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        begin()
        is_over = False
        while not is_over:
            observation, reward, is_over, _, _ = env.step(act(observation, env.action_masks()))
        returns.append(reward)
    return returns


def test_only_a_policy_with_memory_recalls_what_it_saw(recalling, tmp_path):
    plain = hundredfold.train(Recall, memory="none", save_dir=tmp_path, **RECALL, **QUIET)
    scores = [hundredfold.evaluate(run.path, make_env=Recall, episodes=64).returns.mean() for run in (plain, recalling)]
    assert abs(scores[0]) < 0.5
    assert scores[1] == 1.0


def test_a_policy_recalls_a_picture(tmp_path):
    run = hundredfold.train(RecallPicture, memory="gru", save_dir=tmp_path, **RECALL, **QUIET)
    assert hundredfold.evaluate(run.path, make_env=RecallPicture, episodes=64).returns.mean() == 1.0


def test_a_loaded_policy_keeps_its_memory_until_it_is_reset(recalling):
    policy = recalling.policy()
    assert play(policy.act, policy.reset) == [1.0] * 20
    one, other = np.array([[1, 0], [-1, 0]], np.float32), np.zeros((2, 2), np.float32)
    waiting, last = [[False, False, True]] * 2, [[True, True, False]] * 2
    policy.reset()
    policy.act(one, waiting)
    assert policy.act(other, last).tolist() == [1, 0]
    policy.reset([True, False])
    assert not policy.memory[0].any()
    assert policy.memory[1].any()
    with pytest.raises(ShapeError, match=r"3 rows after 2.*call reset"):
        policy.act(np.zeros((3, 2), np.float32), [waiting[0]] * 3)


def test_only_rows_that_a_policy_acted_on_can_be_reset(recalling):
    policy = recalling.policy()
    policy.act(np.zeros((2, 2), np.float32), [[False, False, True]] * 2)
    for rows in ([True, False, False], [2]):
        with pytest.raises(
            ShapeError, match=r"act\(\) had 2 rows; pass a bool for each of them, or numbers from 0 to 1"
        ):
            policy.reset(rows)


@pytest.fixture
def remembered(monkeypatch):
    """Whether a policy remembered anything before each of its actions."""
    act, found = BatchActor.__call__, []

    def recording(self, batch):
        found.append(bool(self.memory.any()))
        return act(self, batch)

    monkeypatch.setattr(BatchActor, "__call__", recording)
    return found


def test_every_episode_of_a_video_begins_without_memory(recalling, remembered):
    class Drawn(Recall):
        render_mode = "rgb_array"

        def render(self):
            return np.zeros((8, 8, 3), np.uint8)

    assert hundredfold.record_video(recalling.path, make_env=Drawn, episodes=2).returns == [1.0, 1.0]
    assert remembered == 2 * [False, True, True, True, True]


def test_every_cell_of_a_cage2_report_begins_without_memory(remembered):
    network = NetworkSettings(hidden_sizes=(8,), memory="gru", memory_size=4)
    learner, _ = make_ppo(Cage2, PPOSettings(), num_envs=2, num_steps=8, network=network)
    data = record_report_data(BatchActor(learner.policy), Cage2Settings(), episodes=2)
    first = np.cumsum([0, *(cell["horizon"] for cell in data["cells"][:-1])])
    assert not np.array(remembered)[first].any()
    assert np.array(remembered)[first[1:] - 1].any()


def test_stochastic_actions_keep_the_memory_too(recalling):
    policy = recalling.policy()
    returns = play(lambda observation, mask: policy.act(observation, mask, deterministic=False), policy.reset)
    assert np.mean(returns) > 0.8


@pytest.mark.parametrize("kind", ["torchscript", "onnx"])
def test_exported_policies_take_and_return_the_memory(recalling, tmp_path, kind):
    if kind == "onnx":
        runtime = pytest.importorskip("onnxruntime")
    (path,) = hundredfold.export(recalling.path, **{kind: tmp_path / f"policy.{kind}"})
    if kind == "onnx":
        session = runtime.InferenceSession(str(path))
        assert [one.name for one in session.get_inputs()] == ["observation", "mask", "memory"]
        assert [one.name for one in session.get_outputs()] == ["logits", "action", "next_memory"]

        def step(observation, mask, memory):
            return session.run(["action", "next_memory"], {"observation": observation, "mask": mask, "memory": memory})
    else:
        model = torch.jit.load(str(path))

        def step(observation, mask, memory):
            inputs = map(torch.from_numpy, (observation, mask, memory))
            first, *others = inputs
            return [part.numpy() for part in model({"observation": first}, *others)[1:]]

    state = {}

    def act(observation, mask):
        action, state["memory"] = step(observation[None], np.array([mask]), state["memory"])
        return int(action[0])

    returns = play(act, lambda: state.update(memory=np.zeros((1, RECALL["memory_size"]), np.float32)))
    assert returns == [1.0] * 20


@pytest.mark.parametrize(("env", "settings"), [("corridor", {}), ("cartpole", {"policy_update_interval": 2})])
def test_a_run_with_memory_resumes_bit_for_bit(tmp_path, env, settings):
    whole = hundredfold.train(env, save_dir=tmp_path, name="whole", epochs=6, **SMALL, **SAVED, **settings)
    half = truncated_run(whole.path, 3)
    assert hundredfold.train(resume=half, report=False).finished
    assert_same_run(half, whole.path)
    assert all(row["first_ratio_error"] < 1e-4 for row in read_metrics(half) if "first_ratio_error" in row)


@pytest.mark.parametrize("kind", ["torchscript", "onnx"])
@pytest.mark.parametrize("env", [ImageAndVectorGoalEnv, UnevenBoxActions], ids=["images", "continuous"])
@pytest.mark.filterwarnings("ignore:.*cannot continue in the middle")
def test_runs_on_images_and_continuous_actions_are_exported_and_resumed(tmp_path, env, kind):
    if kind == "onnx":
        runtime = pytest.importorskip("onnxruntime", reason="the extra [export] is missing")
        pytest.importorskip("onnxscript", reason="the extra [export] is missing")
    settings = {**SMALL, **SAVED, "backend": "in_process", "num_envs": 4, "eval_interval": 0}
    whole = hundredfold.train(env, save_dir=tmp_path, name="whole", epochs=4, **settings)
    assert all(row["first_ratio_error"] < 1e-4 for row in read_metrics(whole.path))
    half = truncated_run(whole.path, 3)
    resumed = hundredfold.train(env, resume=half, report=False)
    assert read_metrics(half)[:3] == read_metrics(whole.path)[:3]
    assert resumed.finished

    (path,) = hundredfold.export(whole.path, **{kind: tmp_path / f"policy.{kind}"}, checkpoint="last")
    policy = hundredfold.load(whole.path, "last")
    names = list(policy.spec.observation)
    trajectory = record_trajectory(make_backend("in_process", callable_factory(env), 4), seed=5, steps=6)
    exported = runtime.InferenceSession(str(path)) if kind == "onnx" else torch.jit.load(str(path))
    memory = np.zeros((4, 8), np.float32)
    for step in range(7):
        observation = {name: trajectory[f"observation/{name}"][step] for name in names}
        if kind == "onnx":
            action, memory = exported.run(["action", "next_memory"], {**observation, "memory": memory})
        else:
            tensors = {name: torch.from_numpy(array) for name, array in observation.items()}
            _, action, memory = (part.numpy() for part in exported(tensors, torch.from_numpy(memory)))
        assert_allclose(action, policy.act(observation), rtol=1e-3, atol=1e-4)
        assert_allclose(memory, policy.memory, rtol=1e-3, atol=1e-4)


def test_a_policy_with_memory_defends_cage2_everywhere(tmp_path, capsys):
    run = hundredfold.train("cage2", save_dir=tmp_path, epochs=2, backend="in_process", **SMALL, eval_interval=0)
    # The official evaluation, the replay page and the agent for the original simulator play the same.
    assert main(["evaluate", str(run.path), "--episodes", "4", "--checkpoint", "last", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    folder = RunFolder.open(run.path)
    settings = replace(folder.settings().env_settings, red="b_line", horizons=(30,))
    (_, _, seed) = evaluation_cells(9999)[0]
    agent = BlueAgent.load(run.path, "last")
    returns = []
    for episode in range(4):
        env = Cage2(np.array([episode]), settings)
        out = env.reset(seed)
        agent.reset()
        total = 0.0
        for _ in range(30):
            out = env.step(np.array([agent.act(out.observation["bits"][0])]))
            total += out.reward[0]
        returns.append(total)
    assert rows[0]["red"] == "b_line"
    assert rows[0]["mean"] == pytest.approx(np.mean(returns))
    assert len(set(returns)) > 1
    page = tmp_path / "replay.html"
    assert main(["watch", str(run.path), "--checkpoint", "last", "--output", str(page)]) == 0
    assert page.exists()


@pytest.mark.process
def test_runs_with_memory_are_the_same_in_worker_processes(tmp_path):
    runs = [
        hundredfold.train("cartpole", save_dir=tmp_path, name=backend, backend=backend, epochs=3, **SMALL)
        for backend in ("in_process", "processes")
    ]
    assert_same_run(*(run.path for run in runs))


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*cannot continue in the middle")
def test_first_ready_envs_have_a_memory_each(tmp_path):
    settings = {**RECALL, **QUIET, "backend": "first_ready", "workers": 2, "eval_interval": 99, "save_interval": 28}
    run = hundredfold.train(Recall, memory="gru", save_dir=tmp_path, **settings)
    assert read_metrics(run.path)[-1]["eval/return_mean"] > 0.9
    half = truncated_run(run.path, 28)
    resumed = hundredfold.train(Recall, resume=half, report=False)
    assert read_metrics(resumed.path)[-1]["eval/return_mean"] > 0.9


@pytest.mark.parametrize("shared", [True, False])
def test_images_and_continuous_actions_with_memory(shared):
    network = NetworkSettings(hidden_sizes=(16,), memory="gru", memory_size=8, shared=shared, memory_steps=4)
    learner, collector = make_ppo(Spotlight, PPOSettings(), num_envs=4, num_steps=12, network=network)
    for _ in range(3):
        collector.collect(learner.policy, learner.buffer, 12)
        assert learner.update()["first_ratio_error"] < 1e-4


def test_separate_epochs_train_both_memories():
    network = NetworkSettings(hidden_sizes=(16,), memory="gru", memory_size=8)
    settings = PPOSettings(num_value_epochs=1, num_policy_epochs=1, minibatch_size=32)
    learner, collector = make_ppo(CartPole, settings, num_envs=4, num_steps=16, network=network)
    before = {name: weight.clone() for name, weight in learner.network.named_parameters()}
    collector.collect(learner.policy, learner.buffer, 16)
    learner.update()
    assert all(not torch.equal(weight, before[name]) for name, weight in learner.network.named_parameters())


def test_a_memory_equals_that_of_torch_and_forgets_where_episodes_begin():
    torch.manual_seed(0)
    unit, reference = GatedRecurrentUnit(3, 4), torch.nn.GRU(3, 4, batch_first=True)
    reference.weight_ih_l0.data.copy_(unit.input_layer.weight)
    reference.weight_hh_l0.data.copy_(unit.state_layer.weight)
    reference.bias_ih_l0.data.copy_(unit.input_layer.bias)
    reference.bias_hh_l0.data.copy_(unit.state_layer.bias)
    inputs, state = torch.randn(2, 6, 3), torch.randn(2, 4)
    starts = torch.zeros(2, 6, dtype=torch.bool)
    whole = unit(inputs.flatten(0, 1), state, starts.flatten()).unflatten(0, (2, 6))
    assert_allclose(whole.detach(), reference(inputs, state[None])[0].detach(), atol=1e-6)
    starts[:, 4] = True
    parts = unit(inputs.flatten(0, 1), state, starts.flatten()).unflatten(0, (2, 6))
    assert_array_equal(parts[:, :4].detach(), whole[:, :4].detach())
    second = unit(inputs[:, 4:].flatten(0, 1), torch.zeros(2, 4)).unflatten(0, (2, 2))
    assert_allclose(parts[:, 4:].detach(), second.detach(), atol=1e-6)


def test_values_of_a_rollout_are_those_of_single_steps():
    network = NetworkSettings(hidden_sizes=(16,), memory="gru", memory_size=8, memory_steps=8)
    learner, collector = make_ppo(CartPole, PPOSettings(), num_envs=3, num_steps=24, network=network)
    state, rollout = np.zeros((3, 8), np.float32), learner.buffer
    for _ in range(2):
        collector.collect(learner.policy, rollout, 24)
        values, states = learner.value_memory.values(rollout, learner.device, chunk=50)
        for step in range(25):
            if step % 8 == 0 and step < 24:
                assert_allclose(states[step // 8], state, atol=1e-6)
            observation = {name: torch.from_numpy(array[step]) for name, array in rollout.observation.items()}
            with torch.no_grad():
                expected, after = learner.network.value_and_states(observation, torch.from_numpy(state))
            assert_allclose(values[step], expected, atol=1e-5)
            if step < 24:
                state = after.numpy() * ~rollout.ended[step][:, None]
        assert rollout.ended.any()
        rollout.clear()


def test_values_forget_where_an_episode_begins_without_an_end_before():
    # As after a resume of a third-party env, whose episodes begin anew between two rollouts.
    network = NetworkSettings(hidden_sizes=(16,), memory="gru", memory_size=8, memory_steps=8)
    learner, collector = make_ppo(CartPole, PPOSettings(), num_envs=3, num_steps=16, network=network)
    rollout, memory = learner.buffer, learner.value_memory
    collector.collect(learner.policy, rollout, 16)
    memory.values(rollout, learner.device, chunk=50)
    before = memory.state.copy()
    env = np.flatnonzero(before.any(axis=1))[0]
    before[env] = collector.memory[env] = 0.0
    rollout.clear()
    collector.collect(learner.policy, rollout, 16)
    observation = {name: torch.from_numpy(array[0]) for name, array in rollout.observation.items()}
    with torch.no_grad():
        expected, _ = learner.network.value_and_states(observation, torch.from_numpy(before))
    values, states = memory.values(rollout, learner.device, chunk=50)
    assert_allclose(values[0], expected, atol=1e-5)
    assert_allclose(states[0], before, atol=1e-6)


def test_states_are_stored_as_used_and_forgotten_where_episodes_end():
    network = NetworkSettings(hidden_sizes=(16,), memory="gru", memory_size=8)
    learner, collector = make_ppo(CartPole, PPOSettings(), num_envs=3, num_steps=48, network=network)
    collector.collect(learner.policy, learner.buffer, 48)
    states, ended = learner.buffer.arrays[MEMORY], learner.buffer.ended
    assert not states[0].any()
    assert ended[:-1].any()
    assert_array_equal(states[1:].any(axis=2), ~ended[:-1])


@pytest.mark.parametrize(
    ("num_steps", "wanted", "expected"),
    [(128, 0, 64), (100, 0, 50), (127, 0, 127), (8, 0, 8), (100, 25, 25), (100, 30, None)],
)
def test_sequences_divide_a_rollout(num_steps, wanted, expected):
    assert sequence_steps(num_steps, wanted) == expected


def test_the_desk_refuses_a_policy_with_memory(tmp_path):
    day = {"preset": "returns", "num_customers": 4, "lns_iterations": 1, "oracle_threads": 1, "num_steps": 4}
    run = hundredfold.train("dvrp", save_dir=tmp_path, epochs=1, **{**QUIET, **SMALL, **day})
    with pytest.raises(SettingsError, match="trained with --memory gru"):
        desk_policy(DeskOptions(run=str(run.path)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algo": "dqn"}, "--memory gru works with --algo ppo only"),
        ({"engine": "sb3"}, "--memory gru works with --engine hundredfold only"),
        ({"architecture": "per_action"}, "a per_action policy has no memory"),
        ({"memory_steps": 5}, "--memory-steps 5 does not divide the 16 steps"),
    ],
)
def test_settings_without_memory_are_refused(tmp_path, settings, message):
    with pytest.raises(SettingsError, match=message):
        hundredfold.train("corridor", save_dir=tmp_path, epochs=1, **SMALL, **settings)
