"""Policy export: ONNX and TorchScript files give the actions of the run's policy."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.testing import assert_allclose, assert_array_equal

import hundredfold
from helpers import third_party_envs
from helpers.processes import run_forked
from helpers.trajectories import record_trajectory
from hundredfold.algorithms.policies import NetworkPolicy
from hundredfold.backends import make_backend
from hundredfold.cli.main import main
from hundredfold.core.errors import HundredfoldError, SettingsError
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.registry import callable_factory, env_factory
from hundredfold.training.export import export_torchscript
from hundredfold.training.run_folder import RunFolder

SMALL = {"epochs": 1, "num_envs": 4, "num_steps": 16, "hidden_sizes": (16, 16), "eval_interval": 0}
SMALL_DQN = {**SMALL, "algo": "dqn", "learning_starts": 16, "train_frequency": 16, "dueling": True}

CASES = {
    "cartpole": ("cartpole", SMALL),
    "masked": ("corridor", {**SMALL, "normalise_observations": True}),
    "masked dqn": ("corridor", SMALL_DQN),
    "dictionary": (third_party_envs.DictObservation, {**SMALL, "shared": True}),
    "dictionary dqn": (third_party_envs.DictObservation, SMALL_DQN),
    "several action dimensions": (third_party_envs.MultiDiscreteActions, SMALL),
    "images": (third_party_envs.ImageAndVectorGoalEnv, SMALL),
    "actions described one by one": (
        "dvrp",
        {
            **SMALL,
            "num_steps": 30,
            "observation": "offers",
            "architecture": "per_action",
            "normalise_observations": True,
        },
    ),
    "continuous": (third_party_envs.UnevenBoxActions, SMALL),
}


def trained(tmp_path, env, settings):
    """A run, its policy, and observations and masks recorded from its env."""
    run = hundredfold.train(env, save_dir=tmp_path, name="run", backend="in_process", report=False, **settings)
    policy = hundredfold.load(run.path, "last")
    env_settings = None if callable(env) else RunFolder.open(run.path).settings().env_settings
    factory = callable_factory(env) if callable(env) else env_factory(env, env_settings)
    trajectory = record_trajectory(make_backend("in_process", factory, 4), seed=5, steps=30)
    spec = policy.spec
    observation = {
        name: trajectory[f"observation/{name}"].reshape(-1, *array.shape) for name, array in spec.observation.items()
    }
    mask = trajectory["mask"].reshape(-1, spec.num_logits) if spec.has_mask else None
    return run, policy, observation, mask


@pytest.mark.parametrize("case", CASES)
def test_a_torchscript_policy_gives_the_actions_of_the_run(tmp_path, case):
    run, policy, observation, mask = trained(tmp_path, *CASES[case])
    (path,) = hundredfold.export(run.path, torchscript=True, checkpoint="last")
    assert path == run.path / "policy.pt"
    exported = torch.jit.load(str(path))
    tensors = {name: torch.from_numpy(array) for name, array in observation.items()}
    logits, action = exported(tensors) if mask is None else exported(tensors, torch.from_numpy(mask))
    assert_allclose(action, policy.act(observation, mask), rtol=1e-4, atol=1e-5)
    assert logits.shape == (len(action), policy.spec.num_logits)
    # A batch of one row gives the same logits.
    first = {name: array[:1] for name, array in tensors.items()}
    single = exported(first) if mask is None else exported(first, torch.from_numpy(mask[:1]))
    assert_allclose(single[0], logits[:1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["masked", "dictionary dqn", "several action dimensions", "continuous"])
def test_an_onnx_policy_gives_the_actions_of_the_run(tmp_path, case):
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra [export] is missing")
    pytest.importorskip("onnxscript", reason="the extra [export] is missing")
    run, policy, observation, mask = trained(tmp_path, *CASES[case])
    path = tmp_path / "other" / "mine.onnx"
    path.parent.mkdir()
    assert hundredfold.export(run.path, onnx=path, checkpoint="last") == [path]
    assert [file.name for file in path.parent.iterdir()] == ["mine.onnx"]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]
    assert names == [*observation, *([] if mask is None else ["mask"])]
    feed = observation if mask is None else {**observation, "mask": mask}
    (action,) = session.run(["action"], feed)
    assert_allclose(action, policy.act(observation, mask), rtol=1e-4, atol=1e-5)


def test_the_export_command_writes_both_formats_and_prints_their_paths(tmp_path, capsys):
    pytest.importorskip("onnxscript", reason="the extra [export] is missing")
    run, *_ = trained(tmp_path, *CASES["cartpole"])
    assert main(["export", str(run.path), "--onnx", "--torchscript", str(tmp_path / "p.pt")]) == 0
    assert capsys.readouterr().out.split() == [str(run.path / "policy.onnx"), str(tmp_path / "p.pt")]
    assert main(["export", str(run.path)]) == 2
    assert "--onnx, --torchscript" in capsys.readouterr().err


class InvertedPolicy(NetworkPolicy):
    """Takes the other of two actions."""

    def act_deterministic(self, observation, mask):
        return 1 - super().act_deterministic(observation, mask)


def test_an_exported_policy_with_different_actions_is_rejected(tmp_path):
    _, policy, *_ = trained(tmp_path, *CASES["cartpole"])
    policy.policy.__class__ = InvertedPolicy
    with torch.no_grad():
        policy.policy.network.policy_head.weight.mul_(100.0)
    with pytest.raises(HundredfoldError, match="does not agree with the policy"):
        export_torchscript(policy, tmp_path / "policy.pt")
    assert not (tmp_path / "policy.pt").exists()


@pytest.mark.process
@pytest.mark.parametrize(
    ("key", "kind", "settings"),
    [("memory", "torchscript", {"memory": "gru", "memory_size": 4}), ("action", "onnx", {}), ("logits", "onnx", {})],
)
def test_an_observation_with_the_name_of_another_input_or_output_is_refused(tmp_path, key, kind, settings):
    if kind == "onnx":
        pytest.importorskip("onnxscript", reason="the extra [export] is missing")

    class Named(third_party_envs.DictObservation):
        observation_space = spaces.Dict({key: third_party_envs.DiceEnv.observation_space})

        def observation(self):
            return {key: third_party_envs.DiceEnv.observation(self)}

    run = hundredfold.train(Named, save_dir=tmp_path, backend="in_process", report=False, **SMALL, **settings)
    with pytest.raises(SettingsError, match=rf"observes an array '{key}', which is also the name"):
        hundredfold.export(run.path, checkpoint="last", **{kind: tmp_path / "policy"})
    assert not (tmp_path / "policy").exists()


def test_onnx_export_without_the_extra_prints_how_to_install_it(tmp_path):
    run, *_ = trained(tmp_path, *CASES["cartpole"])
    code = f"""
import sys
sys.modules["onnx"] = sys.modules["onnxscript"] = None
from hundredfold.cli.main import main
assert main(["export", {str(run.path)!r}, "--onnx"]) == 1
"""
    done = run_forked(code, expect=0)
    assert "pip install 'hundredfold[export]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_policy_acts_and_is_exported_where_its_env_is_not_installed(tmp_path):
    run, policy, observation, _ = trained(tmp_path, "CartPole-v1", SMALL)
    settings_file = run.path / "settings.toml"
    # Without its checksum, the last line.
    lines = settings_file.read_text().replace('"CartPole-v1"', '"NotInstalled/Pole-v3"').splitlines()
    settings_file.write_text("\n".join(lines[:-1]) + "\n")
    loaded = hundredfold.load(run.path, "last")
    assert_array_equal(loaded.act(observation), policy.act(observation))
    assert isinstance(loaded.act(observation["observation"][0]), int)
    assert hundredfold.export(run.path, torchscript=True, checkpoint="last")[0].is_file()
    with pytest.raises(HundredfoldError, match="no env called 'NotInstalled/Pole-v3'"):
        hundredfold.evaluate(run.path, episodes=1)


def test_an_exported_policy_of_offers_takes_the_shift_penalty_as_an_input(tmp_path):
    run, policy, observation, mask = trained(tmp_path, *CASES["actions described one by one"])
    (path,) = hundredfold.export(run.path, torchscript=True, checkpoint="last")
    exported = torch.jit.load(str(path))
    no_change, moved = 12, {}
    mask = torch.ones((len(observation["shift_cost"]), policy.spec.num_logits), dtype=torch.bool)
    minutes = Dvrp(np.arange(1), RunFolder.open(run.path).settings().env_settings).offers.total_minutes
    for penalty in (0.0, 0.01, 10.0):
        priced = {**observation, "shift_cost": np.tile(penalty * minutes, (len(mask), 1)).astype(np.float32)}
        action = exported({name: torch.from_numpy(array) for name, array in priced.items()}, mask)[1]
        assert_array_equal(action, policy.act(priced, mask.numpy()))
        moved[penalty] = minutes[action].mean()
    assert moved[0.0] > moved[0.01] >= moved[10.0]
    assert (action == no_change).all()  # no shift is worth ten minutes of driving for each of its own
