"""Random instances small enough for the exact oracle, with every kind of constraint."""

import numpy as np

from hundredfold.routing.problem import Fleet, RouteProblems, TravelTable

NUM_CELLS = 12


def random_table(seed, metric=True):
    """Travel times between a dozen cells; without `metric` they violate the triangle inequality."""
    rng = np.random.default_rng([seed, 1])
    if metric:
        places = rng.uniform(0.0, 20.0, (NUM_CELLS, 2))
        return TravelTable(np.linalg.norm(places[:, None] - places[None], axis=2))
    minutes = rng.uniform(1.0, 30.0, (NUM_CELLS, NUM_CELLS))
    np.fill_diagonal(minutes, 0.0)
    return TravelTable(minutes)


def small_instances(num_instances, max_requests, seed, *, limited=False, metric=True, crowded=False, full=False):
    """Instances of up to `max_requests` requests with riders, service times and vehicle costs.

    `limited` adds ride-time and duration limits that often bind, `crowded` leaves one vehicle, and
    `full` instances have exactly `max_requests` requests.
    """
    rng = np.random.default_rng([seed, 2])
    travel = random_table(seed, metric)
    shape = (num_instances, max_requests)
    cells = rng.integers(0, NUM_CELLS, (*shape, 2))
    direct = travel.minutes[cells[..., 0], cells[..., 1]]
    early = np.stack([rng.uniform(30.0, 120.0, shape)] * 2, axis=2)
    early[..., 1] += direct
    width = np.stack([rng.uniform(5.0, 60.0, shape), rng.uniform(20.0, 90.0, shape)], axis=2)
    fleet = Fleet(
        num_vehicles=1 if crowded else 3,
        capacity=3,
        depot_window=(0.0, 300.0),
        max_route_minutes=110.0 if limited else np.inf,
        free_vehicles=1,
        extra_vehicle_minutes=7.5,
    )
    return RouteProblems.from_arrays(
        travel,
        fleet,
        cells,
        np.stack([early, early + width], axis=3),
        num_requests=max_requests if full else rng.integers(0, max_requests + 1, num_instances),
        riders=rng.integers(1, 3, shape),
        service_minutes=rng.uniform(0.0, 4.0, (*shape, 2)),
        max_ride_minutes=1.2 * direct + 4.0 if limited else np.inf,
    )
