"""kill -9 of a serving desk: nothing acknowledged is lost or doubled, and routes come back equal."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from datetime import date, timedelta
from functools import partial

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from helpers.desk import FIRST_DAY, book_as_requested, make_desk, trips
from helpers.postgres import postgres_url
from helpers.processes import start_process
from hundredfold.core.errors import HundredfoldError
from hundredfold.desk import storage

pytestmark = pytest.mark.process


DAY = f"/v1/days/{date.today() + timedelta(days=2)}"


# Imports what a desk needs once, then forks one for every list of arguments: most of a start is imports.
FORK_DESKS = """
import json, os, sys
import alembic.command, sqlalchemy, uvicorn
from hundredfold.cli import desk, main
from hundredfold.desk import server, storage
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        print(os.getpid(), flush=True)
        sys.exit(main.main(json.loads(line)))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Server:
    """A desk in a process of its own."""

    def __init__(self, url):
        self.argv = ["serve", "--port", "0", "--database-url", url, "--quiet"]
        self.argv += ["--customers", "30", "--num-vehicles", "25", "--service", "research"]
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
        self.parent = start_process([sys.executable, "-c", FORK_DESKS], **options)
        self.start()

    def start(self):
        print(json.dumps(self.argv), file=self.parent.stdin, flush=True)
        self.pid = int(self.parent.stdout.readline())
        address = self.parent.stdout.readline().split()[-1]
        self.client = httpx.Client(base_url=address, timeout=600)

    def end(self, signal_number):
        """End the desk; returns its exit code."""
        os.kill(self.pid, signal_number)
        code = int(self.parent.stdout.readline())
        self.client.close()
        return code

    def kill(self):
        assert self.end(signal.SIGKILL) == -signal.SIGKILL

    def close(self):
        """End all processes that are left."""
        os.killpg(self.parent.pid, signal.SIGKILL)
        self.parent.wait()


def call(server, number, places):
    """A caller's request; sent again with the same reference it is the same request."""
    trip = {
        "rider": f"caller {number}",
        "pickup": places[1 + number % 19],
        "dropoff": places[20 + number % 17],
        "pickup_time": f"{8 + number % 11}:{number % 6}0",
        "reference": f"call-{number}",
    }
    quote = server.client.post(f"{DAY}/requests", json=trip).json()
    choice = {"quote_id": quote["quote_id"], "choice": "as_requested"}
    if quote["recommended"] is not None:
        choice |= {"choice": "offer", "offer": quote["recommended"]}
    answer = server.client.post(f"/v1/requests/{quote['request_id']}/response", json=choice)
    assert answer.status_code == 200, answer.text
    return quote["request_id"]


def book_with_kills(url, callers, kills):
    server = Server(url)
    with closing(server):
        book_and_kill(server, callers, kills)
        assert server.end(signal.SIGTERM) == 0


def book_and_kill(server, callers, kills):
    """Callers book one after another; at some of them the server is killed while it books or cancels."""
    rng = random.Random(0)
    places = [place["name"] for place in server.client.get("/v1/places").json()]
    killed_at = sorted(rng.sample(range(1, callers), kills))
    booked, cancelled = [], set()
    for number in range(callers):
        if number in killed_at:
            victim = rng.choice(booked) if killed_at.index(number) % 4 == 3 else None
            before = server.client.get(DAY).json()
            action = partial(cancel, server, victim) if victim else partial(call, server, number, places)
            acknowledged = kill_during(server, rng, action)
            after = server.client.get(DAY).json()
            statuses = {view["request_id"]: view["status"] for view in after["bookings"]}
            expected = {request: "cancelled" if request in cancelled else "booked" for request in booked}
            assert {request: statuses[request] for request in booked if request != victim} == {
                request: status for request, status in expected.items() if request != victim
            }
            assert len(statuses) <= len(booked) + 1
            assert all(statuses[request] == ("cancelled" if victim else "booked") for request in acknowledged)
            if after["version"] == before["version"]:
                assert after["routes"] == before["routes"]
            else:
                # The change was stored: a further restart gives the same routes again.
                server.kill()
                server.start()
                assert server.client.get(DAY).json() == after
            if victim:
                cancelled.add(cancel(server, victim))
        booked.append(call(server, number, places))
    views = server.client.get(DAY).json()["bookings"]
    assert {view["request_id"]: view["status"] for view in views} == {
        request: "cancelled" if request in cancelled else "booked" for request in booked
    }
    assert len({view["rider"] for view in views}) == len(views) == callers


def cancel(server, request_id):
    answer = server.client.delete(f"/v1/requests/{request_id}")
    assert answer.json()["status"] == "cancelled", answer.text
    return request_id


def kill_during(server, rng, action):
    """Kill the server during an action and start it again; returns what was acknowledged, at most one request."""
    acknowledged = []

    def act():
        try:
            acknowledged.append(action())
        except httpx.TransportError:
            return

    caller = threading.Thread(target=act)
    caller.start()
    time.sleep(rng.uniform(0.0, 0.04))
    server.kill()
    caller.join()
    server.start()
    return acknowledged


CASES = [pytest.param(8, 4, id="quick"), pytest.param(100, 50, id="whole-day", marks=pytest.mark.slow)]


@pytest.mark.parametrize(("callers", "kills"), CASES)
def test_kill_9_loses_and_doubles_no_booking_in_sqlite(tmp_path, callers, kills):
    book_with_kills(f"sqlite:///{tmp_path / 'desk.db'}", callers, kills)


@pytest.mark.parametrize(("callers", "kills"), CASES)
def test_kill_9_loses_and_doubles_no_booking_in_postgresql(callers, kills):
    with postgres_url() as url:
        book_with_kills(url, callers, kills)


def test_postgresql_rebuilds_the_same_routes_and_allows_one_desk(monkeypatch):
    with postgres_url() as url:
        desk = make_desk(url)
        booked = [book_as_requested(desk, FIRST_DAY, trip) for trip in trips(desk, 8)]
        desk.cancel(booked[3].request_id)
        desk.undo(FIRST_DAY)
        before = desk.day(FIRST_DAY)
        monkeypatch.setattr(storage, "LOCK_SECONDS", 0.0)
        with pytest.raises(HundredfoldError, match="another desk"):
            make_desk(url)
        desk.journal.close()
        again = make_desk(url)
        assert again.day(FIRST_DAY) == before
        with again.journal.engine.begin() as connection:
            # Ends the connection that holds the lock, as a restart of the database does.
            connection.execute(text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"))
        for _ in range(2):
            with pytest.raises((DBAPIError, storage.JournalError)):
                book_as_requested(again, FIRST_DAY, trips(again, 9)[8])
        assert not again.journal.is_reachable()
        assert again.day(FIRST_DAY) == before
        again.journal.close()


def test_a_second_desk_on_the_same_database_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "LOCK_SECONDS", 0.0)
    first = storage.Journal(f"sqlite:///{tmp_path / 'desk.db'}")
    with pytest.raises(HundredfoldError, match="another desk"):
        storage.Journal(f"sqlite:///{tmp_path / 'desk.db'}")
    first.close()
    storage.Journal(f"sqlite:///{tmp_path / 'desk.db'}").close()
