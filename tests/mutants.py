"""Mutation check: small faults are put into the package one at a time, and tests must fail.

    python tests/mutants.py                   # all modules below
    python tests/mutants.py ppo.py gae.py     # some of them

Not mutmut 3: it leaves out every decorated function, which here are all kernels, properties and
dataclass methods, and it picks the mutant at run time, which compiled kernels do not see. This
script writes each mutant into a copy of the tree, where Numba compiles it into a cache of its own;
kernels that run without compilation in seconds do so (`compiled=False`), because compiling a search
takes half a minute. pytest collects the tests of a module once, and forks for each of its mutants.

The sample is drawn from a hash of each changed line: it is the same every time, and stays the same
for lines that are not edited. `equivalent_mutants.toml` lists changes that no test can notice.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
import types
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import hypothesis
import psutil
import pytest

from helpers.source_mutants import Mutant, mutant_by_hand, mutants_of, sample

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = Path("src/hundredfold")
EQUIVALENT: Final = Path(__file__).with_name("equivalent_mutants.toml")
COPIED: Final = ("src", "tests", "benchmarks", "docs", "pyproject.toml", "README.md")
PLUGINS: Final = ("-p", "no:cacheprovider", "-p", "pytest_timeout")
PRELOADED: Final = ("numpy", "numba", "torch", "gymnasium", "safetensors.numpy", "cloudpickle", "tyro", "rich")
# A mutant that loops for ever is ended after so many CPU seconds, or times those of the tests without it;
# one that waits for ever, after so many seconds in which nothing runs. Neither depends on how busy the machine is.
MIN_CPU_SECONDS, MAX_SLOWDOWN, IDLE_SECONDS = 6.0, 3.0, 60.0
KILLED_AIM: Final = 90.0  # per cent


@dataclass(frozen=True)
class Target:
    """A module, how many mutants of it to try, and the tests that must notice them."""

    source: str  # below the package
    sample: int
    tests: tuple[str, ...]  # below `tests`, the quickest first
    compiled: bool = True  # False: kernels run as plain Python
    select: str = ""  # pytest -k


PROCESS_TESTS: Final = (
    "backends/test_call_checks.py",
    "backends/processes/test_channel.py",
    "backends/processes/test_recovery.py",
    "backends/processes/test_worker_pool.py",
    "contracts/test_backend_contract.py::test_a_call_out_of_order_is_refused_and_the_pending_call_named",
    "backends/processes/test_process_backend.py",
    "backends/processes/test_first_ready.py",
    "backends/processes/test_worker_faults.py",
)
ROUTING_TESTS: Final = ("routing/test_operators.py",)
ACCEPTANCE_TESTS: Final = (
    "envs/dvrp/acceptance/test_responses.py",
    "envs/dvrp/acceptance/test_metrics.py",
    "envs/dvrp/acceptance/test_belief_model.py",
    "envs/dvrp/acceptance/test_bayes.py",
)
CAGE2_TESTS: Final = ("envs/cage2/test_rulesets.py", "envs/cage2/test_env.py", "envs/cage2/test_action_mask.py")

TARGETS: Final = (
    Target("routing/operators.py", 28, ROUTING_TESTS, compiled=False),
    Target("routing/route_kernels.py", 24, ROUTING_TESTS, compiled=False),
    Target("routing/incremental.py", 8, ROUTING_TESTS, compiled=False),
    Target("rollout/gae.py", 10, ("rollout/test_gae.py",)),
    Target("algorithms/ppo.py", 26, ("algorithms/test_ppo.py",), select="not solves"),
    Target(
        "algorithms/minibatches.py",
        8,
        ("algorithms/test_minibatches.py", "algorithms/test_gradient_accumulator.py", "algorithms/test_ppo.py"),
        select="not solves",
    ),
    Target(
        "algorithms/distributions.py",
        16,
        ("algorithms/test_masked_categorical.py", "algorithms/test_diagonal_gaussian.py"),
        select="not million",
    ),
    Target("training/checkpoint.py", 25, ("training/test_checkpoint.py",), select="not fills and not save_dir"),
    Target("envs/dvrp/acceptance/model.py", 14, ACCEPTANCE_TESTS, select="not torch"),
    Target("envs/dvrp/acceptance/belief_model.py", 12, ACCEPTANCE_TESTS, select="not torch"),
    Target("envs/dvrp/acceptance/metrics.py", 6, ACCEPTANCE_TESTS, select="not torch"),
    Target("backends/processes/recovery.py", 8, PROCESS_TESTS, select="not ray"),
    Target("backends/processes/channel.py", 10, PROCESS_TESTS, select="not ray"),
    Target("backends/processes/backend.py", 10, PROCESS_TESTS, select="not ray"),
    Target("backends/processes/worker_pool.py", 12, PROCESS_TESTS, select="not ray"),
    # Compiling a step takes most of the time of these.
    Target("envs/cage2/step.py", 10, CAGE2_TESTS),
    Target("envs/cage2/action_mask.py", 5, ("envs/cage2/test_action_mask.py", "envs/cage2/test_blue_agent.py")),
)

# Faults that were once found by hand, tried in every run: module, text, and what replaces it.
BY_HAND: Final = (
    ("training/checkpoint.py", "hashlib.sha256(data).hexdigest() != checksum", "False"),
    ("algorithms/ppo.py", "-objective - self.entropy_coefficient", "-objective + self.entropy_coefficient"),
    ("algorithms/ppo.py", "1 + clip_range)", "1 + 2 * clip_range)"),
    ("algorithms/ppo.py", "limit = 1.5 * self.settings.target_kl", "limit = 3.0 * self.settings.target_kl"),
    ("algorithms/ppo.py", "self.skipped_in_a_row[name] = 0", "pass"),
    (
        "envs/dvrp/acceptance/belief_model.py",
        '"acceptance/accepted_rate": scores.accepted',
        '"acceptance/accepted_rate": 1.0',
    ),
    ("routing/incremental.py", "present - trips.service.sum(axis=2)", "present"),
    ("envs/cage2/step.py", "hidden.restored = 0", "pass"),
)


@dataclass
class Result:
    """What became of a mutant."""

    mutant: Mutant
    outcome: str  # killed, timeout or survived
    seconds: float
    reason: str = ""  # why it is equivalent, if it is


# -- running tests -----------------------------------------------------------------------------------


class Tree:
    """A copy of the repository in which mutants are written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log, self.results_file = path / "log", path / "results"
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, path / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            else:
                shutil.copy(source, path / name)

    def check(self, target: Target, seed: int) -> list[Result]:
        """Try the mutants of one module, in a process that may import the package from here."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = self._check_in_child(target, seed)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        if os.waitpid(child, 0)[1] != 0:
            raise SystemExit(f"{target.source} could not be checked:\n{self.log.read_text()[-3000:]}")
        rows = json.loads(self.results_file.read_text())
        return [Result(Mutant(*row[:4]), *row[4:]) for row in rows]

    def _check_in_child(self, target: Target, seed: int) -> int:
        os.chdir(self.path)
        # Without plugins, whose imports take longer than most tests.
        os.environ |= {"PYTHONPATH": str(self.path / "src"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        sys.path[:0] = [str(self.path / "src")]
        # Workers import the main module again; this one is none of theirs.
        sys.modules["__main__"] = types.ModuleType("__main__")
        if not target.compiled:
            _disable_compilation()
        # The first example that fails is enough.
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", derandomize=True, database=None, phases=phases)
        hypothesis.settings.load_profile("mutants")
        selected = ["-k", target.select] if target.select else []
        tests = [str(self.path / "tests" / name) for name in target.tests]
        loop = MutantLoop(self, target, seed)
        with self.log.open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        code = pytest.main(["-x", "-q", "-s", "--assert=plain", "-m", "not slow", *PLUGINS, *selected, *tests], [loop])
        if not loop.is_mutant and code == 0:
            rows = [
                (*astuple(replace(one.mutant, text="")), one.outcome, one.seconds, one.reason) for one in loop.results
            ]
            self.results_file.write_text(json.dumps(rows))
        return int(code)


class MutantLoop:
    """A plugin of pytest: once the tests are collected, runs them in a forked process for each mutant."""

    def __init__(self, tree: Tree, target: Target, seed: int) -> None:
        self.tree, self.target, self.seed = tree, target, seed
        self.path = tree.path / PACKAGE / target.source
        self.results: list[Result] = []
        self.is_mutant = False  # in a forked process
        self.progress = os.dup(1)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """None lets pytest run the tests."""
        source, target = self.path.read_text(), self.target
        package = str(sys.modules["hundredfold"].__file__)
        if not package.startswith(str(self.tree.path)):
            raise pytest.UsageError(f"the package was imported from {package}, not from the copy")
        by_hand = [mutant_by_hand(source, old, new) for name, old, new in BY_HAND if name == target.source]
        drawn = sample(mutants_of(source), target.sample, self.seed)
        known = {(entry["old"], entry["new"]): entry["reason"] for entry in equivalent_mutants(target.source)}
        unchanged = Mutant(0, "", "", source)
        gc.freeze()  # so that forked processes share memory
        limit = math.inf
        for mutant in [unchanged, *by_hand, *(one for one in drawn if one.text not in {hand.text for hand in by_hand})]:
            reason = known.get((mutant.old, mutant.new), "")
            if reason:
                self._report(Result(mutant, "equivalent", 0.0, reason))
                continue
            self.path.write_text(mutant.text)
            child = os.fork()
            if child == 0:
                self.is_mutant = True
                os.setsid()
                try:
                    import_again(target.source, session)
                except Exception:
                    traceback.print_exc()
                    os._exit(1)
                return None
            outcome, seconds = wait_for(child, limit)
            self.path.write_text(source)
            if mutant is unchanged:
                if outcome != "survived":
                    raise pytest.UsageError(f"the tests of {target.source} fail without a mutant")
                limit = max(MIN_CPU_SECONDS, MAX_SLOWDOWN * seconds)
                os.write(self.progress, f"{target.source}: tests take {seconds:.1f} s\n".encode())
            else:
                self._report(Result(mutant, outcome, seconds))
        return True

    def _report(self, result: Result) -> None:
        self.results.append(result)
        mutant = result.mutant
        text = f"{result.outcome:10} {result.seconds:5.1f} s  {self.target.source}:{mutant.line}\n"
        if result.outcome == "survived":
            text += f"    - {mutant.old}\n    + {mutant.new}\n"
        os.write(self.progress, text.encode())


def import_again(source: str, session: pytest.Session) -> None:
    """Import a module and all modules that import it again, and use them in the tests."""
    changed = "hundredfold." + source.removesuffix(".py").replace("/", ".")
    old = {name: module for name, module in sys.modules.items() if name.startswith("hundredfold")}
    affected = [name for name in old if changed in imported_modules(name, old)]
    for name in affected:
        del sys.modules[name]
    kernels = sys.modules.get("hundredfold.core.numba_kernels")
    if kernels is not None:  # the directories of compiled kernels are named after their sources
        kernels.cache_dir.cache_clear()
        kernels._imported_sources.cache_clear()
    replaced: dict[int, object] = {}
    for name in affected:
        new = importlib.import_module(name)
        replaced[id(old[name])] = new
        for key, value in vars(old[name]).items():
            if getattr(value, "__module__", None) == name and hasattr(new, key):
                replaced[id(value)] = getattr(new, key)
    users = [module for name, module in sys.modules.items() if name.split(".")[0] in ("helpers", "conftest", "tests")]
    for module in {id(one): one for one in [*users, *(item.module for item in session.items)]}.values():
        for key, value in list(vars(module).items()):
            if id(value) in replaced:
                setattr(module, key, replaced[id(value)])


def imported_modules(name: str, modules: dict[str, types.ModuleType]) -> set[str]:
    """The module and those of the package that it has imported at its top, directly or not."""
    found, pending = {name}, [name]
    while pending:
        new = _direct_imports(str(modules[pending.pop()].__file__)) & modules.keys() - found
        found |= new
        pending += new
    return found


@cache
def _direct_imports(file: str) -> set[str]:
    """Modules that a file imports outside its functions, and names that may be modules."""
    found: set[str] = set()
    for node in ast.parse(Path(file).read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def wait_for(child: int, cpu_limit: float) -> tuple[str, float]:
    """Wait for a mutant: survived, killed or timeout, and its CPU seconds."""
    tree, last_ran, cpu = psutil.Process(child), time.monotonic(), 0.0
    outcome = ""
    while not outcome:
        for _ in range(50):
            done, status, usage = os.wait4(child, os.WNOHANG)
            if done:
                if os.waitstatus_to_exitcode(status) in (3, 4, 5):
                    raise pytest.UsageError("pytest itself failed")
                cpu = usage.ru_utime + usage.ru_stime
                outcome = "killed" if status else "survived"
                break
            time.sleep(0.02)
        else:
            with suppress(psutil.NoSuchProcess):
                cpu = tree.cpu_times().user + tree.cpu_times().system
                for process in (tree, *tree.children(recursive=True)):
                    if process.status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP):
                        last_ran = time.monotonic()
            if cpu > cpu_limit or time.monotonic() - last_ran > IDLE_SECONDS:
                outcome = "timeout"
    # Its whole session: workers of a backend may be left.
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if outcome == "timeout":
        os.waitpid(child, 0)
    return outcome, cpu


def _disable_compilation() -> None:
    import numba
    import numpy as np

    os.environ["NUMBA_DISABLE_JIT"] = "1"
    numba.config.DISABLE_JIT = True  # type: ignore[attr-defined]
    np.seterr(over="ignore")  # random bits wrap around


def equivalent_sources() -> list[str]:
    """Modules that have equivalent mutants."""
    return list(tomllib.loads(EQUIVALENT.read_text()))


def equivalent_mutants(source: str) -> list[dict[str, str]]:
    """Entries of `equivalent_mutants.toml` for one module."""
    found: list[dict[str, str]] = tomllib.loads(EQUIVALENT.read_text()).get(source, [])
    return found


# -- report ------------------------------------------------------------------------------------------


def percentage(results: list[Result]) -> float:
    """Killed mutants, of those that are not equivalent."""
    tried = [result for result in results if result.outcome != "equivalent"]
    return 100.0 * sum(result.outcome != "survived" for result in tried) / max(len(tried), 1)


def report(found: dict[str, list[Result]]) -> str:
    """A table of the modules, then survivors and equivalent mutants with their lines."""
    lines = [
        "| module | mutants | killed | of these by time-out | survived | equivalent | killed % |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    everything = [result for results in found.values() for result in results]
    for name, results in [*found.items(), ("all", everything)]:
        outcomes = [result.outcome for result in results]
        timeouts, survived, equivalent = (outcomes.count(one) for one in ("timeout", "survived", "equivalent"))
        killed = outcomes.count("killed") + timeouts
        columns = (name, len(results), killed, timeouts, survived, equivalent, f"{percentage(results):.1f}")
        lines.append(f"| {' | '.join(map(str, columns))} |")
    for outcome in ("survived", "equivalent"):
        lines += ["", f"## {outcome.capitalize()}", ""]
        for name, results in found.items():
            for result in results:
                if result.outcome == outcome:
                    lines += [
                        f"{name}:{result.mutant.line} {result.reason}",
                        "",
                        f"    - {result.mutant.old}",
                        f"    + {result.mutant.new}",
                        "",
                    ]
    return "\n".join(lines) + "\n"


def preload() -> None:
    """Import the libraries that tests use, once for all mutants."""
    for name in PRELOADED:
        importlib.import_module(name)
    import torch

    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.Adam([weight], fused=True).step()  # imports the compiler of torch


def main(arguments: list[str] | None = None) -> int:
    """Try mutants of the modules whose names contain one of the given texts, or of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help="parts of module names, such as ppo.py; all if none is given")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--sample", type=int, default=None, help="mutants per module, instead of those in the list")
    parser.add_argument("--report", type=Path, default=ROOT / "build" / "mutants.md", help="file for the report")
    options = parser.parse_args(arguments)
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    preload()
    chosen = [one for one in TARGETS if not options.modules or any(part in one.source for part in options.modules)]
    found: dict[str, list[Result]] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        tree = Tree(Path(directory))
        for target in chosen:
            if options.sample is not None:
                target = replace(target, sample=options.sample)
            found[target.source] = tree.check(target, options.seed)
            options.report.parent.mkdir(parents=True, exist_ok=True)
            options.report.write_text(report(found))
    print(report(found))
    killed = percentage([result for results in found.values() for result in results])
    if killed < KILLED_AIM:
        print(f"{killed:.1f} % of the mutants were killed; the aim is {KILLED_AIM:.0f} %.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
