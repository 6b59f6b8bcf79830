import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from helpers.cage2_game import (
    DECOY_FIRST,
    INSTALLABLE_DECOYS,
    NUM_ACTIONS,
    NUM_HOSTS,
    RESTORE_FIRST,
    USER,
    USER0,
    USER1,
    USER2,
    USER3,
    USER4,
)
from hundredfold.core import rng
from hundredfold.core.errors import ActionError, SettingsError, ShapeError
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.network import NONE
from hundredfold.envs.cage2.random_draws import TOO_MANY_SESSIONS, SessionLimitError
from hundredfold.envs.cage2.red_agents import B_LINE, MEANDER, SLEEP_AGENT
from hundredfold.envs.cage2.state import PRIVILEGED_ACCESS, UNKNOWN
from hundredfold.envs.cage2.step import HORIZON_DRAW, RED_DRAW, ThreadedStep, start_batch, threads_worth_using

ALL_CHANNELS = ("decoys", "decoy_counts", "scans", "scanned_decoys", "recency", "elapsed", "remaining", "exploits")
ALL_FEATURES = Cage2Settings(green="scan", horizons=(30, 50, 7), channels=ALL_CHANNELS, action_mask="sensible")
# Hidden state of which nothing is left in a new episode.
EMPTY_AT_THE_START = (
    "malware",
    "restored",
    "removable",
    "exploit_options",
    "b_line_step",
    "subnets_tried",
    "hosts_scanned",
    "hosts_exploited",
    "hosts_escalated",
    "hosts_ever_exploited",
    "activity_seen",
    "scan_seen",
)


def random_actions(steps, rows, seed=0):
    return np.random.default_rng(seed).integers(0, NUM_ACTIONS, (steps, rows))


def step_all(env, actions):
    """State arrays after every step."""
    states = []
    for row in actions:
        env.step(row)
        states.append(env.state())
    return states


def assert_same(state, expected, rows=slice(None)):
    assert state.keys() == expected.keys()
    for name in state:
        assert_array_equal(state[name], expected[name][rows], err_msg=name)


@pytest.mark.parametrize("num_envs", [1, 7])
def test_trajectories_do_not_depend_on_the_batch_size(num_envs):
    actions = random_actions(120, 64)
    whole = Cage2(np.arange(64), ALL_FEATURES)
    whole.reset(seed=11)
    part = Cage2(np.arange(num_envs), ALL_FEATURES)
    part.reset(seed=11)
    for step in range(120):
        whole.step(actions[step])
        part.step(actions[step, :num_envs])
        if step % 10 == 0:
            assert_same(part.state(), whole.state(), slice(num_envs))


def test_trajectories_do_not_depend_on_the_row_in_the_batch():
    actions = random_actions(60, 64)
    whole, part = Cage2(np.arange(64), ALL_FEATURES), Cage2(np.arange(20, 40), ALL_FEATURES)
    whole.reset(seed=3)
    part.reset(seed=3)
    for row in actions:
        whole.step(row)
        part.step(row[20:40])
    assert_same(part.state(), whole.state(), slice(20, 40))


@pytest.mark.parametrize("threads", [2, 3])
def test_trajectories_do_not_depend_on_the_number_of_threads(threads):
    rows = 3001
    actions = random_actions(40, rows)
    alone = Cage2(np.arange(rows), ALL_FEATURES)
    shared = Cage2(np.arange(rows), replace(ALL_FEATURES, batch_threads=threads))
    alone.reset(seed=5)
    shared.reset(seed=5)
    for row in actions:
        alone.step(row)
        shared.step(row)
    assert shared.threaded_step is not None
    pool = shared.threaded_step.pool
    assert_same(shared.state(), alone.state())
    shared.close()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(int)
    shared.step(actions[0])
    shared.close()


@pytest.mark.parametrize(("rows", "most", "used"), [(1, 4, 1), (999, 4, 1), (2999, 4, 2), (3000, 4, 3), (9000, 4, 4)])
def test_a_thread_is_used_for_every_thousand_rows(rows, most, used):
    assert threads_worth_using(rows, most) == used


def test_a_process_that_did_not_start_the_threads_neither_uses_nor_ends_them():
    threaded, actions = ThreadedStep(2000, 2), np.zeros(2000, np.int64)
    env = Cage2(np.arange(2000))
    env.reset(seed=0)
    threaded(env.pointers, actions)
    inherited = threaded.pool
    threaded.owner_pid -= 1  # what a forked process finds
    threaded(env.pointers, actions)
    own = threaded.pool
    assert own is not inherited
    threaded(env.pointers, actions)
    assert threaded.pool is own
    threaded.owner_pid -= 1
    threaded.close()
    assert threaded.pool is None
    for pool in (inherited, own):
        assert pool.submit(int).result() == 0
        pool.shutdown()


@pytest.mark.parametrize("threads", [1, 2])
def test_the_errors_of_all_rows_are_counted(threads):
    rows = 2000
    env = Cage2(np.arange(rows), Cage2Settings(batch_threads=threads))
    env.reset(seed=0)
    actions = np.zeros(rows, np.int64)
    assert env.advance(actions) == 0
    for failed, message in (([5], r"env 5: [^()]*$"), ([0, 5, rows - 1], r"env 0: .* \(2 more envs have errors\)$")):
        env.error_codes[failed] = TOO_MANY_SESSIONS
        assert env.advance(actions) == len(failed)
        with pytest.raises(SessionLimitError, match=message):
            env.step(actions)
        env.step(actions)
    env.close()


def test_trajectories_depend_on_the_seed_only():
    actions = random_actions(50, 16)
    first, again, other = (Cage2(np.arange(16), ALL_FEATURES) for _ in range(3))
    first.reset(seed=1)
    again.reset(seed=1)
    other.reset(seed=2)
    for row in actions:
        first.step(row)
        again.step(row)
        other.step(row)
    assert_same(again.state(), first.state())
    assert not np.array_equal(other.out.true_state["known"], first.out.true_state["known"])


def test_restore_continues_bit_for_bit():
    actions = random_actions(90, 12)
    env = Cage2(np.arange(12), ALL_FEATURES)
    env.reset(seed=4)
    step_all(env, actions[:45])
    saved = env.state()
    expected = step_all(env, actions[45:])
    resumed = Cage2(np.arange(12), ALL_FEATURES)
    resumed.restore(saved)
    for state, expected_state in zip(step_all(resumed, actions[45:]), expected, strict=True):
        assert_same(state, expected_state)


def test_a_slice_of_the_state_continues_in_another_batch():
    actions = random_actions(60, 12)
    env = Cage2(np.arange(12), ALL_FEATURES)
    env.reset(seed=4)
    step_all(env, actions[:30])
    saved = env.state()
    step_all(env, actions[30:])
    part = Cage2(np.arange(4, 9), ALL_FEATURES)
    part.restore({name: array[4:9] for name, array in saved.items()})
    step_all(part, actions[30:, 4:9])
    assert_same(part.state(), env.state(), slice(4, 9))


def test_copies_of_an_env_are_independent():
    env = Cage2(np.arange(5), ALL_FEATURES)
    env.reset(seed=9)
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        before = env.state()
        assert_same(twin.state(), before)
        twin.step(random_actions(1, 5)[0])
        assert_same(env.state(), before)


def test_output_buffers_may_be_rows_of_a_larger_batch():
    env = Cage2(np.arange(3, 5), ALL_FEATURES)
    common = env.spec.batch(np.arange(8))
    env.set_output_buffers(common.rows(3, 5))
    free = Cage2(np.arange(3, 5), ALL_FEATURES)
    env.reset(seed=1)
    free.reset(seed=1)
    for row in random_actions(40, 2):
        env.step(row)
        free.step(row)
    assert_same(env.state(), free.state())
    assert_array_equal(common.true_state["known"][3:5], free.out.true_state["known"])
    assert not common.true_state["known"][:3].any()
    assert not common.true_state["known"][5:].any()


def test_output_buffers_of_another_shape_type_or_order_raise():
    env = Cage2(np.arange(4))
    out = env.spec.batch(np.arange(4))
    with pytest.raises(ShapeError, match="'bits' must be uint8"):
        env.set_output_buffers(env.spec.batch(np.arange(5)))
    out.true_state["known"] = out.true_state["known"].astype(np.int64)
    with pytest.raises(ShapeError, match="'known' must be uint8"):
        env.set_output_buffers(out)
    masked = Cage2(np.arange(4), Cage2Settings(action_mask="sensible"))
    wide = masked.spec.batch(np.arange(4))
    wide.mask = np.ones((4, 146), bool)
    with pytest.raises(ShapeError, match="'mask' must be bool"):
        masked.set_output_buffers(wide)
    out.true_state["known"] = np.zeros((13, 4), np.uint8).T
    assert out.true_state["known"].shape == (4, 13)
    with pytest.raises(ShapeError, match="'known' must be contiguous"):
        env.set_output_buffers(out)


def test_true_state_arrays_are_never_replaced():
    env = Cage2(np.arange(6), Cage2Settings(red="b_line"))
    state = env.reset(seed=0).true_state
    arrays = dict(state)
    assert state["known"].sum() == 6
    env.step(np.zeros(6, int))
    assert all(state[name] is arrays[name] for name in arrays)
    assert state["known"].sum() == 6 * 5  # red discovered the user subnet in this step


def test_episodes_terminate_at_the_horizon_with_their_final_observation():
    env = Cage2(np.arange(4), Cage2Settings(red="b_line", horizons=(3,), channels=("elapsed",)))
    out = env.reset(seed=0)
    assert env.spec.episode_steps == 3
    for _ in range(2):
        env.step(np.zeros(4, int))
        assert not out.ended.any()
    env.step(np.zeros(4, int))
    assert out.terminated.all()
    assert not out.truncated.any()
    assert not out.observation["bits"].any()
    assert out.final_observation["bits"].any(axis=1).all()  # red's exploit is observed
    assert_array_equal(out.final_observation["elapsed"], np.full((4, 1), 0.03, np.float32))
    assert_array_equal(out.observation["elapsed"], np.zeros((4, 1)))
    assert_array_equal(out.episode_info["horizon"], [3] * 4)
    assert_array_equal(env.episodes, [1] * 4)
    assert_array_equal(out.true_state["known"].sum(axis=1), [1] * 4)  # the next episode's
    assert_array_equal(out.info["red_action"], [3] * 4)  # of the last step
    assert set(out.info["red_target"]) <= {USER1, USER2, USER3, USER4}


def test_every_episode_starts_from_the_initial_state():
    rows = 50
    env = Cage2(np.arange(rows), replace(ALL_FEATURES, red="mix", horizons=(40,)))
    env.reset(seed=2)
    initial = env.state()
    for name in EMPTY_AT_THE_START:
        assert not initial[name].any(), name
    actions = np.where(np.arange(40)[:, None] % 4 == 0, random_actions(40, rows), 0)
    before_the_end = step_all(env, actions)[-2]
    state = env.state()
    assert env.out.terminated.all()
    drawn = {"key", "episodes", "red"}
    outputs = {"out/reward", "out/terminated", *(name for name in state if "info/" in name or "final_" in name)}
    changed = {name for name in state if not np.array_equal(before_the_end[name], initial[name])}
    true_state = {f"out/true_state/{name}" for name in env.out.true_state}
    assert {"ot_stoppable", "ot_known", *EMPTY_AT_THE_START, *true_state} <= changed
    for name in state.keys() - drawn - outputs:
        assert_array_equal(state[name], initial[name], err_msg=name)


def test_an_episode_starts_with_one_privileged_session_on_user0_and_nothing_else():
    env = Cage2(np.arange(3), ALL_FEATURES)
    env.reset(seed=0)
    on_user0 = {"known": 1, "access": PRIVILEGED_ACCESS, "access_first": PRIVILEGED_ACCESS, "n_sessions": 1}
    on_user0["privileged"] = 1
    numbers = {"red_subnets": 1 << USER, "ot_up": 1, "ot_stoppable": 1, "red_success": UNKNOWN}
    numbers |= {"b_line_user_host": NONE, "last_exploited": NONE, "last_escalated": NONE}
    drawn = {"key", "horizon", "red"}
    arrays = env.out.true_state | {name: env.hidden[name] for name in env.hidden.dtype.names}
    assert (on_user0 | numbers).keys() <= arrays.keys()
    for name in arrays.keys() - drawn:
        expected = np.full_like(arrays[name], numbers.get(name, 0))
        if name in on_user0:
            expected[:, USER0] = on_user0[name]
        assert_array_equal(arrays[name], expected, err_msg=name)


def test_the_final_observation_is_what_a_longer_episode_observes():
    rows, steps = 40, 30
    short, long = (Cage2(np.arange(rows), replace(ALL_FEATURES, horizons=(h,))) for h in (steps, 2 * steps))
    short.reset(seed=4)
    long.reset(seed=4)
    for row in random_actions(steps, rows):
        short.step(row)
        long.step(row)
    assert short.out.terminated.all()
    assert not short.out.final_observation["remaining"].any()
    for name in {"bits", *ALL_CHANNELS} - {"remaining"}:
        final = short.out.final_observation[name]
        assert final.any(), name
        assert_array_equal(final, long.out.observation[name], err_msg=name)


def test_the_red_agent_and_the_horizon_are_drawn_with_counters_before_those_of_the_steps():
    env = Cage2(np.arange(200), Cage2Settings(red="mix", horizons=(3, 5, 9)))
    env.reset(seed=6)
    keys = env.hidden["key"]
    assert_array_equal(env.hidden["red"], rng.integers(keys, RED_DRAW, 3))
    assert_array_equal(env.hidden["horizon"], np.array([3, 5, 9])[rng.integers(keys, HORIZON_DRAW, 3)])
    assert (RED_DRAW, HORIZON_DRAW) == (0, 1)


def test_each_episode_draws_one_of_the_horizons():
    env = Cage2(np.arange(300), Cage2Settings(red="sleep", horizons=(3, 5)))
    assert env.spec.episode_steps is None
    out = env.reset(seed=0)
    lengths = np.zeros(300, int)
    episode_lengths = []
    for _ in range(15):
        env.step(np.zeros(300, int))
        lengths += 1
        assert_array_equal(lengths[out.terminated], out.episode_info["horizon"][out.terminated])
        episode_lengths += lengths[out.terminated].tolist()
        lengths[out.terminated] = 0
    assert set(episode_lengths) == {3, 5}
    assert 0.4 < np.mean(np.array(episode_lengths[:300]) == 3) < 0.75


@pytest.mark.parametrize(("weights", "shares"), [((1, 1, 1), (1 / 3, 1 / 3, 1 / 3)), ((3, 1, 0), (0.75, 0.25, 0.0))])
def test_mix_draws_the_red_agent_of_every_episode(weights, shares):
    rows = 4000
    env = Cage2(np.arange(rows), Cage2Settings(red="mix", red_weights=weights, horizons=(2,)))
    out = env.reset(seed=0)
    agents_of_episodes = []
    for _ in range(4):
        env.step(np.zeros(rows, int))
        agents_of_episodes += [out.episode_info["red"].copy()] if out.terminated.all() else []
    assert not np.array_equal(agents_of_episodes[0], agents_of_episodes[1])
    for agents in agents_of_episodes:
        counts = np.bincount(agents, minlength=3) / rows
        assert np.abs(counts - shares).max() < 0.03


@pytest.mark.parametrize(("red", "code"), [("b_line", B_LINE), ("meander", MEANDER)])
def test_episode_info_holds_the_red_agent(red, code):
    env = Cage2(np.arange(2), Cage2Settings(red=red, horizons=(1,)))
    env.reset(seed=0)
    env.step(np.zeros(2, int))
    assert_array_equal(env.out.episode_info["red"], [code, code])
    assert SLEEP_AGENT not in env.out.episode_info["red"]


def test_green_scans_half_of_the_steps_uniformly_over_its_hosts():
    rows = 4000
    env = Cage2(np.arange(rows), Cage2Settings(red="sleep", green="scan"))
    env.reset(seed=0)
    env.step(np.zeros(rows, int))
    scanned = env.out.observation["bits"].reshape(rows, NUM_HOSTS, 4)[:, :, 0]
    assert scanned.sum(axis=1).max() == 1
    assert scanned.sum() / rows == pytest.approx(0.5, abs=0.03)
    counts = scanned.sum(axis=0)
    assert_array_equal(np.flatnonzero(counts), [1, 2, 3, 8, 9, 10, 11, 12])
    assert np.abs(counts[counts > 0] / counts.sum() - 1 / 8).max() < 0.03


@pytest.mark.parametrize("action", [-1, 145])
def test_an_invalid_action_raises_before_any_env_is_stepped(action):
    env = Cage2(np.arange(10, 14))
    env.reset(seed=0)
    before = env.state()
    with pytest.raises(ActionError, match=f"action {action} for env 12"):
        env.step(np.array([0, 0, action, action]))
    assert_same(env.state(), before)


def test_an_invalid_action_in_the_rows_of_one_thread_stops_all_threads():
    rows = 2000
    env = Cage2(np.arange(rows), Cage2Settings(batch_threads=2))
    env.reset(seed=0)
    before = env.state()
    for row in (0, rows - 1):
        actions = np.zeros(rows, np.int64)
        actions[row] = NUM_ACTIONS
        with pytest.raises(ActionError, match=f"action {NUM_ACTIONS} for env {row}"):
            env.step(actions)
        assert_same(env.state(), before)
    env.close()


def test_a_wrong_number_or_type_of_actions_raises():
    env = Cage2(np.arange(4))
    env.reset(seed=0)
    with pytest.raises(ShapeError, match=r"shape \(3,\) for 4 envs"):
        env.step(np.zeros(3, int))
    with pytest.raises(ShapeError, match="got float64 actions"):
        env.step(np.full(4, 0.5))


def test_actions_may_have_any_integer_type_and_stride():
    actions = random_actions(20, 8)
    env, other = Cage2(np.arange(8)), Cage2(np.arange(8))
    env.reset(seed=0)
    other.reset(seed=0)
    for row in actions:
        env.step(row)
        other.step(np.repeat(row, 2).astype(np.int32)[::2])
    assert_same(other.state(), env.state())


def test_cached_kernels_are_recompiled_when_a_source_file_changes(monkeypatch):
    Cage2(np.arange(1)).reset(seed=0)
    cached = start_batch._cache._cache_file
    assert cached._load_index()
    activity_seen = (*cached._source_stamp[:-1], (0, 0))
    monkeypatch.setattr(cached, "_source_stamp", activity_seen)
    assert not cached._load_index()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"red": "bline"}, "did you mean b_line"),
        ({"green": "awake"}, "green cannot be 'awake'"),
        ({"ruleset": "old"}, "ruleset cannot be 'old'"),
        ({"observation": "tables"}, "did you mean table"),
        ({"channels": ("decoy",)}, "did you mean decoys"),
        ({"action_mask": "sensibel"}, "did you mean sensible"),
        ({"horizons": ()}, "at least one number of steps"),
        ({"horizons": (0,)}, "horizons must be at least 1"),
        ({"horizons": (40_000,)}, "at most 32767"),
        ({"red_weights": (0, 0, 0)}, "red_weights must be one weight"),
        ({"red_weights": (1, -1, 1)}, "red_weights must be at least 0"),
        ({"batch_threads": 0}, "batch_threads must be at least 1"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_invalid_settings_raise(wrong, message):
    with pytest.raises(SettingsError, match=message):
        Cage2Settings(**wrong)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    red=st.sampled_from(["b_line", "meander", "mix"]),
    ruleset=st.sampled_from(["current", "leaderboard"]),
    min_action=st.sampled_from([0, DECOY_FIRST, RESTORE_FIRST]),
)
def test_the_true_state_is_consistent(seed, red, ruleset, min_action):
    rows = 16
    env = Cage2(
        np.arange(rows), Cage2Settings(red=red, ruleset=ruleset, green="scan", horizons=(101,), channels=ALL_CHANNELS)
    )
    out = env.reset(seed)
    rng = np.random.default_rng(seed)
    state, observation = out.true_state, out.observation
    for step in range(100):
        decoys_before = state["decoys"].copy()
        actions = rng.integers(min_action * rng.integers(0, 2), NUM_ACTIONS, rows)
        env.step(actions)
        n_sessions, access, first = (state[n] for n in ("n_sessions", "access", "access_first"))
        assert_array_equal(access == 0, n_sessions == 0)
        assert_array_equal(first == 0, n_sessions == 0)
        assert np.all(first <= access)
        assert np.all(state["user_removable"] <= n_sessions)
        assert np.all(n_sessions[:, USER0] >= 1)
        assert np.all(access[:, USER0] == 2)
        assert np.all(state["known"] | (n_sessions == 0))  # a session only on a known host
        assert_array_equal(state["n_decoys"] > 0, state["decoys"] > 0)
        # The decoy channels agree with the true state.
        types = np.unpackbits(state["decoys"][..., None], axis=-1, bitorder="little")
        assert_array_equal(observation["decoys"], types)
        assert_array_equal(observation["decoy_counts"], state["n_decoys"])
        placing = (actions >= DECOY_FIRST) & (actions < RESTORE_FIRST)
        kind, host = np.divmod(actions - DECOY_FIRST, NUM_HOSTS)
        for row in np.flatnonzero(placing):
            fits = INSTALLABLE_DECOYS[host[row], decoys_before[row, host[row]]] >> kind[row] & 1
            assert out.info["blue_success"][row] == fits
        reward_tenths = -1 * (access == 2) @ [1, 10, 10, 10, 1, 1, 1, 10, 0, 1, 1, 1, 1]
        reward_tenths = reward_tenths - 100 * (state["ot_up"] == 0) - 10 * (actions >= RESTORE_FIRST)
        assert_array_equal(out.reward, reward_tenths / 10)
        assert_array_equal(observation["elapsed"][:, 0], np.float32((step + 1) / 100))
