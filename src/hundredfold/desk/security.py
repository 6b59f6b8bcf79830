"""Guard in front of the desk's API: token, origin, body size, rate limit and headers.

Without a token the desk answers only requests that were addressed to this machine by name, so that a
page of another site cannot reach it through the clerk's browser.
"""

from __future__ import annotations

import hmac
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from hundredfold.core.bounds import AtLeastOne, Positive, check_bounds

__all__ = ["Guard", "GuardSettings", "refuse"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Paths that carry data; the page asks for the token, and the description of the API has no data.
PROTECTED: Final = ("/v1/", "/metrics")
LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
MAX_CLIENTS: Final = 10_000
# Python refuses to read numbers of thousands of digits.
MAX_LENGTH_DIGITS: Final = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """Limits of the API."""

    max_body_bytes: AtLeastOne = 64 * 1024
    """Size of a request's body, at most."""
    requests_per_second: Positive = 200.0
    """Requests of one client address, on average."""
    burst: AtLeastOne = 400
    """Requests of one client address at once."""

    def __post_init__(self) -> None:
        check_bounds(self)


class Guard:
    """ASGI middleware that refuses what must not reach the desk.

    Args:
        app: The API.
        token: Secret that clients send as `Authorization: Bearer ...`; None for loopback only.
        settings: Limits.
        tile_host: Origin of map tiles that the page may load, such as https://tiles.example.org.
        clock: Seconds, for the rate limit.
    """

    def __init__(
        self,
        app: App,
        token: str | None,
        settings: GuardSettings,
        tile_host: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.app, self.settings, self.clock = app, settings, clock
        self.token = None if token is None else token.encode()
        # Tokens of each client's bucket, and when they were counted; the longest unused client first.
        self.buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        images = "img-src 'self' data:" + (f" {tile_host}" if tile_host else "")
        policy = (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; font-src 'self'; "
            f"{images}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self.headers = [
            (b"content-security-policy", policy.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with a 4xx."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        is_data = scope["path"].startswith(PROTECTED)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self.headers]
                if is_data:
                    message["headers"].append((b"cache-control", b"no-store"))
            await send(message)

        refusal = self._refusal(scope, is_data)
        body, more = b"", refusal is None
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self.settings.max_body_bytes:
                refusal, more = (413, "too_large", f"The body exceeds {self.settings.max_body_bytes} bytes."), False
        if refusal is not None:
            await refuse(send_with_headers, *refusal)
            return
        received = False

        async def receive_body() -> Message:
            nonlocal received
            if received:
                return await receive()
            received = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, receive_body, send_with_headers)

    def _refusal(self, scope: Scope, is_data: bool) -> tuple[int, str, str] | None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        if not self._is_within_rate((scope.get("client") or ("",))[0]):
            return 429, "too_many_requests", "Too many requests; try again in a second."
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > MAX_LENGTH_DIGITS or int(length) > self.settings.max_body_bytes:
            return 413, "too_large", f"The body exceeds {self.settings.max_body_bytes} bytes."
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin")
        if origin is not None and _origin_host(origin.decode("latin-1")) != host:
            return 403, "other_origin", "The desk answers no requests of other sites."
        if self.token is None:
            if _host_name(host) not in LOCAL_NAMES:
                return 403, "other_host", "Without a token the desk is reached as localhost or 127.0.0.1 only."
        elif is_data and not hmac.compare_digest(headers.get(b"authorization", b""), b"Bearer " + self.token):
            return 401, "unauthorized", "Send the desk's token as Authorization: Bearer TOKEN."
        return None

    def _is_within_rate(self, client: str) -> bool:
        """Token bucket per client address."""
        now, burst = self.clock(), float(self.settings.burst)
        tokens, before = self.buckets.pop(client, (burst, now))
        tokens = min(burst, tokens + (now - before) * self.settings.requests_per_second)
        allowed = tokens >= 1.0
        self.buckets[client] = (tokens - 1.0 if allowed else tokens, now)
        if len(self.buckets) > MAX_CLIENTS:
            self.buckets.popitem(last=False)
        return allowed


def _origin_host(origin: str) -> str | None:
    """Host and port of an origin; None if it has none or is malformed."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


async def refuse(send: Send, status: int, code: str, reason: str) -> None:
    """Send an error in the form of all errors of the desk."""
    body = json.dumps({"code": code, "reason": reason, "quote": None}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
