"""The board: one record that tells a kernel where a batch's arrays are and which rules hold.

It borrows: whoever makes a board keeps its arrays alive and in place. An address of 0 stands for an
array that is switched off, which kernels meet as an array without rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numba.np.numpy_support import carray

from hundredfold.core.batch import Array, ArraySpec
from hundredfold.core.errors import ShapeError
from hundredfold.core.numba_kernels import inlined, pointer
from hundredfold.envs.cage2.blue_actions import NUM_ACTIONS
from hundredfold.envs.cage2.network import NUM_BITS, NUM_DECOYS, NUM_HOSTS
from hundredfold.envs.cage2.state import DRAWS, NUM_MEMORIES, SECRETS, Game, Observation, Report

BOARD: Final = np.dtype(
    [
        ("num_envs", np.int64),
        *((name, np.int64) for name in Game._fields),
        *((f"seen_{name}", np.int64) for name in Observation._fields),
        *((f"final_{name}", np.int64) for name in Observation._fields),
        *((f"report_{name}", np.int64) for name in Report._fields),
        ("env_keys", np.int64),
        ("episodes", np.int64),
        ("horizons", np.int64),
        ("num_horizons", np.int64),
        ("red", np.int64),
        # `mix` draws u in [0, 1): b_line below the first, meander below the second, sleep above.
        ("b_line_below", np.float64),
        ("meander_below", np.float64),
        ("green_scans", np.bool_),
        ("leaderboard", np.bool_),
        ("cardiff", np.bool_),
        ("keeps_books", np.bool_),
    ],
    align=True,
)


def address(array: Array | None) -> int:
    """Where the array's data begin; 0 for no array."""
    return 0 if array is None else array.ctypes.data


def check_buffers(arrays: Mapping[str, Array], specs: Mapping[str, ArraySpec], rows: int) -> None:
    """Refuse buffers that a kernel would misread: it trusts shape, type and order."""
    for name, spec in specs.items():
        array = arrays.get(name)
        shape = (rows, *spec.shape)
        if array is None or array.shape != shape or array.dtype != spec.dtype:
            got = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise ShapeError(f"the buffer {name!r} must be {spec.dtype}{list(shape)}, got {got}.")
        if not array.flags.carray:
            raise ShapeError(f"the buffer {name!r} must be contiguous, aligned and writeable.")


@inlined
def array_at(where: Any, shape: Any, dtype: Any) -> Any:
    """The array that begins at an address."""
    return carray(pointer(where), shape, dtype)  # type: ignore[call-arg]


@inlined
def rows_at(where: Any, num_envs: Any) -> Any:
    """How many rows the array at an address has: none if it is switched off."""
    return num_envs if where else 0


@inlined
def game_on(board: Any) -> Any:
    """The arrays the rules play on."""
    n = board.num_envs
    by_host = (n, NUM_HOSTS)
    return Game(
        array_at(board.known, by_host, np.uint8),
        array_at(board.scanned, by_host, np.uint8),
        array_at(board.access, by_host, np.uint8),
        array_at(board.access_first, by_host, np.uint8),
        array_at(board.n_sessions, by_host, np.uint8),
        array_at(board.user_removable, by_host, np.uint8),
        array_at(board.decoys, by_host, np.uint8),
        array_at(board.n_decoys, by_host, np.int16),
        array_at(board.ot_up, (n,), np.uint8),
        array_at(board.red_subnets, (n,), np.uint8),
        array_at(board.secrets, (n,), SECRETS),
        array_at(board.draws, (rows_at(board.draws, n), len(DRAWS)), np.uint8),
        array_at(board.forced_red, (rows_at(board.forced_red, n), 2), np.uint8),
    )


@inlined
def observation_at(
    n: Any,
    bits: Any,
    decoys: Any,
    decoy_counts: Any,
    scans: Any,
    baits: Any,
    recency: Any,
    elapsed: Any,
    remaining: Any,
) -> Any:
    """An observation from the addresses of its arrays."""
    return Observation(
        array_at(bits, (n, NUM_BITS), np.uint8),
        array_at(decoys, (rows_at(decoys, n), NUM_HOSTS, NUM_DECOYS), np.uint8),
        array_at(decoy_counts, (rows_at(decoy_counts, n), NUM_HOSTS), np.int16),
        array_at(scans, (rows_at(scans, n), NUM_HOSTS), np.uint8),
        array_at(baits, (rows_at(baits, n), NUM_HOSTS, NUM_DECOYS), np.uint8),
        array_at(recency, (rows_at(recency, n), NUM_HOSTS, NUM_MEMORIES), np.float32),
        array_at(elapsed, (rows_at(elapsed, n), 1), np.float32),
        array_at(remaining, (rows_at(remaining, n), 1), np.float32),
    )


@inlined
def seen_on(board: Any) -> Any:
    """The observation that blue acts on."""
    return observation_at(
        board.num_envs,
        board.seen_bits,
        board.seen_decoys,
        board.seen_decoy_counts,
        board.seen_scans,
        board.seen_baits,
        board.seen_recency,
        board.seen_elapsed,
        board.seen_remaining,
    )


@inlined
def final_on(board: Any) -> Any:
    """Where the last observation of an episode is kept."""
    return observation_at(
        board.num_envs,
        board.final_bits,
        board.final_decoys,
        board.final_decoy_counts,
        board.final_scans,
        board.final_baits,
        board.final_recency,
        board.final_elapsed,
        board.final_remaining,
    )


@inlined
def report_on(board: Any) -> Any:
    """Rewards, endings and infos."""
    n = (board.num_envs,)
    return Report(
        array_at(board.report_reward, n, np.float64),
        array_at(board.report_terminated, n, np.bool_),
        array_at(board.report_red_action, n, np.uint8),
        array_at(board.report_red_target, n, np.uint8),
        array_at(board.report_red_success, n, np.uint8),
        array_at(board.report_blue_success, n, np.uint8),
        array_at(board.report_red, n, np.uint8),
        array_at(board.report_horizon, n, np.int64),
        array_at(board.report_mask, (rows_at(board.report_mask, n[0]), NUM_ACTIONS), np.bool_),
    )
