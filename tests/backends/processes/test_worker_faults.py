"""Envs that fail and workers that are lost: real signals, real hangs, nothing pretended."""

import os
import re
import signal
from contextlib import closing
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers import third_party_envs as foreign
from helpers.cases import BACKEND_CASES, ENV_CASES
from helpers.training_runs import wait_until
from helpers.trajectories import (
    Trajectory,
    assert_same_trajectory,
    continue_trajectory,
    fixed_actions,
    record_trajectory,
)
from hundredfold.backends.processes import worker_pool
from hundredfold.backends.processes.backend import ProcessBackend
from hundredfold.backends.serial import SerialBackend
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core import rng
from hundredfold.core.errors import CallOrderError, EnvError, SettingsError, WorkerError
from hundredfold.envs.corridor import LEFT, RIGHT
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv, GymnasiumFactory

SEED = 7
NUM_ENVS = 6
TROUBLED = 1
TURN = foreign.FaultyEnv.fault_step
STEPS = 7
# Long enough for a busy machine, short enough to wait for.
TIMEOUT = 1.5

everywhere = pytest.mark.parametrize("kind", BACKEND_CASES)
with_workers = pytest.mark.parametrize("kind", ["processes", "first_ready"])
every_start = pytest.mark.parametrize(
    "method",
    ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "forkserver"))],
)


def seed_of(env_id, episode=0):
    return int(rng.stream_keys(SEED, env_id, episode)) >> 33


def troubled(rude, *args):
    """An env of polite envs, of which one meets its trouble in its first episode."""
    return partial(GymnasiumBatchEnv, make_env=partial(rude, *args, fault_seed=seed_of(TROUBLED)))


def polite_story(good=foreign.FaultyEnv):
    with closing(SerialBackend(partial(GymnasiumBatchEnv, make_env=good), NUM_ENVS)) as backend:
        return record_trajectory(backend, SEED, STEPS)


def without_infos(trajectory):
    arrays = {name: array for name, array in trajectory.arrays.items() if name != "infos"}
    return Trajectory(trajectory.env_ids, arrays)


def assert_undisturbed(trajectory, env_ids, good=foreign.FaultyEnv):
    expected = polite_story(good).select_envs(env_ids)
    assert_same_trajectory(without_infos(trajectory.select_envs(env_ids)), without_infos(expected))


def assert_cut_off(trajectory, env_id, moment=TURN, mates=()):
    """An env's episode is truncated where it was last sound, and another has begun.

    So are those of its mates in a worker that was lost, some of whom had just done their step.
    """
    seen, final = trajectory["observation/observation"], trajectory["final_observation/observation"]
    assert_array_equal(final[moment, env_id], seen[moment - 1, env_id])
    for one in (env_id, *mates):
        assert trajectory["truncated"][moment, one]
        assert not trajectory["terminated"][moment, one]
        assert trajectory["reward"][moment, one] == 0
        assert final[moment, one, 0] in (moment - 1, moment)
        assert seen[moment - 1 : moment + 3, one, 0].tolist() == [moment - 1, 0, 1, 2]


def others_than(*env_ids):
    return [env_id for env_id in range(NUM_ENVS) if env_id not in env_ids]


# --- envs that fail where they stand

FAULTS = {
    "raises": (foreign.RaisesInStep, "raised in step.*ZeroDivisionError: the env failed in step"),
    "exits": (foreign.CallsSysExit, "raised in step.*SystemExit: the env called sys.exit"),
    "old": (foreign.StepReturnsFourValues, "raised in step.*ValueError"),
    "nan": (foreign.NanObservation, "returned nan in .*observation"),
    "inf": (foreign.InfObservation, "returned -inf in .*observation"),
    "inf_reward": (foreign.InfReward, "returned inf in .*reward"),
    "no_reward": (foreign.RewardIsNone, "raised in step.*TypeError"),
    "shape": (foreign.WrongObservationShape, r"of shape \(3,\)"),
    "dtype": (foreign.WrongObservationType, "cannot be converted to float32"),
    "mask": (foreign.MaskMethodRaises, "action_masks.*the mask could not be computed"),
}


@everywhere
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_env_starts_again_and_the_others_go_on(kind, fault):
    rude, message = FAULTS[fault]
    with closing(BACKEND_CASES[kind](troubled(rude), NUM_ENVS)) as backend:
        trajectory = record_trajectory(backend, SEED, STEPS)
        health = backend.health()
    assert_cut_off(trajectory, TROUBLED)
    good = foreign.ValidMaskMethod if fault == "mask" else foreign.FaultyEnv
    assert_undisturbed(trajectory, others_than(TROUBLED), good)
    assert health == {"env_failures": 1, "env_restarts": 1, "worker_restarts": 0}
    (told,) = [text for text in trajectory["infos"][:, TROUBLED] if "env_error" in text]
    assert re.search(f"env {TROUBLED} of .*step {TURN} of its episode 0.*{message}", told)


@everywhere
@pytest.mark.parametrize("fault", FAULTS)
def test_with_stop_a_failed_env_ends_the_play_and_is_named(kind, fault):
    rude, message = FAULTS[fault]
    settings = WorkerSettings(on_env_error="stop")
    with closing(BACKEND_CASES[kind](troubled(rude), NUM_ENVS, settings)) as backend:
        with pytest.raises(EnvError, match=f"env {TROUBLED} of .*step {TURN}.*{message}"):
            record_trajectory(backend, SEED, STEPS)
        with pytest.raises(CallOrderError, match="reset"):
            backend.recv()
        backend.reset(SEED + 1)
        assert len(backend.recv()) == NUM_ENVS


@with_workers
def test_an_error_names_the_worker_and_shows_the_envs_own_traceback(kind):
    settings = WorkerSettings(on_env_error="stop")
    with (
        closing(BACKEND_CASES[kind](troubled(foreign.RaisesInStep), NUM_ENVS, settings)) as backend,
        pytest.raises(EnvError, match=r"\[worker 0 \(envs 0\.\.2, process \d+\)\]") as refusal,
    ):
        record_trajectory(backend, SEED, STEPS)
    shown = str(refusal.value.__cause__)
    assert "third_party_envs" in shown
    assert "ZeroDivisionError: the env failed in step" in shown


@everywhere
def test_an_env_that_fails_between_episodes_leaves_the_finished_one_as_it_was(kind):
    with closing(BACKEND_CASES[kind](troubled(foreign.RaisesInSecondReset), NUM_ENVS)) as backend:
        trajectory = record_trajectory(backend, SEED, STEPS)
        health = backend.health()
    last_turn = foreign.RaisesInSecondReset.max_steps
    assert trajectory["truncated"][last_turn, TROUBLED]
    assert trajectory["reward"][last_turn, TROUBLED] > 0
    assert trajectory["final_observation/observation"][last_turn, TROUBLED, 0] == last_turn
    assert trajectory["observation/observation"][last_turn, TROUBLED, 0] == 0
    assert health["env_restarts"] == 1


@everywhere
def test_an_env_is_made_again_until_it_can_be_made(kind, tmp_path):
    make_envs = troubled(foreign.RaisesWhenRecreated, tmp_path)
    with closing(BACKEND_CASES[kind](make_envs, NUM_ENVS)) as backend:
        trajectory = record_trajectory(backend, SEED, STEPS)
        health = backend.health()
    assert_cut_off(trajectory, TROUBLED)
    assert health["env_failures"] == 3


@everywhere
def test_an_env_that_fails_again_and_again_ends_the_play_with_its_history(kind):
    make_envs = partial(GymnasiumBatchEnv, make_env=foreign.RaisesInStep)
    settings = WorkerSettings(max_env_failures=3)
    with (
        closing(BACKEND_CASES[kind](make_envs, NUM_ENVS, settings)) as backend,
        pytest.raises(EnvError) as refusal,
    ):
        record_trajectory(backend, SEED, 40)
    told = str(refusal.value)
    assert re.search(r"env \d failed 3 times in a row", told)
    for episode in range(3):
        assert f"{episode + 1}. env " in told
        assert f"(step 3 of its episode {episode})" in told
    assert "max_env_failures" in told


@everywhere
def test_an_env_that_comes_to_its_ends_in_between_may_fail_as_often_as_it_likes(kind):
    """It fails in every other episode, ten times, where two in a row would end the play."""
    unlucky = frozenset(seed_of(TROUBLED, episode) for episode in range(0, 20, 2))
    make_envs = partial(GymnasiumBatchEnv, make_env=partial(FailsInSome, unlucky))
    settings = WorkerSettings(max_env_failures=2)
    with closing(BACKEND_CASES[kind](make_envs, NUM_ENVS, settings)) as backend:
        record_trajectory(backend, SEED, 10 * (TURN + foreign.FaultyEnv.max_steps))
        assert backend.health()["env_failures"] == len(unlucky)


class FailsInSome(foreign.RaisesInStep):
    def __init__(self, unlucky):
        super().__init__()
        self.unlucky = unlucky

    def reset(self, *, seed=None, options=None):
        self.fault_seed = seed if seed in self.unlucky else -1
        return super().reset(seed=seed, options=options)


@everywhere
def test_an_env_that_cannot_be_made_is_refused_at_the_start(kind):
    make_envs = partial(GymnasiumBatchEnv, make_env=foreign.RaisesInConstructor)
    with pytest.raises(
        EnvError, match=r"env [03] could not be created: OSError: the env failed in its constructor"
    ):
        BACKEND_CASES[kind](make_envs, NUM_ENVS)


@everywhere
def test_an_env_that_never_resets_is_refused_at_the_start(kind):
    make_envs = partial(GymnasiumBatchEnv, make_env=foreign.RaisesInFirstReset)
    with pytest.raises(EnvError, match=r"env [03] of RaisesInFirstReset raised in its first reset"):
        BACKEND_CASES[kind](make_envs, NUM_ENVS)


@with_workers
def test_wrong_settings_of_an_env_are_refused_as_everywhere(kind):
    with pytest.raises(SettingsError, match=r"FrozenLake-v1.*9x9"):
        BACKEND_CASES[kind](GymnasiumFactory("FrozenLake-v1", {"map_name": "9x9"}), NUM_ENVS)


# --- workers that are lost


def made(make_envs, method, **settings):
    """Two workers with three envs each."""
    wanted = WorkerSettings(workers=2, start_method=method, step_timeout=TIMEOUT, **settings)
    return ProcessBackend(make_envs, NUM_ENVS, wanted)


LOSSES = {
    "killed": (foreign.KillsProcess, "was killed .SIGKILL"),
    "ended": (foreign.ExitsProcess, "ended by itself with exit code 3"),
    "stopped": (foreign.StopsProcess, "hung"),
    "hangs": (foreign.HangsInStep, "hung"),
    "hangs_in_compiled_code": (foreign.HangsHoldingGil, "hung"),
}


@every_start
@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_worker_is_replaced_and_its_episodes_are_cut_off(loss, method):
    rude, message = LOSSES[loss]
    with closing(made(troubled(rude), method)) as backend:
        trajectory = record_trajectory(backend, SEED, STEPS)
        health, (failure,) = backend.health(), backend.recent_failures
    assert_cut_off(trajectory, TROUBLED, mates=[0, 2])
    assert_undisturbed(trajectory, [3, 4, 5])
    assert health == {"env_failures": 1, "env_restarts": 3, "worker_restarts": 1}
    assert (failure.env_id, failure.worker) == (TROUBLED, 0)
    assert re.search(message, failure.message)
    assert f"env {TROUBLED} " in failure.message


@pytest.mark.parametrize("loss", LOSSES)
def test_with_stop_a_lost_worker_ends_the_play_and_a_reset_starts_over(loss):
    rude, message = LOSSES[loss]
    with closing(made(troubled(rude), "fork", on_env_error="stop")) as backend:
        with pytest.raises(EnvError, match=message) as refusal:
            record_trajectory(backend, SEED, STEPS)
        assert f"env {TROUBLED}" in str(refusal.value)
        assert "worker 0 (envs 0..2, process" in str(refusal.value)
        trajectory = record_trajectory(backend, SEED + 1, STEPS)
    assert trajectory["observation/observation"][0, :, 0].tolist() == [0] * NUM_ENVS


def test_infos_that_went_with_a_lost_worker_are_not_those_of_another_episode():
    with closing(made(partial(GymnasiumBatchEnv, make_env=foreign.FaultyEnv), "fork")) as backend:
        backend.reset(SEED)
        infos = backend.recv().infos
        os.kill(backend.pool.workers[0].process.pid, signal.SIGKILL)
        assert [infos[env_id] for env_id in range(3)] == [{}] * 3
        assert infos[4]["total"] == backend.batch.observation["observation"][4, 1]


def test_with_stop_infos_of_a_lost_worker_are_refused():
    with closing(made(troubled(foreign.KillsProcess), "fork", on_env_error="stop")) as backend:
        backend.reset(SEED)
        for _ in range(TURN):
            infos = backend.recv().infos
            backend.send(np.zeros(NUM_ENVS, np.int64))
        with pytest.raises(EnvError, match="SIGKILL"):
            backend.recv()
        with pytest.raises(WorkerError, match=r"worker 0 .* was lost"):
            infos[0]


@pytest.mark.parametrize("moment", [0, 2])
@every_start
def test_workers_killed_between_two_steps_are_replaced(method, moment):
    with closing(made(partial(GymnasiumBatchEnv, make_env=foreign.FaultyEnv), method)) as backend:
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


def test_a_worker_stopped_between_two_steps_is_replaced():
    with closing(made(partial(GymnasiumBatchEnv, make_env=foreign.FaultyEnv), "fork")) as backend:
        backend.reset(SEED)
        backend.recv()
        os.kill(backend.pool.workers[1].process.pid, signal.SIGSTOP)
        backend.send(np.zeros(NUM_ENVS, np.int64))
        assert backend.recv().truncated.tolist() == [False] * 3 + [True] * 3
        assert "no sign of life" in backend.recent_failures[-1].message


@pytest.mark.parametrize("env", ["corridor", "cartpole", "dvrp", "cage2"])
@with_workers
def test_a_worker_that_holds_an_env_of_ours_is_replaced_too(kind, env):
    with closing(BACKEND_CASES[kind](ENV_CASES[env], NUM_ENVS)) as backend:
        before = record_trajectory(backend, SEED, 4)
        backend.state()
        os.kill(backend.pool.workers[0].process.pid, signal.SIGKILL)
        backend.pool.workers[0].process.join()
        after = follow_next(backend, 3)
    assert after["truncated"][0].tolist() == [True] * 3 + [False] * 3
    assert not after["terminated"][0, :3].any()
    for name in after.arrays:
        if name.startswith("final_observation/"):
            last = before[name.removeprefix("final_")][-1, :3]
            assert_array_equal(after[name][0, :3], last)
    assert_same_trajectory(
        after.select_envs([3, 4, 5]), undisturbed(env).between(5, 8).select_envs([3, 4, 5])
    )


def undisturbed(env):
    with closing(SerialBackend(ENV_CASES[env], NUM_ENVS)) as backend:
        return record_trajectory(backend, SEED, 8)


def follow_next(backend, steps):
    """What comes of the fifth action and some more; the envs have played four."""
    everyone = np.arange(NUM_ENVS)
    waiting = backend.batch.take(everyone)
    backend.send(fixed_actions(waiting, backend.spec, np.full(NUM_ENVS, 4)), everyone)
    return continue_trajectory(backend, steps, first_step=5)


def test_an_action_chosen_before_the_loss_is_taken_whatever_the_new_mask_says():
    """Envs of ours move left, which their new episodes may forbid at once."""
    with closing(BACKEND_CASES["first_ready"](ENV_CASES["corridor"], 40)) as backend:
        backend.reset(SEED)
        seen = backend.recv().take(np.arange(40))
        movable = np.flatnonzero(seen.mask[:20, LEFT])
        elsewhere = np.arange(20, 40)
        os.kill(backend.pool.workers[0].process.pid, signal.SIGKILL)
        while not backend.health()["worker_restarts"]:
            backend.send(np.full(20, RIGHT), elsewhere)
            came = set(backend.recv().env_ids.tolist())
            while len(came) < 20:
                backend.send([], [])
                came |= set(backend.recv().env_ids.tolist())
        backend.broadcast({})  # the new worker has done all it was told so far
        assert not backend.batch.mask[movable, LEFT].all()
        backend.send(np.full(len(movable), LEFT), movable)
        assert backend.recv().truncated.all()


def test_a_new_worker_knows_what_was_broadcast_before_and_after_a_restore():
    with closing(BACKEND_CASES["processes"](ENV_CASES["corridor"], NUM_ENVS)) as backend:
        backend.broadcast({"toll": np.full(6, 0.5)})
        record_trajectory(backend, SEED, 3)
        assert_tolls_after_a_loss(backend, 0.5)
        backend.broadcast({"toll": np.full(6, 0.25)})
        backend.restore(backend.state())
        backend.recv()
        assert_tolls_after_a_loss(backend, 0.25)
        backend.broadcast({"toll": np.full(6, 0.125)})
        assert_tolls_after_a_loss(backend, 0.125)
        backend.reset(SEED)
        backend.recv()
        assert_tolls_after_a_loss(backend, 0.125)


def assert_tolls_after_a_loss(backend, toll):
    """Whoever enters a cell after its worker was replaced pays this much."""
    os.kill(backend.pool.workers[0].process.pid, signal.SIGKILL)
    paid = []
    for _ in range(4):
        backend.send(np.ones(NUM_ENVS, np.int64))
        paid += backend.recv().info["toll_paid"][:3].tolist()
    assert set(paid) == {0.0, toll}


def test_a_new_episode_after_a_loss_is_one_that_was_not_played_yet():
    make_envs = partial(GymnasiumBatchEnv, make_env=foreign.FaultyEnv)
    with closing(SerialBackend(make_envs, NUM_ENVS)) as backend:
        expected = record_trajectory(backend, SEED, 30)
    with closing(made(make_envs, "fork")) as backend:
        record_trajectory(
            backend, SEED, foreign.FaultyEnv.max_steps + 2
        )  # in the middle of episode 1
        os.kill(backend.pool.workers[0].process.pid, signal.SIGKILL)
        backend.send(np.zeros(NUM_ENVS, np.int64))
        batch = backend.recv()
        episode_2 = expected["observation/observation"][2 * foreign.FaultyEnv.max_steps]
        assert_array_equal(batch.observation["observation"][:3], episode_2[:3])


@pytest.mark.parametrize("call", ["reset", "state", "restore", "broadcast"])
def test_a_worker_lost_during_another_call_is_replaced_and_asked_again(call):
    with closing(made(partial(GymnasiumBatchEnv, make_env=foreign.FaultyEnv), "fork")) as backend:
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
            with pytest.warns(UserWarning, match="cannot be continued"):
                backend.restore(state)
            assert backend.recv().truncated.all()
        else:
            backend.broadcast({"gossip": np.ones(3)})
        assert backend.health()["worker_restarts"] == 2


def test_an_env_that_hangs_in_reset_is_replaced_with_its_worker():
    with closing(made(troubled(foreign.HangsInSecondReset), "fork")) as backend:
        trajectory = record_trajectory(backend, SEED, STEPS)
        assert backend.health()["worker_restarts"] == 1
    assert trajectory["truncated"][foreign.HangsInSecondReset.max_steps, :3].all()


def test_an_env_that_hangs_again_and_again_ends_the_play_with_its_history(monkeypatch):
    monkeypatch.setattr(worker_pool, "CLOSE_SECONDS", 0.3)  # others still hang when it is over
    make_envs = partial(GymnasiumBatchEnv, make_env=foreign.HangsInStep)
    with (
        closing(made(make_envs, "fork", max_env_failures=2)) as backend,
        pytest.raises(EnvError, match=r"env \d failed 2 times in a row") as refusal,
    ):
        record_trajectory(backend, SEED, 20)
    assert str(refusal.value).count("hung: it did not return") == 2


def test_a_worker_that_is_killed_again_and_again_ends_the_play_with_its_history():
    make_envs = partial(GymnasiumBatchEnv, make_env=foreign.FaultyEnv)
    with closing(made(make_envs, "fork", max_env_failures=3)) as backend:
        record_trajectory(backend, SEED, 1)
        for _ in range(2):
            play_after_a_kill(backend)
        with pytest.raises(WorkerError, match="worker 0 failed 3 times in a row") as refusal:
            play_after_a_kill(backend)
    assert str(refusal.value).count("SIGKILL") == 3


def play_after_a_kill(backend):
    os.kill(backend.pool.workers[0].process.pid, signal.SIGKILL)
    backend.send(np.zeros(NUM_ENVS, np.int64))
    return backend.recv()


def test_with_threads_a_hanging_env_is_found_among_those_that_work():
    settings = {"env_threads": 3}
    with closing(made(troubled(foreign.HangsInStep), "fork", **settings)) as backend:
        trajectory = record_trajectory(backend, SEED, STEPS)
        (failure,) = backend.recent_failures
    assert_cut_off(trajectory, TROUBLED, mates=[0, 2])
    assert_undisturbed(trajectory, [3, 4, 5])
    assert failure.env_id == TROUBLED


# --- closing


def gone(pid):
    """Over, or a zombie that only waits for its parent to look."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize(
    "rude", [foreign.HangsInStep, foreign.HangsHoldingGil, foreign.StopsProcess]
)
def test_closing_ends_workers_that_hang_or_are_stopped(rude, monkeypatch):
    monkeypatch.setattr(worker_pool, "CLOSE_SECONDS", 0.3)
    settings = WorkerSettings(workers=2)
    backend = ProcessBackend(troubled(rude), NUM_ENVS, settings)
    record_trajectory(backend, SEED, TURN - 1)
    pids = [worker.process.pid for worker in backend.pool.workers]
    backend.send(np.zeros(NUM_ENVS, np.int64))
    wait_until(lambda: backend.arrays["entered"][TROUBLED] > 0)
    backend.close()
    assert all(gone(pid) for pid in pids)


def test_what_an_env_has_started_ends_with_its_worker(tmp_path):
    make_envs = partial(GymnasiumBatchEnv, make_env=partial(foreign.StartsSubprocess, tmp_path))
    with closing(made(make_envs, "fork")) as backend:
        record_trajectory(backend, SEED, 1)
        programs = [int(path.name) for path in tmp_path.iterdir()]
        assert len(programs) == NUM_ENVS
        assert not any(gone(pid) for pid in programs)
    wait_until(lambda: all(gone(pid) for pid in programs))


def test_a_backend_that_nobody_closes_is_closed_when_it_is_forgotten():
    backend = made(partial(GymnasiumBatchEnv, make_env=foreign.FaultyEnv), "fork")
    pids = [worker.process.pid for worker in backend.pool.workers]
    del backend
    wait_until(lambda: all(gone(pid) for pid in pids))
