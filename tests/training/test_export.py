"""Exported policies choose as the run's own does, on any number of rows, without hundredfold."""

import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import hundredfold
from helpers import third_party_envs
from helpers.training_runs import run_python
from helpers.trajectories import record_trajectory
from hundredfold.algorithms.policies import NetworkPolicy
from hundredfold.backends import make_backend
from hundredfold.cli.main import main
from hundredfold.core.errors import HundredfoldError
from hundredfold.envs.registry import callable_factory, env_factory, settings_class
from hundredfold.training.export import export_torchscript

SMALL = {"epochs": 1, "num_envs": 4, "num_steps": 16, "hidden_sizes": (16, 16), "eval_interval": 0}
SMALL_DQN = {**SMALL, "algo": "dqn", "learning_starts": 16, "train_frequency": 16, "dueling": True}

CASES = {
    "cartpole": ("cartpole", SMALL),
    "masked": ("corridor", {**SMALL, "normalise_observations": True}),
    "masked dqn": ("corridor", SMALL_DQN),
    "dictionary": (third_party_envs.DictObservation, {**SMALL, "shared": True}),
    "dictionary dqn": (third_party_envs.DictObservation, SMALL_DQN),
    "several parts": (third_party_envs.MultiDiscreteActions, SMALL),
    "pictures": (third_party_envs.ImageAndVectorGoalEnv, SMALL),
    "continuous": (third_party_envs.UnevenBoxActions, SMALL),
}


def trained(tmp_path, env, settings):
    """A run, its policy, and observations and masks as its env gives them."""
    run = hundredfold.train(
        env, save_dir=tmp_path, name="run", backend="in_process", report=False, **settings
    )
    policy = hundredfold.load(run.path, "last")
    factory = callable_factory(env) if callable(env) else env_factory(env, settings_class(env)())
    trajectory = record_trajectory(make_backend("in_process", factory, 4), seed=5, steps=30)
    spec = policy.spec
    seen = {
        name: trajectory[f"observation/{name}"].reshape(-1, *array.shape)
        for name, array in spec.observation.items()
    }
    mask = trajectory["mask"].reshape(-1, spec.num_logits) if spec.has_mask else None
    return run, policy, seen, mask


@pytest.mark.parametrize("case", CASES)
def test_a_torchscript_policy_plays_as_the_run_does(tmp_path, case):
    run, policy, seen, mask = trained(tmp_path, *CASES[case])
    (path,) = hundredfold.export(run.path, torchscript=True, checkpoint="last")
    assert path == run.path / "policy.pt"
    played = torch.jit.load(str(path))
    given = {name: torch.from_numpy(array) for name, array in seen.items()}
    said, action = played(given) if mask is None else played(given, torch.from_numpy(mask))
    assert_allclose(action, policy.act(seen, mask), rtol=1e-4, atol=1e-5)
    assert said.shape == (len(action), policy.spec.num_logits)
    # One row alone, and many, are the same policy.
    first = {name: array[:1] for name, array in given.items()}
    alone = played(first) if mask is None else played(first, torch.from_numpy(mask[:1]))
    assert_allclose(alone[0], said[:1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["masked", "dictionary dqn", "several parts", "continuous"])
def test_an_onnx_policy_plays_as_the_run_does(tmp_path, case):
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra [export] is missing")
    pytest.importorskip("onnxscript", reason="the extra [export] is missing")
    run, policy, seen, mask = trained(tmp_path, *CASES[case])
    path = tmp_path / "elsewhere" / "mine.onnx"
    assert hundredfold.export(run.path, onnx=path, checkpoint="last") == [path]
    assert [file.name for file in path.parent.iterdir()] == ["mine.onnx"]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]
    assert names == [*seen, *([] if mask is None else ["mask"])]
    given = seen if mask is None else {**seen, "mask": mask}
    (action,) = session.run(["action"], given)
    assert_allclose(action, policy.act(seen, mask), rtol=1e-4, atol=1e-5)


def test_the_command_writes_both_and_says_where(tmp_path, capsys):
    pytest.importorskip("onnxscript", reason="the extra [export] is missing")
    run, *_ = trained(tmp_path, *CASES["cartpole"])
    assert main(["export", str(run.path), "--onnx", "--torchscript", str(tmp_path / "p.pt")]) == 0
    assert capsys.readouterr().out.split() == [
        str(run.path / "policy.onnx"),
        str(tmp_path / "p.pt"),
    ]
    assert main(["export", str(run.path)]) == 2
    assert "--onnx, --torchscript" in capsys.readouterr().err


class Contrary(NetworkPolicy):
    """Takes the worst action, whatever its network says."""

    def act_deterministic(self, observation, mask):
        return 1 - super().act_deterministic(observation, mask)


def test_a_file_that_chooses_otherwise_is_refused(tmp_path):
    _, policy, *_ = trained(tmp_path, *CASES["cartpole"])
    policy.policy.__class__ = Contrary
    with torch.no_grad():
        policy.policy.network.policy_head.weight.mul_(100.0)
    with pytest.raises(HundredfoldError, match="does not agree with the policy"):
        export_torchscript(policy, tmp_path / "policy.pt")
    assert not (tmp_path / "policy.pt").exists()


def test_without_the_extra_one_line_says_how_to_get_it(tmp_path):
    run, *_ = trained(tmp_path, *CASES["cartpole"])
    code = f"""
import sys
sys.modules["onnx"] = sys.modules["onnxscript"] = None
from hundredfold.cli.main import main
assert main(["export", {str(run.path)!r}, "--onnx"]) == 1
"""
    done = run_python(code, expect=0)
    assert "pip install 'hundredfold[export]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_policy_acts_and_is_exported_where_its_env_is_not_installed(tmp_path):
    run, policy, seen, _ = trained(tmp_path, "CartPole-v1", SMALL)
    told = run.path / "settings.toml"
    told.write_text(told.read_text().replace('"CartPole-v1"', '"SomebodyElses/Pole-v3"'))
    here = hundredfold.load(run.path, "last")
    assert_array_equal(here.act(seen), policy.act(seen))
    assert isinstance(here.act(seen["observation"][0]), int)
    assert hundredfold.export(run.path, torchscript=True, checkpoint="last")[0].is_file()
    with pytest.raises(HundredfoldError, match="no env called 'SomebodyElses/Pole-v3'"):
        hundredfold.evaluate(run.path, episodes=1)
