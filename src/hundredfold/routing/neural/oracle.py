"""The `neural` oracle: an attention policy constructs routes, and local search completes them.

`PolicyInference` encodes and decodes a batch of instances. `NeuralOracle` then drops infeasible
routes, inserts unserved requests, improves by local search and keeps the cheapest of several
samples. Every random draw is keyed by the instance's content, so an instance has the same cost
alone and in any batch. `NeuralIncrementalRoutes` is the stateful variant for envs.
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
from hundredfold.core.bounds import AtLeastOne, NonNegativeInt, Positive, check_bounds
from hundredfold.core.errors import HundredfoldError
from hundredfold.core.rng import Keys
from hundredfold.routing.incremental import IncrementalRoutes, IncrementalSettings
from hundredfold.routing.instance_arrays import InstanceArrays
from hundredfold.routing.lns import REGRET_ORDER, LNSParams, RouteArrays, improve_batch, instance_keys
from hundredfold.routing.neural.decoder import decode, decoder_weights
from hundredfold.routing.neural.feasibility import are_feasible
from hundredfold.routing.neural.features import (
    EncoderInputs,
    PolicyInputs,
    encoder_inputs,
    inputs_from_arrays,
    policy_inputs,
)
from hundredfold.routing.neural.model import DecoderCache, RoutingPolicy, load_policy
from hundredfold.routing.neural.torch_decoder import decode_torch
from hundredfold.routing.problem import INFEASIBLE, Fleet, RouteProblems, Solutions, TravelTable
from hundredfold.routing.solution import build_solutions, solutions_from_routes

# Instances per encoder call: few on a CPU, where larger tiles are no faster and a single instance
# pays for a whole one; many on a GPU.
CPU_TILE: Final = 8
CUDA_TILE: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuralSettings:
    """Settings of the neural oracle."""

    weights: str | None = None
    """Weights file written by `hundredfold train-oracle`; by default the shipped one."""
    oracle_samples: AtLeastOne = 1
    """Solutions decoded per instance, the first greedily, the others sampled; the best is kept."""
    improve_passes: NonNegativeInt = 2
    """Passes of relocate local search over every solution."""
    oracle_batch: AtLeastOne = 128
    """Instances per batched call; halved when memory runs out."""
    temperature: Positive = 1.0
    """Sampling temperature of solutions beyond the first."""
    device: str = "cpu"
    """Torch device: cpu, cuda or cuda:1."""
    threads: AtLeastOne = 1
    """Threads over instances while decoding and improving; costs do not depend on it."""
    torch_decoder: bool = False
    """Decode on a CPU by the torch decoder that GPUs use; the routes are the same."""

    def __post_init__(self) -> None:
        check_bounds(self)


class PolicyInference:
    """Batched inference of a routing policy: encode in tiles, decode in chunks.

    A matrix product may round differently for another number of rows. Instances are therefore
    encoded in tiles of one fixed size, padded by repetition, each with instances of one size: the
    embeddings of an instance are the same alone, in any batch and in any chunk.
    """

    def __init__(self, policy: RoutingPolicy, settings: NeuralSettings) -> None:
        self.settings = settings
        # Policies loaded from one file are shared: only a copy may move to another device.
        self.policy = policy if settings.device == "cpu" else deepcopy(policy).to(settings.device)
        self.weights = decoder_weights(policy)

    def routes(self, inputs: PolicyInputs, keys: Keys) -> tuple[IntArray, IntArray]:
        """Decode routes of all instances.

        Args:
            inputs: The batch of instances.
            keys: (samples, instances) RNG streams; the first sample is greedy.
        Returns:
            (samples, instances, vehicles, width) routes and (samples, instances, vehicles) lengths.
        """
        shape = (*keys.shape, inputs.constraints.num_vehicles)
        width = max(1, inputs.instances.cell.shape[1] - 1)
        routes = np.zeros((*shape, width), np.int64)
        lengths = np.zeros(shape, np.int64)
        for rows in rows_by_size(inputs.instances.num_requests):
            start = 0
            while start < len(rows):
                chunk = rows[start : start + self.settings.oracle_batch]
                try:
                    self._decode_chunk(inputs, chunk, keys, routes, lengths)
                except (MemoryError, RuntimeError) as error:
                    self._halve_batch(error)
                    routes[:, chunk], lengths[:, chunk] = 0, 0
                    continue
                start += len(chunk)
        return routes, lengths

    @torch.inference_mode()
    def encode(self, inputs: PolicyInputs, rows: IntArray) -> DecoderCache:
        """Encode instances of one size."""
        tiles = [cache for _, cache in self._encoded_tiles(inputs, rows)]
        if len(tiles) == 1:
            return tiles[0]
        return DecoderCache(*(torch.cat(parts) for parts in zip(*tiles, strict=True)))

    def _encoded_tiles(self, inputs: PolicyInputs, rows: IntArray) -> Iterator[tuple[IntArray, DecoderCache]]:
        """Encode tile by tile; the padding of the last one is removed again."""
        device = self.settings.device
        on_cpu = device == "cpu"
        tile = CPU_TILE if on_cpu else CUDA_TILE
        padded = np.resize(rows, -(-len(rows) // tile) * tile)
        encoded, drive = encoder_inputs(inputs, padded), inputs.drive
        if not on_cpu:
            encoded = EncoderInputs(*(part.to(device) for part in encoded))
            drive = drive.to(device)
        for start in range(0, len(padded), tile):
            tile_rows = rows[start : start + tile]
            part = EncoderInputs(*(values[start : start + tile] for values in encoded))
            stops, graph = self.policy.encode(part, drive)
            yield tile_rows, DecoderCache(stops[: len(tile_rows)], graph[: len(tile_rows)])

    @torch.inference_mode()
    def _decode_chunk(
        self, inputs: PolicyInputs, rows: IntArray, keys: Keys, routes: IntArray, lengths: IntArray
    ) -> None:
        settings = self.settings
        compiled = settings.device == "cpu" and not settings.torch_decoder
        # A single compiled thread decodes tile by tile, while the embeddings are in its cache.
        tiles = (
            self._encoded_tiles(inputs, rows)
            if compiled and settings.threads == 1
            else [(rows, self.encode(inputs, rows))]
        )
        for tile_rows, cache in tiles:
            greedy, sampled = (slice(0, 1), 0.0), (slice(1, None), settings.temperature)
            for samples, temperature in (greedy, sampled) if len(keys) > 1 else (greedy,):
                task = (tile_rows, cache, keys[samples], temperature)
                out = (routes[samples], lengths[samples])
                if compiled:
                    decode(self.weights, inputs, *task, *out, settings.threads)
                else:
                    decode_torch(self.policy, inputs, *task, *out)

    def _halve_batch(self, error: Exception) -> None:
        """Halve the batch size after running out of memory; other errors are raised again."""
        if not _is_out_of_memory(error):
            raise error
        batch = self.settings.oracle_batch // 2
        if batch == 0:
            raise HundredfoldError(
                "the neural oracle ran out of memory on a single instance; "
                "use fewer oracle_samples, another device, or the insertion oracle."
            ) from error
        self.settings = replace(self.settings, oracle_batch=batch)
        warnings.warn(f"the neural oracle ran out of memory; continuing with oracle_batch={batch}.", stacklevel=2)


def _is_out_of_memory(error: Exception) -> bool:
    # The CPU allocator has no error class of its own.
    messages = ("out of memory", "not enough memory", "can't allocate memory")
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(
        message in str(error) for message in messages
    )


class NeuralOracle:
    """Oracle whose routes are constructed by an attention policy."""

    def __init__(self, settings: NeuralSettings | None = None, policy: RoutingPolicy | None = None) -> None:
        """Load the policy of `settings.weights`, unless `policy` is given."""
        self.settings = settings or NeuralSettings()
        self.inference = PolicyInference(policy or load_policy(self.settings.weights), self.settings)

    def solve(self, problems: RouteProblems) -> Solutions:
        """Solve every instance; the cost is inf where a request is unserved."""
        problems.fleet.require_identical("neural")
        if len(problems) == 0:
            return solutions_from_routes(problems, [])
        inputs = policy_inputs(problems)
        routes, lengths, _ = self.routes(inputs, instance_keys(inputs.instances))
        return build_solutions(inputs.instances, inputs.constraints, routes, lengths)

    def routes(self, inputs: PolicyInputs, keys: Keys) -> tuple[IntArray, IntArray, IntArray]:
        """Best routes of every instance.

        Args:
            inputs: The batch of instances.
            keys: (instances,) RNG streams.
        Returns:
            (instances, vehicles, width) routes, (instances, vehicles) lengths and (instances,)
            objectives in microseconds.
        """
        settings = self.settings
        samples = np.arange(settings.oracle_samples)
        sample_keys = rng.spawn(keys[None], samples[:, None])
        routes, lengths = self.inference.routes(inputs, sample_keys)
        objectives = np.zeros(sample_keys.shape, np.int64)
        for sample in samples:
            drop_infeasible(inputs, routes[sample], lengths[sample])
            objectives[sample] = complete_routes(
                inputs, sample_keys[sample], routes[sample], lengths[sample], settings.improve_passes, settings.threads
            )
        best = objectives.argmin(axis=0)
        row = np.arange(len(keys))
        return routes[best, row], lengths[best, row], objectives[best, row]


def rows_by_size(num_requests: IntArray) -> list[IntArray]:
    """Group rows by number of requests; empty instances are omitted."""
    return [np.flatnonzero(num_requests == size) for size in np.unique(num_requests) if size > 0]


def drop_infeasible(inputs: PolicyInputs, routes: IntArray, lengths: IntArray) -> None:
    """Empty infeasible solutions in place, to be rebuilt by insertion."""
    infeasible = ~are_feasible(inputs.instances, inputs.constraints, routes, lengths)
    routes[infeasible], lengths[infeasible] = 0, 0


def complete_routes(
    inputs: PolicyInputs, keys: Keys, routes: IntArray, lengths: IntArray, improve_passes: int, threads: int = 1
) -> IntArray:
    """Insert unserved requests by regret, improve by local search; returns (instances,) objectives.

    Routes and lengths change in place; objectives are in microseconds.
    """
    objectives = np.full(len(keys), INFEASIBLE)
    search = LNSParams(improve_passes=improve_passes, iterations=0, max_removed=10)
    improve_batch(
        inputs.instances,
        inputs.constraints,
        search,
        REGRET_ORDER,
        np.arange(len(keys)),
        keys,
        RouteArrays(routes, lengths, objectives),
        threads,
    )
    return objectives


class NeuralIncrementalRoutes(IncrementalRoutes):
    """`IncrementalRoutes` that keep the better of two solutions after each request.

    One is the previous solution with the new request inserted where it is cheapest, the other the
    policy's solution of the whole instance. With the policy's alone, the cost would jump whenever
    the policy changes its routes.
    """

    def __init__(
        self, travel: TravelTable, fleet: Fleet, num_envs: int, max_requests: int, oracle: NeuralOracle
    ) -> None:
        settings = IncrementalSettings(
            improve_passes=oracle.settings.improve_passes, lns_iterations=0, threads=oracle.settings.threads
        )
        super().__init__(travel, fleet, num_envs, max_requests, settings)
        self.oracle = oracle

    def _insert_and_improve(self, chosen: IntArray, keys: Keys) -> IntArray:
        objectives = super()._insert_and_improve(chosen, keys)
        if not len(chosen):
            return objectives
        arrays = _take_rows(self.instances, chosen)
        inputs = inputs_from_arrays(self.problems.travel, arrays, self.constraints)
        routes, lengths, found = self.oracle.routes(inputs, keys[chosen])
        better = found < objectives[chosen]
        rows = chosen[better]
        self.routes[rows], self.lengths[rows] = routes[better], lengths[better]
        objectives[rows] = found[better]
        return objectives


def _take_rows(instances: InstanceArrays, rows: IntArray) -> InstanceArrays:
    """Copy some rows; all of them are returned as they are."""
    if len(rows) == len(instances.num_requests):
        return instances
    arrays = {
        name: np.ascontiguousarray(getattr(instances, name)[rows])
        for name in InstanceArrays._fields
        if name not in ("drive", "vehicles")
    }
    return InstanceArrays(drive=instances.drive, vehicles=instances.vehicles, **arrays)
