"""All code blocks of docs/bring-your-own-environment.md run, in order."""

import re
from pathlib import Path

import pytest

import hundredfold
from helpers.training_runs import run_python

PAGE = Path(__file__).parents[2] / "docs" / "bring-your-own-environment.md"
BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# One process runs Python blocks and shell commands, which are arguments of `hundredfold`.
RUN_BLOCKS = """
import shlex
from hundredfold.cli.main import main

page = {}
for kind, code in {blocks!r}:
    if kind == "python":
        exec(compile(code, "page", "exec"), page)
    else:
        for line in code.splitlines():
            argv = shlex.split(line)
            assert argv.pop(0) == "hundredfold"
            assert main(argv) == 0, line
"""


def test_all_code_blocks_run_and_the_policies_reach_the_stated_return(tmp_path, monkeypatch):
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
    run_python(RUN_BLOCKS.replace("{blocks!r}", repr(blocks)), expect=0, cwd=tmp_path)
    runs = tmp_path / "runs"
    assert {path.name for path in runs.iterdir()} == {"mine", "dqn", "python", "sb3"}
    monkeypatch.syspath_prepend(tmp_path)
    from lighthouse import Lighthouse

    for name in ("mine", "dqn"):
        evaluation = hundredfold.evaluate(runs / name, episodes=50, make_env=Lighthouse)
        assert evaluation.returns.mean() > 0.75


def test_the_command_line_and_its_workers_import_from_the_current_folder(tmp_path):
    code = next(code for _, name, code in BLOCK.findall(PAGE.read_text()) if name)
    (tmp_path / "lighthouse.py").write_text(code)
    argv = [
        "train", "lighthouse:Lighthouse-v0", "--backend", "processes", "--workers", "2",
        "--num-envs", "2", "--num-steps", "8", "--epochs", "2", "--eval-episodes", "2", "--quiet",
    ]  # fmt: skip
    # As in the installed command, the current folder is not on `sys.path` by itself.
    run = f"""
import sys
if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if path]
    from hundredfold.cli.main import main
    sys.exit(main({argv!r}))
"""
    run_python(run, expect=0, cwd=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("lighthouse-Lighthouse-v0-")
    assert hundredfold.load(folder).act([0.0, 0.5], mask=[False, True, True]) in (1, 2)
