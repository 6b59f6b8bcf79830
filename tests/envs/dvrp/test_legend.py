"""The legend of dvrp agrees with the env."""

import re
from typing import get_args

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hundredfold.cli.main import main
from hundredfold.envs.dvrp import legend
from hundredfold.envs.dvrp.env import Dvrp, offer_columns
from hundredfold.envs.dvrp.settings import DvrpSettings, ObservationLayout

HINTS = {"cost_hint": True, "acceptance_hint": True, "mask_mode": "soft"}


def columns_of(array):
    """Meanings by the first of their columns."""
    rows = [row for row in legend.observation_rows(DvrpSettings()) if row["array"] == array]
    return {int(re.match(r"\d*", row["columns"])[0] or 0): row["meaning"] for row in rows}


@pytest.mark.parametrize("layout", get_args(ObservationLayout))
def test_every_column_of_every_observation_has_a_meaning(layout):
    settings = DvrpSettings(num_customers=3, lns_iterations=0, observation=layout, **HINTS)
    env = Dvrp(np.arange(1), settings)
    rows = legend.observation_rows(settings)
    for name, spec in env.spec.observation.items():
        ranges = [row["columns"].split("..") for row in rows if row["array"] == name]
        if name in offer_columns(settings) or ranges == [["all"]]:
            assert ranges == [["all"]]
            continue
        found = [column for first, *last in ranges for column in range(int(first), int((last or [first])[0]) + 1)]
        assert found == list(range(spec.shape[-1])), name


def test_every_offer_info_and_array_of_the_true_state_has_a_meaning():
    env = Dvrp(np.arange(1), DvrpSettings(num_customers=3, lns_iterations=0))
    tables = list(legend.tables(env.settings).values())
    assert [row["action"] for row in tables[1]] == list(range(env.spec.action_nvec[0]))
    for table, arrays in zip(tables[2:], (env.spec.info, env.spec.episode_info, env.spec.true_state), strict=True):
        assert [next(iter(row.values())) for row in table] == list(arrays)
        assert all(row["meaning"] for row in table)


def test_observations_have_the_units_of_the_legend():
    env = Dvrp(np.arange(2), DvrpSettings(num_customers=4, lns_iterations=0))
    env.reset(0)
    offer = np.full(2, legend.offer_names(env.settings).index("pickup 20 min earlier, dropoff 10 min later"))
    out, state = env.step(offer), env.true_state
    request, bookings = out.observation["request"], out.observation["bookings"][:, 0]
    meanings = columns_of("request")
    assert meanings[4].endswith("minutes after midnight / 1440")
    assert_allclose(1440 * request[:, 4:8], state["requested_windows"][:, 1].reshape(2, 4), rtol=1e-5)
    assert meanings[8] == "direct drive from pickup to dropoff, minutes / 60"
    cells = out.observation["cells"]
    assert_allclose(60 * request[:, 8], env.population.city.travel_minutes[cells[:, 0], cells[:, 1]], rtol=1e-5)
    purpose = env.population.trips.purpose[state["trip_id"][:, 1]]
    assert_array_equal(request[:, 9:19].argmax(axis=1), purpose)
    assert_allclose(request[:, 19], 1 / 4)
    assert columns_of("bookings")[9] == "minutes by which the pickup was moved earlier and the dropoff later / 30"
    moved = np.where(state["accepted"][:, :1], [20.0, 10.0], 0.0)
    assert_allclose(30 * bookings[:, 9:11], moved, atol=1e-5)


def test_the_command_explains_arrays_offers_and_infos(capsys):
    assert main(["envs", "dvrp"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in ("minutes after midnight", "pickup 30 min earlier", "improvement_pct", "driving minutes saved"):
        assert part in text
