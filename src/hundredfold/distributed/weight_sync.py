"""How a policy reaches the actors: its network once, its weights with every order.

Pickling a network of torch takes milliseconds on both sides, its weights as plain arrays a tenth of
one; and what is small travels along with an order, which spares actors a look into the store.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any, Final

import torch

from hundredfold.algorithms.actor_critic import ActorCritic
from hundredfold.algorithms.policies import NetworkPolicy
from hundredfold.algorithms.weights import load_network
from hundredfold.core.batch import Arrays

# Ray keeps arguments of up to 100 kB in the order itself; larger ones it would store per actor.
SMALL_BYTES: Final = 64 * 2**10


class Teacher:
    """The driver's side. `put` lays something into the store, once for all actors of a node."""

    def __init__(self, put: Callable[[bytes], Any]) -> None:
        self.put = put
        self.taught: ActorCritic | None = None
        self.policy: Any = b""

    def lesson(self, policy: NetworkPolicy, weights: Arrays) -> tuple[Any, Any]:
        """Two arguments of an order: a policy, and the weights it acts with."""
        if self.taught is not policy.network:
            self.taught = policy.network
            twin = copy.copy(policy)
            twin.network = copy.deepcopy(policy.network).to("cpu")
            twin.device = torch.device("cpu")
            self.policy = self._carried(twin)
        return self.policy, self._carried(weights)

    def _carried(self, content: Any) -> Any:
        packed = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
        return packed if len(packed) <= SMALL_BYTES else self.put(packed)


class Pupil:
    """An actor's side: keeps the policy for as long as only its weights change."""

    def __init__(self) -> None:
        self.packed = b""

    def learn(self, packed: bytes, weights: bytes) -> NetworkPolicy:
        """The policy of a lesson."""
        if packed != self.packed:
            self.policy: NetworkPolicy = pickle.loads(packed)
            self.packed = packed
        load_network(self.policy.network, pickle.loads(weights))
        return self.policy
