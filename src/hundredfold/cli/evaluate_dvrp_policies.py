"""Policies under evaluation in `hundredfold evaluate dvrp`, and tables about their beliefs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from hundredfold.algorithms.policies import NetworkPolicy
from hundredfold.algorithms.protocols import EvaluationPolicy
from hundredfold.cli.output import Row
from hundredfold.core.batch import Array, BoolArray, EnvSpec, FloatArray
from hundredfold.core.errors import SettingsError
from hundredfold.core.protocols import SharedParams
from hundredfold.envs.dvrp.acceptance import metrics
from hundredfold.envs.dvrp.acceptance.bayes import bayesian_type_model
from hundredfold.envs.dvrp.acceptance.belief_model import AcceptanceModel
from hundredfold.envs.dvrp.acceptance.model import ResponseBuffer, Responses, TypeModel, prior_for
from hundredfold.envs.dvrp.analysis import calibration_by_group, calibration_groups, calibration_row
from hundredfold.envs.dvrp.belief_masks import APPLIED_SHARES
from hundredfold.envs.dvrp.belief_warmup import WARM_UP_POLICY, WarmUpScores, WarmUpSettings, warm_up
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.env import dvrp_spec
from hundredfold.envs.dvrp.evaluation import SimulatedDays
from hundredfold.envs.dvrp.heuristics import OfferPolicy, policy_key
from hundredfold.envs.dvrp.lookahead import LookaheadSettings, PolicyLookahead
from hundredfold.envs.dvrp.policies import BELIEF_POLICIES, NO_OPTIONS, POLICIES, PolicyOptions, takes_shift_penalty
from hundredfold.envs.dvrp.population import NUM_TYPES, TYPE_NAMES, Population
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.training.build import load_belief_model
from hundredfold.training.run_folder import RunFolder

MAX_WARM_UP_ROWS: Final = 10


@dataclass(frozen=True, slots=True)
class FittedModel:
    """An acceptance model and the responses it was fitted to."""

    model: TypeModel
    responses: Responses
    warm_up: Sequence[WarmUpScores] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedPolicy:
    """A policy with everything needed to simulate it."""

    name: str
    policy: str | OfferPolicy
    settings: DvrpSettings
    options: PolicyOptions = NO_OPTIONS
    shared_params: SharedParams | None = None
    fitted: FittedModel | None = None
    acceptance_model: AcceptanceModel | None = None

    def with_shift_penalty(self, shift_penalty: float) -> EvaluatedPolicy:
        """The same policy at another shift penalty."""
        if isinstance(self.policy, str):
            return replace(self, options=replace(self.options, shift_penalty=shift_penalty))
        return replace(self, settings=replace(self.settings, shift_penalty=shift_penalty))

    @property
    def takes_shift_penalty(self) -> bool:
        """Whether the trade-off between cost and shift is chosen when the policy is used."""
        return takes_shift_penalty(self.policy, self.settings)


class PolicyLoader:
    """Makes policies by name; those with the same warm-up share their acceptance model.

    Args:
        seed: Seed of the evaluation.
        warm_up_settings: Warm-up of belief policies.
        lookahead: Effort of the look-ahead policy.
        policy_lookahead: Sampled futures per offer on top of a run's network; 0 for none.
        trip_memory: Whether acceptance models remember trips.
        stranger_prior: Whether acceptance models know strangers by their attributes.
        checkpoint: Which checkpoint of a run to load: best, last or an epoch.
        announce: Announces a number of days and returns a callback for their progress.
    """

    def __init__(
        self,
        *,
        seed: int,
        warm_up_settings: WarmUpSettings,
        lookahead: LookaheadSettings,
        policy_lookahead: int = 0,
        checkpoint: str,
        trip_memory: bool = True,
        stranger_prior: bool = True,
        announce: Callable[[int], Callable[[int], None]],
    ) -> None:
        self.seed = seed
        self.warm_up_settings = warm_up_settings
        self.lookahead = lookahead
        self.policy_lookahead = policy_lookahead
        self.checkpoint = checkpoint
        self.model_options = {"trip_memory": trip_memory, "stranger_prior": stranger_prior}
        self.announce = announce
        self.fitted: dict[tuple[str, DvrpSettings], FittedModel] = {}
        # The acceptance model of a run, which belief policies then use instead of their own.
        self.shared: FittedModel | None = None

    def by_name(self, name: str, settings: DvrpSettings) -> EvaluatedPolicy:
        """A policy of `POLICIES` in the env of these settings, or else a run folder."""
        if name not in POLICIES:
            return self.run(str(RunFolder.open_policy(name, POLICIES).path))
        if name not in BELIEF_POLICIES:
            return EvaluatedPolicy(name=name, policy=name, settings=settings)
        key = (WARM_UP_POLICY.get(name, name), settings)
        if self.shared is None and key not in self.fitted:
            self.fitted[key] = self._warm_up(name, settings)
        fitted = self.shared or self.fitted[key]
        options = PolicyOptions(beliefs=fitted.model, lookahead=self.lookahead)
        return EvaluatedPolicy(name=name, policy=name, settings=settings, options=options, fitted=fitted)

    def run(self, folder: str) -> EvaluatedPolicy:
        """The trained policy of a run folder."""
        return load_run_policy(folder, self.checkpoint, self.policy_lookahead)

    def _warm_up(self, name: str, settings: DvrpSettings) -> FittedModel:
        population = population_for(settings)
        model = bayesian_type_model(population, prior_for(settings), **self.model_options)
        responses = ResponseBuffer(offers=population.offers)
        history = warm_up(
            name,
            settings,
            model,
            responses,
            self.warm_up_settings,
            seed=self.seed,
            on_progress=self.announce(self.warm_up_settings.warm_up_days),
        )
        return FittedModel(model, responses.rows(), history)


def load_run_policy(folder: str, checkpoint: str, lookahead: int = 0) -> EvaluatedPolicy:
    """The trained policy of a run, with its env settings and its acceptance model.

    Args:
        folder: Run folder.
        checkpoint: best, last or an epoch.
        lookahead: Sampled futures for each of the best offers of the network; 0 for none.
    """
    from hundredfold.api import load

    run = RunFolder.open(Path(folder))
    settings = run.settings()
    if not isinstance(settings.env_settings, DvrpSettings):
        raise SettingsError(f"{folder} was trained on {settings.env}, not on dvrp.")
    loaded = load(folder, checkpoint)
    # Estimates of all offers are for training only.
    env_settings = replace(settings.env_settings, future_samples=0)
    _check_inputs(folder, loaded.spec, env_settings)
    belief_model = load_belief_model(run, checkpoint)
    beliefs = belief_model if isinstance(belief_model, AcceptanceModel) else None
    params = {} if beliefs is None else beliefs.params(exploring=False)
    policy: OfferPolicy = loaded.actor
    if lookahead:
        shares = params.get(APPLIED_SHARES)
        policy = _with_lookahead(loaded.policy, env_settings, lookahead, settings.seed, shares)
    return EvaluatedPolicy(
        name=folder,
        policy=policy,
        settings=env_settings,
        shared_params=params or None,
        fitted=None if beliefs is None else FittedModel(beliefs.model, beliefs.responses.rows()),
        acceptance_model=beliefs,
    )


def _check_inputs(folder: str, trained: EnvSpec, settings: DvrpSettings) -> None:
    """Raise a SettingsError if the env's observations are not those that the policy was trained on."""
    present = dvrp_spec(settings, population_for(settings)).policy_observation
    before = {name: array.shape for name, array in trained.policy_observation.items()}
    changed = [name for name in {**before, **present} if name not in present or before.get(name) != present[name].shape]
    if changed:
        raise SettingsError(
            f"{folder} was trained by another version of hundredfold, with other observations of dvrp "
            f"({', '.join(sorted(changed))}); train it again."
        )


def _with_lookahead(
    policy: EvaluationPolicy, settings: DvrpSettings, samples: int, seed: int, applied_shares: Array | None
) -> PolicyLookahead:
    if not isinstance(policy, NetworkPolicy):
        raise SettingsError("--lookahead needs a policy trained with --architecture per_action, not one of DQN.")
    action_costs = policy.action_costs
    return PolicyLookahead(
        population_for(settings),
        settings,
        lambda batch: action_costs(batch.observation),
        samples,
        policy_key(seed),
        applied_shares,
    )


def belief_row(evaluated: EvaluatedPolicy, days: SimulatedDays, population: Population) -> Row:
    """Accuracy of the believed customer types, and calibration of acceptance probabilities.

    Types are scored over customers with responses. `bayes_optimal_accuracy` is what the same
    responses allow if the acceptance rates of the types are known. `responses_to_90_pct` is the
    median over customers about whom the model was ever 90 % certain.
    """
    fitted, settings = evaluated.fitted, evaluated.settings
    assert fitted is not None, "the policy has no acceptance model"
    model, responses = fitted.model, fitted.responses
    truth = population.customers.types
    met = np.unique(responses.customer).astype(np.int64)
    beliefs = model.type_probabilities(met)
    true_rates = metrics.true_accept_rates(population, prior_for(settings).accept_given_type, settings.response_noise)
    shares = beliefs.mean(axis=0) if len(met) else np.full(NUM_TYPES, 1.0 / NUM_TYPES)
    predicted, accepted = _predictions(evaluated, days, population)
    needed = metrics.responses_until_confident(responses, population.size, model.accept_given_type, shares)[met]
    confident = needed[np.isfinite(needed)]
    return {
        "policy": evaluated.name,
        "responses": len(responses),
        "customers": len(met),
        "type_accuracy": _json_number(metrics.accuracy(beliefs, truth[met])),
        "bayes_optimal_accuracy": _json_number(metrics.bayes_optimal_accuracy(responses, truth, true_rates)),
        "log_loss": _json_number(metrics.log_loss(beliefs, truth[met])),
        "brier_score": _json_number(metrics.brier_score(beliefs, truth[met])),
        "offer_brier_score": _json_number(metrics.prediction_scores(predicted, accepted).brier_score),
        "calibration_error": _json_number(metrics.calibration(predicted, accepted).error),
        "responses_to_90_pct": float(np.median(confident)) if len(confident) else None,
        "confident_pct": 100.0 * len(confident) / max(len(met), 1),
    }


def confusion_rows(evaluated: EvaluatedPolicy, population: Population) -> list[Row]:
    """Confusion matrix of customer types, a row per true type."""
    fitted = evaluated.fitted
    assert fitted is not None, "the policy has no acceptance model"
    met = np.unique(fitted.responses.customer).astype(np.int64)
    counts = metrics.confusion(fitted.model.type_probabilities(met), population.customers.types[met])
    return [
        {
            "policy": evaluated.name,
            "true_type": name,
            **{f"predicted_{other}": int(n) for other, n in zip(TYPE_NAMES, row, strict=True)},
        }
        for name, row in zip(TYPE_NAMES, counts, strict=True)
    ]


def calibration_rows(evaluated: EvaluatedPolicy, days: SimulatedDays, population: Population) -> list[Row]:
    """Calibration table: a row per bin of predicted acceptance probability."""
    found = metrics.calibration(*_predictions(evaluated, days, population))
    return [
        {
            "policy": evaluated.name,
            "predicted_pct": 100.0 * float(predicted),
            "accepted_pct": 100.0 * float(observed),
            "offers": int(count),
        }
        for predicted, observed, count in zip(found.predicted, found.observed, found.count, strict=True)
        if count
    ]


def calibration_group_rows(evaluated: EvaluatedPolicy, days: SimulatedDays, population: Population) -> list[Row]:
    """Predicted and observed acceptance of the offers made, a row per group of requests."""
    assert evaluated.fitted is not None
    groups = calibration_groups(days, population, evaluated.fitted.model.trip_accept_rates)
    made = {name: group[days.made] for name, group in groups.items()}
    rows = calibration_by_group(made, *_predictions(evaluated, days, population))
    return [{"policy": evaluated.name, **row} for row in rows]


def warm_up_rows(evaluated: EvaluatedPolicy) -> list[Row]:
    """Predicted and observed acceptance by days of the warm-up; none for a trained policy.

    Every prediction was made before its response was learned from.
    """
    assert evaluated.fitted is not None
    history = evaluated.fitted.warm_up
    size = -(-len(history) // MAX_WARM_UP_ROWS) or 1
    parts = [history[first : first + size] for first in range(0, len(history), size)]
    return [
        {
            "policy": evaluated.name,
            "days": f"{part[0].first_day + 1} to {part[-1].end_day}",
            **calibration_row(
                np.concatenate([block.predicted for block in part]), np.concatenate([block.accepted for block in part])
            ),
        }
        for part in parts
        if sum(len(block.accepted) for block in part)
    ]


def _predictions(
    evaluated: EvaluatedPolicy, days: SimulatedDays, population: Population
) -> tuple[FloatArray, BoolArray]:
    """Predicted acceptance and response of the offers of these days, other than no change."""
    assert evaluated.fitted is not None
    made = days.made
    trips = days.trip_id[made]
    purposes = population.trips.purpose[trips]
    probabilities = evaluated.fitted.model.accept_probabilities(days.customer_id[made], purposes, trips)
    return probabilities[np.arange(len(probabilities)), days.offers[made]], days.accepted[made]


def _json_number(value: float) -> float | None:
    """None for NaN, which JSON does not have."""
    return None if np.isnan(value) else value
