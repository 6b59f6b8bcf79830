import numpy as np
import pytest

from helpers.cage2_game import Game
from hundredfold.core.errors import ShapeError
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.network import ENTERPRISE1, USER0, USER1, USER2, USER3, USER4
from hundredfold.envs.cage2.random_draws import InjectionError
from hundredfold.envs.cage2.red_actions import DISCOVER, ESCALATE, EXPLOIT, IMPACT, SCAN

SLEEP = np.zeros(1, int)


def duel(red, **settings):
    env = Cage2(np.arange(1), Cage2Settings(red=red, horizons=(1000,), **settings))
    env.reset(seed=0)
    return env


def one(**draws):
    return {name: np.array([value]) for name, value in draws.items()}


def test_a_recorded_red_action_must_be_the_one_that_the_agent_chooses():
    env = duel("b_line")
    env.step_injected(SLEEP, one(red_action=DISCOVER, red_target=2))
    with pytest.raises(InjectionError, match="another action than the recorded"):
        env.step_injected(SLEEP, one(red_action=EXPLOIT, red_target=USER1))


def test_a_recorded_target_must_be_among_the_candidates():
    env = duel("b_line")
    env.step_injected(SLEEP, {})
    with pytest.raises(InjectionError, match="recorded `red_target`"):
        env.step_injected(SLEEP, one(red_target=ENTERPRISE1))


def test_a_target_that_needs_no_draw_is_checked_as_well():
    env = duel("b_line")
    with pytest.raises(InjectionError, match="recorded `red_target`"):
        env.step_injected(SLEEP, one(red_target=0))


def test_a_draw_that_is_needed_must_be_recorded():
    env = duel("meander")
    env.step_injected(SLEEP, {})
    with pytest.raises(InjectionError, match="`red_target` is missing"):
        env.step_injected(SLEEP, {})


def test_an_exploit_must_be_among_the_options():
    with pytest.raises(InjectionError, match="recorded `exploit`"):
        Game().scan(USER1).exploit(USER1, 0)
    with pytest.raises(InjectionError, match="recorded `exploit`"):
        Game().scan(USER1).exploit(USER1)


def test_a_detection_must_be_recorded_for_a_shell():
    with pytest.raises(InjectionError, match="`exploit_detected` must be 0 or 1"):
        Game().scan(USER1).exploit(USER1, 7, detected=255)


def test_an_escalation_must_name_a_session_that_exists():
    with pytest.raises(InjectionError, match="`escalate_choice`"):
        Game().break_in(USER1, 4).escalate(USER1, choice=1)


@pytest.mark.parametrize("target", [0, 4, 7, 255])
def test_green_scans_only_user_and_enterprise_hosts(target):
    with pytest.raises(InjectionError, match="green is awake"):
        Game(green="scan").step(green_action=1, green_target=target)


def test_after_a_contradiction_the_message_names_the_env_and_counts_the_others():
    env = Cage2(np.arange(5, 9), Cage2Settings(red="b_line"))
    env.reset(seed=0)
    env.step_injected(np.zeros(4, int), {})
    with pytest.raises(InjectionError, match=r"env 6: .*\(1 more envs are in trouble\)"):
        env.step_injected(np.zeros(4, int), {"red_target": np.array([USER1, 0, USER2, 0])})
    env.reset(seed=0)
    env.step(np.zeros(4, int))


def test_forced_red_bypasses_the_agent_and_leaves_its_memory():
    env = duel("b_line")
    before = {name: array.copy() for name, array in env.state_arrays().items()}
    env.step_injected(SLEEP, force_red=(SCAN, USER3))
    assert env.out.info["red_action"][0] == SCAN
    assert env.out.info["red_target"][0] == USER3
    for name in ("b_line", "b_line_user", "hosts_scanned", "subnets_tried"):
        np.testing.assert_array_equal(env.state_arrays()[name], before[name])


def test_forced_red_can_differ_by_env():
    env = Cage2(np.arange(3), Cage2Settings(red="sleep"))
    env.reset(seed=0)
    moves = (np.array([SCAN, DISCOVER, ESCALATE]), np.array([USER1, 0, USER0]))
    env.step_injected(np.zeros(3, int), force_red=moves)
    np.testing.assert_array_equal(env.out.info["red_action"], moves[0])
    np.testing.assert_array_equal(env.out.info["red_target"], moves[1])
    np.testing.assert_array_equal(env.out.true_state["scanned"].sum(axis=1), [1, 0, 0])


def test_forced_red_draws_from_the_stream_when_nothing_is_recorded():
    rows = 400
    env = Cage2(np.arange(rows), Cage2Settings(red="sleep"))
    env.reset(seed=0)
    env.step_injected(np.zeros(rows, int), force_red=(SCAN, USER4))
    env.step_injected(np.zeros(rows, int), force_red=(EXPLOIT, USER4))
    assert set(env.out.true_state["access"][:, USER4]) == {1, 2}


@pytest.mark.parametrize(
    "move", [(6, 0), (DISCOVER, 3), (SCAN, 13), (IMPACT, 6), (EXPLOIT, 255)], ids=str
)
def test_forcing_a_move_that_red_does_not_have_is_refused(move):
    with pytest.raises(InjectionError, match="is no move of red's"):
        Game().step(red=move)


def test_an_unknown_draw_is_refused_with_a_hint():
    with pytest.raises(InjectionError, match="did you mean red_target"):
        duel("sleep").step_injected(SLEEP, one(red_targets=1))


@pytest.mark.parametrize("values", [np.zeros(2, int), np.zeros(1), np.zeros((1, 1), int)])
def test_draws_must_be_whole_numbers_one_per_env(values):
    with pytest.raises(ShapeError, match="red_target must be whole numbers"):
        duel("sleep").step_injected(SLEEP, {"red_target": values})


def test_draws_must_fit_a_byte():
    with pytest.raises(InjectionError, match=r"must be in 0\.\.255"):
        duel("sleep").step_injected(SLEEP, one(red_target=256))


def test_a_refused_injection_leaves_the_env_as_it_was():
    env = duel("b_line")
    before = env.state()
    with pytest.raises(InjectionError):
        env.step_injected(SLEEP, one(red_target=-1))
    for name, array in env.state().items():
        np.testing.assert_array_equal(array, before[name])
