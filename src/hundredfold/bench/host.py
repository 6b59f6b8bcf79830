"""What the host of a virtual machine takes away while something is measured.

A virtual core can be held up by other guests, for milliseconds at a time. Linux counts that as
stolen time; elsewhere, and on real cores, there is nothing to count.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

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
    return [int(tick) for tick in ticks] if label == "cpu" else [0] * COUNTED
