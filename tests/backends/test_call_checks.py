"""Call order, checks of actions, backends by name."""

import numpy as np
import pytest

from hundredfold.backends import make_backend
from hundredfold.backends.call_checks import CallOrder, check_num_envs, checked_actions
from hundredfold.backends.in_process import InProcessBackend, SerialBackend
from hundredfold.core.batch import ArraySpec, EnvSpec
from hundredfold.core.errors import ActionError, CallOrderError, SettingsError, ShapeError
from hundredfold.envs.corridor import Corridor

ONE = EnvSpec(name="gate", observation={"x": ArraySpec((1,))}, action_nvec=(4,))
PARTS = EnvSpec(name="locks", observation={"x": ArraySpec((1,))}, action_nvec=(3, 2), has_mask=True)
BOX = EnvSpec(
    name="crane",
    observation={"x": ArraySpec((1,))},
    continuous_action=ArraySpec((2,), "float32", (-0.1, -np.inf), (0.1, 5.0)),
)


def waiting(spec, mask=None, env_ids=(10, 11, 12)):
    batch = spec.batch(np.array(env_ids))
    if mask is not None:
        batch.mask[:] = mask
    return batch


# --- call order


def test_recv_and_send_alternate():
    call_order = CallOrder()
    with call_order.transition_to("recv"):
        assert call_order.pending == "reset"
    for _ in range(3):
        assert call_order.pending == "recv"
        call_order.recv()
        call_order.expect("send", "send()")
        with call_order.transition_to("recv"):
            pass


def test_a_refused_call_does_not_change_the_pending_call():
    call_order = CallOrder()
    with pytest.raises(CallOrderError, match=r"recv\(\) was called out of order.*call reset"):
        call_order.recv()
    with pytest.raises(CallOrderError, match=r"send\(\) was called out of order.*call reset"):
        call_order.expect("send", "send()")
    assert call_order.pending == "reset"


def test_only_reset_is_accepted_after_a_failed_call():
    call_order = CallOrder()
    with pytest.raises(ZeroDivisionError), call_order.transition_to("recv"):
        raise ZeroDivisionError
    with pytest.raises(CallOrderError, match=r"call reset\(seed\) or restore\(state\) first"):
        call_order.recv()


def test_a_call_after_close_is_named():
    call_order = CallOrder()
    assert call_order.close()
    assert not call_order.close()
    with pytest.raises(CallOrderError, match=r"restore\(\) was called.*closed"):
        call_order.expect_open("restore()")
    assert call_order.pending == "closed"


# --- actions


@pytest.mark.parametrize("form", [list, tuple, np.int8, np.uint16, np.int64, np.uint64])
def test_integers_of_any_dtype_become_int64(form):
    given = form([0, 3, 1]) if form in (list, tuple) else np.array([0, 3, 1], form)
    chosen = checked_actions(given, waiting(ONE), ONE)
    assert chosen.dtype == np.int64
    assert chosen.tolist() == [0, 3, 1]


def test_read_only_and_strided_actions_are_copied_and_others_are_not():
    given = np.array([[0, 9], [3, 9], [1, 9]])[:, 0]
    plain = given.copy()
    read_only = given.copy()
    read_only.flags.writeable = False
    for actions in (given, read_only):
        chosen = checked_actions(actions, waiting(ONE), ONE)
        assert chosen.flags.writeable
        assert chosen.flags.c_contiguous
        assert chosen.tolist() == [0, 3, 1]
    assert checked_actions(plain, waiting(ONE), ONE) is plain


def test_the_number_of_actions_must_match_the_waiting_envs():
    with pytest.raises(ShapeError) as refusal:
        checked_actions(np.zeros(2, np.int64), waiting(ONE), ONE)
    assert str(refusal.value) == (
        "send() got actions of shape (2,) while 3 envs wait (env_ids 10..12); "
        "pass shape (3,), one per row of the last recv()."
    )


def test_an_action_outside_the_range_names_env_and_range():
    with pytest.raises(ActionError, match=r"action 4 for env 12; gate has actions 0\.\.3"):
        checked_actions(np.array([0, 3, 4]), waiting(ONE), ONE)


def test_an_unsigned_action_too_large_for_int64_is_out_of_range():
    with pytest.raises(ActionError, match="env 11"):
        checked_actions(np.array([0, 2**63 + 1, 0], np.uint64), waiting(ONE), ONE)


def test_a_dimension_out_of_range_names_env_and_ranges():
    with pytest.raises(ActionError, match=r"\[2 2\] for env 11; locks has actions 0\.\.2 x 0\.\.1"):
        checked_actions(np.array([[0, 0], [2, 2], [0, 0]]), waiting(PARTS), PARTS)


@pytest.mark.parametrize(
    ("allowed", "action", "fits"),
    [
        ([1, 0, 1, 1, 1], (0, 0), True),
        ([1, 0, 1, 1, 1], (1, 0), False),
        ([1, 1, 1, 0, 1], (0, 1), True),
        ([1, 1, 1, 0, 1], (2, 0), False),
        ([0, 0, 1, 0, 1], (2, 1), True),
    ],
)
def test_each_dimension_is_checked_against_its_part_of_the_mask(allowed, action, fits):
    batch = waiting(PARTS, mask=np.array(allowed, bool))
    actions = np.array([action] * 3)
    if fits:
        assert checked_actions(actions, batch, PARTS).tolist() == [list(action)] * 3
    else:
        with pytest.raises(ActionError, match="env 10, which its mask forbids"):
            checked_actions(actions, batch, PARTS)


def test_the_first_invalid_row_is_named():
    mask = np.ones((3, 5), bool)
    mask[1, 0] = False
    with pytest.raises(ActionError, match="env 11"):
        checked_actions(np.zeros((3, 2), np.int64), waiting(PARTS, mask), PARTS)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_numbers_of_any_dtype_become_that_of_the_box(dtype):
    given = np.array([[0, -70], [0, 5], [0, 2]], dtype)
    chosen = checked_actions(given, waiting(BOX), BOX)
    assert chosen.dtype == np.float32
    assert chosen.tolist() == given.tolist()


def test_a_bound_that_float32_rounds_is_still_within_the_box():
    bounds = np.array([[-0.1, 5.0], [0.1, 5.0], [0.0, 0.0]])
    for given in (bounds, bounds.astype(np.float32)):
        assert checked_actions(given, waiting(BOX), BOX).shape == (3, 2)


@pytest.mark.parametrize("bad", [5.1, np.nan, np.inf, -np.inf])
def test_an_action_outside_the_box_names_env_and_bounds(bad):
    given = np.array([[0.0, 1.0], [0.0, bad], [0.0, 0.0]])
    with pytest.raises(ActionError, match=rf"got {bad} in the action of env 11; crane takes -inf"):
        checked_actions(given, waiting(BOX), BOX)


def test_the_shape_and_type_of_a_box_are_checked():
    with pytest.raises(ShapeError, match=r"shape \(3,\).*pass shape \(3, 2\)"):
        checked_actions(np.zeros(3), waiting(BOX), BOX)
    with pytest.raises(ShapeError, match="type <U1; pass numbers"):
        checked_actions(np.full((3, 2), "a"), waiting(BOX), BOX)


# --- names and numbers


@pytest.mark.parametrize("num_envs", [1, 2, 1000])
def test_one_or_more_envs_are_accepted(num_envs):
    assert check_num_envs(num_envs) == num_envs


@pytest.mark.parametrize("num_envs", [0, -1])
def test_fewer_than_one_env_is_refused(num_envs):
    with pytest.raises(SettingsError, match=f"at least 1, got {num_envs}"):
        check_num_envs(num_envs)


def test_auto_runs_a_built_in_env_in_process():
    assert isinstance(make_backend("auto", Corridor, 2), InProcessBackend)


@pytest.mark.parametrize(("name", "kind"), [("in_process", InProcessBackend), ("serial", SerialBackend)])
def test_a_backend_is_made_by_name(name, kind):
    backend = make_backend(name, Corridor, 3)
    assert isinstance(backend, kind)
    assert backend.num_envs == 3


def test_an_unknown_backend_is_refused_with_close_names():
    with pytest.raises(SettingsError, match="no backend called 'seriel'; did you mean serial"):
        make_backend("seriel", Corridor, 2)
    with pytest.raises(SettingsError, match="known names: auto, first_ready, in_process"):
        make_backend("xyzzy", Corridor, 2)
