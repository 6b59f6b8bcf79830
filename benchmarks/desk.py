"""Booking desk: latency of a quote on a full day, and many clerks at once."""

from __future__ import annotations

import asyncio
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


class Server:
    """`hundredfold serve` in a process of its own, with a database on disk.

    Args:
        folder: Where the database is.
        run: Run folder whose policy decides; None for the default policy.
    """

    def __init__(self, folder: Path, run: str | None) -> None:
        policy = ["--customers", str(MAX_BOOKINGS)] if run is None else [run]
        argv = [sys.executable, "-m", "hundredfold", "serve", *policy, "--port", "0", "--quiet"]
        argv += ["--database-url", f"sqlite:///{folder / 'desk.db'}", "--requests-per-second", "1e6", "--burst", "1e6"]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
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
    return [{**row, "policy": run or "default"} for row in rows]


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
        # As many offers as there are, so that all of them are priced exactly.
        times, process = [], psutil.Process(server.process.pid)
        before = sum(process.cpu_times()[:2])
        for number in range(quotes):
            trip = _trip(rng, places, f"measured {number}")
            start = time.perf_counter()
            client.post(f"/v1/days/{day}/requests", params={"offers": 16}, json=trip).raise_for_status()
            times.append(1000.0 * (time.perf_counter() - start))
        cpu = 1000.0 * (sum(process.cpu_times()[:2]) - before) / quotes
    row = {"measurement": f"quote, {bookings} bookings", "clients": 1, "calls": quotes, "errors": 0}
    return {**row, **_summary(times), "cpu_ms": cpu}


async def _closed_loop(url: str, clerks: int, seconds: float) -> Row:
    """Clerks who quote, book and cancel without a pause."""
    times: list[float] = []
    calls, errors = 0, 0
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=clerks)) as client:
        places = [place["name"] for place in (await client.get("/v1/places")).json()]
        end = time.perf_counter() + seconds

        async def work(clerk: int) -> None:
            nonlocal calls, errors
            rng = np.random.default_rng(clerk)
            day = date.today() + timedelta(days=3 + clerk % CLERK_DAYS)
            booked: list[str] = []
            number = 0
            while time.perf_counter() < end:
                number += 1
                start = time.perf_counter()
                answer = await client.post(
                    f"/v1/days/{day}/requests", json=_trip(rng, places, f"rider {clerk} {number}")
                )
                times.append(1000.0 * (time.perf_counter() - start))
                answers = [answer]
                quote = answer.json()
                if answer.status_code == 201 and quote["servable"]:
                    path = f"/v1/requests/{quote['request_id']}"
                    answers.append(await client.post(f"{path}/response", json=_choice(quote)))
                    if answers[-1].status_code == 200:
                        booked.append(path)
                if len(booked) * clerks > CLERK_DAYS * MAX_BOOKINGS:
                    answers.append(await client.delete(booked.pop(0)))
                calls += len(answers)
                # 409 is an answer: another clerk took the vehicle, and here is a new quote.
                errors += sum(answer.status_code not in (200, 201, 409) for answer in answers)

        start = time.perf_counter()
        await asyncio.gather(*(work(clerk) for clerk in range(clerks)))
        duration = time.perf_counter() - start
    row = {"measurement": f"closed loop, {duration:.0f} s", "clients": clerks, "calls": calls, "errors": errors}
    return {**row, **_summary(times), "calls_per_second": calls / duration}


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
