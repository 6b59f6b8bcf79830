"""Observation layouts and the cost hint."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.offers import NO_CHANGE
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.observation import observation_specs
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES

CUSTOMERS = 6


def make(layout, envs=5, **options):
    settings = {"num_customers": CUSTOMERS, "num_vehicles": 3, "lns_iterations": 0, **options}
    return Dvrp(np.arange(envs), DvrpSettings(observation=layout, **settings))


def batches(env, seed=3):
    """Number of bookings, output and true state after the reset and after each step."""
    out = env.reset(seed)
    rng = np.random.default_rng(0)
    for number in range(CUSTOMERS):
        yield number, out, env.true_state
        last = {name: array.copy() for name, array in env.true_state.items()}
        env.step(rng.integers(0, 16, len(out)))
    yield CUSTOMERS, out, last


@pytest.mark.parametrize(("cells", "rows"), [(207, 606), (61, 314), (31, 254)])
def test_counts_have_a_row_per_cell_and_half_hour(cells, rows):
    assert observation_specs("counts", 30, cells, 16, ())["counts"].shape == (rows, 2)


def test_the_counts_layout_sums_bookings_and_has_the_request():
    env = make("counts")
    for number, out, state in batches(env):
        if number == CUSTOMERS:
            break
        for row in range(5):
            expected = np.zeros((314, 2))
            trips = [(state["booked_windows"][row, i], i, 0) for i in range(number)]
            trips.append((state["requested_windows"][row, number], number, 1))
            for windows, customer, column in trips:
                pickup, dropoff = state["cells"][row, customer]
                expected[pickup, column] += 1
                expected[61 + dropoff, column] += 1
                for index, minute in enumerate(windows.ravel()):
                    expected[122 + 48 * index + min(int(minute // 30), 47), column] += 1
            assert_array_equal(out.observation["counts"][row], expected)
    final = out.final_observation["counts"]
    assert_array_equal(final[..., 0].sum(axis=1), 6 * CUSTOMERS)
    assert not final[..., 1].any(), "no request after the last one"


def test_the_requests_layout_lists_bookings_then_the_request():
    for number, out, state in batches(make("requests")):
        if number == CUSTOMERS:
            break
        requests = out.observation["requests"]
        assert not requests[:, number + 1 :].any()
        requested = state["requested_windows"][:, number]
        cells = state["cells"][:, number]
        expected = [cells[:, 0], *requested[:, 0].T, cells[:, 1], *requested[:, 1].T]
        assert_array_equal(requests[:, number], np.stack(expected, axis=1).astype(np.float32))
        assert_array_equal(requests[:, :number, 1:3], state["booked_windows"][:, :number, 0])
        assert_array_equal(requests[:, :number, 4:6], state["booked_windows"][:, :number, 1])
    assert out.final_observation["requests"].all(axis=2).sum(axis=1).min() >= CUSTOMERS - 1


def test_the_booking_layout_describes_the_request():
    env = make("booking")
    city, purposes = env.population.city, env.population.trips.purpose
    for number, out, state in batches(env):
        if number == CUSTOMERS:
            break
        request = out.observation["request"]
        pickup, dropoff = state["cells"][:, number].T
        assert_array_equal(out.observation["cells"], state["cells"][:, number])
        assert_allclose(request[:, 0:2], city.positions[pickup], rtol=1e-6)
        assert_allclose(request[:, 2:4], city.positions[dropoff], rtol=1e-6)
        assert_allclose(request[:, 4:8], state["requested_windows"][:, number].reshape(-1, 4) / 1440, rtol=1e-6)
        assert_allclose(request[:, 8], city.travel_minutes[pickup, dropoff] / 60, rtol=1e-6)
        one_hot = request[:, 9 : 9 + len(PURPOSE_NAMES)]
        assert_array_equal(one_hot.argmax(axis=1), purposes[state["trip_id"][:, number]])
        assert_array_equal(one_hot.sum(axis=1), 1)
        assert_allclose(request[:, 19], number / CUSTOMERS, rtol=1e-6)
    assert not out.final_observation["request"].any()


def test_the_booking_layout_describes_bookings_and_schedule():
    env = make("booking")
    for number, out, state in batches(env):
        if number == CUSTOMERS:
            break
        bookings, mask = out.observation["bookings"], out.observation["bookings_mask"]
        assert_array_equal(mask, np.tile(np.arange(CUSTOMERS) < number, (5, 1)))
        assert not bookings[:, number:].any()
        done = bookings[:, :number]
        booked = state["booked_windows"][:, :number]
        shifts = booked[..., 0] - state["requested_windows"][:, :number, :, 0]
        assert_allclose(done[..., 9] * 30, -shifts[..., 0], atol=1e-4)
        assert_allclose(done[..., 10] * 30, shifts[..., 1], atol=1e-4)
        vehicle = done[..., 11] * 3
        assert_allclose(vehicle, np.rint(vehicle), atol=1e-5)
        assert ((vehicle > 0.5) & (vehicle < 3.5)).all()
        stops = done[..., 12:14] * 1440
        assert (stops >= booked[..., 0] - 1e-2).all()
        assert (stops <= booked[..., 1] + 1e-2).all()
    assert out.final_observation["bookings_mask"].all()


@pytest.mark.parametrize("layout", ["booking", "counts", "requests"])
def test_no_layout_contains_hidden_information(layout):
    """Observations do not depend on tolerances."""
    soft = make(layout, cost_hint=True)
    hard = make(layout, cost_hint=True, tolerances="types")
    one, other = soft.reset(3), hard.reset(3)
    for _ in range(CUSTOMERS):
        for name, array in one.observation.items():
            assert_array_equal(array, other.observation[name], err_msg=name)
        soft.step(np.full(5, NO_CHANGE))
        hard.step(np.full(5, NO_CHANGE))


def test_the_cost_hint_is_the_insertion_cost_relative_to_no_change():
    env = make("booking", cost_hint=True, tolerances="unlimited", improve_passes=0, envs=16)
    out = env.reset(3)
    rng = np.random.default_rng(1)
    found, hinted = [], []
    for _ in range(CUSTOMERS - 1):
        hint = out.observation["cost_hint"].copy()
        assert_array_equal(hint[:, NO_CHANGE], 0)
        assert np.isfinite(hint).all()
        offers = rng.integers(0, 16, 16)
        state = env.state()
        env.step(np.full(16, NO_CHANGE))
        without = env.true_state["cost"].copy()
        env.restore(state)
        env.step(offers)
        found.append(env.true_state["cost"] - without)
        hinted.append(hint[np.arange(16), offers])
    # 2-opt* runs after every booking, so the difference is sometimes another one.
    close = np.isclose(found, hinted, atol=1e-3)
    assert close.mean() > 0.8
    assert close[np.array(hinted) != 0].any()
