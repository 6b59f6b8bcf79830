"""Booking desk on one core: latency of a quote on a full day, and many clerks at once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import psutil

from hundredfold.core.errors import HundredfoldError

Row = dict[str, Any]

# Bookings of a day in the closed loop: then clerks cancel as often as they book.
MAX_BOOKINGS: Final = 100
CLERK_DAYS: Final = 10
# Offers that are priced for a request: all of the default table, no change included.
TABLE_OFFERS: Final = 16
# Between how many trips of a clerk each of the other calls comes.
LOOK_EVERY, UNDO_EVERY, TRY_EVERY = 3, 9, 15


class Server:
    """`hundredfold serve` in a process of its own on one core, with a database on disk.

    Args:
        folder: Where the database is.
        run: Run folder or name of the policy that decides; None for the default policy.
    """

    def __init__(self, folder: Path, run: str | None) -> None:
        policy = ["--customers", str(MAX_BOOKINGS)]
        if run is not None:
            policy = [run] if Path(run).exists() else [*policy, "--policy", run]
        argv = [sys.executable, "-m", "hundredfold", "serve", *policy, "--port", "0", "--quiet"]
        argv += ["--database-url", f"sqlite:///{folder / 'desk.db'}", "--requests-per-second", "1e6", "--burst", "1e6"]
        # Clients use the other cores, if there are any.
        self.core = max(os.sched_getaffinity(0))
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.sched_setaffinity(0, {self.core})
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise HundredfoldError("the desk did not start; its message is above.")
        self.url = line.split()[-1]

    def stop(self) -> None:
        """Stop the server and wait for it."""
        self.process.terminate()
        self.process.wait()


def bench_desk(
    *, bookings: int, quotes: int, clerks: int, seconds: float, run: str | None, on_progress: Callable[[str], None]
) -> list[Row]:
    """Rows of both measurements.

    Args:
        bookings: Bookings on the day when quotes are measured.
        quotes: Quotes that are measured.
        clerks: Clients that call at once, each waiting for its answer.
        seconds: Duration of the closed loop; 0 omits it.
        run: Run folder whose policy decides; None for the default policy.
        on_progress: Called with a line of progress.
    """
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), run)
        try:
            rows = [_quote_latency(server, bookings, quotes, on_progress)]
            if seconds > 0:
                on_progress(f"{clerks} clerks for {seconds:.0f} s")
                rows.append(asyncio.run(_closed_loop(server.url, clerks, seconds)))
        finally:
            server.stop()
    shared = {"policy": run or "default", "server_cores": 1, "load_average": round(os.getloadavg()[0], 1)}
    return [{**row, **shared} for row in rows]


def _quote_latency(server: Server, bookings: int, quotes: int, on_progress: Callable[[str], None]) -> Row:
    """Milliseconds from request to answer, one client, on a day with many bookings."""
    rng = np.random.default_rng(0)
    day = date.today() + timedelta(days=2)
    with httpx.Client(base_url=server.url, timeout=600) as client:
        places = [place["name"] for place in client.get("/v1/places").json()]
        booked = 0
        on_progress(f"booking {bookings} trips")
        while booked < bookings:
            quote = client.post(f"/v1/days/{day}/requests", json=_trip(rng, places, f"booked {booked}")).json()
            if quote["servable"]:
                client.post(f"/v1/requests/{quote['request_id']}/response", json=_choice(quote)).raise_for_status()
                booked += 1
        on_progress(f"measuring {quotes} quotes")
        # As many offers as there are: all are priced by their cheapest insertion, and those worth making exactly.
        times, made, process = [], 0, psutil.Process(server.process.pid)
        before = sum(process.cpu_times()[:2])
        for number in range(quotes):
            trip = _trip(rng, places, f"measured {number}")
            start = time.perf_counter()
            answer = client.post(f"/v1/days/{day}/requests", params={"offers": TABLE_OFFERS}, json=trip)
            times.append(1000.0 * (time.perf_counter() - start))
            answer.raise_for_status()
            made += len(answer.json()["offers"])
        cpu = 1000.0 * (sum(process.cpu_times()[:2]) - before) / quotes
    row = {"measurement": f"quote, {bookings} bookings", "clients": 1, "calls": quotes, "errors": 0}
    return {**row, **_summary(times), "cpu_ms": cpu, "offers_priced": TABLE_OFFERS, "offers_returned": made / quotes}


class Clerks:
    """What the clerks of the closed loop have seen."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self.errors: list[str] = []
        self.conflicts = 0

    async def call(self, client: httpx.AsyncClient, kind: str, method: str, path: str, body: Any = None) -> Any:
        """Send a request and note its duration; returns the answer, None for a conflict or an error."""
        start = time.perf_counter()
        answer = await client.request(method, path, json=body)
        self.times.setdefault(kind, []).append(1000.0 * (time.perf_counter() - start))
        # 409 is an answer: another clerk was faster, and here is a new quote.
        self.conflicts += answer.status_code == 409
        if answer.status_code not in (200, 201, 409):
            self.errors.append(f"{kind}: {answer.status_code} {answer.text[:200]}")
        return answer.json() if answer.status_code in (200, 201) else None


async def _closed_loop(url: str, clerks: int, seconds: float) -> Row:
    """Clerks who quote, book and cancel without a pause, and sometimes look, undo and try."""
    seen = Clerks()
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=clerks)) as client:
        places = [place["name"] for place in (await client.get("/v1/places")).json()]
        end = time.perf_counter() + seconds

        async def work(clerk: int) -> None:
            rng = np.random.default_rng(clerk)
            day = f"/v1/days/{date.today() + timedelta(days=3 + clerk % CLERK_DAYS)}"
            booked: list[str] = []
            number = 0
            while time.perf_counter() < end:
                number += 1
                trip = _trip(rng, places, f"rider {clerk} {number}")
                quote = await seen.call(client, "quote", "POST", f"{day}/requests", trip)
                if quote is not None and quote["servable"]:
                    path = f"/v1/requests/{quote['request_id']}"
                    if await seen.call(client, "respond", "POST", f"{path}/response", _choice(quote)) is not None:
                        booked.append(path)
                if len(booked) * clerks > CLERK_DAYS * MAX_BOOKINGS:
                    await seen.call(client, "cancel", "DELETE", booked.pop(0))
                if number % TRY_EVERY == 0:
                    await seen.call(
                        client, "what_if", "POST", f"{day}/what-if", {"trip": trip | {"rider": f"try {clerk}"}}
                    )
                if number % LOOK_EVERY == 0:
                    view = await seen.call(client, "day", "GET", day)
                    if number % UNDO_EVERY == 0 and view is not None:
                        await seen.call(client, "undo", "POST", f"{day}/undo", {"version": view["version"]})

        start = time.perf_counter()
        await asyncio.gather(*(work(clerk) for clerk in range(clerks)))
        duration = time.perf_counter() - start
    calls = sum(len(times) for times in seen.times.values())
    row = {"measurement": f"closed loop, {duration:.0f} s", "clients": clerks, "calls": calls}
    row |= {"errors": len(seen.errors), "first_error": next(iter(seen.errors), None), "conflicts": seen.conflicts}
    medians = {f"{kind}_p50_ms": float(np.median(times)) for kind, times in seen.times.items() if kind != "quote"}
    return {**row, **_summary(seen.times["quote"]), **medians, "calls_per_second": calls / duration}


def _trip(rng: np.random.Generator, places: list[str], rider: str) -> Row:
    pickup, dropoff = rng.choice(len(places) - 1, 2, replace=False) + 1
    minutes = 420 + 5 * int(rng.integers(0, 144))
    return {
        "rider": rider,
        "pickup": places[pickup],
        "dropoff": places[dropoff],
        "pickup_time": f"{minutes // 60}:{minutes % 60:02d}",
        "purpose": str(rng.choice(["medical", "shopping", "errand", "social"])),
    }


def _choice(quote: Row) -> Row:
    """Accept the recommended offer, or else book as requested."""
    if quote["recommended"] is not None:
        return {"quote_id": quote["quote_id"], "choice": "offer", "offer": quote["recommended"]}
    return {"quote_id": quote["quote_id"], "choice": "as_requested"}


def _summary(times: list[float]) -> Row:
    p50, p99 = np.percentile(times, [50, 99])
    return {"p50_ms": float(p50), "p99_ms": float(p99), "max_ms": max(times)}
