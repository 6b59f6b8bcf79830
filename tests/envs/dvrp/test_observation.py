import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.observation import observation_specs
from hundredfold.envs.dvrp.offers import NO_CHANGE
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES

CUSTOMERS = 6


def make_batch(layout, envs=5, **options):
    settings = {"num_customers": CUSTOMERS, "num_vehicles": 3, "lns_iterations": 0, **options}
    return Dvrp(np.arange(envs), DvrpSettings(observation=layout, **settings))


def moments(batch_env, seed=3):
    """After the reset and each step: what is seen and, copied, what there is to see."""
    out = batch_env.reset(seed)
    draw = np.random.default_rng(0)
    for call in range(CUSTOMERS):
        yield call, out, batch_env.true_state
        last = {name: array.copy() for name, array in batch_env.true_state.items()}
        batch_env.step(draw.integers(0, 16, len(out)))
    yield CUSTOMERS, out, last


@pytest.mark.parametrize(("cells", "rows"), [(207, 606), (61, 314), (31, 254)])
def test_counts_have_a_row_per_cell_and_half_hour(cells, rows):
    assert observation_specs("counts", 30, cells, ())["counts"].shape == (rows, 2)


def test_counts_sum_the_bookings_and_show_the_request():
    batch_env = make_batch("counts")
    for call, out, day in moments(batch_env):
        if call == CUSTOMERS:
            break
        for env in range(5):
            expected = np.zeros((314, 2))
            trips = [(day["booked_windows"][env, i], i, 0) for i in range(call)]
            trips.append((day["requested_windows"][env, call], call, 1))
            for windows, customer, column in trips:
                pickup, dropoff = day["cells"][env, customer]
                expected[pickup, column] += 1
                expected[61 + dropoff, column] += 1
                for place, minute in enumerate(windows.ravel()):
                    expected[122 + 48 * place + min(int(minute // 30), 47), column] += 1
            assert_array_equal(out.observation["counts"][env], expected)
    final = out.final_observation["counts"]
    assert_array_equal(final[..., 0].sum(axis=1), 6 * CUSTOMERS)
    assert not final[..., 1].any(), "no request is left"


def test_requests_list_the_bookings_and_then_the_request():
    for call, out, day in moments(make_batch("requests")):
        if call == CUSTOMERS:
            break
        seen = out.observation["requests"]
        assert not seen[:, call + 1 :].any()
        asked = day["requested_windows"][:, call]
        cells = day["cells"][:, call]
        expected = [cells[:, 0], *asked[:, 0].T, cells[:, 1], *asked[:, 1].T]
        assert_array_equal(seen[:, call], np.stack(expected, axis=1).astype(np.float32))
        assert_array_equal(seen[:, :call, 1:3], day["booked_windows"][:, :call, 0])
        assert_array_equal(seen[:, :call, 4:6], day["booked_windows"][:, :call, 1])
    assert out.final_observation["requests"].all(axis=2).sum(axis=1).min() >= CUSTOMERS - 1


def test_the_booking_view_tells_the_request():
    batch_env = make_batch("booking")
    city, purposes = batch_env.population.city, batch_env.population.trips.purpose
    for call, out, day in moments(batch_env):
        if call == CUSTOMERS:
            break
        request = out.observation["request"]
        pickup, dropoff = day["cells"][:, call].T
        assert_array_equal(out.observation["cells"], day["cells"][:, call])
        assert_allclose(request[:, 0:2], city.positions[pickup], rtol=1e-6)
        assert_allclose(request[:, 2:4], city.positions[dropoff], rtol=1e-6)
        assert_allclose(
            request[:, 4:8], day["requested_windows"][:, call].reshape(-1, 4) / 1440, rtol=1e-6
        )
        assert_allclose(request[:, 8], city.travel_minutes[pickup, dropoff] / 60, rtol=1e-6)
        one_hot = request[:, 9 : 9 + len(PURPOSE_NAMES)]
        assert_array_equal(one_hot.argmax(axis=1), purposes[day["trip_id"][:, call]])
        assert_array_equal(one_hot.sum(axis=1), 1)
        assert_allclose(request[:, 19], call / CUSTOMERS, rtol=1e-6)
    assert not out.final_observation["request"].any()


def test_the_booking_view_tells_the_book_and_the_plan():
    batch_env = make_batch("booking")
    for call, out, day in moments(batch_env):
        if call == CUSTOMERS:
            break
        book, mask = out.observation["book"], out.observation["bookings_mask"]
        assert_array_equal(mask, np.tile(np.arange(CUSTOMERS) < call, (5, 1)))
        assert not book[:, call:].any()
        done = book[:, :call]
        booked = day["booked_windows"][:, :call]
        moved = booked[..., 0] - day["requested_windows"][:, :call, :, 0]
        assert_allclose(done[..., 9] * 30, -moved[..., 0], atol=1e-4)
        assert_allclose(done[..., 10] * 30, moved[..., 1], atol=1e-4)
        vehicle = done[..., 11] * 3
        assert_allclose(vehicle, np.rint(vehicle), atol=1e-5)
        assert ((vehicle > 0.5) & (vehicle < 3.5)).all()
        planned = done[..., 12:14] * 1440
        assert (planned >= booked[..., 0] - 1e-2).all()
        assert (planned <= booked[..., 1] + 1e-2).all()
    assert out.final_observation["bookings_mask"].all()


@pytest.mark.parametrize("layout", ["booking", "counts", "requests"])
def test_no_view_holds_anything_hidden(layout):
    """Other tolerances and answers to come, same sight."""
    soft = make_batch(layout, cost_hint=True)
    hard = make_batch(layout, cost_hint=True, tolerances="types")
    one, other = soft.reset(3), hard.reset(3)
    for _ in range(CUSTOMERS):
        for name, array in one.observation.items():
            assert_array_equal(array, other.observation[name], err_msg=name)
        soft.step(np.full(5, NO_CHANGE))
        hard.step(np.full(5, NO_CHANGE))


def test_the_price_hint_tells_what_an_offer_would_add_against_offer_12():
    batch_env = make_batch(
        "booking", cost_hint=True, tolerances="unlimited", improve_passes=0, envs=16
    )
    out = batch_env.reset(3)
    draw = np.random.default_rng(1)
    found, hinted = [], []
    for _ in range(CUSTOMERS - 1):
        hint = out.observation["cost_hint"].copy()
        assert_array_equal(hint[:, NO_CHANGE], 0)
        assert np.isfinite(hint).all()
        offers = draw.integers(0, 16, 16)
        state = batch_env.state()
        batch_env.step(np.full(16, NO_CHANGE))
        without = batch_env.true_state["cost"].copy()
        batch_env.restore(state)
        batch_env.step(offers)
        found.append(batch_env.true_state["cost"] - without)
        hinted.append(hint[np.arange(16), offers])
    # Plans trade their tails after every booking, so now and then the difference is another one.
    close = np.isclose(found, hinted, atol=1e-3)
    assert close.mean() > 0.8
    assert close[np.array(hinted) != 0].any()
