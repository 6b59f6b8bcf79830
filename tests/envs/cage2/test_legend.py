"""The legend of cage2 agrees with the env, and the docs with the legend."""

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hundredfold
from helpers.cage2_game import HOSTS, NUM_ACTIONS, NUM_HOSTS, OP_HOST0, USER
from hundredfold.envs.cage2 import legend
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.evaluation import PUBLISHED_AGENTS, published_markdown
from hundredfold.envs.cage2.legend import ACTION_NAMES
from hundredfold.envs.cage2.network import DECOYS
from hundredfold.envs.cage2.red_actions import DISCOVER, ESCALATE, EXPLOIT, RED_ACTIONS, SCAN
from hundredfold.envs.cage2.state import INFO, TRUE_STATE

DOCS = (Path(__file__).parents[3] / "docs" / "cage2.md").read_text("utf-8")


def test_every_action_has_its_own_name_and_both_tables_give_its_number():
    assert len(set(legend.ACTION_NAMES)) == NUM_ACTIONS
    for row in legend.verb_rows():
        first, _, on_hosts = row["number"].partition(" + ")
        for host in range(NUM_HOSTS if on_hosts else 1):
            assert ACTION_NAMES[int(first) + host].split()[0] == row["action"]
    grid = legend.action_table()
    numbers = [number for row in grid for number in list(row.values())[1:]]
    assert sorted(numbers) == list(range(2, NUM_ACTIONS))
    for row in grid:
        assert ACTION_NAMES[row["Restore"]] == f"Restore {row['host']}"
        assert ACTION_NAMES[row["Tomcat"]] == f"DecoyTomcat {row['host']}"


def test_decoys_can_be_placed_where_the_legend_says_and_nowhere_else():
    env = Cage2(np.arange(NUM_HOSTS), Cage2Settings(red="sleep"))
    for decoy, row in enumerate(legend.decoy_rows()):
        out = env.reset(0)
        env.step(np.array([legend.ACTION_NAMES.index(f"Decoy{row['name']} {host}") for host in HOSTS]))
        placed = np.diagonal(out.true_state["decoys"])
        assert [HOSTS[host] for host in np.flatnonzero(placed)] == row["hosts"].split(", ")
        assert set(placed[placed > 0]) == {1 << decoy}
        assert legend.decoy_names(int(placed.max())) == [DECOYS[decoy]]


def test_a_scan_sets_the_bits_of_the_host_that_the_legend_names():
    hosts = [host for host in range(NUM_HOSTS) if not OP_HOST0 <= host < OP_HOST0 + 4]  # in reach from the start
    env = Cage2(np.arange(len(hosts)), Cage2Settings(red="sleep"))
    out = env.reset(0)
    env.step_with_draws(np.zeros(len(hosts), int), force_red=(np.full(len(hosts), SCAN), np.array(hosts)))
    for row, host in enumerate(hosts):
        first, second = (int(place) for place in legend.bit_rows()[host]["activity"].split(", "))
        assert np.flatnonzero(out.observation["bits"][row]).tolist() == [first]
        assert legend.ACTIVITY[1, 0] == "scan"
        assert second == first + 1
        assert_array_equal(legend.host_bits(out.observation["bits"][row])[host], [1, 0, 0, 0])


def test_the_cost_of_a_host_is_the_reward_lost_with_a_privileged_session():
    rows = legend.host_rows()
    env = Cage2(np.arange(1), Cage2Settings(red="sleep"))
    for name in ("User1", "User3"):
        host = HOSTS.index(name)
        out = env.reset(2)
        for red in ((DISCOVER, USER), (SCAN, host), *[(EXPLOIT, host)] * 20, (ESCALATE, host)):
            env.step_with_draws(np.zeros(1, int), force_red=red)
        assert legend.ACCESS[out.true_state["access"][0, host]] == "privileged"
        assert out.reward[0] == -rows[host]["cost_per_step"]
        assert out.true_state["known"][0, HOSTS.index(rows[host]["reveals"])] == 1


def test_every_array_and_code_has_a_meaning():
    assert [row["array"] for row in legend.true_state_rows()] == list(TRUE_STATE)
    assert [row["info"] for row in legend.info_rows()] == list(INFO)
    assert len(legend.ACCESS) == TRUE_STATE["access"].high + 1
    assert len(legend.SUCCESS) == INFO["red_success"].high + 1
    assert len(RED_ACTIONS) == INFO["red_action"].high + 1


@pytest.mark.parametrize(
    ("name", "expected"), [("legend", legend.markdown()), ("published agents", published_markdown())]
)
def test_the_docs_show_the_tables_of_the_env(name, expected):
    found = re.search(rf"<!-- {name}[^\n]* -->\n\n(.*?)\n\n<!-- end of {name} -->", DOCS, re.S)
    assert found
    assert found[1] == expected


def test_the_cells_of_published_agents_add_up_to_their_totals():
    for agent in PUBLISHED_AGENTS:
        assert sum(agent.means.values()) == pytest.approx(agent.total, abs=0.005)


def test_vector_envs_name_their_actions():
    for env, names in (("cage2", legend.ACTION_NAMES), ("cartpole", ())):
        envs = hundredfold.make_vec(env, 2)
        assert envs.action_names == names
        envs.close()
