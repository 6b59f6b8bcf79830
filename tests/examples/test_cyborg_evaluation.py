"""`examples/cyborg_evaluation.py`, played on a stand-in for CybORG, which is on no package index."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import hundredfold
from helpers.stand_in_cyborg import modules
from hundredfold.api import load
from hundredfold.cli.cage2 import TrainedPolicy
from hundredfold.envs.cage2.blue_agent import BlueAgent, shipped_run
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.training.run_folder import RunFolder


@pytest.fixture
def example(monkeypatch):
    """The module of the example, with a stand-in for CybORG."""
    for name, module in modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    yield import_module("cyborg_evaluation")
    del sys.modules["cyborg_evaluation"]


def test_the_six_cells_of_the_shipped_policy_are_those_of_the_env(example, capsys):
    total = example.main(["--episodes", "3"])
    settings = RunFolder.open(shipped_run()).settings().env_settings
    policy, means = TrainedPolicy(load(shipped_run())), []
    for red in ("b_line", "meander"):
        for steps in (30, 50, 100):
            # Longer than the episodes, so that both see the same draws.
            cell = Cage2Settings(
                red=red, horizons=(1000,), channels=settings.channels, action_mask=settings.action_mask
            )
            means.append(prefix_returns(policy, cell, steps).mean())
    assert total == pytest.approx(sum(means), abs=1e-9)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["B_lineAgent"] * 3 + ["RedMeanderAgent"] * 3 + ["total"]
    assert lines[-1].startswith(f"total {total:.2f}")


def test_without_cyborg_it_says_what_is_missing(example, monkeypatch, capsys):
    for name in modules():
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SystemExit):
        example.main([])
    assert "No module named 'CybORG'; the first lines of this file say how to install" in capsys.readouterr().err


def prefix_returns(policy, settings, steps):
    """Returns over the first steps of three episodes."""
    env = Cage2(np.arange(3), settings)
    out = env.reset(0)
    policy.reset(3)
    total = np.zeros(3)
    for _ in range(steps):
        total += env.step(policy(out.observation, out.mask)).reward
    return total


def test_a_policy_with_exploits_gets_the_raw_observations(example, tmp_path, monkeypatch):
    run = hundredfold.train(
        "cage2",
        **{"channels": ("exploits",), "num_envs": 4, "num_steps": 10, "epochs": 1, "hidden_sizes": (8,)},
        **{"report": False, "save_dir": tmp_path, "backend": "in_process"},
    )
    seen = []
    act = BlueAgent.act

    def recording(self, bits, raw):
        seen.append(raw)
        return act(self, bits, raw)

    monkeypatch.setattr(BlueAgent, "act", recording)
    assert example.main(["--policy", str(run.path), "--episodes", "1"]) < 0
    assert len(seen) == 2 * (30 + 50 + 100)
    assert all("User3" in raw for raw in seen)
