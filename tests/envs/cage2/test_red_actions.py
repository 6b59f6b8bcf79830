import numpy as np
import pytest

from helpers.cage2_game import (
    DEFENDER,
    ENTERPRISE,
    ENTERPRISE0,
    ENTERPRISE1,
    ENTERPRISE2,
    EXPLOIT_OPTIONS,
    HOSTS,
    NUM_HOSTS,
    OP_HOST0,
    OP_HOST1,
    OP_HOST2,
    OP_SERVER0,
    OPERATIONAL,
    USER,
    USER0,
    USER1,
    USER2,
    USER3,
    USER4,
    Game,
    decoy,
    restore,
)
from hundredfold.envs.cage2 import red_actions
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.network import (
    APACHE,
    BLUE_KEEP,
    ETERNAL_BLUE,
    EXPLOITS,
    FTP_TRAVERSAL,
    HARAKA_RCE,
    HTTP_RFI,
    HTTPS_RFI,
    NUM_EXPLOITS,
    SQL_INJECTION,
    SSH_BRUTE_FORCE,
    TOMCAT,
    VSFTPD,
)
from hundredfold.envs.cage2.network_tables import TOP_EXPLOIT
from hundredfold.envs.cage2.random_draws import SessionLimitError
from hundredfold.envs.cage2.state import FALSE, TRUE


def hosts_where(row):
    return np.flatnonzero(row).tolist()


def test_red_starts_with_a_privileged_session_on_user0_alone():
    game = Game()
    assert hosts_where(game["n_sessions"]) == hosts_where(game["known"]) == [USER0]
    assert game["access"][USER0] == game["access_first"][USER0] == 2
    assert game["red_subnets"] == 1 << USER
    assert game["ot_up"] == 1
    assert hosts_where(game["scanned"]) == []


@pytest.mark.parametrize(
    ("subnet", "hosts"), [(ENTERPRISE, range(4)), (USER, range(8, 13))], ids=["enterprise", "user"]
)
def test_discovering_a_subnet_reveals_all_its_addresses(subnet, hosts):
    game = Game().discover(subnet)
    assert game["red_success"] == TRUE
    assert hosts_where(game["known"]) == sorted({*hosts, USER0})
    assert game["red_subnets"] == 1 << subnet | 1 << USER


@pytest.mark.parametrize("server", [ENTERPRISE0, ENTERPRISE1, ENTERPRISE2])
def test_the_operational_subnet_is_reachable_from_any_enterprise_server(server):
    game = Game().discover(OPERATIONAL)
    assert game["red_success"] == FALSE
    assert hosts_where(game["known"]) == [USER0]
    game.break_in(server, SSH_BRUTE_FORCE).discover(OPERATIONAL)
    assert game["red_success"] == TRUE
    assert hosts_where(game["known"]) == [4, 5, 6, 7, USER0]
    # The session must exist when red acts, after blue.
    assert game.discover(OPERATIONAL, blue=restore(server))["red_success"] == FALSE


def test_the_operational_subnet_is_not_reachable_from_defender():
    game = Game()
    game["n_sessions"][DEFENDER] = 1
    assert game.discover(OPERATIONAL)["red_success"] == FALSE


def test_every_attack_on_defender_fails():
    assert Game().break_in(DEFENDER)["red_success"] == FALSE


def test_a_scan_of_an_unreachable_host_is_true_and_empty():
    game = Game().scan(OP_SERVER0)
    assert game["red_success"] == TRUE
    assert game["scanned"][OP_SERVER0] == 0
    assert game.is_quiet
    # The scan found nothing, so there is nothing to exploit once the subnet is reachable.
    game.break_in(ENTERPRISE0).exploit(OP_SERVER0)
    assert game["red_success"] == FALSE
    assert game.is_quiet


def test_a_scan_replaces_the_ports_of_earlier_scans():
    game = Game().step(decoy(APACHE, ENTERPRISE0)).scan(ENTERPRISE0)
    game.step(restore(ENTERPRISE0)).scan(ENTERPRISE0)
    # SSH is the only option: no draw is needed and the exploit succeeds.
    assert game.exploit(ENTERPRISE0)["red_success"] == TRUE


def test_exploiting_an_unscanned_host_fails_silently():
    game = Game().exploit(USER1)
    assert game["red_success"] == FALSE
    assert game.is_quiet


GENUINE_TARGETS = {
    ETERNAL_BLUE: {USER2: 2},
    BLUE_KEEP: {USER2: 1, ENTERPRISE1: 2, ENTERPRISE2: 2},
    HTTP_RFI: {ENTERPRISE1: 1, ENTERPRISE2: 1, USER3: 1, USER4: 1},
    HTTPS_RFI: {ENTERPRISE1: 1, ENTERPRISE2: 1, USER3: 1, USER4: 1},
    SSH_BRUTE_FORCE: dict.fromkeys(
        [*(ENTERPRISE0, ENTERPRISE1, ENTERPRISE2), *(OP_HOST0, OP_HOST1, OP_HOST2, OP_SERVER0), *(USER0, USER1, USER4)],
        1,
    ),
    SQL_INJECTION: {USER4: 2},
    HARAKA_RCE: {USER3: 2, USER4: 2},
    FTP_TRAVERSAL: {USER0: 2, USER1: 2},
}


@pytest.mark.parametrize("exploit", range(NUM_EXPLOITS), ids=EXPLOITS)
def test_an_exploit_works_on_its_genuine_targets_only(exploit):
    for host in range(NUM_HOSTS):
        game = Game().break_in(ENTERPRISE0).scan(host)
        before = int(game["n_sessions"][host])
        if not EXPLOIT_OPTIONS[host, 0] >> exploit & 1:
            assert host not in GENUINE_TARGETS[exploit]
            continue
        game.exploit(host, exploit)
        level = GENUINE_TARGETS[exploit].get(host)
        assert game["red_success"] == (FALSE if level is None else TRUE), HOSTS[host]
        assert game["n_sessions"][host] == before + (level is not None)
        if level is not None and before == 0:
            assert game["access"][host] == game["access_first"][host] == level


@pytest.mark.parametrize(
    ("host", "exploit"), [(ENTERPRISE1, ETERNAL_BLUE), (ENTERPRISE2, ETERNAL_BLUE), (USER3, BLUE_KEEP)]
)
def test_exploits_of_other_services_on_their_port_fail_silently(host, exploit):
    game = Game().break_in(host, exploit)
    assert game["red_success"] == FALSE
    assert game.is_quiet


def test_an_exploit_of_an_unreachable_host_fails_silently():
    game = Game().break_in(ENTERPRISE0).scan(OP_SERVER0)
    game.exploit(OP_SERVER0, blue=restore(ENTERPRISE0))
    assert game["red_success"] == FALSE
    assert game.is_quiet


def test_a_decoy_placed_after_the_scan_is_never_chosen():
    game = Game().scan(ENTERPRISE0).step(decoy(TOMCAT, ENTERPRISE0))
    assert game.exploit(ENTERPRISE0)["red_success"] == TRUE  # SSH was and is the only option


def test_a_decoy_removed_by_restore_is_still_chosen_and_fails_silently():
    game = Game().step(decoy(TOMCAT, ENTERPRISE0)).scan(ENTERPRISE0).step(restore(ENTERPRISE0))
    game.exploit(ENTERPRISE0, HTTPS_RFI)
    assert game["red_success"] == FALSE
    assert game.is_quiet


def test_a_genuine_service_is_hit_before_a_decoy():
    game = Game().step(decoy(VSFTPD, USER4)).break_in(USER4, HTTP_RFI)
    assert game["red_success"] == TRUE


def test_sql_injection_needs_a_web_port_which_user4_always_has():
    for host in range(NUM_HOSTS):
        assert bool(EXPLOIT_OPTIONS[host, 0] >> SQL_INJECTION & 1) == (host == USER4)


def test_the_top_exploit_has_the_highest_weight():
    by_weight = (FTP_TRAVERSAL, HARAKA_RCE, SQL_INJECTION, HTTPS_RFI, HTTP_RFI)
    by_weight += (ETERNAL_BLUE, BLUE_KEEP, SSH_BRUTE_FORCE)
    options = (1 << NUM_EXPLOITS) - 1
    for exploit in by_weight:
        assert TOP_EXPLOIT[options] == exploit
        options &= ~(1 << exploit)


def test_the_top_exploit_has_probability_075_and_the_others_are_uniform():
    rows = 20_000
    env = Cage2(np.arange(rows), Cage2Settings(red="sleep"))
    env.reset(seed=1)
    sleep = np.zeros(rows, int)
    env.step_with_draws(sleep, force_red=(red_actions.SCAN, USER4))
    env.step_with_draws(sleep, force_red=(red_actions.EXPLOIT, USER4))
    # User4 offers Haraka (root), SQL (root), HTTPS, HTTP (user, shell) and SSH (user, no malware).
    state, malware = env.out.true_state, env.hidden["malware"] >> USER4 & 1
    assert np.all(env.out.info["red_success"] == TRUE)
    root = np.mean(state["access"][:, USER4] == 2)
    ssh = np.mean(malware == 0)
    assert root == pytest.approx(0.75 + 0.25 / 4, abs=0.01)
    assert ssh == pytest.approx(0.25 / 4, abs=0.007)
    web = (state["access"][:, USER4] == 1) & (malware == 1)
    assert state["user_removable"][web, USER4].mean() == pytest.approx(0.95, abs=0.015)


def test_escalation_without_a_session_fails():
    game = Game().escalate(USER1)
    assert game["red_success"] == FALSE
    assert game["known"][USER1] == 0


def test_escalation_makes_a_session_privileged_and_leaves_malware():
    game = Game().break_in(ENTERPRISE0).escalate(ENTERPRISE0)
    assert game["red_success"] == TRUE
    assert game["access"][ENTERPRISE0] == 2
    assert game.env.hidden["malware"][0] >> ENTERPRISE0 & 1
    assert game.is_quiet


def test_escalation_of_a_privileged_host_draws_nothing_and_leaves_no_file():
    game = Game().escalate(USER0, choice=255)
    assert game["red_success"] == TRUE
    assert game.env.hidden["malware"][0] == 0


def test_escalation_picks_one_of_several_sessions():
    game = Game().break_in(USER1, SSH_BRUTE_FORCE).exploit(USER1, SSH_BRUTE_FORCE)
    game.escalate(USER1, choice=1)
    # The true-state table shows the oldest session, the reward counts the highest.
    assert (game["access_first"][USER1], game["access"][USER1]) == (1, 2)
    assert game.reward == -0.1


@pytest.mark.parametrize(
    ("host", "link"),
    [
        (USER1, ENTERPRISE1),
        (USER2, ENTERPRISE1),
        (USER3, ENTERPRISE0),
        (USER4, ENTERPRISE0),
        (ENTERPRISE2, OP_SERVER0),
        (ENTERPRISE0, None),
        (ENTERPRISE1, None),
        (OP_SERVER0, None),
    ],
)
def test_escalation_reveals_the_host_its_subnet_and_the_linked_host(host, link):
    game = Game()
    # The true state is writable: this gives red a privileged session.
    game["n_sessions"][host] = 1
    game["access"][host] = 2
    assert game.escalate(host)["red_success"] == TRUE
    subnet = 0 if host < 4 else 1 if host < 8 else 2
    assert hosts_where(game["known"]) == sorted({host, USER0} | ({link} - {None}))
    assert game["red_subnets"] == 1 << subnet | 1 << USER


def test_impact_needs_a_session_and_the_name_of_the_service():
    game = Game().impact()
    assert (game["red_success"], game["ot_up"]) == (FALSE, 1)
    game.break_in(ENTERPRISE0).break_in(OP_SERVER0).impact()
    assert (game["red_success"], game["ot_up"]) == (FALSE, 1)
    game.escalate(OP_SERVER0).impact()
    assert (game["red_success"], game["ot_up"]) == (TRUE, 0)
    assert game.impact()["red_success"] == TRUE  # once more changes nothing
    assert game["ot_up"] == 0


def test_impact_needs_only_a_user_level_session():
    game = Game().break_in(ENTERPRISE0).break_in(OP_SERVER0).escalate(OP_SERVER0).impact()
    game.step(restore(OP_SERVER0)).exploit(OP_SERVER0).impact()
    assert game["access"][OP_SERVER0] == 1
    assert game["red_success"] == TRUE


def test_a_host_holds_up_to_64_sessions_in_order():
    game = Game().scan(ENTERPRISE0)
    for count in range(1, 65):
        assert game.exploit(ENTERPRISE0)["n_sessions"][ENTERPRISE0] == count
    game.escalate(ENTERPRISE0, choice=63)
    assert (game["access_first"][ENTERPRISE0], game["access"][ENTERPRISE0]) == (1, 2)
    assert game.step(restore(ENTERPRISE0))["n_sessions"][ENTERPRISE0] == 0


def test_a_65th_session_on_a_host_raises():
    game = Game().scan(ENTERPRISE0)
    for _ in range(64):
        game.exploit(ENTERPRISE0)
    with pytest.raises(SessionLimitError, match="env 0: red opened more than 64 sessions"):
        game.exploit(ENTERPRISE0)
