"""Numbers, durations, sizes and names as text for people: 61,440 steps, 1 min 25 s, 3.2 MB."""

from __future__ import annotations

import math

__all__ = [
    "MINUS",
    "MISSING",
    "axis_time_unit",
    "format_bytes",
    "format_clock",
    "format_count",
    "format_duration",
    "format_interval",
    "format_large_number",
    "format_number",
    "format_percent",
    "format_table_number",
    "metric_label",
    "parse_duration",
    "printable",
]

MISSING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"

DURATION_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

# Metric names end with their unit.
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


def format_number(value: float | None) -> str:
    """Integers in full, other numbers with four significant digits; a dash if not finite."""
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


def format_large_number(value: float | None) -> str:
    """`format_number`, with ten millions and more shortened: 12.3 M."""
    if value is None or abs(value) < 10_000_000:
        return format_number(value)
    letter, unit = ("B", 1e9) if abs(value) >= 1e9 else ("M", 1e6)
    return f"{value / unit:,.1f} {letter}"


def format_table_number(value: float) -> str:
    """A number for a terminal table, in plain ASCII: 61,440, 12.30, 0.0595."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"


def format_count(count: int, noun: str) -> str:
    """A count with its noun: 1 epoch, 2 epochs."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_interval(low: float | None, high: float | None) -> str:
    """An interval, `1.2 to 3.4`; a dash if a bound is missing."""
    return MISSING if low is None or high is None else f"{format_number(low)} to {format_number(high)}"


def format_percent(fraction: float | None, decimals: int = 1) -> str:
    """A fraction in percent: 0.455 is 45.5 %."""
    return MISSING if fraction is None else f"{100 * fraction:.{decimals}f} %"


def format_duration(seconds: float | None) -> str:
    """A duration in at most two units, from microseconds to days."""
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


def format_clock(minutes: float) -> str:
    """Minutes after midnight as a time of day: 489.6 is 08:10, -30 is 23:30 the day before."""
    whole = round(float(minutes))
    text = f"{whole // 60:02d}:{whole % 60:02d}"
    return text if whole >= 0 else f"{format_clock(whole + 1440)} the day before"


def parse_duration(text: str) -> float:
    """Seconds of a duration such as 90, 90s, 10m, 1.5h or 2d.

    Raises:
        ValueError: It is written otherwise, not positive or not finite.
    """
    unit = DURATION_UNITS.get(text[-1:])
    seconds = float(text) if unit is None else float(text[:-1]) * unit
    if not 0 < seconds < math.inf:
        raise ValueError("it must be positive and finite")
    return seconds


def format_bytes(size: float) -> str:
    """A size in decimal units: 640 kB, 3.2 MB, 15 GB."""
    for unit in ("B", "kB", "MB"):
        if size < 1_000:
            return f"{size:.3g} {unit}"
        size /= 1_000
    return f"{size:.3g} GB"


def axis_time_unit(seconds: float) -> tuple[str, float]:
    """Name and seconds of the unit for a time axis of this length."""
    if seconds < 180:
        return "s", 1.0
    return ("min", 60.0) if seconds < 3 * 3600 else ("h", 3600.0)


def metric_label(key: str) -> tuple[str, str]:
    """Label and unit of a metric: `avg_wait_minutes` is (Average wait, min)."""
    parts = key.replace("/", "_").split("_")
    unit = UNITS.get(parts[-1], "")
    if unit and len(parts) > 1 and parts[-1] not in ("fraction", "rate", "steps"):
        parts = parts[:-1]
    if parts[0] == "avg":
        parts[0] = "average"
    label = " ".join(part for part in parts if part)
    return (label[:1].upper() + label[1:] or key), unit


def printable(text: str, max_length: int = 40) -> str:
    """Text from a file for an error message: shortened, unprintable characters replaced."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text)
    return clean if len(clean) <= max_length else f"{clean[:max_length]}..."
