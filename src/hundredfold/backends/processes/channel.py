"""IPC channel between the parent and one worker process.

Two pipes carry ranges of env ids: to the worker the envs to step, to the parent only wake-ups, when
enough envs are ready. A pipe wakes a sleeping reader and buffers for a busy one. A socket carries
everything rare as pickled messages, each announced in the pipe, so that messages and ranges keep
their order. Writes to a pipe of up to 4096 bytes are atomic: a killed process never leaves half a
range behind.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import pickle
import socket
import struct
import threading
import weakref
from typing import Any, Final

import numpy as np

from hundredfold.core.batch import IntArray

EnvRange = tuple[int, int]  # first env id, last + 1

RANGE: Final = struct.Struct("=ii")
LENGTH: Final = struct.Struct("=Q")
# Ranges with a meaning of their own: a message waits in the socket, and wake up.
MESSAGE_FOLLOWS: Final = RANGE.pack(-1, -1)
WAKE: Final = RANGE.pack(0, 0)
READ_BYTES: Final = 1 << 16  # also the default capacity of a pipe
MAX_PIPE_BYTES: Final = 1 << 20
# Up to so many env ids are packed one by one: numpy takes longer to begin.
FEW_ENVS: Final = 24


_write_holding_gil = ctypes.PyDLL(None).write
_write_holding_gil.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
_write_holding_gil.restype = ctypes.c_ssize_t


class Channel:
    """One end of the channel between the parent and a worker.

    Args:
        messages: socket for pickled messages.
        read_fd: pipe end that ranges come from.
        write_fd: pipe end that ranges go to.
    """

    def __init__(self, messages: socket.socket, read_fd: int, write_fd: int) -> None:
        self.messages = messages
        self.read_fd = read_fd
        self.write_fd = write_fd
        self.lock = threading.Lock()

    def wake(self) -> None:
        """Wake the other side, from any thread."""
        # `os.write` releases the GIL and then queues for it behind a hundred threads, which costs
        # more than the write itself; the write never blocks.
        if _write_holding_gil(self.write_fd, WAKE, RANGE.size) != RANGE.size:
            self.write_ranges(WAKE)

    def write_ranges(self, data: bytes) -> None:
        """Send packed ranges of env ids."""
        while data:
            data = data[os.write(self.write_fd, data) :]

    def read_ranges(self) -> list[EnvRange] | None:
        """Wait for ranges; None when the other side is gone.

        An empty range is a wake-up, a negative one announces a message.
        """
        data = os.read(self.read_fd, READ_BYTES)
        if not data:
            return None
        while len(data) % RANGE.size:
            data += os.read(self.read_fd, RANGE.size - len(data) % RANGE.size)
        return list(RANGE.iter_unpack(data))

    def send_message(self, *message: Any) -> None:
        """Announce a message and send it, from any thread."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self.lock:
            self.write_ranges(MESSAGE_FOLLOWS)
            self.messages.sendall(LENGTH.pack(len(data)))
            self.messages.sendall(data)

    def recv_message(self) -> tuple[Any, ...]:
        """The message that was announced."""
        (length,) = LENGTH.unpack(self._recv_exactly(LENGTH.size))
        message: tuple[Any, ...] = pickle.loads(self._recv_exactly(length))
        return message

    def close(self) -> None:
        """Close this end; safe to call twice."""
        self.messages.close()
        for fd in (self.read_fd, self.write_fd):
            if fd >= 0:
                os.close(fd)
        self.read_fd = self.write_fd = -1

    def _recv_exactly(self, length: int) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        while len(view):
            count = self.messages.recv_into(view, min(len(view), MAX_PIPE_BYTES))
            if not count:
                raise EOFError("the other side is gone")
            view = view[count:]
        return data


class ParentChannel(Channel):
    """The parent's end; it also holds a pipe that breaks when the parent dies.

    Args:
        messages: socket for pickled messages.
        shard_size: number of envs in the worker's shard; the pipes have room for a range of each.
        timeout: seconds to wait for a worker that stops in the middle of a message.
    """

    def __init__(self, messages: socket.socket, shard_size: int, timeout: float) -> None:
        read_fd, worker_write_fd = os.pipe()
        worker_read_fd, write_fd = os.pipe()
        worker_death_fd, self.parent_alive_fd = os.pipe()
        super().__init__(messages, read_fd, write_fd)
        _PARENT_CHANNELS.add(self)
        messages.settimeout(timeout)
        for fd in (read_fd, worker_read_fd):
            _enlarge_pipe(fd, shard_size * RANGE.size)
        self.worker_fds: tuple[int, ...] = (worker_read_fd, worker_write_fd, worker_death_fd)

    def send_worker_fds(self) -> None:
        """Give the worker its pipe ends and close them here."""
        socket.send_fds(self.messages, [b"w"], self.worker_fds)
        self._close_worker_fds()

    def send_memory_fd(self, fd: int) -> None:
        """Give the worker the file descriptor of the shared memory."""
        socket.send_fds(self.messages, [b"m"], [fd])

    def close(self) -> None:
        self._close_worker_fds()
        if self.parent_alive_fd >= 0:
            os.close(self.parent_alive_fd)
            self.parent_alive_fd = -1
        super().close()

    def _close_worker_fds(self) -> None:
        for fd in self.worker_fds:
            os.close(fd)
        self.worker_fds = ()


# A forked process must close the parent's ends: while it holds them, no pipe breaks when the parent
# or another worker dies.
_PARENT_CHANNELS: weakref.WeakSet[ParentChannel] = weakref.WeakSet()


def _close_inherited_channels() -> None:
    for channel in list(_PARENT_CHANNELS):
        channel.close()


os.register_at_fork(after_in_child=_close_inherited_channels)


def recv_fds(messages: socket.socket, count: int) -> list[int]:
    """File descriptors sent by the parent."""
    data, fds, _, _ = socket.recv_fds(messages, 1, count)
    if not data:
        raise EOFError("the parent is gone")
    return list(fds)


def pack_ranges(env_ids: IntArray) -> bytes:
    """Ascending env ids as packed ranges, as few as possible."""
    if len(env_ids) <= FEW_ENVS:
        return _pack_few_ranges(env_ids.tolist())
    (breaks,) = (env_ids[1:] - env_ids[:-1] != 1).nonzero()
    if not len(breaks):
        return RANGE.pack(int(env_ids[0]), int(env_ids[-1]) + 1)
    ranges = np.empty((len(breaks) + 1, 2), np.int32)
    ranges[0, 0] = env_ids[0]
    ranges[1:, 0] = env_ids[breaks + 1]
    ranges[:-1, 1] = env_ids[breaks] + 1
    ranges[-1, 1] = env_ids[-1] + 1
    return ranges.tobytes()


def _pack_few_ranges(env_ids: list[int]) -> bytes:
    ends: list[int] = []
    for env_id in env_ids:
        if ends and ends[-1] == env_id:
            ends[-1] += 1
        else:
            ends += (env_id, env_id + 1)
    return struct.pack(f"={len(ends)}i", *ends)


def _enlarge_pipe(fd: int, size: int) -> None:
    """Enlarge a pipe to so many bytes, where it is smaller and the system allows it."""
    if size > READ_BYTES and hasattr(fcntl, "F_SETPIPE_SZ"):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, min(size, MAX_PIPE_BYTES))
