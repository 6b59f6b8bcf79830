"""Bayesian type model: posterior over four customer types, acceptance rates learned by EM.

Given the chances of acceptance, a person's type follows from counts alone. The chances are learned
by expectation-maximisation: a refused pair of shifts does not say which side was too much, nor an
answer whose type it came from, so both are filled in with their expectation and counted.

Curves are shared: `late` and `none` are equally stiff about an earlier pickup. Against one rate per
type, purpose and offer this needs a tenth of the answers for the same held-out log-loss, and the
types keep their meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from hundredfold.core.batch import Arrays, FloatArray, IntArray, State, fill
from hundredfold.envs.dvrp.acceptance.prior import (
    NUM_LEVELS,
    STANCES,
    TINY,
    AcceptancePrior,
    accept_rates,
    answer_chances,
    level_pairs,
)
from hundredfold.envs.dvrp.acceptance.responses import Responses
from hundredfold.envs.dvrp.offers import NUM_OFFERS

MAX_ROUNDS: Final = 200
# Rounds end when no chance of a tolerance moves by more than this.
CONVERGED: Final = 1e-4


class BayesianTypeModel:
    """Posterior of every person's type, with learned acceptance curves and type shares.

    Every refit starts from the prior, so what comes out depends on the answers alone.
    """

    def __init__(self, num_people: int, prior: AcceptancePrior) -> None:
        self.num_people = num_people
        self.prior = prior
        self.chances = answer_chances(prior.noise)
        self.levels = prior.levels.copy()
        self.shares = prior.shares.copy()
        self.beliefs = np.tile(prior.shares, (num_people, 1))

    @property
    def accept_given_type(self) -> FloatArray:
        """(types, purposes, offers)."""
        return accept_rates(self.levels, self.chances)

    def ready(self, answers: Responses) -> bool:
        """Even one answer says something."""
        return len(answers) > 0

    def refit(
        self, answers: Responses, stopped: Callable[[], bool] = lambda: False
    ) -> dict[str, float]:
        """Learn from these answers alone; `stopped` is not asked, this takes milliseconds."""
        counts = answers.counts(self.num_people, self.prior.num_purposes)
        heard = counts.sum(axis=(0, 2)) > 0
        counts = np.ascontiguousarray(counts[:, heard])
        levels, shares = self.prior.levels, self.prior.shares
        rounds, moved = 0, np.inf
        while moved > CONVERGED and rounds < MAX_ROUNDS:
            beliefs, _ = posterior(counts, accept_rates(levels, self.chances), shares)
            learned = self._levels(levels, counts, beliefs)
            shares = self._shares(beliefs)
            moved = float(np.abs(learned - levels).max())
            levels = learned
            rounds += 1
        self.levels, self.shares = levels, shares
        beliefs, log_evidence = posterior(counts, self.accept_given_type, shares)
        self.beliefs[:] = shares
        self.beliefs[heard] = beliefs
        return {
            "acceptance/loss": -log_evidence / max(len(answers), 1),
            "acceptance/rounds": float(rounds),
        }

    def type_probabilities(self, people: IntArray) -> FloatArray:
        """(people, types); somebody never heard of is as likely of each type as people are."""
        return np.asarray(self.beliefs[people], np.float64)

    def accept_probabilities(self, people: IntArray, purposes: IntArray) -> FloatArray:
        """(rows, offers) the chance that these people accept each offer on such a trip."""
        return mixed(self.type_probabilities(people), self.accept_given_type, purposes)

    def state(self) -> Arrays:
        return {name: array.copy() for name, array in self._arrays().items()}

    def restore(self, state: State) -> None:
        fill(self._arrays(), state)

    def _levels(self, levels: FloatArray, counts: FloatArray, beliefs: FloatArray) -> FloatArray:
        """The curves that make the expected tolerances behind all answers most likely."""
        pairs, chances = level_pairs(levels), self.chances
        rates = np.clip(pairs @ chances.T, TINY, 1.0 - TINY)
        refused, accepted = (
            (beliefs.T @ table).reshape(len(STANCES), -1, NUM_OFFERS) for table in counts
        )
        expected = pairs * (
            (accepted / rates) @ chances + (refused / (1.0 - rates)) @ (1.0 - chances)
        )
        expected = expected.reshape(*expected.shape[:2], NUM_LEVELS, NUM_LEVELS)
        totals = self.prior.answers_worth * self.prior.levels
        np.add.at(totals[:, 0], STANCES[:, 0], expected.sum(axis=3))
        np.add.at(totals[:, 1], STANCES[:, 1], expected.sum(axis=2))
        return np.asarray(totals / totals.sum(axis=-1, keepdims=True), np.float64)

    def _shares(self, beliefs: FloatArray) -> FloatArray:
        prior = self.prior
        totals = beliefs.sum(axis=0) + prior.people_worth * prior.shares
        return np.asarray(totals / totals.sum(), np.float64)

    def _arrays(self) -> Arrays:
        return {"levels": self.levels, "shares": self.shares, "beliefs": self.beliefs}


def posterior(
    counts: FloatArray, rates: FloatArray, shares: FloatArray
) -> tuple[FloatArray, float]:
    """(people, types) P(type | answers), and the log-probability of all these answers.

    `counts` are those of `Responses.counts`, `rates` (types, purposes, offers).
    """
    flat = np.clip(rates.reshape(len(rates), -1), TINY, 1.0 - TINY)
    refused, accepted = counts
    scores = refused @ np.log1p(-flat).T + accepted @ np.log(flat).T
    scores += np.log(np.maximum(shares, TINY))
    highest = scores.max(axis=1, keepdims=True)
    odds = np.exp(scores - highest)
    total = odds.sum(axis=1, keepdims=True)
    return np.asarray(odds / total, np.float64), float((highest + np.log(total)).sum())


def mixed(types: FloatArray, rates: FloatArray, purposes: IntArray) -> FloatArray:
    """(rows, offers): sum over types of P(type) P(accept | type, purpose, offer)."""
    by_row = np.moveaxis(rates[:, purposes], 0, 1)  # (rows, types, offers)
    return np.asarray((types[:, None, :] @ by_row)[:, 0, :], np.float64)
