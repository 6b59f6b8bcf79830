"""What a price costs and how good it is: our oracles beside OR-Tools and PyVRP, same books.

Ours are timed on one thread in CPU seconds, because a busy machine would punish milliseconds more
than whole seconds; the peers stop by the clock and are timed by it. Every plan of every system is
checked by the independent verifier.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.errors import MissingExtraError
from hundredfold.profiling.measure import HUNDREDFOLD, RepeatSummary, summarise
from hundredfold.routing.incremental import IncrementalRoutes, IncrementalSettings
from hundredfold.routing.instances import loose_instances, random_instances, read_instances
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.ortools_oracle import OrToolsOracle, OrToolsSettings
from hundredfold.routing.problem import Oracle, RouteProblems, Solutions
from hundredfold.routing.pyvrp_oracle import PyVRPOracle, PyVRPSettings
from hundredfold.routing.verifier import violations

Row = dict[str, Any]
Tick = Callable[[str], None]

# Rounds of search from nothing, and how many restarts: from a fraction of a millisecond upwards.
EFFORTS: Final = ((0, 1), (20, 1), (50, 1), (100, 1), (600, 1), (100, 6))
FROM_SCRATCH: Final = LNSSettings(lns_iterations=100, final_restarts=1)


def bench_oracle(
    num_books: int = 20,
    num_requests: int = 30,
    num_envs: int = 256,
    seed: int = 0,
    repeats: int = 5,
    threads: int = 1,
    peer_seconds: float = 1.0,
    instances_dir: Path | None = None,
    instance_seconds: float = 2.0,
    with_peers: bool = True,
    neural_books: int = 0,
    on_progress: Tick = lambda name: None,
) -> list[Row]:
    """Rows of cost, gap and seconds per book.

    Without a folder: random days, tight and loose, and kept plans. The reference is OR-Tools' mean
    cost, or our own longest search where OR-Tools is missing. Peers take `peer_seconds` for each of
    the `num_books` books. With `instances_dir`: every instance of the folder for
    `instance_seconds`, against the folder's references. `neural_books` held-out days of each size
    are routed by the neural oracle; 0 leaves it out.
    """
    if instances_dir is not None:
        return _instance_rows(instances_dir, instance_seconds, with_peers, on_progress)
    rows = []
    for name, problems in (
        ("city days", random_instances(num_books, num_requests, seed)),
        ("loose days", loose_instances(num_books, num_requests, seed)),
    ):
        instance = f"{name} {num_books} x {num_requests}"
        rows += _scratch_rows(
            instance, problems, repeats, threads, peer_seconds, with_peers, on_progress
        )
    days = random_instances(num_envs, num_requests, seed)
    rows.append(_kept_row(days, repeats, threads, on_progress))
    if neural_books:
        from benchmarks.neural_oracle import bench_neural

        rows += bench_neural(
            neural_books,
            num_requests,
            repeats,
            peer_instances=min(num_books, neural_books),
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
    on_progress: Tick,
) -> list[Row]:
    oracles = {
        f"insertion, {rounds} rounds x {restarts}": LNSOracle(
            LNSSettings(lns_iterations=rounds, final_restarts=restarts, threads=threads)
        )
        for rounds, restarts in EFFORTS
    }
    plans: dict[str, Solutions] = {}
    seconds: dict[str, list[float]] = {name: [] for name in oracles}
    for oracle in oracles.values():
        oracle.solve(problems.rows(slice(0, 2)))  # compile before the clock starts
    for _ in range(repeats):
        for name, oracle in oracles.items():
            on_progress(f"{instance}: {name}")
            begin = _now(threads)
            plans[name] = oracle.solve(problems)
            seconds[name].append((_now(threads) - begin) / len(problems))
    rows = [
        _row(HUNDREDFOLD, name, instance, problems, plans[name], summarise(seconds[name]), threads)
        for name in oracles
    ]
    for package, peer in _peers(peer_seconds) if with_peers else ():
        on_progress(f"{instance}: {package}")
        begin = time.perf_counter()
        found = peer.solve(problems)
        each = summarise([(time.perf_counter() - begin) / len(problems)])
        rows.append(
            _row(package, f"{peer_seconds:g} s", instance, problems, found, each, threads=1)
        )
    ortools = [row["cost"] for row in rows if row["system"] == "ortools"]
    reference = ortools[0] if ortools else min(row["cost"] for row in rows)
    return [_against(row, reference) for row in rows]


def _kept_row(days: RouteProblems, repeats: int, threads: int, on_progress: Tick) -> Row:
    """A day booked request by request, against large neighbourhood search from nothing."""
    settings = IncrementalSettings(threads=threads)
    steps = len(days) * days.max_requests
    instance = f"kept plans {len(days)} x {days.max_requests}"
    on_progress(instance)
    _booked(days.rows(slice(0, 2)), settings)
    seconds = []
    for _ in range(repeats):
        begin = _now(threads)
        kept = _booked(days, settings)
        seconds.append((_now(threads) - begin) / steps)
    on_progress(f"{instance}: reference")
    reference = LNSOracle(FROM_SCRATCH).solve(days)
    name = f"kept plan, {settings.lns_iterations} rounds per step"
    row = _row(HUNDREDFOLD, name, instance, days, kept.solutions(), summarise(seconds), threads)
    return _against(row, float(reference.cost.mean()))


def _booked(days: RouteProblems, settings: IncrementalSettings) -> IncrementalRoutes:
    kept = IncrementalRoutes(days.travel, days.fleet, len(days), days.max_requests, settings)
    keys = rng.stream_keys(0, np.arange(len(days)), 0)
    for step in range(days.max_requests):
        kept.add(days.cells[:, step], days.windows[:, step], keys)
    return kept


def _instance_rows(folder: Path, seconds: float, with_peers: bool, on_progress: Tick) -> list[Row]:
    """One row per system and instance, and one with the mean gap of each system."""
    systems: list[tuple[str, str, Oracle]] = [
        (HUNDREDFOLD, "insertion", LNSOracle(LNSSettings(seconds=seconds)))
    ]
    if with_peers:
        systems += [(package, f"{seconds:g} s", peer) for package, peer in _peers(seconds)]
    rows: list[Row] = []
    for found in read_instances(folder):
        LNSOracle(FROM_SCRATCH).solve(found.problem)  # compile before the clock starts
        for system, name, oracle in systems:
            if system == "pyvrp" and np.isfinite(found.problem.max_ride_minutes).any():
                continue  # it knows no limit on ride time
            on_progress(f"{found.name}: {system}")
            begin = time.perf_counter()
            plans = oracle.solve(found.problem)
            spent = summarise([time.perf_counter() - begin])
            row = _row(system, name, found.name, found.problem, plans, spent, threads=1)
            rows.append(_against(row, found.reference_cost))
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
    plans: Solutions,
    seconds: RepeatSummary,
    threads: int,
) -> Row:
    return {
        "system": system,
        "oracle": name,
        "instance": instance,
        "cost": float(plans.cost.mean()),
        "reference": None,
        "gap_pct": None,
        "seconds": seconds.median,
        "low": seconds.low,
        "high": seconds.high,
        "repeats": seconds.repeats,
        "threads": threads,
        "violations": len(violations(problems, plans)),
    }


def _against(row: Row, reference: float | None) -> Row:
    if reference is None:
        return row
    return row | {"reference": reference, "gap_pct": 100.0 * (row["cost"] / reference - 1.0)}


def _peers(seconds: float) -> Iterator[tuple[str, Oracle]]:
    """The reference solvers that are installed, by the names of their packages."""
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
