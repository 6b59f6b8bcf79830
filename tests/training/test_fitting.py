"""Settings fitted to env and device: what was measured decides, what was given stays."""

from dataclasses import replace

import numpy as np
import pytest

from hundredfold.backends.probe import Probe
from hundredfold.core.batch import ArraySpec, WorldSpec
from hundredfold.settings.devices import Device
from hundredfold.settings.presets import starting_point
from hundredfold.training.fitting import fit_run, fitted

CPU = Device("cpu", "CPU", cores=2, memory=8 * 2**30, own_memory=8 * 2**30)
GPU = Device("cuda", "Tesla T4", cores=2, memory=8 * 2**30, own_memory=15 * 2**30)
SMALL = WorldSpec(name="small", observation={"o": ArraySpec((4,), "float32")}, choices=(2,))
# A picture of 100 x 100 pixels in three colours.
LARGE = WorldSpec(name="large", observation={"o": ArraySpec((100, 100, 3), "uint8")}, choices=(2,))


def probe_of(seconds, waits=False):
    walls = np.full(20, seconds)
    return Probe(walls, walls * (0.01 if waits else 1.0), 20 if waits else 0, 100)


def fit(algo="ppo", spec=SMALL, seconds=10e-6, waits=False, device=CPU, given=()):
    start = starting_point("CartPole-v1", algo=algo)
    return fitted(start, set(given), spec, probe_of(seconds, waits), device)


@pytest.mark.parametrize(
    ("seconds", "waits", "num_envs"),
    [(10e-6, False, 32), (1e-3, False, 16), (20e-3, False, 8), (20e-3, True, 64)],
)
def test_the_number_of_envs_follows_what_a_step_costs(seconds, waits, num_envs):
    settings, fits = fit(seconds=seconds, waits=waits)
    assert settings.rollout.num_envs == num_envs
    assert settings.rollout.samples_per_epoch == 2_048
    (reason,) = [fit.told for fit in fits if fit.name == "num_envs"]
    assert reason.startswith(f"  --num-envs {num_envs}: a step ")
    assert ("waiting" in reason) == waits


def test_many_cores_are_kept_busy():
    assert fit(device=replace(CPU, cores=32))[0].rollout.num_envs == 64


def test_what_the_user_has_set_stays_and_the_rest_fits_around_it():
    start = starting_point("CartPole-v1")
    start = replace(start, rollout=replace(start.rollout, num_envs=4))
    settings, fits = fitted(start, {"num_envs", "hidden"}, SMALL, probe_of(1e-5), CPU)
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
    assert settings.dqn.replay_size * 30_000 <= tight.memory / 4
    assert fit("dqn")[0].dqn.replay_size == 100_000


@pytest.mark.parametrize(
    ("algo", "device", "hidden"),
    [("ppo", CPU, (64, 64)), ("dqn", CPU, (128, 128)), ("ppo", GPU, (256, 256))],
)
def test_networks_fit_the_device(algo, device, hidden):
    assert fit(algo, device=device)[0].network.hidden == hidden


def test_a_gpu_learns_from_larger_batches():
    assert fit("dqn", device=GPU)[0].dqn.batch_size == 256
    assert fit("dqn", device=CPU)[0].dqn.batch_size == 64


def test_continuous_actions_and_pictures_get_what_they_need():
    box = replace(SMALL, choices=(), action_box=ArraySpec((2,), "float32", low=-1.0, high=1.0))
    settings, fits = fit(spec=box)
    assert settings.ppo.entropy_coefficient == 0.0
    assert settings.ppo.update_epochs == 10
    assert settings.network.normalise_observations
    both, fits = fit(spec=replace(LARGE, choices=(), action_box=box.action_box))
    assert both.network.shared
    assert len(fits) == len({fit.name for fit in fits})


def test_an_env_is_tried_out_and_the_backend_chosen_with_the_rest():
    settings, lines = fit_run(starting_point("CartPole-v1"), {"hidden"})
    assert settings.machine.backend == "in_process"
    assert lines[0].startswith("fitted to CartPole-v1")
    assert any(line.startswith("  --num-envs") for line in lines)
    assert not any(line.startswith("  --hidden") for line in lines)
    assert lines[-1].startswith("backend: in_process")


def test_a_world_of_ours_keeps_the_settings_made_for_it():
    start = starting_point("corridor")
    assert fit_run(start, set()) == (start, [])
