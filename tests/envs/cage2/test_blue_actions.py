import numpy as np
import pytest

from helpers.cage2_game import (
    DEFENDER,
    ENTERPRISE0,
    ENTERPRISE1,
    HOSTS,
    MONITOR,
    NUM_ACTIONS,
    NUM_HOSTS,
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
from hundredfold.envs.cage2.legend import ACTION_NAMES
from hundredfold.envs.cage2.network import (
    APACHE,
    BLUE_KEEP,
    DECOYS,
    ETERNAL_BLUE,
    FEMITTER,
    HTTP_RFI,
    NUM_DECOYS,
    SSH_BRUTE_FORCE,
    TOMCAT,
    VSFTPD,
)
from hundredfold.envs.cage2.state import FALSE, TRUE, UNKNOWN


def test_the_145_actions_have_the_order_of_the_challenge():
    assert NUM_ACTIONS == 145
    assert ACTION_NAMES[SLEEP] == "Sleep"
    assert ACTION_NAMES[MONITOR] == "Monitor"
    for host, name in enumerate(HOSTS):
        assert ACTION_NAMES[analyse(host)] == f"Analyse {name}"
        assert ACTION_NAMES[remove(host)] == f"Remove {name}"
        assert ACTION_NAMES[restore(host)] == f"Restore {name}"
        for kind, decoy_name in enumerate(DECOYS):
            assert ACTION_NAMES[decoy(kind, host)] == f"Decoy{decoy_name} {name}"


@pytest.mark.parametrize(
    ("action", "success"),
    [
        (SLEEP, UNKNOWN),
        (MONITOR, TRUE),
        (analyse(USER1), TRUE),
        (remove(USER1), TRUE),
        (restore(USER1), TRUE),
        (decoy(APACHE, USER1), TRUE),
        (decoy(FEMITTER, USER1), FALSE),
    ],
    ids=["sleep", "monitor", "analyse", "remove", "restore", "decoy", "incompatible decoy"],
)
def test_only_a_decoy_can_fail(action, success):
    assert Game().step(action)["blue_success"] == success


LINUX_SERVER = "10100011"
FITS_UNTOUCHED_HOST = {  # Apache Femitter Haraka Smss SSHD Svchost Tomcat Vsftpd
    "Defender": LINUX_SERVER,
    "Enterprise0": LINUX_SERVER,
    "Enterprise1": "01000000",
    "Enterprise2": "01000000",
    "Op_Host0": LINUX_SERVER,
    "Op_Host1": LINUX_SERVER,
    "Op_Host2": LINUX_SERVER,
    "Op_Server0": LINUX_SERVER,
    "User0": "10010110",
    "User1": "10010110",
    "User2": "11001010",
    "User3": "00001001",
    "User4": "00000001",
}


@pytest.mark.parametrize("host", range(NUM_HOSTS), ids=HOSTS)
def test_a_decoy_needs_its_os_and_a_free_port(host):
    fits = ""
    for kind in range(NUM_DECOYS):
        game = Game().step(decoy(kind, host))
        fits += str(game["blue_success"])
        assert game["decoys"][host] == (1 << kind if game["blue_success"] else 0)
        assert game["n_decoys"][host] == game["blue_success"]
    assert fits == FITS_UNTOUCHED_HOST[HOSTS[host]]


def test_a_second_decoy_of_the_same_type_is_not_installed():
    game = Game().step(decoy(APACHE, USER1)).step(decoy(APACHE, USER1))
    assert game["blue_success"] == FALSE
    assert game["n_decoys"][USER1] == 1


def test_vsftpd_stacks_without_limit():
    game = Game()
    for copies in range(1, 6):
        game.step(decoy(VSFTPD, ENTERPRISE0))
        assert game["n_decoys"][ENTERPRISE0] == copies
    assert game["decoys"][ENTERPRISE0] == 1 << VSFTPD


def test_vsftpd_blocks_a_later_apache_but_not_the_other_way_round():
    vsftpd_first = Game().step(decoy(VSFTPD, ENTERPRISE0)).step(decoy(APACHE, ENTERPRISE0))
    assert vsftpd_first["blue_success"] == FALSE
    apache_first = Game().step(decoy(APACHE, ENTERPRISE0)).step(decoy(VSFTPD, ENTERPRISE0))
    assert apache_first["blue_success"] == TRUE
    assert apache_first["decoys"][ENTERPRISE0] == 1 << APACHE | 1 << VSFTPD


@pytest.mark.parametrize("host", [USER3, USER4])
def test_vsftpd_next_to_a_genuine_web_server_protects_nothing(host):
    game = Game().step(decoy(VSFTPD, host))
    assert game["blue_success"] == TRUE
    assert game.break_in(host, HTTP_RFI)["red_success"] == TRUE


def test_analyse_finds_a_malware_file_on_a_user_level_host():
    game = Game().break_in(USER2, BLUE_KEEP)
    assert game["access"][USER2] == 1
    assert game.step(analyse(USER2)).compromised(USER2) == "Privileged"


def test_analyse_runs_before_red_acts():
    game = Game().scan(USER2).exploit(USER2, ETERNAL_BLUE, blue=analyse(USER2))
    assert game.compromised(USER2) == "User"


def test_analyse_never_lowers_the_status():
    game = Game().break_in(ENTERPRISE0)
    assert game.compromised(ENTERPRISE0) == "User"
    assert game.step(analyse(ENTERPRISE0)).compromised(ENTERPRISE0) == "User"


def test_remove_kills_detected_user_level_shells():
    game = Game().break_in(USER2, BLUE_KEEP)
    assert game["user_removable"][USER2] == 1
    game.step(remove(USER2))
    assert game["n_sessions"][USER2] == game["access"][USER2] == 0


def test_remove_does_not_kill_privileged_and_ssh_sessions():
    game = Game().break_in(USER2, ETERNAL_BLUE).step(remove(USER2))
    assert (game["n_sessions"][USER2], game["access"][USER2]) == (1, 2)
    game = Game().break_in(USER1, SSH_BRUTE_FORCE).step(remove(USER1))
    assert (game["n_sessions"][USER1], game["access"][USER1]) == (1, 1)


def test_remove_does_not_kill_an_undetected_shell():
    game = Game().break_in(USER2, BLUE_KEEP, detected=0).step(remove(USER2))
    assert game["n_sessions"][USER2] == 1


def test_remove_does_not_kill_an_escalated_shell():
    game = Game().break_in(USER2, BLUE_KEEP).escalate(USER2)
    assert game["user_removable"][USER2] == 0
    assert game.step(remove(USER2))["access"][USER2] == 2


def test_remove_keeps_the_order_of_the_remaining_sessions():
    game = Game().break_in(USER4, HTTP_RFI).exploit(USER4, SSH_BRUTE_FORCE)
    game.exploit(USER4, HTTP_RFI).exploit(USER4, HTTP_RFI, detected=0)
    assert (game["n_sessions"][USER4], game["user_removable"][USER4]) == (4, 2)
    game.step(remove(USER4))
    assert (game["n_sessions"][USER4], game["user_removable"][USER4]) == (2, 0)
    # The oldest is now the SSH session; escalating the second leaves the first at user level.
    game.escalate(USER4, choice=1)
    assert (game["access_first"][USER4], game["access"][USER4]) == (1, 2)


def test_remove_leaves_the_malware_file():
    game = Game().break_in(USER2, BLUE_KEEP).step(remove(USER2))
    assert game.step(analyse(USER2)).compromised(USER2) == "Privileged"


def test_restore_clears_sessions_decoys_and_malware():
    game = Game().step(decoy(APACHE, USER2)).break_in(USER2, ETERNAL_BLUE)
    game.step(restore(USER2))
    for name in ("n_sessions", "access", "access_first", "decoys", "n_decoys"):
        assert game[name][USER2] == 0
    assert game.step(analyse(USER2)).compromised(USER2) == "No"


def test_restore_does_not_change_reds_knowledge():
    game = Game().discover(2).break_in(USER2, ETERNAL_BLUE).escalate(USER2)
    known, scanned = game["known"].copy(), game["scanned"].copy()
    game.step(restore(USER2))
    np.testing.assert_array_equal(game["known"], known)
    np.testing.assert_array_equal(game["scanned"], scanned)
    # Red exploits again without a new scan.
    assert game.exploit(USER2, ETERNAL_BLUE)["red_success"] == TRUE


@pytest.mark.parametrize("action", [remove(USER0), restore(USER0)], ids=["remove", "restore"])
def test_reds_first_session_on_user0_is_permanent(action):
    game = Game().break_in(USER0, SSH_BRUTE_FORCE)
    assert game["n_sessions"][USER0] == 2
    game.step(action)
    assert game["n_sessions"][USER0] == (1 if action == restore(USER0) else 2)
    assert (game["access"][USER0], game["access_first"][USER0]) == (2, 2)


def test_restore_costs_one_even_when_useless():
    assert Game().step(restore(DEFENDER)).reward == -1.0
    assert Game().step(remove(DEFENDER)).reward == 0.0


def test_a_restored_op_server_cannot_be_stopped_again():
    game = Game().break_in(ENTERPRISE1, BLUE_KEEP).break_in(OP_SERVER0).escalate(OP_SERVER0)
    assert game.impact()["ot_up"] == 0
    assert game.step(restore(OP_SERVER0))["ot_up"] == 1
    game.exploit(OP_SERVER0).escalate(OP_SERVER0).impact()
    assert (game["red_success"], game["ot_up"]) == (TRUE, 1)


def test_a_restore_before_the_first_impact_protects_the_service_too():
    game = Game().step(restore(OP_SERVER0)).break_in(ENTERPRISE1, BLUE_KEEP)
    game.break_in(OP_SERVER0).escalate(OP_SERVER0).impact()
    assert (game["red_success"], game["ot_up"]) == (TRUE, 1)


def test_monitor_does_what_sleep_does():
    asleep = Game().break_in(USER2, ETERNAL_BLUE).step(SLEEP)
    monitoring = Game().break_in(USER2, ETERNAL_BLUE).step(MONITOR)
    np.testing.assert_array_equal(asleep.bits, monitoring.bits)
    assert asleep.reward == monitoring.reward == -0.1


def test_a_decoy_placed_before_the_scan_traps_the_exploit():
    game = Game().step(decoy(TOMCAT, ENTERPRISE0)).scan(ENTERPRISE0).exploit(ENTERPRISE0, 3)
    assert game["red_success"] == FALSE
    assert game["n_sessions"][ENTERPRISE0] == 0
