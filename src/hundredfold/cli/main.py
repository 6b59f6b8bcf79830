"""Command-line entry point: maps `hundredfold COMMAND` to a function."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TextIO

from hundredfold import __version__
from hundredfold.core.errors import EnvError, HundredfoldError, SettingsError, suggest
from hundredfold.core.terminal import note

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True, slots=True)
class Command:
    """Function of a command (from arguments to exit code), its usage and summary."""

    function: str  # module:name, imported when the command runs
    usage: str
    summary: str


COMMANDS: dict[str, Command] = {
    "train": Command("hundredfold.cli.train:run", "train ENV [...]", "train an agent, or resume a run"),
    "data": Command("hundredfold.cli.data:run", "data check TRIPS", "check your own trips, or write sample files"),
    "estimate": Command(
        "hundredfold.cli.estimate:run", "estimate ENV [...]", "estimate memory and time of a training, with advice"
    ),
    "evaluate": Command("hundredfold.cli.evaluate:run", "evaluate RUN", "evaluate a trained policy or a heuristic"),
    "compare": Command("hundredfold.cli.compare:run", "compare ENV [...]", "compare settings over seeds"),
    "sweep": Command("hundredfold.cli.sweep:run", "sweep ENV", "search for better settings"),
    "watch": Command("hundredfold.cli.watch:run", "watch RUN", "replay a policy: a page or a video to look at"),
    "verify": Command("hundredfold.cli.cage2:run_verify", "verify ENV", "replay recordings of the original simulator"),
    "serve": Command("hundredfold.cli.desk:run_serve", "serve [RUN]", "serve the booking desk of a dial-a-ride policy"),
    "quote": Command("hundredfold.cli.desk:run_quote", "quote --request ...", "quote one trip, without a server"),
    "report": Command("hundredfold.cli.report:run", "report RUN", "write the HTML report of a run"),
    "export": Command("hundredfold.cli.export:run", "export RUN", "export a policy to ONNX or TorchScript"),
    "envs": Command("hundredfold.cli.info:run_envs", "envs [ENV]", "list the built-in envs, or describe one"),
    "scale": Command("hundredfold.cli.scale:run", "scale ENV", "throughput and efficiency versus number of envs"),
    "train-oracle": Command(
        "hundredfold.cli.train_oracle:run", "train-oracle [...]", "train weights of the neural routing oracle"
    ),
    "doctor": Command("hundredfold.cli.info:run_doctor", "doctor", "show machine, versions and optional extras"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns 0 done, 1 failed, 2 wrong usage, 130 interrupted after saving."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return DONE
    if argv[0] in ("--version", "-V"):
        print(f"hundredfold {__version__}")
        return DONE
    return exit_code(_run_command, argv)


def _run_command(argv: Sequence[str]) -> int:
    code: int = resolve_name(_find(argv[0]).function)(argv[1:])
    return code


def exit_code(command: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run a command; errors become one line on standard error and an exit code."""
    warnings.showwarning = _show_warning
    _add_working_directory()
    try:
        return command(argv)
    except SettingsError as error:
        return _fail(error, WRONG_USAGE)
    except HundredfoldError as error:
        return _fail(error, FAILED)
    except MemoryError:
        return _fail(HundredfoldError("out of memory; use fewer envs or smaller networks."), FAILED)
    except BrokenPipeError:
        # The reader of our output has closed the pipe (`| head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return _fail(HundredfoldError(f"{error.strerror or error}{where}."), FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED


def _add_working_directory() -> None:
    """Let `my_env:MyEnv-v0` import a file of the working directory; installed packages win."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)


def usage() -> str:
    """Text of `hundredfold --help`."""
    lines = [
        "hundredfold: train agents on hundreds of parallel environments.",
        "",
        "usage: hundredfold COMMAND ... (see hundredfold COMMAND --help)",
        "",
    ]
    width = max(len(command.usage) for command in COMMANDS.values()) + 2
    lines += [f"  {command.usage:{width}}{command.summary}" for command in COMMANDS.values()]
    lines += ["", "first steps: hundredfold envs, then hundredfold train cartpole"]
    return "\n".join(lines)


def _find(argument: str) -> Command:
    if argument not in COMMANDS:
        raise SettingsError(f"there is no command {argument!r}; {suggest(argument, COMMANDS)}")
    return COMMANDS[argument]


def _fail(error: HundredfoldError, code: int) -> int:
    if os.environ.get("HUNDREDFOLD_DEBUG"):
        traceback.print_exc()
    elif error.__cause__ is not None and isinstance(error, EnvError):
        # The error is in the user's own env: show its traceback.
        traceback.print_exception(error.__cause__)
        note(f"error: {error} The env's own traceback is above.")
        return code
    note(f"error: {error}")
    return code


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as one sentence, without the source line."""
    note(f"warning: {message}")


if __name__ == "__main__":
    sys.exit(main())
