"""Interleaved repeated measurements, and rows of their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from hundredfold.profiling.scaling import HUNDREDFOLD


@dataclass(frozen=True, slots=True)
class RepeatSummary:
    """Median and range of repeated measurements."""

    median: float
    low: float
    high: float
    repeats: int


def summarise(values: list[float]) -> RepeatSummary:
    return RepeatSummary(median(values), min(values), max(values), len(values))


def interleaved_rates(
    subjects: Mapping[str, Callable[[], int]], repeats: int, on_progress: Callable[[str], None] = lambda name: None
) -> dict[str, RepeatSummary]:
    """Units per second of several subjects, measured in turn so that other load hits all alike.

    Each subject is called once before the clock starts, because first calls compile and allocate.

    Args:
        subjects: by name, a function that does some work and returns its number of units.
        repeats: measured calls of each.
        on_progress: called with the name before each call.
    """
    for name, work in subjects.items():
        on_progress(name)
        work()
    rates: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(repeats):
        for name, work in subjects.items():
            on_progress(name)
            begin = time.perf_counter()
            units = work()
            rates[name].append(units / (time.perf_counter() - begin))
    return {name: summarise(values) for name, values in rates.items()}


def ratio_rows(rates: Mapping[str, RepeatSummary], **common: Any) -> list[dict[str, Any]]:
    """A `rate_row` per system, with its ratio to hundredfold."""
    reference = rates[HUNDREDFOLD].median
    return [
        rate_row(name, rate, **common) | {"ratio_to_hundredfold": rate.median / reference}
        for name, rate in rates.items()
    ]


def rate_row(system: str, rate: RepeatSummary, **common: Any) -> dict[str, Any]:
    """Row of a table or of JSON with the steps per second of one system."""
    return {
        "system": system,
        **common,
        "steps_per_second": rate.median,
        "low": rate.low,
        "high": rate.high,
        "repeats": rate.repeats,
    }
