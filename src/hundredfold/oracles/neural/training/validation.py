"""Held-out books: how far above a searched plan the policy's plans are, by book size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from hundredfold.core import streams
from hundredfold.core.streams import Words
from hundredfold.oracles.insertion import InsertionOracle, InsertionSettings
from hundredfold.oracles.neural.model import RoutingPolicy
from hundredfold.oracles.neural.oracle import NeuralOracle
from hundredfold.oracles.neural.settings import NeuralSettings
from hundredfold.oracles.problem import RouteProblems

Draw = Callable[[Words, int, int], RouteProblems]

# What plans are compared with: search from nothing with this many rounds.
REFERENCE: Final = InsertionSettings(lns_iterations=100, final_restarts=1)
# Held-out books hang under a branch of their own.
HELD_OUT_BRANCH: Final = 0x68656C64


class HeldOut:
    """Books that training never sees, with their reference prices."""

    def __init__(self, draw: Draw, sizes: Sequence[int], num_books: int, seed: int) -> None:
        root = streams.spawn(streams.seed_key(seed), HELD_OUT_BRANCH)
        self.books = {size: draw(streams.spawn(root, size), num_books, size) for size in sizes}
        reference = InsertionOracle(REFERENCE)
        self.reference = {size: reference.solve(books).price for size, books in self.books.items()}

    def gaps(self, policy: RoutingPolicy, settings: NeuralSettings) -> dict[int, float]:
        """Percent above the reference by size, of the mean price; inf where somebody waits."""
        oracle = NeuralOracle(settings, policy)
        return {
            size: float(100.0 * (oracle.solve(books).price.sum() / self.reference[size].sum() - 1))
            for size, books in self.books.items()
        }


def looked_at(max_requests: int) -> tuple[int, ...]:
    """Sizes worth a look: a few between one request and a whole day."""
    shares = (0.0, 0.15, 0.35, 0.65, 1.0)
    return tuple(sorted({max(1, round(share * max_requests)) for share in shares}))


def greedy_and_finished(
    held_out: HeldOut, policy: RoutingPolicy, settings: NeuralSettings | None = None
) -> dict[str, dict[int, float]]:
    """Gaps of the bare greedy plan, and after two relocate passes."""
    base = settings or NeuralSettings()
    return {
        "greedy": held_out.gaps(policy, replace(base, improve_passes=0)),
        "relocated": held_out.gaps(policy, replace(base, improve_passes=2)),
    }
