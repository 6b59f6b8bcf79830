"""Words typed in a shell become one call."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TextIO

from hundredfold import __version__
from hundredfold.core.errors import EnvError, HundredfoldError, SettingsError, suggest

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True, slots=True)
class Command:
    """Where a command lives (`run(arguments) -> exit code`) and what it is for."""

    module: str
    usage: str
    summary: str


COMMANDS: dict[str, Command] = {
    "train": Command("hundredfold.cli.train", "train ENV [...]", "train an agent, or resume a run"),
    "plan": Command(
        "hundredfold.cli.estimate",
        "plan ENV [...]",
        "what a training will cost, and what to change",
    ),
    "evaluate": Command(
        "hundredfold.cli.evaluate", "evaluate RUN", "judge a run's policy, or a rule"
    ),
    "compare": Command(
        "hundredfold.cli.compare", "compare dvrp", "64 envs against 256, over seeds"
    ),
    "verify": Command("hundredfold.cli.verify", "verify ENV", "check an env against recordings"),
    "report": Command("hundredfold.cli.report", "report RUN", "draw the page of a run again"),
    "export": Command(
        "hundredfold.cli.export", "export RUN", "write a policy as ONNX or TorchScript"
    ),
    "envs": Command("hundredfold.cli.envs", "envs", "list what can be trained on"),
    "scale": Command(
        "hundredfold.cli.scale", "scale ENV", "what more envs bring, and where the rest goes"
    ),
    "train-oracle": Command(
        "hundredfold.cli.train_oracle",
        "train-oracle [...]",
        "make weights for the neural routing oracle",
    ),
    "doctor": Command("hundredfold.cli.doctor", "doctor", "what this machine offers"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns 0 done, 1 failed, 2 wrong usage, 130 interrupted after saving."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return DONE
    if words[0] in ("--version", "-V"):
        print(f"hundredfold {__version__}")
        return DONE
    return exit_code(_run_command, words)


def _run_command(argv: Sequence[str]) -> int:
    code: int = import_module(_find(argv[0]).module).run(argv[1:])
    return code


def exit_code(command: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run a command; its errors become one line on standard error and an exit code."""
    warnings.showwarning = _show_warning
    _look_here_too()
    try:
        return command(argv)
    except SettingsError as error:
        return _fail(error, WRONG_USAGE)
    except HundredfoldError as error:
        return _fail(error, FAILED)
    except MemoryError:
        return _fail(HundredfoldError("out of memory; use fewer envs or smaller networks."), FAILED)
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`); there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return _fail(HundredfoldError(f"{error.strerror or error}{where}."), FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED


def _look_here_too() -> None:
    """Let `my_env:MyEnv-v0` name a file of the folder one stands in; what is installed wins."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)


def usage() -> str:
    """The page behind `hundredfold --help`."""
    lines = [
        "hundredfold: train agents on hundreds of parallel environments.",
        "",
        "usage: hundredfold COMMAND ... (hundredfold COMMAND --help teaches each)",
        "",
    ]
    width = max(len(command.usage) for command in COMMANDS.values()) + 2
    lines += [f"  {command.usage:{width}}{command.summary}" for command in COMMANDS.values()]
    lines += ["", "first steps: hundredfold envs, then hundredfold train cartpole"]
    return "\n".join(lines)


def _find(word: str) -> Command:
    if word not in COMMANDS:
        raise SettingsError(f"there is no command {word!r}; {suggest(word, COMMANDS)}")
    return COMMANDS[word]


def _fail(error: HundredfoldError, code: int) -> int:
    if os.environ.get("HUNDREDFOLD_DEBUG"):
        traceback.print_exc()
    elif error.__cause__ is not None and isinstance(error, EnvError):
        # The fault lies in the user's own env: its traceback is what they need.
        traceback.print_exception(error.__cause__)
    print(f"error: {error}", file=sys.stderr)
    return code


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning as one sentence, without the line of code that gave it."""
    print(f"warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
