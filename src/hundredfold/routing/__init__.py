"""Routing oracles: routes and costs of many dial-a-ride instances at once.

* `insertion`, the default: large neighbourhood search with insertion operators; compiled,
  reproducible, within about a percent of the best known costs.
* `exact`: optimal solutions of small instances.
* `neural`: an attention policy that routes all instances in one batched call; needs torch.
* `or_tools`, `pyvrp`: reference solvers, imported when chosen.
"""

from __future__ import annotations

from collections.abc import Callable

from hundredfold.routing.exact_oracle import ExactOracle
from hundredfold.routing.lns_oracle import LNSOracle
from hundredfold.routing.ortools_oracle import OrToolsOracle
from hundredfold.routing.problem import Oracle
from hundredfold.routing.pyvrp_oracle import PyVRPOracle


def _neural() -> Oracle:
    # Importing torch takes a second; workers that do not need it start without it.
    from hundredfold.routing.neural.oracle import NeuralOracle

    return NeuralOracle()


ORACLES: dict[str, Callable[[], Oracle]] = {
    "insertion": LNSOracle,
    "neural": _neural,
    "exact": ExactOracle,
    "or_tools": OrToolsOracle,
    "pyvrp": PyVRPOracle,
}
