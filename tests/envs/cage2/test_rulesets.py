import pytest

from helpers.cage2_game import ENTERPRISE0, USER3, USER4, Game, decoy, restore
from hundredfold.envs.cage2.network import HARAKA_RCE, HTTP_RFI, HTTPS_RFI, TOMCAT
from hundredfold.envs.cage2.random_draws import RecordedDrawError
from hundredfold.envs.cage2.state import FALSE, TRUE


def test_leaderboard_scans_add_to_the_ports_of_earlier_scans():
    game = Game(ruleset="leaderboard").step(decoy(TOMCAT, ENTERPRISE0)).scan(ENTERPRISE0)
    game.step(restore(ENTERPRISE0)).scan(ENTERPRISE0).exploit(ENTERPRISE0, HTTPS_RFI)
    assert game["red_success"] == FALSE
    assert game.is_quiet
    current = Game().step(decoy(TOMCAT, ENTERPRISE0)).scan(ENTERPRISE0)
    current.step(restore(ENTERPRISE0)).scan(ENTERPRISE0)
    with pytest.raises(RecordedDrawError, match="recorded `exploit`"):
        current.exploit(ENTERPRISE0, HTTPS_RFI)


@pytest.mark.parametrize("host", [USER3, USER4])
def test_leaderboard_haraka_always_fails_after_a_restore(host):
    game = Game(ruleset="leaderboard").break_in(host, HARAKA_RCE)
    assert game["red_success"] == TRUE
    game.step(restore(host)).exploit(host, HARAKA_RCE, detected=255)
    assert game["red_success"] == FALSE
    assert game["n_sessions"][host] == 0
    # It finds its process, which leaves one event.
    assert (game.activity(host), game.compromised(host)) == ("Scan", "No")
    assert game.exploit(host, HTTP_RFI)["red_success"] == TRUE


def test_leaderboard_haraka_works_again_in_the_next_episode():
    game = Game(ruleset="leaderboard", horizons=(3,)).step(restore(USER3)).step().step()
    assert game.env.out.terminated[0]
    assert game.break_in(USER3, HARAKA_RCE)["red_success"] == TRUE


@pytest.mark.parametrize("host", [USER3, USER4])
def test_current_haraka_works_after_a_restore(host):
    game = Game().break_in(host, HARAKA_RCE).step(restore(host)).exploit(host, HARAKA_RCE)
    assert game["red_success"] == TRUE
