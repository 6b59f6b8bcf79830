"""Benchmark of the neural oracle: CPU time of a batched call, and gap to a searched solution.

Speed is that of greedy decoding, from instances to costs, next to RL4CO's greedy policy for pickup
and delivery with as many stops and an encoder of the same size (random weights, which take as long
as any): alternating, in CPU time of one thread. Quality is measured on held-out instances of the
built-in city against 100 iterations of large neighbourhood search, and OR-Tools where installed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from benchmarks.measure import RepeatSummary, summarise
from hundredfold.core import rng
from hundredfold.core.errors import MissingExtraError
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.training_instances import env_instances
from hundredfold.profiling.scaling import HUNDREDFOLD
from hundredfold.routing.lns_oracle import LNSOracle
from hundredfold.routing.neural.oracle import NeuralOracle, NeuralSettings
from hundredfold.routing.neural.training import REFERENCE, VALIDATION_BRANCH
from hundredfold.routing.ortools_oracle import OrToolsOracle, OrToolsSettings
from hundredfold.routing.problem import Oracle, RouteProblems, Solutions
from hundredfold.routing.verifier import violations

Row = dict[str, Any]
Tick = Callable[[str], None]

BATCHES: Final = (1, 64, 256)
SINGLES: Final = 64
EFFORTS: Final = {
    "neural, greedy": NeuralSettings(improve_passes=0),
    "neural, 2 relocate passes": NeuralSettings(improve_passes=2),
    "neural, best of 16 + relocate": NeuralSettings(improve_passes=2, oracle_samples=16),
}
# On the RNG branch of validation instances, which training never draws from.
BENCH_SEED: Final = 2026
OR_TOOLS_SECONDS: Final = 1.0


def bench_neural(
    num_instances: int = 500,
    num_requests: int = 30,
    repeats: int = 5,
    peer_instances: int = 20,
    peer_seconds: float = OR_TOOLS_SECONDS,
    with_peers: bool = True,
    on_progress: Tick = lambda name: None,
) -> list[Row]:
    """Rows of speed by batch size, then of quality by number of requests.

    Args:
        num_instances: Held-out instances of each size.
        num_requests: Requests of the largest size.
        repeats: Timings per batch size.
        peer_instances: Instances of each size that OR-Tools solves.
        peer_seconds: Seconds of OR-Tools per instance.
        with_peers: Whether to measure OR-Tools and RL4CO where installed.
        on_progress: Receives the name of the row in progress.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = _speed_rows(num_requests, repeats, with_peers, on_progress)
        for size in instance_sizes(num_requests):
            rows += _gap_rows(size, num_instances, peer_instances, peer_seconds, with_peers, on_progress)
    finally:
        torch.set_num_threads(threads)
    return rows


def instance_sizes(num_requests: int) -> list[int]:
    """Numbers of requests, from one to a full day."""
    shares = (0.0, 1 / 6, 1 / 3, 2 / 3, 1.0)
    return sorted({max(1, round(share * num_requests)) for share in shares})


def held_out_instances(num_instances: int, num_requests: int) -> RouteProblems:
    """Instances of the built-in city without accepted offers."""
    key = rng.spawn(rng.seed_key(BENCH_SEED), VALIDATION_BRANCH)
    return env_instances(DvrpSettings(), key, num_instances, num_requests, with_offers=False)


def _speed_rows(num_requests: int, repeats: int, with_peers: bool, on_progress: Tick) -> list[Row]:
    oracle = NeuralOracle(EFFORTS["neural, greedy"])
    pool = held_out_instances(max(BATCHES), num_requests)
    oracle.solve(pool.rows(slice(0, 1)))  # compile before timing
    rl4co = _rl4co(num_requests) if with_peers else None
    rows: list[Row] = []
    for batch in BATCHES:
        instance = f"batch of {batch} x {num_requests}"
        on_progress(instance)
        problems = pool.rows(slice(0, batch))
        seconds: dict[str, list[float]] = {HUNDREDFOLD: [], "rl4co": []}
        for _ in range(repeats):
            seconds[HUNDREDFOLD].append(_timed(partial(oracle.solve, problems)))
            if rl4co is not None:
                seconds["rl4co"].append(_timed(partial(rl4co, batch)))
        solutions = oracle.solve(problems)
        summary = summarise(seconds[HUNDREDFOLD])
        rows.append(_row(HUNDREDFOLD, "neural, greedy", instance, problems, solutions, summary, batch))
        if rl4co is not None:
            rl4co_summary = summarise(seconds["rl4co"])
            row = _timing_row("rl4co", "PDP policy, greedy", instance, rl4co_summary, batch)
            rows.append(row | {"ratio_to_hundredfold": rl4co_summary.median / summary.median})
    rows.append(_singles_row(oracle, pool, repeats, on_progress))
    return rows


def _singles_row(oracle: NeuralOracle, pool: RouteProblems, repeats: int, on_progress: Tick) -> Row:
    """Calls with one instance each, relative to one call with all of them."""
    on_progress(f"{SINGLES} single calls")
    problems = pool.rows(slice(0, SINGLES))
    singles = [problems.rows(slice(row, row + 1)) for row in range(SINGLES)]
    batched, single = [], []
    for _ in range(repeats):
        batched.append(_timed(lambda: oracle.solve(problems)))
        single.append(_timed(lambda: [oracle.solve(one) for one in singles]))
    summary = summarise(single)
    row = _timing_row(HUNDREDFOLD, "neural, greedy", f"{SINGLES} single calls", summary, SINGLES)
    return row | {"ratio_to_hundredfold": summary.median / summarise(batched).median}


def _gap_rows(
    size: int, num_instances: int, peer_instances: int, peer_seconds: float, with_peers: bool, on_progress: Tick
) -> list[Row]:
    """Gap of the mean cost to the reference, on instances of one size."""
    instance = f"held-out days {num_instances} x {size}"
    on_progress(instance)
    problems = held_out_instances(num_instances, size)
    reference = LNSOracle(REFERENCE).solve(problems).cost
    rows = []
    for name, settings in EFFORTS.items():
        oracle = NeuralOracle(settings)
        oracle.solve(problems.rows(slice(0, 1)))
        start = time.thread_time()
        solutions = oracle.solve(problems)
        seconds = time.thread_time() - start
        row = _row(HUNDREDFOLD, name, instance, problems, solutions, summarise([seconds]), num_instances)
        rows.append(_with_gap(row, float(reference.mean())))
    or_tools = _or_tools(peer_seconds) if with_peers and peer_instances else None
    if or_tools is not None:
        subset = problems.rows(slice(0, peer_instances))
        on_progress(f"{instance}: ortools on {peer_instances}")
        start = time.perf_counter()
        solutions = or_tools.solve(subset)
        seconds = time.perf_counter() - start
        row = _row(
            "ortools",
            f"{peer_seconds:g} s",
            f"held-out days {peer_instances} x {size}",
            subset,
            solutions,
            summarise([seconds]),
            peer_instances,
        )
        rows.append(_with_gap(row, float(reference[:peer_instances].mean())))
    return rows


def _or_tools(seconds: float) -> Oracle | None:
    try:
        return OrToolsOracle(OrToolsSettings(seconds=seconds))
    except MissingExtraError:
        return None


def _rl4co(num_requests: int) -> Callable[[int], Any] | None:
    """RL4CO's greedy attention policy for pickup and delivery, as (batch size) -> output."""
    try:
        from rl4co.envs import PDPEnv
        from rl4co.models.zoo.am import AttentionModelPolicy
    except ImportError:
        return None
    torch.set_num_threads(1)  # importing RL4CO resets it to all cores
    settings = NeuralOracle().inference.policy.settings
    env = PDPEnv(generator_params={"num_loc": 2 * num_requests})
    policy = AttentionModelPolicy(
        env_name="pdp",
        embed_dim=settings.embed_dim,
        num_encoder_layers=settings.num_encoder_layers,
        num_heads=settings.num_heads,
        feedforward_hidden=settings.feedforward_dim,
    ).eval()
    resets = {batch: env.reset(batch_size=[batch]) for batch in BATCHES}

    @torch.inference_mode()
    def solve(batch: int) -> Any:
        return policy(resets[batch].clone(), env, phase="test", decode_type="greedy")

    solve(1)
    return solve


def _timed(work: Callable[[], Any]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def _row(
    system: str,
    name: str,
    instance: str,
    problems: RouteProblems,
    solutions: Solutions,
    seconds: RepeatSummary,
    num_instances: int,
) -> Row:
    row = _timing_row(system, name, instance, seconds, num_instances)
    quality = {
        "cost": float(solutions.cost.mean()),
        "violations": len(violations(problems, solutions)) + int(np.isinf(solutions.cost).sum()),
    }
    return row | quality


def _timing_row(system: str, name: str, instance: str, seconds: RepeatSummary, num_instances: int) -> Row:
    """A row whose `seconds` are per instance and whose `ms_per_batch` is per call."""
    return {
        "system": system,
        "oracle": name,
        "instance": instance,
        "cost": None,
        "reference": None,
        "gap_pct": None,
        "seconds": seconds.median / num_instances,
        "low": seconds.low / num_instances,
        "high": seconds.high / num_instances,
        "repeats": seconds.repeats,
        "threads": 1,
        "violations": 0,
        "ms_per_batch": 1000.0 * seconds.median,
        "ratio_to_hundredfold": None,
    }


def _with_gap(row: Row, reference: float) -> Row:
    return row | {"reference": reference, "gap_pct": 100.0 * (row["cost"] / reference - 1.0)}
