"""Automatic configuration: settings from measured step costs and the device; given ones stay."""

import faulthandler
import os
import signal
import sys
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from helpers.processes import run_process
from hundredfold.backends.env_profile import StepCosts
from hundredfold.config.devices import Device
from hundredfold.config.presets import preset_settings
from hundredfold.config.run import LengthSettings
from hundredfold.core.batch import ArraySpec, EnvSpec
from hundredfold.core.errors import EnvError
from hundredfold.envs.registry import callable_factory
from hundredfold.training.auto_config import auto_configure, choose_settings

CPU = Device("cpu", "CPU", cores=2, memory=8 * 2**30, device_memory=8 * 2**30)
GPU = Device("cuda", "Tesla T4", cores=2, memory=8 * 2**30, device_memory=15 * 2**30)
SMALL = EnvSpec(name="small", observation={"o": ArraySpec((4,), "float32")}, action_nvec=(2,))
# An RGB image of 100 x 100 pixels.
LARGE = EnvSpec(name="large", observation={"o": ArraySpec((100, 100, 3), "uint8")}, action_nvec=(2,))


def step_costs(seconds, waits=False):
    walls = np.full(20, seconds)
    return StepCosts(walls, walls * (0.01 if waits else 1.0), 20 if waits else 0, 100)


def configure(algo="ppo", spec=SMALL, seconds=10e-6, waits=False, device=CPU, given=()):
    start = preset_settings("CartPole-v1", algo=algo)
    return choose_settings(start, set(given), spec, step_costs(seconds, waits), device)


@pytest.mark.parametrize(
    ("seconds", "waits", "num_envs"), [(10e-6, False, 32), (1e-3, False, 16), (20e-3, False, 8), (20e-3, True, 64)]
)
def test_num_envs_follows_the_step_cost(seconds, waits, num_envs):
    settings, choices = configure(seconds=seconds, waits=waits)
    assert settings.rollout.num_envs == num_envs
    assert settings.rollout.samples_per_epoch == 2_048
    (reason,) = [choice.summary for choice in choices if choice.name == "num_envs"]
    assert reason.startswith(f"  --num-envs {num_envs}: a step ")
    assert ("waiting" in reason) == waits


def test_many_cores_get_more_envs():
    assert configure(device=replace(CPU, cores=32))[0].rollout.num_envs == 64


def test_given_settings_are_kept_and_the_others_adapt():
    start = preset_settings("CartPole-v1")
    start = replace(start, rollout=replace(start.rollout, num_envs=4))
    settings, choices = choose_settings(start, {"num_envs", "hidden_sizes", "activation"}, SMALL, step_costs(1e-5), CPU)
    assert settings.rollout.num_envs == 4
    assert settings.rollout.num_steps == 512
    assert settings.network == start.network
    assert {choice.name for choice in choices} == {"num_steps", "num_minibatches", "eval_steps"}


def test_rollout_and_replay_buffers_use_at_most_a_quarter_of_the_memory():
    tight = replace(CPU, memory=200 * 2**20)
    settings, choices = configure(spec=LARGE, device=tight)
    assert settings.rollout.samples_per_epoch * 30_000 <= tight.memory / 4
    assert any("would not fit" in choice.reason for choice in choices)
    settings, choices = configure("dqn", spec=LARGE, device=tight)
    assert 3 * settings.dqn.replay_size * 30_000 <= tight.memory / 4
    assert configure("dqn")[0].dqn.replay_size == 100_000


@pytest.mark.parametrize(
    ("algo", "device", "hidden_sizes"), [("ppo", CPU, (64, 64)), ("dqn", CPU, (128, 128)), ("ppo", GPU, (256, 256))]
)
def test_network_size_follows_the_device(algo, device, hidden_sizes):
    assert configure(algo, device=device)[0].network.hidden_sizes == hidden_sizes


def test_discrete_policies_have_tanh_and_small_minibatches_unless_they_see_images():
    settings = configure()[0]
    assert (settings.network.activation, settings.ppo.num_minibatches) == ("tanh", 8)
    assert configure(given={"activation"})[0].network.activation == "relu"
    assert configure(spec=LARGE)[0].network.activation == "relu"
    assert configure("dqn")[0].network.activation == "relu"
    box = replace(SMALL, action_nvec=(), continuous_action=ArraySpec((2,), "float32", low=-1.0, high=1.0))
    assert configure(spec=box)[0].network.activation == "relu"


def configure_length(steps, given=(), **options):
    start = preset_settings("CartPole-v1")
    start = replace(start, length=LengthSettings(steps=steps))
    spec, seconds = options.get("spec", SMALL), options.get("seconds", 1e-3)
    return choose_settings(start, set(given), spec, step_costs(seconds), CPU)[0].evaluation.eval_steps


def test_an_evaluation_takes_no_more_steps_than_the_training_before_it():
    assert configure_length(250_000) == 10 * 2_048
    assert configure_length(2_000) == 2_048
    assert configure_length(2_000, spec=LARGE, seconds=10e-6) == 2_048


def test_evaluations_with_cheap_steps_stay_as_they_are_in_short_runs():
    assert configure_length(2_000, seconds=10e-6) == 16_000


@pytest.mark.parametrize("name", ["eval_steps", "eval_episodes", "eval_max_steps"])
def test_evaluations_that_the_user_has_set_are_not_limited(name):
    assert configure_length(2_000, given={name}) == 0


def test_batch_size_is_larger_on_a_gpu():
    assert configure("dqn", device=GPU)[0].dqn.batch_size == 256
    assert configure("dqn", device=CPU)[0].dqn.batch_size == 64


def test_continuous_actions_and_images_get_their_settings():
    box = replace(SMALL, action_nvec=(), continuous_action=ArraySpec((2,), "float32", low=-1.0, high=1.0))
    settings, choices = configure(spec=box)
    assert settings.ppo.entropy_coefficient == 0.0
    assert settings.ppo.update_epochs == 10
    assert settings.network.normalise_observations
    both, choices = configure(spec=replace(LARGE, action_nvec=(), continuous_action=box.continuous_action))
    assert both.network.shared
    assert len(choices) == len({choice.name for choice in choices})


@pytest.mark.process
def test_a_gymnasium_env_is_profiled_and_a_backend_selected():
    settings, lines = auto_configure(preset_settings("CartPole-v1"), {"hidden_sizes"})
    assert settings.machine.backend == "in_process"
    assert lines[0].startswith("chosen for CartPole-v1")
    assert any(line.startswith("  --num-envs") for line in lines)
    assert not any(line.startswith("  --hidden-sizes") for line in lines)
    assert lines[-1].startswith("backend: in_process")


def test_a_built_in_env_keeps_its_own_settings():
    start = preset_settings("corridor")
    assert auto_configure(start, set()) == (start, [])


class OnlyInThisProcess(gymnasium.Env):
    """Runs in the process that imported this module and crashes any other."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    main_pid = os.getpid()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if os.getpid() != self.main_pid:
            faulthandler.disable()
            os.kill(os.getpid(), signal.SIGSEGV)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {}


@pytest.mark.process
def test_with_the_in_process_backend_the_env_is_profiled_in_this_process():
    start = preset_settings("CartPole-v1")
    in_process = replace(start, machine=replace(start.machine, backend="in_process"))
    settings, lines = auto_configure(in_process, set(), callable_factory(OnlyInThisProcess))
    assert settings.rollout.num_envs == 32
    assert not any(line.startswith("backend") for line in lines)
    with pytest.raises(EnvError, match="SIGSEGV"):
        auto_configure(start, set(), callable_factory(OnlyInThisProcess))


def test_chosen_settings_never_conflict_with_given_ones():
    start = preset_settings("CartPole-v1")
    separate = replace(start.ppo, num_value_epochs=2, num_policy_epochs=2, minibatch_size=64)
    settings, choices = choose_settings(
        replace(start, ppo=separate),
        {"num_value_epochs", "num_policy_epochs", "minibatch_size"},
        LARGE,
        step_costs(1e-5),
        CPU,
    )
    assert not settings.network.shared
    assert "num_minibatches" not in {choice.name for choice in choices}


@pytest.mark.process
def test_a_script_without_main_guard_trains_once_with_spawn(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import hundredfold\n"
        "hundredfold.train('CartPole-v1', epochs=1, num_envs=2, num_steps=8, eval_interval=0,\n"
        "                  start_method='spawn', report=False)\n"
    )
    run_process([sys.executable, script], cwd=tmp_path)
    assert len(list((tmp_path / "runs").iterdir())) == 1
