"""CAGE Challenge 2 as a batch env: blue defends a network of hosts against a red agent.

This module owns the arrays and the interface. The rules are in `blue_actions`, `red_actions`,
`red_agents` and `observation`, and are combined in `step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, Literal, get_args

import numpy as np
from annotated_types import Interval
from numpy.typing import ArrayLike

from hundredfold.core.batch import Array, Arrays, ArraySpec, EnvSpec, IntArray, State, StepBatch, with_prefix
from hundredfold.core.bounds import AtLeastOne, NonNegative, check_bounds
from hundredfold.core.errors import ActionError, SettingsError, ShapeError, suggest
from hundredfold.envs.batch_env import ArrayBatchEnv
from hundredfold.envs.cage2.array_pointers import (
    ARRAY_POINTERS,
    NETWORK_POINTERS,
    address,
    check_buffers,
    write_network,
)
from hundredfold.envs.cage2.network import NONE, Network
from hundredfold.envs.cage2.network_file import network_of
from hundredfold.envs.cage2.network_tables import network_tables, num_actions
from hundredfold.envs.cage2.own_red import RedPolicy, RedView, chosen_red_columns, is_own_red, make_red
from hundredfold.envs.cage2.random_draws import NO_ERROR, error_from_codes, recorded_draw_columns
from hundredfold.envs.cage2.red_actions import SLEEP, forced_red_columns
from hundredfold.envs.cage2.red_agents import MIX, OWN, RED_AGENTS
from hundredfold.envs.cage2.state import (
    CHANNELS,
    EPISODE_INFO,
    HIDDEN,
    INFO,
    LARGE_HIDDEN,
    MAX_DECOYS,
    UNKNOWN,
    bits_spec,
    channel_specs,
    privileged_specs,
    true_state_specs,
    write_privileged,
)
from hundredfold.envs.cage2.step import INVALID_ACTION, ThreadedStep, start_batch, step_rows, threads_worth_using

RedAgent = Literal["b_line", "meander", "sleep"]
Green = Literal["sleep", "scan"]
Ruleset = Literal["current", "leaderboard"]
Horizon = Annotated[int, Interval(ge=1, le=MAX_DECOYS)]
ObservationWrapper = Literal["table", "cardiff"]
ActionMask = Literal["none", "sensible"]
Channel = Literal["decoys", "decoy_counts", "scans", "scanned_decoys", "recency", "elapsed", "remaining", "exploits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cage2Settings:
    """Opponents, horizon, ruleset and observation of cage2."""

    red: str = "mix"
    """Red agent: b_line, meander, sleep, `mix`, which draws one of the three for every episode, or a
    class of your own as module:Class."""
    red_weights: tuple[NonNegative, NonNegative, NonNegative] = (1.0, 1.0, 1.0)
    """Relative frequencies of b_line, meander and sleep in --red mix."""
    green: Green = "sleep"
    """Green agent: `sleep` (the official evaluation) or `scan` (a host, in half of the steps)."""
    horizons: tuple[Horizon, ...] = (100,)
    """Steps of an episode; with several, each episode draws one of them."""
    ruleset: Ruleset = "current"
    """`leaderboard` is the simulator before August 2022, on which the public table was scored."""
    observation: ObservationWrapper = "table"
    """CybORG's table wrapper, or its correction by team `cardiff`: a decoy never hides a scan."""
    channels: tuple[Channel, ...] = ()
    """Observations besides the 52 bits: decoys, decoy_counts, scans, scanned_decoys, recency,
    elapsed, remaining, exploits (by port, as CybORG's raw observation shows them)."""
    action_mask: ActionMask = "none"
    """`sensible` excludes actions that blue can know to be useless."""
    network_file: str | None = None
    """TOML file of another network than that of CAGE Challenge 2, which `hundredfold envs cage2
    --network-file standard` prints; see docs/cage2.md."""
    batch_threads: AtLeastOne = 1
    """Most threads that step the batch; each needs 1000 envs. Results do not depend on it."""

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            _check_name(name, getattr(self, name), known)
        if not is_own_red(self.red):
            _check_name("red", self.red, (*RED_AGENTS, "mix"))
        for channel in self.channels:
            _check_name("channels", channel, get_args(Channel))
        check_bounds(self)
        if not self.horizons:
            raise SettingsError("horizons must name at least one number of steps, got none.")
        if len(self.red_weights) != len(RED_AGENTS) or not sum(self.red_weights) > 0:
            raise SettingsError(
                f"red_weights must be one weight for each of {', '.join(RED_AGENTS)}, not all 0; "
                f"got {self.red_weights}."
            )

    @property
    def network(self) -> Network:
        """The network of the file, or the standard one."""
        return network_of(self.network_file)

    @property
    def data_files(self) -> dict[str, str]:
        """Paths of the user's own files, by name of the setting; a run keeps copies of them."""
        return {} if self.network_file is None else {"network_file": self.network_file}


_CHOICES: Final = {
    "green": get_args(Green),
    "ruleset": get_args(Ruleset),
    "observation": get_args(ObservationWrapper),
    "action_mask": get_args(ActionMask),
}


def _check_name(setting: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise SettingsError(f"{setting} cannot be {given!r}; {suggest(given, known)}")


def cage2_spec(settings: Cage2Settings, privileged: bool = False) -> EnvSpec:
    """Arrays of the env; channels have a fixed order, whatever their order in the settings."""
    network = settings.network
    channels: dict[str, ArraySpec] = {
        name: spec for name, spec in channel_specs(network).items() if name in settings.channels
    }
    hidden = privileged_specs(network) if privileged else {}
    return EnvSpec(
        name="cage2",
        observation={"bits": bits_spec(network), **channels, **hidden},
        privileged=tuple(hidden),
        action_nvec=(num_actions(network.num_hosts),),
        has_mask=settings.action_mask != "none",
        episode_steps=settings.horizons[0] if len(set(settings.horizons)) == 1 else None,
        info=INFO,
        episode_info=EPISODE_INFO,
        true_state=true_state_specs(network),
    )


class Cage2(ArrayBatchEnv):
    """CAGE Challenge 2: keep red out of the hosts until the horizon; 13 hosts and 145 actions in the standard network.

    `out.true_state` holds the live state arrays without a copy; in rows whose episode ended they
    already show the next episode. Episodes end `terminated`, never truncated: the score is defined
    over exactly that many steps, so a value estimate must not look beyond them.

    Args:
        env_ids: (envs,) ids of the envs; they select the RNG streams.
        settings: defaults to `Cage2Settings()`.
        privileged: Observe the true state, too, for the value function.
    """

    def __init__(self, env_ids: IntArray, settings: Cage2Settings | None = None, *, privileged: bool = False) -> None:
        self.settings, self.privileged = settings or Cage2Settings(), privileged
        self.network = self.settings.network
        self.tables = network_tables(self.network)
        self.has_own_red = is_own_red(self.settings.red)
        is_standard = self.settings.network_file is None
        super().__init__(cage2_spec(self.settings, privileged), env_ids)
        self.hidden = np.zeros(self.num_envs, HIDDEN if is_standard else LARGE_HIDDEN)
        self.horizons = np.array(self.settings.horizons, np.int64)
        threads = threads_worth_using(self.num_envs, self.settings.batch_threads)
        self.threaded_step = ThreadedStep(self.num_envs, threads) if threads > 1 else None
        self.pointers = np.zeros(1, ARRAY_POINTERS if is_standard else NETWORK_POINTERS)
        if not is_standard:
            write_network(self.pointers[0], self.tables)
        self._write_settings()
        self.set_output_buffers(self.out)

    def set_output_buffers(self, out: StepBatch) -> None:
        rows = self.num_envs
        check_buffers(out.observation, self.spec.observation, rows)
        check_buffers(out.final_observation, self.spec.observation, rows)
        check_buffers(out.info, INFO, rows)
        check_buffers(out.episode_info, EPISODE_INFO, rows)
        check_buffers(out.true_state, self.spec.true_state, rows)
        specs = {"reward": ArraySpec((), "float64"), "terminated": ArraySpec((), "bool")}
        check_buffers({"reward": out.reward, "terminated": out.terminated}, specs, rows)
        if out.mask is not None:
            check_buffers({"mask": out.mask}, {"mask": ArraySpec((self.spec.num_logits,), "bool")}, rows)
        super().set_output_buffers(out)
        self._write_addresses()

    def start(self) -> None:
        self.error_codes[:] = NO_ERROR
        info = self.out.info
        info["red_action"][:] = SLEEP
        info["red_target"][:] = NONE
        info["red_success"][:] = UNKNOWN
        info["blue_success"][:] = UNKNOWN
        start_batch(self.pointers)
        if self.own_red is not None:
            self.own_red.reset(np.arange(self.num_envs))
        if self.privileged:
            self._write_privileged()

    @cached_property
    def own_red(self) -> RedPolicy | None:
        """The user's red agent, imported when the env is first used; None with a built-in one."""
        return make_red(self.settings.red, self.num_envs, self.network) if self.has_own_red else None

    def step(self, actions: IntArray) -> StepBatch:
        if self.advance_with_draws(actions) if self.has_own_red else self.advance(actions):
            self._raise_errors()
        if self.privileged:
            self._write_privileged()
        return self.out

    def step_with_draws(
        self,
        actions: IntArray,
        draws: Mapping[str, ArrayLike] | None = None,
        force_red: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> StepBatch:
        """Step with recorded draws instead of random ones, or with a forced red action.

        Args:
            actions: (envs,) blue actions.
            draws: recorded draws by their names in `state.DRAWS`, each (envs,); 255 = not drawn.
                The red agent still acts: its action must equal a recorded `red_action` and the
                recorded `red_target` must be one of its candidates.
            force_red: red action and target, for all envs or (envs,) each. Bypasses the red agent
                and does not change its memory.

        Raises:
            RecordedDrawError: a recorded draw is impossible; the batch needs a reset afterwards.
        """
        if self.advance_with_draws(actions, draws, force_red):
            self._raise_errors()
        return self.out

    def advance(self, actions: IntArray) -> int:
        """Step without raising; returns the number of envs with an error, see `error_codes`."""
        given = np.asarray(actions)
        if given.shape != self.env_ids.shape or given.dtype.kind not in "iu":
            raise ShapeError(
                f"step() got {given.dtype} actions of shape {given.shape} for {self.num_envs} "
                f"envs; pass integers of shape ({self.num_envs},), one per env."
            )
        chosen = np.ascontiguousarray(given, np.int64)
        if self.threaded_step is None:
            num_errors: int = step_rows(self.pointers, chosen, 0, self.num_envs)
        else:
            num_errors = self.threaded_step(self.pointers, chosen)
        if num_errors == INVALID_ACTION:
            row = np.flatnonzero((chosen < 0) | (chosen >= self.spec.num_logits))[0]
            raise ActionError(
                f"step() got action {chosen[row]} for env {self.env_ids[row]}; cage2 has actions "
                f"0..{self.spec.num_logits - 1} on this network."
            )
        return num_errors

    def advance_with_draws(
        self,
        actions: IntArray,
        draws: Mapping[str, ArrayLike] | None = None,
        force_red: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> int:
        """`advance` with the arguments of `step_with_draws`."""
        columns = None if draws is None else recorded_draw_columns(draws, self.num_envs)
        forced = self._red_columns(force_red)
        self.pointers["draws"], self.pointers["forced_red"] = address(columns), address(forced)
        try:
            num_errors = self.advance(actions)
        finally:
            self.pointers["draws"], self.pointers["forced_red"] = 0, 0
        if self.own_red is not None and self.out.terminated.any():
            self.own_red.reset(np.flatnonzero(self.out.terminated))
        return num_errors

    def _red_columns(self, force_red: tuple[ArrayLike, ArrayLike] | None) -> Array | None:
        """(envs, 2) red action and target from outside, or chosen by the user's red agent."""
        if force_red is not None:
            return forced_red_columns(force_red, self.num_envs, self.network, "force_red")
        if self.own_red is None:
            return None
        view = RedView(self.network, self.hidden, self.out.true_state, self.out.info)
        return chosen_red_columns(self.own_red, view, self.settings.red)

    @property
    def error_codes(self) -> Array:
        """(envs,) first error code since the last reset; 0 = no error."""
        return self.hidden["error"]

    def state_arrays(self) -> Arrays:
        arrays: Arrays = {name: self.hidden[name] for name in HIDDEN.names or ()}
        return arrays if self.own_red is None else arrays | with_prefix("red_agent", self.own_red.state())

    def close(self) -> None:
        if self.threaded_step is not None:
            self.threaded_step.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # Pointers are invalid in a copy, so a copy is made from the saved state.
        return _restored, (self.env_ids, self.settings, self.privileged, self.state())

    def _raise_errors(self) -> None:
        error_codes = self.error_codes.copy()
        self.error_codes[:] = NO_ERROR
        raise error_from_codes(error_codes, self.env_ids)

    def _write_privileged(self) -> None:
        """Write the true state for the value function; zeros where an episode ended, which has no value."""
        for name in self.spec.privileged:
            self.out.final_observation[name][self.out.terminated] = 0.0
        write_privileged(self.out.observation, self.out.true_state, self.hidden, self.tables.num_subnets)

    def _write_settings(self) -> None:
        settings, record = self.settings, self.pointers[0]
        shares = np.cumsum(settings.red_weights) / np.sum(settings.red_weights)
        record["num_envs"] = self.num_envs
        record["env_keys"] = address(self.env_keys)
        record["episodes"] = address(self.episodes)
        record["hidden"] = address(self.hidden)
        record["horizons"] = address(self.horizons)
        record["num_horizons"] = len(self.horizons)
        codes = {"mix": MIX} | {name: code for code, name in enumerate(RED_AGENTS)}
        record["red"] = codes.get(settings.red, OWN)
        record["b_line_below"], record["meander_below"] = shares[0], shares[1]
        record["green_scans"] = settings.green == "scan"
        record["leaderboard"] = settings.ruleset == "leaderboard"
        record["cardiff"] = settings.observation == "cardiff"
        record["tracks_memory"] = settings.action_mask != "none" or not {"scanned_decoys", "recency"}.isdisjoint(
            settings.channels
        )

    def _write_addresses(self) -> None:
        out, record = self.out, self.pointers[0]
        for name, array in out.true_state.items():
            record[name] = address(array)
        for name in ("bits", *CHANNELS):
            record[f"observation_{name}"] = address(out.observation.get(name))
            record[f"final_{name}"] = address(out.final_observation.get(name))
        for name, array in {**out.info, **out.episode_info}.items():
            record[f"output_{name}"] = address(array)
        record["output_reward"] = address(out.reward)
        record["output_terminated"] = address(out.terminated)
        record["output_mask"] = address(out.mask)


def _restored(env_ids: IntArray, settings: Cage2Settings, privileged: bool, state: State) -> Cage2:
    env = Cage2(env_ids, settings, privileged=privileged)
    env.restore(state)
    return env
