"""Settings chosen for env and device: what was measured decides, what was given stays."""

import faulthandler
import os
import signal
import subprocess
import sys
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from hundredfold.backends.env_profile import StepCosts
from hundredfold.config.devices import Device
from hundredfold.config.presets import preset_settings
from hundredfold.core.batch import ArraySpec, EnvSpec
from hundredfold.core.errors import EnvError
from hundredfold.envs.registry import callable_factory
from hundredfold.training.auto_config import auto_configure, choose_settings

CPU = Device("cpu", "CPU", cores=2, memory=8 * 2**30, device_memory=8 * 2**30)
GPU = Device("cuda", "Tesla T4", cores=2, memory=8 * 2**30, device_memory=15 * 2**30)
SMALL = EnvSpec(name="small", observation={"o": ArraySpec((4,), "float32")}, action_nvec=(2,))
# A picture of 100 x 100 pixels in three colours.
LARGE = EnvSpec(
    name="large", observation={"o": ArraySpec((100, 100, 3), "uint8")}, action_nvec=(2,)
)


def probe_of(seconds, waits=False):
    walls = np.full(20, seconds)
    return StepCosts(walls, walls * (0.01 if waits else 1.0), 20 if waits else 0, 100)


def fit(algo="ppo", spec=SMALL, seconds=10e-6, waits=False, device=CPU, given=()):
    start = preset_settings("CartPole-v1", algo=algo)
    return choose_settings(start, set(given), spec, probe_of(seconds, waits), device)


@pytest.mark.parametrize(
    ("seconds", "waits", "num_envs"),
    [(10e-6, False, 32), (1e-3, False, 16), (20e-3, False, 8), (20e-3, True, 64)],
)
def test_the_number_of_envs_follows_what_a_step_costs(seconds, waits, num_envs):
    settings, fits = fit(seconds=seconds, waits=waits)
    assert settings.rollout.num_envs == num_envs
    assert settings.rollout.samples_per_epoch == 2_048
    (reason,) = [fit.summary for fit in fits if fit.name == "num_envs"]
    assert reason.startswith(f"  --num-envs {num_envs}: a step ")
    assert ("waiting" in reason) == waits


def test_many_cores_are_kept_busy():
    assert fit(device=replace(CPU, cores=32))[0].rollout.num_envs == 64


def test_what_the_user_has_set_stays_and_the_rest_fits_around_it():
    start = preset_settings("CartPole-v1")
    start = replace(start, rollout=replace(start.rollout, num_envs=4))
    settings, fits = choose_settings(
        start, {"num_envs", "hidden_sizes"}, SMALL, probe_of(1e-5), CPU
    )
    assert settings.rollout.num_envs == 4
    assert settings.rollout.num_steps == 512
    assert settings.network == start.network
    assert {fit.name for fit in fits} == {"num_steps"}


def test_experience_takes_no_more_than_a_quarter_of_the_memory():
    tight = replace(CPU, memory=200 * 2**20)
    settings, fits = fit(spec=LARGE, device=tight)
    assert settings.rollout.samples_per_epoch * 30_000 <= tight.memory / 4
    assert any("would not fit" in fit.reason for fit in fits)
    settings, fits = fit("dqn", spec=LARGE, device=tight)
    assert 3 * settings.dqn.replay_size * 30_000 <= tight.memory / 4
    assert fit("dqn")[0].dqn.replay_size == 100_000


@pytest.mark.parametrize(
    ("algo", "device", "hidden_sizes"),
    [("ppo", CPU, (64, 64)), ("dqn", CPU, (128, 128)), ("ppo", GPU, (256, 256))],
)
def test_networks_fit_the_device(algo, device, hidden_sizes):
    assert fit(algo, device=device)[0].network.hidden_sizes == hidden_sizes


def test_a_gpu_learns_from_larger_batches():
    assert fit("dqn", device=GPU)[0].dqn.batch_size == 256
    assert fit("dqn", device=CPU)[0].dqn.batch_size == 64


def test_continuous_actions_and_pictures_get_what_they_need():
    box = replace(
        SMALL, action_nvec=(), continuous_action=ArraySpec((2,), "float32", low=-1.0, high=1.0)
    )
    settings, fits = fit(spec=box)
    assert settings.ppo.entropy_coefficient == 0.0
    assert settings.ppo.update_epochs == 10
    assert settings.network.normalise_observations
    both, fits = fit(spec=replace(LARGE, action_nvec=(), continuous_action=box.continuous_action))
    assert both.network.shared
    assert len(fits) == len({fit.name for fit in fits})


def test_an_env_is_tried_out_and_the_backend_chosen_with_the_rest():
    settings, lines = auto_configure(preset_settings("CartPole-v1"), {"hidden_sizes"})
    assert settings.machine.backend == "in_process"
    assert lines[0].startswith("chosen for CartPole-v1")
    assert any(line.startswith("  --num-envs") for line in lines)
    assert not any(line.startswith("  --hidden-sizes") for line in lines)
    assert lines[-1].startswith("backend: in_process")


def test_an_env_of_ours_keeps_the_settings_made_for_it():
    start = preset_settings("corridor")
    assert auto_configure(start, set()) == (start, [])


class OnlyHere(gymnasium.Env):
    """Plays in the process that has loaded this test, and takes any other one along."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    home = os.getpid()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if os.getpid() != self.home:
            faulthandler.disable()
            os.kill(os.getpid(), signal.SIGSEGV)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {}


def test_an_env_that_is_to_run_here_is_tried_out_here():
    start = preset_settings("CartPole-v1")
    here = replace(start, machine=replace(start.machine, backend="in_process"))
    settings, lines = auto_configure(here, set(), callable_factory(OnlyHere))
    assert settings.rollout.num_envs == 32
    assert not any(line.startswith("backend") for line in lines)
    with pytest.raises(EnvError, match="SIGSEGV"):
        auto_configure(start, set(), callable_factory(OnlyHere))


def test_what_the_user_has_set_is_never_made_impossible():
    start = preset_settings("CartPole-v1")
    apart = replace(start.ppo, num_value_epochs=2, num_policy_epochs=2, minibatch_size=64)
    settings, fits = choose_settings(
        replace(start, ppo=apart),
        {"num_value_epochs", "num_policy_epochs", "minibatch_size"},
        LARGE,
        probe_of(1e-5),
        CPU,
    )
    assert not settings.network.shared
    assert "num_minibatches" not in {fit.name for fit in fits}


def test_a_script_without_a_main_guard_trains_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import hundredfold\n"
        "hundredfold.train('CartPole-v1', epochs=1, num_envs=2, num_steps=8, eval_interval=0,\n"
        "                  start_method='spawn', report=False)\n"
    )
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").iterdir())) == 1
