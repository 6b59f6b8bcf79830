"""Somebody to believe, for rules that need one."""

import numpy as np

from hundredfold.envs.dvrp.acceptance.bayes import BayesianTypeModel
from hundredfold.envs.dvrp.acceptance.model import ResponseBuffer, prior_for
from hundredfold.envs.dvrp.belief_warmup import WarmUpSettings, warm_up
from hundredfold.envs.dvrp.demand import population_for


class Sure:
    """Knows everybody's type, and supposes the same chances for every purpose."""

    def __init__(self, population, rates):
        self.types = population.customers.types
        self.rates = np.asarray(rates, float)  # (types, offers)

    @property
    def accept_given_type(self):
        return np.repeat(self.rates[:, None, :], 20, axis=1)

    def type_probabilities(self, people):
        return np.eye(4)[self.types[people]]

    def accept_probabilities(self, people, purposes):
        return self.rates[self.types[people]]


def prior_believer(settings):
    """A type model without any responses."""
    return BayesianTypeModel(population_for(settings).size, prior_for(settings))


def taught_believer(rule, settings, days=20, seed=1):
    """A Bayesian type model after some days of asking, and its answers."""
    belief_model, responses = prior_believer(settings), ResponseBuffer()
    learning = WarmUpSettings(warm_up_days=days, refit_days=5)
    warm_up(rule, settings, belief_model, responses, learning, seed=seed)
    return belief_model, responses
