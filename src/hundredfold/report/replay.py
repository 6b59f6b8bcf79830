"""Interactive replay pages: one self-contained HTML file per command `hundredfold watch`.

A replay has a scene (the JavaScript that draws one position of an episode) and plain data. The
report of a run shows the same replays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hundredfold.core.errors import CheckpointError
from hundredfold.core.files import write_atomically
from hundredfold.report.html import template_file, templates

SCENES = ("cage2", "dvrp")


@dataclass(frozen=True, slots=True)
class Replay:
    """Episodes to play in a page."""

    scene: str  # one of `SCENES`
    data: dict[str, Any]  # what the scene draws; `episodes` is a list
    unit: str  # what an arrow key moves by

    @property
    def position_label(self) -> str:
        """Label of the slider for screen readers."""
        return f"{self.unit} of the episode"


def write_replay(path: Path, replay: Replay, *, heading: str, facts: Iterable[str]) -> Path:
    """Write a page with one replay, replacing an older one; returns its path.

    Args:
        path: File to write.
        replay: Episodes to play.
        heading: Heading of the page.
        facts: Short texts below the heading.
    """
    page = (
        templates()
        .get_template("replay.html")
        .render(title=heading, heading=heading, facts=facts, item=replay, style=replay_style(), script=replay_script())
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror}; choose another --output.") from error
    return path


def replay_style() -> str:
    """CSS of a page with replays."""
    return template_file("page.css") + template_file("replay.css")


def replay_script() -> str:
    """JavaScript of all scenes and of the player."""
    return "\n".join(template_file(name) for name in (*(f"replay_{scene}.js" for scene in SCENES), "replay.js"))
