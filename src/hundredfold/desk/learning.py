"""What the desk believes about riders, updated with every response.

Known riders start from the acceptance model of a run, strangers from the population prior. A
Bayesian model learns from each response at once and is fitted again when a day is closed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from hundredfold.core.batch import Arrays, FloatArray, IntArray
from hundredfold.core.protocols import SharedParams
from hundredfold.desk.population import DeskPopulation
from hundredfold.envs.dvrp.acceptance.bayes import BayesianTypeModel, bayesian_type_model
from hundredfold.envs.dvrp.acceptance.belief_model import AcceptanceModel
from hundredfold.envs.dvrp.acceptance.model import FixedBeliefs, Responses, prior_for
from hundredfold.envs.dvrp.heuristics import AcceptanceBeliefs
from hundredfold.envs.dvrp.settings import DvrpSettings

__all__ = ["DeskBeliefs", "OfferResponse", "to_responses"]


@dataclass(frozen=True, slots=True)
class OfferResponse:
    """A rider's response to one offer."""

    customer: int
    trip: int
    purpose: int
    offer: int
    accepted: bool


def to_responses(rows: list[OfferResponse]) -> Responses:
    """Responses in columns, as acceptance models take them."""
    return Responses(
        customer=np.array([row.customer for row in rows], np.int32),
        trip=np.array([row.trip for row in rows], np.int32),
        purpose=np.array([row.purpose for row in rows], np.int16),
        offer=np.array([row.offer for row in rows], np.int8),
        accepted=np.array([row.accepted for row in rows], bool),
    )


class DeskBeliefs:
    """Acceptance probabilities of all riders, new ones included.

    Args:
        riders: Riders and trips of the desk.
        settings: Settings of the env.
        source: Acceptance model of the run whose policy the desk uses; None starts from the prior.
        learn: Whether responses change the beliefs.
    """

    def __init__(
        self, riders: DeskPopulation, settings: DvrpSettings, source: AcceptanceModel | None, learn: bool
    ) -> None:
        self.riders = riders
        self.model: AcceptanceBeliefs
        self.bayes: BayesianTypeModel | None = None
        size, num_trips = riders.population.size, len(riders.population.trips.purpose)
        if source is None:
            self.bayes = self.model = _extended(riders, settings, None)
        elif isinstance(source.model, BayesianTypeModel):
            self.bayes = self.model = _extended(riders, settings, source.model)
        else:
            params = source.params(exploring=False)
            self.model = FixedBeliefs(_padded_params(params, size, num_trips))
        self.learns = learn and self.bayes is not None
        # Beliefs in the form that envs take, None if the run has no acceptance model.
        self.params: SharedParams | None = None
        if source is not None:
            self.params = _padded_params(source.params(exploring=False), size, num_trips)
        self.version = 0
        self.by_customer: dict[int, list[OfferResponse]] = defaultdict(list)
        if source is not None and self.learns:
            rows = source.responses.rows()
            for columns in zip(rows.customer, rows.trip, rows.purpose, rows.offer, rows.accepted, strict=True):
                customer, trip, purpose, offer = (int(value) for value in columns[:4])
                self.by_customer[customer].append(OfferResponse(customer, trip, purpose, offer, bool(columns[4])))
        self._remember_fit()

    def accept_probabilities(self, customer: int, purpose: int, trip: int) -> FloatArray:
        """(offers,) believed acceptance probabilities of one rider's trip."""
        rows = (np.array([number]) for number in (customer, purpose, trip))
        return np.asarray(self.model.accept_probabilities(*rows)[0], np.float64)

    def type_probabilities(self, customer: int) -> FloatArray:
        """(types,) believed probabilities of a rider's type."""
        return np.asarray(self.model.type_probabilities(np.array([customer]))[0], np.float64)

    def observe(self, response: OfferResponse) -> None:
        """Learn from one response."""
        if not self.learns or response.offer == self.riders.population.offers.no_change:
            return
        assert self.bayes is not None
        own = self.by_customer[response.customer]
        own.append(response)
        self.bayes.observe(to_responses(own))
        self._publish(response.customer)

    def forget(self, response: OfferResponse) -> None:
        """Take back a response that was undone; one from before the last refit counts until the next."""
        own = self.by_customer[response.customer]
        if not self.learns or response not in own:
            return
        assert self.bayes is not None
        last = len(own) - 1 - own[::-1].index(response)
        del own[last]
        fitted = min(self.fitted_counts.get(response.customer, 0), len(own))
        self.bayes.beliefs[response.customer] = self.fitted["beliefs"][response.customer]
        trips = np.array(sorted({row.trip for row in [*own, response]}), np.int64)
        if len(self.bayes.trip_accept_rates):
            self.bayes.trip_accept_rates[trips] = self.fitted["trip_accept_rates"][trips]
        for number in range(fitted + 1, len(own) + 1):
            self.bayes.observe(to_responses(own[:number]))
        self._publish(response.customer)

    def refit(self) -> None:
        """Fit the model to all responses."""
        rows = [row for customer in sorted(self.by_customer) for row in self.by_customer[customer]]
        if not self.learns or not rows:
            return
        assert self.bayes is not None
        self.bayes.refit(to_responses(rows))
        self._remember_fit()
        if self.params is not None:
            params = dict(self.params)
            params["accept_given_type"] = self.bayes.accept_given_type.astype(np.float32)
            params["type_probabilities"] = self.bayes.beliefs.astype(np.float32)
            if "trip_accept_rates" in params:
                params["trip_accept_rates"] = self.bayes.trip_accept_rates.astype(np.float16)
            self.params = params
        self.version += 1

    def _remember_fit(self) -> None:
        self.fitted: Arrays = {} if self.bayes is None else self.bayes.state()
        self.fitted_counts = {customer: len(rows) for customer, rows in self.by_customer.items()}

    def _publish(self, customer: int) -> None:
        """Write the beliefs about one rider to the parameters that envs take."""
        self.version += 1
        if self.params is None or self.bayes is None:
            return
        self.params["type_probabilities"][customer] = self.bayes.beliefs[customer]
        self.params["response_counts"][customer] = len(self.by_customer[customer])
        if "trip_accept_rates" in self.params:
            trips: IntArray = np.array(sorted({row.trip for row in self.by_customer[customer]}), np.int64)
            self.params["trip_accept_rates"][trips] = self.bayes.trip_accept_rates[trips]


def _extended(riders: DeskPopulation, settings: DvrpSettings, source: BayesianTypeModel | None) -> BayesianTypeModel:
    """A Bayesian model with room for new riders and trips; strangers get the type shares."""
    has_memory = source is None or len(source.trip_accept_rates) > 0
    has_groups = source is None or bool(source.groups)
    model = bayesian_type_model(
        riders.population,
        prior_for(settings),
        trip_memory=has_memory,
        stranger_prior=has_groups,
        forgetting=0.0 if source is None else source.forgetting,
    )
    if source is not None:
        model.tolerance_probs[:] = source.tolerance_probs
        model.type_shares[:] = source.type_shares
        model.beliefs[:] = source.type_shares
        model.beliefs[: len(source.beliefs)] = source.beliefs
        model.trip_accept_rates[: len(source.trip_accept_rates)] = source.trip_accept_rates
    return model


def _padded_params(params: SharedParams, size: int, num_trips: int) -> SharedParams:
    """Parameters of the envs with rows for new riders and trips."""
    padded = {name: np.array(array) for name, array in params.items()}
    types = padded["type_probabilities"]
    strangers = np.tile(types.mean(axis=0), (size - len(types), 1))
    padded["type_probabilities"] = np.concatenate([types, strangers]).astype(types.dtype)
    counts = padded["response_counts"]
    padded["response_counts"] = np.concatenate([counts, np.zeros(size - len(counts), counts.dtype)])
    if "trip_accept_rates" in padded:
        rates = padded["trip_accept_rates"]
        unknown = np.full((num_trips - len(rates), rates.shape[1]), np.nan, rates.dtype)
        padded["trip_accept_rates"] = np.concatenate([rates, unknown])
    # Shares of trips are for sampled futures, which the desk does not train on.
    padded.pop("applied_shares", None)
    return padded
