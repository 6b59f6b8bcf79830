"""How well somebody knows the customers, as rows for a table, beside the best there could be."""

from __future__ import annotations

from typing import Any

import numpy as np

from hundredfold.commands.dvrp_contenders import Contender
from hundredfold.flexibility import judge
from hundredfold.flexibility.prior import prior_for
from hundredfold.worlds.dvrp.customers import NUM_TYPES, TYPE_NAMES, Population
from hundredfold.worlds.dvrp.evaluation import PlayedDays

Row = dict[str, Any]


def companion_row(contender: Contender, played: PlayedDays, population: Population) -> Row:
    """Types told apart, how soon, and whether believed chances come true on the days played.

    Types are judged over people who have answered, beside the accuracy that somebody would reach on
    the same answers who knows how each type answers. Answers to 90 % is the median over those of
    them of whom it ever became that sure.
    """
    learned = contender.learned
    assert learned is not None, "only who has learned can be judged"
    model, answers, settings = learned.model, learned.answers, contender.settings
    truth = population.people.types
    heard = np.unique(answers.person).astype(np.int64)
    beliefs = model.type_probabilities(heard)
    true_rates = judge.true_accept_rates(
        population, prior_for(settings).accept, settings.answer_noise
    )
    shares = beliefs.mean(axis=0) if len(heard) else np.full(NUM_TYPES, 1.0 / NUM_TYPES)
    needed = judge.answers_until_sure(
        answers, population.num_people, model.accept_given_type, shares
    )[heard]
    sure = needed[np.isfinite(needed)]
    return {
        "policy": contender.name,
        "answers": len(answers),
        "people": len(heard),
        "type_accuracy": _number(judge.accuracy(beliefs, truth[heard])),
        "bayes_optimal_accuracy": _number(judge.bayes_optimal_accuracy(answers, truth, true_rates)),
        "log_loss": _number(judge.log_loss(beliefs, truth[heard])),
        "brier": _number(judge.brier(beliefs, truth[heard])),
        "calibration_error": _number(_calibration(contender, played, population).error),
        "answers_to_90_pct": float(np.median(sure)) if len(sure) else None,
        "sure_pct": 100.0 * len(sure) / max(len(heard), 1),
    }


def confusion_rows(contender: Contender, population: Population) -> list[Row]:
    """A row per true type: how many of them are taken for which."""
    learned = contender.learned
    assert learned is not None, "only who has learned can be judged"
    heard = np.unique(learned.answers.person).astype(np.int64)
    counts = judge.confusion(
        learned.model.type_probabilities(heard), population.people.types[heard]
    )
    return [
        {
            "policy": contender.name,
            "true_type": name,
            **{f"taken_for_{other}": int(n) for other, n in zip(TYPE_NAMES, row, strict=True)},
        }
        for name, row in zip(TYPE_NAMES, counts, strict=True)
    ]


def calibration_rows(contender: Contender, played: PlayedDays, population: Population) -> list[Row]:
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
    contender: Contender, played: PlayedDays, population: Population
) -> judge.Calibration:
    """Of the real offers made on these days."""
    assert contender.learned is not None
    made = played.made
    purposes = population.trips.purpose[played.trip_id[made]]
    chances = contender.learned.model.accept_probabilities(played.customer_id[made], purposes)
    believed = chances[np.arange(len(chances)), played.offers[made]]
    return judge.calibration(believed, played.accepted[made])


def _number(value: float) -> float | None:
    """JSON knows no NaN."""
    return None if np.isnan(value) else value
