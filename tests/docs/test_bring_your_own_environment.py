"""The page "bring your own environment" works as it stands: its blocks are run in order."""

import re
from pathlib import Path

import pytest

import hundredfold
from helpers.training_runs import run_python

PAGE = Path(__file__).parents[2] / "docs" / "bring-your-own-environment.md"
BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# One process plays reader and shell: a command is what `hundredfold` would get.
READER = """
import shlex
from hundredfold.cli.main import main

page = {}
for kind, code in {blocks!r}:
    if kind == "python":
        exec(compile(code, "page", "exec"), page)
    else:
        for line in code.splitlines():
            words = shlex.split(line)
            assert words.pop(0) == "hundredfold"
            assert main(words) == 0, line
"""


def test_a_reader_who_does_what_the_page_says_gets_what_it_promises(tmp_path, monkeypatch):
    for package in ("stable_baselines3", "sb3_contrib", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    blocks = []
    for kind, name, code in BLOCK.findall(PAGE.read_text()):
        if name:
            assert len(code.splitlines()) <= 40
            (tmp_path / name).write_text(code)
        else:
            blocks.append((kind, code))
    assert {kind for kind, _ in blocks} == {"python", "sh"}
    assert len(blocks) == 9
    run_python(READER.replace("{blocks!r}", repr(blocks)), expect=0, cwd=tmp_path, timeout=280)
    runs = tmp_path / "runs"
    assert {path.name for path in runs.iterdir()} == {"mine", "dqn", "python", "sb3"}
    monkeypatch.syspath_prepend(tmp_path)
    from lighthouse import Lighthouse

    for name in ("mine", "dqn"):
        judged = hundredfold.evaluate(runs / name, episodes=50, make_env=Lighthouse)
        assert judged.returns.mean() > 0.75


def test_the_command_line_finds_a_file_where_one_stands_also_from_workers(tmp_path):
    code = next(code for _, name, code in BLOCK.findall(PAGE.read_text()) if name)
    (tmp_path / "lighthouse.py").write_text(code)
    words = [
        "train", "lighthouse:Lighthouse-v0", "--backend", "processes", "--workers", "2",
        "--num-envs", "2", "--num-steps", "8", "--epochs", "2", "--eval-episodes", "2", "--quiet",
    ]  # fmt: skip
    # As the installed command runs: the folder is not on Python's path by itself.
    run = f"""
import sys
if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if path]
    from hundredfold.cli.main import main
    sys.exit(main({words!r}))
"""
    run_python(run, expect=0, cwd=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("lighthouse-Lighthouse-v0-")
    assert hundredfold.load(folder).act([0.0, 0.5], mask=[False, True, True]) in (1, 2)
