"""Failing envs and dead workers: restarts, truncations and diagnoses, with real signals."""

import os
import re
import signal
from contextlib import closing
from functools import partial
from time import monotonic

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers import third_party_envs
from helpers.cases import BACKEND_CASES, ENV_CASES, backend_param
from helpers.hangs import announce_hang
from helpers.processes import HANG_SECONDS, has_ended, wait_until
from helpers.trajectories import (
    Trajectory,
    assert_same_trajectory,
    continue_trajectory,
    fixed_actions,
    record_trajectory,
)
from hundredfold.backends.in_process import SerialBackend
from hundredfold.backends.processes import worker_pool
from hundredfold.backends.processes.backend import ProcessBackend
from hundredfold.backends.processes.worker_handle import WorkerHandle
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core import rng
from hundredfold.core.errors import CallOrderError, EnvError, SettingsError, WorkerError
from hundredfold.envs.corridor import LEFT, RIGHT
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv
from hundredfold.envs.gymnasium_factory import GymnasiumFactory

SEED = 7
NUM_ENVS = 6
FAULTY = 1
FAULT_STEP = third_party_envs.FaultyEnv.fault_step
STEPS = 7

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("only_hung_envs_time_out")]

VALID_ENVS = partial(GymnasiumBatchEnv, make_env=third_party_envs.FaultyEnv)

each_backend = pytest.mark.parametrize("kind", [backend_param(kind) for kind in BACKEND_CASES])
each_process_backend = pytest.mark.parametrize("kind", ["processes", "first_ready"])
each_start_method = pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "forkserver"))]
)


def seed_of(env_id, episode=0):
    return int(rng.stream_keys(SEED, env_id, episode)) >> 33


def with_one_faulty(faulty, *args):
    """Envs of which one is faulty in its first episode."""
    return partial(GymnasiumBatchEnv, make_env=partial(faulty, *args, fault_seed=seed_of(FAULTY)))


def fault_free_trajectory(valid=third_party_envs.FaultyEnv):
    with closing(SerialBackend(partial(GymnasiumBatchEnv, make_env=valid), NUM_ENVS)) as backend:
        return record_trajectory(backend, SEED, STEPS)


def without_infos(trajectory):
    arrays = {name: array for name, array in trajectory.arrays.items() if name != "infos"}
    return Trajectory(trajectory.env_ids, arrays)


def assert_fault_free(trajectory, env_ids, valid=third_party_envs.FaultyEnv):
    expected = fault_free_trajectory(valid).select_envs(env_ids)
    assert_same_trajectory(without_infos(trajectory.select_envs(env_ids)), without_infos(expected))


def assert_truncated(trajectory, env_id, moment=FAULT_STEP, shard_mates=()):
    """An env's episode is truncated at its last valid observation, and the next has begun.

    The same holds for other envs of a dead worker; some of them had just done their step.
    """
    observations = trajectory["observation/observation"]
    final = trajectory["final_observation/observation"]
    assert_array_equal(final[moment, env_id], observations[moment - 1, env_id])
    for one in (env_id, *shard_mates):
        assert trajectory["truncated"][moment, one]
        assert not trajectory["terminated"][moment, one]
        assert trajectory["reward"][moment, one] == 0
        assert final[moment, one, 0] in (moment - 1, moment)
        assert observations[moment - 1 : moment + 3, one, 0].tolist() == [moment - 1, 0, 1, 2]


def all_but(*env_ids):
    return [env_id for env_id in range(NUM_ENVS) if env_id not in env_ids]


# --- envs that fail without ending their process

FAULTS = {
    "raises": (third_party_envs.RaisesInStep, "raised in step.*ZeroDivisionError: the env failed in step"),
    "exits": (third_party_envs.CallsSysExit, "raised in step.*SystemExit: the env called sys.exit"),
    "unreadable": (third_party_envs.RaisesUnreadable, "raised in step.*UnreadableError: .its __str__ raised KeyError"),
    "too_large": (third_party_envs.TooLargeForFloat32, "returned 1e.39 in .*observation.*finite as float32"),
    "old": (third_party_envs.StepReturnsFourValues, "raised in step.*ValueError"),
    "nan": (third_party_envs.NanObservation, "returned nan in .*observation"),
    "inf": (third_party_envs.InfObservation, "returned -inf in .*observation"),
    "inf_reward": (third_party_envs.InfReward, "returned inf in .*reward"),
    "no_reward": (third_party_envs.RewardIsNone, "raised in step.*TypeError"),
    "shape": (third_party_envs.WrongObservationShape, r"of shape \(3,\)"),
    "dtype": (third_party_envs.WrongObservationType, "cannot be converted to float32"),
    "mask": (third_party_envs.MaskMethodRaises, "action_masks.*the mask could not be computed"),
}


@each_backend
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_env_restarts_and_the_others_continue(kind, fault):
    faulty, message = FAULTS[fault]
    with closing(BACKEND_CASES[kind](with_one_faulty(faulty), NUM_ENVS)) as backend:
        trajectory = record_trajectory(backend, SEED, STEPS)
        health = backend.health()
    assert_truncated(trajectory, FAULTY)
    valid = third_party_envs.ValidMaskMethod if fault == "mask" else third_party_envs.FaultyEnv
    assert_fault_free(trajectory, all_but(FAULTY), valid)
    assert health == {"env_failures": 1, "env_restarts": 1, "worker_restarts": 0}
    (info,) = [text for text in trajectory["infos"][:, FAULTY] if "env_error" in text]
    assert re.search(f"env {FAULTY} of .*step {FAULT_STEP} of its episode 0.*{message}", info)


@each_backend
@pytest.mark.parametrize("fault", FAULTS)
def test_on_env_error_stop_raises_an_error_that_names_the_env(kind, fault):
    faulty, message = FAULTS[fault]
    settings = WorkerSettings(on_env_error="stop")
    with closing(BACKEND_CASES[kind](with_one_faulty(faulty), NUM_ENVS, settings)) as backend:
        with pytest.raises(EnvError, match=f"env {FAULTY} of .*step {FAULT_STEP}.*{message}"):
            record_trajectory(backend, SEED, STEPS)
        with pytest.raises(CallOrderError, match="reset"):
            backend.recv()
        backend.reset(SEED + 1)
        assert len(backend.recv()) == NUM_ENVS


@each_process_backend
def test_an_error_names_the_worker_and_shows_the_traceback_of_the_env(kind):
    settings = WorkerSettings(on_env_error="stop")
    with (
        closing(BACKEND_CASES[kind](with_one_faulty(third_party_envs.RaisesInStep), NUM_ENVS, settings)) as backend,
        pytest.raises(EnvError, match=r"\[worker 0 \(envs 0\.\.2, process \d+\)\]") as raised,
    ):
        record_trajectory(backend, SEED, STEPS)
    shown = str(raised.value.__cause__)
    assert "third_party_envs" in shown
    assert "ZeroDivisionError: the env failed in step" in shown


@each_backend
def test_a_failure_in_reset_does_not_change_the_finished_episode(kind):
    with closing(BACKEND_CASES[kind](with_one_faulty(third_party_envs.RaisesInSecondReset), NUM_ENVS)) as backend:
        trajectory = record_trajectory(backend, SEED, STEPS)
        health = backend.health()
    last_step = third_party_envs.RaisesInSecondReset.max_steps
    assert trajectory["truncated"][last_step, FAULTY]
    assert trajectory["reward"][last_step, FAULTY] > 0
    assert trajectory["final_observation/observation"][last_step, FAULTY, 0] == last_step
    assert trajectory["observation/observation"][last_step, FAULTY, 0] == 0
    assert health["env_restarts"] == 1


@each_backend
def test_an_env_is_recreated_until_its_constructor_succeeds(kind, tmp_path):
    make_envs = with_one_faulty(third_party_envs.RaisesWhenRecreated, tmp_path)
    with closing(BACKEND_CASES[kind](make_envs, NUM_ENVS)) as backend:
        trajectory = record_trajectory(backend, SEED, STEPS)
        health = backend.health()
    assert_truncated(trajectory, FAULTY)
    assert health["env_failures"] == 3


@each_backend
def test_too_many_failures_in_a_row_raise_an_error_with_the_history(kind):
    make_envs = partial(GymnasiumBatchEnv, make_env=third_party_envs.RaisesInStep)
    settings = WorkerSettings(max_env_failures=3)
    with closing(BACKEND_CASES[kind](make_envs, NUM_ENVS, settings)) as backend, pytest.raises(EnvError) as raised:
        record_trajectory(backend, SEED, 40)
    message = str(raised.value)
    assert re.search(r"env \d failed 3 times in a row", message)
    for episode in range(3):
        assert f"{episode + 1}. env " in message
        assert f"(step 3 of its episode {episode})" in message
    assert "--max-env-failures" in message


@each_backend
def test_a_finished_episode_resets_the_failure_count(kind):
    """It fails in every other episode, ten times; two failures in a row would raise."""
    faulty_seeds = frozenset(seed_of(FAULTY, episode) for episode in range(0, 20, 2))
    make_envs = partial(GymnasiumBatchEnv, make_env=partial(RaisesInSomeEpisodes, faulty_seeds))
    settings = WorkerSettings(max_env_failures=2)
    with closing(BACKEND_CASES[kind](make_envs, NUM_ENVS, settings)) as backend:
        record_trajectory(backend, SEED, 10 * (FAULT_STEP + third_party_envs.FaultyEnv.max_steps))
        assert backend.health()["env_failures"] == len(faulty_seeds)


class InSomeEpisodes:
    """Faulty in the episodes with these seeds."""

    def __init__(self, faulty_seeds):
        super().__init__()
        self.faulty_seeds = faulty_seeds

    def reset(self, *, seed=None, options=None):
        self.fault_seed = seed if seed in self.faulty_seeds else -1
        return super().reset(seed=seed, options=options)


class RaisesInSomeEpisodes(InSomeEpisodes, third_party_envs.RaisesInStep):
    pass


class KillsInSomeEpisodes(InSomeEpisodes, third_party_envs.KillsProcess):
    pass


@each_backend
def test_a_constructor_error_is_raised_at_the_start(kind):
    make_envs = partial(GymnasiumBatchEnv, make_env=third_party_envs.RaisesInConstructor)
    with pytest.raises(EnvError, match=r"env [03] could not be created: OSError: the env failed in its constructor"):
        BACKEND_CASES[kind](make_envs, NUM_ENVS)


@each_backend
def test_an_error_in_the_first_reset_is_raised_at_the_start(kind):
    make_envs = partial(GymnasiumBatchEnv, make_env=third_party_envs.RaisesInFirstReset)
    with pytest.raises(EnvError, match=r"env [03] of RaisesInFirstReset raised in its first reset"):
        BACKEND_CASES[kind](make_envs, NUM_ENVS)


@pytest.mark.parametrize("kind", [backend_param(kind) for kind in ("processes", "first_ready", "ray")])
def test_a_keyboard_interrupt_in_another_process_is_a_failure_of_the_env(kind):
    make_envs = with_one_faulty(third_party_envs.RaisesKeyboardInterrupt)
    with closing(BACKEND_CASES[kind](make_envs, NUM_ENVS)) as backend:
        trajectory = record_trajectory(backend, SEED, STEPS)
        assert backend.health() == {"env_failures": 1, "env_restarts": 1, "worker_restarts": 0}
    assert_truncated(trajectory, FAULTY)
    assert_fault_free(trajectory, all_but(FAULTY))


FORKS = {"step": third_party_envs.ForksInStep, "reset": third_party_envs.ForksInReset}


@pytest.mark.parametrize("kind", [backend_param(kind) for kind in BACKEND_CASES if kind != "ray"])
@pytest.mark.parametrize("call", FORKS)
def test_a_forked_child_that_returns_from_an_env_is_ended(kind, call, capfd):
    with closing(BACKEND_CASES[kind](with_one_faulty(FORKS[call]), NUM_ENVS)) as backend:
        trajectory = record_trajectory(backend, SEED, STEPS)
        assert backend.health() == {"env_failures": 0, "env_restarts": 0, "worker_restarts": 0}
    assert_fault_free(trajectory, range(NUM_ENVS))
    moment = FAULT_STEP if call == "step" else 0
    assert "'exit_code': 1" in trajectory["infos"][moment + 1, FAULTY]
    error = capfd.readouterr().err
    assert error.count(f"forked in {call}(), and its child process") == 1
    assert f"env {FAULTY} of " in error


@each_process_backend
def test_observations_outside_their_bounds_are_reported_once_by_workers(kind):
    make_envs = partial(GymnasiumBatchEnv, make_env=third_party_envs.OutsideFirst)
    with closing(BACKEND_CASES[kind](make_envs, NUM_ENVS)) as backend:
        with pytest.warns(UserWarning, match="outside the bounds of its observation space") as caught:
            backend.reset(SEED)
        assert len(caught) == 1


@each_process_backend
def test_wrong_env_settings_raise_a_settings_error(kind):
    with pytest.raises(SettingsError, match=r"FrozenLake-v1.*9x9"):
        BACKEND_CASES[kind](GymnasiumFactory("FrozenLake-v1", {"map_name": "9x9"}), NUM_ENVS)


# --- dead workers


def two_workers(make_envs, method, **settings):
    """Two workers with three envs each."""
    worker_settings = WorkerSettings(workers=2, start_method=method, **settings)
    return ProcessBackend(make_envs, NUM_ENVS, worker_settings)


CRASHES = {
    "killed": (third_party_envs.KillsProcess, "was killed by SIGKILL"),
    "ended": (third_party_envs.ExitsProcess, "ended by itself with exit code 3"),
    "stopped": (third_party_envs.StopsProcess, "hung"),
    "hangs": (third_party_envs.HangsInStep, "hung"),
    "hangs_in_compiled_code": (third_party_envs.HangsHoldingGil, "hung"),
}


@each_start_method
@pytest.mark.parametrize("crash", CRASHES)
def test_a_dead_worker_is_replaced_and_its_episodes_are_truncated(crash, method):
    faulty, message = CRASHES[crash]
    with closing(two_workers(with_one_faulty(faulty), method)) as backend:
        trajectory = record_trajectory(backend, SEED, STEPS)
        health, (failure,) = backend.health(), backend.recent_failures
    assert_truncated(trajectory, FAULTY, shard_mates=[0, 2])
    assert_fault_free(trajectory, [3, 4, 5])
    assert health == {"env_failures": 1, "env_restarts": 3, "worker_restarts": 1}
    assert (failure.env_id, failure.worker) == (FAULTY, 0)
    assert re.search(message, failure.message)
    assert f"env {FAULTY} " in failure.message


@pytest.mark.parametrize("crash", CRASHES)
def test_on_env_error_stop_raises_for_a_dead_worker_and_reset_replaces_it(crash):
    faulty, message = CRASHES[crash]
    with closing(two_workers(with_one_faulty(faulty), "fork", on_env_error="stop")) as backend:
        with pytest.raises(EnvError, match=message) as raised:
            record_trajectory(backend, SEED, STEPS)
        assert f"env {FAULTY}" in str(raised.value)
        assert "worker 0 (envs 0..2, process" in str(raised.value)
        trajectory = record_trajectory(backend, SEED + 1, STEPS)
    assert trajectory["observation/observation"][0, :, 0].tolist() == [0] * NUM_ENVS


def test_infos_of_a_dead_worker_are_empty_rather_than_of_another_episode():
    with closing(two_workers(VALID_ENVS, "fork")) as backend:
        backend.reset(SEED)
        infos = backend.recv().infos
        os.kill(backend.pool.workers[0].process.pid, signal.SIGKILL)
        assert [infos[env_id] for env_id in range(3)] == [{}] * 3
        assert infos[4]["total"] == backend.batch.observation["observation"][4, 1]


def test_on_env_error_stop_reading_infos_of_a_dead_worker_raises():
    with closing(two_workers(with_one_faulty(third_party_envs.KillsProcess), "fork", on_env_error="stop")) as backend:
        backend.reset(SEED)
        for _ in range(FAULT_STEP):
            infos = backend.recv().infos
            backend.send(np.zeros(NUM_ENVS, np.int64))
        with pytest.raises(EnvError, match="SIGKILL"):
            backend.recv()
        with pytest.raises(WorkerError, match=r"infos of worker 0 .* are gone"):
            infos[0]


@pytest.mark.parametrize("moment", [0, 2])
@each_start_method
def test_workers_killed_between_steps_are_replaced(method, moment):
    with closing(two_workers(VALID_ENVS, method)) as backend:
        backend.reset(SEED)
        first = continue_trajectory(backend, moment)
        for worker in backend.pool.workers:
            os.kill(worker.process.pid, signal.SIGKILL)
        backend.send(np.zeros(NUM_ENVS, np.int64))
        batch = backend.recv()
        assert batch.truncated.all()
        assert not batch.terminated.any()
        last = first["observation/observation"][moment]
        assert_array_equal(batch.final_observation["observation"], last)
        assert backend.health()["worker_restarts"] == 2
        backend.send(np.zeros(NUM_ENVS, np.int64))
        assert backend.recv().observation["observation"][:, 0].tolist() == [1] * NUM_ENVS


def test_a_worker_stopped_between_steps_misses_its_heartbeat_and_is_replaced():
    with closing(two_workers(VALID_ENVS, "fork")) as backend:
        backend.reset(SEED)
        backend.recv()
        pid = backend.pool.workers[1].process.pid
        os.kill(pid, signal.SIGSTOP)
        announce_hang(pid)
        backend.send(np.zeros(NUM_ENVS, np.int64))
        assert backend.recv().truncated.tolist() == [False] * 3 + [True] * 3
        assert "no heartbeat" in backend.recent_failures[-1].message


@pytest.mark.parametrize("env", ["corridor", "cartpole", "dvrp", "cage2"])
@each_process_backend
def test_a_dead_worker_with_built_in_envs_is_replaced(kind, env):
    with closing(BACKEND_CASES[kind](ENV_CASES[env], NUM_ENVS)) as backend:
        before = record_trajectory(backend, SEED, 4)
        backend.state()
        os.kill(backend.pool.workers[0].process.pid, signal.SIGKILL)
        backend.pool.workers[0].process.join()
        after = continue_play(backend, 3)
    assert after["truncated"][0].tolist() == [True] * 3 + [False] * 3
    assert not after["terminated"][0, :3].any()
    for name in after.arrays:
        if name.startswith("final_observation/"):
            last = before[name.removeprefix("final_")][-1, :3]
            assert_array_equal(after[name][0, :3], last)
    assert_same_trajectory(after.select_envs([3, 4, 5]), fault_free(env).between(5, 8).select_envs([3, 4, 5]))


def fault_free(env):
    with closing(SerialBackend(ENV_CASES[env], NUM_ENVS)) as backend:
        return record_trajectory(backend, SEED, 8)


def continue_play(backend, steps):
    """The trajectory from the fifth action on; four were taken."""
    all_env_ids = np.arange(NUM_ENVS)
    waiting = backend.batch.take(all_env_ids)
    backend.send(fixed_actions(waiting, backend.spec, np.full(NUM_ENVS, 4)), all_env_ids)
    return continue_trajectory(backend, steps, first_step=5)


def test_an_action_sampled_before_the_crash_is_accepted_whatever_the_new_mask():
    """Built-in envs move left, which the mask of their new episodes may forbid."""
    with closing(BACKEND_CASES["first_ready"](ENV_CASES["corridor"], 40)) as backend:
        backend.reset(SEED)
        observations = backend.recv().take(np.arange(40))
        movable = np.flatnonzero(observations.mask[:20, LEFT])
        elsewhere = np.arange(20, 40)
        os.kill(backend.pool.workers[0].process.pid, signal.SIGKILL)
        while not backend.health()["worker_restarts"]:
            backend.send(np.full(20, RIGHT), elsewhere)
            received = set(backend.recv().env_ids.tolist())
            while len(received) < 20:
                backend.send([], [])
                received |= set(backend.recv().env_ids.tolist())
        backend.broadcast({})  # waits until the new worker has recovered
        assert not backend.batch.mask[movable, LEFT].all()
        backend.send(np.full(len(movable), LEFT), movable)
        assert backend.recv().truncated.all()


def test_a_replaced_worker_gets_the_shared_params_broadcast_before_and_after_a_restore():
    with closing(BACKEND_CASES["processes"](ENV_CASES["corridor"], NUM_ENVS)) as backend:
        backend.broadcast({"toll": np.full(6, 0.5)})
        record_trajectory(backend, SEED, 3)
        assert_toll_after_sigkill(backend, 0.5)
        backend.broadcast({"toll": np.full(6, 0.25)})
        backend.restore(backend.state())
        backend.recv()
        assert_toll_after_sigkill(backend, 0.25)
        backend.broadcast({"toll": np.full(6, 0.125)})
        assert_toll_after_sigkill(backend, 0.125)
        backend.reset(SEED)
        backend.recv()
        assert_toll_after_sigkill(backend, 0.125)


def assert_toll_after_sigkill(backend, toll):
    """Envs whose worker was replaced pay this toll when they enter a cell."""
    os.kill(backend.pool.workers[0].process.pid, signal.SIGKILL)
    tolls = []
    for _ in range(4):
        backend.send(np.ones(NUM_ENVS, np.int64))
        tolls += backend.recv().info["toll_paid"][:3].tolist()
    assert set(tolls) == {0.0, toll}


def test_the_episode_after_a_crash_is_the_next_one():
    make_envs = VALID_ENVS
    with closing(SerialBackend(make_envs, NUM_ENVS)) as backend:
        expected = record_trajectory(backend, SEED, 30)
    with closing(two_workers(make_envs, "fork")) as backend:
        record_trajectory(backend, SEED, third_party_envs.FaultyEnv.max_steps + 2)  # in the middle of episode 1
        os.kill(backend.pool.workers[0].process.pid, signal.SIGKILL)
        backend.send(np.zeros(NUM_ENVS, np.int64))
        batch = backend.recv()
        episode_2 = expected["observation/observation"][2 * third_party_envs.FaultyEnv.max_steps]
        assert_array_equal(batch.observation["observation"][:3], episode_2[:3])


@pytest.mark.parametrize("call", ["reset", "state", "restore", "broadcast"])
def test_a_request_is_repeated_when_a_worker_dies_in_it(call):
    with closing(two_workers(VALID_ENVS, "fork")) as backend:
        record_trajectory(backend, SEED, 2)
        state = backend.state()
        for worker in backend.pool.workers:
            os.kill(worker.process.pid, signal.SIGKILL)
        if call == "reset":
            backend.reset(SEED)
            assert not backend.recv().truncated.any()
        elif call == "state":
            assert len(backend.state()["episodes"]) == NUM_ENVS
        elif call == "restore":
            with pytest.warns(UserWarning, match="cannot continue in the middle"):
                backend.restore(state)
            assert backend.recv().truncated.all()
        else:
            backend.broadcast({"unused": np.ones(3)})
        assert backend.health()["worker_restarts"] == 2


def test_an_env_that_hangs_in_reset_times_out_and_its_worker_is_replaced():
    with closing(two_workers(with_one_faulty(third_party_envs.HangsInSecondReset), "fork")) as backend:
        trajectory = record_trajectory(backend, SEED, STEPS)
        assert backend.health()["worker_restarts"] == 1
    assert trajectory["truncated"][third_party_envs.HangsInSecondReset.max_steps, :3].all()


each_reset_fault = pytest.mark.parametrize(
    "faulty", [third_party_envs.KillsProcessInReset, third_party_envs.HangsInReset]
)


def with_fatal_reset(faulty, episode):
    """Envs of which one cannot survive the reset of this episode."""
    return partial(GymnasiumBatchEnv, make_env=partial(faulty, fault_seed=seed_of(FAULTY, episode)))


def first_observation(env_id, episode):
    env = third_party_envs.FaultyEnv()
    return env.reset(seed=seed_of(env_id, episode))[0].tolist()


@each_reset_fault
def test_a_reset_that_ends_its_worker_is_not_tried_again(faulty):
    max_steps = third_party_envs.FaultyEnv.max_steps
    with closing(two_workers(with_fatal_reset(faulty, 1), "fork", max_env_failures=2)) as backend:
        trajectory = record_trajectory(backend, SEED, max_steps + 1)
        assert backend.health()["worker_restarts"] == 1
    observations = trajectory["observation/observation"]
    assert trajectory["truncated"][max_steps, :3].all()
    assert observations[max_steps, FAULTY].tolist() == first_observation(FAULTY, 2)
    assert_fault_free(trajectory.between(0, STEPS), [3, 4, 5])


@each_reset_fault
@pytest.mark.parametrize("call", ["reset", "restore"])
def test_a_start_whose_reset_ends_the_worker_continues_with_the_next_episode(faulty, call):
    fatal = 0 if call == "reset" else 1
    with closing(two_workers(with_fatal_reset(faulty, fatal), "fork", max_env_failures=2)) as backend:
        backend.reset(SEED)
        if call == "restore":
            backend.recv()
            with pytest.warns(UserWarning, match="cannot continue in the middle"):
                backend.restore(backend.state())
        batch = backend.recv()
        assert batch.truncated.tolist() == [call == "restore"] * NUM_ENVS
        observations = batch.observation["observation"]
        assert observations[FAULTY].tolist() == first_observation(FAULTY, fatal + 1)
        assert observations[FAULTY + 1].tolist() == first_observation(FAULTY + 1, fatal)
        assert backend.health()["worker_restarts"] == 1
        # A later replacement does not come back to it, either. The truncation by a restore counts as an episode.
        later = fatal + 1 + (call == "restore")
        observations = step_after_sigkill(backend).observation["observation"]
        assert observations[FAULTY].tolist() == first_observation(FAULTY, later + 1)
        assert observations[FAULTY + 1].tolist() == first_observation(FAULTY + 1, later)


def test_a_worker_replaced_in_the_first_reset_has_the_shared_params():
    with closing(BACKEND_CASES["processes"](ENV_CASES["corridor"], NUM_ENVS)) as backend:
        backend.broadcast({"toll": np.full(6, 0.5)})
        os.kill(backend.pool.workers[0].process.pid, signal.SIGKILL)
        backend.reset(SEED)
        backend.recv()
        tolls = set()
        for _ in range(4):
            backend.send(np.ones(NUM_ENVS, np.int64))
            tolls |= set(backend.recv().info["toll_paid"][:3].tolist())
        assert backend.health()["worker_restarts"] == 1
    assert tolls == {0.0, 0.5}


def test_too_many_timeouts_in_a_row_raise_an_error_with_the_history(monkeypatch):
    monkeypatch.setattr(worker_pool, "CLOSE_SECONDS", 0.3)  # the other workers still hang
    make_envs = partial(GymnasiumBatchEnv, make_env=third_party_envs.HangsInStep)
    with (
        closing(two_workers(make_envs, "fork", max_env_failures=2)) as backend,
        pytest.raises(EnvError, match=r"env \d failed 2 times in a row") as raised,
    ):
        record_trajectory(backend, SEED, 20)
    assert str(raised.value).count("hung: it did not return") == 2


def test_a_step_timeout_counts_seconds(monkeypatch):
    """The only env hangs in its first reset, so that nothing else depends on the short timeout."""
    monkeypatch.undo()
    make_envs = partial(GymnasiumBatchEnv, make_env=partial(third_party_envs.HangsInReset, fault_seed=seed_of(0, 0)))
    settings = WorkerSettings(workers=1, env_threads=1, step_timeout=0.4, max_env_failures=1)
    with closing(ProcessBackend(make_envs, 1, settings)) as backend:
        begin = monotonic()
        with pytest.raises(EnvError, match=r"env 0 hung: .* within 0\.4 seconds"):
            backend.reset(SEED)
        assert monotonic() - begin >= 0.4


def test_too_many_worker_deaths_in_a_row_raise_an_error_with_the_history():
    make_envs = VALID_ENVS
    with closing(two_workers(make_envs, "fork", max_env_failures=3)) as backend:
        record_trajectory(backend, SEED, 1)
        for _ in range(2):
            step_after_sigkill(backend)
        with pytest.raises(WorkerError, match="worker 0 failed 3 times in a row") as raised:
            step_after_sigkill(backend)
    assert str(raised.value).count("SIGKILL") == 3


def test_a_finished_episode_resets_the_failure_count_of_an_env_that_kills_its_worker():
    """It does so in two episodes with one in between; two failures in a row would raise."""
    faulty_seeds = frozenset(seed_of(FAULTY, episode) for episode in (0, 2))
    make_envs = partial(GymnasiumBatchEnv, make_env=partial(KillsInSomeEpisodes, faulty_seeds))
    with closing(two_workers(make_envs, "fork", max_env_failures=2)) as backend:
        record_trajectory(backend, SEED, 2 * FAULT_STEP + third_party_envs.FaultyEnv.max_steps + 1)
        assert [failure.env_id for failure in backend.recent_failures] == [FAULTY, FAULTY]


def step_after_sigkill(backend):
    os.kill(backend.pool.workers[0].process.pid, signal.SIGKILL)
    backend.send(np.zeros(NUM_ENVS, np.int64))
    return backend.recv()


def test_with_env_threads_the_hung_env_is_identified():
    settings = {"env_threads": 3}
    with closing(two_workers(with_one_faulty(third_party_envs.HangsInStep), "fork", **settings)) as backend:
        trajectory = record_trajectory(backend, SEED, STEPS)
        (failure,) = backend.recent_failures
    assert_truncated(trajectory, FAULTY, shard_mates=[0, 2])
    assert_fault_free(trajectory, [3, 4, 5])
    assert failure.env_id == FAULTY


# --- closing


@pytest.mark.parametrize(
    "faulty", [third_party_envs.HangsInStep, third_party_envs.HangsHoldingGil, third_party_envs.StopsProcess]
)
def test_close_kills_workers_that_hang_or_are_stopped(faulty, monkeypatch):
    monkeypatch.setattr(worker_pool, "CLOSE_SECONDS", 0.3)
    settings = WorkerSettings(workers=2)
    backend = ProcessBackend(with_one_faulty(faulty), NUM_ENVS, settings)
    record_trajectory(backend, SEED, FAULT_STEP - 1)
    pids = [worker.process.pid for worker in backend.pool.workers]
    backend.send(np.zeros(NUM_ENVS, np.int64))
    wait_until(lambda: backend.arrays["busy_since"][FAULTY] > 0)
    backend.close()
    assert all(has_ended(pid) for pid in pids)


def test_workers_have_five_seconds_together_to_close_their_envs(monkeypatch):
    granted, close, now = [], WorkerHandle.close, monotonic()

    def close_later(worker, deadline):
        granted.append(deadline - now)
        close(worker, monotonic() + HANG_SECONDS)

    with closing(two_workers(VALID_ENVS, "fork")):
        monkeypatch.setattr(worker_pool, "monotonic", lambda: now)
        monkeypatch.setattr(WorkerHandle, "close", close_later)
    assert granted == pytest.approx([5.0, 5.0])


@pytest.mark.parametrize("own_session", [False, True])
def test_subprocesses_of_envs_end_with_their_worker(tmp_path, own_session):
    make_envs = starting_subprocesses(tmp_path, own_session)
    with closing(two_workers(make_envs, "fork", env_threads=1)) as backend:
        record_trajectory(backend, SEED, 1)
        pids = [int(path.name) for path in tmp_path.iterdir()]
        assert len(pids) == NUM_ENVS
        assert not any(has_ended(pid) for pid in pids)
    wait_until(lambda: all(has_ended(pid) for pid in pids))


@pytest.mark.parametrize("own_session", [False, True])
def test_subprocesses_of_envs_end_with_a_worker_that_was_killed(tmp_path, own_session):
    with closing(two_workers(starting_subprocesses(tmp_path, own_session), "fork", env_threads=1)) as backend:
        pids = {int(path.name) for path in tmp_path.iterdir()}
        backend.reset(SEED)
        backend.recv()
        step_after_sigkill(backend)
        wait_until(lambda: sum(has_ended(pid) for pid in pids) == 3)
        assert sum(not has_ended(int(path.name)) for path in tmp_path.iterdir()) == NUM_ENVS


def starting_subprocesses(folder, own_session):
    """Envs whose subprocesses are counted; with `env_threads` given, no other env is profiled before them."""
    make_env = partial(third_party_envs.StartsSubprocess, folder, own_session)
    return partial(GymnasiumBatchEnv, make_env=make_env)


def test_a_backend_is_closed_when_it_is_garbage_collected():
    backend = two_workers(VALID_ENVS, "fork")
    pids = [worker.process.pid for worker in backend.pool.workers]
    del backend
    wait_until(lambda: all(has_ended(pid) for pid in pids))
