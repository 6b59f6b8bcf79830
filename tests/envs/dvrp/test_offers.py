"""Offers: shifts, tolerance and feasibility."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers.offers import NO_CHANGE, NUM_OFFERS, OFFER_MINUTES
from hundredfold.envs.dvrp.offers import DEFAULT_OFFERS, offer_table, servable_alone
from hundredfold.envs.dvrp.population import FLEXIBLE_SIDES, TYPE_NAMES, sample_tolerances
from hundredfold.envs.dvrp.settings import DvrpSettings

TABLE = {
    0: (30, 0),
    1: (30, 10),
    2: (30, 20),
    3: (30, 30),
    4: (20, 0),
    5: (20, 10),
    6: (20, 20),
    7: (20, 30),
    8: (10, 0),
    9: (10, 10),
    10: (10, 20),
    11: (10, 30),
    12: (0, 0),
    13: (0, 10),
    14: (0, 20),
    15: (0, 30),
}
STRICT = DvrpSettings(tolerances="types")
WINDOWS = np.array([[480.0, 510.0], [500.0, 530.0]])
TRAVEL = np.array([[0.0, 10.0, 12.0], [10.0, 0.0, 20.0], [12.0, 20.0, 0.0]])


@pytest.mark.parametrize("offer", TABLE)
def test_every_offer_shifts_windows_by_its_minutes(offer):
    earlier, later = TABLE[offer]
    assert tuple(OFFER_MINUTES[offer]) == (earlier, later)
    shifted = DEFAULT_OFFERS.shifted_windows(WINDOWS, np.array(offer))
    assert shifted.tolist() == [[480 - earlier, 510 - earlier], [500 + later, 530 + later]]


def test_windows_of_all_offers_agree_with_single_offers():
    windows = DEFAULT_OFFERS.windows_of_all(WINDOWS[None])
    for offer in range(NUM_OFFERS):
        assert_array_equal(windows[0, offer], DEFAULT_OFFERS.shifted_windows(WINDOWS, np.array(offer)))


def test_widest_windows_span_the_windows_of_acceptable_offers():
    windows = np.array([[[600.0, 630.0], [620.0, 650.0]]] * 3)
    acceptable = np.zeros((3, NUM_OFFERS), bool)
    acceptable[:, NO_CHANGE] = True
    acceptable[1, 0] = acceptable[1, 13] = True
    acceptable[2] = True
    expected = [[[600, 630], [620, 650]], [[570, 630], [620, 660]], [[570, 630], [620, 680]]]
    assert_array_equal(DEFAULT_OFFERS.widest_windows(windows, acceptable), expected)


@pytest.mark.parametrize("kind", range(4), ids=TYPE_NAMES)
def test_strict_types_accept_exactly_the_offers_on_their_flexible_sides(kind):
    tolerance = sample_tolerances(np.array([kind]), np.zeros(1, int), np.zeros(1, np.uint64), STRICT)
    accepted = DEFAULT_OFFERS.tolerated(tolerance)[0]
    for offer, (earlier, later) in TABLE.items():
        early, late = FLEXIBLE_SIDES[kind]
        assert accepted[offer] == ((early or earlier == 0) and (late or later == 0))


@pytest.mark.parametrize("earlier", range(0, 35, 5))
@pytest.mark.parametrize("later", range(0, 35, 5))
def test_an_offer_is_accepted_when_both_shifts_are_tolerated(earlier, later):
    accepted = DEFAULT_OFFERS.tolerated(np.array([earlier, later]))
    assert accepted.tolist() == [p <= earlier and q <= later for p, q in TABLE.values()]
    assert accepted[NO_CHANGE]


def allowed(windows, **options):
    windows, cells = np.array(windows, float)[None], np.array([[1, 2]])
    return DEFAULT_OFFERS.allowed(windows, cells, TRAVEL, 0, options.pop("day", 1440), **options)[0]


def test_offers_that_leave_the_day_are_forbidden():
    early = allowed([[20, 50], [45, 75]])
    assert [offer for offer in TABLE if early[offer]] == [
        offer for offer, (earlier, _) in TABLE.items() if earlier <= 20
    ]
    late = allowed([[1350, 1380], [1375, 1405]])
    assert [offer for offer in TABLE if late[offer]] == [offer for offer, (_, later) in TABLE.items() if later <= 30]
    later_still = allowed([[1370, 1400], [1395, 1425]])
    assert not later_still[TABLE_INDEX[0, 20]]
    assert later_still[TABLE_INDEX[30, 10]]


TABLE_INDEX = {minutes: offer for offer, minutes in TABLE.items()}


def test_no_change_is_allowed_even_if_no_other_offer_is():
    mask = allowed([[0, 30], [1410, 1440]], day=1440)
    assert mask.sum() == 1
    assert mask[NO_CHANGE]


def test_offers_that_exceed_the_ride_time_limit_are_forbidden():
    # Direct ride 20 minutes, windows 20 apart; the largest offer forces a ride of 50 minutes.
    mask = allowed([[480, 510], [500, 530]], max_ride_minutes=40.0)
    assert [offer for offer in TABLE if not mask[offer]] == [TABLE_INDEX[30, 30]]
    assert allowed([[480, 510], [500, 530]], max_ride_minutes=50.0).all()


def test_a_trip_is_servable_if_the_ride_fits_its_windows_and_the_day():
    def alone(windows, day=1440.0, **options):
        return bool(servable_alone(np.array(windows, float), np.array([1, 2]), TRAVEL, 0, day, **options))

    assert alone([[480, 510], [490, 500]])
    assert not alone([[480, 510], [485, 499]])
    assert not alone([[480, 510], [490, 500]], service_minutes=1.0)
    assert not alone([[0, 5], [10, 60]]), "the depot is more than 5 minutes away"
    assert not alone([[1400, 1420], [1420, 1440]], day=1440.0 - 1)
    assert not alone([[1380, 1410], [1430, 1440]]), "the vehicle must be back before midnight"


def test_other_sizes_make_other_offers_in_the_same_order():
    table = offer_table((0, 15, 60))
    assert table.minutes.tolist() == [[p, q] for p in (60, 15, 0) for q in (0, 15, 60)]
    assert (table.num_offers, table.no_change, table.largest_minutes) == (9, 6, 60.0)
    assert_array_equal(table.minutes[table.outward[:, 0], 0], [60, 15, 0])
    assert_array_equal(table.minutes[table.outward[0], 1], [0, 15, 60])


def test_offers_in_both_directions_follow_the_outward_ones():
    outward, both = offer_table((0, 10, 20)), offer_table((0, 10, 20), "both")
    assert_array_equal(both.minutes[: outward.num_offers], outward.minutes)
    assert both.no_change == outward.no_change
    later = {(-10, 10), (-10, 20), (-20, 20)}
    earlier = {(10, -10), (20, -10), (20, -20)}
    assert {tuple(pair) for pair in both.minutes[outward.num_offers :].tolist()} == later | earlier
    moved = both.shifted_windows(WINDOWS, np.array(both.find(-10, 20)))
    assert moved.tolist() == [[490, 520], [520, 550]]
    assert both.total_minutes[both.find(-10, 20)] == 30.0


def test_a_tolerance_holds_in_both_directions():
    table = offer_table((0, 10, 20), "both")
    accepted = {tuple(pair) for pair in table.minutes[table.tolerated(np.array([10.0, 20.0]))].tolist()}
    assert accepted == {(p, q) for p, q in table.minutes.tolist() if abs(p) <= 10 and abs(q) <= 20}
    assert (-10, 20) in accepted
    assert (20, -10) not in accepted


def test_the_largest_offer_is_outward_and_ties_in_cost_go_to_the_smallest_shift():
    table = offer_table((0, 10, 20), "both")
    everything = np.ones((1, table.num_offers), bool)
    assert table.largest(everything) == table.find(20, 20)
    assert table.cheapest(np.zeros((1, table.num_offers)), everything) == table.no_change
