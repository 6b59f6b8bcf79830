"""Flags of all commands: lists as `64,256`, counts as `1e5`, and no colours where nobody asked for them."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, get_args

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    UnsupportedTypeAnnotationError,
)

__all__ = ["parse_flags", "whole_number"]

Flags = TypeVar("Flags")

# More digits than any count has; `1e999999999` would fill the memory.
MAX_DIGITS: Final = 25

_ANSI_CODE: Final = re.compile(r"\x1b\[[0-9;]*m")


def parse_flags(flags: type[Flags], argv: Sequence[str], prog: str, **options: Any) -> Flags:
    """Parse the flags of a command; wrong ones end the program with exit code 2.

    Lists are written `64,256` (or `64 256`), whole numbers also `1e5` or `100_000`.

    Args:
        flags: Dataclass with a field per flag.
        argv: Arguments without the program's name.
        prog: Name of the command, for help.
        **options: Further options of `tyro.cli`, such as `default`.
    """
    # Help goes to standard output, usage errors to standard error.
    is_help = bool({"-h", "--help"} & set(argv))
    stream = sys.stdout if is_help else sys.stderr
    tyro._experimental_options["ansi_codes"] = not os.environ.get("NO_COLOR") and stream.isatty()
    with _wrapped_output() if is_help else contextlib.nullcontext():
        parsed: Flags = tyro.cli(flags, args=list(argv), prog=prog, registry=_registry(), **options)
    return parsed


@contextlib.contextmanager
def _wrapped_output() -> Iterator[None]:
    """Wrap lines that are wider than the terminal: tyro wraps those in its boxes only."""
    width = shutil.get_terminal_size().columns
    # tyro looks at the encoding to see whether it may draw boxes.
    printed = io.TextIOWrapper(io.BytesIO(), sys.stdout.encoding or "utf-8")
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        printed.seek(0)
        for line in printed.read().splitlines():
            is_text = len(_ANSI_CODE.sub("", line)) > width
            print(textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) if is_text else line)


def join_lines(helptext: str) -> str:
    """A docstring with every paragraph in one line, for help that is wrapped anew."""
    paragraphs = re.split(r"\n\s*\n", helptext.strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


# tyro keeps the breaks of docstrings whose lines are indented, and so would cut lines in their middle.
tyro._strings.remove_single_line_breaks = join_lines


def whole_number(text: str) -> int:
    """A whole number written as 100000, 100_000 or 1e5."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite() or number != number.to_integral_value():
        raise ValueError(f"expected a whole number such as 64, 100_000 or 1e5, got {text[:40]!r}")
    if number.adjusted() > MAX_DIGITS:
        raise ValueError(f"expected a number of at most {MAX_DIGITS} digits, got {text[:40]!r}")
    return int(number)


def _registry() -> ConstructorRegistry:
    registry = ConstructorRegistry()
    registry.primitive_rule(_whole_number_rule)
    registry.primitive_rule(_list_rule)
    registry.primitive_rule(_optional_rule)
    return registry


def _whole_number_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda arguments: whole_number(arguments[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


def _list_rule(
    info: PrimitiveTypeInfo,
) -> PrimitiveConstructorSpec[tuple[Any, ...]] | UnsupportedTypeAnnotationError | None:
    # Flags that are repeated are no lists.
    if tyro.conf.UseAppendAction in info.markers:
        return None
    if info.type_origin is not tuple or get_args(info.type)[1:] != (...,):
        return None
    item_type = get_args(info.type)[0]
    if item_type is Path:  # file names may contain commas
        return None
    item = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(item_type, info.markers))
    if isinstance(item, UnsupportedTypeAnnotationError):
        return item

    def parse(arguments: list[str]) -> tuple[Any, ...]:
        return tuple(_parse_item(item, part) for argument in arguments for part in split_list(argument))

    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=f"{item.metavar},...",
        instance_from_str=parse,
        is_instance=lambda value: isinstance(value, tuple) and all(item.is_instance(part) for part in value),
        str_from_instance=lambda value: [",".join(item.str_from_instance(part)[0] for part in value)] if value else [],
    )


def _optional_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """A value or None: help names the value only; `None` removes one that a resumed run has."""
    kinds = [kind for kind in get_args(info.type) if kind is not NoneType]
    if info.type_origin not in (Union, UnionType) or len(kinds) != 1 or NoneType not in get_args(info.type):
        return None
    value = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kinds[0], info.markers))
    if isinstance(value, UnsupportedTypeAnnotationError):
        return None

    def parse(arguments: list[str]) -> Any:
        if arguments == ["None"]:
            return None
        return value.instance_from_str(arguments) if value.choices is None else _parse_item(value, arguments[0])

    return PrimitiveConstructorSpec(
        nargs=value.nargs,
        metavar=value.metavar,
        instance_from_str=parse,
        is_instance=lambda given: given is None or value.is_instance(given),
        str_from_instance=lambda given: ["None"] if given is None else value.str_from_instance(given),
    )


def _parse_item(item: PrimitiveConstructorSpec[Any], text: str) -> Any:
    if item.choices is not None and text not in item.choices:
        raise ValueError(f"{text[:40]!r} is not one of {', '.join(item.choices)}")
    return item.instance_from_str([text])


def split_list(text: str) -> list[str]:
    """Parts between commas; of key=value pairs only the commas before a key separate, of a JSON object none."""
    if text.lstrip().startswith("{"):
        return [text]
    return re.split(r",(?=[A-Za-z_]\w*=)" if "=" in text else ",", text)
