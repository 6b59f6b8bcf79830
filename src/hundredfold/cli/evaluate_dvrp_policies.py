"""Who is evaluated by `hundredfold evaluate dvrp`: rules, some of which learn first, and runs.

How well somebody knows the customers, as rows for a table, beside the best there could be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hundredfold.core.errors import SettingsError
from hundredfold.core.protocols import SharedParams
from hundredfold.envs.dvrp.acceptance import metrics
from hundredfold.envs.dvrp.acceptance.bayes import BayesianTypeModel
from hundredfold.envs.dvrp.acceptance.belief_model import AcceptanceModel
from hundredfold.envs.dvrp.acceptance.model import ResponseBuffer, Responses, TypeModel, prior_for
from hundredfold.envs.dvrp.belief_warmup import WARM_UP_POLICY, WarmUpSettings, warm_up
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.evaluation import NO_OPTIONS, PolicyOptions, SimulatedDays
from hundredfold.envs.dvrp.lookahead import LookaheadSettings
from hundredfold.envs.dvrp.policies import BELIEF_POLICIES, POLICIES, OfferPolicy
from hundredfold.envs.dvrp.population import NUM_TYPES, TYPE_NAMES, Population
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.training.build import load_belief_model
from hundredfold.training.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class Learned:
    """A model of flexibility and the answers it learned from."""

    model: TypeModel
    responses: Responses


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedPolicy:
    """One policy with everything it needs to play."""

    name: str
    policy: str | OfferPolicy
    settings: DvrpSettings
    options: PolicyOptions = NO_OPTIONS
    shared_params: SharedParams | None = None
    learned: Learned | None = None

    def at_shift_penalty(self, shift_penalty: float) -> EvaluatedPolicy:
        """The same rule under another price of a minute moved."""
        return replace(self, options=replace(self.options, shift_penalty=shift_penalty))


class EvaluatedPolicies:
    """Makes contenders; rules that learn by the same questions share what they learned."""

    def __init__(
        self,
        *,
        seed: int,
        learning: WarmUpSettings,
        lookahead: LookaheadSettings,
        checkpoint: str,
        expect: Callable[[int], Callable[[int], None]],
    ) -> None:
        self.seed = seed
        self.learning = learning
        self.lookahead = lookahead
        self.checkpoint = checkpoint
        self.expect = expect  # announces days, and gives who hears how many are done
        self.taught: dict[tuple[str, DvrpSettings], Learned] = {}

    def rule(self, name: str, settings: DvrpSettings) -> EvaluatedPolicy:
        """A rule by name, in the env of these settings, after its learning days."""
        if name not in BELIEF_POLICIES:
            return EvaluatedPolicy(name=name, policy=name, settings=settings)
        taught_as = (WARM_UP_POLICY.get(name, name), settings)
        if taught_as not in self.taught:
            self.taught[taught_as] = self._taught(name, settings)
        learned = self.taught[taught_as]
        options = PolicyOptions(beliefs=learned.model, lookahead=self.lookahead)
        return EvaluatedPolicy(
            name=name, policy=name, settings=settings, options=options, learned=learned
        )

    def named(self, name: str, settings: DvrpSettings) -> EvaluatedPolicy:
        """A rule, or a run when no rule has this name."""
        return self.rule(name, settings) if name in POLICIES else self.run(name)

    def run(self, folder: str) -> EvaluatedPolicy:
        """The policy of a run folder."""
        return run_contender(folder, self.checkpoint)

    def _taught(self, name: str, settings: DvrpSettings) -> Learned:
        population = population_for(settings)
        model, responses = (
            BayesianTypeModel(population.size, prior_for(settings)),
            ResponseBuffer(),
        )
        on_progress = self.expect(self.learning.warm_up_days)
        warm_up(
            name, settings, model, responses, self.learning, seed=self.seed, on_progress=on_progress
        )
        return Learned(model, responses.rows())


def run_contender(folder: str, checkpoint: str) -> EvaluatedPolicy:
    """The policy of a run, with its settings and what its acceptance model believes."""
    from hundredfold.api import load

    opened = RunFolder.open(Path(folder))
    settings = opened.settings()
    if not isinstance(settings.env_settings, DvrpSettings):
        raise SettingsError(f"{folder} was trained on {settings.env}, not on dvrp.")
    policy, env = load(folder, checkpoint).actor, settings.env_settings
    belief_model = load_belief_model(opened, checkpoint)
    if not isinstance(belief_model, AcceptanceModel):
        return EvaluatedPolicy(name=folder, policy=policy, settings=env)
    return EvaluatedPolicy(
        name=folder,
        policy=policy,
        settings=env,
        shared_params=belief_model.params(exploring=False),
        learned=Learned(belief_model.model, belief_model.responses.rows()),
    )


Row = dict[str, Any]


def belief_row(contender: EvaluatedPolicy, played: SimulatedDays, population: Population) -> Row:
    """Types told apart, how soon, and whether believed chances come true on the days played.

    Types are evaluated over people who have answered, beside the accuracy that somebody would
    reach on the same answers who knows how each type answers. Answers to 90 % is the median over
    those of them of whom it ever became that sure.
    """
    learned = contender.learned
    assert learned is not None, "only who has learned can be evaluated"
    model, responses, settings = learned.model, learned.responses, contender.settings
    truth = population.customers.types
    heard = np.unique(responses.customer).astype(np.int64)
    beliefs = model.type_probabilities(heard)
    true_rates = metrics.true_accept_rates(
        population, prior_for(settings).accept_given_type, settings.response_noise
    )
    shares = beliefs.mean(axis=0) if len(heard) else np.full(NUM_TYPES, 1.0 / NUM_TYPES)
    needed = metrics.responses_until_confident(
        responses, population.size, model.accept_given_type, shares
    )[heard]
    sure = needed[np.isfinite(needed)]
    return {
        "policy": contender.name,
        "responses": len(responses),
        "customers": len(heard),
        "type_accuracy": _number(metrics.accuracy(beliefs, truth[heard])),
        "bayes_optimal_accuracy": _number(
            metrics.bayes_optimal_accuracy(responses, truth, true_rates)
        ),
        "log_loss": _number(metrics.log_loss(beliefs, truth[heard])),
        "brier_score": _number(metrics.brier_score(beliefs, truth[heard])),
        "calibration_error": _number(_calibration(contender, played, population).error),
        "responses_to_90_pct": float(np.median(sure)) if len(sure) else None,
        "confident_pct": 100.0 * len(sure) / max(len(heard), 1),
    }


def confusion_rows(contender: EvaluatedPolicy, population: Population) -> list[Row]:
    """A row per true type: how many of them are taken for which."""
    learned = contender.learned
    assert learned is not None, "only who has learned can be evaluated"
    heard = np.unique(learned.responses.customer).astype(np.int64)
    counts = metrics.confusion(
        learned.model.type_probabilities(heard), population.customers.types[heard]
    )
    return [
        {
            "policy": contender.name,
            "true_type": name,
            **{f"taken_for_{other}": int(n) for other, n in zip(TYPE_NAMES, row, strict=True)},
        }
        for name, row in zip(TYPE_NAMES, counts, strict=True)
    ]


def calibration_rows(
    contender: EvaluatedPolicy, played: SimulatedDays, population: Population
) -> list[Row]:
    """A row per tenth of believed chance: how often such offers were accepted."""
    found = _calibration(contender, played, population)
    return [
        {
            "policy": contender.name,
            "believed_pct": 100.0 * float(believed),
            "accepted_pct": 100.0 * float(observed),
            "offers": int(count),
        }
        for believed, observed, count in zip(
            found.predicted, found.observed, found.count, strict=True
        )
        if count
    ]


def _calibration(
    contender: EvaluatedPolicy, played: SimulatedDays, population: Population
) -> metrics.Calibration:
    """Of the real offers made on these days."""
    assert contender.learned is not None
    made = played.made
    purposes = population.trips.purpose[played.trip_id[made]]
    chances = contender.learned.model.accept_probabilities(played.customer_id[made], purposes)
    believed = chances[np.arange(len(chances)), played.offers[made]]
    return metrics.calibration(believed, played.accepted[made])


def _number(value: float) -> float | None:
    """JSON knows no NaN."""
    return None if np.isnan(value) else value
