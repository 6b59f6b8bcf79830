"""Weight sync: how a policy reaches the actors, its network once and its weights every time.

Pickling a torch network takes milliseconds on both sides, its weights as plain arrays a tenth of
one. Small payloads travel inside the request, which saves actors a lookup in the object store.
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

# Ray sends arguments of up to 100 kB inside the request; larger ones it would store per actor.
MAX_INLINE_BYTES: Final = 64 * 2**10


class WeightPublisher:
    """The driver's side of the weight sync.

    Args:
        put: Puts bytes into the object store and returns a reference, as `ray.put`.
    """

    def __init__(self, put: Callable[[bytes], Any]) -> None:
        self.put = put
        self.published: ActorCritic | None = None
        self.policy: Any = b""

    def payload(self, policy: NetworkPolicy, weights: Arrays) -> tuple[Any, Any]:
        """The arguments of `WeightReceiver.load`: a policy, and the weights it is to act with."""
        if self.published is not policy.network:
            self.published = policy.network
            cpu_policy = copy.copy(policy)
            cpu_policy.network = copy.deepcopy(policy.network).to("cpu")
            cpu_policy.device = torch.device("cpu")
            self.policy = self._pack(cpu_policy)
        return self.policy, self._pack(weights)

    def _pack(self, content: Any) -> Any:
        """Pickled content, or a reference to it in the object store if it is large."""
        packed = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
        return packed if len(packed) <= MAX_INLINE_BYTES else self.put(packed)


class WeightReceiver:
    """An actor's side of the weight sync; unpickles the policy only when the network changes."""

    def __init__(self) -> None:
        self.packed_policy = b""

    def load(self, packed_policy: bytes, packed_weights: bytes) -> NetworkPolicy:
        """The policy with these weights."""
        if packed_policy != self.packed_policy:
            self.policy: NetworkPolicy = pickle.loads(packed_policy)
            self.packed_policy = packed_policy
        load_network(self.policy.network, pickle.loads(packed_weights))
        return self.policy
