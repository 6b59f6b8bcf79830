"""Range checks of settings: bounds are declared beside the field and checked by one function.

A settings class declares `num_envs: Annotated[int, Ge(1)] = 64`, or one of the short forms below,
and calls `check_bounds(self)` in its `__post_init__`.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Interval, Le, Lt

from hundredfold.core.errors import SettingsError

__all__ = ["AtLeastOne", "Fraction", "NonNegative", "NonNegativeInt", "Positive", "check_bounds"]

# Larger ones are mistakes, and do not fit into the arrays and libraries that get them.
MAX_INTEGER: Final = 10**15

AtLeastOne = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Interval(ge=0, le=1)]


def check_bounds(settings: Any) -> None:
    """Raise a SettingsError for the first field of a dataclass that lies outside its bounds.

    Bounds are `annotated_types` constraints (`Ge`, `Gt`, `Le`, `Lt`, `Interval`) in the field's
    annotation. A tuple's bounds hold for each of its entries; None and words are within all bounds.
    """
    for name, bounds in _declared_bounds(settings.__class__):
        value = getattr(settings, name)
        entries = value if isinstance(value, tuple) else (value,)
        for entry in entries:
            if type(entry) is int and entry > MAX_INTEGER:
                raise SettingsError(
                    f"{name} must be at most {MAX_INTEGER:,}, got a number of {len(str(entry))} digits."
                )
            # Written so that NaN lies outside.
            if not (entry is None or isinstance(entry, str)) and not all(_holds(entry, bound) for bound in bounds):
                raise SettingsError(f"{name} must be {_describe(bounds)}, got {value}.")


@cache
def _declared_bounds(settings_class: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    hints = get_type_hints(settings_class, include_extras=True)
    found = ((name, tuple(_bounds_in(hint))) for name, hint in hints.items())
    return tuple((name, bounds) for name, bounds in found if bounds)


def _bounds_in(hint: Any) -> list[Any]:
    """Bounds anywhere in a type hint, e.g. in `Annotated[int, Ge(1)] | None`."""
    bounds: list[Any] = []
    if get_origin(hint) is Annotated:
        hint, *metadata = get_args(hint)
        for item in metadata:
            bounds += list(item) if isinstance(item, Interval) else [item]
    bounds = [bound for bound in bounds if isinstance(bound, Ge | Gt | Le | Lt)]
    return bounds + [bound for part in get_args(hint) for bound in _bounds_in(part)]


def _holds(value: Any, bound: Ge | Gt | Le | Lt) -> bool:
    match bound:
        case Ge(ge=limit):
            return bool(value >= limit)
        case Gt(gt=limit):
            return bool(value > limit)
        case Le(le=limit):
            return bool(value <= limit)
        case Lt(lt=limit):
            return bool(value < limit)


def _describe(bounds: tuple[Any, ...]) -> str:
    words = {Ge: "at least", Gt: "above", Le: "at most", Lt: "below"}
    limits = {Ge: "ge", Gt: "gt", Le: "le", Lt: "lt"}
    return " and ".join(f"{words[type(bound)]} {getattr(bound, limits[type(bound)])}" for bound in bounds)
