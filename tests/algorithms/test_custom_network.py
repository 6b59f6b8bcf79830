"""Networks of the user: training, exact resume, evaluation, errors; the example of the documentation."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

import hundredfold
from helpers.training_runs import assert_same_run
from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.custom_network import CustomActorCritic, make_actor_critic, using_network
from hundredfold.cli.main import main
from hundredfold.core.batch import ArraySpec, EnvSpec
from hundredfold.core.errors import SettingsError

PAGE = Path(__file__).parents[2] / "docs" / "own-network.md"
RUN = {
    "num_envs": 4,
    "num_steps": 16,
    "epochs": 6,
    "eval_interval": 3,
    "eval_episodes": 4,
    "save_interval": 2,
    "backend": "in_process",
    "report": False,
}


class Net(nn.Module):
    """One shared layer over all arrays, with running means of the inputs."""

    def __init__(self, spec):
        super().__init__()
        self.arrays = spec.policy_observation
        width = sum(array.size for array in self.arrays.values())
        self.register_buffer("mean", torch.zeros(width))
        self.body = nn.Sequential(nn.Linear(width, 16), nn.Tanh())
        self.logits, self.value = nn.Linear(16, spec.num_logits), nn.Linear(16, 1)

    def flat(self, observation):
        return torch.cat([observation[name].flatten(1).float() for name in self.arrays], dim=1)

    def forward(self, observation):
        hidden = self.body(self.flat(observation) - self.mean)
        return self.logits(hidden), self.value(hidden).squeeze(-1)

    def update_stats(self, observation):
        self.mean += 0.1 * (self.flat(observation).mean(dim=0) - self.mean)


def test_the_example_of_the_documentation_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    code = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1]
    assert len([line for line in code.splitlines() if line]) <= 20
    page = {"__name__": "page"}
    exec(compile(code, str(PAGE), "exec"), page)
    assert float(capsys.readouterr().out.splitlines()[-1]) > 30  # a random policy has 22
    assert (page["run"].path / "policy.onnx").exists()


def test_a_run_with_an_own_network_resumes_bit_for_bit(tmp_path):
    # corridor has masks
    whole = hundredfold.train("corridor", network=Net, save_dir=tmp_path, name="whole", **RUN)
    stopped = hundredfold.train(
        "corridor", network=Net, save_dir=tmp_path, stop=lambda metrics: metrics["epoch"] == 3, **RUN
    )
    resumed = hundredfold.train(resume=stopped.path, network=Net, report=False)
    assert_same_run(whole.path, resumed.path)
    assert resumed.policy("last").policy.network.module.mean.abs().sum() > 0


def test_continuous_actions_and_several_arrays(tmp_path):
    run = hundredfold.train("Pendulum-v1", network=Net, save_dir=tmp_path, **{**RUN, "epochs": 2, "eval_interval": 0})
    action = run.policy("last").act(np.zeros(3, np.float32))
    assert action.shape == (1,)


def test_a_run_needs_its_function_again(tmp_path, capsys):
    run = hundredfold.train("corridor", network=Net, save_dir=tmp_path, **{**RUN, "epochs": 1})
    with pytest.raises(SettingsError, match="the Python function Net"):
        hundredfold.load(run.path)
    assert main(["evaluate", str(run.path)]) == 2
    assert "network=..." in " ".join(capsys.readouterr().err.split())
    assert hundredfold.evaluate(run.path, network=Net, episodes=4).returns.shape == (4,)


def test_changed_value_normalisation_keeps_values():
    spec = EnvSpec(name="x", observation={"a": ArraySpec((3,)), "b": ArraySpec((2, 2))}, action_nvec=(4,))
    with using_network(Net):
        network = make_actor_critic(spec, NetworkSettings(network_function="Net"))
    assert isinstance(network, CustomActorCritic)
    observation = {"a": torch.randn(5, 3), "b": torch.randn(5, 2, 2)}
    before = network.value(observation).detach()
    network.rescale_values(7.0, 3.0)
    assert_allclose(network.value(observation).detach(), before, rtol=1e-5, atol=1e-5)
    logits, values = network.logits_and_value(observation)
    assert (logits.shape, values.shape) == ((5, 4), (5,))


def wrong_shape(spec):
    return nn.Identity()


def no_module(spec):
    return 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"network": wrong_shape}, "expected logits of shape"),
        ({"network": no_module}, "expected a torch.nn.Module"),
        ({"network": Net, "algo": "dqn"}, "--algo ppo only"),
        ({"network": Net, "engine": "sb3"}, "--engine hundredfold only"),
        ({"network": Net, "memory": "gru"}, "cannot be combined"),
        ({"network": Net, "num_value_epochs": 1, "num_policy_epochs": 1}, "shared network"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, settings, words):
    with pytest.raises(SettingsError, match=words):
        hundredfold.train("corridor", save_dir=tmp_path, **{**RUN, **settings})
