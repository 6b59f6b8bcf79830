"""Installing: what the Makefile installs and whether the constraints pin all of it."""

import re
import shutil
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def pinned_names():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines == sorted(lines)
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.]+", line) for line in lines), "a pin is name==version, nothing local"
    return {line.split("==")[0] for line in lines}


def installed_requirements(requirements):
    """Names of the installed packages that these requirements lead to, directly or not."""
    found, waiting = set(), [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in found:
            continue
        try:
            texts = requires(requirement.name) or []
        except PackageNotFoundError:
            continue
        found.add(key)
        for further in map(Requirement, texts):
            extras = {"", *requirement.extras}
            if further.marker is None or any(further.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(further)
    return {name for name, _ in found}


def test_constraints_pin_every_package_that_is_installed():
    groups = [
        PROJECT["dependencies"],
        *PROJECT["optional-dependencies"].values(),
        PYPROJECT["build-system"]["requires"],
    ]
    installed = installed_requirements(text for group in groups for text in group)
    assert {"numpy", "llvmlite", "torch", "sympy"} <= installed
    assert installed - pinned_names() == set()


def dry_run(target, folder):
    """The commands that `make target` would run with a new virtual environment."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    argv = ["make", "--dry-run", "--no-print-directory", f"VENV={folder / 'venv'}", target]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.process
def test_make_train_installs_the_package_alone_and_make_test_every_extra(tmp_path):
    assert re.findall(r"pip install .* -e (\S+)$", dry_run("train", tmp_path), re.MULTILINE) == ["."]
    extras = re.findall(r"pip install .* -e '\.\[(.*)\]'$", dry_run("style", tmp_path), re.MULTILINE)
    assert [set(names.split(",")) for names in extras] == [set(PROJECT["optional-dependencies"])]


@pytest.mark.process
def test_make_test_completes_what_make_train_has_set_up(tmp_path):
    stamp = tmp_path / "venv" / ".installed"
    stamp.parent.mkdir()
    stamp.touch()
    assert "pip install" not in dry_run("train", tmp_path)
    assert "pip install" in dry_run("style", tmp_path)
    stamp.with_name(".installed-complete").touch()
    assert "pip install" not in dry_run("style", tmp_path)
