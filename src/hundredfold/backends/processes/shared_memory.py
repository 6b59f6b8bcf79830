"""Arrays in shared memory: actions, step batches and infos of all envs in one anonymous mapping.

The memory has no name. Workers get it as a file descriptor over a socket, so it is freed with the
last process that holds it, however that process ends.
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

MemoryLayout = dict[str, tuple[tuple[int, ...], str]]  # shape and dtype by name

# Arrays begin on cache lines of their own.
ALIGNMENT: Final = 64
# Room for the pickled info of one env. Only pages that are written take memory.
INFO_SLOT_BYTES: Final = 1 << 18
# Size of an info that is not in its slot: the worker has it.
NOT_STORED: Final = -1


def memory_layout(spec: EnvSpec, num_envs: int, *, is_per_env: bool) -> MemoryLayout:
    """Names, shapes and dtypes of all shared arrays.

    Args:
        spec: arrays of the env.
        num_envs: number of envs in all workers.
        is_per_env: whether envs are third-party, with infos of their own.
    """
    layout: MemoryLayout = {
        "actions": ((num_envs, *spec.action_shape), spec.action_dtype),
        # (envs,) `time.monotonic()` since when an env is in step, negative: in reset; 0: in neither.
        "busy_since": ((num_envs,), "float64"),
        "ready": ((num_envs,), "bool"),
        "wakeup": ((3,), "int64"),
    }
    for name, array in spec.batch(np.arange(1)).arrays().items():
        layout[f"batch/{name}"] = ((num_envs, *array.shape[1:]), array.dtype.str)
    if is_per_env:
        layout["info_sizes"] = ((num_envs,), "int64")
        layout["info_bytes"] = ((num_envs * INFO_SLOT_BYTES,), "uint8")
        layout["infos_are_read"] = ((1,), "bool")
    return layout


def create_memory(layout: MemoryLayout) -> int:
    """A file descriptor of zeroed anonymous memory for this layout."""
    size = max(sum(_aligned_bytes(*item) for item in layout.values()), mmap.PAGESIZE)
    try:
        fd = os.memfd_create("hundredfold", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        # Not Linux, or not allowed: an unlinked file does the same, more slowly.
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


def map_arrays(layout: MemoryLayout, fd: int) -> Arrays:
    """The arrays of a layout, mapped from shared memory."""
    memory = mmap.mmap(fd, 0)
    arrays: Arrays = {}
    offset = 0
    for name, (shape, dtype) in layout.items():
        arrays[name] = np.ndarray(shape, dtype, memory, offset)
        offset += _aligned_bytes(shape, dtype)
    return arrays


def shared_batch(arrays: Arrays, spec: EnvSpec) -> StepBatch:
    """The step batch of all envs, in shared memory."""

    def group(kind: str, specs: Mapping[str, ArraySpec]) -> Arrays:
        return {name: arrays[f"batch/{kind}/{name}"] for name in specs}

    return StepBatch(
        env_ids=np.arange(len(arrays["ready"])),
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
    """Writes a worker's infos to shared memory, from the first time the parent reads one.

    Most trainings never do, and pickling an info can take longer than the step itself.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.sizes = arrays["info_sizes"]
        # Memoryviews: quicker for single elements.
        self.size_view: Any = self.sizes.data
        self.are_read: Any = arrays["infos_are_read"].data
        self.slots = arrays["info_bytes"].data

    def write(self, env_id: int, info: Mapping[str, Any]) -> None:
        """Store an info in its slot, or mark it as not stored."""
        data = pickle_info(info) if self.are_read[0] else None
        if data is None or len(data) > INFO_SLOT_BYTES:
            self.size_view[env_id] = NOT_STORED
            return
        start = env_id * INFO_SLOT_BYTES
        self.slots[start : start + len(data)] = data
        self.size_view[env_id] = len(data)


class LazyInfos(Sequence[Mapping[str, Any]]):
    """Infos that are fetched and unpickled when they are read; valid until the env's next step.

    Args:
        arrays: the shared arrays.
        env_ids: (rows,) envs of this batch.
        fetch: gets the pickled info of an env from its worker.
        pending_truncation: (envs,) True where the worker died with its infos.
    """

    def __init__(
        self, arrays: Arrays, env_ids: IntArray, fetch: Callable[[int], bytes], pending_truncation: BoolArray
    ) -> None:
        self.arrays = arrays
        self.env_ids = env_ids
        self.fetch = fetch
        self.pending_truncation = pending_truncation

    def __len__(self) -> int:
        return len(self.env_ids)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> LazyInfos: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | LazyInfos:
        if isinstance(index, slice):
            env_ids = self.env_ids[index]
            return LazyInfos(self.arrays, env_ids, self.fetch, self.pending_truncation)
        env_id = int(self.env_ids[index])
        size = int(self.arrays["info_sizes"][env_id])
        if size == 0 or self.pending_truncation[env_id]:
            return {}
        self.arrays["infos_are_read"][0] = True
        if size == NOT_STORED:
            info = _unpickle_info(self.fetch(env_id))
            # If the worker died meanwhile, its replacement answered about another episode.
            return {} if self.pending_truncation[env_id] else info
        start = env_id * INFO_SLOT_BYTES
        return _unpickle_info(self.arrays["info_bytes"][start : start + size].data)


def pickle_info(info: Mapping[str, Any]) -> bytes:
    """The info as bytes; values that cannot be pickled become their `repr`."""
    try:
        return pickle.dumps(info, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return pickle.dumps({key: _picklable(value) for key, value in dict(info).items()})


def _picklable(value: Any) -> Any:
    try:
        pickle.dumps(value)
    except Exception:
        return repr(value)
    return value


def _unpickle_info(data: bytes | memoryview) -> Mapping[str, Any]:
    info: Mapping[str, Any] = pickle.loads(data)
    return info


def _aligned_bytes(shape: tuple[int, ...], dtype: str) -> int:
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return -(-size // ALIGNMENT) * ALIGNMENT
