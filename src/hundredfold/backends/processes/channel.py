"""What parent and worker say to each other, and over which wires.

One pipe brings the worker spans of env ids to step, another brings the parent a bell when enough
of them are ready. A pipe wakes who sleeps on it and gathers what comes while its reader is busy. A
socket carries everything rare as pickled messages, each announced by a NOTE in the pipe, so that
messages and spans keep their order. Writing to a pipe in pieces of up to 4096 bytes is atomic: who
is killed never leaves half a span.
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

Span = tuple[int, int]

SPAN: Final = struct.Struct("=ii")
LENGTH: Final = struct.Struct("=Q")
NOTE: Final = SPAN.pack(-1, -1)
BELL: Final = SPAN.pack(0, 0)
CHUNK: Final = 1 << 16
MAX_PIPE: Final = 1 << 20


_write_holding_lock = ctypes.PyDLL(None).write
_write_holding_lock.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
_write_holding_lock.restype = ctypes.c_ssize_t


class Channel:
    """One end of the line between the parent and a worker."""

    def __init__(self, messages: socket.socket, inbox: int, outbox: int) -> None:
        self.messages = messages
        self.inbox = inbox
        self.outbox = outbox
        self.lock = threading.Lock()

    def ring(self) -> None:
        """Wake the other side, from any thread."""
        # A hundred threads may want the interpreter lock, which `os.write` lets go of and has to
        # queue for again: that costs more than the write, which never waits.
        if _write_holding_lock(self.outbox, BELL, SPAN.size) != SPAN.size:
            self.post_bytes(BELL)

    def post_bytes(self, data: bytes) -> None:
        """Send spans of env ids."""
        while data:
            data = data[os.write(self.outbox, data) :]

    def collect(self) -> list[Span] | None:
        """Wait for spans; None when the other side is gone.

        An empty one is a bell, a negative one announces a message.
        """
        data = os.read(self.inbox, CHUNK)
        if not data:
            return None
        while len(data) % SPAN.size:
            data += os.read(self.inbox, SPAN.size - len(data) % SPAN.size)
        return list(SPAN.iter_unpack(data))

    def say(self, *message: Any) -> None:
        """Announce a message and send it."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self.lock:
            self.post_bytes(NOTE)
            self.messages.sendall(LENGTH.pack(len(data)))
            self.messages.sendall(data)

    def hear(self) -> tuple[Any, ...]:
        """The message that was announced."""
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        message: tuple[Any, ...] = pickle.loads(self._exactly(length))
        return message

    def close(self) -> None:
        """Let go of this end; safe to call twice."""
        self.messages.close()
        for handle in (self.inbox, self.outbox):
            if handle >= 0:
                os.close(handle)
        self.inbox = self.outbox = -1

    def _exactly(self, length: int) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        while len(view):
            count = self.messages.recv_into(view, min(len(view), MAX_PIPE))
            if not count:
                raise EOFError("the other side is gone")
            view = view[count:]
        return data


class ParentChannel(Channel):
    """The parent's end, with the lifeline: a pipe that breaks when the parent ends."""

    def __init__(self, messages: socket.socket, largest_slice: int, timeout: float) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        theirs_life, self.lifeline = os.pipe()
        super().__init__(messages, ours_in, ours_out)
        _PARENT_ENDS.add(self)
        # A worker that stops in the middle of a message must not stop the parent, too.
        messages.settimeout(timeout)
        for handle in (ours_in, theirs_in):
            _widen(handle, largest_slice * SPAN.size)
        self.theirs: tuple[int, ...] = (theirs_in, theirs_out, theirs_life)

    def hand_over(self) -> None:
        """Give the worker its ends and keep none of them."""
        socket.send_fds(self.messages, [b"w"], self.theirs)
        self._close_theirs()

    def hand_memory(self, handle: int) -> None:
        socket.send_fds(self.messages, [b"m"], [handle])

    def close(self) -> None:
        self._close_theirs()
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1
        super().close()

    def _close_theirs(self) -> None:
        for handle in self.theirs:
            os.close(handle)
        self.theirs = ()


# Ends that a forked process must not keep: as long as it holds them, nobody notices that the
# parent, or another worker, is gone.
_PARENT_ENDS: weakref.WeakSet[ParentChannel] = weakref.WeakSet()


def _drop_parent_ends() -> None:
    for wire in list(_PARENT_ENDS):
        wire.close()


os.register_at_fork(after_in_child=_drop_parent_ends)


def receive_handles(messages: socket.socket, count: int) -> list[int]:
    """File descriptors that the parent hands over."""
    data, handles, _, _ = socket.recv_fds(messages, 1, count)
    if not data:
        raise EOFError("the parent is gone")
    return list(handles)


def _widen(pipe: int, size: int) -> None:
    """Make room for so many bytes, where a pipe is smaller and the system lets us."""
    if size > CHUNK and hasattr(fcntl, "F_SETPIPE_SZ"):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, min(size, MAX_PIPE))
