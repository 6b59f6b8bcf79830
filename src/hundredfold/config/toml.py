"""Settings as TOML and back. A typo gets an answer, not a default."""

from __future__ import annotations

import tomllib
import types
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import tomli_w

from hundredfold.core.errors import SettingsError, suggest

Settings = TypeVar("Settings")


def to_toml(settings: Any) -> str:
    """The whole settings object as a TOML document."""
    return tomli_w.dumps(to_table(settings))


def to_table(settings: Any) -> dict[str, Any]:
    """Plain nested dictionaries; `None` is left out, because TOML has no word for it.

    So are tables that the settings themselves call unused.
    """
    table: dict[str, Any] = {}
    for item in used_fields(settings):
        value = getattr(settings, item.name)
        if is_dataclass(value):
            table[item.name] = to_table(value)
        elif isinstance(value, tuple):
            table[item.name] = list(value)
        elif value is not None:
            table[item.name] = value
        elif item.default is not None and item.default is not MISSING:
            raise SettingsError(f"{item.name} cannot be None in a settings file.")
    return table


def used_fields(settings: Any) -> list[Field[Any]]:
    """The fields that play a part."""
    unused = getattr(settings, "unused", ())
    return [item for item in fields(settings) if item.name not in unused]


def read_toml(path: Path) -> dict[str, Any]:
    """The file's tables, or an error that names the file and the line."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"cannot read settings file {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}.") from error


def updated(settings: Settings, table: dict[str, Any], source: str, path: str = "") -> Settings:
    """The settings with the table's values put in; unknown names and wrong types are refused."""
    if not is_dataclass(settings) or isinstance(settings, type):
        raise SettingsError(f"{source}: {path.rstrip('.')} is not a table of settings.")
    hints = get_type_hints(type(settings))
    known = {item.name for item in fields(settings)}
    changes: dict[str, Any] = {}
    for name, value in table.items():
        where = f"{path}{name}"
        if name not in known:
            raise SettingsError(
                f"{source} has an unknown setting {where!r}; {suggest(name, known)}"
            )
        present = getattr(settings, name)
        if is_dataclass(present):
            if not isinstance(value, dict):
                raise SettingsError(f"{source}: {where} must be a table, got {value!r}.")
            changes[name] = updated(present, value, source, f"{where}.")
        else:
            changes[name] = _converted(value, hints[name], where, source)
    try:
        return replace(settings, **changes)
    except SettingsError as error:
        raise SettingsError(f"{source}: {error}") from error


def with_overrides(settings: Settings, flat: dict[str, Any]) -> Settings:
    """The settings with values put in by their own names, whatever table they live in."""
    homes = _homes(settings)
    table: dict[str, Any] = {}
    for name, value in flat.items():
        if name not in homes:
            raise SettingsError(_no_such_setting(settings, name, homes))
        place = table
        for part in homes[name]:
            place = place.setdefault(part, {})
        place[name] = list(value) if isinstance(value, tuple) else value
    return updated(settings, table, "the arguments")


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Dotted names of all values in which two settings objects of one kind differ."""
    found: list[str] = []
    for item in fields(one):
        mine, theirs = getattr(one, item.name), getattr(other, item.name)
        if is_dataclass(mine) and type(mine) is type(theirs):
            found += differences(mine, theirs, f"{path}{item.name}.")
        elif mine != theirs:
            found.append(f"{path}{item.name}")
    return found


def _homes(settings: Any, path: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """Which table each setting lives in; names are unique over all tables."""
    homes: dict[str, tuple[str, ...]] = {}
    for item in used_fields(settings):
        value = getattr(settings, item.name)
        if is_dataclass(value):
            homes |= _homes(value, (*path, item.name))
        else:
            homes[item.name] = path
    return homes


def _no_such_setting(settings: Any, name: str, homes: dict[str, tuple[str, ...]]) -> str:
    for table in getattr(settings, "unused", ()):
        if any(item.name == name for item in fields(getattr(settings, table))):
            return f"{name} is a setting of {table}, which plays no part in this run."
    return f"there is no setting called {name!r}; {suggest(name, homes)}"


def _converted(value: Any, hint: Any, where: str, source: str) -> Any:
    """The value as the settings class wants it, or an error that says what it wants."""
    origin = get_origin(hint)
    if isinstance(value, np.generic):
        value = value.item()
    if origin in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
        return _converted(value, options[0], where, source)
    if origin is Literal:
        if value in get_args(hint):
            return value
        names = [str(choice) for choice in get_args(hint)]
        raise SettingsError(f"{source}: {where} is {value!r}; {suggest(str(value), names)}")
    if origin is tuple and isinstance(value, list):
        inner = get_args(hint)[0]
        return tuple(_converted(part, inner, where, source) for part in value)
    if hint is Any or (isinstance(hint, type) and type(value) is hint):
        return value
    if hint is float and type(value) is int:
        return float(value)
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    raise SettingsError(f"{source}: {where} must be {wanted.get(hint, 'a list')}, got {value!r}.")
