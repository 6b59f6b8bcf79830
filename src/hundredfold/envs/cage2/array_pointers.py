"""Struct of array pointers: one record with the addresses of a batch's arrays and its rule flags.

Kernels rebuild the arrays from it, so a call passes one record instead of forty arrays. The record
does not own the arrays: the env keeps them alive and in place. Address 0 stands for an array that
is switched off, which the kernels get as an array without rows.
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
from hundredfold.envs.cage2.network import NUM_BITS, NUM_DECOYS, NUM_EXPLOITS, NUM_HOSTS
from hundredfold.envs.cage2.state import DRAWS, HIDDEN, NUM_MEMORY_EVENTS, GameState, Observation, StepOutputs

ARRAY_POINTERS: Final = np.dtype(
    [
        ("num_envs", np.int64),
        *((name, np.int64) for name in GameState._fields),
        *((f"observation_{name}", np.int64) for name in Observation._fields),
        *((f"final_{name}", np.int64) for name in Observation._fields),
        *((f"output_{name}", np.int64) for name in StepOutputs._fields),
        ("env_keys", np.int64),
        ("episodes", np.int64),
        ("horizons", np.int64),
        ("num_horizons", np.int64),
        ("red", np.int64),
        # Red `mix` draws u in [0, 1): below the first b_line, below the second meander, else sleep.
        ("b_line_below", np.float64),
        ("meander_below", np.float64),
        ("green_scans", np.bool_),
        ("leaderboard", np.bool_),
        ("cardiff", np.bool_),
        ("tracks_memory", np.bool_),
    ],
    align=True,
)


def address(array: Array | None) -> int:
    """Address of the first element; 0 for no array."""
    return 0 if array is None else array.ctypes.data


def check_buffers(arrays: Mapping[str, Array], specs: Mapping[str, ArraySpec], rows: int) -> None:
    """Check the buffers that kernels access by address, without any check of their own.

    Args:
        arrays: buffers by name.
        specs: expected shape (without the env axis) and type by name.
        rows: number of envs.

    Raises:
        ShapeError: a buffer is missing, of another shape or type, or not a plain C array.
    """
    for name, spec in specs.items():
        array = arrays.get(name)
        shape = (rows, *spec.shape)
        if array is None or array.shape != shape or array.dtype != spec.dtype:
            got = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise ShapeError(f"the buffer {name!r} must be {spec.dtype}{list(shape)}, got {got}.")
        if not array.flags.carray:
            raise ShapeError(f"the buffer {name!r} must be contiguous, aligned and writeable.")


@inlined
def array_at(address: Any, shape: Any, dtype: Any) -> Any:
    """Array at an address."""
    return carray(pointer(address), shape, dtype)  # type: ignore[call-arg]


@inlined
def num_rows_at(address: Any, num_envs: Any) -> Any:
    """Rows of the array at an address: 0 if it is switched off."""
    return num_envs if address else 0


@inlined
def state_from(record: Any) -> Any:
    """The game state of the batch."""
    n = record.num_envs
    by_host = (n, NUM_HOSTS)
    return GameState(
        array_at(record.known, by_host, np.uint8),
        array_at(record.scanned, by_host, np.uint8),
        array_at(record.access, by_host, np.uint8),
        array_at(record.access_first, by_host, np.uint8),
        array_at(record.n_sessions, by_host, np.uint8),
        array_at(record.user_removable, by_host, np.uint8),
        array_at(record.decoys, by_host, np.uint8),
        array_at(record.n_decoys, by_host, np.int16),
        array_at(record.ot_up, (n,), np.uint8),
        array_at(record.red_subnets, (n,), np.uint8),
        array_at(record.hidden, (n,), HIDDEN),
        array_at(record.draws, (num_rows_at(record.draws, n), len(DRAWS)), np.uint8),
        array_at(record.forced_red, (num_rows_at(record.forced_red, n), 2), np.uint8),
    )


@inlined
def observation_at(
    n: Any,
    bits: Any,
    decoys: Any,
    decoy_counts: Any,
    scans: Any,
    scanned_decoys: Any,
    recency: Any,
    elapsed: Any,
    remaining: Any,
    exploits: Any,
) -> Any:
    """Observation from the addresses of its arrays."""
    return Observation(
        array_at(bits, (n, NUM_BITS), np.uint8),
        array_at(decoys, (num_rows_at(decoys, n), NUM_HOSTS, NUM_DECOYS), np.uint8),
        array_at(decoy_counts, (num_rows_at(decoy_counts, n), NUM_HOSTS), np.int16),
        array_at(scans, (num_rows_at(scans, n), NUM_HOSTS), np.uint8),
        array_at(scanned_decoys, (num_rows_at(scanned_decoys, n), NUM_HOSTS, NUM_DECOYS), np.uint8),
        array_at(recency, (num_rows_at(recency, n), NUM_HOSTS, NUM_MEMORY_EVENTS), np.float32),
        array_at(elapsed, (num_rows_at(elapsed, n), 1), np.float32),
        array_at(remaining, (num_rows_at(remaining, n), 1), np.float32),
        array_at(exploits, (num_rows_at(exploits, n), NUM_HOSTS, NUM_EXPLOITS), np.uint8),
    )


@inlined
def observation_from(record: Any) -> Any:
    """The current observation."""
    return observation_at(
        record.num_envs,
        record.observation_bits,
        record.observation_decoys,
        record.observation_decoy_counts,
        record.observation_scans,
        record.observation_scanned_decoys,
        record.observation_recency,
        record.observation_elapsed,
        record.observation_remaining,
        record.observation_exploits,
    )


@inlined
def final_observation_from(record: Any) -> Any:
    """The final observation of episodes that ended."""
    return observation_at(
        record.num_envs,
        record.final_bits,
        record.final_decoys,
        record.final_decoy_counts,
        record.final_scans,
        record.final_scanned_decoys,
        record.final_recency,
        record.final_elapsed,
        record.final_remaining,
        record.final_exploits,
    )


@inlined
def outputs_from(record: Any) -> Any:
    """Rewards, terminations, infos and action mask."""
    n = (record.num_envs,)
    return StepOutputs(
        array_at(record.output_reward, n, np.float64),
        array_at(record.output_terminated, n, np.bool_),
        array_at(record.output_red_action, n, np.uint8),
        array_at(record.output_red_target, n, np.uint8),
        array_at(record.output_red_success, n, np.uint8),
        array_at(record.output_blue_success, n, np.uint8),
        array_at(record.output_red, n, np.uint8),
        array_at(record.output_horizon, n, np.int64),
        array_at(record.output_mask, (num_rows_at(record.output_mask, n[0]), NUM_ACTIONS), np.bool_),
    )
