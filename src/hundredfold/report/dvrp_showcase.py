"""The file a page of dvrp is drawn from: `showcase.json` in the run folder.

It is written once, when days have been played, and read whenever the page is drawn; whoever reads
it needs neither the world nor the policy.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hundredfold.core.errors import CheckpointError
from hundredfold.training.run_folder import RunFolder, write_atomically

Showcase = dict[str, Any]

FILE_NAME = "showcase.json"
# Of what `worlds/dvrp/showcase.py` records; it grows when an older page could not be drawn from it.
FORMAT = 1


def showcase_file(folder: RunFolder) -> Path:
    return folder.path / FILE_NAME


def write_showcase(folder: RunFolder, showcase: Showcase) -> Path:
    """Put a showcase into the run folder, in place of an older one; returns where it is."""
    path = showcase_file(folder)
    text = json.dumps(showcase, allow_nan=False, separators=(",", ":"))
    try:
        write_atomically(path, text + "\n")
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}. The run itself is safe; make room, then "
            "draw the page again."
        ) from error
    return path


def read_showcase(folder: RunFolder) -> Showcase | None:
    """What was recorded; None when nothing was."""
    path = showcase_file(folder)
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        known = found.get("format") if isinstance(found, dict) else None
        raise CheckpointError(
            f"{path} has format {known}, this version draws format {FORMAT}; delete the file and "
            "draw the page again."
        )
    return found
