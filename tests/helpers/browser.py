"""Inspect a page in headless Chromium, in a frame as wide as a phone or a desktop."""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from helpers.processes import HANG_SECONDS, run_process

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
if CHROMIUM is None and os.environ.get("REQUIRE_BROWSER"):
    # Set by continuous integration, so that tests of pages are never skipped unnoticed.
    raise RuntimeError("REQUIRE_BROWSER is set, but neither chromium nor google-chrome is installed")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--enable-logging=stderr",
    "--virtual-time-budget=10000",
    "--dump-dom",
)

BROWSER = pytest.mark.skipif(
    CHROMIUM is None, reason="needs a browser: neither chromium nor google-chrome is installed"
)

# The page posts what it contains to its frame, first as it is, then with curves against time.
PROBE = """<script>
const all = (selector) => [...document.querySelectorAll(selector)];
const waiting = setInterval(async () => {
  if (document.documentElement.dataset.charts !== "drawn") return;
  clearInterval(waiting);
  const marks = ".main-svg .trace, .main-svg .hm";
  const seen = {
    sections: all("h2").map((title) => title.textContent),
    charts: all(".chart").length,
    drawn: all(".chart").filter((chart) => chart.querySelector(marks)).length,
    failed: all(".chart.failed").map((chart) => chart.textContent),
    rows: all("tbody tr").length,
    wanted_width: document.documentElement.scrollWidth,
    given_width: document.documentElement.clientWidth,
  };
  // The first of the curves that can be switched from steps to time.
  const curve = all(".xtitle").findIndex((title) => title.textContent === "environment steps");
  if (curve >= 0) {
    seen.by_steps = all(".xtitle")[curve].textContent;
    document.querySelector("input[value=clock]").click();
    await new Promise((done) => setTimeout(done, 200));
    seen.by_time = all(".xtitle")[curve].textContent;
  }
  parent.postMessage(seen, "*");
}, 50);
</script>"""
# Chromium opens no window narrower than 500 pixels, so the page is put into a frame.
FRAME = """<!DOCTYPE html><body>
<script>addEventListener("message", (event) => {{
  document.body.dataset.seen = JSON.stringify(event.data);
}});</script>
<iframe src="{page}" width="{width}" height="740" style="border:0"></iframe>"""


# A replay is stepped by keys, dragged and played.
REPLAY_PROBE = """<script>
(async () => {
  const find = (selector) => document.querySelector(selector);
  const press = (key) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const position = () => Number(find(".position").value);
  const text = () => find(".stage").textContent;
  const seen = { ready: document.documentElement.dataset.replay, first: text(), first_position: position() };
  press("ArrowRight");
  press("ArrowRight");
  press("ArrowLeft");
  seen.after_arrows = position();
  press("End");
  seen.last_position = position();
  seen.last = text();
  seen.now = find(".now").textContent;
  press("Home");
  find(".position").value = 7 + position();
  find(".position").dispatchEvent(new Event("input"));
  seen.dragged = position();
  press(" ");
  seen.playing = find(".play").getAttribute("aria-label") === "Pause";
  await new Promise((done) => setTimeout(done, 2500));
  press(" ");
  seen.played_to = position();
  seen.paused = find(".play").getAttribute("aria-label") === "Play";
  seen.wanted_width = document.documentElement.scrollWidth;
  seen.given_width = document.documentElement.clientWidth;
  parent.postMessage(seen, "*");
})();
</script>"""


@contextmanager
def open_chromium():
    """A browser that is driven by Playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class WatchedPage:
    """A page that records what goes wrong: errors in the console, failed requests, requests to other hosts.

    Args:
        browser: Browser of Playwright.
        width: Width of the window in pixels.
        scheme: Colour scheme, light or dark.
    """

    def __init__(self, browser, width, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(1000 * HANG_SECONDS)
        self.page, self.problems, self.hosts = context.new_page(), [], set()
        self.page.on("console", lambda line: self.problems.append(line.text) if line.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("requestfailed", self._record_failure)
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def _record_failure(self, request):
        # The browser itself aborts what a page still loads when the next one is opened.
        if request.failure != "net::ERR_ABORTED":
            self.problems.append(f"{request.url}: {request.failure}")

    def open(self, address):
        """Open an address and wait until everything that the page shows has been loaded."""
        self.page.goto(address, wait_until="load")
        self.page.evaluate("() => Promise.all([...document.images].map((image) => image.decode()))")
        return self.page

    @property
    def overflow(self):
        """Pixels by which the page is wider than the window."""
        return self.page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")


def inspect_page(page: Path, width: int, profile: Path, probe: str = PROBE) -> dict:
    """What a probe found in a page at this width in pixels; fails on any console error."""
    probed = page.with_name("probed.html")
    probed.write_text(page.read_text("utf-8") + probe, "utf-8")
    frame = page.with_name("frame.html")
    frame.write_text(FRAME.format(page=probed.name, width=width))
    done = run_process([str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", frame.as_uri()])
    errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not errors, errors
    found = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert found, "the page did not finish drawing"
    return json.loads(unescape(found[1]))
