"""Routing oracles on the same instances: cost, gap and time, next to OR-Tools and PyVRP.

Oracles of hundredfold are timed on one thread in CPU seconds, because other load on the machine
would distort milliseconds more than whole seconds; the other solvers stop by wall-clock time and
are timed by it. The independent verifier checks every solution of every system.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.measure import RepeatSummary, summarise
from hundredfold.core import rng
from hundredfold.core.errors import MissingExtraError
from hundredfold.profiling.scaling import HUNDREDFOLD
from hundredfold.routing.incremental import IncrementalRoutes, IncrementalSettings
from hundredfold.routing.instances import loose_instances, random_instances, read_instances
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.ortools_oracle import OrToolsOracle, OrToolsSettings
from hundredfold.routing.problem import Oracle, RouteProblems, Solutions
from hundredfold.routing.pyvrp_oracle import PyVRPOracle, PyVRPSettings
from hundredfold.routing.verifier import violations

Row = dict[str, Any]
OnProgress = Callable[[str], None]

# LNS iterations and restarts: from a fraction of a millisecond per instance upwards.
EFFORTS: Final = ((0, 1), (20, 1), (50, 1), (100, 1), (600, 1), (100, 6))
FROM_SCRATCH: Final = LNSSettings(lns_iterations=100, final_restarts=1)


def bench_oracle(
    num_instances: int = 20,
    num_requests: int = 30,
    num_envs: int = 256,
    seed: int = 0,
    repeats: int = 5,
    threads: int = 1,
    peer_seconds: float = 1.0,
    instances_dir: Path | None = None,
    instance_seconds: float = 2.0,
    with_peers: bool = True,
    neural_instances: int = 0,
    on_progress: OnProgress = lambda name: None,
) -> list[Row]:
    """Rows of cost, gap to a reference and seconds per instance.

    The reference is OR-Tools' mean cost, or the lowest one where OR-Tools is missing.

    Args:
        num_instances: random instances, tight and loose, solved from scratch.
        num_requests: requests per instance.
        num_envs: instances that grow request by request (`IncrementalRoutes`).
        seed: of the random instances.
        repeats: measurements of hundredfold's oracles.
        threads: of hundredfold's oracles; wall-clock time is measured if there are several.
        peer_seconds: search time of the other solvers per instance.
        instances_dir: solve this folder of benchmark files instead, against its references.
        instance_seconds: search time of every oracle per benchmark file.
        with_peers: measure the other solvers as well.
        neural_instances: held-out instances of each size for the neural oracle; 0: without it.
        on_progress: called with a description of each measurement.

    """
    if instances_dir is not None:
        return _instance_rows(instances_dir, instance_seconds, with_peers, on_progress)
    rows = []
    for name, problems in (
        ("city", random_instances(num_instances, num_requests, seed)),
        ("loose", loose_instances(num_instances, num_requests, seed)),
    ):
        instance = f"{name} {num_instances} x {num_requests}"
        rows += _scratch_rows(instance, problems, repeats, threads, peer_seconds, with_peers, on_progress)
    problems = random_instances(num_envs, num_requests, seed)
    rows.append(_incremental_row(problems, repeats, threads, on_progress))
    if neural_instances:
        from benchmarks.neural_oracle import bench_neural

        rows += bench_neural(
            neural_instances,
            num_requests,
            repeats,
            peer_instances=min(num_instances, neural_instances),
            peer_seconds=peer_seconds,
            with_peers=with_peers,
            on_progress=on_progress,
        )
    return rows


def _scratch_rows(
    instance: str,
    problems: RouteProblems,
    repeats: int,
    threads: int,
    peer_seconds: float,
    with_peers: bool,
    on_progress: OnProgress,
) -> list[Row]:
    oracles = {
        f"insertion, {iterations} iterations x {restarts}": LNSOracle(
            LNSSettings(lns_iterations=iterations, final_restarts=restarts, threads=threads)
        )
        for iterations, restarts in EFFORTS
    }
    solutions: dict[str, Solutions] = {}
    seconds: dict[str, list[float]] = {name: [] for name in oracles}
    for oracle in oracles.values():
        oracle.solve(problems.rows(slice(0, 2)))  # compile before timing
    for _ in range(repeats):
        for name, oracle in oracles.items():
            on_progress(f"{instance}: {name}")
            begin = _now(threads)
            solutions[name] = oracle.solve(problems)
            seconds[name].append((_now(threads) - begin) / len(problems))
    rows = [
        _row(HUNDREDFOLD, name, instance, problems, solutions[name], summarise(seconds[name]), threads)
        for name in oracles
    ]
    for package, peer in _peers(peer_seconds) if with_peers else ():
        on_progress(f"{instance}: {package}")
        begin = time.perf_counter()
        found = peer.solve(problems)
        each = summarise([(time.perf_counter() - begin) / len(problems)])
        rows.append(_row(package, f"{peer_seconds:g} s", instance, problems, found, each, threads=1))
    ortools = [row["cost"] for row in rows if row["system"] == "ortools"]
    reference = ortools[0] if ortools else min(row["cost"] for row in rows)
    return [_with_gap(row, reference) for row in rows]


def _incremental_row(problems: RouteProblems, repeats: int, threads: int, on_progress: OnProgress) -> Row:
    """Requests added one by one, compared with large neighbourhood search from scratch."""
    settings = IncrementalSettings(threads=threads)
    steps = len(problems) * problems.max_requests
    instance = f"incremental {len(problems)} x {problems.max_requests}"
    on_progress(instance)
    _added_one_by_one(problems.rows(slice(0, 2)), settings)
    seconds = []
    for _ in range(repeats):
        begin = _now(threads)
        incremental = _added_one_by_one(problems, settings)
        seconds.append((_now(threads) - begin) / steps)
    on_progress(f"{instance}: reference")
    reference = LNSOracle(FROM_SCRATCH).solve(problems)
    name = f"incremental, {settings.lns_iterations} iterations per request"
    row = _row(HUNDREDFOLD, name, instance, problems, incremental.solutions(), summarise(seconds), threads)
    return _with_gap(row, float(reference.cost.mean()))


def _added_one_by_one(problems: RouteProblems, settings: IncrementalSettings) -> IncrementalRoutes:
    incremental = IncrementalRoutes(problems.travel, problems.fleet, len(problems), problems.max_requests, settings)
    keys = rng.stream_keys(0, np.arange(len(problems)), 0)
    for step in range(problems.max_requests):
        incremental.add(problems.cells[:, step], problems.windows[:, step], keys)
    return incremental


def _instance_rows(folder: Path, seconds: float, with_peers: bool, on_progress: OnProgress) -> list[Row]:
    """One row per system and instance, and one with the mean gap of each system."""
    systems: list[tuple[str, str, Oracle]] = [(HUNDREDFOLD, "insertion", LNSOracle(LNSSettings(seconds=seconds)))]
    if with_peers:
        systems += [(package, f"{seconds:g} s", peer) for package, peer in _peers(seconds)]
    rows: list[Row] = []
    for found in read_instances(folder):
        LNSOracle(FROM_SCRATCH).solve(found.problem)  # compile before timing
        for system, name, oracle in systems:
            if system == "pyvrp" and np.isfinite(found.problem.max_ride_minutes).any():
                continue  # it supports no ride-time limit
            on_progress(f"{found.name}: {system}")
            begin = time.perf_counter()
            solutions = oracle.solve(found.problem)
            spent = summarise([time.perf_counter() - begin])
            row = _row(system, name, found.name, found.problem, solutions, spent, threads=1)
            rows.append(_with_gap(row, found.reference_cost))
    return rows + [_mean_row(rows, system, name) for system, name, _ in systems]


def _mean_row(rows: list[Row], system: str, name: str) -> Row:
    mine = [row for row in rows if row["system"] == system]
    gaps = [row["gap_pct"] for row in mine if row["gap_pct"] is not None]
    seconds = summarise([row["seconds"] for row in mine] or [0.0])
    return {
        "system": system,
        "oracle": name,
        "instance": f"mean of {len(gaps)}",
        "cost": None,
        "reference": None,
        "gap_pct": float(np.mean(gaps)) if gaps else None,
        "seconds": seconds.median,
        "low": seconds.low,
        "high": seconds.high,
        "repeats": 1,
        "threads": 1,
        "violations": sum(row["violations"] for row in mine),
    }


def _row(
    system: str,
    name: str,
    instance: str,
    problems: RouteProblems,
    solutions: Solutions,
    seconds: RepeatSummary,
    threads: int,
) -> Row:
    return {
        "system": system,
        "oracle": name,
        "instance": instance,
        "cost": float(solutions.cost.mean()),
        "reference": None,
        "gap_pct": None,
        "seconds": seconds.median,
        "low": seconds.low,
        "high": seconds.high,
        "repeats": seconds.repeats,
        "threads": threads,
        "violations": len(violations(problems, solutions)),
    }


def _with_gap(row: Row, reference: float | None) -> Row:
    if reference is None:
        return row
    return row | {"reference": reference, "gap_pct": 100.0 * (row["cost"] / reference - 1.0)}


def _peers(seconds: float) -> Iterator[tuple[str, Oracle]]:
    """The installed reference solvers, by package name."""
    makers: dict[str, Callable[[], Oracle]] = {
        "ortools": lambda: OrToolsOracle(OrToolsSettings(seconds=seconds)),
        "pyvrp": lambda: PyVRPOracle(PyVRPSettings(seconds=seconds)),
    }
    for package, make in makers.items():
        try:
            yield package, make()
        except MissingExtraError:
            continue


def _now(threads: int) -> float:
    return time.thread_time() if threads == 1 else time.perf_counter()
