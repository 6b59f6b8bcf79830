"""One step of every env: blue, green and red act, then reward and observation follow.

Also the start and end of episodes, and stepping with several threads: envs are independent, so the
rows can be split in any way.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np

from hundredfold.core.batch import Array, IntArray
from hundredfold.core.numba_kernels import inlined, integer, kernel, outlined, spawn, uniform
from hundredfold.envs.cage2.action_mask import update_mask
from hundredfold.envs.cage2.array_pointers import (
    array_at,
    final_observation_from,
    observation_from,
    outputs_from,
    state_from,
    tables_from,
)
from hundredfold.envs.cage2.blue_actions import execute_blue_action
from hundredfold.envs.cage2.network import NONE
from hundredfold.envs.cage2.observation import (
    reset_memory,
    reset_observation,
    reward_tenths,
    save_final_memory,
    save_final_observation,
    update_exploits,
    update_memory,
    update_observation,
)
from hundredfold.envs.cage2.random_draws import NO_ERROR, draw_counter, pick_green_target
from hundredfold.envs.cage2.red_actions import execute_red_action
from hundredfold.envs.cage2.red_agents import B_LINE, MEANDER, MIX, SLEEP_AGENT, choose_red_action
from hundredfold.envs.cage2.state import NO_ACCESS, PRIVILEGED_ACCESS, UNKNOWN

# Draws at the start of an episode. Its steps count from 1 and use the counters after these.
RED_DRAW, HORIZON_DRAW = range(2)

INVALID_ACTION: Final = -1
"""Result of a step with an action that the env does not have."""

MIN_ROWS_PER_THREAD: Final = 1000
"""Rows worth a thread: 50 us of work against 30 us to hand it over."""


def threads_worth_using(num_envs: int, max_threads: int) -> int:
    """Threads to step a batch with: at most those allowed, and fewer in batches of less than 1000 rows per thread."""
    return max(1, min(max_threads, num_envs // MIN_ROWS_PER_THREAD))


class ThreadedStep:
    """Steps a batch with several threads, the calling one included.

    Plain threads that sleep while they wait, because Numba's own threads spin: on a machine with
    other load, one step of 100 envs took 24 ms with them instead of 0.01 ms.

    Args:
        num_envs: rows of the batch.
        num_threads: threads to use, at least 2.
    """

    def __init__(self, num_envs: int, num_threads: int) -> None:
        self.num_envs, self.num_threads = num_envs, num_threads
        self.pool: ThreadPoolExecutor | None = None
        self.owner_pid = os.getpid()

    def __call__(self, pointers: Array, actions: IntArray) -> int:
        """`step_rows` of all rows."""
        threads = self.num_threads
        edges = [thread * self.num_envs // threads for thread in range(threads + 1)]
        pool = self._pool()
        others = [
            pool.submit(step_rows, pointers, actions, edges[thread], edges[thread + 1]) for thread in range(1, threads)
        ]
        results = [step_rows(pointers, actions, 0, edges[1]), *(other.result() for other in others)]
        # An invalid action gives every thread the same result; error counts add up.
        return INVALID_ACTION if INVALID_ACTION in results else sum(results)

    def close(self) -> None:
        """Stop the threads; another step would start new ones."""
        if self.pool is not None and self.owner_pid == os.getpid():
            self.pool.shutdown()
        self.pool = None

    def _pool(self) -> ThreadPoolExecutor:
        # A forked process inherits the pool but not its threads.
        if self.pool is None or self.owner_pid != os.getpid():
            self.pool = ThreadPoolExecutor(self.num_threads - 1, thread_name_prefix="cage2")
            self.owner_pid = os.getpid()
        return self.pool


@kernel
def start_batch(pointers: Any) -> None:
    """Start the current episode of every env; `pointers` is one `ARRAY_POINTERS` record."""
    record = pointers[0]
    state, observation = state_from(record), observation_from(record)
    for i in range(record.num_envs):
        start_episode(record, state, observation, i)
        if record.tracks_memory:
            reset_memory_and_mask(pointers, i)


@kernel
def step_rows(pointers: Any, actions: Any, first: Any, last: Any) -> Any:
    """Step envs first .. last-1.

    Returns:
        The number of envs with an error code, or INVALID_ACTION; then no env has been stepped.
    """
    record = pointers[0]
    num_actions = len(tables_from(record).action_kind)
    # All actions, not only those of these rows: then either all threads step or none does. Counted without
    # branches, which compiles to SIMD instructions.
    num_invalid = 0
    for action in actions:
        num_invalid += (action < 0) | (action >= num_actions)
    if num_invalid > 0:
        return INVALID_ACTION
    state, observation, outputs = state_from(record), observation_from(record), outputs_from(record)
    num_errors = 0
    for i in range(first, last):
        step_env(pointers, record, state, observation, outputs, i, actions[i])
        if record.tracks_memory:
            update_memory_and_mask(pointers, i, actions[i])
        hidden = state.hidden[i]
        if hidden.error != NO_ERROR:
            num_errors += 1
        ended = hidden.step >= hidden.horizon
        outputs.terminated[i] = ended
        if ended:
            end_episode(pointers, i)
    return num_errors


@inlined
def step_env(pointers: Any, record: Any, state: Any, observation: Any, outputs: Any, i: Any, action: Any) -> None:
    """Blue acts, then green, then red; reward and observation follow from all three."""
    state.hidden[i].step += 1
    blue_success, placed_at, malware_at = execute_blue_action(state, i, action)
    green_target = pick_green_target(state, i) if record.green_scans else np.int64(NONE)
    red_action, red_target = choose_red_action(state, i)
    red_success, red_scanned, service_events, shell_events, exploit_used = execute_red_action(
        state, i, red_action, red_target, record.leaderboard
    )
    red_host = red_target if red_scanned or service_events else np.int64(NONE)
    update_observation(
        state,
        observation,
        i,
        action,
        placed_at,
        malware_at,
        green_target,
        red_host,
        red_scanned,
        service_events,
        shell_events,
        record.cardiff,
    )
    if observation.exploits.shape[0] > 0:
        update_exploits_channel(
            pointers, i, action, green_target, red_target, exploit_used, service_events, shell_events
        )
    outputs.reward[i] = reward_tenths(state, i, action) / 10.0
    outputs.red_action[i] = red_action
    outputs.red_target[i] = red_target
    outputs.red_success[i] = red_success
    outputs.blue_success[i] = blue_success


@inlined
def start_episode(record: Any, state: Any, observation: Any, i: Any) -> None:
    """Initial state: red holds its permanent privileged session on the entry host and nothing else."""
    hidden, entry = state.hidden[i], state.network.entry
    for host in range(state.network.num_hosts):
        state.known[i, host] = 0
        state.scanned[i, host] = 0
        state.access[i, host] = NO_ACCESS
        state.access_first[i, host] = NO_ACCESS
        state.n_sessions[i, host] = 0
        state.user_removable[i, host] = 0
        state.decoys[i, host] = 0
        state.n_decoys[i, host] = 0
        hidden.privileged[host] = 0
        hidden.removable[host] = 0
        hidden.exploit_options[host] = 0
    state.known[i, entry] = 1
    state.access[i, entry] = PRIVILEGED_ACCESS
    state.access_first[i, entry] = PRIVILEGED_ACCESS
    state.n_sessions[i, entry] = 1
    hidden.privileged[entry] = 1
    state.red_subnets[i] = 1 << state.network.entry_subnet
    state.ot_up[i] = 1
    hidden.ot_stoppable = 1
    hidden.ot_known = 0
    hidden.malware = 0
    hidden.restored = 0

    hidden.key = episode_key(record, i)
    hidden.step = 0
    hidden.horizon = draw_horizon(record, hidden.key)
    hidden.red = draw_red_agent(record, hidden.key)
    hidden.red_success = UNKNOWN
    hidden.empty_scan = 0
    hidden.b_line_step = 0
    hidden.b_line_user_host = NONE
    hidden.b_line_reached_server = 0
    hidden.subnets_tried = 0
    hidden.hosts_scanned = 0
    hidden.hosts_exploited = 0
    hidden.hosts_escalated = 0
    hidden.hosts_ever_exploited = 0
    hidden.last_exploited = NONE
    hidden.last_escalated = NONE
    reset_observation(state, observation, i)


@inlined
def episode_key(record: Any, i: Any) -> Any:
    """Key of the RNG stream of the env's current episode."""
    env_keys = array_at(record.env_keys, (record.num_envs,), np.uint64)
    episodes = array_at(record.episodes, (record.num_envs,), np.int64)
    return spawn(env_keys[i], episodes[i])


@inlined
def draw_horizon(record: Any, key: Any) -> Any:
    """One of the horizons in the settings, uniformly."""
    horizons = array_at(record.horizons, (record.num_horizons,), np.int64)
    return horizons[integer(key, draw_counter(0, HORIZON_DRAW), record.num_horizons)]


@inlined
def draw_red_agent(record: Any, key: Any) -> Any:
    """The red agent of the settings, or the one drawn by `mix`."""
    if record.red != MIX:
        return record.red
    unit = uniform(key, draw_counter(0, RED_DRAW))
    if unit < record.b_line_below:
        return B_LINE
    return MEANDER if unit < record.meander_below else SLEEP_AGENT


@outlined
def end_episode(pointers: Any, i: Any) -> None:
    """Save what an episode ended with, and start the env's next one."""
    record = pointers[0]
    state, observation, outputs = state_from(record), observation_from(record), outputs_from(record)
    final_observation, hidden = final_observation_from(record), state.hidden[i]
    save_final_observation(observation, final_observation, i)
    if record.tracks_memory:
        save_final_memory(observation, final_observation, i)
    outputs.red[i] = hidden.red
    outputs.horizon[i] = hidden.horizon
    array_at(record.episodes, (record.num_envs,), np.int64)[i] += 1
    start_episode(record, state, observation, i)
    if record.tracks_memory:
        reset_memory_and_mask(pointers, i)


@outlined
def reset_memory_and_mask(pointers: Any, i: Any) -> None:
    """Clear blue's memory for a new episode and write its first action mask."""
    record = pointers[0]
    state, observation = state_from(record), observation_from(record)
    reset_memory(state, observation, i)
    update_mask(state, observation, outputs_from(record), i, record.green_scans)


@outlined
def update_memory_and_mask(pointers: Any, i: Any, action: Any) -> None:
    """Update blue's memory after a step and write the next action mask."""
    record = pointers[0]
    state, observation = state_from(record), observation_from(record)
    update_memory(state, observation, i, action)
    update_mask(state, observation, outputs_from(record), i, record.green_scans)


@outlined
def update_exploits_channel(
    pointers: Any,
    i: Any,
    action: Any,
    green_target: Any,
    host: Any,
    exploit: Any,
    service_events: Any,
    shell_events: Any,
) -> None:
    """Update the channel `exploits` after a step; see `update_exploits`."""
    record = pointers[0]
    state, observation = state_from(record), observation_from(record)
    update_exploits(state, observation, i, action, green_target, host, exploit, service_events, shell_events)
