"""Struct of array pointers: one record with the addresses of a batch's arrays and its rule flags.

Kernels rebuild the arrays from it, so a call passes one record instead of forty arrays. The record
does not own the arrays: the env keeps them alive and in place. Address 0 stands for an array that
is switched off, which the kernels get as an array without rows.

The type of the record decides how kernels are compiled. With `ARRAY_POINTERS` the tables of the standard
network are constants in the machine code; with `NETWORK_POINTERS` they are read at their addresses, and
the number of hosts is that of the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numba.extending import overload
from numba.np.numpy_support import carray

from hundredfold.core.batch import Array, ArraySpec
from hundredfold.core.errors import ShapeError
from hundredfold.core.numba_kernels import INLINED, inlined, pointer
from hundredfold.envs.cage2.network import NUM_DECOYS, NUM_EXPLOITS
from hundredfold.envs.cage2.network_tables import ARRAYS, NUMBERS, STANDARD_TABLES, NetworkTables, num_actions
from hundredfold.envs.cage2.state import (
    DRAWS,
    HIDDEN,
    LARGE_HIDDEN,
    NUM_MEMORY_EVENTS,
    GameState,
    Observation,
    StepOutputs,
)

_FIELDS: Final = [
    ("num_envs", np.int64),
    *((name, np.int64) for name in GameState._fields if name != "network"),
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
]
ARRAY_POINTERS: Final = np.dtype(_FIELDS, align=True)
"""Record of a batch on the standard network."""
# The tables first: a record that begins like the standard one would count as a subtype of it, with a warning
# by Numba for every kernel that is compiled for both.
NETWORK_POINTERS: Final = np.dtype(
    [*((f"network_{name}", np.int64) for name in NetworkTables._fields), *_FIELDS], align=True
)
"""Record of a batch on another network: numbers and addresses of its tables, too."""


def write_network(record: Any, tables: NetworkTables) -> None:
    """Write the tables of a network into a record of `NETWORK_POINTERS`."""
    for name in NUMBERS:
        record[f"network_{name}"] = getattr(tables, name)
    for name in ARRAYS:
        record[f"network_{name}"] = address(getattr(tables, name))


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


def tables_from(record: Any) -> NetworkTables:
    """Tables of the batch's network; for kernels only."""
    raise TypeError("tables_from is for kernels.")


def hidden_from(record: Any) -> Any:
    """Hidden state of the batch; for kernels only."""
    raise TypeError("hidden_from is for kernels.")


@overload(tables_from, jit_options=INLINED)
def _tables_from(record: Any) -> Any:
    return tables_at if "network_num_hosts" in record.fields else standard_tables


@overload(hidden_from, jit_options=INLINED)
def _hidden_from(record: Any) -> Any:
    return large_hidden if "network_num_hosts" in record.fields else standard_hidden


def standard_tables(record: Any) -> Any:
    """Tables of the standard network, which become constants."""
    return STANDARD_TABLES


def standard_hidden(record: Any) -> Any:
    """Hidden state of the standard network."""
    return array_at(record.hidden, (record.num_envs,), HIDDEN)


def large_hidden(record: Any) -> Any:
    """Hidden state of another network."""
    return array_at(record.hidden, (record.num_envs,), LARGE_HIDDEN)


def tables_at(record: Any) -> Any:
    """Tables of a network from their addresses."""
    hosts, subnets = record.network_num_hosts, record.network_num_subnets
    by_decoys, actions = (hosts, 1 << NUM_DECOYS), num_actions_in_kernel(hosts)
    return NetworkTables(
        hosts,
        subnets,
        record.network_num_openers,
        record.network_num_green_hosts,
        record.network_entry,
        record.network_server,
        record.network_entry_subnet,
        record.network_first_targets,
        record.network_server_subnet,
        record.network_openers,
        array_at(record.network_subnet_of, (hosts,), np.int64),
        array_at(record.network_first_host, (subnets + 1,), np.int64),
        array_at(record.network_opener_first, (subnets + 1,), np.int64),
        array_at(record.network_opener_hosts, (record.network_num_openers,), np.int64),
        array_at(record.network_green_hosts, (record.network_num_green_hosts,), np.int64),
        array_at(record.network_cost_tenths, (hosts,), np.int64),
        array_at(record.network_linked_host, (hosts,), np.int64),
        array_at(record.network_base_events, (hosts,), np.int64),
        array_at(record.network_genuine_service, (NUM_EXPLOITS, hosts), np.int64),
        array_at(record.network_script_target, (SCRIPT_STEPS,), np.int64),
        array_at(record.network_action_kind, (actions,), np.int64),
        array_at(record.network_action_decoy, (actions,), np.int64),
        array_at(record.network_action_host, (actions,), np.int64),
        array_at(record.network_installable_decoys, by_decoys, np.uint8),
        array_at(record.network_exploit_options, by_decoys, np.uint8),
        array_at(record.network_distinct_ports, by_decoys, np.uint8),
        array_at(record.network_next_decoy, by_decoys, np.uint8),
        array_at(record.network_defendable, (hosts,), np.bool_),
    )


num_actions_in_kernel: Final = inlined(num_actions)
SCRIPT_STEPS: Final = len(STANDARD_TABLES.script_target)


@inlined
def state_from(record: Any) -> Any:
    """The game state of the batch."""
    n, network = record.num_envs, tables_from(record)
    by_host = (n, network.num_hosts)
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
        hidden_from(record),
        array_at(record.draws, (num_rows_at(record.draws, n), len(DRAWS)), np.uint8),
        array_at(record.forced_red, (num_rows_at(record.forced_red, n), 2), np.uint8),
        network,
    )


@inlined
def observation_at(
    n: Any,
    hosts: Any,
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
        array_at(bits, (n, 4 * hosts), np.uint8),
        array_at(decoys, (num_rows_at(decoys, n), hosts, NUM_DECOYS), np.uint8),
        array_at(decoy_counts, (num_rows_at(decoy_counts, n), hosts), np.int16),
        array_at(scans, (num_rows_at(scans, n), hosts), np.uint8),
        array_at(scanned_decoys, (num_rows_at(scanned_decoys, n), hosts, NUM_DECOYS), np.uint8),
        array_at(recency, (num_rows_at(recency, n), hosts, NUM_MEMORY_EVENTS), np.float32),
        array_at(elapsed, (num_rows_at(elapsed, n), 1), np.float32),
        array_at(remaining, (num_rows_at(remaining, n), 1), np.float32),
        array_at(exploits, (num_rows_at(exploits, n), hosts, NUM_EXPLOITS), np.uint8),
    )


@inlined
def observation_from(record: Any) -> Any:
    """The current observation."""
    return observation_at(
        record.num_envs,
        tables_from(record).num_hosts,
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
        tables_from(record).num_hosts,
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
    n, actions = (record.num_envs,), num_actions_in_kernel(tables_from(record).num_hosts)
    return StepOutputs(
        array_at(record.output_reward, n, np.float64),
        array_at(record.output_terminated, n, np.bool_),
        array_at(record.output_red_action, n, np.uint8),
        array_at(record.output_red_target, n, np.uint8),
        array_at(record.output_red_success, n, np.uint8),
        array_at(record.output_blue_success, n, np.uint8),
        array_at(record.output_red, n, np.uint8),
        array_at(record.output_horizon, n, np.int64),
        array_at(record.output_mask, (num_rows_at(record.output_mask, n[0]), actions), np.bool_),
    )
