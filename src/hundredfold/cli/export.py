"""`hundredfold export RUN`: a trained policy as an ONNX or TorchScript file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hundredfold.api import export
from hundredfold.cli.flags import parse_flags
from hundredfold.core.errors import SettingsError

# Value of a flag without a file: the default file in the run folder.
DEFAULT_FILE = "policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Export the policy of a run to ONNX or TorchScript.

    The exported file is compared with the policy of the run before it is kept. A flag without FILE
    writes policy.onnx or policy.pt into the run folder.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    onnx: Annotated[Path | None, tyro.conf.arg(metavar="[FILE]")] = None
    """ONNX file, for ONNX Runtime and others (extra: export)."""
    torchscript: Annotated[Path | None, tyro.conf.arg(metavar="[FILE]")] = None
    """TorchScript file, for torch.jit.load in Python or C++."""
    checkpoint: str = "best"
    """Checkpoint of the run: best, last or an epoch."""


def run(argv: Sequence[str]) -> int:
    """Print the paths of the exported files."""
    args = parse_flags(Export, with_default_files(argv), "hundredfold export")
    if args.onnx is None and args.torchscript is None:
        raise SettingsError("export needs a format: pass --onnx, --torchscript or both.")
    paths = export(
        args.run,
        onnx=args.onnx if args.onnx != Path(DEFAULT_FILE) else True,
        torchscript=args.torchscript if args.torchscript != Path(DEFAULT_FILE) else True,
        checkpoint=args.checkpoint,
    )
    for path in paths:
        print(path)
    return 0


def with_default_files(argv: Sequence[str]) -> list[str]:
    """Arguments in which --onnx and --torchscript without FILE get the default one."""
    arguments: list[str] = []
    for index, argument in enumerate(argv):
        following = argv[index + 1] if index + 1 < len(argv) else "--"
        lacks_file = argument in ("--onnx", "--torchscript") and following.startswith("-")
        arguments.append(f"{argument}={DEFAULT_FILE}" if lacks_file else argument)
    return arguments
