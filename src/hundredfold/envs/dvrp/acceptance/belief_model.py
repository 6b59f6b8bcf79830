"""Acceptance model of dvrp: buffers responses, refits a type model, exports its beliefs.

Everything that decides when and how it learns is counted and saved: a resumed run refits at the
same step, from the same answers, to the same bits. A background refit starts at the end of an epoch
on a copy of the answers and is always taken over at the end of the next one, however fast it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np

from hundredfold.core.batch import (
    Arrays,
    FloatArray,
    IntArray,
    State,
    StepBatch,
    with_prefix,
    without_prefix,
)
from hundredfold.core.errors import CheckpointError, SettingsError, suggest
from hundredfold.core.protocols import SharedParams
from hundredfold.envs.dvrp.acceptance import metrics
from hundredfold.envs.dvrp.acceptance.embedding import BackgroundRefit
from hundredfold.envs.dvrp.acceptance.model import TYPE_MODELS, TypeModel, TypeModelConfig
from hundredfold.envs.dvrp.acceptance.prior import AcceptancePrior, prior_for
from hundredfold.envs.dvrp.acceptance.responses import ResponseBuffer, Responses, responses_from
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.offers import NO_CHANGE
from hundredfold.envs.dvrp.population import TYPE_NAMES
from hundredfold.envs.dvrp.settings import DvrpSettings

TypeModelName = Literal["bayes", "embedding", "none"]
RefitPlace = Literal["inline", "background"]

# Days of every env between two refits, unless the settings say otherwise.
DAYS_BETWEEN_REFITS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceModelSettings:
    """How each customer's flexibility is learned beside the policy."""

    acceptance_model: TypeModelName = "bayes"
    """Who learns flexibility from answers: `counting` (exact), `embedding` (a network), `none`."""
    acceptance_buffer_size: int = 64_000
    """Answers to keep, first in, first out."""
    acceptance_refit_interval: int = 0
    """Steps of all envs between two refits; 0: ten days of every env. Refits end an epoch."""
    acceptance_refit: RefitPlace = "inline"
    """`background` refits beside the next epoch and takes over at its end; as repeatable."""
    embedding_epochs: int = 50
    """Passes of the network over all kept answers in one refit."""
    epsilon_start: float = 0.2
    """Chance, in the first epoch, that an env ignores its mask for a call."""
    epsilon_end: float = 0.0
    """The same in the last epoch; in between it changes in a straight line."""

    def __post_init__(self) -> None:
        for name, known in (("acceptance_model", TypeModelName), ("acceptance_refit", RefitPlace)):
            given = getattr(self, name)
            if given not in get_args(known):
                raise SettingsError(f"{name} has no {given!r}; {suggest(given, get_args(known))}")
        for name, least in (
            ("acceptance_buffer_size", 1),
            ("acceptance_refit_interval", 0),
            ("embedding_epochs", 1),
        ):
            if getattr(self, name) < least:
                raise SettingsError(f"{name} must be at least {least}, got {getattr(self, name)}.")
        for name in ("epsilon_start", "epsilon_end"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise SettingsError(f"{name} is a chance in 0..1, got {getattr(self, name)}.")


@dataclass(frozen=True, slots=True, eq=False)
class GroundTruth:
    """What only a judge may know: it goes into metrics, never into what is learned."""

    types: IntArray  # (people,)
    accept_rates: FloatArray  # (types, purposes, offers)


class AcceptanceModel:
    """Keeps the answers of all envs and a model of who is flexible."""

    def __init__(
        self,
        settings: AcceptanceModelSettings,
        *,
        num_people: int,
        prior: AcceptancePrior,
        num_envs: int,
        num_customers: int,
        num_epochs: int,
        seed: int,
        device: str = "cpu",
        truth: GroundTruth | None = None,
    ) -> None:
        self.settings, self.num_epochs, self.truth = settings, num_epochs, truth
        self.interval = settings.acceptance_refit_interval or (
            DAYS_BETWEEN_REFITS * num_envs * num_customers
        )
        self.needs = TypeModelConfig(
            num_people=num_people,
            prior=prior,
            seed=seed,
            device=device,
            epochs=settings.embedding_epochs,
        )
        self.model = self._new_model()
        self.answers = ResponseBuffer(settings.acceptance_buffer_size)
        self.response_counts = np.zeros(num_people, np.int64)
        self.epochs = self.refits = self.steps_since_refit = 0
        self.pending: BackgroundRefit | None = None

    @property
    def epsilon(self) -> float:
        """The chance of ignoring a mask in the coming epoch."""
        start, end = self.settings.epsilon_start, self.settings.epsilon_end
        return start + (end - start) * min(self.epochs / max(self.num_epochs - 1, 1), 1.0)

    def observe(self, batch: StepBatch) -> None:
        """Keep the answers of these rows."""
        info = batch.info
        person, offer = info["customer_id"], info["offer"]
        self.answers.add(person, info["purpose"], offer, info["accepted"])
        np.add.at(self.response_counts, person[offer != NO_CHANGE], 1)
        self.steps_since_refit += len(batch)

    def update(self) -> dict[str, float]:
        """End an epoch: take over a refit, begin one if it is due."""
        report = {"epsilon": self.epsilon}
        self.epochs += 1
        if self.pending is not None:
            self.model, losses = self.pending.result()
            report |= losses | self._figures(self.pending.answers)
            self.pending = None
            self.refits += 1
        rows = self._due_answers()
        if rows is not None:
            self.steps_since_refit = 0
            # After the last epoch there is nothing left to run beside.
            if self.settings.acceptance_refit == "background" and self.epochs < self.num_epochs:
                self._begin(rows)
            else:
                report |= self.model.refit(rows)
                report |= self._figures(rows)
                self.refits += 1
        report["acceptance/responses"] = float(len(self.answers))
        report["acceptance/refits"] = float(self.refits)
        return report

    def params(self, *, exploring: bool) -> SharedParams:
        """What the envs may know of everybody; `exploring` is off when a policy is evaluated."""
        people = np.arange(len(self.response_counts))
        return {
            "type_probabilities": self.model.type_probabilities(people).astype(np.float32),
            "response_counts": self.response_counts.astype(np.float32),
            "accept_given_type": self.model.accept_given_type.astype(np.float32),
            "epsilon": np.array(self.epsilon if exploring else 0.0, np.float32),
            "sample_types": np.array(exploring),
        }

    def state(self) -> Arrays:
        """Model, answers and counters; of a running refit what it started from."""
        pending = {} if self.pending is None else self.pending.answers.arrays()
        return {
            **with_prefix("model", self.model.state()),
            **with_prefix("answers", self.answers.state()),
            **with_prefix("pending", pending),
            "response_counts": self.response_counts.copy(),
            "counters": np.array([self.epochs, self.refits, self.steps_since_refit]),
        }

    def restore(self, state: State) -> None:
        """Go on from a snapshot; a refit that was running begins again and ends the same."""
        self.close()
        if state["response_counts"].shape != self.response_counts.shape:
            raise CheckpointError(
                f"the checkpoint's acceptance model covers {len(state['response_counts'])} "
                f"customers, the population has {len(self.response_counts)}; resume with the "
                "settings the run was started with."
            )
        self.model.restore(without_prefix("model", state))
        self.answers.restore(without_prefix("answers", state))
        self.response_counts[:] = state["response_counts"]
        self.epochs, self.refits, self.steps_since_refit = map(int, state["counters"])
        pending = without_prefix("pending", state)
        if pending:
            self._begin(responses_from(pending))

    def close(self) -> None:
        """End a background refit without taking it over."""
        if self.pending is not None:
            self.pending.cancel()
            self.pending = None

    def _new_model(self) -> TypeModel:
        return TYPE_MODELS[self.settings.acceptance_model](self.needs)

    def _due_answers(self) -> Responses | None:
        """What to learn from now; None when it is not time or not enough was heard."""
        if self.steps_since_refit < self.interval:
            return None
        rows = self.answers.rows()
        return rows if self.model.ready(rows) else None

    def _begin(self, answers: Responses) -> None:
        """Teach a copy: the model that the envs hear of stays as it is until the next epoch."""
        learner = self._new_model()
        learner.restore(self.model.state())
        self.pending = BackgroundRefit(learner, answers)

    def _figures(self, answers: Responses) -> dict[str, float]:
        """What came of a refit, beside the truth where a judge knows it."""
        heard = np.flatnonzero(self.response_counts)
        beliefs = self.model.type_probabilities(heard)
        shares = beliefs.mean(axis=0)
        figures = {
            f"acceptance/type_share_{name}": float(share)
            for name, share in zip(TYPE_NAMES, shares, strict=True)
        }
        if self.truth is not None:
            types = self.truth.types[heard]
            figures |= {
                "type_accuracy": metrics.accuracy(beliefs, types),
                "acceptance/bayes_optimal_accuracy": metrics.bayes_optimal_accuracy(
                    answers, self.truth.types, self.truth.accept_rates
                ),
                "acceptance/log_loss": metrics.log_loss(beliefs, types),
                "acceptance/brier": metrics.brier(beliefs, types),
            }
        return figures


def make_belief_model(
    settings: AcceptanceModelSettings,
    env: DvrpSettings,
    *,
    num_envs: int,
    num_epochs: int,
    seed: int,
    device: str = "cpu",
) -> AcceptanceModel | None:
    """The acceptance model for an env's people; None when nobody should learn."""
    if settings.acceptance_model == "none":
        return None
    population, prior = population_for(env), prior_for(env)
    return AcceptanceModel(
        settings,
        num_people=population.size,
        prior=prior,
        num_envs=num_envs,
        num_customers=env.num_customers,
        num_epochs=num_epochs,
        seed=seed,
        device=device,
        truth=GroundTruth(
            population.customers.types,
            metrics.true_accept_rates(population, prior.accept, env.response_noise),
        ),
    )
