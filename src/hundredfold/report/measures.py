"""Names, units and explanations of a run's metrics, in the words of a reader who does not know the source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from hundredfold.core.formatting import metric_label

PERCENT: Final = 100.0


@dataclass(frozen=True, slots=True)
class Measure:
    """Title, unit and scale of a metric's figure."""

    key: str
    title: str
    unit: str
    description: str = ""
    scale: float = 1.0


DIAGNOSTICS: Final = (
    Measure("policy_loss", "Policy loss", "loss", "Clipped PPO objective; stays near 0."),
    Measure("value_loss", "Value loss", "squared error", "Falls as value estimates improve."),
    Measure("entropy", "Entropy", "nats", "Randomness of the policy; falls as it commits."),
    Measure("approx_kl", "Approximate KL", "nats", "Size of the policy update."),
    Measure("clip_fraction", "Clip fraction", "% of samples", "Samples whose ratio left the clip range.", PERCENT),
    Measure(
        "explained_variance",
        "Explained variance",
        "share of variance",
        "How well values predict returns: 1 is exact, 0 no better than a constant.",
    ),
    Measure("q_loss", "Loss of the Q-values", "loss", "Error of the estimated returns of actions."),
    Measure("q_value", "Q-value", "return", "Mean estimated return of the actions learned from."),
)
# What is called policy_loss when the costs of all actions are learned from sampled futures.
FUTURES_LOSSES: Final = {
    "regression": (
        "squared minutes",
        "Error of the predicted cost of an offer. One sampled future is very uncertain, so it stays large.",
    ),
    "policy_gradient": ("driving minutes", "Expected cost of the policy's offers; falls as they save more."),
}

_BELIEF: Final = "acceptance model"
OTHERS: Final = (
    Measure("return_std", "Spread of returns", "return", "Standard deviation over the episodes of an epoch."),
    Measure("avg_episode_steps", "Length of an episode", "steps"),
    Measure("first_ratio_error", "First ratio error", "error", "Before the first gradient step: a check, near 0."),
    Measure("skipped_gradients", "Skipped gradient steps", "steps", "Because a gradient was not finite."),
    Measure("gradient_steps", "Gradient steps", "steps", "So far."),
    Measure("exploration", "Exploration", "% of actions", "Actions taken at random.", PERCENT),
    Measure("replay_samples", "Replay buffer", "samples", "Samples that it holds."),
    Measure("env_failures", "Failures of envs", "failures", "So far; see the console or the log for the first one."),
    Measure("env_restarts", "Envs recreated", "envs", "So far, after a failure."),
    Measure("worker_restarts", "Workers restarted", "processes", "So far, after a failure."),
    # dvrp
    Measure("avg_improvement_pct", "Driving saved", "% of driving minutes", "Against the same day without offers."),
    Measure("avg_improvement_minutes", "Driving saved", "min per day", "Against the same day without offers."),
    Measure("avg_cost", "Driving", "min per day", "Driving minutes of the whole fleet, with offers."),
    Measure("avg_baseline_cost", "Driving without offers", "min per day", "Driving minutes of the same days."),
    Measure("avg_vehicles_used", "Vehicles used", "vehicles per day"),
    Measure("avg_offers_made", "Offers made", "offers per day"),
    Measure("avg_offers_accepted", "Offers accepted", "offers per day"),
    Measure("avg_acceptance_rate", "Acceptance", "% of offers made", "", PERCENT),
    Measure("avg_shift_minutes_total", "Minutes moved", "min per day", "Pickups and dropoffs of all customers."),
    Measure("avg_num_unserved", "Customers not served", "customers per day"),
    Measure("failure_rate", "Failed days", "% of days", "Days on which a request fitted no route.", PERCENT),
    Measure(
        "cost_variance", "Variance of sampled costs", "squared minutes", "The policy loss of a constant prediction."
    ),
    Measure("epsilon", "Exploration", "% of calls", "Calls in which every offer may be tried.", PERCENT),
    Measure("type_accuracy", "Types known", "% of customers", "Whose most likely type is the true one.", PERCENT),
    Measure("acceptance/predicted_rate", "Predicted acceptance", "% of offers made", "", PERCENT),
    Measure("acceptance/accepted_rate", "Observed acceptance", "% of offers made", "", PERCENT),
    Measure("acceptance/offer_brier_score", "Brier score of offers made", "squared error", "0 is perfect."),
    Measure("acceptance/offer_log_loss", "Log loss of offers made", "nats", "0 is perfect."),
    Measure("acceptance/loss", f"Loss of the {_BELIEF}", "nats per response", "At its last refit."),
    Measure("acceptance/first_loss", f"Loss of the {_BELIEF} before", "nats per response", "Before its last refit."),
    Measure("acceptance/em_iterations", "Length of a refit", "iterations"),
    Measure("acceptance/type_share_late", "Believed type: late", "% of customers", "", PERCENT),
    Measure("acceptance/type_share_early", "Believed type: early", "% of customers", "", PERCENT),
    Measure("acceptance/type_share_none", "Believed type: none", "% of customers", "", PERCENT),
    Measure("acceptance/type_share_both", "Believed type: both", "% of customers", "", PERCENT),
    Measure(
        "acceptance/bayes_optimal_accuracy",
        "Types known from true rates",
        "% of customers",
        "The same responses, read with the true acceptance rates of the types.",
        PERCENT,
    ),
    Measure("acceptance/log_loss", "Log loss of types", "nats", "Of the believed types; 0 is perfect."),
    Measure("acceptance/brier_score", "Brier score of types", "squared error", "Of the believed types; 0 is perfect."),
    Measure("acceptance/responses", "Responses learned from", "responses", "That are stored."),
    Measure("acceptance/refits", f"Refits of the {_BELIEF}", "refits", "So far."),
    Measure("acceptance/reconstruction", "Reconstruction", "loss", f"Part of the loss of the {_BELIEF}."),
    Measure("acceptance/variance_penalty", "Variance penalty", "loss", f"Part of the loss of the {_BELIEF}."),
    Measure("acceptance/entropy", "Entropy of types", "nats", "How undecided the believed types are."),
    # Evaluations
    Measure("stderr", "standard error", "return"),
    Measure("min", "lowest", "return"),
    Measure("max", "highest", "return"),
    Measure("episode_steps", "Length of an episode", "steps"),
    Measure("min_improvement_pct", "Driving saved on the worst day", "%"),
    Measure("max_improvement_pct", "Driving saved on the best day", "%"),
    # corridor
    Measure("avg_reached_exit", "Exit reached", "% of episodes", "", PERCENT),
)
_BY_KEY: Final = {measure.key: measure for measure in (*DIAGNOSTICS, *OTHERS)}

# Phases of a training: `time/PHASE` in the metrics.
PHASES: Final = {
    "env": "stepping the envs",
    "oracle": "routes of the envs",
    "policy": "choosing actions",
    "update": "gradient steps",
    "collect": "storing samples and waiting",
    "belief_model": "learning what customers accept",
    "evaluate": "evaluations during training",
    "save": "writing checkpoints",
    "video": "recording videos",
}


def measure_of(key: str) -> Measure:
    """The measure of a metric; of one that is not known here, with title and unit from its key."""
    if key in _BY_KEY:
        return _BY_KEY[key]
    title, unit = metric_label(key)
    return Measure(key, title, unit or "value", key)


def diagnostics(settings: dict[str, Any]) -> list[Measure]:
    """Metrics of the learner, as they are to be read with these settings.

    Args:
        settings: All settings of a run, as in its file.
    """
    ppo = settings.get("ppo", {})
    if ppo.get("advantages") != "futures":
        return list(DIAGNOSTICS)
    unit, description = FUTURES_LOSSES[ppo.get("futures_loss", "regression")]
    first, *others = DIAGNOSTICS
    return [replace(first, unit=unit, description=description), *others]
