"""One step of every env: blue, green and red move, then blue is paid and shown what it may see.

Also how an episode begins and ends. Each env is its own story, so `threads` may share rows out in
any way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hundredfold.core.compiled import integer, spawned, uniform
from hundredfold.worlds.cage2.blue_moves import NUM_ACTIONS, play_blue
from hundredfold.worlds.cage2.board import array_at, final_on, game_on, report_on, seen_on
from hundredfold.worlds.cage2.books import keep_books, keep_final_books, open_books
from hundredfold.worlds.cage2.chance import draw_number, pick_green_target
from hundredfold.worlds.cage2.kernels import aside, entry, rule
from hundredfold.worlds.cage2.mask import show_mask
from hundredfold.worlds.cage2.network import NOBODY, NUM_HOSTS, USER, USER0
from hundredfold.worlds.cage2.red_agents import ASLEEP, B_LINE, MEANDER, MIX, choose_red
from hundredfold.worlds.cage2.red_moves import play_red
from hundredfold.worlds.cage2.state import NO_ACCESS, PRIVILEGED_ACCESS, UNKNOWN
from hundredfold.worlds.cage2.troubles import NO_TROUBLE
from hundredfold.worlds.cage2.view import keep_final, reward_tenths, show_start, show_step

# Draws at the beginning of an episode; its steps count from 1 and use the numbers after these.
WHICH_RED, WHICH_HORIZON = range(2)


@entry
def start_all(boards: Any) -> None:
    """Begin the current episode of every env; `boards` holds one board."""
    board = boards[0]
    game, seen = game_on(board), seen_on(board)
    for i in range(board.num_envs):
        start_episode(board, game, seen, i)
        if board.keeps_books:
            note_start(boards, i)


@entry
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


@rule
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


@rule
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


@rule
def episode_key(board: Any, i: Any) -> Any:
    """The key of the stream that holds everything random in the env's current episode."""
    env_keys = array_at(board.env_keys, (board.num_envs,), np.uint64)
    episodes = array_at(board.episodes, (board.num_envs,), np.int64)
    return spawned(env_keys[i], episodes[i])


@rule
def horizon_of_episode(board: Any, key: Any) -> Any:
    """One of the horizons in the settings, all equally likely."""
    horizons = array_at(board.horizons, (board.num_horizons,), np.int64)
    return horizons[integer(key, draw_number(0, WHICH_HORIZON), board.num_horizons)]


@rule
def red_of_episode(board: Any, key: Any) -> Any:
    """The agent of the settings, or the one that `mix` draws."""
    if board.red != MIX:
        return board.red
    unit = uniform(key, draw_number(0, WHICH_RED))
    if unit < board.b_line_below:
        return B_LINE
    return MEANDER if unit < board.meander_below else ASLEEP


@aside
def note_start(boards: Any, i: Any) -> None:
    """Open blue's books for a new episode, and tell what it may do first."""
    board = boards[0]
    game, seen = game_on(board), seen_on(board)
    open_books(game, seen, i)
    show_mask(game, seen, report_on(board), i)


@aside
def note_step(boards: Any, i: Any, action: Any) -> None:
    """Keep blue's books after a step, and tell what it may do next."""
    board = boards[0]
    game, seen = game_on(board), seen_on(board)
    keep_books(game, seen, i, action)
    show_mask(game, seen, report_on(board), i)


@aside
def note_end(boards: Any, i: Any) -> None:
    """Save blue's books with the last observation of an episode."""
    board = boards[0]
    keep_final_books(seen_on(board), final_on(board), i)
