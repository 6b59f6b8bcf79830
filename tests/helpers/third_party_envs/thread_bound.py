"""Envs that wait and are bound to the thread they were created in, or to the main thread of a process."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import threading
import time

from helpers.third_party_envs.dice import DiceEnv


class ThreadBoundEnv(DiceEnv):
    """Waits 2 ms in every step, reports its thread, and fails in any other thread than its first."""

    def __init__(self):
        super().__init__()
        self.owner = threading.get_ident()

    def check_thread(self):
        if threading.get_ident() != self.owner:
            raise RuntimeError(f"created in thread {self.owner}, called in thread {threading.get_ident()}")

    def reset(self, *, seed=None, options=None):
        self.check_thread()
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.check_thread()
        time.sleep(0.002)
        return super().step(action)

    def info(self):
        return {"thread": threading.current_thread().name}

    def close(self):
        self.check_thread()


class HoldsDatabase(ThreadBoundEnv):
    """Writes every step to a database connection, which belongs to the thread that opened it."""

    def __init__(self):
        super().__init__()
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE TABLE steps (action INTEGER)")

    def step(self, action):
        self.database.execute("INSERT INTO steps VALUES (?)", (int(action),))
        return super().step(action)

    def close(self):
        super().close()
        self.database.close()


class HoldsEventLoop(ThreadBoundEnv):
    """Waits in an event loop of its own."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)

    def step(self, action):
        asyncio.get_event_loop().run_until_complete(asyncio.sleep(0.001))
        return super().step(action)

    def close(self):
        super().close()
        self.loop.close()


class SetsSignalHandler(ThreadBoundEnv):
    """Sets a signal handler in every step, which Python allows in the main thread only."""

    def step(self, action):
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        return super().step(action)


class FailsAndHoldsDatabase(HoldsDatabase):
    """Raises in the fourth step of every episode."""

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.steps += 1
        if self.steps == 4:
            raise ValueError("failed in step 4")
        return super().step(action)


class RecordsClosingThread(ThreadBoundEnv):
    """Creates a file when it is closed in its own thread."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def close(self):
        super().close()
        (self.folder / threading.current_thread().name).touch()
