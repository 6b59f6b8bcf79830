"""Numba decorators: the cache follows all sources, and private flags are still accepted."""

import ctypes
import os
import shutil
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

import hundredfold
from helpers.processes import run_process
from helpers.training_runs import run_python
from hundredfold.core import numba_kernels
from hundredfold.core.numba_kernels import KEPT_CACHES, NUMBA_FLAGS, PRIVATE_FLAGS, cache_dir, kernel

# The version of Numba with which the private flags and `config.CACHE_DIR` were checked.
CHECKED_NUMBA = "0.68.1"

DRAW = """
import numpy as np
from hundredfold.core import numba_kernels
value = numba_kernels.uniform(np.uint64(1), np.uint64(0))
print(value, sum(numba_kernels.uniform.stats.cache_hits.values()))
"""


HERE = Path(__file__)


def forget():
    cache_dir.cache_clear()
    numba_kernels._base_dir.cache_clear()


@pytest.fixture(autouse=True)
def forget_directories():
    yield
    forget()


def draw(package_parent):
    env = {"PYTHONPATH": str(package_parent), "NUMBA_CACHE_DIR": ""}
    value, hits = run_python(DRAW, expect=0, env=env).stdout.split()
    return float(value), int(hits)


@pytest.mark.process
def test_a_change_in_another_file_recompiles_the_kernel(tmp_path):
    package = Path(hundredfold.__file__).parent
    shutil.copytree(package, tmp_path / "hundredfold", ignore=shutil.ignore_patterns("__pycache__"))
    value, hits = draw(tmp_path)
    assert hits == 0
    assert draw(tmp_path) == (value, 1)
    helper = tmp_path / "hundredfold" / "core" / "rng.py"
    changed = helper.read_text().replace("UNIT_SCALE: Final = 2.0**-53", "UNIT_SCALE: Final = 2.0**-54")
    helper.write_text(changed)
    assert draw(tmp_path) == (value / 2, 0)
    caches = (tmp_path / "hundredfold" / "__pycache__").glob("hundredfold-core.numba_kernels-*")
    assert len(list(caches)) == 2
    # A file that the kernel does not use is of no concern.
    unused = tmp_path / "hundredfold" / "envs" / "cartpole.py"
    unused.write_text(unused.read_text() + "# changed\n")
    assert draw(tmp_path) == (value / 2, 1)


def test_the_sources_of_a_kernel_are_all_files_it_imports():
    package = Path(hundredfold.__file__).parent
    used = {path.relative_to(package).as_posix() for path in numba_kernels._used_sources(package / "routing/lns.py")}
    direct = {"routing/lns.py", "routing/operators.py", "core/numba_kernels.py"}
    assert direct | {"routing/route_kernels.py", "core/rng.py"} <= used
    assert not {path for path in used if path.startswith(("envs/", "algorithms/", "training/"))}


def test_the_cache_directory_of_other_kernels_is_not_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    ours = kernel(lambda x: x + 1)
    theirs = numba.njit(cache=True)(lambda x: x + 1)
    assert str(tmp_path) == numba.config.CACHE_DIR
    assert cache_dir(HERE, str(tmp_path)).parent == tmp_path
    assert Path(ours.stats.cache_path).parent == cache_dir(HERE, str(tmp_path))
    assert Path(theirs.stats.cache_path).parent == tmp_path


def test_the_cache_directory_is_set_back_after_an_error():
    before = numba.config.CACHE_DIR
    with pytest.raises(TypeError):
        kernel(3)
    assert before == numba.config.CACHE_DIR


def test_only_the_newest_directories_are_kept(tmp_path):
    name = "hundredfold-core.test_numba_kernels"
    for age in range(1, 6):
        old = tmp_path / f"{name}-{age}"
        old.mkdir()
        os.utime(old, (10**9 - age, 10**9 - age))
    (tmp_path / "hundredfold-core.other-1").mkdir()
    new = cache_dir(HERE, str(tmp_path))
    kept = {path.name for path in tmp_path.iterdir()}
    newest = [f"{name}-{age}" for age in range(1, KEPT_CACHES)]
    assert kept == {new.name, "hundredfold-core.other-1", *newest}


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Only the temporary directory is writable."""
    monkeypatch.setattr(numba_kernels.tempfile, "tempdir", str(tmp_path))
    is_writable = numba_kernels._is_writable
    monkeypatch.setattr(numba_kernels, "_is_writable", lambda path: tmp_path in path.parents and is_writable(path))
    return tmp_path


def test_without_a_writable_home_kernels_are_cached_in_a_private_temporary_directory(temporary):
    with pytest.warns(UserWarning, match="NUMBA_CACHE_DIR") as caught:
        path = cache_dir(HERE)
    assert len(caught) == 1
    assert path.parent == temporary / f"hundredfold-kernels-{os.getuid()}"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    forget()
    with pytest.warns(UserWarning, match="cached in"):
        assert cache_dir(HERE) == path  # the next process finds the compiled kernels


@pytest.mark.parametrize("prepared", ["open to all", "a link"])
def test_a_temporary_directory_prepared_by_others_is_not_used(temporary, tmp_path_factory, prepared):
    expected = temporary / f"hundredfold-kernels-{os.getuid()}"
    if prepared == "a link":
        expected.symlink_to(tmp_path_factory.mktemp("elsewhere"))
    else:
        expected.mkdir()
        expected.chmod(0o777)
    with pytest.warns(UserWarning, match="cached in"):
        used = cache_dir(HERE).parent
    assert used != expected
    assert used.resolve().parent == temporary.resolve()


@pytest.mark.process
def test_a_cache_directory_that_cannot_be_written_gives_one_warning(tmp_path):
    env = {"NUMBA_CACHE_DIR": "/proc/no/such/directory", "TMPDIR": str(tmp_path)}
    done = run_python(DRAW, expect=0, env=env)
    assert done.stderr.count("cannot write to /proc/no/such/directory") == 1
    assert "Traceback" not in done.stderr


CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, PR_CAPBSET_DROP = 1, 2, 3, 24


def obey_permissions():
    """Let the user root obey the permissions of files, like everybody else, from the next program on."""
    if os.getuid() == 0:
        libc = ctypes.CDLL(None)
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER):
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


@pytest.fixture
def read_only_install(tmp_path):
    """Environment of a program whose package and home cannot be written; skips where root ignores permissions."""
    package, home, temporary = (tmp_path / name for name in ("site/hundredfold", "home", "temporary"))
    shutil.copytree(Path(hundredfold.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    home.mkdir()
    temporary.mkdir()
    folders = [package.parent, *(path for path in package.parent.rglob("*") if path.is_dir()), home]
    for folder in folders:
        folder.chmod(0o555)
    write = f"import os; print(any(os.access(path, os.W_OK) for path in {[str(package), str(home)]!r}))"
    if "True" in run_process([sys.executable, "-c", write], preexec_fn=obey_permissions).stdout:
        pytest.skip("this system lets root write everywhere, and its capabilities cannot be dropped")
    of_user = {f"XDG_{name}_HOME": str(home / name) for name in ("CACHE", "CONFIG", "DATA")}
    yield {
        **of_user,
        "NUMBA_CACHE_DIR": "",
        "PYTHONPATH": str(package.parent),
        "HOME": str(home),
        "TMPDIR": str(temporary),
    }
    for folder in folders:
        folder.chmod(0o755)


@pytest.mark.process
@pytest.mark.skipif(os.name == "nt", reason="permissions of folders are those of POSIX")
def test_a_read_only_install_without_a_writable_home_trains_with_one_warning(read_only_install):
    temporary = Path(read_only_install["TMPDIR"])
    argv = [
        *(sys.executable, "-m", "hundredfold", "train", "corridor", "--epochs", "1", "--num-envs", "4"),
        *("--num-steps", "8", "--eval-episodes", "2", "--save-dir", "runs", "--name", "first"),
    ]
    done = run_process(argv, env=read_only_install, cwd=temporary, preexec_fn=obey_permissions)
    warning = f"compiled kernels are cached in {temporary}/hundredfold-kernels-{os.getuid()}"
    assert " ".join(done.stderr.split()).count(warning) == done.stderr.count("warning:") == 1
    assert "Traceback" not in done.stderr
    assert (temporary / "runs" / "first" / "report.html").exists()


def test_private_flags_are_known_to_this_version_of_numba():
    unknown = PRIVATE_FLAGS - NUMBA_FLAGS
    assert not unknown, (
        f"Numba {numba.__version__} does not know {unknown} (checked with {CHECKED_NUMBA}): "
        "kernels run without them, but slower. Find what replaces them, or remove them."
    )


@pytest.mark.parametrize("decorator", ["noalloc_kernel", "fast_sum_kernel", "inlined", "outlined"])
def test_without_private_flags_kernels_are_plain_njit(monkeypatch, decorator):
    monkeypatch.setattr(numba_kernels, "NUMBA_FLAGS", set())
    total = getattr(numba_kernels, decorator)(lambda values: values.sum())
    # With wrappers, Python can call it; `no_cpython_wrapper` would leave them out.
    assert total(np.arange(5)) == 10
