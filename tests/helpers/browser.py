"""Inspect a page in headless Chromium, in a frame as wide as a phone or a desktop."""

from __future__ import annotations

import json
import re
import shutil
from html import unescape
from pathlib import Path

import pytest

from helpers.processes import run_process

CHROMIUM = shutil.which("chromium")
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

BROWSER = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: the program `chromium` is not installed")

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
    wanted_width: document.documentElement.scrollWidth,
    given_width: document.documentElement.clientWidth,
    by_steps: document.querySelector(".xtitle").textContent,
  };
  document.querySelector("input[value=clock]").click();
  await new Promise((done) => setTimeout(done, 200));
  seen.by_time = document.querySelector(".xtitle").textContent;
  parent.postMessage(seen, "*");
}, 50);
</script>"""
# Chromium opens no window narrower than 500 pixels, so the page is put into a frame.
FRAME = """<!DOCTYPE html><body>
<script>addEventListener("message", (event) => {{
  document.body.dataset.seen = JSON.stringify(event.data);
}});</script>
<iframe src="{page}" width="{width}" height="740" style="border:0"></iframe>"""


def inspect_page(page: Path, width: int, profile: Path) -> dict:
    """Contents of a page at this width in pixels; fails on any console error."""
    probed = page.with_name("probed.html")
    probed.write_text(page.read_text("utf-8") + PROBE, "utf-8")
    frame = page.with_name("frame.html")
    frame.write_text(FRAME.format(page=probed.name, width=width))
    done = run_process([str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", frame.as_uri()])
    errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not errors, errors
    found = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert found, "the page did not finish drawing"
    return json.loads(unescape(found[1]))
