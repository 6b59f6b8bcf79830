"""Acceptance model of dvrp: stores responses, refits a type model, exports its beliefs to the envs.

Everything that decides when and on what it refits is counted and saved: a resumed run refits at the
same step, on the same responses, to the same bits. A background refit starts at the end of an epoch
on a copy of the responses and is adopted at the end of the next one, however fast it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, Literal, get_args

import numpy as np
from annotated_types import Interval

from hundredfold.core.batch import Arrays, FloatArray, IntArray, State, StepBatch, with_prefix, without_prefix
from hundredfold.core.bounds import AtLeastOne, Fraction, NonNegativeInt, check_bounds
from hundredfold.core.errors import CheckpointError, SettingsError, TrainingError, suggest
from hundredfold.core.protocols import SharedParams
from hundredfold.envs.dvrp.acceptance import metrics
from hundredfold.envs.dvrp.acceptance.bayes import bayesian_type_model
from hundredfold.envs.dvrp.acceptance.model import (
    AcceptancePrior,
    ResponseBuffer,
    Responses,
    TypeModel,
    prior_for,
    responses_from,
)
from hundredfold.envs.dvrp.belief_masks import APPLIED_SHARES
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.offers import DEFAULT_OFFERS, OfferTable
from hundredfold.envs.dvrp.population import TYPE_NAMES, Population
from hundredfold.envs.dvrp.settings import DvrpSettings

TypeModelName = Literal["bayes", "embedding", "none"]
RefitMode = Literal["inline", "background"]

# Days of every env between two refits, if `acceptance_refit_interval` is 0.
DAYS_BETWEEN_REFITS: Final = 10
# Weight of counted bookings an epoch later: about ten epochs tell what the present policy does.
APPLIED_DECAY: Final = 0.9
# A trip counts as booked so often without a shift before anything is known.
UNCHANGED_WEIGHT: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceModelSettings:
    """How each customer's flexibility is learned while the policy trains."""

    acceptance_model: TypeModelName = "bayes"
    """Model of customer types: `bayes` (exact posterior), `embedding` (a network) or `none`."""
    trip_memory: bool = True
    """Remember how far each recurring trip may be shifted; off, a customer's trips of one purpose
    are believed to be alike. `bayes` only."""
    stranger_prior: bool = True
    """Expect of customers without responses what others of their age, occupation and neighbourhood
    responded; off, what all others did. `bayes` only."""
    acceptance_forgetting: Annotated[float, Interval(ge=0.0, lt=1.0)] = 0.0
    """Share of its weight that a response loses with every later response to the same trip, for
    customers whose tolerances change over time; 0 forgets nothing. `bayes` only."""
    acceptance_buffer_size: AtLeastOne = 64_000
    """Responses stored for refits, first in, first out."""
    acceptance_refit_interval: NonNegativeInt = 0
    """Steps of all envs between two refits; 0: ten days of every env. Refits end an epoch."""
    acceptance_refit: RefitMode = "inline"
    """`background` refits during the next epoch and adopts the result at its end; repeatable."""
    embedding_epochs: AtLeastOne = 50
    """Passes of the embedding model over all stored responses in one refit."""
    epsilon_start: Fraction = 0.2
    """Probability, in the first epoch, that an env ignores the belief mask for a call."""
    epsilon_end: Fraction = 0.0
    """The same in the last epoch; linear in between."""

    def __post_init__(self) -> None:
        for name, known in (("acceptance_model", TypeModelName), ("acceptance_refit", RefitMode)):
            given = getattr(self, name)
            if given not in get_args(known):
                raise SettingsError(f"{name} has no {given!r}; {suggest(given, get_args(known))}")
        check_bounds(self)


@dataclass(frozen=True, slots=True, eq=False)
class GroundTruth:
    """Hidden truth about the customers: used for metrics, never for learning."""

    types: IntArray  # (customers,)
    accept_rates: FloatArray  # (types, purposes, offers)


class AcceptanceModel:
    """Belief model of dvrp: the responses of all envs and a model of every customer's type.

    Args:
        settings: Buffer, refits and exploration.
        new_type_model: Creates an untrained type model.
        population_size: Number of customers.
        refit_interval: Steps of all envs between two refits.
        num_epochs: Epochs of the run, for the epsilon schedule.
        truth: Hidden truth for metrics; None leaves those metrics out.
        num_trips: Trips whose bookings are counted, so that sampled futures are booked as the policy
            books; 0 counts none.
        offers: The offers of the env.
    """

    def __init__(
        self,
        settings: AcceptanceModelSettings,
        new_type_model: Callable[[], TypeModel],
        *,
        population_size: int,
        refit_interval: int,
        num_epochs: int,
        truth: GroundTruth | None = None,
        num_trips: int = 0,
        offers: OfferTable = DEFAULT_OFFERS,
    ) -> None:
        self.offers = offers
        self.settings, self.num_epochs, self.truth = settings, num_epochs, truth
        self.refit_interval = refit_interval
        self.new_type_model = new_type_model
        self.model = new_type_model()
        self.responses = ResponseBuffer(settings.acceptance_buffer_size, offers=offers)
        self.response_counts = np.zeros(population_size, np.int64)
        # (trips, offers) bookings under each offer, of which older ones count less.
        self.applied_counts = np.zeros((num_trips, offers.num_offers))
        self.epochs = self.refits = self.steps_since_refit = self.num_scored = 0
        self.pending: BackgroundRefit | None = None

    @property
    def epsilon(self) -> float:
        """Probability of ignoring the belief mask in the coming epoch."""
        start, end = self.settings.epsilon_start, self.settings.epsilon_end
        return start + (end - start) * min(self.epochs / max(self.num_epochs - 1, 1), 1.0)

    def observe(self, batch: StepBatch) -> None:
        """Store the responses of these rows."""
        info = batch.info
        customer, offer, no_change = info["customer_id"], info["offer"], self.offers.no_change
        self.responses.add(customer, info["trip_id"], info["purpose"], offer, info["accepted"])
        np.add.at(self.response_counts, customer[offer != no_change], 1)
        if len(self.applied_counts):
            np.add.at(self.applied_counts, (info["trip_id"], np.where(info["accepted"], offer, no_change)), 1.0)
        self.steps_since_refit += len(batch)

    def learn(self, responses: Responses) -> None:
        """Start from recorded responses, for example those of a booking desk."""
        rows = responses
        self.responses.add(rows.customer, rows.trip, rows.purpose, rows.offer, rows.accepted)
        np.add.at(self.response_counts, rows.customer, 1)
        self.num_scored = self.responses.num_added
        if self.model.ready(self.responses.rows()):
            self.model.refit(self.responses.rows())
            self.refits += 1

    def update(self) -> dict[str, float]:
        """End an epoch: adopt a background refit, start a refit if one is due; returns metrics."""
        found = {"epsilon": self.epsilon, **self._prediction_metrics()}
        self.epochs += 1
        self.applied_counts *= APPLIED_DECAY
        if self.pending is not None:
            self.model, losses = self.pending.result()
            found |= losses | self._refit_metrics(self.pending.responses)
            self.pending = None
            self.refits += 1
        responses = self._due_responses()
        if responses is not None:
            self.steps_since_refit = 0
            # After the last epoch there is nothing left to run in parallel with.
            if self.settings.acceptance_refit == "background" and self.epochs < self.num_epochs:
                self._start_background_refit(responses)
            else:
                found |= self.model.refit(responses)
                found |= self._refit_metrics(responses)
                self.refits += 1
        found["acceptance/responses"] = float(len(self.responses))
        found["acceptance/refits"] = float(self.refits)
        return found

    def params(self, *, exploring: bool) -> SharedParams:
        """Beliefs about all customers for the envs; `exploring` is False in evaluation."""
        customers, trip_rates = np.arange(len(self.response_counts)), self.model.trip_accept_rates
        remembered = {"trip_accept_rates": trip_rates.astype(np.float16)} if len(trip_rates) else {}
        if len(self.applied_counts):
            remembered[APPLIED_SHARES] = self.applied_shares().astype(np.float16)
        return {
            "type_probabilities": self.model.type_probabilities(customers).astype(np.float32),
            "response_counts": self.response_counts.astype(np.float32),
            "accept_given_type": self.model.accept_given_type.astype(np.float32),
            "epsilon": np.array(self.epsilon if exploring else 0.0, np.float32),
            "sample_types": np.array(exploring),
            **remembered,
        }

    def applied_shares(self) -> FloatArray:
        """(trips, offers) shares in which each trip was booked under each offer lately."""
        counts = self.applied_counts.copy()
        counts[:, self.offers.no_change] += UNCHANGED_WEIGHT
        return np.asarray(counts / counts.sum(axis=1, keepdims=True), np.float64)

    def state(self) -> Arrays:
        """Model, responses and counters; for a running refit, the responses it started from."""
        pending = {} if self.pending is None else self.pending.responses.arrays()
        return {
            **with_prefix("model", self.model.state()),
            **with_prefix("responses", self.responses.state()),
            **with_prefix("pending", pending),
            "response_counts": self.response_counts.copy(),
            **({"applied_counts": self.applied_counts.copy()} if len(self.applied_counts) else {}),
            "counters": np.array([self.epochs, self.refits, self.steps_since_refit, self.num_scored]),
        }

    def restore(self, state: State) -> None:
        """Continue from a checkpoint; a refit that was running starts again and ends the same."""
        self.close()
        if state["response_counts"].shape != self.response_counts.shape:
            raise CheckpointError(
                f"the checkpoint's acceptance model covers {len(state['response_counts'])} "
                f"customers, the population has {len(self.response_counts)}; resume with the "
                "settings the run was started with."
            )
        self.model.restore(without_prefix("model", state))
        self.responses.restore(without_prefix("responses", state))
        self.response_counts[:] = state["response_counts"]
        if len(self.applied_counts):
            self.applied_counts[:] = state["applied_counts"]
        self.epochs, self.refits, self.steps_since_refit, self.num_scored = map(int, state["counters"])
        pending = without_prefix("pending", state)
        if pending:
            self._start_background_refit(responses_from(pending))

    def close(self) -> None:
        """Cancel a background refit."""
        if self.pending is not None:
            self.pending.cancel()
            self.pending = None

    def _due_responses(self) -> Responses | None:
        """Responses to refit on now; None if no refit is due or there are too few."""
        if self.steps_since_refit < self.refit_interval:
            return None
        responses = self.responses.rows()
        return responses if self.model.ready(responses) else None

    def _start_background_refit(self, responses: Responses) -> None:
        """Refit a copy: the model exported to the envs stays as it is until the next epoch."""
        copy = self.new_type_model()
        copy.restore(self.model.state())
        self.pending = BackgroundRefit(copy, responses)

    def _prediction_metrics(self) -> dict[str, float]:
        """How well the epoch's responses were predicted before anything was learned from them."""
        rows = self.responses.rows(since=self.num_scored)
        self.num_scored = self.responses.num_added
        if len(rows) == 0:
            return {}
        scores = metrics.prediction_scores(metrics.predicted_responses(self.model, rows), rows.accepted)
        return {
            "acceptance/predicted_rate": scores.predicted,
            "acceptance/accepted_rate": scores.accepted,
            "acceptance/offer_brier_score": scores.brier_score,
            "acceptance/offer_log_loss": scores.log_loss,
        }

    def _refit_metrics(self, responses: Responses) -> dict[str, float]:
        """Metrics of a refit, compared with the truth where it is known."""
        customers = np.flatnonzero(self.response_counts)
        beliefs = self.model.type_probabilities(customers)
        shares = beliefs.mean(axis=0)
        found = {f"acceptance/type_share_{name}": float(share) for name, share in zip(TYPE_NAMES, shares, strict=True)}
        if self.truth is not None:
            types = self.truth.types[customers]
            found |= {
                "type_accuracy": metrics.accuracy(beliefs, types),
                "acceptance/bayes_optimal_accuracy": metrics.bayes_optimal_accuracy(
                    responses, self.truth.types, self.truth.accept_rates
                ),
                "acceptance/log_loss": metrics.log_loss(beliefs, types),
                "acceptance/brier_score": metrics.brier_score(beliefs, types),
            }
        return found


class BackgroundRefit:
    """A refit in a thread, which owns the model and the responses until `result` returns."""

    def __init__(self, model: TypeModel, responses: Responses) -> None:
        self.model, self.responses = model, responses
        self.losses: dict[str, float] = {}
        self.error: BaseException | None = None
        self.cancelled = threading.Event()
        self.thread = threading.Thread(target=self._run, name="acceptance-refit", daemon=True)
        self.thread.start()

    def result(self) -> tuple[TypeModel, dict[str, float]]:
        """Wait for the refitted model and its losses; raises the thread's error."""
        self.thread.join()
        if self.error is not None:
            raise TrainingError(
                f"the background refit on {len(self.responses)} responses failed with "
                f"{type(self.error).__name__}: {self.error}"
            ) from self.error
        return self.model, self.losses

    def cancel(self) -> None:
        """Stop at the next opportunity and discard the result."""
        self.cancelled.set()
        self.thread.join()

    def _run(self) -> None:
        try:
            self.losses = self.model.refit(self.responses, self.cancelled.is_set)
        except BaseException as error:
            self.error = error


def make_belief_model(
    settings: AcceptanceModelSettings,
    env: DvrpSettings,
    *,
    num_envs: int,
    num_epochs: int,
    seed: int,
    device: str = "cpu",
) -> AcceptanceModel | None:
    """The acceptance model for an env's customers; None for `acceptance_model="none"`."""
    if settings.acceptance_model == "none":
        return None
    population, prior = population_for(env), prior_for(env)
    interval = settings.acceptance_refit_interval
    return AcceptanceModel(
        settings,
        lambda: _new_type_model(settings, population, prior, seed, device),
        population_size=population.size,
        refit_interval=interval or DAYS_BETWEEN_REFITS * num_envs * env.num_customers,
        num_epochs=num_epochs,
        truth=GroundTruth(
            population.customers.types,
            metrics.true_accept_rates(population, prior.accept_given_type, env.response_noise),
        ),
        num_trips=len(population.trips.cells) if env.future_samples else 0,
        offers=population.offers,
    )


def _new_type_model(
    settings: AcceptanceModelSettings, population: Population, prior: AcceptancePrior, seed: int, device: str
) -> TypeModel:
    if settings.acceptance_model == "bayes":
        return bayesian_type_model(
            population,
            prior,
            trip_memory=settings.trip_memory,
            stranger_prior=settings.stranger_prior,
            forgetting=settings.acceptance_forgetting,
        )
    # Imported on use: it needs torch.
    from hundredfold.envs.dvrp.acceptance.embedding import EmbeddingTypeModel

    epochs = settings.embedding_epochs
    return EmbeddingTypeModel(population.size, prior.num_purposes, seed, device, epochs, prior.offers)
