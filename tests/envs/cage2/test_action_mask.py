"""The action mask excludes what blue can know to be useless, and nothing else."""

import numpy as np
import pytest

from helpers.cage2_game import (
    DEFENDABLE,
    DEFENDER,
    ENTERPRISE0,
    ENTERPRISE1,
    HOSTS,
    INSTALLABLE_DECOYS,
    MONITOR,
    NUM_ACTIONS,
    NUM_HOSTS,
    RESTORE_FIRST,
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
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.evaluation import step_rewards
from hundredfold.envs.cage2.network import (
    APACHE,
    BLUE_KEEP,
    DECOYS,
    FEMITTER,
    HARAKA_SMPT,
    NONE,
    SMSS,
    SSH_BRUTE_FORCE,
    SSHD,
    SVCHOST,
    TOMCAT,
    VSFTPD,
)
from hundredfold.envs.cage2.network_file import STANDARD


def allowed(game):
    return set(np.flatnonzero(game.env.out.mask[0]).tolist())


def allowed_on(game, host):
    actions = {"analyse": analyse, "remove": remove, "restore": restore}
    return {name for name, action in actions.items() if action(host) in allowed(game)}


def masked_game(**settings):
    return Game(action_mask="sensible", **settings)


def test_there_is_no_mask_by_default():
    assert Game().env.out.mask is None
    assert not Game().env.spec.has_mask


def test_at_the_start_blue_may_sleep_or_place_one_decoy_per_host():
    actions = allowed(masked_game())
    assert SLEEP in actions
    assert MONITOR not in actions
    hosts = [(action - decoy(0, 0)) % NUM_HOSTS for action in actions - {SLEEP}]
    assert sorted(hosts) == [h for h in range(NUM_HOSTS) if h != USER4]
    assert max(actions) < RESTORE_FIRST


@pytest.mark.parametrize(
    ("host", "order"),
    [
        (DEFENDER, [HARAKA_SMPT, TOMCAT, APACHE]),
        (ENTERPRISE0, [HARAKA_SMPT, TOMCAT, APACHE]),
        (ENTERPRISE1, [FEMITTER]),
        (USER1, [TOMCAT, APACHE, SMSS, SVCHOST]),
        (USER2, [FEMITTER, TOMCAT, APACHE, SSHD]),
        (USER3, [SSHD]),
        (USER4, []),
    ],
    ids=lambda value: HOSTS[value] if isinstance(value, int) else "",
)
def test_decoys_are_allowed_by_exploit_weight_until_none_would_trap_anything(host, order):
    game = masked_game()
    for kind in order:
        open_now = [d for d in range(len(DECOYS)) if decoy(d, host) in allowed(game)]
        assert open_now == [kind]
        game.step(decoy(kind, host))
        assert game["blue_success"] == 1
    assert not any(decoy(d, host) in allowed(game) for d in range(len(DECOYS)))


def test_a_second_web_decoy_is_not_allowed():
    fitting = INSTALLABLE_DECOYS[ENTERPRISE0, 1 << APACHE | 1 << HARAKA_SMPT | 1 << TOMCAT]
    assert fitting >> VSFTPD & 1
    assert STANDARD.hosts[ENTERPRISE0].next_decoy(1 << APACHE | 1 << HARAKA_SMPT | 1 << TOMCAT) == NONE


def test_a_restored_host_allows_its_decoys_again():
    game = masked_game().scan(ENTERPRISE1).step(decoy(FEMITTER, ENTERPRISE1))
    assert decoy(FEMITTER, ENTERPRISE1) not in allowed(game)
    assert decoy(FEMITTER, ENTERPRISE1) in allowed(game.step(restore(ENTERPRISE1)))


def test_actions_become_allowed_with_observed_activity():
    game = masked_game()
    assert allowed_on(game, USER2) == set()
    assert allowed_on(game.scan(USER2), USER2) == {"analyse", "restore"}
    assert allowed_on(game.step(), USER2) == {"analyse", "restore"}  # observed once is enough
    assert allowed_on(game.exploit(USER2, BLUE_KEEP), USER2) == {"analyse", "remove", "restore"}
    assert allowed_on(game.step(remove(USER2)), USER2) == {"analyse", "restore"}
    assert allowed_on(game.step(analyse(USER2)), USER2) == {"remove", "restore"}
    assert allowed_on(game.step(restore(USER2)), USER2) == {"analyse", "restore"}
    assert allowed_on(game, USER1) == set()


@pytest.mark.parametrize("host", [DEFENDER, USER0])
def test_defender_and_user0_allow_decoys_only(host):
    game = masked_game().break_in(host, SSH_BRUTE_FORCE)
    assert not game.is_quiet
    assert allowed_on(game, host) == set()


def test_a_new_episode_resets_the_mask():
    game = masked_game(horizons=(3,))
    fresh = allowed(game)
    game.scan(USER2)
    assert allowed(game) != fresh
    assert allowed(game.step().step()) == fresh


@pytest.mark.parametrize("red", ["b_line", "meander"])
@pytest.mark.parametrize("ruleset", ["current", "leaderboard"])
@pytest.mark.parametrize("green", ["sleep", "scan"])
def test_no_forbidden_action_could_have_removed_red(red, ruleset, green):
    rows = 200
    settings = Cage2Settings(red=red, ruleset=ruleset, green=green, action_mask="sensible")
    env = Cage2(np.arange(rows), settings)
    out = env.reset(seed=7)
    rng = np.random.default_rng(7)
    forbidden_restores = 0
    for _ in range(99):
        may_remove = out.mask[:, remove(0) : remove(NUM_HOSTS)]
        may_restore = out.mask[:, restore(0) : restore(NUM_HOSTS)]
        state = out.true_state
        assert not (state["user_removable"] > 0)[~may_remove & DEFENDABLE].any()
        assert not (state["n_sessions"] > 0)[~may_restore & DEFENDABLE].any()
        forbidden_restores += int((~may_restore & DEFENDABLE).sum())
        # Mostly allowed actions, some of any kind: the mask must hold even if it is ignored.
        priority = np.where(out.mask, rng.random(out.mask.shape), -1.0)
        any_action = rng.integers(0, NUM_ACTIONS, rows)
        env.step(np.where(rng.random(rows) < 0.2, any_action, priority.argmax(axis=1)))
    assert forbidden_restores > 0


def test_a_scan_of_green_hides_an_exploit_so_that_remove_stays_allowed():
    for green, may in (("sleep", {"analyse", "restore"}), ("scan", {"analyse", "remove", "restore"})):
        game = masked_game(green=green)
        assert allowed_on(game, USER2) == set()
        game.scan(USER2, green_action=0)
        assert allowed_on(game, USER2) == may
    game.exploit(USER2, BLUE_KEEP, detected=1, green_action=1, green_target=USER2)
    assert game.activity(USER2) == "Scan"
    assert game.compromised(USER2) == "No"
    assert game["user_removable"][USER2] == 1
    assert "remove" in allowed_on(game, USER2)
    assert game.step(remove(USER2), green_action=0)["n_sessions"][USER2] == 0


def test_observations_are_the_same_with_and_without_a_mask():
    rows, channels = 20, ("recency", "scanned_decoys")
    masked, free = (
        Cage2(np.arange(rows), Cage2Settings(channels=channels, action_mask=m)) for m in ("sensible", "none")
    )
    masked.reset(seed=5)
    free.reset(seed=5)
    for actions in np.random.default_rng(5).integers(0, NUM_ACTIONS, (120, rows)):
        masked.step(actions)
        free.step(actions)
        for name in ("bits", *channels):
            np.testing.assert_array_equal(free.out.observation[name], masked.out.observation[name], err_msg=name)


def test_step_rewards_passes_the_mask_to_the_policy():
    masks = []

    def first_allowed(observation, mask):
        masks.append(mask.copy())
        return mask.argmax(axis=1)

    settings = Cage2Settings(red="b_line", horizons=(4,), action_mask="sensible")
    step_rewards(first_allowed, settings, episodes=3, seed=0)
    assert [mask.shape for mask in masks] == [(3, NUM_ACTIONS)] * 4
