"""What one batched call of the neural oracle costs and how good its plans are.

Speed is the bare greedy plan, from books to prices, beside the greedy policy of RL4CO for
pickup and delivery with as many stops and an encoder of the same size (random weights, which take
as long as any), in turns, in CPU time of one thread. Quality is measured on held-out days of the
built-in city against 100 rounds of our own search, and against OR-Tools where installed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from hundredfold.core import rng
from hundredfold.core.errors import MissingExtraError
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.training_instances import env_instances
from hundredfold.profiling.measure import OURS, Spread, spread_of
from hundredfold.routing.lns_oracle import LNSOracle
from hundredfold.routing.neural.oracle import NeuralOracle, NeuralSettings
from hundredfold.routing.neural.training import HELD_OUT_BRANCH, REFERENCE
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
# Days of this seed hang under the branch of held-out books, which training never draws from.
BENCH_SEED: Final = 2026
SECONDS_PER_OR_TOOLS_BOOK: Final = 1.0


def bench_neural(
    num_books: int = 500,
    num_requests: int = 30,
    repeats: int = 5,
    peer_books: int = 20,
    peer_seconds: float = SECONDS_PER_OR_TOOLS_BOOK,
    with_peers: bool = True,
    on_progress: Tick = lambda name: None,
) -> list[Row]:
    """Rows of speed by batch size, then of quality by book size."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = _speed_rows(num_requests, repeats, with_peers, on_progress)
        for size in book_sizes(num_requests):
            rows += _gap_rows(size, num_books, peer_books, peer_seconds, with_peers, on_progress)
    finally:
        torch.set_num_threads(threads)
    return rows


def book_sizes(num_requests: int) -> list[int]:
    """From one request to a whole day."""
    shares = (0.0, 1 / 6, 1 / 3, 2 / 3, 1.0)
    return sorted({max(1, round(share * num_requests)) for share in shares})


def held_out_days(num_days: int, num_requests: int) -> RouteProblems:
    """Days of the built-in city as they were asked, on a stream of their own."""
    key = rng.spawn(rng.seed_key(BENCH_SEED), HELD_OUT_BRANCH)
    return env_instances(DvrpSettings(), key, num_days, num_requests, offered=False)


def _speed_rows(num_requests: int, repeats: int, with_peers: bool, on_progress: Tick) -> list[Row]:
    oracle = NeuralOracle(EFFORTS["neural, greedy"])
    days = held_out_days(max(BATCHES), num_requests)
    oracle.solve(days.rows(slice(0, 1)))  # compile before the clock starts
    theirs = _rl4co(num_requests) if with_peers else None
    rows: list[Row] = []
    for batch in BATCHES:
        instance = f"batch of {batch} x {num_requests}"
        on_progress(instance)
        books = days.rows(slice(0, batch))
        spent: dict[str, list[float]] = {OURS: [], "rl4co": []}
        for _ in range(repeats):
            spent[OURS].append(_timed(partial(oracle.solve, books)))
            if theirs is not None:
                spent["rl4co"].append(_timed(partial(theirs, batch)))
        plans = oracle.solve(books)
        each = spread_of(spent[OURS])
        rows.append(_row(OURS, "neural, greedy", instance, books, plans, each, batch))
        if theirs is not None:
            their_spread = spread_of(spent["rl4co"])
            row = _timing_row("rl4co", "PDP policy, greedy", instance, their_spread, batch)
            rows.append(row | {"ratio_to_ours": their_spread.median / each.median})
    rows.append(_singles_row(oracle, days, repeats, on_progress))
    return rows


def _singles_row(oracle: NeuralOracle, days: RouteProblems, repeats: int, on_progress: Tick) -> Row:
    """64 calls with one book each, beside one call with all of them."""
    on_progress(f"{SINGLES} single calls")
    books = days.rows(slice(0, SINGLES))
    alone = [books.rows(slice(book, book + 1)) for book in range(SINGLES)]
    together, apart = [], []
    for _ in range(repeats):
        together.append(_timed(lambda: oracle.solve(books)))
        apart.append(_timed(lambda: [oracle.solve(book) for book in alone]))
    each = spread_of(apart)
    row = _timing_row(OURS, "neural, greedy", f"{SINGLES} single calls", each, SINGLES)
    return row | {"ratio_to_ours": each.median / spread_of(together).median}


def _gap_rows(
    size: int,
    num_books: int,
    peer_books: int,
    peer_seconds: float,
    with_peers: bool,
    on_progress: Tick,
) -> list[Row]:
    """Gaps on days of one size: of the mean price, to 100 rounds of search."""
    instance = f"held-out days {num_books} x {size}"
    on_progress(instance)
    books = held_out_days(num_books, size)
    reference = LNSOracle(REFERENCE).solve(books).cost
    rows = []
    for name, settings in EFFORTS.items():
        oracle = NeuralOracle(settings)
        oracle.solve(books.rows(slice(0, 1)))
        begin = time.thread_time()
        plans = oracle.solve(books)
        seconds = time.thread_time() - begin
        row = _row(OURS, name, instance, books, plans, spread_of([seconds]), num_books)
        rows.append(_against(row, float(reference.mean())))
    or_tools = _or_tools(peer_seconds) if with_peers and peer_books else None
    if or_tools is not None:
        few = books.rows(slice(0, peer_books))
        on_progress(f"{instance}: ortools on {peer_books}")
        begin = time.perf_counter()
        plans = or_tools.solve(few)
        seconds = time.perf_counter() - begin
        row = _row(
            "ortools",
            f"{peer_seconds:g} s",
            f"held-out days {peer_books} x {size}",
            few,
            plans,
            spread_of([seconds]),
            peer_books,
        )
        rows.append(_against(row, float(reference[:peer_books].mean())))
    return rows


def _or_tools(seconds: float) -> Oracle | None:
    try:
        return OrToolsOracle(OrToolsSettings(seconds=seconds))
    except MissingExtraError:
        return None


def _rl4co(num_requests: int) -> Callable[[int], Any] | None:
    """RL4CO's greedy attention policy for pickup and delivery, as (batch) -> answer."""
    try:
        from rl4co.envs import PDPEnv
        from rl4co.models.zoo.am import AttentionModelPolicy
    except ImportError:
        return None
    torch.set_num_threads(1)  # importing RL4CO gives torch all cores again
    size = NeuralOracle().router.policy.size
    env = PDPEnv(generator_params={"num_loc": 2 * num_requests})
    policy = AttentionModelPolicy(
        env_name="pdp",
        embed_dim=size.width,
        num_encoder_layers=size.layers,
        num_heads=size.heads,
        feedforward_hidden=size.feed_forward,
    ).eval()
    starts = {batch: env.reset(batch_size=[batch]) for batch in BATCHES}

    @torch.inference_mode()
    def answer(batch: int) -> Any:
        return policy(starts[batch].clone(), env, phase="test", decode_type="greedy")

    answer(1)
    return answer


def _timed(work: Callable[[], Any]) -> float:
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def _row(
    system: str,
    name: str,
    instance: str,
    problems: RouteProblems,
    plans: Solutions,
    seconds: Spread,
    num_books: int,
) -> Row:
    row = _timing_row(system, name, instance, seconds, num_books)
    found = {
        "cost": float(plans.cost.mean()),
        "violations": len(violations(problems, plans)) + int(np.isinf(plans.cost).sum()),
    }
    return row | found


def _timing_row(system: str, name: str, instance: str, seconds: Spread, num_books: int) -> Row:
    """A row whose `seconds` are those of one book; `ms_per_batch` those of the whole call."""
    return {
        "system": system,
        "oracle": name,
        "instance": instance,
        "cost": None,
        "reference": None,
        "gap_pct": None,
        "seconds": seconds.median / num_books,
        "low": seconds.low / num_books,
        "high": seconds.high / num_books,
        "repeats": seconds.repeats,
        "threads": 1,
        "violations": 0,
        "ms_per_batch": 1000.0 * seconds.median,
        "ratio_to_ours": None,
    }


def _against(row: Row, reference: float) -> Row:
    return row | {"reference": reference, "gap_pct": 100.0 * (row["cost"] / reference - 1.0)}
