"""The `neural` oracle: a policy routes all books at once, and cheap passes finish its plans.

Whoever the policy left out is inserted where it is cheapest, relocation improves the plan, and of
several samples the cheapest is kept. Every random draw is keyed by a book's content: the same book
has the same price alone and in any batch.

How the neural oracle works.

From books to the policy's routes: encoding in tiles, decoding in chunks, memory minded.

A matrix product may round differently for another number of rows. Books are therefore encoded in
tiles of one fixed size, filled up where books run out, each tile with books of one length: a book's
table is the same alone, in any batch and in any chunk.

Kept plans with a policy: after each booking, the better of two plans for every env.

One is the plan that was kept, with the new request put where it is cheapest; the other is the
policy's plan of the whole book, all envs in one batched call. Pricing by the policy alone would
make a price jump whenever the policy changes its mind; a kept plan is given up only for a better
one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch

from hundredfold.core import rng
from hundredfold.core.batch import IntArray
from hundredfold.core.errors import HundredfoldError, SettingsError
from hundredfold.core.rng import Keys
from hundredfold.routing.incremental import IncrementalRoutes, IncrementalSettings
from hundredfold.routing.instance_arrays import InstanceArrays
from hundredfold.routing.lns import instance_keys
from hundredfold.routing.neural.decoder import decode_rows, decoder_weights
from hundredfold.routing.neural.features import StopTable, stop_table
from hundredfold.routing.neural.inputs import (
    Prepared,
    finish_plans,
    prepared,
    prepared_books,
    rows_by_size,
)
from hundredfold.routing.neural.model import RoutingPolicy, Tables
from hundredfold.routing.neural.torch_decoder import decode_batched
from hundredfold.routing.neural.transitions import plans_hold
from hundredfold.routing.neural.weights import load_policy
from hundredfold.routing.problem import Fleet, RouteProblems, Solutions, TravelTable
from hundredfold.routing.solution import build_solutions, solutions_from_routes


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuralSettings:
    """One batched forward pass, and what happens to its routes afterwards."""

    weights: str | None = None
    """Weights file of `hundredfold train-oracle`; by default the one that comes along."""
    oracle_samples: int = 1
    """Plans per book, the first greedy and the others drawn; the cheapest is kept."""
    improve_passes: int = 2
    """Relocate passes over every plan."""
    oracle_batch: int = 128
    """Books per batched call; more are split, and halved again when memory runs out."""
    temperature: float = 1.0
    """How boldly plans beyond the first are drawn."""
    device: str = "cpu"
    """Where to compute: cpu, cuda or cuda:1."""
    threads: int = 1
    """Threads over books while decoding and improving; prices do not depend on it."""
    batched_decode: bool = False
    """Decode on a CPU by the loop that GPUs use; the routes are the same."""

    def __post_init__(self) -> None:
        if min(self.oracle_samples, self.oracle_batch, self.threads) < 1:
            raise SettingsError(
                "the neural oracle needs oracle_samples, oracle_batch and threads of at least 1; "
                f"got {self.oracle_samples}, {self.oracle_batch} and {self.threads}."
            )
        if self.improve_passes < 0 or self.temperature <= 0.0:
            raise SettingsError(
                "the neural oracle needs improve_passes >= 0 and temperature > 0; "
                f"got {self.improve_passes} and {self.temperature}."
            )


# Books per tile: few on a CPU, where larger tiles are no faster and a single book pays for a whole
# one; many on a GPU.
CPU_TILE: Final = 8
CUDA_TILE: Final = 32


class Router:
    """Routes books with one policy; whoever calls finishes the plans."""

    def __init__(self, policy: RoutingPolicy, settings: NeuralSettings) -> None:
        self.settings = settings
        # Policies are shared by whoever loads the same file: one that moves house moves as a copy.
        self.policy = policy if settings.device == "cpu" else deepcopy(policy).to(settings.device)
        self.weights = decoder_weights(policy)
        self.batch = settings.oracle_batch

    def routes(self, ready: Prepared, keys: Keys) -> tuple[IntArray, IntArray]:
        """(samples, books, vehicles, width) routes and their lengths.

        `keys` (samples, books). The first sample is greedy, the others are drawn.
        """
        books, rules = ready.books, ready.rules
        shape = (*keys.shape, rules.num_vehicles)
        routes = np.zeros((*shape, max(1, books.cell.shape[1] - 1)), np.int64)
        lengths = np.zeros(shape, np.int64)
        for rows in rows_by_size(books.num_requests):
            start = 0
            while start < len(rows):
                chunk = rows[start : start + self.batch]
                try:
                    self._route_chunk(ready, chunk, keys, routes, lengths)
                except (MemoryError, RuntimeError) as error:
                    self._halve(error)
                    routes[:, chunk], lengths[:, chunk] = 0, 0
                    continue
                start += len(chunk)
        return routes, lengths

    @torch.inference_mode()
    def encode(self, ready: Prepared, rows: IntArray) -> Tables:
        """Tables of books of one size."""
        found = [tables for _, tables in self._tiles(ready, rows)]
        if len(found) == 1:
            return found[0]
        return Tables(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    def _tiles(self, ready: Prepared, rows: IntArray) -> Iterator[tuple[IntArray, Tables]]:
        """Some rows at a time with their tables; the last tile is filled up and cut again."""
        device = self.settings.device
        cpu = device == "cpu"
        tile = CPU_TILE if cpu else CUDA_TILE
        filled = np.resize(rows, -(-len(rows) // tile) * tile)
        table = stop_table(ready.books, ready.rules, ready.city, filled)
        drive = ready.drive
        if not cpu:
            table, drive = StopTable(*(part.to(device) for part in table)), drive.to(device)
        for at in range(0, len(filled), tile):
            mine = rows[at : at + tile]
            part = StopTable(*(values[at : at + tile] for values in table))
            stops, book = self.policy.encode(part, drive)
            yield mine, Tables(stops[: len(mine)], book[: len(mine)])

    @torch.inference_mode()
    def _route_chunk(
        self, ready: Prepared, rows: IntArray, keys: Keys, routes: IntArray, lengths: IntArray
    ) -> None:
        in_loop = self.settings.device == "cpu" and not self.settings.batched_decode
        # One compiled thread gains nothing from many tables at once, and loses them from its cache.
        by_tile = in_loop and self.settings.threads == 1
        parts = self._tiles(ready, rows) if by_tile else [(rows, self.encode(ready, rows))]
        for some, tables in parts:
            self._decode(ready, some, tables, keys, 0, 1, routes, lengths, in_loop)
            if len(keys) > 1:
                self._decode(ready, some, tables, keys, 1, len(keys), routes, lengths, in_loop)

    def _decode(
        self,
        ready: Prepared,
        rows: IntArray,
        tables: Tables,
        keys: Keys,
        first: int,
        last: int,
        routes: IntArray,
        lengths: IntArray,
        in_loop: bool,
    ) -> None:
        """Decode samples first .. last-1, the very first of all without luck."""
        temperature = 0.0 if first == 0 else self.settings.temperature
        keys, routes, lengths = keys[first:last], routes[first:last], lengths[first:last]
        if not in_loop:
            decode_batched(self.policy, ready, rows, tables, keys, temperature, routes, lengths)
            return
        decode_rows(
            ready.books,
            ready.rules,
            ready.pace,
            self.weights,
            rows,
            tables.stops.numpy(),
            tables.book.numpy(),
            keys,
            temperature,
            routes,
            lengths,
            self.settings.threads,
        )

    def _halve(self, error: Exception) -> None:
        """Go on with half as many books per call when memory ran out; else pass the error on."""
        if not _out_of_memory(error):
            raise error
        if self.batch == 1:
            raise HundredfoldError(
                "the neural oracle has no memory for a single book; "
                "use fewer oracle_samples, another device, or the insertion oracle."
            ) from error
        self.batch = max(1, self.batch // 2)
        self.settings = replace(self.settings, oracle_batch=self.batch)
        warnings.warn(
            f"out of memory in the neural oracle; going on with oracle_batch={self.batch}.",
            stacklevel=2,
        )


def _out_of_memory(error: Exception) -> bool:
    # The CPU's allocator has no error class of its own.
    told = ("out of memory", "not enough memory", "can't allocate memory")
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(
        words in str(error) for words in told
    )


class NeuralOracle:
    """Prices by an attention policy; weights come with the package."""

    def __init__(
        self, settings: NeuralSettings | None = None, policy: RoutingPolicy | None = None
    ) -> None:
        self.settings = settings or NeuralSettings()
        loaded = policy or load_policy(self.settings.weights)
        self.router = Router(loaded, self.settings)

    def solve(self, problems: RouteProblems) -> Solutions:
        """One plan per book; priced inf where somebody is left out."""
        if len(problems) == 0:
            return solutions_from_routes(problems, [])
        ready = prepared(problems)
        routes, lengths, _ = self.routes(ready, instance_keys(ready.books))
        return build_solutions(ready.books, ready.rules, routes, lengths)

    def routes(self, ready: Prepared, keys: Keys) -> tuple[IntArray, IntArray, IntArray]:
        """Finished routes (books, vehicles, width), their lengths and objectives in ticks."""
        samples = np.arange(self.settings.oracle_samples)
        sample_keys = rng.spawn(keys[None], samples[:, None])
        routes, lengths = self.router.routes(ready, sample_keys)
        for sample in samples:
            drop_impossible(ready, routes[sample], lengths[sample])
        ticks = np.stack(
            [
                finish_plans(
                    ready,
                    sample_keys[sample],
                    routes[sample],
                    lengths[sample],
                    self.settings.improve_passes,
                    self.settings.threads,
                )
                for sample in samples
            ]
        )
        best = ticks.argmin(axis=0)
        every = np.arange(len(keys))
        return routes[best, every], lengths[best, every], ticks[best, every]


def drop_impossible(ready: Prepared, routes: IntArray, lengths: IntArray) -> int:
    """Empty plans that break a promise, to be built by insertion; returns how many."""
    broken = ~plans_hold(ready.books, ready.rules, routes, lengths)
    routes[broken], lengths[broken] = 0, 0
    return int(broken.sum())


class NeuralKeptPlans(IncrementalRoutes):
    """`IncrementalRoutes` whose plans may also come from a neural oracle."""

    def __init__(
        self,
        travel: TravelTable,
        fleet: Fleet,
        num_envs: int,
        max_requests: int,
        oracle: NeuralOracle,
    ) -> None:
        settings = IncrementalSettings(
            improve_passes=oracle.settings.improve_passes,
            lns_iterations=0,
            threads=oracle.settings.threads,
        )
        super().__init__(travel, fleet, num_envs, max_requests, settings)
        self.oracle = oracle

    def _insert_and_improve(self, chosen: IntArray, keys: Keys) -> IntArray:
        ticks = super()._insert_and_improve(chosen, keys)
        if not len(chosen):
            return ticks
        ready = prepared_books(
            self.problems.travel, chosen_rows(self.instances, chosen), self.constraints
        )
        routes, lengths, found = self.oracle.routes(ready, keys[chosen])
        better = found < ticks[chosen]
        rows = chosen[better]
        self.routes[rows], self.lengths[rows] = routes[better], lengths[better]
        ticks[rows] = found[better]
        return ticks


def chosen_rows(books: InstanceArrays, chosen: IntArray) -> InstanceArrays:
    """These rows as books of their own."""
    if len(chosen) == len(books.num_requests):
        return books
    parts = {
        name: np.ascontiguousarray(getattr(books, name)[chosen])
        for name in InstanceArrays._fields
        if name != "drive"
    }
    return InstanceArrays(drive=books.drive, **parts)
