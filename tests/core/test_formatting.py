from __future__ import annotations

import pytest

from hundredfold.core.formatting import (
    MINUS,
    MISSING,
    format_bytes,
    format_count,
    format_duration,
    format_large_number,
    format_number,
    format_table_number,
    metric_label,
    printable,
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
def test_format_number_keeps_four_significant_digits(value, text):
    assert format_number(value) == text


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
def test_format_duration_uses_at_most_two_units(seconds, text):
    assert format_duration(seconds) == text


def test_large_numbers_are_shortened_and_counts_get_a_plural():
    assert [format_large_number(value) for value in (9_999_999, 24_576_000, 1.25e9)] == ["9,999,999", "24.6 M", "1.2 B"]
    assert [format_count(count, "epoch") for count in (1, 1_000)] == ["1 epoch", "1,000 epochs"]


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
def test_metric_label_splits_name_and_unit(key, name, unit):
    assert metric_label(key) == (name, unit)


@pytest.mark.parametrize(("size", "text"), [(12, "12 B"), (640_000, "640 kB"), (3_210_000, "3.21 MB"), (15e9, "15 GB")])
def test_format_bytes_uses_decimal_units(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("value", "text"), [(61_440, "61,440"), (1234.5, "1,234"), (12.3, "12.30"), (-0.05949, "-0.0595")]
)
def test_table_numbers_are_plain_ascii(value, text):
    assert format_table_number(value) == text


def test_printable_shortens_and_replaces_control_characters():
    assert printable("a\tb") == "a?b"
    assert printable("x" * 50) == "x" * 40 + "..."
