"""`hundredfold export RUN`: a trained policy as a file for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hundredfold.api import export
from hundredfold.core.errors import SettingsError

# What a flag without a file behind it means: the usual name, in the run folder.
USUAL = "policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Write a run's policy as ONNX or TorchScript, played beside the run's own before it is done.

    A flag without a file behind it writes policy.onnx or policy.pt into the run folder.
    """

    run: Annotated[Path, tyro.conf.Positional]
    """A run folder."""
    onnx: Annotated[Path | None, tyro.conf.arg(metavar="[FILE]")] = None
    """For ONNX runtimes (needs the extra `export`)."""
    torchscript: Annotated[Path | None, tyro.conf.arg(metavar="[FILE]")] = None
    """For torch.jit.load, in Python or C++."""
    checkpoint: str = "best"
    """Which checkpoint: best, last or the number of an epoch."""


def run(arguments: Sequence[str]) -> int:
    """Print the files that were written."""
    args = tyro.cli(Export, args=with_usual_names(arguments), prog="hundredfold export")
    if args.onnx is None and args.torchscript is None:
        raise SettingsError("say what to write: --onnx, --torchscript, or both.")
    paths = export(
        args.run,
        onnx=args.onnx if args.onnx != Path(USUAL) else True,
        torchscript=args.torchscript if args.torchscript != Path(USUAL) else True,
        checkpoint=args.checkpoint,
    )
    for path in paths:
        print(path)
    return 0


def with_usual_names(arguments: Sequence[str]) -> list[str]:
    """The words, with a name behind each flag that stands alone."""
    words: list[str] = []
    for place, word in enumerate(arguments):
        follows = arguments[place + 1] if place + 1 < len(arguments) else "--"
        alone = word in ("--onnx", "--torchscript") and follows.startswith("-")
        words.append(f"{word}={USUAL}" if alone else word)
    return words
