"""Answers that customers gave to offers, kept first in, first out.

Offer 12 asks for nothing and everybody accepts it: it carries no information and is left out here,
so that no model has to think of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hundredfold.core.batch import Array, Arrays, BoolArray, FloatArray, State
from hundredfold.core.errors import SettingsError, ShapeError
from hundredfold.envs.dvrp.offers import NO_CHANGE, NUM_OFFERS


@dataclass(frozen=True, slots=True, eq=False)
class Responses:
    """Some answers, oldest first. Small types, because whole buffers of them are saved."""

    person: NDArray[np.int32]  # (answers,) index into the population
    purpose: NDArray[np.int16]  # (answers,)
    offer: NDArray[np.int8]  # (answers,)
    accepted: BoolArray  # (answers,)

    def __len__(self) -> int:
        return len(self.person)

    def arrays(self) -> Arrays:
        """The rows by name, for a snapshot."""
        return {
            "person": self.person,
            "purpose": self.purpose,
            "offer": self.offer,
            "accepted": self.accepted,
        }

    def counts(self, num_people: int, num_purposes: int) -> FloatArray:
        """(2, people, purposes x offers) how often everybody refused and accepted what."""
        questions = num_purposes * NUM_OFFERS
        question = self.purpose.astype(np.int64) * NUM_OFFERS + self.offer
        cell = (self.accepted * num_people + self.person.astype(np.int64)) * questions + question
        table = np.bincount(cell, minlength=2 * num_people * questions)
        return table.reshape(2, num_people, questions).astype(np.float64)


class ResponseBuffer:
    """The last `capacity` answers; a ring, so that adding never moves what is there."""

    def __init__(self, capacity: int = 64_000) -> None:
        if capacity < 1:
            raise SettingsError(f"acceptance_buffer_size must be at least 1, got {capacity}.")
        self.capacity = capacity
        self.ring = _no_rows(capacity)
        self.heard = 0

    def __len__(self) -> int:
        return min(self.heard, self.capacity)

    def add(self, person: Array, purpose: Array, offer: Array, accepted: Array) -> int:
        """Copy these rows in, those about offer 12 left out; returns how many that were."""
        if not len(person) == len(purpose) == len(offer) == len(accepted):
            raise ShapeError(
                f"add() got {len(person)} people, {len(purpose)} purposes, {len(offer)} offers "
                f"and {len(accepted)} answers; pass one of each per row."
            )
        asked = np.flatnonzero(offer != NO_CHANGE)
        kept = asked[-self.capacity :]
        # Rows that do not fit even an empty ring count as heard and forgotten.
        first = self.heard + len(asked) - len(kept)
        at = (first + np.arange(len(kept))) % self.capacity
        self.ring.person[at] = person[kept]
        self.ring.purpose[at] = purpose[kept]
        self.ring.offer[at] = offer[kept]
        self.ring.accepted[at] = accepted[kept]
        self.heard += len(asked)
        return len(asked)

    def rows(self) -> Responses:
        """Copies of everything that is kept, oldest first."""
        oldest = self.heard - len(self)
        at = (oldest + np.arange(len(self))) % self.capacity
        ring = self.ring
        return Responses(ring.person[at], ring.purpose[at], ring.offer[at], ring.accepted[at])

    def state(self) -> Arrays:
        return {**self.rows().arrays(), "heard": np.array(self.heard)}

    def restore(self, state: State) -> None:
        """Take back a snapshot; a smaller buffer keeps the newest rows."""
        rows = responses_from(state)
        self.heard = int(state["heard"]) - len(rows)
        self.add(rows.person, rows.purpose, rows.offer, rows.accepted)


def responses_from(state: State) -> Responses:
    """The rows of a snapshot."""
    return Responses(state["person"], state["purpose"], state["offer"], state["accepted"])


def _no_rows(number: int) -> Responses:
    return Responses(
        np.zeros(number, np.int32),
        np.zeros(number, np.int16),
        np.zeros(number, np.int8),
        np.zeros(number, bool),
    )
