"""Settings as TOML and back; unknown names and wrong types are errors."""

from __future__ import annotations

import types
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import tomli_w

from hundredfold.core.errors import SettingsError, suggest

Settings = TypeVar("Settings")


def to_toml(settings: Any) -> str:
    """A settings dataclass as a TOML document."""
    return tomli_w.dumps(to_table(settings))


def to_table(settings: Any) -> dict[str, Any]:
    """A settings dataclass as nested dictionaries, without None and without unused tables."""
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
    """The fields of a settings dataclass that have an effect."""
    unused = getattr(settings, "unused", ())
    return [item for item in fields(settings) if item.name not in unused]


def apply_table(settings: Settings, table: dict[str, Any], source: str, path: str = "") -> Settings:
    """Settings with the values of a TOML table applied.

    Args:
        settings: Settings dataclass, possibly nested.
        table: Values by name, with a nested table for each nested dataclass.
        source: Where the table comes from, for error messages.
        path: Dotted name of this table within the whole, for error messages.
    """
    if not is_dataclass(settings) or isinstance(settings, type):
        raise SettingsError(f"{source}: {path.rstrip('.')} is not a table of settings.")
    hints = get_type_hints(type(settings))
    known = {item.name for item in fields(settings)}
    changes: dict[str, Any] = {}
    for name, value in table.items():
        where = f"{path}{name}"
        if name not in known:
            raise SettingsError(f"{source} has an unknown setting {where!r}; {suggest(name, known)}")
        present = getattr(settings, name)
        if is_dataclass(present):
            if not isinstance(value, dict):
                raise SettingsError(f"{source}: {where} must be a table, got {value!r}.")
            changes[name] = apply_table(present, value, source, f"{where}.")
        else:
            changes[name] = _converted(value, hints[name], where, source)
    try:
        return replace(settings, **changes)
    except SettingsError as error:
        raise SettingsError(f"{source}: {error}") from error


def with_overrides(settings: Settings, flat: dict[str, Any]) -> Settings:
    """Settings with values applied by their own names, whatever table they belong to."""
    tables = _tables_by_name(settings)
    table: dict[str, Any] = {}
    for name, value in flat.items():
        if name not in tables:
            raise SettingsError(_unknown_setting(settings, name, tables))
        target = table
        for part in tables[name]:
            target = target.setdefault(part, {})
        target[name] = list(value) if isinstance(value, tuple) else value
    return apply_table(settings, table, "the arguments")


def changed_settings(one: Any, other: Any, path: str = "") -> list[str]:
    """Dotted names of the values in which two settings objects of one class differ."""
    found: list[str] = []
    for item in fields(one):
        mine, theirs = getattr(one, item.name), getattr(other, item.name)
        if is_dataclass(mine) and type(mine) is type(theirs):
            found += changed_settings(mine, theirs, f"{path}{item.name}.")
        elif mine != theirs:
            found.append(f"{path}{item.name}")
    return found


def _tables_by_name(settings: Any, path: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """The table of each setting; names are unique over all tables."""
    tables: dict[str, tuple[str, ...]] = {}
    for item in used_fields(settings):
        value = getattr(settings, item.name)
        if is_dataclass(value):
            tables |= _tables_by_name(value, (*path, item.name))
        else:
            tables[item.name] = path
    return tables


def _unknown_setting(settings: Any, name: str, tables: dict[str, tuple[str, ...]]) -> str:
    for table in getattr(settings, "unused", ()):
        if any(item.name == name for item in fields(getattr(settings, table))):
            return f"{name} is a setting of {table}, which this run does not use."
    return f"there is no setting called {name!r}; {suggest(name, tables)}"


def _converted(value: Any, hint: Any, where: str, source: str) -> Any:
    """The value in the type of the settings class; errors name the expected type."""
    origin = get_origin(hint)
    if isinstance(value, np.generic):
        value = value.item()
    if origin in (Union, types.UnionType):
        if value is None and type(None) in get_args(hint):
            return None
        options = [option for option in get_args(hint) if option is not type(None)]
        fitting = [option for option in options if (get_origin(option) is Literal) == isinstance(value, str)]
        return _converted(value, (fitting or options)[0], where, source)
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
