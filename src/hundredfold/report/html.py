"""HTML templates of pages, rendered by Jinja2 with autoescaping: no text of a run can inject markup."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

NO_BREAK_SPACE: Final = "\N{NO-BREAK SPACE}"


@cache
def templates() -> Environment:
    """Templates of the package."""
    environment = Environment(
        loader=PackageLoader("hundredfold.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_keep_percent_signs_attached,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment


def template_file(name: str) -> str:
    """Text of a style sheet or script among the templates."""
    return resources.files("hundredfold.report").joinpath("templates", name).read_text("utf-8")


def _keep_percent_signs_attached(value: object) -> object:
    """Forbid a line break before a percent sign; trusted markup stays as it is."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return value.replace(" %", f"{NO_BREAK_SPACE}%")
    return value
