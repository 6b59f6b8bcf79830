"""Numbers as people write them: 61,440 steps, 1 min 25 s, 0.0595."""

from __future__ import annotations

import math

MISSING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"

# Names carry their unit at the end; this is how the page writes it.
UNITS = {
    "pct": "%",
    "percent": "%",
    "fraction": "share",
    "rate": "share",
    "steps": "steps",
    "seconds": "s",
    "minutes": "min",
    "hours": "h",
    "km": "km",
}


def number(value: float | None) -> str:
    """Whole numbers in full, others with four digits that matter."""
    if value is None or not math.isfinite(value):
        return MISSING
    size = abs(value)
    if value == round(value) or size >= 10_000:
        text = f"{value:,.0f}"
    elif size >= 0.001:
        text = f"{value:,.{3 - math.floor(math.log10(size))}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        text = f"{value:.3g}"
    return text.replace("-", MINUS, 1) if value < 0 else text


def big_number(value: float | None) -> str:
    """The same for a headline, where 12,345,678 would not fit: 12.3 M, as on an axis."""
    if value is None or abs(value) < 10_000_000:
        return number(value)
    letter, unit = ("B", 1e9) if abs(value) >= 1e9 else ("M", 1e6)
    return f"{value / unit:,.1f} {letter}"


def counted(count: int, noun: str) -> str:
    """1 epoch, 2 epochs."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def interval(low: float | None, high: float | None) -> str:
    """From low to high, when both are known."""
    return MISSING if low is None or high is None else f"{number(low)} to {number(high)}"


def percent(share: float | None) -> str:
    """A share of 1 in percent."""
    return MISSING if share is None else f"{100 * share:.1f} %"


def duration(seconds: float | None) -> str:
    """Two units at most, from microseconds to days."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 1e-3:
        return f"{1e6 * seconds:.0f} \N{MICRO SIGN}s"
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02d} h"


def clock_unit(seconds: float) -> tuple[str, float]:
    """Name and seconds of the unit in which an axis of this length reads well."""
    if seconds < 180:
        return "s", 1.0
    return ("min", 60.0) if seconds < 3 * 3600 else ("h", 3600.0)


def plain_name(key: str) -> tuple[str, str]:
    """A metric's name in words and its unit: `avg_wait_minutes` is (Average wait, min)."""
    parts = key.replace("/", "_").split("_")
    unit = UNITS.get(parts[-1], "")
    if unit and len(parts) > 1 and parts[-1] not in ("fraction", "rate", "steps"):
        parts = parts[:-1]
    if parts[0] == "avg":
        parts[0] = "average"
    words = " ".join(part for part in parts if part)
    return (words[:1].upper() + words[1:] or key), unit
