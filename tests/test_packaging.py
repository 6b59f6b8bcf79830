"""Installing: what the Makefile installs, whether the constraints pin all of it, and the built package."""

import ast
import os
import re
import shutil
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import hundredfold
from helpers.processes import run_process
from hundredfold.cli import main

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


# Imported by the adapter for RL4CO policies, which the user brings together with it.
BROUGHT_BY_USERS = {"tensordict"}


def imports_of(path):
    """Names that a file of the package imports at run time, and whether that is when it is imported itself."""

    def walk(node, at_once):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.Import):
                yield from ((alias.name, at_once) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                yield child.module, at_once
                yield from ((f"{child.module}.{alias.name}", at_once) for alias in child.names)
            yield from walk(child, at_once and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))

    return list(walk(ast.parse(path.read_text("utf-8")), True))


def third_party_imports():
    """By module of the package: the distributions it imports, and whether at once."""
    distributions = packages_distributions()
    found = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        found[module] = set()
        for name, at_once in imports_of(path):
            top = name.split(".")[0]
            if top not in sys.stdlib_module_names and top not in ("hundredfold", *BROUGHT_BY_USERS):
                names = distributions.get(top, [top])
                found[module] |= {(canonicalize_name(one), at_once) for one in names}
    return found


def declared(*groups):
    return {canonicalize_name(Requirement(text).name) for group in groups for text in group}


def test_every_import_of_the_package_is_declared():
    """The wheel below is tried with all packages of this environment, which would hide a missing one."""
    extras = {name: texts for name, texts in PROJECT["optional-dependencies"].items() if name not in ("dev", "docs")}
    known = declared(PROJECT["dependencies"], *extras.values())
    found = third_party_imports()
    missing = {module: {name for name, _ in names} - known for module, names in found.items()}
    assert {module: names for module, names in missing.items() if names} == {}
    used = {name for names in found.values() for name, _ in names}
    assert {"numpy", "torch", "fastapi", "optuna", "ray", "ortools", "imageio"} <= used
    assert declared(PROJECT["dependencies"]) - used == set(), "declared and never imported"


def test_modules_of_the_core_import_extras_only_when_they_are_used():
    """All that commands and the Python interface import at once, directly or not."""
    found, core = third_party_imports(), declared(PROJECT["dependencies"])
    waiting = {command.function.partition(":")[0] for command in main.COMMANDS.values()}
    waiting |= {"hundredfold.__main__", "hundredfold.api", *hundredfold._MODULES.values()}
    reached = set()
    while waiting:
        module = waiting.pop()
        reached.add(module)
        assert {name for name, at_once in found[module] if at_once} <= core, module
        path = ROOT / "src" / Path(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        names = [name for name, at_once in imports_of(path) if at_once and name in found]
        parents = [module.rpartition(".")[0]] if "." in module else []
        waiting |= {*names, *parents} - reached
    assert "hundredfold.algorithms.ppo" in reached
    assert len(reached) > 100


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
    return run_process(argv, cwd=ROOT).stdout


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


def test_ci_runs_every_python_of_the_classifiers():
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    prefix = "Programming Language :: Python :: 3."
    declared = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if name.startswith(prefix)]
    run = jobs["test"]["strategy"]["matrix"]["python"]
    assert run[: len(declared)] == declared
    assert PROJECT["requires-python"] == f">={declared[0]}"
    assert set(jobs["smoke"]["strategy"]["matrix"]["python"]) <= set(declared)
    assert {job["timeout-minutes"] > 0 for job in jobs.values()} == {True}


def test_the_citation_names_the_version_of_the_package():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert f"version = {{{PROJECT['version']}}}" in (ROOT / "README.md").read_text()


# --- the built package


BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def build(kind, tree, folder):
    """Build an sdist or a wheel from a source tree, without downloading anything."""
    run_process([sys.executable, "-c", BUILD, f"build_{kind}", str(folder)], cwd=tree)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the sdist and with the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("built")
    tree = folder / "tree"
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    build("sdist", tree, folder)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    build("wheel", folder / "unpacked" / sdist.name.removesuffix(".tar.gz"), folder)
    return folder


@pytest.fixture(scope="module")
def clean_python(built):
    """Python of a new virtual environment with the wheel."""
    (wheel,) = built.glob("*.whl")
    return install_into_new_venv(built / "from-wheel", wheel)


def install_into_new_venv(folder, archive):
    """Python of a new virtual environment with this package; all others are those of this environment."""
    venv.create(folder, with_pip=False)
    (packages,) = folder.rglob("site-packages")
    # Paths in a .pth file are added as they are: an editable install of the package there is not seen.
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "others.pth").write_text("\n".join(others))
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--force-reinstall"]
    run_process([*pip, "--no-index", "--no-deps", "--no-build-isolation", str(archive)])
    return python


def source_files():
    """Files of the package, relative to `src`."""
    files = (path.relative_to(ROOT / "src") for path in (ROOT / "src" / "hundredfold").rglob("*") if path.is_file())
    return {path.as_posix() for path in files if "__pycache__" not in path.parts}


@pytest.mark.process
def test_wheel_and_sdist_contain_every_file_of_the_package(built):
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in names if name.startswith("hundredfold/")} == source_files()
    assert not [name for name in names if not name.startswith("hundredfold")]
    with tarfile.open(sdist) as archive:
        in_src = {name.partition("/src/")[2] for name in archive.getnames() if "/src/hundredfold/" in name}
    assert source_files() <= in_src


# Sources that the tests themselves are run with are not the installed package.
INSTALLED_ONLY = {"PYTHONPATH": ""}
# One process for all commands: most of their time goes into importing torch.
COMMANDS = """
import sys
from pathlib import Path
import hundredfold
from hundredfold.cli.main import main
assert Path(hundredfold.__file__).is_relative_to(sys.prefix), hundredfold.__file__
for command in {commands!r}:
    print("$", *command, flush=True)
    assert main(command) == 0, command
"""


def run_commands(python, folder, *commands):
    code = COMMANDS.format(commands=[command.split() for command in commands])
    return run_process([str(python), "-c", code], cwd=folder, env=INSTALLED_ONLY)


SIZE = "--num-envs 4 --num-steps 16 --epochs 2 --eval-episodes 4"
USES = (f"train corridor --name run {SIZE}", "evaluate runs/run --episodes 4", "report runs/run", "verify cage2")


@pytest.mark.process
def test_the_installed_wheel_trains_evaluates_reports_verifies_and_exports(clean_python, tmp_path):
    done = run_commands(clean_python, tmp_path, *USES, "export runs/run --torchscript")
    assert "50,300 of 50,300 steps are equal" in done.stderr
    assert "<h2" in (tmp_path / "runs/run/report.html").read_text("utf-8")
    assert (tmp_path / "runs/run/policy.pt").stat().st_size
    done = run_process([str(clean_python.with_name("hundredfold")), "--version"], cwd=tmp_path, env=INSTALLED_ONLY)
    assert done.stdout == f"hundredfold {PROJECT['version']}\n"


@pytest.mark.slow
@pytest.mark.process
def test_the_installed_sdist_runs_the_same_commands_and_exports_onnx(built, tmp_path):
    (sdist,) = built.glob("*.tar.gz")
    python = install_into_new_venv(built / "from-sdist", sdist)
    done = run_commands(python, tmp_path, *USES, "export runs/run --onnx --torchscript")
    assert "50,300 of 50,300 steps are equal" in done.stderr
    assert (tmp_path / "runs/run/policy.onnx").stat().st_size
