"""CAGE Challenge 2 as a batch env: blue defends thirteen hosts against a red agent.

This module owns the arrays and the doors; the game itself is in `blue_moves`, `red_moves`,
`red_agents` and `view`, put together in `step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from hundredfold.core.batch import Array, Arrays, ArraySpec, EnvSpec, IntArray, State, StepBatch
from hundredfold.core.errors import ActionError, SettingsError, ShapeError, suggest
from hundredfold.envs.batch_env import ArrayBatchEnv
from hundredfold.envs.cage2.array_pointers import BOARD, address, check_buffers
from hundredfold.envs.cage2.blue_actions import NUM_ACTIONS
from hundredfold.envs.cage2.network import NOBODY
from hundredfold.envs.cage2.random_draws import trouble_error
from hundredfold.envs.cage2.recorded_draws import drawn_columns, forced_columns
from hundredfold.envs.cage2.red_actions import SLEEP
from hundredfold.envs.cage2.red_agents import MIX, RED_AGENTS
from hundredfold.envs.cage2.state import (
    BITS,
    CHANNELS,
    EPISODE_INFO,
    INFO,
    MAX_DECOYS,
    SECRETS,
    TRUE_STATE,
    UNKNOWN,
)
from hundredfold.envs.cage2.step import SharedStep, start_all

RedAgent = Literal["b_line", "meander", "sleep"]
Red = Literal[RedAgent, "mix"]
Green = Literal["sleep", "scan"]
Ruleset = Literal["current", "leaderboard"]
Wrapper = Literal["table", "cardiff"]
Mask = Literal["none", "sensible"]
Channel = Literal["decoys", "decoy_counts", "scans", "baits", "recency", "elapsed", "remaining"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cage2Settings:
    """Who plays against blue, for how long, by which rules, and what blue sees."""

    red: Red = "mix"
    """Red's agent; `mix` draws one of the three anew for every episode."""
    mix: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """How often `mix` draws b_line, meander and sleep, in relation to each other."""
    green: Green = "sleep"
    """Whether green sleeps, as in the official evaluation, or scans a host every other step."""
    horizons: tuple[int, ...] = (100,)
    """Steps of an episode; with several, each episode draws one of them."""
    ruleset: Ruleset = "current"
    """`leaderboard` plays as the simulator did before August 2022, when the table was scored."""
    observation: Wrapper = "table"
    """`cardiff` is the corrected wrapper of the winning team: a decoy never hides a scan."""
    channels: tuple[Channel, ...] = ()
    """What blue sees besides the 52 bits: decoys, decoy_counts, scans, baits, recency, elapsed,
    remaining."""
    action_mask: Mask = "none"
    """`sensible` forbids what blue can know to be useless: see `mask.py`."""
    batch_threads: int = 1
    """Threads that may share the envs, from 1000 envs each; the story stays the same."""

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            _check_name(name, getattr(self, name), known)
        for channel in self.channels:
            _check_name("channels", channel, get_args(Channel))
        if not self.horizons or min(self.horizons) < 1 or max(self.horizons) > MAX_DECOYS:
            raise SettingsError(
                f"horizons must name at least one length of 1..{MAX_DECOYS} steps, "
                f"got {self.horizons}."
            )
        if len(self.mix) != len(RED_AGENTS) or min(self.mix) < 0 or not sum(self.mix) > 0:
            raise SettingsError(
                f"mix needs a weight of at least 0 for each of {', '.join(RED_AGENTS)}, "
                f"not all 0; got {self.mix}."
            )
        if self.batch_threads < 1:
            raise SettingsError(f"batch_threads must be at least 1, got {self.batch_threads}.")


_CHOICES: Final = {
    "red": get_args(Red),
    "green": get_args(Green),
    "ruleset": get_args(Ruleset),
    "observation": get_args(Wrapper),
    "action_mask": get_args(Mask),
}


def _check_name(setting: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise SettingsError(f"{setting} has no {given!r}; {suggest(given, known)}")


def cage2_spec(settings: Cage2Settings) -> EnvSpec:
    """The arrays of the env; channels come in a fixed order, however the settings list them."""
    channels: dict[str, ArraySpec] = {
        name: spec for name, spec in CHANNELS.items() if name in settings.channels
    }
    return EnvSpec(
        name="cage2",
        observation={"bits": BITS, **channels},
        action_nvec=(NUM_ACTIONS,),
        has_mask=settings.action_mask != "none",
        episode_steps=settings.horizons[0] if len(set(settings.horizons)) == 1 else None,
        info=INFO,
        episode_info=EPISODE_INFO,
        true_state=TRUE_STATE,
    )


class Cage2(ArrayBatchEnv):
    """Keep red out of thirteen hosts for as long as the horizon, with 145 actions.

    `out.true_state` holds the live state itself, by host: before a step what blue acts on, after it
    what came of that; no call, no copy. In rows whose episode ended it already shows the next one.

    Episodes end `terminated`, never truncated: the score of this game is defined over exactly that
    many steps, so nothing lies beyond them that a value should count on.
    """

    def __init__(self, env_ids: IntArray, settings: Cage2Settings | None = None) -> None:
        self.settings = settings or Cage2Settings()
        super().__init__(cage2_spec(self.settings), env_ids)
        self.secrets = np.zeros(self.num_envs, SECRETS)
        self.horizons = np.array(self.settings.horizons, np.int64)
        self.shared_step = SharedStep(self.num_envs, self.settings.batch_threads)
        self.board = np.zeros(1, BOARD)
        self._write_rules()
        self.set_output_buffers(self.out)

    def set_output_buffers(self, out: StepBatch) -> None:
        rows = self.num_envs
        check_buffers(out.observation, self.spec.observation, rows)
        check_buffers(out.final_observation, self.spec.observation, rows)
        check_buffers(out.info, INFO, rows)
        check_buffers(out.episode_info, EPISODE_INFO, rows)
        check_buffers(out.true_state, TRUE_STATE, rows)
        flat = {"reward": ArraySpec((), "float64"), "terminated": ArraySpec((), "bool")}
        check_buffers({"reward": out.reward, "terminated": out.terminated}, flat, rows)
        if out.mask is not None:
            check_buffers({"mask": out.mask}, {"mask": ArraySpec((NUM_ACTIONS,), "bool")}, rows)
        super().set_output_buffers(out)
        self._write_addresses()

    def start(self) -> None:
        self.secrets["trouble"] = 0
        info = self.out.info
        info["red_action"][:] = SLEEP
        info["red_target"][:] = NOBODY
        info["red_success"][:] = UNKNOWN
        info["blue_success"][:] = UNKNOWN
        start_all(self.board)

    def step(self, actions: IntArray) -> StepBatch:
        if self.advance(actions):
            self._raise_trouble()
        return self.out

    def step_injected(
        self,
        actions: IntArray,
        draws: Mapping[str, ArrayLike] | None = None,
        force_red: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> StepBatch:
        """Step with recorded outcomes instead of draws, or with red's move given from outside.

        `draws` maps names of `state.DRAWS` to whole numbers, one per env; 255 stands for "not
        drawn". Red's agent still plays: its action must equal the recorded `red_action` (if there
        is one) and the recorded `red_target` must be among its candidates. `force_red`, an action
        and a target for all envs or one per env, bypasses the agent and leaves its memory alone.

        Raises InjectionError on a contradiction; the batch needs a reset afterwards.
        """
        if self.advance_injected(actions, draws, force_red):
            self._raise_trouble()
        return self.out

    def advance(self, actions: IntArray) -> int:
        """Step without raising for troubled envs; how many there are. See `troubles` for why."""
        given = np.asarray(actions)
        if given.shape != self.env_ids.shape or given.dtype.kind not in "iu":
            raise ShapeError(
                f"step() got {given.dtype} actions of shape {given.shape} for {self.num_envs} "
                f"envs; pass whole numbers of shape ({self.num_envs},), one per env."
            )
        chosen = np.ascontiguousarray(given, np.int64)
        troubled = self.shared_step(self.board, chosen)
        if troubled < 0:
            row = -1 - troubled
            raise ActionError(
                f"step() got action {chosen[row]} for env {self.env_ids[row]}; "
                f"cage2 has actions 0..{NUM_ACTIONS - 1}."
            )
        return troubled

    def advance_injected(
        self,
        actions: IntArray,
        draws: Mapping[str, ArrayLike] | None = None,
        force_red: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> int:
        """As `advance`, with recorded outcomes or a forced red; see `step_injected`."""
        columns = None if draws is None else drawn_columns(draws, self.num_envs)
        forced = None if force_red is None else forced_columns(force_red, self.num_envs)
        self.board["draws"], self.board["forced_red"] = address(columns), address(forced)
        try:
            return self.advance(actions)
        finally:
            self.board["draws"], self.board["forced_red"] = 0, 0

    @property
    def troubles(self) -> Array:
        """(envs,) codes of what went wrong since the last reset; 0 for nothing."""
        return self.secrets["trouble"]

    def state_arrays(self) -> Arrays:
        return {name: self.secrets[name] for name in SECRETS.names or ()}

    def close(self) -> None:
        self.shared_step.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # The board holds addresses, which mean nothing in a copy: a copy is made from a snapshot.
        return _revived, (self.env_ids, self.settings, self.state())

    def _raise_trouble(self) -> None:
        troubles = self.troubles.copy()
        self.troubles[:] = 0
        raise trouble_error(troubles, self.env_ids)

    def _write_rules(self) -> None:
        settings, board = self.settings, self.board[0]
        shares = np.cumsum(settings.mix) / np.sum(settings.mix)
        board["num_envs"] = self.num_envs
        board["env_keys"] = address(self.env_keys)
        board["episodes"] = address(self.episodes)
        board["secrets"] = address(self.secrets)
        board["horizons"] = address(self.horizons)
        board["num_horizons"] = len(self.horizons)
        board["red"] = MIX if settings.red == "mix" else RED_AGENTS.index(settings.red)
        board["b_line_below"], board["meander_below"] = shares[0], shares[1]
        board["green_scans"] = settings.green == "scan"
        board["leaderboard"] = settings.ruleset == "leaderboard"
        board["cardiff"] = settings.observation == "cardiff"
        board["keeps_books"] = settings.action_mask != "none" or not {
            "baits",
            "recency",
        }.isdisjoint(settings.channels)

    def _write_addresses(self) -> None:
        out, board = self.out, self.board[0]
        for name, array in out.true_state.items():
            board[name] = address(array)
        for name in ("bits", *CHANNELS):
            board[f"seen_{name}"] = address(out.observation.get(name))
            board[f"final_{name}"] = address(out.final_observation.get(name))
        for name, array in {**out.info, **out.episode_info}.items():
            board[f"report_{name}"] = address(array)
        board["report_reward"] = address(out.reward)
        board["report_terminated"] = address(out.terminated)
        board["report_mask"] = address(out.mask)


def _revived(env_ids: IntArray, settings: Cage2Settings, state: State) -> Cage2:
    env = Cage2(env_ids, settings)
    env.restore(state)
    return env
