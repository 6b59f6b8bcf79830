"""The report in a real browser: charts are drawn, and it fits a phone."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import plotly.graph_objects as go
import pytest

from helpers.browser import BROWSER, inspect_page
from helpers.run_folders import make_run, metrics
from hundredfold.report.page import write_report
from hundredfold.report.run_sections import ENV_FIGURES, Section

pytestmark = [BROWSER, pytest.mark.browser]


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> dict:
    """What a browser found in the report of a run with all sections, on a phone."""

    def figures(folder):
        return [Section("Own", "An env's chart.", [go.Figure(go.Heatmap(z=[[0, 1], [1, 0]]))])]

    path = tmp_path_factory.mktemp("browser")
    rows = metrics(80)
    for row in rows:
        row["avg_a_measure_with_a_name_that_is_rather_long_for_a_phone_pct"] = row["epoch"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "stand_in_figures", SimpleNamespace(draw=figures))
        patch.setitem(ENV_FIGURES, "stand-in", "stand_in_figures:draw")
        page = write_report(make_run(path / "run", rows, epochs=80, env="stand-in", best=80))
    return inspect_page(page, 360, path / "profile")


def test_every_chart_is_drawn(seen):
    # Learning, the env's own, two averages, six learner diagnostics, shares and throughput.
    assert seen["charts"] == seen["drawn"] == 1 + 1 + 2 + 6 + 2
    assert seen["failed"] == []


def test_a_phone_does_not_scroll_sideways(seen):
    assert seen["wanted_width"] <= seen["given_width"] <= 360


def test_curves_switch_from_steps_to_time(seen):
    assert seen["by_steps"] == "environment steps"
    assert seen["by_time"] == "wall-clock time (s)"
