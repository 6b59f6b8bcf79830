import numpy as np
import pytest

from helpers.cage2_game import ENTERPRISE1, USER0, USER1, USER2, USER3, USER4, Game
from hundredfold.core.errors import ShapeError
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.random_draws import RecordedDrawError
from hundredfold.envs.cage2.red_actions import DISCOVER, ESCALATE, EXPLOIT, IMPACT, SCAN

SLEEP = np.zeros(1, int)


def env_with(red, **settings):
    env = Cage2(np.arange(1), Cage2Settings(red=red, horizons=(1000,), **settings))
    env.reset(seed=0)
    return env


def draws_of(**draws):
    return {name: np.array([value]) for name, value in draws.items()}


def test_a_recorded_red_action_must_equal_the_red_agents_choice():
    env = env_with("b_line")
    env.step_with_draws(SLEEP, draws_of(red_action=DISCOVER, red_target=2))
    with pytest.raises(RecordedDrawError, match="another action than the recorded"):
        env.step_with_draws(SLEEP, draws_of(red_action=EXPLOIT, red_target=USER1))


def test_a_recorded_target_must_be_a_candidate():
    env = env_with("b_line")
    env.step_with_draws(SLEEP, {})
    with pytest.raises(RecordedDrawError, match="recorded `red_target`"):
        env.step_with_draws(SLEEP, draws_of(red_target=ENTERPRISE1))


def test_a_recorded_target_that_is_not_drawn_is_checked():
    env = env_with("b_line")
    with pytest.raises(RecordedDrawError, match="recorded `red_target`"):
        env.step_with_draws(SLEEP, draws_of(red_target=0))


def test_a_needed_draw_must_be_recorded():
    env = env_with("meander")
    env.step_with_draws(SLEEP, {})
    with pytest.raises(RecordedDrawError, match="`red_target` is missing"):
        env.step_with_draws(SLEEP, {})


def test_a_recorded_exploit_must_be_an_option():
    with pytest.raises(RecordedDrawError, match="recorded `exploit`"):
        Game().scan(USER1).exploit(USER1, 0)
    with pytest.raises(RecordedDrawError, match="recorded `exploit`"):
        Game().scan(USER1).exploit(USER1)


def test_the_detection_of_a_shell_must_be_recorded():
    with pytest.raises(RecordedDrawError, match="`exploit_detected` must be 0 or 1"):
        Game().scan(USER1).exploit(USER1, 7, detected=255)


def test_a_recorded_escalation_must_name_an_existing_session():
    with pytest.raises(RecordedDrawError, match="`escalate_choice`"):
        Game().break_in(USER1, 4).escalate(USER1, choice=1)


@pytest.mark.parametrize("target", [0, 4, 7, 255])
def test_green_scans_only_user_and_enterprise_hosts(target):
    with pytest.raises(RecordedDrawError, match="green scans, so"):
        Game(green="scan").step(green_action=1, green_target=target)


def test_the_error_names_the_env_and_counts_the_others():
    env = Cage2(np.arange(5, 9), Cage2Settings(red="b_line"))
    env.reset(seed=0)
    env.step_with_draws(np.zeros(4, int), {})
    with pytest.raises(RecordedDrawError, match=r"env 6: .*\(1 more envs have errors\)"):
        env.step_with_draws(np.zeros(4, int), {"red_target": np.array([USER1, 0, USER2, 0])})
    env.reset(seed=0)
    env.step(np.zeros(4, int))


def test_forced_red_bypasses_the_agent_and_does_not_change_its_memory():
    env = env_with("b_line")
    before = {name: array.copy() for name, array in env.state_arrays().items()}
    env.step_with_draws(SLEEP, force_red=(SCAN, USER3))
    assert env.out.info["red_action"][0] == SCAN
    assert env.out.info["red_target"][0] == USER3
    for name in ("b_line_step", "b_line_user_host", "hosts_scanned", "subnets_tried"):
        np.testing.assert_array_equal(env.state_arrays()[name], before[name])


def test_forced_red_can_differ_between_envs():
    env = Cage2(np.arange(3), Cage2Settings(red="sleep"))
    env.reset(seed=0)
    red = (np.array([SCAN, DISCOVER, ESCALATE]), np.array([USER1, 0, USER0]))
    env.step_with_draws(np.zeros(3, int), force_red=red)
    np.testing.assert_array_equal(env.out.info["red_action"], red[0])
    np.testing.assert_array_equal(env.out.info["red_target"], red[1])
    np.testing.assert_array_equal(env.out.true_state["scanned"].sum(axis=1), [1, 0, 0])


def test_forced_red_without_recorded_draws_uses_the_rng_stream():
    rows = 400
    env = Cage2(np.arange(rows), Cage2Settings(red="sleep"))
    env.reset(seed=0)
    env.step_with_draws(np.zeros(rows, int), force_red=(SCAN, USER4))
    env.step_with_draws(np.zeros(rows, int), force_red=(EXPLOIT, USER4))
    assert set(env.out.true_state["access"][:, USER4]) == {1, 2}


@pytest.mark.parametrize("red", [(6, 0), (DISCOVER, 3), (SCAN, 13), (IMPACT, 6), (EXPLOIT, 255)], ids=str)
def test_forcing_an_invalid_red_action_raises(red):
    with pytest.raises(RecordedDrawError, match="is not a red action"):
        Game().step(red=red)


def test_an_unknown_draw_raises_with_a_suggestion():
    with pytest.raises(RecordedDrawError, match="did you mean red_target"):
        env_with("sleep").step_with_draws(SLEEP, draws_of(red_targets=1))


@pytest.mark.parametrize("values", [np.zeros(2, int), np.zeros(1), np.zeros((1, 1), int)])
def test_draws_must_be_integers_one_per_env(values):
    with pytest.raises(ShapeError, match="red_target must be integers"):
        env_with("sleep").step_with_draws(SLEEP, {"red_target": values})


def test_draws_must_fit_a_byte():
    with pytest.raises(RecordedDrawError, match=r"must be in 0\.\.255"):
        env_with("sleep").step_with_draws(SLEEP, draws_of(red_target=256))


def test_invalid_draws_leave_the_env_unchanged():
    env = env_with("b_line")
    before = env.state()
    with pytest.raises(RecordedDrawError):
        env.step_with_draws(SLEEP, draws_of(red_target=-1))
    for name, array in env.state().items():
        np.testing.assert_array_equal(array, before[name])
