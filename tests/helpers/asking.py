"""Days of random offers without any routing: who was asked what, and what they said."""

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import StepBatch
from hundredfold.envs.dvrp.acceptance.responses import ResponseBuffer
from hundredfold.envs.dvrp.demand import DemandSampler, population_for
from hundredfold.envs.dvrp.offers import NO_CHANGE, NUM_OFFERS


def asked_calls(settings, days, seed=1, split="known"):
    """(person, purpose, offer, accepted) of every call of these days, in order; offer 12 too."""
    population = population_for(settings)
    keys = rng.stream_keys(seed, np.arange(days), 0)
    people, trips = (
        part.ravel() for part in DemandSampler(population, split, settings.num_customers).draw(keys)
    )
    key, calls = rng.spawn(rng.seed_key(seed), 99), np.arange(len(trips))
    luck = rng.uniforms(rng.spawn(key, calls)[:, None], np.arange(NUM_OFFERS + 1))
    offer = np.where(population.allowed[trips], luck[:, :NUM_OFFERS], -1.0).argmax(axis=1)
    turned = (luck[:, NUM_OFFERS] < settings.response_noise) & (offer != NO_CHANGE)
    accepted = population.accepts[trips, offer] ^ turned
    return people, population.trips.purpose[trips], offer, accepted


def asked(settings, days, seed=1, split="known", capacity=64_000):
    """The answers of these days as a model gets them."""
    answers = ResponseBuffer(capacity)
    answers.add(*asked_calls(settings, days, seed, split))
    return answers.rows()


def as_batch(person, purpose, offer, accepted):
    """Outcomes as an env reports them."""
    rows, nothing = len(person), np.zeros(len(person), bool)
    info = {"customer_id": person, "purpose": purpose, "offer": offer, "accepted": accepted}
    return StepBatch(
        env_ids=np.arange(rows),
        observation={},
        reward=np.zeros(rows),
        terminated=nothing,
        truncated=nothing,
        mask=None,
        final_observation={},
        info=info,
        episode_info={},
        true_state={},
    )
