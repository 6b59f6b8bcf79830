"""Days small enough for brute force over all offers with the exact oracle."""

from itertools import product

import numpy as np

from hundredfold.envs.dvrp.offers import DEFAULT_OFFERS
from hundredfold.envs.dvrp.route_costs import day_problems
from hundredfold.routing.exact_oracle import ExactOracle


def exact_costs(state, offers, env):
    """(days,) optimal cost of days given by their `true_state` with these offers accepted."""
    windows = DEFAULT_OFFERS.shifted_windows(state["requested_windows"], offers)
    problems = day_problems(state["cells"], windows, state["max_ride_minutes"], env.population, env.settings)
    return ExactOracle().solve(problems).cost


def cheapest_of_all_offers(state, env):
    """(days,) smallest optimal cost over every combination of acceptable offers."""
    acceptable = state["accepts"] & state["allowed"]
    best = np.zeros(len(acceptable))
    for day, rows in enumerate(acceptable):
        offers = np.array(list(product(*(np.flatnonzero(row) for row in rows))))
        repeated = {name: np.repeat(array[day : day + 1], len(offers), axis=0) for name, array in state.items()}
        best[day] = exact_costs(repeated, offers, env).min()
    return best
