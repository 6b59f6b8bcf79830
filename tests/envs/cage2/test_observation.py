import numpy as np
import pytest

from helpers.cage2_game import (
    DEFENDER,
    ENTERPRISE0,
    ENTERPRISE1,
    ENTERPRISE2,
    HOSTS,
    NUM_HOSTS,
    OP_HOST0,
    OP_SERVER0,
    SLEEP,
    USER0,
    USER1,
    USER2,
    USER3,
    USER4,
    Game,
    analyse,
    decoy,
    remove,
    restore,
)
from hundredfold.envs.cage2 import red_actions
from hundredfold.envs.cage2.network import (
    APACHE,
    BLUE_KEEP,
    ETERNAL_BLUE,
    FEMITTER,
    HARAKA_RCE,
    HTTP_RFI,
    HTTPS_RFI,
    SSH_BRUTE_FORCE,
    SSHD,
    TOMCAT,
    VSFTPD,
)
from hundredfold.envs.cage2.state import FAILED_EXPLOIT, SHELL_BREACH, SILENT_BREACH


def green_scans(host):
    return {"green_action": 1, "green_target": host}


GREEN_SLEEPS = {"green_action": 0}


def test_all_52_bits_are_zero_after_reset():
    assert not Game().bits.any()


@pytest.mark.parametrize("host", [h for h in range(NUM_HOSTS) if not 4 <= h <= 7])
def test_a_scan_shows_as_scan_and_only_in_its_own_step(host):
    game = Game().scan(host)
    assert game.activity(host) == "Scan", HOSTS[host]
    assert game.compromised(host) == "No"
    assert np.count_nonzero(game.bits) == 1
    assert game.step().is_quiet


def test_a_detected_shell_shows_exploit_and_user():
    game = Game().break_in(USER2, BLUE_KEEP)
    assert (game.activity(USER2), game.compromised(USER2)) == ("Exploit", "User")
    assert game.step().is_quiet
    assert game.compromised(USER2) == "User"


def test_an_undetected_shell_shows_only_a_scan_and_cannot_be_removed():
    game = Game().break_in(USER2, BLUE_KEEP, detected=0)
    assert (game.activity(USER2), game.compromised(USER2)) == ("Scan", "No")
    assert game.step(remove(USER2))["n_sessions"][USER2] == 1


def test_ssh_brute_force_shows_exploit_and_user():
    game = Game().break_in(ENTERPRISE0)
    assert (game.activity(ENTERPRISE0), game.compromised(ENTERPRISE0)) == ("Exploit", "User")


def test_ssh_brute_force_on_defender_or_a_decoy_is_a_false_positive():
    game = Game().break_in(DEFENDER)
    assert game["n_sessions"][DEFENDER] == 0
    assert (game.activity(DEFENDER), game.compromised(DEFENDER)) == ("Exploit", "User")
    game = Game().step(decoy(SSHD, USER2)).break_in(USER2, SSH_BRUTE_FORCE)
    assert game["n_sessions"][USER2] == 0
    assert (game.activity(USER2), game.compromised(USER2)) == ("Exploit", "User")


def test_a_green_scan_of_three_ports_hides_ssh_brute_force():
    game = Game(green="scan").scan(ENTERPRISE1, **GREEN_SLEEPS)
    game.exploit(ENTERPRISE1, SSH_BRUTE_FORCE, **green_scans(ENTERPRISE1))
    assert game["n_sessions"][ENTERPRISE1] == 1
    assert (game.activity(ENTERPRISE1), game.compromised(ENTERPRISE1)) == ("Scan", "No")


def test_a_green_scan_of_one_port_does_not_hide_ssh_brute_force():
    game = Game(green="scan").scan(ENTERPRISE0, **GREEN_SLEEPS)
    game.exploit(ENTERPRISE0, **green_scans(ENTERPRISE0))
    assert game.activity(ENTERPRISE0) == "Exploit"


def test_a_green_scan_of_three_ports_hides_a_shell_which_remove_still_kills():
    game = Game(green="scan").scan(USER2, **GREEN_SLEEPS)
    game.exploit(USER2, BLUE_KEEP, **green_scans(USER2))
    assert (game.activity(USER2), game.compromised(USER2)) == ("Scan", "No")
    assert game.step(remove(USER2), **GREEN_SLEEPS)["n_sessions"][USER2] == 0


def test_green_scans_look_like_red_scans_and_change_nothing_else():
    game = Game(green="scan").step(**green_scans(USER3))
    assert game.activity(USER3) == "Scan"
    assert not game["scanned"].any()
    assert game["known"][USER3] == 0


def test_a_shell_exploit_of_a_decoy_is_observed_as_a_scan():
    game = Game().step(decoy(APACHE, ENTERPRISE0)).break_in(ENTERPRISE0, HTTP_RFI)
    assert (game.activity(ENTERPRISE0), game.compromised(ENTERPRISE0)) == ("Scan", "No")


def test_escalation_and_impact_are_invisible():
    game = Game().break_in(ENTERPRISE0).escalate(ENTERPRISE0)
    assert game.is_quiet
    game.break_in(OP_SERVER0).escalate(OP_SERVER0)
    assert game.is_quiet
    assert game.impact().is_quiet


def test_a_host_rooted_by_an_exploit_shows_user_until_analysed():
    game = Game().break_in(USER2, ETERNAL_BLUE)
    assert game["access"][USER2] == 2
    assert game.compromised(USER2) == "User"
    assert game.step(analyse(USER2)).compromised(USER2) == "Privileged"


def test_analyse_reports_privileged_for_a_user_level_shell_and_after_its_removal():
    game = Game().break_in(USER3, HTTP_RFI).step(remove(USER3))
    assert game["n_sessions"][USER3] == 0
    assert game.compromised(USER3) == "Unknown"
    assert game.step(analyse(USER3)).compromised(USER3) == "Privileged"


def test_analyse_reports_nothing_for_an_ssh_session():
    game = Game().break_in(ENTERPRISE0).step(restore(USER4)).step(analyse(ENTERPRISE0))
    assert game.compromised(ENTERPRISE0) == "User"
    game = Game().break_in(USER1, SSH_BRUTE_FORCE).step(remove(USER1)).step(analyse(USER1))
    assert game.compromised(USER1) == "Unknown"


def test_analyse_overrides_an_exploit_observed_in_the_same_step():
    game = Game().break_in(USER2, ETERNAL_BLUE).exploit(USER2, BLUE_KEEP, blue=analyse(USER2))
    assert (game.activity(USER2), game.compromised(USER2)) == ("Exploit", "Privileged")


def test_an_exploit_in_the_same_step_overrides_restore():
    game = Game().break_in(USER2, ETERNAL_BLUE).exploit(USER2, ETERNAL_BLUE, blue=restore(USER2))
    assert (game["n_sessions"][USER2], game.compromised(USER2)) == (1, "User")


def test_restore_sets_the_status_to_no():
    game = Game().break_in(USER2, ETERNAL_BLUE).step(analyse(USER2)).step(restore(USER2))
    assert game.compromised(USER2) == "No"


def test_remove_sets_any_status_but_no_to_unknown():
    assert Game().step(remove(USER2)).compromised(USER2) == "No"
    game = Game().break_in(USER2, ETERNAL_BLUE)
    assert game.step(remove(USER2)).compromised(USER2) == "Unknown"
    assert game.step(analyse(USER2)).step(remove(USER2)).compromised(USER2) == "Unknown"


def test_a_decoy_placed_in_the_same_step_hides_a_small_scan():
    # Two ports with the decoy: fewer than three.
    game = Game().scan(ENTERPRISE0, blue=decoy(APACHE, ENTERPRISE0))
    assert game.activity(ENTERPRISE0) == "None"
    assert game["scanned"][ENTERPRISE0] == 1


def test_a_decoy_placed_in_the_same_step_does_not_hide_a_scan_of_three_ports():
    game = Game().step(decoy(APACHE, ENTERPRISE0))
    game.scan(ENTERPRISE0, blue=decoy(TOMCAT, ENTERPRISE0))
    assert game.activity(ENTERPRISE0) == "Scan"


def test_a_placed_decoy_alone_is_no_activity():
    assert Game().step(decoy(APACHE, ENTERPRISE0)).is_quiet


def test_a_decoy_that_was_not_installed_hides_nothing():
    game = Game().scan(ENTERPRISE0, blue=decoy(FEMITTER, ENTERPRISE0))
    assert game.activity(ENTERPRISE0) == "Scan"


def test_stacked_vsftpd_count_as_events_but_not_as_ports():
    game = Game()
    for _ in range(4):
        game.step(decoy(VSFTPD, ENTERPRISE0))
    # Five events on two ports: neither many ports nor a single one.
    assert game.scan(ENTERPRISE0).activity(ENTERPRISE0) == "Scan"
    game.step(decoy(VSFTPD, USER3))
    assert game.scan(USER3).activity(USER3) == "Scan"


def test_with_the_cardiff_wrapper_a_decoy_never_hides_a_scan():
    game = Game(observation="cardiff").scan(ENTERPRISE0, blue=decoy(APACHE, ENTERPRISE0))
    assert game.activity(ENTERPRISE0) == "Scan"
    game = Game(observation="cardiff").step(decoy(APACHE, ENTERPRISE0))
    assert game.is_quiet


CONFIDENTIALITY = [0.1, 1, 1, 1, 0.1, 0.1, 0.1, 1, 0, 0.1, 0.1, 0.1, 0.1]


@pytest.mark.parametrize("host", range(NUM_HOSTS), ids=HOSTS)
def test_privileged_access_costs_the_confidentiality_value(host):
    game = Game()
    game["access"][host] = 2
    assert game.step().reward == -CONFIDENTIALITY[host]


def test_user_level_access_costs_nothing():
    assert Game().break_in(ENTERPRISE0).reward == 0.0


def test_root_by_exploit_costs_from_the_same_step():
    assert Game().break_in(ENTERPRISE1, BLUE_KEEP).reward == -1.0


def test_a_stopped_service_costs_ten_every_step_until_restored():
    game = Game().break_in(ENTERPRISE0).break_in(OP_SERVER0).escalate(OP_SERVER0)
    assert game.reward == -1.0
    assert game.impact().reward == -11.0
    assert game.step().reward == -11.0  # per step, not per impact
    assert game.step(restore(OP_SERVER0)).reward == -1.0  # the Restore itself
    assert game.exploit(OP_SERVER0).impact().reward == 0.0


def test_rewards_are_exact_tenths():
    game = Game()
    for host in (DEFENDER, OP_HOST0, USER1):
        game["access"][host] = 2
    assert game.step().reward == -0.3


def test_the_reward_includes_reds_action_of_the_same_step():
    game = Game().scan(USER2).exploit(USER2, ETERNAL_BLUE, blue=restore(USER2))
    assert game.reward == -1.1


ALL_CHANNELS = ("decoys", "decoy_counts", "scans", "scanned_decoys", "recency", "elapsed", "remaining", "exploits")


def test_channels_hold_decoys_scans_and_time():
    game = Game(channels=ALL_CHANNELS, horizons=(50,))
    observation = game.env.out.observation
    assert observation["elapsed"][0, 0] == 0.0
    assert observation["remaining"][0, 0] == np.float32(0.5)
    game.step(decoy(VSFTPD, ENTERPRISE0)).step(decoy(VSFTPD, ENTERPRISE0))
    game.step(decoy(TOMCAT, ENTERPRISE0)).step(decoy(FEMITTER, ENTERPRISE0))  # the last one fails
    assert np.flatnonzero(observation["decoys"][0, ENTERPRISE0]).tolist() == [TOMCAT, VSFTPD]
    assert observation["decoy_counts"][0, ENTERPRISE0] == 3
    game.scan(USER1).break_in(USER3, HARAKA_RCE)
    assert np.flatnonzero(observation["scans"][0]).tolist() == [USER1, USER3]
    assert observation["elapsed"][0, 0] == np.float32(0.07)
    assert observation["remaining"][0, 0] == np.float32(0.43)
    game.step(restore(ENTERPRISE0))
    assert not observation["decoys"].any()
    assert not observation["decoy_counts"].any()


def test_scanned_decoys_are_the_decoys_at_the_first_scan():
    game = Game(channels=("scanned_decoys",))
    scanned_decoys = game.env.out.observation["scanned_decoys"][0]
    game.step(decoy(FEMITTER, USER2)).scan(USER2, blue=decoy(TOMCAT, USER2))
    assert np.flatnonzero(scanned_decoys[USER2]).tolist() == [FEMITTER, TOMCAT]
    game.step(restore(USER2)).scan(USER2, blue=decoy(APACHE, USER2))
    assert np.flatnonzero(scanned_decoys[USER2]).tolist() == [FEMITTER, TOMCAT]
    assert np.flatnonzero(scanned_decoys.any(axis=1)).tolist() == [USER2]


def test_recency_is_one_over_the_steps_since_the_event():
    game = Game(channels=("recency",))
    recency = game.env.out.observation["recency"][0]
    assert not recency.any()
    game.break_in(USER2, BLUE_KEEP)
    assert recency[USER2].tolist() == [0.5, 1, 0, 0, 0]
    game.step(analyse(USER2)).step(remove(USER2)).step(restore(USER2))
    expected = np.array([1 / 5, 1 / 4, 1 / 3, 1 / 2, 1])
    np.testing.assert_allclose(recency[USER2], expected, rtol=1e-6)
    game.scan(USER2)
    assert recency[USER2, 0] == 1
    assert np.flatnonzero(recency.any(axis=1)).tolist() == [USER2]


def test_an_exploit_is_not_a_scan():
    game = Game(channels=("scans",)).scan(OP_SERVER0)  # empty: no events
    game.break_in(ENTERPRISE2, BLUE_KEEP)
    game.env.out.observation["scans"][:] = 0
    game.exploit(ENTERPRISE2, HTTPS_RFI)
    assert game.activity(ENTERPRISE2) == "Exploit"
    assert not game.env.out.observation["scans"].any()


def test_channels_have_a_fixed_order_and_are_off_by_default():
    assert list(Game().env.spec.observation) == ["bits"]
    game = Game(channels=("elapsed", "decoys"))
    assert list(game.env.spec.observation) == ["bits", "decoys", "elapsed"]


def test_hosts_without_events_show_nothing():
    game = Game().break_in(USER0, SSH_BRUTE_FORCE)
    assert np.flatnonzero(game.bits.any(axis=1)).tolist() == [USER0]
    game.step(SLEEP, (red_actions.SLEEP, 255))
    assert game.is_quiet


def test_exploits_are_shown_by_port_and_kind_until_a_restore():
    game = Game(channels=("exploits",))
    exploits = game.env.out.observation["exploits"][0]
    game.scan(USER3).exploit(USER3, HTTP_RFI, detected=1)
    assert exploits[USER3, HTTP_RFI] == SHELL_BREACH
    game.exploit(USER3, HTTP_RFI, detected=0)
    assert exploits[USER3, HTTP_RFI] == SILENT_BREACH
    game.scan(ENTERPRISE0)
    assert not exploits[ENTERPRISE0].any()
    game.exploit(ENTERPRISE0, SSH_BRUTE_FORCE)
    assert exploits[ENTERPRISE0, SSH_BRUTE_FORCE] == SILENT_BREACH
    game.scan(DEFENDER).exploit(DEFENDER, SSH_BRUTE_FORCE)
    assert exploits[DEFENDER, SSH_BRUTE_FORCE] == FAILED_EXPLOIT
    game.scan(USER4, blue=restore(USER3))
    assert not exploits[USER3].any()
    assert np.count_nonzero(exploits) == 2


def test_a_scan_of_several_ports_hides_an_exploit_of_the_same_host():
    game = Game(channels=("exploits",), green="scan")
    exploits = game.env.out.observation["exploits"][0]
    game.scan(USER3, **GREEN_SLEEPS).exploit(USER3, HTTP_RFI, **green_scans(USER3))
    assert not exploits.any()
    # With a single open port the scan looks like one more attempt.
    game.scan(ENTERPRISE0, **GREEN_SLEEPS).exploit(ENTERPRISE0, SSH_BRUTE_FORCE, **green_scans(ENTERPRISE0))
    assert exploits[ENTERPRISE0, SSH_BRUTE_FORCE] == SILENT_BREACH
