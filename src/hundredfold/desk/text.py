"""Text that people enter: names in any script are taken, control characters and code are not.

Nothing depends on this for safety. Queries have bound parameters, the page sets text and no HTML, and
manifests quote what a spreadsheet would compute. It keeps mistakes out of the journal.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = ["CLOCK_PATTERN", "REFERENCE_PATTERN", "has_code", "normalised", "plain_text", "plain_words", "problems_text"]

CLOCK_PATTERN: Final = r"^([0-3]?[0-9]|4[0-7]):[0-5][0-9]$"
REFERENCE_PATTERN: Final = r"^[A-Za-z0-9._:-]+$"
# What a pattern means, for people.
PATTERN_TEXTS: Final = {
    CLOCK_PATTERN: "must be a time such as 08:30",
    REFERENCE_PATTERN: "may have letters, digits and the characters . _ : - only",
}
# Categories of Unicode: control characters, halves of characters, separators of lines and paragraphs.
CONTROL_CATEGORIES: Final = ("Cc", "Cs", "Zl", "Zp")
# Characters that change the direction of the text around them, and can disguise a name.
DIRECTION_CHARACTERS: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
CODE_CHARACTERS: Final = frozenset("<>;={}`\\")
MAX_REASON: Final = 1000


def normalised(text: str) -> str:
    """Text with composed characters and single spaces, so that equal names are equal strings."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def has_code(text: str) -> bool:
    """Whether a text has characters of HTML, SQL or formulas that occur in no name."""
    return not CODE_CHARACTERS.isdisjoint(text)


def plain_text(text: str) -> str:
    """The normalised text; a ValueError if it has control characters or no letter or digit."""
    if any(unicodedata.category(char) in CONTROL_CATEGORIES or char in DIRECTION_CHARACTERS for char in text):
        raise ValueError("must not have line breaks or other control characters")
    if not any(char.isalnum() for char in text):
        raise ValueError("must have a letter or a digit")
    return normalised(text)


def plain_words(text: str) -> str:
    """As `plain_text`; also a ValueError if the text has characters of code."""
    if has_code(text):
        raise ValueError(f"must not have any of {' '.join(sorted(CODE_CHARACTERS))}")
    return plain_text(text)


def problems_text(errors: Iterable[Mapping[str, Any]], skip: int = 0) -> str:
    """Errors of pydantic as plain sentences, without the input itself: it may be anything.

    Args:
        errors: What `ValidationError.errors()` returns.
        skip: Parts of each location that say where the input was found, such as the body.
    """
    sentences = [f"{_field(error['loc'][skip:])} {_problem(error)}." for error in errors]
    return " ".join(sentences)[:MAX_REASON]


def _field(location: Iterable[Any]) -> str:
    parts = [str(part) for part in location]
    known = [part if part.isidentifier() and len(part) <= 40 else "..." for part in parts if not part.isdigit()]
    return ".".join(known) or "The request"


def _problem(error: Mapping[str, Any]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "string_pattern_mismatch":
        return PATTERN_TEXTS.get(context["pattern"], "has another form than expected")
    if kind == "string_too_long":
        return f"must have at most {context['max_length']} characters"
    fixed = {
        "missing": "is missing",
        "string_too_short": "is empty",
        "string_unicode": "must not have line breaks or other control characters",
        "extra_forbidden": "is not known here",
        "json_invalid": "is not valid JSON",
    }
    if kind in fixed:
        return fixed[kind]
    message = str(error["msg"])
    return f"is refused: {message[0].lower()}{message[1:]}"
