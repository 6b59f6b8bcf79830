"""Routing oracles: price many books of dial-a-ride requests at once.

* `insertion` is the default: compiled, repeatable, within about a percent of the best known.
* `exact` proves the optimum of small books.
* `neural` is an attention policy that routes all books in one batched call; it needs torch.
* `or_tools` and `pyvrp` are references by others, loaded when chosen.
"""

from __future__ import annotations

from collections.abc import Callable

from hundredfold.routing.exact_oracle import ExactOracle
from hundredfold.routing.lns_oracle import LNSOracle
from hundredfold.routing.ortools_oracle import OrToolsOracle
from hundredfold.routing.problem import Oracle
from hundredfold.routing.pyvrp_oracle import PyVRPOracle


def _neural() -> Oracle:
    # Torch takes a second to load; a worker that never asks for it starts light.
    from hundredfold.routing.neural.oracle import NeuralOracle

    return NeuralOracle()


ORACLES: dict[str, Callable[[], Oracle]] = {
    "insertion": LNSOracle,
    "neural": _neural,
    "exact": ExactOracle,
    "or_tools": OrToolsOracle,
    "pyvrp": PyVRPOracle,
}
