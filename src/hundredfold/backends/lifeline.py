"""How a worker lives and dies: signals that are not meant for it, and the end of its parent.

The parent holds the other end of a pipe, the lifeline, into which nobody ever writes. When the
parent ends, however it ends, the kernel breaks the pipe and kills the worker with everything the
worker started, even if an env hangs in compiled code at that moment.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import threading


def settle_in() -> None:
    """Take leave of the parent's terminal and of its signal handlers."""
    # A process group of its own: Ctrl-C goes to the parent alone, and whatever an env starts can be
    # ended together with its worker.
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    # What a forked process inherits is not its own garbage: looking through it would copy it.
    gc.freeze()


def tie_to_parent(lifeline: int) -> None:
    """From now on this process ends when the parent does."""
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
        # It may have broken before we were listening.
        poll = select.poll()
        poll.register(lifeline, select.POLLIN)
        if poll.poll(0):
            end_group()
    else:
        threading.Thread(target=_wait_for_end, args=(lifeline,), daemon=True).start()


def end_group() -> None:
    """End this worker and everything it started."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _wait_for_end(lifeline: int) -> None:
    os.read(lifeline, 1)
    end_group()
