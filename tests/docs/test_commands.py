"""Every command of the README and of the documentation is accepted by its parser; nothing is run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import tyro

import benchmarks.__main__ as benchmarks
from hundredfold.cli.main import COMMANDS, main
from hundredfold.config.presets import preset_settings
from hundredfold.config.toml import to_toml

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`]+)`")
COMMAND = re.compile(r"(?:hundredfold|python -m benchmarks) [a-z-]+(?: |$)")
# Runs that commands are applied to. A page that speaks of one env means a run on it.
RUN_ENVS = ("dvrp", "cage2", "corridor", "CartPole-v1")
# Stand for envs of the reader, and for one whose package may not be installed.
OWN_ENV = re.compile(r"\b\w+:\w+-v\d+\b|\bALE/\w+-v5\b|\bENV\b")
RUN = re.compile(r"(?<![-\w])(RUN|(?:/\S+/)?runs?/[\w.-]+|/var/lib/desk/run)(?= |$)")


class Parsed(BaseException):
    """The flags were accepted; raised instead of running the command."""


def commands_of(page):
    """The commands in code blocks and in code within sentences, each on one line and without comments."""
    text = page.read_text("utf-8")
    blocks = FENCE.findall(text)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += [" ".join(code.split()) for code in INLINE.findall(FENCE.sub("", text))]
    found = {}
    for line in lines:
        start = COMMAND.search(line)
        if start and not line[: start.start()].strip(" $("):
            command = re.split(r"\s+#|\s[|&>]", line[start.start() :])[0]
            found[" ".join(command.replace(",...", "").replace(" ...", " ").split())] = None
    return list(found)


CASES = [(page.name, command) for page in PAGES for command in commands_of(page)]


def test_commands_are_found():
    assert len(CASES) > 100
    named = {command.split()[1] for _, command in CASES if command.startswith("hundredfold")}
    assert named >= COMMANDS.keys()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder per env that has the settings of a run, and no policy."""
    folder = tmp_path_factory.mktemp("runs")
    for env in RUN_ENVS:
        (folder / env).mkdir()
        (folder / env / "settings.toml").write_text(to_toml(preset_settings(env)))
    return folder


@pytest.mark.parametrize(("page", "command"), CASES, ids=[f"{page}: {command}" for page, command in CASES])
def test_a_command_of_the_documentation_is_accepted(page, command, runs, monkeypatch, capsys):
    parse = tyro.cli

    def parse_only(*args, **options):
        parse(*args, **options)
        raise Parsed

    monkeypatch.setattr(tyro, "cli", parse_only)
    command = re.sub(r" N$", " 8", OWN_ENV.sub("CartPole-v1", command))
    command = re.sub(r"--config \S+\.toml", f"--config {runs / 'CartPole-v1' / 'settings.toml'}", command)
    if not RUN.search(command):
        candidates = [command]
    else:
        named = [env for env in RUN_ENVS if env in page] or RUN_ENVS
        candidates = [RUN.sub(str(runs / env), command) for env in named]
    assert any(is_accepted(candidate) for candidate in candidates), capsys.readouterr().err


def is_accepted(command):
    """Whether a command reaches the end of its flags, or is the name of one that needs more."""
    program, *argv = shlex.split(command)
    run = main
    if program == "python":
        argv, run = argv[2:], benchmarks.main
    known = COMMANDS if run is main else benchmarks.BENCHMARKS
    if len(argv) == 1 and argv[0] in known:
        return True
    try:
        return run(argv) == 0
    except Parsed:
        return True
    except SystemExit as ended:
        return ended.code in (0, None)
