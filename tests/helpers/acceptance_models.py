"""Beliefs about acceptance, for policies that need them."""

import numpy as np

from hundredfold.envs.dvrp.acceptance.bayes import bayesian_type_model
from hundredfold.envs.dvrp.acceptance.model import ResponseBuffer, prior_for
from hundredfold.envs.dvrp.belief_warmup import WarmUpSettings, warm_up
from hundredfold.envs.dvrp.demand import population_for


class KnownTypes:
    """Beliefs that know every customer's type, with the same rates for every purpose."""

    def __init__(self, population, rates):
        self.types = population.customers.types
        self.rates = np.asarray(rates, float)  # (types, offers)

    @property
    def accept_given_type(self):
        return np.repeat(self.rates[:, None, :], 20, axis=1)

    def type_probabilities(self, customers):
        return np.eye(4)[self.types[customers]]

    def accept_probabilities(self, customers, purposes, trips):
        return self.rates[self.types[customers]]


def prior_model(settings):
    """A type model without any responses."""
    return bayesian_type_model(population_for(settings), prior_for(settings))


def warmed_up_model(policy, settings, days=20, seed=1):
    """A type model after the warm-up of a policy, and the responses to it."""
    model, responses = prior_model(settings), ResponseBuffer()
    warm_up(policy, settings, model, responses, WarmUpSettings(warm_up_days=days, refit_days=5), seed=seed)
    return model, responses
