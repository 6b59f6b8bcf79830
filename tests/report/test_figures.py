"""Figures of any run: axes, bands, smoothing, thinning."""

from __future__ import annotations

import pytest

from helpers.run_folders import make_run, metrics
from hundredfold.report.figures import learning_curves, phase_shares, small_multiple, thinned
from hundredfold.report.measures import measure_of
from hundredfold.report.run_data import read_record


def test_curves_have_both_x_axes(tmp_path):
    rows = metrics(20)
    for row in rows:
        row["wall_seconds"] = 60.0 * row["epoch"]
    figure = learning_curves(read_record(make_run(tmp_path / "run", rows)))
    training = figure.data[0]
    assert list(training.x) == training.meta["steps"] == [2048 * n for n in range(1, 21)]
    assert training.meta["clock"] == [float(n) for n in range(1, 21)]
    assert figure.layout.meta["clock"] == "wall-clock time (min)"
    assert figure.layout.yaxis.title.text == "return per episode"


def test_the_interval_band_is_a_closed_polygon(tmp_path):
    figure = learning_curves(read_record(make_run(tmp_path / "run", metrics(10))))
    _, band, evaluated = figure.data
    assert list(band.y) == [133.0, 233.0, 217.0, 117.0]
    assert list(band.x) == [10_240, 20_480, 20_480, 10_240]
    assert list(evaluated.y) == [125.0, 225.0]


def test_a_noisy_curve_gets_a_trailing_mean(tmp_path):
    rows = metrics(100, evaluate_every=0)
    for row in rows:
        row["return_mean"] = float(row["epoch"])
    rows[50]["return_mean"] = None
    raw, smooth = learning_curves(read_record(make_run(tmp_path / "run", rows))).data
    assert smooth.name == "mean of 5 epochs"
    assert len(raw.y) == 100
    assert smooth.y[:3] == (1.0, 1.5, 2.0)
    assert smooth.y[-1] == pytest.approx(98.0)
    assert len(smooth.y) == 99


def test_phase_shares_add_up_to_100_percent(tmp_path):
    figure = phase_shares(read_record(make_run(tmp_path / "run", metrics(500))))
    assert [trace.name for trace in figure.data] == ["update", "collect", "evaluate"]
    assert len(figure.data[0].y) <= 120
    for bars in zip(*(trace.y for trace in figure.data), strict=True):
        assert sum(bars) == pytest.approx(100)


@pytest.mark.parametrize(("value", "notation"), [(2e-7, "e"), (3e-4, "e"), (0.3, None), (30_000.0, None)])
def test_ticks_of_small_numbers_are_powers_of_ten_instead_of_prefixes(tmp_path, value, notation):
    rows = metrics(5)
    for row in rows:
        row["first_ratio_error"] = value * row["epoch"]
    figure = small_multiple(read_record(make_run(tmp_path / "run", rows)), measure_of("first_ratio_error"))
    assert figure.layout.yaxis.exponentformat == notation


def test_a_constant_curve_gets_an_axis_range(tmp_path):
    record = read_record(make_run(tmp_path / "run", metrics(5)))
    room = small_multiple(record, measure_of("approx_kl")).layout.yaxis.range
    assert room == pytest.approx((0.0015, 0.0045))
    assert small_multiple(record, measure_of("skipped_gradients")).layout.yaxis.range == (0, 1)


def test_thinning_keeps_the_last_row():
    rows = [{"epoch": float(n)} for n in range(2_501)]
    remaining = thinned(rows, 1_000)
    assert len(remaining) <= 1_000
    assert remaining[-1] == rows[-1]
    assert thinned(rows[:3], 1_000) == rows[:3]
