"""Repeated measurements, taken in turns so that a busy moment hits everybody alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

OURS = "hundredfold"


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of some repeats, and how far they lie apart."""

    median: float
    low: float
    high: float
    repeats: int


def spread_of(values: list[float]) -> Spread:
    return Spread(median(values), min(values), max(values), len(values))


def rates_in_turns(
    contestants: Mapping[str, Callable[[], int]],
    repeats: int,
    tick: Callable[[str], None] = lambda name: None,
) -> dict[str, Spread]:
    """Units per second of each contestant: every round calls each once; a call returns its units.

    One call of each comes before the clock starts: first calls compile and allocate.
    """
    for name, play in contestants.items():
        tick(name)
        play()
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, play in contestants.items():
            tick(name)
            begin = time.perf_counter()
            units = play()
            rates[name].append(units / (time.perf_counter() - begin))
    return {name: spread_of(found) for name, found in rates.items()}


def rate_rows(rates: Mapping[str, Spread], **common: Any) -> list[dict[str, Any]]:
    """Rows for a table or JSON, each with its ratio to ours."""
    ours = rates[OURS].median
    return [
        rates_row(name, found, **common) | {"ratio_to_ours": found.median / ours}
        for name, found in rates.items()
    ]


def rates_row(system: str, found: Spread, **common: Any) -> dict[str, Any]:
    """One system's rate with its spread."""
    return {
        "system": system,
        **common,
        "steps_per_second": found.median,
        "low": found.low,
        "high": found.high,
        "repeats": found.repeats,
    }
