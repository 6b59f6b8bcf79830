"""Simulated responses to random offers, without any routing."""

import numpy as np

from helpers.offers import NO_CHANGE, NUM_OFFERS
from hundredfold.core import rng
from hundredfold.core.batch import StepBatch
from hundredfold.envs.dvrp.acceptance.model import ResponseBuffer
from hundredfold.envs.dvrp.demand import DemandSampler, population_for


def simulate_calls(settings, days, seed=1, split="known"):
    """(customer, trip, purpose, offer, accepted) of every call of these days, offer 12 included."""
    population = population_for(settings)
    keys = rng.stream_keys(seed, np.arange(days), 0)
    customers, trips = (part.ravel() for part in DemandSampler(population, split, settings.num_customers).sample(keys))
    key, calls = rng.spawn(rng.seed_key(seed), 99), np.arange(len(trips))
    uniforms = rng.uniforms(rng.spawn(key, calls)[:, None], np.arange(NUM_OFFERS + 1))
    offer = np.where(population.allowed[trips], uniforms[:, :NUM_OFFERS], -1.0).argmax(axis=1)
    flipped = (uniforms[:, NUM_OFFERS] < settings.response_noise) & (offer != NO_CHANGE)
    accepted = population.accepts[trips, offer] ^ flipped
    return customers, trips, population.trips.purpose[trips], offer, accepted


def simulate_responses(settings, days, seed=1, split="known", capacity=64_000):
    """The responses of these days, as a type model receives them."""
    responses = ResponseBuffer(capacity)
    responses.add(*simulate_calls(settings, days, seed, split))
    return responses.rows()


def response_batch(customer, trip, purpose, offer, accepted):
    """Responses as an env reports them in a step."""
    rows, nothing = len(customer), np.zeros(len(customer), bool)
    info = {"customer_id": customer, "trip_id": trip, "purpose": purpose, "offer": offer, "accepted": accepted}
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
