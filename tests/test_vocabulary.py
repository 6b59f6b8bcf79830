"""The code speaks its field's language: words that must not come back, and the public interface.

docs/glossary.md has the terms to use instead.
"""

import io
import re
import tokenize
from pathlib import Path

import pytest

import hundredfold
from hundredfold import api

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])

# Words of an identifier (its parts between underscores or capital letters) and the term to use.
BANNED_IDENTIFIERS = {
    "world": "env, batch of envs",
    "worlds": "envs",
    "foreign": "third-party",
    "companion": "belief model, acceptance model",
    "luck": "uniforms, noise",
    "luckiest": "random_actions",
    "told": "summary, message, log",
    "heard": "recorded, received",
    "hear": "observe, receive",
    "crew": "worker pool",
    "wire": "channel",
    "wires": "channels",
    "doorbell": "ready flags",
    "lifeline": "die_with_parent",
    "blame": "diagnose_exit",
    "hire": "start, spawn",
    "lesson": "weights, loss",
    "lessons": "weight sync, losses",
    "pupil": "receiver",
    "postbox": "failure log",
    "shelf": "solution buffers",
    "shelve": "save_solution",
    "warmth": "threshold",
    "eyes": "image encoder",
    "thought": "features",
    "spread": "std",
    "spreads": "std",
    "surprise": "delta",
    "outlook": "value_stats",
    "patience": "shift penalty, timeout",
    "showcase": "report data",
    "contender": "evaluated policy",
    "judge": "evaluate",
    "judged": "evaluated",
    "everybody": "all_env_ids",
    "everyone": "all_env_ids",
    "nobody": "NONE",
    "mended": "restarted",
    "asked": "requested, args",
}
# Phrases in docstrings, comments, help and error messages.
BANNED_PHRASES = (
    "leave it away",
    "leave them away",
    r"leave --[a-z-]+ away",
    "made anew",
    "somebody else",
    "whoever",
    "behind the curtain",
    "tells the same story",
    "the house",
    "between rooms",
    "of ours",
    r"\bmend(s|ed|ing)?\b",
    r"\bluck\b",
    r"\bcompanion\b",
    r"\bworlds?\b",
    r"\bjudg(e|es|ed|ing)\b",
    r"\bforeign\b",
    "goes on bit for bit",
    "to the person at the terminal",
    "takes? along",
)


def identifier_words(name):
    """Lower-case words of snake_case, CamelCase and UPPER_CASE identifiers."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return [word.lower() for word in spaced.split("_") if word]


def tokens(path, *kinds):
    with tokenize.open(path) as file:
        text = file.read()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            yield token


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_identifiers_use_the_terms_of_the_field(path):
    found = {
        f"{path.name}:{token.start[0]}: {token.string} ({word}: use {BANNED_IDENTIFIERS[word]})"
        for token in tokens(path, tokenize.NAME)
        for word in identifier_words(token.string)
        if word in BANNED_IDENTIFIERS
    }
    assert not found, "\n".join(sorted(found))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_comments_and_messages_use_plain_words(path):
    banned = re.compile("|".join(BANNED_PHRASES), re.IGNORECASE)
    found = [
        f"{path.name}:{token.start[0]}: {match[0]!r}"
        for token in tokens(path, tokenize.STRING, tokenize.COMMENT)
        for match in banned.finditer(" ".join(token.string.split()))
    ]
    assert not found, "\n".join(found)


def test_the_public_interface_is_this():
    assert sorted(hundredfold.__all__) == [
        "LoadedPolicy",
        "TrainedRun",
        "Video",
        "__version__",
        "evaluate",
        "export",
        "export_policy_folder",
        "load",
        "make_vec",
        "record_video",
        "train",
    ]
    assert set(api.__all__) <= set(hundredfold.__all__)
    assert all(hasattr(hundredfold, name) for name in hundredfold.__all__)


def test_every_public_function_documents_its_parameters():
    for name in ("evaluate", "export", "export_policy_folder", "load", "make_vec", "record_video", "train"):
        function = getattr(hundredfold, name)
        parameters = [one for one in function.__annotations__ if one != "return"]
        for parameter in parameters:
            assert parameter in function.__doc__, f"{name} does not document {parameter}"
