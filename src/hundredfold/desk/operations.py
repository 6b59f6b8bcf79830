"""Operation of the desk's server: metrics for Prometheus and structured logs without personal data."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from typing import IO, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from hundredfold.desk.security import App, Message, Receive, Scope, Send

__all__ = ["DeskMetrics", "Observer"]

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


class Observer:
    """ASGI middleware that counts and logs requests.

    A log line names the route, such as /v1/riders/{rider}, never the path: riders are in paths.

    Args:
        app: The guarded API.
        metrics: Where requests are counted.
        log: Where a JSON line per request goes; None logs nothing.
    """

    def __init__(self, app: App, metrics: DeskMetrics, log: IO[str] | None = sys.stderr) -> None:
        self.app, self.metrics, self.log = app, metrics, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Measure one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        finally:
            seconds = time.perf_counter() - start
            route = getattr(scope.get("route"), "path", None) or "(none)"
            method = scope["method"] if scope["method"] in METHODS else "(other)"
            self.metrics.requests.labels(method, route, str(status)).inc()
            self.metrics.seconds.labels(method, route).observe(seconds)
            self._write("request", method=method, route=route, status=status, ms=round(1000.0 * seconds, 2))

    def _write(self, event: str, **fields: Any) -> None:
        if self.log is not None:
            at = datetime.now(UTC).isoformat(timespec="milliseconds")
            print(json.dumps({"at": at, "event": event, **fields}), file=self.log, flush=True)


METHODS = ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH")
