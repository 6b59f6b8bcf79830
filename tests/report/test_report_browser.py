"""The page in a real browser: charts appear, a phone needs no sideways scrolling."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import plotly.graph_objects as go
import pytest

from hundredfold.report.page import write_report
from hundredfold.report.sections import WORLD_FIGURES, Section
from report.run_folders import make_run, metrics

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

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs a browser: the program `chromium` is not installed"
)

# Chromium opens no window narrower than 500 pixels, so the phone is a frame; the page in it tells
# the frame's owner what it sees, first as it is and then with its curves against time.
PROBE = """<script>
const all = (selector) => [...document.querySelectorAll(selector)];
const waiting = setInterval(async () => {
  if (document.documentElement.dataset.charts !== "drawn") return;
  clearInterval(waiting);
  const seen = {
    charts: all(".chart").length,
    drawn: all(".chart").filter((chart) => chart.querySelector("svg.main-svg")).length,
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
PHONE = """<!DOCTYPE html><body>
<script>addEventListener("message", (event) => {
  document.body.dataset.seen = JSON.stringify(event.data);
});</script>
<iframe src="report.html" width="360" height="740" style="border:0"></iframe>"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> dict:
    """What the page of a run with everything on it looks like on a phone."""

    def figures(folder):
        return [Section("Own", "A world's chart.", [go.Figure(go.Heatmap(z=[[0, 1], [1, 0]]))])]

    path = tmp_path_factory.mktemp("browser")
    rows = metrics(80)
    for row in rows:
        row["avg_a_measure_with_a_name_that_is_rather_long_for_a_phone_pct"] = row["epoch"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "stand_in_figures", SimpleNamespace(draw=figures))
        patch.setitem(WORLD_FIGURES, "stand-in", "stand_in_figures:draw")
        page = write_report(make_run(path / "run", rows, epochs=80, world="stand-in", best=80))
    with page.open("a") as file:
        file.write(PROBE)
    page.with_name("phone.html").write_text(PHONE)
    document = browse(page.with_name("phone.html"), path / "profile")
    found = re.search(r'data-seen="([^"]*)"', document)
    assert found, "the page did not finish drawing"
    return json.loads(unescape(found[1]))


def browse(page: Path, profile: Path) -> str:
    """The document after its scripts have run; fails on any error they report."""
    done = subprocess.run(
        [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not complaints, complaints
    return done.stdout


def test_every_chart_is_drawn(seen):
    # Learning, the world's own, two averages, six of the learner, shares and throughput.
    assert seen["charts"] == seen["drawn"] == 1 + 1 + 2 + 6 + 2
    assert seen["failed"] == []


def test_a_phone_needs_no_sideways_scrolling(seen):
    assert seen["wanted_width"] <= seen["given_width"] <= 360


def test_curves_switch_from_steps_to_time(seen):
    assert seen["by_steps"] == "environment steps"
    assert seen["by_time"] == "wall-clock time (s)"
