"""Operation of the desk's server: metrics for Prometheus and structured logs without personal data."""

from __future__ import annotations

import json
import logging
import time
import traceback
from datetime import UTC, datetime
from pathlib import PurePath
from typing import IO, Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from hundredfold.desk.security import App, Message, Receive, Scope, Send, refuse

__all__ = ["DeskMetrics", "JsonLog", "Observer"]

# Innermost calls that a line about an error names.
MAX_FRAMES: Final = 12
LATENCY_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class DeskMetrics:
    """Counters and latencies of one desk."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route")
        self.requests = Counter(
            "desk_http_requests", "HTTP requests by route and status.", (*labels, "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "desk_http_seconds", "Seconds per HTTP request.", labels, registry=self.registry, buckets=LATENCY_SECONDS
        )
        self.quotes = Counter(
            "desk_quotes", "Quotes, by whether the trip can be served.", ("servable",), registry=self.registry
        )
        self.responses = Counter("desk_responses", "Responses of riders.", ("choice",), registry=self.registry)
        self.cancellations = Counter("desk_cancellations", "Cancelled requests.", registry=self.registry)

    def text(self) -> bytes:
        """All metrics in the format of Prometheus."""
        return generate_latest(self.registry)


class JsonLog(logging.Handler):
    """Log lines as JSON objects, without personal data.

    Args:
        file: Where the lines go; None writes nothing.
    """

    def __init__(self, file: IO[str] | None) -> None:
        super().__init__()
        self.file = file

    def write(self, event: str, **fields: Any) -> None:
        """Write one line."""
        if self.file is not None:
            at = datetime.now(UTC).isoformat(timespec="milliseconds")
            print(json.dumps({"at": at, "event": event, **fields}), file=self.file, flush=True)

    def write_error(self, error: BaseException, **fields: Any) -> None:
        """Write the kind of an error and where it was raised; its message may name riders."""
        frames = traceback.extract_tb(error.__traceback__)
        where = [f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
        self.write("error", **fields, error=type(error).__name__, where=where[-MAX_FRAMES:])

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line of another library, the server's for example."""
        if record.exc_info is not None and record.exc_info[1] is not None:
            self.write_error(record.exc_info[1], logger=record.name)
        else:
            self.write("log", logger=record.name, level=record.levelname.lower(), text=record.getMessage())


class Observer:
    """ASGI middleware that counts and logs requests, and answers those that fail by a mistake of the desk.

    A log line names the route, such as /v1/riders/{rider}, never the path: riders are in paths.

    Args:
        app: The guarded API.
        metrics: Where requests are counted.
        log: Where lines go.
    """

    def __init__(self, app: App, metrics: DeskMetrics, log: JsonLog) -> None:
        self.app, self.metrics, self.log = app, metrics, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Measure one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        except Exception as error:
            self.log.write_error(error, **_name(scope))
            if status:
                raise  # the answer has begun and cannot be replaced
            await refuse(send_and_note, 500, "error", "The desk made a mistake; its log has the details.")
        finally:
            seconds = time.perf_counter() - start
            name = _name(scope)
            self.metrics.requests.labels(*name.values(), str(status)).inc()
            self.metrics.seconds.labels(*name.values()).observe(seconds)
            self.log.write("request", **name, status=status, ms=round(1000.0 * seconds, 2))


def _name(scope: Scope) -> dict[str, str]:
    """Method and route of a request."""
    method = scope["method"] if scope["method"] in METHODS else "(other)"
    return {"method": method, "route": getattr(scope.get("route"), "path_format", None) or "(none)"}


METHODS = ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH")
