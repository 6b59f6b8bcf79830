"""Arrays that several processes see: actions, batches, infos in one stretch of anonymous memory.

The memory has no name anywhere. It is reached through a file descriptor that is handed to workers
over a socket, so it is gone with the last process that holds it, however that process ends.
"""

from __future__ import annotations

import mmap
import os
import pickle
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, overload

import numpy as np

from hundredfold.core.batch import Arrays, ArraySpec, BoolArray, EnvSpec, IntArray, StepBatch

Layout = dict[str, tuple[tuple[int, ...], str]]

# Arrays begin on cache lines of their own.
ALIGNMENT: Final = 64
# Room for one env's pickled info. Only pages that are written to take memory.
INFO_SLOT: Final = 1 << 18
# The size of an info that stayed with its worker.
ELSEWHERE: Final = -1


def action_array(spec: EnvSpec) -> ArraySpec:
    """What one env's action looks like: the one place that says so."""
    return ArraySpec(spec.action_shape, spec.action_dtype)


def layout_of(spec: EnvSpec, num_envs: int, *, foreign: bool) -> Layout:
    """Every shared array of an env of so many envs."""
    actions = action_array(spec)
    layout: Layout = {
        "actions": ((num_envs, *actions.shape), actions.dtype),
        "entered": ((num_envs,), "float64"),
        "done": ((num_envs,), "bool"),
        "bell": ((3,), "int64"),
    }
    for name, array in spec.batch(np.arange(1)).arrays().items():
        layout[f"batch/{name}"] = ((num_envs, *array.shape[1:]), array.dtype.str)
    if foreign:
        layout["info_sizes"] = ((num_envs,), "int64")
        layout["info_bytes"] = ((num_envs * INFO_SLOT,), "uint8")
        layout["infos_read"] = ((1,), "bool")
    return layout


def anonymous_memory(layout: Layout) -> int:
    """A file descriptor of zeroed memory that this layout fits into."""
    size = max(sum(_room(shape, dtype) for shape, dtype in layout.values()), mmap.PAGESIZE)
    try:
        handle = os.memfd_create("hundredfold", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        # Not Linux, or not allowed: a file that has lost its name does the same, if more slowly.
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.ftruncate(handle, size)
    return handle


def mapped(layout: Layout, handle: int) -> Arrays:
    """The arrays of a layout, in this memory."""
    memory = mmap.mmap(handle, 0)
    arrays: Arrays = {}
    offset = 0
    for name, (shape, dtype) in layout.items():
        arrays[name] = np.ndarray(shape, dtype, memory, offset)
        offset += _room(shape, dtype)
    return arrays


def batch_over(arrays: Arrays, spec: EnvSpec) -> StepBatch:
    """The shared batch of all envs."""

    def group(kind: str, specs: Mapping[str, ArraySpec]) -> Arrays:
        return {name: arrays[f"batch/{kind}/{name}"] for name in specs}

    return StepBatch(
        env_ids=np.arange(len(arrays["entered"])),
        observation=group("observation", spec.observation),
        reward=arrays["batch/reward"],
        terminated=arrays["batch/terminated"],
        truncated=arrays["batch/truncated"],
        mask=arrays["batch/mask"] if spec.has_mask else None,
        final_observation=group("final_observation", spec.observation),
        info=group("info", spec.info),
        episode_info=group("episode_info", spec.episode_info),
        true_state=group("true_state", spec.true_state),
    )


class InfoWriter:
    """Puts a worker's infos into their slots, from the moment that somebody reads them.

    Most trainings never do, and pickling an info can take longer than the step that it tells of.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.sizes = arrays["info_sizes"]
        self.anybody_reads: Any = arrays["infos_read"].data
        self.size_one: Any = self.sizes.data  # as plain memory: quicker for a single number
        self.slots = arrays["info_bytes"].data

    def write(self, env_id: int, info: Mapping[str, Any]) -> None:
        """Write an info down, or leave it where it is until somebody asks for it."""
        data = pickled_info(info) if self.anybody_reads[0] else None
        if data is None or len(data) > INFO_SLOT:
            self.size_one[env_id] = ELSEWHERE
            return
        start = env_id * INFO_SLOT
        self.slots[start : start + len(data)] = data
        self.size_one[env_id] = len(data)


class LazyInfos(Sequence[Mapping[str, Any]]):
    """Infos that are fetched or unpickled when they are read; right until the env's next step."""

    def __init__(
        self, arrays: Arrays, env_ids: IntArray, fetch: Callable[[int], bytes], lost: BoolArray
    ) -> None:
        self.arrays = arrays
        self.env_ids = env_ids
        self.fetch = fetch
        self.lost = lost  # (envs,) whose worker went with all they had to say

    def __len__(self) -> int:
        return len(self.env_ids)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> LazyInfos: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | LazyInfos:
        if isinstance(index, slice):
            return LazyInfos(self.arrays, self.env_ids[index], self.fetch, self.lost)
        env_id = int(self.env_ids[index])
        size = int(self.arrays["info_sizes"][env_id])
        if size == 0 or self.lost[env_id]:
            return {}
        self.arrays["infos_read"][0] = True
        if size == ELSEWHERE:
            found = _unpickled(self.fetch(env_id))
            # Whoever took the place of a worker that was lost meanwhile tells of another episode.
            return {} if self.lost[env_id] else found
        start = env_id * INFO_SLOT
        return _unpickled(self.arrays["info_bytes"][start : start + size].data)


def pickled_info(info: Mapping[str, Any]) -> bytes:
    """The info as bytes; values that cannot travel go as the text they print."""
    try:
        return pickle.dumps(info, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return pickle.dumps({key: _portable(value) for key, value in dict(info).items()})


def _portable(value: Any) -> Any:
    try:
        pickle.dumps(value)
    except Exception:
        return repr(value)
    return value


def _unpickled(data: bytes | memoryview) -> Mapping[str, Any]:
    info: Mapping[str, Any] = pickle.loads(data)
    return info


def _room(shape: tuple[int, ...], dtype: str) -> int:
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return -(-size // ALIGNMENT) * ALIGNMENT
