"""One step of every env: blue, green and red move, then blue is paid and shown what it may see.

Also how an episode begins and ends. Each env is its own story, so `threads` may share rows out in
any way.

Sharing the rows of a large batch among threads; the kernels release the interpreter lock.

Plain threads that sleep while they wait, rather than Numba's own: those spin, and on a machine
where somebody else uses a core, one step of 100 envs took 24 ms instead of 0.01.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np

from hundredfold.core.batch import Array, IntArray
from hundredfold.core.numba_kernels import entry_kernel, inlined, integer, outlined, spawn, uniform
from hundredfold.envs.cage2.action_mask import show_mask
from hundredfold.envs.cage2.array_pointers import array_at, final_on, game_on, report_on, seen_on
from hundredfold.envs.cage2.blue_actions import NUM_ACTIONS, play_blue
from hundredfold.envs.cage2.network import NOBODY, NUM_HOSTS, USER, USER0
from hundredfold.envs.cage2.observation import (
    keep_books,
    keep_final,
    keep_final_books,
    open_books,
    reward_tenths,
    show_start,
    show_step,
)
from hundredfold.envs.cage2.random_draws import NO_TROUBLE, draw_number, pick_green_target
from hundredfold.envs.cage2.red_actions import play_red
from hundredfold.envs.cage2.red_agents import ASLEEP, B_LINE, MEANDER, MIX, choose_red
from hundredfold.envs.cage2.state import NO_ACCESS, PRIVILEGED_ACCESS, UNKNOWN

# Draws at the beginning of an episode; its steps count from 1 and use the numbers after these.
WHICH_RED, WHICH_HORIZON = range(2)


@entry_kernel
def start_all(boards: Any) -> None:
    """Begin the current episode of every env; `boards` holds one board."""
    board = boards[0]
    game, seen = game_on(board), seen_on(board)
    for i in range(board.num_envs):
        start_episode(board, game, seen, i)
        if board.keeps_books:
            note_start(boards, i)


@entry_kernel
def step_rows(boards: Any, actions: Any, first: Any, last: Any) -> Any:
    """Step envs first .. last-1: how many ran into trouble, or -1 - row of an unknown action."""
    # All actions, not only those of our rows: of several threads either all refuse or none.
    for i in range(len(actions)):
        if actions[i] < 0 or actions[i] >= NUM_ACTIONS:
            return -1 - i
    board = boards[0]
    game, seen, final, report = game_on(board), seen_on(board), final_on(board), report_on(board)
    troubled = 0
    for i in range(first, last):
        step_env(board, game, seen, report, i, actions[i])
        if board.keeps_books:
            note_step(boards, i, actions[i])
        secrets = game.secrets[i]
        if secrets.trouble != NO_TROUBLE:
            troubled += 1
        ended = secrets.step >= secrets.horizon
        report.terminated[i] = ended
        if ended:
            keep_final(seen, final, i)
            if board.keeps_books:
                note_end(boards, i)
            report.red[i] = secrets.red
            report.horizon[i] = secrets.horizon
            array_at(board.episodes, (board.num_envs,), np.int64)[i] += 1
            start_episode(board, game, seen, i)
            if board.keeps_books:
                note_start(boards, i)
    return troubled


@inlined
def step_env(board: Any, game: Any, seen: Any, report: Any, i: Any, action: Any) -> None:
    """Blue moves, then green, then red; the reward and the view follow from all three."""
    game.secrets[i].step += 1
    blue_success, placed, malware_at = play_blue(game, i, action)
    green_target = pick_green_target(game, i) if board.green_scans else np.int64(NOBODY)
    red_action, red_target = choose_red(game, i)
    red_success, red_scanned, hits, shells = play_red(
        game, i, red_action, red_target, board.leaderboard
    )
    red_touched = red_target if red_scanned or hits else np.int64(NOBODY)
    show_step(
        game,
        seen,
        i,
        action,
        placed,
        malware_at,
        green_target,
        red_touched,
        red_scanned,
        hits,
        shells,
        board.cardiff,
    )
    report.reward[i] = reward_tenths(game, i, action) / 10.0
    report.red_action[i] = red_action
    report.red_target[i] = red_target
    report.red_success[i] = red_success
    report.blue_success[i] = blue_success


@inlined
def start_episode(board: Any, game: Any, seen: Any, i: Any) -> None:
    """Red holds one permanent session on User0 and knows little else; all is quiet."""
    secrets = game.secrets[i]
    for host in range(NUM_HOSTS):
        game.known[i, host] = 0
        game.scanned[i, host] = 0
        game.access[i, host] = NO_ACCESS
        game.access_first[i, host] = NO_ACCESS
        game.n_sessions[i, host] = 0
        game.user_removable[i, host] = 0
        game.decoys[i, host] = 0
        game.n_decoys[i, host] = 0
        secrets.privileged[host] = 0
        secrets.removable[host] = 0
        secrets.options[host] = 0
    game.known[i, USER0] = 1
    game.access[i, USER0] = PRIVILEGED_ACCESS
    game.access_first[i, USER0] = PRIVILEGED_ACCESS
    game.n_sessions[i, USER0] = 1
    secrets.privileged[USER0] = 1
    game.red_subnets[i] = 1 << USER
    game.ot_up[i] = 1
    secrets.ot_killable = 1
    secrets.ot_known = 0
    secrets.malware = 0
    secrets.restored = 0

    secrets.key = episode_key(board, i)
    secrets.step = 0
    secrets.horizon = horizon_of_episode(board, secrets.key)
    secrets.red = red_of_episode(board, secrets.key)
    secrets.red_success = UNKNOWN
    secrets.empty_scan = 0
    secrets.b_line = 0
    secrets.b_line_user = NOBODY
    secrets.b_line_reached_server = 0
    secrets.subnets_tried = 0
    secrets.hosts_scanned = 0
    secrets.hosts_exploited = 0
    secrets.hosts_escalated = 0
    secrets.hosts_mastered = 0
    secrets.last_exploited = NOBODY
    secrets.last_escalated = NOBODY
    show_start(game, seen, i)


@inlined
def episode_key(board: Any, i: Any) -> Any:
    """The key of the stream that holds everything random in the env's current episode."""
    env_keys = array_at(board.env_keys, (board.num_envs,), np.uint64)
    episodes = array_at(board.episodes, (board.num_envs,), np.int64)
    return spawn(env_keys[i], episodes[i])


@inlined
def horizon_of_episode(board: Any, key: Any) -> Any:
    """One of the horizons in the settings, all equally likely."""
    horizons = array_at(board.horizons, (board.num_horizons,), np.int64)
    return horizons[integer(key, draw_number(0, WHICH_HORIZON), board.num_horizons)]


@inlined
def red_of_episode(board: Any, key: Any) -> Any:
    """The agent of the settings, or the one that `mix` draws."""
    if board.red != MIX:
        return board.red
    unit = uniform(key, draw_number(0, WHICH_RED))
    if unit < board.b_line_below:
        return B_LINE
    return MEANDER if unit < board.meander_below else ASLEEP


@outlined
def note_start(boards: Any, i: Any) -> None:
    """Open blue's books for a new episode, and tell what it may do first."""
    board = boards[0]
    game, seen = game_on(board), seen_on(board)
    open_books(game, seen, i)
    show_mask(game, seen, report_on(board), i)


@outlined
def note_step(boards: Any, i: Any, action: Any) -> None:
    """Keep blue's books after a step, and tell what it may do next."""
    board = boards[0]
    game, seen = game_on(board), seen_on(board)
    keep_books(game, seen, i, action)
    show_mask(game, seen, report_on(board), i)


@outlined
def note_end(boards: Any, i: Any) -> None:
    """Save blue's books with the last observation of an episode."""
    board = boards[0]
    keep_final_books(seen_on(board), final_on(board), i)


MIN_ROWS: Final = 1000
"""Rows that are worth waking a thread for: 50 us of work against 30 us to hand it over."""


class SharedStep:
    """Steps a batch of so many rows with up to so many threads, the calling one included."""

    def __init__(self, rows: int, threads: int) -> None:
        self.rows = rows
        self.parts = max(1, min(threads, rows // MIN_ROWS))
        self.pool: ThreadPoolExecutor | None = None
        self.owner = os.getpid()

    def __call__(self, board: Array, actions: IntArray) -> int:
        """As `step_rows` for all rows."""
        if self.parts == 1:
            return step_rows(board, actions, 0, self.rows)  # type: ignore[no-any-return]
        edges = [part * self.rows // self.parts for part in range(self.parts + 1)]
        pool = self._pool()
        others = [
            pool.submit(step_rows, board, actions, edges[part], edges[part + 1])
            for part in range(1, self.parts)
        ]
        results = [step_rows(board, actions, 0, edges[1]), *(other.result() for other in others)]
        # A refusal is the same from everybody; troubles add up.
        return results[0] if results[0] < 0 else sum(results)

    def close(self) -> None:
        """Let the threads go; another step would start new ones."""
        if self.pool is not None and self.owner == os.getpid():
            self.pool.shutdown()
        self.pool = None

    def _pool(self) -> ThreadPoolExecutor:
        # A forked process inherits the pool but not its threads.
        if self.pool is None or self.owner != os.getpid():
            self.pool = ThreadPoolExecutor(self.parts - 1, thread_name_prefix="cage2")
            self.owner = os.getpid()
        return self.pool
