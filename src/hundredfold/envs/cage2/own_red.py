"""Red agents of your own: a Python class that chooses red's actions for a batch of envs.

`--red my_module:MyRed` (or `Cage2Settings(red="my_module:MyRed")`) imports the class and makes one
object for every batch of envs. Every step it gets a `RedView`, what red knows, and returns an action and
a target per env. Its random numbers come from the episodes' streams, so runs are repeatable on every
backend, and its memory is part of the env's snapshots, so that they resume exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from hundredfold.core import rng
from hundredfold.core.batch import Array, Arrays, BoolArray, FloatArray, IntArray
from hundredfold.core.errors import SettingsError
from hundredfold.envs.cage2.network import NONE, NUM_EXPLOITS, Network
from hundredfold.envs.cage2.red_actions import DISCOVER, RED_ACTIONS, SLEEP, forced_red_columns
from hundredfold.envs.cage2.state import DRAWS_PER_STEP, RED_TARGET

SEPARATOR: Final = ":"


class RedView:
    """What red knows before its next action; arrays have one row per env and are not to be changed.

    Blue and green act before red in a step, but red notices nothing of that until its own action
    fails, so it is what red knew after the last step.

    Args:
        network: the network.
        hidden: (envs,) records of the hidden state.
        true_state: arrays of the true state; only what red knows is shown.
        info: infos of the last step.
    """

    def __init__(
        self, network: Network, hidden: Array, true_state: Mapping[str, Array], info: Mapping[str, Array]
    ) -> None:
        self.network, self.num_envs = network, len(hidden)
        self._hidden, self._true_state, self._info = hidden, true_state, info

    @property
    def step(self) -> IntArray:
        """(envs,) number of the step that red acts in, 1 at the start of an episode."""
        return self._hidden["step"].astype(np.int64) + 1

    @property
    def action(self) -> IntArray:
        """(envs,) red's last action, `SLEEP` at the start of an episode."""
        return np.where(self._hidden["step"] == 0, SLEEP, self._info["red_action"]).astype(np.int64)

    @property
    def target(self) -> IntArray:
        """(envs,) its target, `NONE` at the start of an episode."""
        return np.where(self._hidden["step"] == 0, NONE, self._info["red_target"]).astype(np.int64)

    @property
    def success(self) -> IntArray:
        """(envs,) success of the last action: 0 no, 1 yes, 2 unknown (Sleep, and at the start)."""
        return self._hidden["red_success"].astype(np.int64)

    @property
    def empty_scan(self) -> BoolArray:
        """(envs,) the last action was a scan of a host in a subnet that red could not reach."""
        return self._hidden["empty_scan"].astype(bool)

    @property
    def known(self) -> BoolArray:
        """(envs, hosts) red knows the address of the host."""
        return self._true_state["known"].astype(bool)

    @property
    def subnets(self) -> BoolArray:
        """(envs, subnets) red knows the subnet."""
        numbers = np.arange(len(self.network.subnets))
        return (self._true_state["red_subnets"][:, None] >> numbers & 1).astype(bool)

    @property
    def exploits(self) -> BoolArray:
        """(envs, hosts, exploits) exploits that red's last scan of the host suggests; decoys count."""
        options = self._hidden["exploit_options"][:, : self.network.num_hosts, None]
        return (options >> np.arange(NUM_EXPLOITS) & 1).astype(bool)

    def uniforms(self, draw: int = 0) -> FloatArray:
        """(envs,) random numbers in [0, 1) of this step.

        Args:
            draw: number of the draw within the step; the same number gives the same values again.
        """
        return rng.uniforms(*self._stream(draw))

    def integers(self, below: ArrayLike, draw: int = 0) -> IntArray:
        """(envs,) random integers in 0 .. below-1.

        Args:
            below: bound, for all envs or (envs,).
            draw: as for `uniforms`.
        """
        return rng.integers(*self._stream(draw), below)

    def pick(self, candidates: BoolArray, draw: int = 0) -> IntArray:
        """(envs,) one of the candidates of each row, uniformly; `NONE` in rows without any.

        Args:
            candidates: (envs, hosts) or (envs, subnets).
            draw: as for `uniforms`.
        """
        counts = np.cumsum(candidates, axis=1)
        chosen = self.integers(np.maximum(counts[:, -1], 1), draw)
        return np.where(counts[:, -1] > 0, (counts > chosen[:, None]).argmax(axis=1), NONE)

    def _stream(self, draw: int) -> tuple[Array, Array]:
        """Keys and counts of a draw: the first is that of the built-in agents, the others have streams of their own."""
        keys, step = self._hidden["key"], self.step
        if draw == 0:
            return keys, step * DRAWS_PER_STEP + RED_TARGET
        return rng.spawn(keys, draw), step


@runtime_checkable
class RedPolicy(Protocol):
    """A red agent for a batch of envs; made as `MyRed(num_envs, network)`."""

    def reset(self, rows: IntArray) -> None:
        """Forget the last episode of these rows: new ones begin there."""
        ...

    def act(self, view: RedView) -> tuple[ArrayLike, ArrayLike]:
        """Actions and targets, (envs,) each or one for all.

        Actions are numbered as in `red_actions`: SLEEP, DISCOVER (target: a subnet that red knows),
        SCAN, EXPLOIT, ESCALATE (target: a host whose address it knows) and IMPACT (target: the server).
        """
        ...

    def state(self) -> Arrays:
        """The arrays of its memory by name, first axis env; snapshots copy them and restoring writes into them."""
        ...


def is_own_red(name: str) -> bool:
    """Whether the setting `red` names a class of the user."""
    return SEPARATOR in name


def make_red(name: str, num_envs: int, network: Network) -> RedPolicy:
    """The red agent of a class given as `module:Class`.

    Args:
        name: module and class.
        num_envs: number of envs.
        network: the network.
    """
    module, _, attribute = name.partition(SEPARATOR)
    try:
        kind: Any = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise SettingsError(f"red is {name!r}, but {module} cannot be imported: {error}.") from error
    if not callable(kind):
        raise SettingsError(f"red is {name!r}, but {module} has no class {attribute!r}.")
    try:
        red = kind(num_envs, network)
    except TypeError as error:
        raise SettingsError(f"{name} cannot be made as {attribute}(num_envs, network): {error}.") from error
    if not isinstance(red, RedPolicy):
        missing = [method for method in ("reset", "act", "state") if not hasattr(red, method)]
        raise SettingsError(f"{name} is not a red agent: it has no method {', '.join(missing)}.")
    for key, array in red.state().items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf" or array.shape[:1] != (num_envs,):
            raise SettingsError(
                f"state() of {name} must return arrays of numbers with {num_envs} rows, one per env; {key!r} is "
                f"{describe_array(array)}."
            )
    return red


def describe_array(value: object) -> str:
    """Dtype and shape of an array, or the type of something else."""
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__


def chosen_red_columns(red: RedPolicy, view: RedView, name: str) -> Array:
    """(envs, 2) uint8 action and target that a red agent chooses, checked against what red knows.

    Args:
        red: the agent.
        view: what it knows.
        name: its name, for error messages.
    """
    chosen = red.act(view)
    if not isinstance(chosen, tuple) or len(chosen) != 2:
        raise SettingsError(f"act() of {name} must return two arrays, actions and targets; got {chosen!r}.")
    columns = forced_red_columns(chosen, view.num_envs, view.network, name)
    columns[columns[:, 0] == SLEEP, 1] = NONE
    action, target = columns.astype(np.int64).T
    rows = np.arange(view.num_envs)
    subnet = np.where(action == DISCOVER, target, 0)
    host = np.where((action == DISCOVER) | (action == SLEEP), view.network.entry, target)
    unknown = ~np.where(action == DISCOVER, view.subnets[rows, subnet], view.known[rows, host])
    if unknown.any():
        row = int(np.flatnonzero(unknown)[0])
        names = view.network.subnets if action[row] == DISCOVER else view.network.host_names
        raise SettingsError(
            f"{name} chose {RED_ACTIONS[action[row]]} {names[target[row]]}, which red does not know yet; choose among "
            "view.known and view.subnets."
        )
    return columns
