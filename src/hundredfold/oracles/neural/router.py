"""From books to the policy's routes: encoding in tiles, decoding in chunks, memory minded.

A matrix product may round differently for another number of rows. Books are therefore encoded in
tiles of one fixed size, filled up where books run out, each tile with books of one length: a book's
table is the same alone, in any batch and in any chunk.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from hundredfold.core.batch import IntArray
from hundredfold.core.errors import HundredfoldError
from hundredfold.core.streams import Words
from hundredfold.oracles.neural.batched import decode_batched
from hundredfold.oracles.neural.decode import decode_rows, decoder_weights
from hundredfold.oracles.neural.features import StopTable, stop_table
from hundredfold.oracles.neural.model import RoutingPolicy, Tables
from hundredfold.oracles.neural.prepared import Prepared, rows_by_size
from hundredfold.oracles.neural.settings import NeuralSettings

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

    def routes(self, ready: Prepared, keys: Words) -> tuple[IntArray, IntArray]:
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
        self, ready: Prepared, rows: IntArray, keys: Words, routes: IntArray, lengths: IntArray
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
        keys: Words,
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
