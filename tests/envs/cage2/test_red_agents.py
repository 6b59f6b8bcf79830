"""How red's agents choose, told through whole episodes with recorded or prepared luck."""

import numpy as np
import pytest

from helpers.cage2_game import SLEEP, decoy, restore
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.network import (
    DEFENDER,
    ENTERPRISE,
    ENTERPRISE0,
    ENTERPRISE1,
    ENTERPRISE2,
    LINK,
    NOBODY,
    OP_SERVER0,
    OPERATIONAL,
    USER,
    USER0,
    USER1,
    USER2,
    USER3,
    USER4,
)
from hundredfold.envs.cage2.red_actions import DISCOVER, ESCALATE, EXPLOIT, IMPACT, SCAN
from hundredfold.envs.cage2.red_agents import B_LINE_PLAN, PLAN_AFTER_FAILURE
from hundredfold.envs.cage2.state import FALSE, TRUE, UNKNOWN


class Duel:
    """One env with a live red agent; luck can be given by name."""

    def __init__(self, red, **settings):
        self.env = Cage2(np.arange(1), Cage2Settings(red=red, horizons=(1000,), **settings))
        self.env.reset(seed=0)
        self.moves = []

    def step(self, blue=SLEEP, **draws):
        recorded = {name: np.array([value]) for name, value in draws.items()} or None
        self.env.step_injected(np.array([blue]), recorded)
        self.moves.append((self["red_action"], self["red_target"]))
        return self.moves[-1]

    def __getitem__(self, name):
        return int(self.env.out.info[name][0])

    def secret(self, name):
        return int(self.env.secrets[name][0])

    def hosts(self, name):
        """A set of hosts in red's memory."""
        return {host for host in range(13) if self.secret(name) >> host & 1}


def b_line_via(user):
    """B_line after its first scan, its user host given."""
    duel = Duel("b_line")
    duel.step()
    duel.step(red_target=user)
    return duel


def test_sleeping_red_does_nothing():
    duel = Duel("sleep")
    assert [duel.step() for _ in range(3)] == [(0, NOBODY)] * 3
    assert duel["red_success"] == UNKNOWN


@pytest.mark.parametrize("user", [USER1, USER2, USER3, USER4])
def test_undisturbed_b_line_climbs_its_plan_to_impact(user):
    duel = b_line_via(user)
    lucky = {"exploit_detected": 1, "escalate_choice": 0}
    best = {USER1: 7, USER2: 0, USER3: 6, USER4: 6, ENTERPRISE0: 4, ENTERPRISE1: 3, ENTERPRISE2: 3}
    for _, target, _ in B_LINE_PLAN[2:]:
        host = user if target == -1 else LINK[user] if target == -2 else target
        duel.step(exploit=best.get(host, 4), **lucky)
        assert duel["red_success"] == TRUE
    link = ENTERPRISE1 if user in (USER1, USER2) else ENTERPRISE0
    assert duel.moves == [
        (DISCOVER, USER),
        *((action, user) for action in (SCAN, EXPLOIT, ESCALATE)),
        *((action, link) for action in (SCAN, EXPLOIT, ESCALATE)),
        (DISCOVER, ENTERPRISE),
        *((action, ENTERPRISE2) for action in (SCAN, EXPLOIT, ESCALATE)),
        *((action, OP_SERVER0) for action in (SCAN, EXPLOIT, ESCALATE, IMPACT)),
    ]
    assert duel.step() == duel.step() == (IMPACT, OP_SERVER0)


def test_b_line_falls_back_where_its_plan_says():
    assert PLAN_AFTER_FAILURE.tolist() == [0, 1, 2, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9, 12, 13]


def test_b_line_repeats_a_failed_exploit_on_the_host_it_chose():
    duel = b_line_via(USER1)
    # FTP is what red saw; the host is restored under its feet, so the shell must be opened again.
    duel.step(exploit=7, exploit_detected=1)
    assert duel.step(restore(USER1)) == (ESCALATE, USER1)
    assert duel["red_success"] == FALSE
    assert duel.step(exploit=7, exploit_detected=1) == (EXPLOIT, USER1)


def test_b_line_keeps_its_user_host_for_the_whole_episode():
    duel = b_line_via(USER3)
    for _ in range(6):
        duel.step(restore(USER3))
    assert {target for action, target in duel.moves[1:]} <= {USER3, ENTERPRISE0}
    assert duel.secret("b_line_user") == USER3


def test_b_line_chooses_among_the_four_users_alike():
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
    duel = b_line_via(USER1)
    duel.step(exploit=7, exploit_detected=1)
    duel.step()
    duel.step()
    duel.step(exploit=1, exploit_detected=1)  # Enterprise1 by BlueKeep: root
    for _ in range(3):
        duel.step()
    duel.step(exploit=1, exploit_detected=1)  # Enterprise2
    duel.step(restore(ENTERPRISE1) if restored else SLEEP)
    assert duel.moves[-1] == (ESCALATE, ENTERPRISE2)
    duel.step(restore(ENTERPRISE2) if restored else SLEEP)
    assert duel.moves[-1] == (SCAN, OP_SERVER0)
    assert duel["red_success"] == TRUE
    return duel


def test_b_line_starts_over_after_an_empty_first_scan_of_the_server():
    assert at_server_scan(restored=False).step(exploit=4) == (EXPLOIT, OP_SERVER0)
    duel = at_server_scan(restored=True)
    assert duel.step() == (SCAN, USER1)
    assert duel.step(exploit=7, exploit_detected=1) == (EXPLOIT, USER1)


def test_b_line_starts_over_only_before_its_first_attack_on_the_server():
    duel = at_server_scan(restored=False)
    duel.step(restore(ENTERPRISE1))  # exploits Op_Server0
    assert duel.moves[-1] == (EXPLOIT, OP_SERVER0)
    # Thrown out everywhere, it climbs again and meets an empty scan; this time it goes on.
    duel.step(restore(OP_SERVER0))
    assert (duel.moves[-1], duel["red_success"]) == ((ESCALATE, OP_SERVER0), FALSE)
    duel.step(restore(ENTERPRISE2))
    assert (duel.moves[-1], duel["red_success"]) == ((EXPLOIT, OP_SERVER0), FALSE)
    assert duel.step(exploit=1, exploit_detected=1) == (EXPLOIT, ENTERPRISE2)
    assert duel.step() == (ESCALATE, ENTERPRISE2)
    assert duel.step(restore(ENTERPRISE2)) == (SCAN, OP_SERVER0)
    assert duel.secret("empty_scan") == 1
    assert duel.step() == (EXPLOIT, OP_SERVER0)


def meander_in_user_subnet():
    """Meander after discovering and scanning all users, in order."""
    duel = Duel("meander")
    assert duel.step() == (DISCOVER, USER)
    for host in (USER0, USER1, USER2, USER3, USER4):
        assert duel.step(red_target=host) == (SCAN, host)
    return duel


def test_meander_scans_known_hosts_then_escalates_user0_first():
    duel = meander_in_user_subnet()
    assert duel.step(red_target=USER0) == (ESCALATE, USER0)
    assert duel["red_success"] == TRUE


def test_meander_exploits_then_escalates_then_follows_the_link():
    duel = meander_in_user_subnet()
    duel.step(red_target=USER0)
    assert duel.step(red_target=USER1, exploit=7, exploit_detected=1) == (EXPLOIT, USER1)
    assert duel.step(red_target=USER1) == (ESCALATE, USER1)
    assert duel.step(red_target=ENTERPRISE1) == (SCAN, ENTERPRISE1)
    # Only the address was learned, not the subnet: Enterprise is discovered after an escalation.
    move = duel.step(red_target=ENTERPRISE1, exploit=1, exploit_detected=1)
    assert move == (EXPLOIT, ENTERPRISE1)
    assert duel.step(red_target=ENTERPRISE1) == (ESCALATE, ENTERPRISE1)
    assert duel.step() == (DISCOVER, ENTERPRISE)


def test_meander_exploits_user0_too():
    duel = meander_in_user_subnet()
    duel.step(red_target=USER0)
    assert duel.step(red_target=USER0, exploit=4) == (EXPLOIT, USER0)
    assert duel["red_success"] == TRUE


def test_meander_tries_a_subnet_once_even_in_vain():
    duel = Duel("meander")
    duel.env.out.true_state["red_subnets"][0] |= 1 << OPERATIONAL
    assert duel.step() == (DISCOVER, OPERATIONAL)  # enterprise first, were it known; user last
    assert duel["red_success"] == FALSE
    assert duel.step() == (DISCOVER, USER)
    assert duel.step(red_target=USER0) == (SCAN, USER0)


def test_meander_never_scans_a_host_twice_even_if_the_scan_was_empty():
    duel = Duel("meander")
    duel.step()
    duel.env.out.true_state["known"][0, OP_SERVER0] = 1
    assert duel.step(red_target=OP_SERVER0) == (SCAN, OP_SERVER0)
    assert duel.env.out.true_state["scanned"][0, OP_SERVER0] == 0
    for host in (USER0, USER1, USER2, USER3, USER4):
        duel.step(red_target=host)
    assert duel.step(red_target=USER0) == (ESCALATE, USER0)


def test_meander_keeps_attacking_defender_and_doubts_its_conquests_each_time():
    duel = Duel("meander")
    env = duel.env
    env.out.true_state["known"][0, [DEFENDER, USER0]] = 1
    env.secrets["subnets_tried"] = 0b111
    escalated = {USER0, USER1, ENTERPRISE0, ENTERPRISE1}
    mask = sum(1 << host for host in escalated)
    for name in ("hosts_escalated", "hosts_exploited", "hosts_mastered"):
        env.secrets[name] = mask
    env.secrets["hosts_scanned"] = 0x1FFF
    env.secrets["options"][0, DEFENDER] = 1 << 4
    env.out.true_state["known"][0] = [1] + [h in escalated for h in range(1, 13)]
    assert duel.step(red_target=DEFENDER) == (EXPLOIT, DEFENDER)
    assert duel["red_success"] == FALSE
    # No operational host is held, so the enterprise servers are doubted; users are not.
    duel.step(red_target=DEFENDER)
    assert duel.hosts("hosts_escalated") == {USER0, USER1}
    assert duel.hosts("hosts_exploited") == {DEFENDER, USER0, USER1}


def test_meander_doubts_operational_hosts_before_enterprise_servers():
    duel = Duel("meander")
    secrets = duel.env.secrets
    held = 1 << ENTERPRISE0 | 1 << 4 | 1 << 5
    for name in ("hosts_escalated", "hosts_exploited", "hosts_mastered"):
        secrets[name] = held
    secrets["last_exploited"], secrets["red_success"] = DEFENDER, FALSE
    duel.step()
    assert duel.hosts("hosts_escalated") == {ENTERPRISE0}
    assert duel.hosts("hosts_exploited") == {ENTERPRISE0}


def test_meander_impacts_once_the_server_is_escalated_and_starts_over_when_thrown_out():
    duel = Duel("meander")
    secrets = duel.env.secrets
    for name in ("hosts_escalated", "hosts_exploited", "hosts_mastered"):
        secrets[name] = 1 << OP_SERVER0
    assert duel.step() == (IMPACT, OP_SERVER0)
    assert duel["red_success"] == FALSE  # there is no session behind red's memory
    duel.step()
    assert duel.hosts("hosts_escalated") == duel.hosts("hosts_exploited") == set()
    assert duel.hosts("hosts_mastered") == {OP_SERVER0}


def test_meander_repeats_a_failed_escalation_after_exploiting_again():
    duel = meander_in_user_subnet()
    duel.step(red_target=USER0)
    duel.step(red_target=USER2, exploit=1, exploit_detected=1)
    assert duel.step(restore(USER2), red_target=USER2) == (ESCALATE, USER2)
    assert duel["red_success"] == FALSE
    # The choice is now among all users but none: USER2 has left both sets.
    duel.step(red_target=USER2, exploit=0, exploit_detected=1)
    assert duel.moves[-1] == (EXPLOIT, USER2)
    assert duel.step(red_target=USER2) == (ESCALATE, USER2)


def test_meander_picks_evenly_among_its_candidates():
    rows = 10_000
    env = Cage2(np.arange(rows), Cage2Settings(red="meander"))
    env.reset(seed=5)
    env.step(np.zeros(rows, int))
    env.step(np.zeros(rows, int))
    counts = np.bincount(env.out.info["red_target"], minlength=13)
    assert counts[:USER0].sum() == 0
    assert np.abs(counts[USER0:] / rows - 0.2).max() < 0.02


def test_a_decoy_on_the_way_makes_b_line_try_again():
    duel = Duel("b_line")
    duel.step(decoy(6, USER2))  # Tomcat
    duel.step(red_target=USER2)
    assert duel.step(exploit=3) == (EXPLOIT, USER2)
    assert duel["red_success"] == FALSE
    assert duel.step(exploit=0, exploit_detected=1) == (EXPLOIT, USER2)
    assert duel["red_success"] == TRUE
