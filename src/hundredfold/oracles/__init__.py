"""Routing oracles: price many books of dial-a-ride requests at once.

* `insertion` is the default: compiled, repeatable, within about a percent of the best known.
* `exact` proves the optimum of small books.
* `neural` is an attention policy that routes all books in one batched call; it needs torch.
* `or_tools` and `pyvrp` are references by others, loaded when chosen.
"""

from __future__ import annotations

from collections.abc import Callable

from hundredfold.oracles.exact import ExactOracle
from hundredfold.oracles.insertion import InsertionOracle
from hundredfold.oracles.or_tools import OrToolsOracle
from hundredfold.oracles.problem import Oracle
from hundredfold.oracles.pyvrp_reference import PyVRPOracle


def _neural() -> Oracle:
    # Torch takes a second to load; a worker that never asks for it starts light.
    from hundredfold.oracles.neural.oracle import NeuralOracle

    return NeuralOracle()


ORACLES: dict[str, Callable[[], Oracle]] = {
    "insertion": InsertionOracle,
    "neural": _neural,
    "exact": ExactOracle,
    "or_tools": OrToolsOracle,
    "pyvrp": PyVRPOracle,
}
