"""What every model of flexibility can do, and the two there are.

`embedding` needs torch, which is imported when somebody chooses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from hundredfold.core.batch import Arrays, FloatArray, IntArray, State
from hundredfold.envs.dvrp.acceptance.bayes import BayesianTypeModel
from hundredfold.envs.dvrp.acceptance.prior import AcceptancePrior
from hundredfold.envs.dvrp.acceptance.responses import Responses


class TypeModel(Protocol):
    """Learns everybody's type from answers; types in the order late, early, none, both."""

    @property
    def accept_given_type(self) -> FloatArray:
        """(types, purposes, offers) the chance that a type accepts; never 0, 1 for offer 12."""
        ...

    def ready(self, answers: Responses) -> bool:
        """Whether these answers are enough to learn from."""
        ...

    def refit(self, answers: Responses, stopped: Callable[[], bool] = ...) -> dict[str, float]:
        """Learn from these answers and tell the losses; `stopped` may end a long one early."""
        ...

    def type_probabilities(self, people: IntArray) -> FloatArray:
        """(people, types)."""
        ...

    def accept_probabilities(self, people: IntArray, purposes: IntArray) -> FloatArray:
        """(rows, offers) the chance that each person accepts each offer on such a trip."""
        ...

    def state(self) -> Arrays: ...

    def restore(self, state: State) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeModelConfig:
    """What a model may ask for when it is made."""

    num_people: int
    prior: AcceptancePrior
    seed: int = 0
    device: str = "cpu"
    epochs: int = 50


def _bayes(needs: TypeModelConfig) -> TypeModel:
    return BayesianTypeModel(needs.num_people, needs.prior)


def _embedding(needs: TypeModelConfig) -> TypeModel:
    from hundredfold.envs.dvrp.acceptance.embedding import Embedding

    return Embedding(
        needs.num_people, needs.prior.num_purposes, needs.seed, needs.device, needs.epochs
    )


TYPE_MODELS: Final[dict[str, Callable[[TypeModelConfig], TypeModel]]] = {
    "bayes": _bayes,
    "embedding": _embedding,
}
