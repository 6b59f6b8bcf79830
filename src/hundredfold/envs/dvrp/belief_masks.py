"""What an acceptance model has told the envs, and which offers that leaves open.

A mask turns belief into a rule: `threshold` allows what is probably accepted, `sampled_type` what
a type drawn from the belief would accept, `soft` allows everything but leans against refusals,
`known` looks behind the curtain (an upper bound), `none` allows whatever the day permits. Offer 12
is always allowed. With probability `epsilon` an env ignores its mask for one call, and so goes on
learning about people it has written off.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import Array, Arrays, BoolArray, IntArray
from hundredfold.core.errors import ShapeError
from hundredfold.core.protocols import SharedParams
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.observation import BELIEF_WIDTH
from hundredfold.envs.dvrp.offers import NO_CHANGE, NUM_OFFERS, OFFER_MINUTES
from hundredfold.envs.dvrp.population import NUM_TYPES, Population
from hundredfold.envs.dvrp.settings import MaskMode
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES

# A chance of acceptance below this leans no harder against an offer.
LEAST_CHANCE: Final = 1e-3
# Draws of one call: whether the mask is ignored, and which type is supposed.
DRAWS_PER_CALL: Final = 2


def type_masks() -> BoolArray:
    """(types, offers) what each personality accepts when it is taken at its word."""
    earlier, later = OFFER_MINUTES.T == 0
    return np.stack([earlier, later, earlier & later, np.ones(NUM_OFFERS, bool)])


TYPE_MASKS: Final[BoolArray] = type_masks()


class Beliefs:
    """One copy per env, so that snapshots can be cut and joined by env."""

    def __init__(self, num_envs: int, population: Population) -> None:
        shape = (num_envs, population.size, BELIEF_WIDTH)
        self.people = np.zeros(shape, np.float32)  # type probabilities, answers seen
        # Until somebody tells more, one type is as likely as another and nobody refuses anything.
        self.people[..., :NUM_TYPES] = 1.0 / NUM_TYPES
        self.accept_given_type = np.ones(
            (num_envs, NUM_TYPES, len(PURPOSE_NAMES), NUM_OFFERS), np.float32
        )
        self.epsilon = np.zeros(num_envs, np.float32)
        self.sample_types = np.ones(num_envs, bool)

    def arrays(self) -> Arrays:
        return {
            "people": self.people,
            "accept_given_type": self.accept_given_type,
            "epsilon": self.epsilon,
            "sample_types": self.sample_types,
        }

    def set_shared_params(self, shared_params: SharedParams) -> None:
        """Take in what is told by name; whatever is missing stays as it was.

        `type_probabilities` (people, 4), `response_counts` (people,), `accept_given_type`
        (4, purposes, 16), `epsilon` () and `sample_types` ().
        """
        places = {
            "type_probabilities": self.people[..., :NUM_TYPES],
            "response_counts": self.people[..., NUM_TYPES],
            "accept_given_type": self.accept_given_type,
            "epsilon": self.epsilon,
            "sample_types": self.sample_types,
        }
        told = {
            name: np.asarray(shared_params[name]) for name in places.keys() & shared_params.keys()
        }
        for name, array in told.items():
            wanted = places[name].shape[1:]
            if array.shape != wanted:
                raise ShapeError(
                    f"inform() got {name} of shape {array.shape} where {wanted} is wanted; pass "
                    "one row per person of the population, unseen ones included."
                )
        for name, array in told.items():
            places[name][...] = array

    def accept_chances(self, people: IntArray, purposes: IntArray) -> Array:
        """(envs, offers) believed chance that each env's caller accepts each offer."""
        envs = np.arange(len(people))
        types = self.people[envs, people, :NUM_TYPES]
        given_type = self.accept_given_type[envs, :, purposes]
        chances: Array = np.einsum("et,eto->eo", types, given_type)
        chances[:, NO_CHANGE] = 1.0
        return chances

    def masks(
        self,
        mode: MaskMode,
        threshold: float,
        people: IntArray,
        chances: Array,
        accepts: BoolArray,
        luck: Array,
    ) -> BoolArray:
        """(envs, offers) what a mask leaves open; `luck` is (envs, 2) in [0, 1)."""
        if mode == "threshold":
            mask = chances >= threshold
        elif mode == "sampled_type":
            mask = TYPE_MASKS[self._supposed_types(people, luck[:, 1])]
        elif mode == "privileged":
            mask = accepts.copy()
        else:
            mask = np.ones(chances.shape, bool)
        mask[:, NO_CHANGE] = True
        mask[self.ignored(luck)] = True
        return np.asarray(mask, bool)

    def leanings(self, strength: float, chances: Array, luck: Array) -> Array:
        """(envs, offers) what `soft` adds to the logits of a policy."""
        lean: Array = strength * np.log(np.maximum(chances, LEAST_CHANCE))
        lean[self.ignored(luck)] = 0.0
        return lean

    def ignored(self, luck: Array) -> BoolArray:
        """(envs,) whose mask does not count for this call."""
        return np.asarray(luck[:, 0] < self.epsilon, bool)

    def _supposed_types(self, people: IntArray, luck: Array) -> IntArray:
        """(envs,) a type drawn from the belief, or the most likely one when evaluated."""
        types = self.people[np.arange(len(people)), people, :NUM_TYPES]
        ladder = types.cumsum(axis=1)
        drawn = (ladder <= (luck * ladder[:, -1])[:, None]).sum(axis=1)
        drawn = np.minimum(drawn, NUM_TYPES - 1)
        return np.asarray(np.where(self.sample_types, drawn, types.argmax(axis=1)), np.int64)


def mask_luck(episode_keys: Keys, calls: IntArray, child: int) -> Array:
    """(envs, 2) the draws of every env's current call."""
    counts = calls[:, None] * DRAWS_PER_CALL + np.arange(DRAWS_PER_CALL)
    return rng.uniforms(rng.spawn(episode_keys, child)[:, None], counts)
