from __future__ import annotations

import pytest

from hundredfold.core.formatting import (
    MINUS,
    MISSING,
    big_number,
    counted,
    duration,
    number,
    plain_name,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, MISSING),
        (float("nan"), MISSING),
        (0, "0"),
        (207.0, "207"),
        (61_440, "61,440"),
        (491.9375, "491.9"),
        (2.8, "2.8"),
        (0.0594925, "0.05949"),
        (0.00001234, "1.23e-05"),
        (-0.00305, f"{MINUS}0.00305"),
        (-1234.5, f"{MINUS}1,234"),
        (24_576_000.5, "24,576,000"),
    ],
)
def test_numbers_are_written_for_people(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, MISSING),
        (0.000972, "972 µs"),
        (0.0361, "36.1 ms"),
        (1.74, "1.7 s"),
        (85, "1 min 25 s"),
        (30_000, "8 h 20 min"),
        (200_000, "2 d 07 h"),
    ],
)
def test_durations_take_two_units_at_most(seconds, text):
    assert duration(seconds) == text


def test_headlines_shorten_millions():
    assert [big_number(value) for value in (9_999_999, 24_576_000, 1.25e9)] == [
        "9,999,999",
        "24.6 M",
        "1.2 B",
    ]
    assert [counted(count, "epoch") for count in (1, 1_000)] == ["1 epoch", "1,000 epochs"]


@pytest.mark.parametrize(
    ("key", "name", "unit"),
    [
        ("avg_improvement_pct", "Average improvement", "%"),
        ("avg_wait_minutes", "Average wait", "min"),
        ("avg_episode_steps", "Average episode steps", "steps"),
        ("avg_reached_exit", "Average reached exit", ""),
        ("acceptance/accuracy", "Acceptance accuracy", ""),
        ("minutes", "Minutes", "min"),
        ("", "", ""),
    ],
)
def test_a_metrics_name_tells_its_unit(key, name, unit):
    assert plain_name(key) == (name, unit)
