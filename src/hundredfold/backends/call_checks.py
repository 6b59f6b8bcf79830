"""Checks that every backend makes on entry: order of calls, actions, snapshots."""

from __future__ import annotations

import multiprocessing
from typing import Final, Literal, NamedTuple

import numpy as np

from hundredfold.core.action_scaling import flat_bound
from hundredfold.core.batch import Array, ArraySpec, BoolArray, EnvSpec, IntArray, State, StepBatch
from hundredfold.core.errors import ActionError, CallOrderError, CheckpointError, SettingsError, ShapeError, WorkerError

Call = Literal["reset", "recv", "send", "closed"]

ADVICE: Final[dict[Call, str]] = {
    "reset": "call reset(seed) or restore(state) first",
    "recv": "recv() is pending: take the batch that is ready first",
    "send": "send(actions) is pending: the envs of the last recv() wait for their actions",
    "closed": "the backend is closed: create a new one",
}

MAIN_GUARD_HINT: Final = "In a script, start it from under `if __name__ == '__main__':`, or use the start method fork."


class CallOrder:
    """State machine of the calls of a backend: `reset`, then `recv` and `send` in alternation.

    `pending` is the call that is expected next.
    """

    def __init__(self) -> None:
        self.pending: Call = "reset"

    def expect(self, pending: Call, call: str) -> None:
        """Refuse `call` unless `pending` is the pending call."""
        if self.pending != pending:
            raise CallOrderError(f"{call} was called out of order: {ADVICE[self.pending]}.")

    def expect_open(self, call: str) -> None:
        """Refuse `call` after `close`; for calls that may come at any time before it."""
        if self.pending == "closed":
            raise CallOrderError(f"{call} was called, but {ADVICE['closed']}.")

    def transition_to(self, pending: Call) -> Transition:
        """Context of the work after which `pending` is next; if it raises, only `reset` helps."""
        return Transition(self, pending)

    def recv(self) -> None:
        self.expect("recv", "recv()")
        self.pending = "send"

    def close(self) -> bool:
        """True the first time."""
        is_first = self.pending != "closed"
        self.pending = "closed"
        return is_first


class Transition:
    """Context manager of a state change. Not a generator, which takes five times as long."""

    __slots__ = ("order", "pending")

    def __init__(self, order: CallOrder, pending: Call) -> None:
        self.order, self.pending = order, pending

    def __enter__(self) -> None:
        self.order.pending = "reset"

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.order.pending = self.pending


def is_importing_main() -> bool:
    """Whether this is a spawned worker that is still importing the script which started it."""
    # Private: the flag that `multiprocessing.spawn` itself checks.
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def refuse_while_importing_main(attempt: str) -> None:
    """Refuse to start anything in a worker that is importing the script which started it.

    Args:
        attempt: what was tried, to follow "a worker process tried to".
    """
    if is_importing_main():
        raise WorkerError(f"a worker process tried to {attempt} of its own. {MAIN_GUARD_HINT}")


def check_num_envs(num_envs: int) -> int:
    """Refuse an empty batch."""
    if num_envs != int(num_envs):
        raise SettingsError(f"num_envs must be a whole number, got {num_envs}.")
    if num_envs < 1:
        raise SettingsError(f"num_envs must be at least 1, got {num_envs}.")
    return int(num_envs)


def check_snapshot(state: State, num_envs: int) -> None:
    """Refuse a snapshot of another number of envs, before anything is changed."""
    for name, array in state.items():
        if len(array) != num_envs:
            raise CheckpointError(
                f"the snapshot's {name!r} has {len(array)} rows for {num_envs} envs; resume with "
                "the settings it was made with."
            )


def check_all_envs(env_ids: IntArray | None, num_envs: int) -> None:
    """Refuse a `send` to some of the envs in a backend that steps all of them together."""
    if env_ids is not None and not np.array_equal(env_ids, np.arange(num_envs)):
        raise ShapeError(
            f"send() got actions for the envs {np.asarray(env_ids).tolist()}; here all {num_envs} "
            "step together. Use the backend first_ready to hold some of them back."
        )


class WaitingEnvs(NamedTuple):
    """Envs that wait for an action, and their action masks."""

    env_ids: IntArray  # (rows,)
    mask: BoolArray | None  # (rows, num_logits)


def checked_actions(actions: Array, waiting: StepBatch | WaitingEnvs, spec: EnvSpec) -> Array:
    """The actions in the env's dtype, refused if shape, type, range or mask do not allow them.

    Discrete actions are returned contiguous and writable: Numba would compile an env's kernels again for another
    layout, and for the read-only arrays in which Ray delivers actions.

    Args:
        actions: (rows, *action_shape) one action per waiting env.
        waiting: the envs that wait for these actions.
        spec: the env's spec.
    """
    rows = len(waiting.env_ids)
    expected = (rows, *spec.action_shape)
    try:
        given = np.asarray(actions)
    except ValueError as error:
        raise ShapeError(f"send() got a ragged list of actions; pass shape {expected}.") from error
    if given.shape != expected:
        ids = waiting.env_ids
        raise ShapeError(
            f"send() got actions of shape {given.shape} while {rows} envs wait "
            f"(env_ids {ids[0]}..{ids[-1]}); pass shape {expected}, one per row of the last recv()."
        )
    if spec.continuous_action is not None:
        return _checked_continuous(given, spec.continuous_action, waiting, spec.name)
    if given.dtype.kind not in "iu":
        raise ShapeError(f"send() got actions of type {given.dtype}; pass integers.")
    checked = given.astype(np.int64, order="C", copy=not given.flags.writeable)
    by_dim = checked.reshape(rows, len(spec.action_nvec))
    # Read as unsigned, negative numbers are the largest.
    outside = by_dim.view(np.uint64) >= (spec.action_nvec[0] if rows == by_dim.size else spec.action_nvec)
    if np.count_nonzero(outside):  # a fifth of the time of any()
        row = int(np.argwhere(outside)[0, 0])
        ranges = " x ".join(f"0..{count - 1}" for count in spec.action_nvec)
        raise ActionError(
            f"send() got action {given[row]} for env {waiting.env_ids[row]}; {spec.name} has actions {ranges}."
        )
    if waiting.mask is not None:
        offsets = np.cumsum((0, *spec.action_nvec[:-1]))
        allowed = np.take_along_axis(waiting.mask, by_dim + offsets, axis=1)
        if not allowed.all():
            row, dim = (int(index) for index in np.argwhere(~allowed)[0])
            dim_mask = waiting.mask[row, offsets[dim] : offsets[dim] + spec.action_nvec[dim]]
            which = f" in dimension {dim}" if len(spec.action_nvec) > 1 else ""
            raise ActionError(
                f"send() got action {given[row]} for env {waiting.env_ids[row]}, which its mask "
                f"forbids{which}; allowed: {np.flatnonzero(dim_mask).tolist()}."
            )
    return checked


def _checked_continuous(given: Array, box: ArraySpec, waiting: StepBatch | WaitingEnvs, name: str) -> Array:
    """Continuous actions, refused where they are not numbers within the bounds."""
    if given.dtype.kind not in "iuf":
        raise ShapeError(f"send() got actions of type {given.dtype}; pass numbers.")
    flat = given.reshape(len(waiting.env_ids), box.size)
    # Compared as float32, so that a bound float32 cannot represent is still within the bounds.
    low, high = (flat_bound(bound, box).astype(box.dtype) for bound in (box.low, box.high))
    checked = flat.astype(box.dtype, copy=False)
    outside = ~((checked >= low) & (checked <= high)) | np.isinf(checked)
    if outside.any():
        row, dim = (int(index) for index in np.argwhere(outside)[0])
        raise ActionError(
            f"send() got {flat[row, dim]} in the action of env {waiting.env_ids[row]}; "
            f"{name} takes {low[dim]} to {high[dim]} there. Clip actions to the bounds of the "
            "action space."
        )
    return checked.reshape(given.shape)
