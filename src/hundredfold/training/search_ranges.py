"""Ranges of the settings that a sweep searches, and settings as flags."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import optuna

from hundredfold.core.errors import SettingsError

Distribution = optuna.distributions.BaseDistribution


def parse_range(name: str, text: str, value: Any) -> Distribution:
    """The values to search for one setting.

    Args:
        name: Name of the setting, for errors.
        text: `low..high`, `log:low..high` or choices separated by commas.
        value: A value of the setting, from which its type is known.
    """
    logarithmic = text.startswith("log:")
    low_text, dots, high_text = text.removeprefix("log:").partition("..")
    if not dots:
        choices = [_converted(name, choice, value) for choice in text.split(",")]
        if logarithmic or len(set(choices)) < 2:
            raise SettingsError(f"--search {name}={text}: expected low..high, log:low..high or several choices a,b,c.")
        return optuna.distributions.CategoricalDistribution(choices)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingsError(f"--search {name}={text}: {name} is not a number; give choices, such as {name}=a,b.")
    low, high = _converted(name, low_text, value), _converted(name, high_text, value)
    if not low < high or (logarithmic and low <= 0):
        above = " above 0" if logarithmic else ""
        raise SettingsError(f"--search {name}={text}: expected low..high with low < high, both{above}.")
    if isinstance(value, int):
        return optuna.distributions.IntDistribution(low, high, log=logarithmic)
    return optuna.distributions.FloatDistribution(low, high, log=logarithmic)


def _converted(name: str, text: str, value: Any) -> Any:
    """A part of a range in the type of the setting."""
    try:
        if isinstance(value, bool):
            return {"true": True, "false": False}[text.strip().lower()]
        if isinstance(value, int):
            number = float(text)
            if number != int(number):
                raise ValueError
            return int(number)
        if isinstance(value, float):
            number = float(text)
            if not math.isfinite(number):
                raise ValueError
            return number
    except (ValueError, KeyError, OverflowError) as error:
        kind = {bool: "true or false", int: "a whole number", float: "a number"}[type(value)]
        raise SettingsError(f"--search {name}: expected {kind}, got {text!r}.") from error
    return text


def describe(params: Mapping[str, Any]) -> str:
    """Settings as one line."""
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in params.items()
    )


def as_flag(name: str, value: Any) -> list[str]:
    """A setting as a flag of `train`."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", str(value)]


def contains(distribution: Distribution, value: Any) -> bool:
    """Whether a value is within the range."""
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        return value in distribution.choices
    assert isinstance(distribution, optuna.distributions.IntDistribution | optuna.distributions.FloatDistribution)
    return bool(distribution.low <= value <= distribution.high)
