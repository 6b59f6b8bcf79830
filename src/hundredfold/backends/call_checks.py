"""What every backend does at its door: keep the turns, check the actions."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from hundredfold.core.action_scaling import flat_bound
from hundredfold.core.batch import (
    Array,
    ArraySpec,
    BoolArray,
    EnvSpec,
    IntArray,
    State,
    StepBatch,
)
from hundredfold.core.errors import (
    ActionError,
    CheckpointError,
    SettingsError,
    ShapeError,
    TurnError,
)

Turn = Literal["reset", "recv", "send", "closed"]

ADVICE: dict[Turn, str] = {
    "reset": "reset(seed) or restore(state) must come first",
    "recv": "recv() is pending: take the batch that is ready first",
    "send": "send(actions) is pending: the envs of the last recv() wait for their actions",
    "closed": "the backend is closed: make a new one",
}


class Turns:
    """Which call is pending. `reset`, then `recv` and `send` by turns, until `close`."""

    def __init__(self) -> None:
        self.pending: Turn = "reset"

    def expect(self, turn: Turn, call: str) -> None:
        """Refuse a call out of turn."""
        if self.pending != turn:
            raise TurnError(f"{call} was called out of turn: {ADVICE[self.pending]}.")

    def expect_open(self, call: str) -> None:
        """`reset`, `restore` and `broadcast` may come at any time before `close`."""
        if self.pending == "closed":
            raise TurnError(f"{call} was called, but {ADVICE['closed']}.")

    def leading_to(self, turn: Turn) -> Leading:
        """Work after which `turn` is pending; if it fails, only a new start helps."""
        return Leading(self, turn)

    def recv(self) -> None:
        self.expect("recv", "recv()")
        self.pending = "send"

    def close(self) -> bool:
        """True the first time."""
        first = self.pending != "closed"
        self.pending = "closed"
        return first


class Leading:
    """The time between two turns. A class of its own: a generator takes five times as long."""

    __slots__ = ("turn", "turns")

    def __init__(self, turns: Turns, turn: Turn) -> None:
        self.turns, self.turn = turns, turn

    def __enter__(self) -> None:
        self.turns.pending = "reset"

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.turns.pending = self.turn


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
                "the settings that made it."
            )


def check_everybody(env_ids: IntArray | None, num_envs: int) -> None:
    """Where all envs step together, an action is for all of them, in order."""
    if env_ids is not None and not np.array_equal(env_ids, np.arange(num_envs)):
        raise ShapeError(
            f"send() got actions for the envs {np.asarray(env_ids).tolist()}; here all {num_envs} "
            "step together. Use the backend first_ready to hold some of them back."
        )


class Waiting(NamedTuple):
    """Envs that wait for an action, and what each of them allows."""

    env_ids: IntArray
    mask: BoolArray | None


def checked_actions(actions: Array, waiting: StepBatch | Waiting, spec: EnvSpec) -> Array:
    """The actions as the env has them, refused when their number, type or range is wrong.

    So are choices that a mask forbids.
    """
    rows = len(waiting.env_ids)
    wanted = (rows, *spec.action_shape)
    try:
        given = np.asarray(actions)
    except ValueError as error:
        raise ShapeError(f"send() got a ragged list of actions; pass shape {wanted}.") from error
    if given.shape != wanted:
        ids = waiting.env_ids
        raise ShapeError(
            f"send() got actions of shape {given.shape} while {rows} envs wait "
            f"(env_ids {ids[0]}..{ids[-1]}); pass shape {wanted}, one per row of the last recv()."
        )
    if spec.continuous_action is not None:
        return _within(given, spec.continuous_action, waiting, spec.name)
    if given.dtype.kind not in "iu":
        raise ShapeError(f"send() got actions of type {given.dtype}; pass whole numbers.")
    chosen = given.astype(np.int64, copy=False)
    parts = chosen.reshape(rows, len(spec.action_nvec))
    # Seen without their signs, negative numbers are the largest.
    outside = parts.view(np.uint64) >= (
        spec.action_nvec[0] if rows == parts.size else spec.action_nvec
    )
    if np.count_nonzero(outside):  # a fifth of the time of any()
        row = int(np.argwhere(outside)[0, 0])
        ranges = " x ".join(f"0..{count - 1}" for count in spec.action_nvec)
        raise ActionError(
            f"send() got action {given[row]} for env {waiting.env_ids[row]}; "
            f"{spec.name} has actions {ranges}."
        )
    if waiting.mask is not None:
        offsets = np.cumsum((0, *spec.action_nvec[:-1]))
        allowed = np.take_along_axis(waiting.mask, parts + offsets, axis=1)
        if not allowed.all():
            row, part = (int(index) for index in np.argwhere(~allowed)[0])
            options = waiting.mask[row, offsets[part] : offsets[part] + spec.action_nvec[part]]
            which = f" in part {part}" if len(spec.action_nvec) > 1 else ""
            raise ActionError(
                f"send() got action {given[row]} for env {waiting.env_ids[row]}, which its mask "
                f"forbids{which}; allowed: {np.flatnonzero(options).tolist()}."
            )
    return chosen


def _within(given: Array, box: ArraySpec, waiting: StepBatch | Waiting, name: str) -> Array:
    """Continuous actions, refused where they are not numbers within the bounds."""
    if given.dtype.kind not in "iuf":
        raise ShapeError(f"send() got actions of type {given.dtype}; pass numbers.")
    parts = given.reshape(len(waiting.env_ids), box.size)
    # Float32 cannot say every bound: a step of its own beyond one is as near as it gets.
    low, high = (flat_bound(bound, box).astype(box.dtype) for bound in (box.low, box.high))
    chosen = parts.astype(box.dtype, copy=False)
    outside = ~((chosen >= low) & (chosen <= high)) | np.isinf(chosen)
    if outside.any():
        row, part = (int(index) for index in np.argwhere(outside)[0])
        raise ActionError(
            f"send() got {parts[row, part]} in the action of env {waiting.env_ids[row]}; "
            f"{name} takes {low[part]} to {high[part]} there. Cut actions off at the bounds of "
            "the action space."
        )
    return chosen.reshape(given.shape)
