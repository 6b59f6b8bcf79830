"""The `Backend` interface (`core/protocols.py`), checked for each entry of `BACKEND_CASES`."""

import functools
import pickle
from contextlib import closing
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers.cases import BACKEND_CASES, ENV_CASES, backend_param
from helpers.third_party_envs import MultiDiscreteActions, RaisesInSecondReset, RaisesInStep, RecordsClose
from helpers.trajectories import assert_same_trajectory, continue_trajectory, fixed_actions, record_trajectory
from hundredfold.backends import BACKENDS
from hundredfold.backends.in_process import SerialBackend
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core import rng
from hundredfold.core.errors import ActionError, CallOrderError, CheckpointError, EnvError, SettingsError, ShapeError
from hundredfold.envs.corridor import LEFT, RIGHT, WAIT, Corridor, CorridorSettings
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv

STOP = WorkerSettings(on_env_error="stop")
SEED = 7
NUM_ENVS = 6
STEPS = 50
HALF = 17

every_backend = pytest.mark.parametrize("kind", [backend_param(kind) for kind in BACKEND_CASES])
every_env = pytest.mark.parametrize("env", ENV_CASES)
built_in = pytest.mark.parametrize("env", ["corridor", "cartpole"])
third_party = pytest.mark.parametrize("env", ["FrozenLake-v1", "third_party_masked"])


@functools.cache
def serial_trajectory(env):
    with closing(SerialBackend(ENV_CASES[env], NUM_ENVS)) as backend:
        return record_trajectory(backend, SEED, STEPS)


def started(kind, make_envs=Corridor, num_envs=NUM_ENVS):
    """A backend whose envs wait for their first action, and their first batch."""
    backend = BACKEND_CASES[kind](make_envs, num_envs)
    backend.reset(SEED)
    return backend, backend.recv()


def no_steps(batch):
    return np.zeros(len(batch), np.int64)


def test_every_backend_is_in_the_suite():
    missing = BACKENDS.keys() - BACKEND_CASES.keys()
    assert not missing, f"add a line for {missing} to BACKEND_CASES in tests/helpers/cases.py"


@every_backend
def test_backend_cases_can_be_pickled(kind):
    assert pickle.loads(pickle.dumps(BACKEND_CASES[kind])) is not None


# --- trajectories


@every_backend
@every_env
def test_every_backend_equals_the_serial_backend(kind, env):
    with closing(BACKEND_CASES[kind](ENV_CASES[env], NUM_ENVS)) as backend:
        assert_same_trajectory(record_trajectory(backend, SEED, STEPS), serial_trajectory(env))


@every_backend
@pytest.mark.parametrize("num_envs", [1, 7, 64])
def test_trajectories_do_not_depend_on_the_number_of_envs(kind, num_envs):
    with closing(BACKEND_CASES[kind](ENV_CASES["corridor"], num_envs)) as backend:
        actual = record_trajectory(backend, SEED, 30)
    shared = range(min(num_envs, NUM_ENVS))
    assert_same_trajectory(actual.select_envs(shared), serial_trajectory("corridor").select_envs(shared).between(0, 30))


@every_backend
@every_env
def test_a_second_reset_starts_the_trajectory_again(kind, env):
    with closing(BACKEND_CASES[kind](ENV_CASES[env], NUM_ENVS)) as backend:
        record_trajectory(backend, SEED + 1, 13)
        assert_same_trajectory(record_trajectory(backend, SEED, 20), serial_trajectory(env).between(0, 20))


@every_backend
def test_a_backend_knows_its_size_and_the_spec_of_its_env(kind):
    backend, batch = started(kind)
    with closing(backend):
        assert backend.num_envs == NUM_ENVS
        assert backend.spec == Corridor(np.arange(1)).spec
        assert len(batch) <= NUM_ENVS


@every_backend
def test_envs_are_numbered_from_zero_without_gaps(kind):
    backend, batch = started(kind)
    with closing(backend):
        env_ids = set()
        while len(env_ids) < NUM_ENVS:
            env_ids |= set(batch.env_ids.tolist())
            backend.send(fixed_actions(batch, backend.spec, no_steps(batch)))
            batch = backend.recv()
    assert env_ids == set(range(NUM_ENVS))


# --- call order


def backend_with_pending(kind, pending):
    """A backend for which this call is pending."""
    backend = BACKEND_CASES[kind](Corridor, NUM_ENVS)
    if pending == "reset":
        return backend
    backend.reset(SEED)
    if pending == "recv":
        return backend
    backend.recv()
    if pending == "send":
        return backend
    backend.close()
    return backend


CALLS = {
    "reset": lambda backend: backend.reset(SEED),
    "recv": lambda backend: backend.recv(),
    "send": lambda backend: backend.send(np.full(NUM_ENVS, RIGHT)),
    "state": lambda backend: backend.state(),
    "restore": lambda backend: backend.restore(corridor_snapshot()),
}


@functools.cache
def corridor_snapshot():
    with closing(SerialBackend(Corridor, NUM_ENVS)) as backend:
        record_trajectory(backend, SEED, 4)
        return backend.state()


OUT_OF_ORDER = [
    ("reset", "recv", r"call reset\(seed\) or restore\(state\) first"),
    ("reset", "send", r"call reset\(seed\) or restore\(state\) first"),
    ("reset", "state", r"call reset\(seed\) or restore\(state\) first"),
    ("recv", "send", r"recv\(\) is pending"),
    ("recv", "state", r"recv\(\) is pending"),
    ("send", "recv", r"send\(actions\) is pending"),
    *(("closed", call, "closed: create a new one") for call in CALLS),
]
IN_ORDER = [
    *((pending, call) for pending in ("reset", "recv", "send") for call in ("reset", "restore")),
    ("recv", "recv"),
    ("send", "send"),
    ("send", "state"),
]


@every_backend
@pytest.mark.parametrize(("pending", "call", "hint"), OUT_OF_ORDER)
def test_a_call_out_of_order_is_refused_and_the_pending_call_named(kind, pending, call, hint):
    with closing(backend_with_pending(kind, pending)) as backend:
        with pytest.raises(CallOrderError, match=hint) as refusal:
            CALLS[call](backend)
        assert f"{call}()" in str(refusal.value)


@every_backend
@pytest.mark.parametrize(("pending", "call"), IN_ORDER)
def test_a_call_in_order_is_accepted(kind, pending, call):
    with closing(backend_with_pending(kind, pending)) as backend:
        CALLS[call](backend)


def test_each_call_is_either_in_or_out_of_order():
    actual = [(pending, call) for pending, call, _ in OUT_OF_ORDER] + IN_ORDER
    assert sorted(actual) == sorted(
        (pending, call) for pending in ("reset", "recv", "send", "closed") for call in CALLS
    )


@every_backend
def test_a_refused_call_does_not_change_the_pending_call(kind):
    with closing(BACKEND_CASES[kind](ENV_CASES["corridor"], NUM_ENVS)) as backend:
        with pytest.raises(CallOrderError):
            backend.recv()
        backend.reset(SEED)
        with pytest.raises(CallOrderError):
            backend.state()
        first = continue_trajectory(backend, HALF)
        with pytest.raises(CallOrderError):
            backend.recv()
        backend.restore(backend.state())
        second = continue_trajectory(backend, 10, first_step=HALF)
    assert_same_trajectory(first, serial_trajectory("corridor").between(0, HALF))
    assert_same_trajectory(second, serial_trajectory("corridor").between(HALF, HALF + 10))


@every_backend
def test_a_second_send_is_out_of_order_whatever_its_actions(kind):
    with closing(backend_with_pending(kind, "recv")) as backend, pytest.raises(CallOrderError, match="recv"):
        backend.send(np.zeros(NUM_ENVS + 1))


@every_backend
def test_a_closed_backend_takes_no_broadcast(kind):
    with pytest.raises(CallOrderError, match="closed"):
        backend_with_pending(kind, "closed").broadcast({})


@every_backend
@pytest.mark.parametrize("pending", ["reset", "recv", "send"])
def test_close_may_be_called_twice_at_any_time(kind, pending):
    backend = backend_with_pending(kind, pending)
    backend.close()
    backend.close()


# --- actions that are refused


@every_backend
@pytest.mark.parametrize(
    ("change", "error", "names"),
    [
        (lambda good: good[:-1], ShapeError, [f"({NUM_ENVS - 1},)", f"({NUM_ENVS},)", "env_ids 0..5"]),
        (lambda good: np.append(good, RIGHT), ShapeError, [f"({NUM_ENVS + 1},)", f"({NUM_ENVS},)"]),
        (lambda good: good[:, None], ShapeError, [f"({NUM_ENVS}, 1)", f"({NUM_ENVS},)"]),
        (lambda good: good[0], ShapeError, ["()", f"({NUM_ENVS},)"]),
        (lambda good: [], ShapeError, ["(0,)", f"({NUM_ENVS},)"]),
        (lambda good: good.astype(np.float32), ShapeError, ["float32", "integers"]),
        (lambda good: good.astype(bool), ShapeError, ["bool", "integers"]),
        (lambda good: np.where(np.arange(NUM_ENVS) == 4, -1, good), ActionError, ["-1", "env 4", "0..2"]),
        (lambda good: np.where(np.arange(NUM_ENVS) == 3, 3, good), ActionError, ["3", "env 3", "0..2"]),
        (lambda good: np.where(np.arange(NUM_ENVS) == 2, 2**40, good), ActionError, [str(2**40), "env 2"]),
    ],
    ids=["few", "many", "two_axes", "scalar", "none", "floats", "bools", "negative", "large", "huge"],
)
def test_invalid_actions_are_refused_and_the_trajectory_continues(kind, change, error, names):
    """RIGHT is allowed in every cell of the corridor; each change of it is invalid."""
    backend, batch = started(kind, ENV_CASES["corridor"])
    with closing(backend):
        with pytest.raises(error) as refusal:
            backend.send(change(np.full(len(batch), RIGHT)))
        for name in names:
            assert name in str(refusal.value)
        backend.send(fixed_actions(batch, backend.spec, no_steps(batch)))
        actual = continue_trajectory(backend, 20, first_step=1)
    assert_same_trajectory(actual, serial_trajectory("corridor").between(1, 21))


@every_backend
def test_a_masked_action_is_refused_with_the_allowed_ones_and_the_trajectory_continues(kind):
    backend, batch = started(kind, ENV_CASES["corridor"], num_envs=24)
    with closing(backend):
        at_wall = int(np.flatnonzero(batch.observation["cell"][:, 0] == 0)[0])
        actions = np.full(24, RIGHT)
        actions[at_wall] = LEFT
        with pytest.raises(ActionError) as refusal:
            backend.send(actions)
        assert f"env {batch.env_ids[at_wall]}" in str(refusal.value)
        assert f"allowed: {[RIGHT, WAIT]}" in str(refusal.value)
        backend.send(fixed_actions(batch, backend.spec, no_steps(batch)))
        actual = continue_trajectory(backend, 20, first_step=1)
    few = range(NUM_ENVS)
    assert_same_trajectory(actual.select_envs(few), serial_trajectory("corridor").between(1, 21))


@every_backend
def test_multi_discrete_actions_are_checked_by_dimension(kind):
    backend, batch = started(kind, partial(GymnasiumBatchEnv, make_env=MultiDiscreteActions))
    with closing(backend):
        good = fixed_actions(batch, backend.spec, no_steps(batch))
        with pytest.raises(ShapeError, match=r"\(6, 2\)"):
            backend.send(good[:, 0])
        wrong = good.copy()
        wrong[3] = [1, 2]
        with pytest.raises(ActionError, match=r"\[1 2\] for env 3.*0\.\.2 x 0\.\.1"):
            backend.send(wrong)
        row, logit = np.argwhere(~batch.mask)[0]
        wrong = good.copy()
        wrong[row] = [logit, wrong[row, 1]] if logit < 3 else [wrong[row, 0], logit - 3]
        with pytest.raises(ActionError, match=f"env {row}, which its mask forbids"):
            backend.send(wrong)
        backend.send(good)
        backend.recv()


@every_backend
@pytest.mark.parametrize("form", [list, np.int32, np.uint8], ids=["list", "int32", "uint8"])
def test_integers_of_any_dtype_are_accepted(kind, form):
    backend, batch = started(kind, ENV_CASES["corridor"])
    with closing(backend):
        actions = fixed_actions(batch, backend.spec, no_steps(batch))
        backend.send(actions.tolist() if form is list else actions.astype(form))
        actual = continue_trajectory(backend, 10, first_step=1)
    assert_same_trajectory(actual, serial_trajectory("corridor").between(1, 11))


@every_backend
@pytest.mark.parametrize("num_envs", [0, -3])
def test_a_backend_without_envs_is_refused(kind, num_envs):
    with pytest.raises(SettingsError, match=f"num_envs.*{num_envs}"):
        BACKEND_CASES[kind](Corridor, num_envs)


# --- broadcast


@every_backend
def test_a_broadcast_reaches_every_env(kind):
    backend, batch = started(kind, partial(Corridor, settings=CorridorSettings(length=9)))
    with closing(backend):
        toll = np.arange(9) / 8
        backend.broadcast({"toll": toll})
        entered = batch.observation["cell"][:, 0] + 1
        backend.send(np.full(len(batch), RIGHT))
        received = np.zeros(NUM_ENVS, bool)
        while not received.all():
            batch = backend.recv()
            paid = toll[entered[batch.env_ids]]
            assert_array_equal(batch.info["toll_paid"], paid)
            assert_array_equal(batch.reward, -0.1 - paid)
            received[batch.env_ids] = True
            if not received.all():
                backend.send([], [])


@every_backend
def test_a_broadcast_persists_across_resets(kind):
    with closing(BACKEND_CASES[kind](ENV_CASES["corridor"], NUM_ENVS)) as backend:
        free = record_trajectory(backend, SEED, 20)
        backend.broadcast({"toll": np.full(6, 0.5)})
        paid = record_trajectory(backend, SEED, 20)
        backend.broadcast({"toll": np.zeros(6)})
        free_again = record_trajectory(backend, SEED, 20)
    assert not free["info/toll_paid"].any()
    assert set(np.unique(paid["info/toll_paid"])) == {0.0, 0.5}
    assert paid["info/toll_paid"].any(axis=0).all()
    assert_same_trajectory(free_again, free)


@every_backend
@every_env
def test_unknown_shared_params_are_ignored(kind, env):
    with closing(BACKEND_CASES[kind](ENV_CASES[env], NUM_ENVS)) as backend:
        backend.broadcast({"unknown": np.ones(3)})
        assert_same_trajectory(record_trajectory(backend, SEED, 10), serial_trajectory(env).between(0, 10))


# --- snapshots


def snapshot(kind, env, num_envs=NUM_ENVS):
    with closing(BACKEND_CASES[kind](ENV_CASES[env], num_envs)) as backend:
        record_trajectory(backend, SEED, HALF)
        return backend.state()


every_pair = pytest.mark.parametrize(
    ("taken_on", "restored_on"), [backend_param(one, other) for one in BACKEND_CASES for other in BACKEND_CASES]
)


@every_pair
@built_in
def test_a_snapshot_continues_bit_exactly_on_any_backend(taken_on, restored_on, env):
    state = snapshot(taken_on, env)
    with closing(BACKEND_CASES[restored_on](ENV_CASES[env], NUM_ENVS)) as backend:
        record_trajectory(backend, SEED + 1, 5)
        backend.restore(state)
        actual = continue_trajectory(backend, 30, first_step=HALF)
    assert_same_trajectory(actual, serial_trajectory(env).between(HALF, HALF + 30))


@every_backend
@built_in
def test_a_snapshot_is_the_same_on_every_backend(kind, env):
    state, expected = snapshot(kind, env), snapshot("serial", env)
    assert state.keys() == expected.keys()
    for name, array in expected.items():
        assert_array_equal(state[name], array, err_msg=name, strict=True)


@every_pair
def test_shared_params_are_part_of_a_snapshot(taken_on, restored_on):
    with closing(BACKEND_CASES[taken_on](ENV_CASES["corridor"], NUM_ENVS)) as backend:
        backend.broadcast({"toll": np.full(6, 0.25)})
        record_trajectory(backend, SEED, HALF)
        state = backend.state()
        expected = follow_after_snapshot(backend)
    with closing(BACKEND_CASES[restored_on](ENV_CASES["corridor"], NUM_ENVS)) as backend:
        backend.restore(state)
        assert_same_trajectory(continue_trajectory(backend, 20, first_step=HALF), expected)
    assert expected["info/toll_paid"].any()


def follow_after_snapshot(backend):
    backend.restore(backend.state())
    return continue_trajectory(backend, 20, first_step=HALF)


@every_pair
@third_party
@pytest.mark.filterwarnings("ignore:.*truncated")
def test_third_party_episodes_are_truncated_alike_on_any_backend(taken_on, restored_on, env):
    state = snapshot(taken_on, env)
    actual = []
    for kind in ("serial", restored_on):
        with closing(BACKEND_CASES[kind](ENV_CASES[env], NUM_ENVS)) as backend:
            backend.restore(state)
            actual.append(continue_trajectory(backend, 20, first_step=HALF))
    assert_same_trajectory(actual[1], actual[0])
    assert actual[1]["truncated"][0].all()
    assert not actual[1]["terminated"][0].any()


@every_backend
@built_in
def test_a_snapshot_of_fewer_envs_is_refused(kind, env):
    state = snapshot("serial", env, NUM_ENVS - 1)
    with (
        closing(BACKEND_CASES[kind](ENV_CASES[env], NUM_ENVS)) as backend,
        pytest.raises(CheckpointError, match="snapshot"),
    ):
        backend.restore(state)


@every_backend
def test_a_snapshot_of_more_envs_is_refused(kind):
    state = snapshot("serial", "corridor", NUM_ENVS + 1)
    with (
        closing(BACKEND_CASES[kind](ENV_CASES["corridor"], NUM_ENVS)) as backend,
        pytest.raises(CheckpointError, match="snapshot"),
    ):
        backend.restore(state)


@every_backend
def test_a_snapshot_of_another_env_is_refused(kind):
    state = snapshot("serial", "cartpole")
    with (
        closing(BACKEND_CASES[kind](ENV_CASES["corridor"], NUM_ENVS)) as backend,
        pytest.raises(CheckpointError, match="another env"),
    ):
        backend.restore(state)


@every_backend
def test_recv_is_out_of_order_after_a_refused_snapshot(kind):
    with closing(BACKEND_CASES[kind](ENV_CASES["corridor"], NUM_ENVS)) as backend:
        with pytest.raises(CheckpointError):
            backend.restore(snapshot("serial", "cartpole"))
        with pytest.raises(CallOrderError, match="reset"):
            backend.recv()


# --- envs that fail


def with_faulty_env(make_faulty):
    """A batch in which env 2 fails at its third step."""
    seed_of_env_2 = int(rng.stream_keys(SEED, 2, 0)) >> 33
    return partial(GymnasiumBatchEnv, make_env=partial(make_faulty, fault_seed=seed_of_env_2))


def step_until_error(backend):
    """Step until an error is raised: with other envs ready it may arrive a little later."""
    batch = backend.recv()
    while True:
        backend.send(np.zeros(len(batch), np.int64))
        batch = backend.recv()


@every_backend
@pytest.mark.parametrize("make_faulty", [RaisesInStep, RaisesInSecondReset])
def test_a_failing_env_is_named_and_reset_starts_over(kind, make_faulty):
    backend = BACKEND_CASES[kind](with_faulty_env(make_faulty), NUM_ENVS, STOP)
    with closing(backend):
        backend.reset(SEED)
        with pytest.raises(EnvError, match="env 2 of"):
            step_until_error(backend)
        backend.reset(SEED)
        batch = backend.recv()
        assert_array_equal(batch.observation["observation"][:, 0], np.zeros(len(batch)))


@every_backend
def test_recv_is_out_of_order_after_a_failed_step(kind):
    backend = BACKEND_CASES[kind](with_faulty_env(RaisesInStep), NUM_ENVS, STOP)
    with closing(backend):
        backend.reset(SEED)
        with pytest.raises(EnvError):
            step_until_error(backend)
        with pytest.raises(CallOrderError, match="reset"):
            backend.recv()


@every_backend
def test_close_closes_the_envs(kind, tmp_path):
    make_envs = partial(GymnasiumBatchEnv, make_env=partial(RecordsClose, tmp_path))
    with closing(BACKEND_CASES[kind](make_envs, 3)) as backend:
        backend.reset(SEED)
        # An env that was profiled first is closed already.
        before = len(list(tmp_path.iterdir()))
    assert len(list(tmp_path.iterdir())) == before + 3
