"""Choices of the red agents in episodes with recorded draws or a prepared memory."""

import numpy as np
import pytest

from helpers.cage2_game import (
    DEFENDER,
    ENTERPRISE,
    ENTERPRISE0,
    ENTERPRISE1,
    ENTERPRISE2,
    OP_SERVER0,
    OPERATIONAL,
    SLEEP,
    USER,
    USER0,
    USER1,
    USER2,
    USER3,
    USER4,
    decoy,
    restore,
)
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.network import NONE
from hundredfold.envs.cage2.network_tables import STANDARD_TABLES
from hundredfold.envs.cage2.red_actions import DISCOVER, ESCALATE, EXPLOIT, IMPACT, SCAN
from hundredfold.envs.cage2.red_agents import SCRIPT_AFTER_FAILURE
from hundredfold.envs.cage2.state import FALSE, TRUE, UNKNOWN


class Episode:
    """One env with a red agent; draws can be given by name."""

    def __init__(self, red, **settings):
        self.env = Cage2(np.arange(1), Cage2Settings(red=red, horizons=(1000,), **settings))
        self.env.reset(seed=0)
        self.red_actions = []

    def step(self, blue=SLEEP, **draws):
        recorded = {name: np.array([value]) for name, value in draws.items()} or None
        self.env.step_with_draws(np.array([blue]), recorded)
        self.red_actions.append((self["red_action"], self["red_target"]))
        return self.red_actions[-1]

    def __getitem__(self, name):
        return int(self.env.out.info[name][0])

    def hidden(self, name):
        return int(self.env.hidden[name][0])

    def hosts(self, name):
        """A set of hosts in red's memory."""
        return {host for host in range(13) if self.hidden(name) >> host & 1}


def b_line_via(user):
    """B_line after its first scan, its user host given."""
    episode = Episode("b_line")
    episode.step()
    episode.step(red_target=user)
    return episode


def test_sleeping_red_does_nothing():
    episode = Episode("sleep")
    assert [episode.step() for _ in range(3)] == [(0, NONE)] * 3
    assert episode["red_success"] == UNKNOWN


@pytest.mark.parametrize("user", [USER1, USER2, USER3, USER4])
def test_undisturbed_b_line_follows_its_script_to_impact(user):
    episode = b_line_via(user)
    draws = {"exploit_detected": 1, "escalate_choice": 0}
    best = {USER1: 7, USER2: 0, USER3: 6, USER4: 6, ENTERPRISE0: 4, ENTERPRISE1: 3, ENTERPRISE2: 3}
    for target in STANDARD_TABLES.script_target[2:]:
        host = user if target == -1 else STANDARD_TABLES.linked_host[user] if target == -2 else target
        episode.step(exploit=best.get(host, 4), **draws)
        assert episode["red_success"] == TRUE
    link = ENTERPRISE1 if user in (USER1, USER2) else ENTERPRISE0
    assert episode.red_actions == [
        (DISCOVER, USER),
        *((action, user) for action in (SCAN, EXPLOIT, ESCALATE)),
        *((action, link) for action in (SCAN, EXPLOIT, ESCALATE)),
        (DISCOVER, ENTERPRISE),
        *((action, ENTERPRISE2) for action in (SCAN, EXPLOIT, ESCALATE)),
        *((action, OP_SERVER0) for action in (SCAN, EXPLOIT, ESCALATE, IMPACT)),
    ]
    assert episode.step() == episode.step() == (IMPACT, OP_SERVER0)


def test_b_line_goes_back_as_its_script_says():
    assert SCRIPT_AFTER_FAILURE.tolist() == [0, 1, 2, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9, 12, 13]


def test_b_line_repeats_a_failed_exploit_on_the_host_it_chose():
    episode = b_line_via(USER1)
    # The host is restored after the exploit, so a new shell is needed.
    episode.step(exploit=7, exploit_detected=1)
    assert episode.step(restore(USER1)) == (ESCALATE, USER1)
    assert episode["red_success"] == FALSE
    assert episode.step(exploit=7, exploit_detected=1) == (EXPLOIT, USER1)


def test_b_line_keeps_its_user_host_for_the_whole_episode():
    episode = b_line_via(USER3)
    for _ in range(6):
        episode.step(restore(USER3))
    assert {target for action, target in episode.red_actions[1:]} <= {USER3, ENTERPRISE0}
    assert episode.hidden("b_line_user_host") == USER3


def test_b_line_picks_its_user_host_uniformly():
    rows = 8000
    env = Cage2(np.arange(rows), Cage2Settings(red="b_line"))
    env.reset(seed=2)
    env.step(np.zeros(rows, int))
    env.step(np.zeros(rows, int))
    counts = np.bincount(env.out.info["red_target"], minlength=13)[USER1:]
    assert counts.sum() == rows
    assert np.abs(counts / rows - 0.25).max() < 0.02


def at_server_scan(restored):
    """B_line about to scan Op_Server0, with the enterprise hosts restored before it does."""
    episode = b_line_via(USER1)
    episode.step(exploit=7, exploit_detected=1)
    episode.step()
    episode.step()
    episode.step(exploit=1, exploit_detected=1)  # Enterprise1 by BlueKeep: root
    for _ in range(3):
        episode.step()
    episode.step(exploit=1, exploit_detected=1)  # Enterprise2
    episode.step(restore(ENTERPRISE1) if restored else SLEEP)
    assert episode.red_actions[-1] == (ESCALATE, ENTERPRISE2)
    episode.step(restore(ENTERPRISE2) if restored else SLEEP)
    assert episode.red_actions[-1] == (SCAN, OP_SERVER0)
    assert episode["red_success"] == TRUE
    return episode


def test_b_line_starts_over_after_an_empty_first_scan_of_the_server():
    assert at_server_scan(restored=False).step(exploit=4) == (EXPLOIT, OP_SERVER0)
    episode = at_server_scan(restored=True)
    assert episode.step() == (SCAN, USER1)
    assert episode.step(exploit=7, exploit_detected=1) == (EXPLOIT, USER1)


def test_b_line_starts_over_only_before_its_first_attack_on_the_server():
    episode = at_server_scan(restored=False)
    episode.step(restore(ENTERPRISE1))  # exploits Op_Server0
    assert episode.red_actions[-1] == (EXPLOIT, OP_SERVER0)
    # Removed everywhere, it starts again and gets an empty scan; this time it continues.
    episode.step(restore(OP_SERVER0))
    assert (episode.red_actions[-1], episode["red_success"]) == ((ESCALATE, OP_SERVER0), FALSE)
    episode.step(restore(ENTERPRISE2))
    assert (episode.red_actions[-1], episode["red_success"]) == ((EXPLOIT, OP_SERVER0), FALSE)
    assert episode.step(exploit=1, exploit_detected=1) == (EXPLOIT, ENTERPRISE2)
    assert episode.step() == (ESCALATE, ENTERPRISE2)
    assert episode.step(restore(ENTERPRISE2)) == (SCAN, OP_SERVER0)
    assert episode.hidden("empty_scan") == 1
    assert episode.step() == (EXPLOIT, OP_SERVER0)


def meander_in_user_subnet():
    """Meander after discovering and scanning all users, in order."""
    episode = Episode("meander")
    assert episode.step() == (DISCOVER, USER)
    for host in (USER0, USER1, USER2, USER3, USER4):
        assert episode.step(red_target=host) == (SCAN, host)
    return episode


def test_meander_scans_known_hosts_then_escalates_user0_first():
    episode = meander_in_user_subnet()
    assert episode.step(red_target=USER0) == (ESCALATE, USER0)
    assert episode["red_success"] == TRUE


def test_meander_exploits_then_escalates_then_follows_the_link():
    episode = meander_in_user_subnet()
    episode.step(red_target=USER0)
    assert episode.step(red_target=USER1, exploit=7, exploit_detected=1) == (EXPLOIT, USER1)
    assert episode.step(red_target=USER1) == (ESCALATE, USER1)
    assert episode.step(red_target=ENTERPRISE1) == (SCAN, ENTERPRISE1)
    # Only the address was learned, not the subnet: Enterprise is discovered after an escalation.
    red_action = episode.step(red_target=ENTERPRISE1, exploit=1, exploit_detected=1)
    assert red_action == (EXPLOIT, ENTERPRISE1)
    assert episode.step(red_target=ENTERPRISE1) == (ESCALATE, ENTERPRISE1)
    assert episode.step() == (DISCOVER, ENTERPRISE)


def test_meander_exploits_user0_too():
    episode = meander_in_user_subnet()
    episode.step(red_target=USER0)
    assert episode.step(red_target=USER0, exploit=4) == (EXPLOIT, USER0)
    assert episode["red_success"] == TRUE


def test_meander_tries_a_subnet_once_even_without_success():
    episode = Episode("meander")
    episode.env.out.true_state["red_subnets"][0] |= 1 << OPERATIONAL
    assert episode.step() == (DISCOVER, OPERATIONAL)  # enterprise first, were it known; user last
    assert episode["red_success"] == FALSE
    assert episode.step() == (DISCOVER, USER)
    assert episode.step(red_target=USER0) == (SCAN, USER0)


def test_meander_never_scans_a_host_twice_even_if_the_scan_was_empty():
    episode = Episode("meander")
    episode.step()
    episode.env.out.true_state["known"][0, OP_SERVER0] = 1
    assert episode.step(red_target=OP_SERVER0) == (SCAN, OP_SERVER0)
    assert episode.env.out.true_state["scanned"][0, OP_SERVER0] == 0
    for host in (USER0, USER1, USER2, USER3, USER4):
        episode.step(red_target=host)
    assert episode.step(red_target=USER0) == (ESCALATE, USER0)


def test_meander_keeps_attacking_defender_and_retries_enterprise_servers_each_time():
    episode = Episode("meander")
    env = episode.env
    env.out.true_state["known"][0, [DEFENDER, USER0]] = 1
    env.hidden["subnets_tried"] = 0b111
    escalated = {USER0, USER1, ENTERPRISE0, ENTERPRISE1}
    mask = sum(1 << host for host in escalated)
    for name in ("hosts_escalated", "hosts_exploited", "hosts_ever_exploited"):
        env.hidden[name] = mask
    env.hidden["hosts_scanned"] = 0x1FFF
    env.hidden["exploit_options"][0, DEFENDER] = 1 << 4
    env.out.true_state["known"][0] = [1] + [h in escalated for h in range(1, 13)]
    assert episode.step(red_target=DEFENDER) == (EXPLOIT, DEFENDER)
    assert episode["red_success"] == FALSE
    # No operational host is escalated, so the enterprise servers are retried; users are not.
    episode.step(red_target=DEFENDER)
    assert episode.hosts("hosts_escalated") == {USER0, USER1}
    assert episode.hosts("hosts_exploited") == {DEFENDER, USER0, USER1}


def test_meander_retries_operational_hosts_before_enterprise_servers():
    episode = Episode("meander")
    hidden = episode.env.hidden
    held = 1 << ENTERPRISE0 | 1 << 4 | 1 << 5
    for name in ("hosts_escalated", "hosts_exploited", "hosts_ever_exploited"):
        hidden[name] = held
    hidden["last_exploited"], hidden["red_success"] = DEFENDER, FALSE
    episode.step()
    assert episode.hosts("hosts_escalated") == {ENTERPRISE0}
    assert episode.hosts("hosts_exploited") == {ENTERPRISE0}


def test_meander_impacts_once_the_server_is_escalated_and_starts_over_when_removed():
    episode = Episode("meander")
    hidden = episode.env.hidden
    for name in ("hosts_escalated", "hosts_exploited", "hosts_ever_exploited"):
        hidden[name] = 1 << OP_SERVER0
    assert episode.step() == (IMPACT, OP_SERVER0)
    assert episode["red_success"] == FALSE  # red's memory is wrong: it has no session
    episode.step()
    assert episode.hosts("hosts_escalated") == episode.hosts("hosts_exploited") == set()
    assert episode.hosts("hosts_ever_exploited") == {OP_SERVER0}


def test_meander_repeats_a_failed_escalation_after_exploiting_again():
    episode = meander_in_user_subnet()
    episode.step(red_target=USER0)
    episode.step(red_target=USER2, exploit=1, exploit_detected=1)
    assert episode.step(restore(USER2), red_target=USER2) == (ESCALATE, USER2)
    assert episode["red_success"] == FALSE
    # USER2 is a candidate again: it was removed from both sets.
    episode.step(red_target=USER2, exploit=0, exploit_detected=1)
    assert episode.red_actions[-1] == (EXPLOIT, USER2)
    assert episode.step(red_target=USER2) == (ESCALATE, USER2)


def test_meander_picks_uniformly_among_its_candidates():
    rows = 10_000
    env = Cage2(np.arange(rows), Cage2Settings(red="meander"))
    env.reset(seed=5)
    env.step(np.zeros(rows, int))
    env.step(np.zeros(rows, int))
    counts = np.bincount(env.out.info["red_target"], minlength=13)
    assert counts[:USER0].sum() == 0
    assert np.abs(counts[USER0:] / rows - 0.2).max() < 0.02


def test_a_decoy_makes_b_line_try_again():
    episode = Episode("b_line")
    episode.step(decoy(6, USER2))  # Tomcat
    episode.step(red_target=USER2)
    assert episode.step(exploit=3) == (EXPLOIT, USER2)
    assert episode["red_success"] == FALSE
    assert episode.step(exploit=0, exploit_detected=1) == (EXPLOIT, USER2)
    assert episode["red_success"] == TRUE
