"""Repeated measurements, taken in turns so that a busy moment hits everybody alike.

What the host of a virtual machine takes away while something is measured.

A virtual core can be held up by other guests, for milliseconds at a time. Linux counts that as
stolen time; elsewhere, and on real cores, there is nothing to count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

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
    on_progress: Callable[[str], None] = lambda name: None,
) -> dict[str, Spread]:
    """Units per second of each contestant: every round calls each once; a call returns its units.

    One call of each comes before the clock starts: first calls compile and allocate.
    """
    for name, play in contestants.items():
        on_progress(name)
        play()
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, play in contestants.items():
            on_progress(name)
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


# A measurement is undisturbed if the host took no more than this share of all cores' time.
CALM: Final = 0.02

# user, nice, system, idle, iowait, irq, softirq, steal: together all the time there was. What
# follows them is counted among these already.
COUNTED: Final = 8
STOLEN: Final = 7

CPU_TIMES: Final = Path("/proc/stat")


class HostWatch:
    """Tells which share of all cores' time the host has taken since this was made."""

    def __init__(self) -> None:
        self.begun = cpu_times()

    def stolen(self) -> float:
        passed = [now - then for now, then in zip(cpu_times(), self.begun, strict=True)]
        return passed[STOLEN] / sum(passed) if sum(passed) > 0 else 0.0


def cpu_times() -> list[int]:
    """Ticks of all cores since the machine started, by what they went into; zeros if unknown."""
    try:
        label, *ticks = CPU_TIMES.read_text().split(maxsplit=COUNTED + 1)[: COUNTED + 1]
    except (OSError, ValueError):
        return [0] * COUNTED
    return [int(on_progress) for on_progress in ticks] if label == "cpu" else [0] * COUNTED
