import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from hundredfold.core.errors import ActionError, SettingsError, ShapeError
from hundredfold.envs.cage2.blue_actions import DECOY_FIRST, NUM_ACTIONS, RESTORE_FIRST
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.network import FITTING_DECOYS, NUM_HOSTS, USER0
from hundredfold.envs.cage2.red_agents import ASLEEP, B_LINE, MEANDER
from hundredfold.envs.cage2.step import start_all

ALL_CHANNELS = ("decoys", "decoy_counts", "scans", "baits", "recency", "elapsed", "remaining")
RICH = Cage2Settings(
    green="scan", horizons=(30, 50, 7), channels=ALL_CHANNELS, action_mask="sensible"
)


def random_actions(steps, rows, seed=0):
    return np.random.default_rng(seed).integers(0, NUM_ACTIONS, (steps, rows))


def play(env, actions):
    """Every array after every step."""
    story = []
    for row in actions:
        env.step(row)
        story.append(env.state())
    return story


def assert_same(state, expected, rows=slice(None)):
    assert state.keys() == expected.keys()
    for name in state:
        assert_array_equal(state[name], expected[name][rows], err_msg=name)


@pytest.mark.parametrize("num_envs", [1, 7])
def test_an_env_tells_the_same_story_in_a_batch_of_any_size(num_envs):
    actions = random_actions(120, 64)
    whole = Cage2(np.arange(64), RICH)
    whole.reset(seed=11)
    part = Cage2(np.arange(num_envs), RICH)
    part.reset(seed=11)
    for step in range(120):
        whole.step(actions[step])
        part.step(actions[step, :num_envs])
        if step % 10 == 0:
            assert_same(part.state(), whole.state(), slice(num_envs))


def test_an_env_tells_the_same_story_from_the_middle_of_a_batch():
    actions = random_actions(60, 64)
    whole, part = Cage2(np.arange(64), RICH), Cage2(np.arange(20, 40), RICH)
    whole.reset(seed=3)
    part.reset(seed=3)
    for row in actions:
        whole.step(row)
        part.step(row[20:40])
    assert_same(part.state(), whole.state(), slice(20, 40))


def test_threads_do_not_change_the_story():
    rows = 3001
    actions = random_actions(40, rows)
    alone = Cage2(np.arange(rows), RICH)
    shared = Cage2(np.arange(rows), replace(RICH, batch_threads=3))
    alone.reset(seed=5)
    shared.reset(seed=5)
    for row in actions:
        alone.step(row)
        shared.step(row)
    assert shared.shared_step.pool is not None
    assert_same(shared.state(), alone.state())
    shared.close()
    shared.step(actions[0])
    shared.close()


def test_a_seed_decides_the_story():
    actions = random_actions(50, 16)
    first, again, other = (Cage2(np.arange(16), RICH) for _ in range(3))
    first.reset(seed=1)
    again.reset(seed=1)
    other.reset(seed=2)
    for row in actions:
        first.step(row)
        again.step(row)
        other.step(row)
    assert_same(again.state(), first.state())
    assert not np.array_equal(other.out.true_state["known"], first.out.true_state["known"])


def test_a_snapshot_continues_bit_for_bit():
    actions = random_actions(90, 12)
    env = Cage2(np.arange(12), RICH)
    env.reset(seed=4)
    play(env, actions[:45])
    saved = env.state()
    expected = play(env, actions[45:])
    resumed = Cage2(np.arange(12), RICH)
    resumed.restore(saved)
    for state, wanted in zip(play(resumed, actions[45:]), expected, strict=True):
        assert_same(state, wanted)


def test_a_snapshot_can_be_sliced_and_continued_elsewhere():
    actions = random_actions(60, 12)
    env = Cage2(np.arange(12), RICH)
    env.reset(seed=4)
    play(env, actions[:30])
    saved = env.state()
    play(env, actions[30:])
    part = Cage2(np.arange(4, 9), RICH)
    part.restore({name: array[4:9] for name, array in saved.items()})
    play(part, actions[30:, 4:9])
    assert_same(part.state(), env.state(), slice(4, 9))


def test_copies_of_an_env_go_their_own_way():
    env = Cage2(np.arange(5), RICH)
    env.reset(seed=9)
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        before = env.state()
        assert_same(twin.state(), before)
        twin.step(random_actions(1, 5)[0])
        assert_same(env.state(), before)


def test_a_bound_env_plays_in_the_buffers_it_was_given():
    env = Cage2(np.arange(3, 5), RICH)
    common = env.spec.batch(np.arange(8))
    env.set_output_buffers(common.rows(3, 5))
    free = Cage2(np.arange(3, 5), RICH)
    env.reset(seed=1)
    free.reset(seed=1)
    for row in random_actions(40, 2):
        env.step(row)
        free.step(row)
    assert_same(env.state(), free.state())
    assert_array_equal(common.true_state["known"][3:5], free.out.true_state["known"])
    assert not common.true_state["known"][:3].any()
    assert not common.true_state["known"][5:].any()


def test_buffers_of_another_shape_type_or_order_are_refused():
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


def test_true_state_arrays_are_the_same_objects_before_and_after_every_step():
    env = Cage2(np.arange(6), Cage2Settings(red="b_line"))
    state = env.reset(seed=0).true_state
    arrays = dict(state)
    assert state["known"].sum() == 6
    env.step(np.zeros(6, int))
    assert all(state[name] is arrays[name] for name in arrays)
    assert state["known"].sum() == 6 * 5  # the user subnet was discovered in this very step


def test_episodes_terminate_at_the_horizon_and_keep_their_last_observation():
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
    assert out.final_observation["bits"].any(axis=1).all()  # red's exploit or attempt shows
    assert_array_equal(out.final_observation["elapsed"], np.full((4, 1), 0.03, np.float32))
    assert_array_equal(out.observation["elapsed"], np.zeros((4, 1)))
    assert_array_equal(out.episode_info["horizon"], [3] * 4)
    assert_array_equal(env.episodes, [1] * 4)
    assert_array_equal(out.true_state["known"].sum(axis=1), [1] * 4)  # the next episode's
    assert_array_equal(out.info["red_action"], [3] * 4)  # the step that was played


def test_each_episode_draws_one_of_the_horizons():
    env = Cage2(np.arange(300), Cage2Settings(red="sleep", horizons=(3, 5)))
    assert env.spec.episode_steps is None
    out = env.reset(seed=0)
    lengths = np.zeros(300, int)
    seen = []
    for _ in range(15):
        env.step(np.zeros(300, int))
        lengths += 1
        assert_array_equal(lengths[out.terminated], out.episode_info["horizon"][out.terminated])
        seen += lengths[out.terminated].tolist()
        lengths[out.terminated] = 0
    assert set(seen) == {3, 5}
    assert 0.4 < np.mean(np.array(seen[:300]) == 3) < 0.75


@pytest.mark.parametrize(
    ("mix", "shares"), [((1, 1, 1), (1 / 3, 1 / 3, 1 / 3)), ((3, 1, 0), (0.75, 0.25, 0.0))]
)
def test_mix_draws_reds_agent_for_every_episode(mix, shares):
    rows = 4000
    env = Cage2(np.arange(rows), Cage2Settings(red="mix", mix=mix, horizons=(2,)))
    out = env.reset(seed=0)
    played = []
    for _ in range(4):
        env.step(np.zeros(rows, int))
        played += [out.episode_info["red"].copy()] if out.terminated.all() else []
    assert not np.array_equal(played[0], played[1])
    for agents in played:
        counts = np.bincount(agents, minlength=3) / rows
        assert np.abs(counts - shares).max() < 0.03


@pytest.mark.parametrize(("red", "code"), [("b_line", B_LINE), ("meander", MEANDER)])
def test_episode_info_tells_who_played(red, code):
    env = Cage2(np.arange(2), Cage2Settings(red=red, horizons=(1,)))
    env.reset(seed=0)
    env.step(np.zeros(2, int))
    assert_array_equal(env.out.episode_info["red"], [code, code])
    assert ASLEEP not in env.out.episode_info["red"]


def test_green_scans_every_other_step_and_all_its_hosts_alike():
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
def test_an_action_that_does_not_exist_is_refused_before_anything_moves(action):
    env = Cage2(np.arange(10, 14))
    env.reset(seed=0)
    before = env.state()
    with pytest.raises(ActionError, match=f"action {action} for env 12"):
        env.step(np.array([0, 0, action, 0]))
    assert_same(env.state(), before)


def test_a_wrong_number_or_type_of_actions_is_refused():
    env = Cage2(np.arange(4))
    env.reset(seed=0)
    with pytest.raises(ShapeError, match=r"shape \(3,\) for 4 envs"):
        env.step(np.zeros(3, int))
    with pytest.raises(ShapeError, match="got float64 actions"):
        env.step(np.full(4, 0.5))


def test_actions_of_any_whole_number_type_and_stride_are_played():
    actions = random_actions(20, 8)
    env, other = Cage2(np.arange(8)), Cage2(np.arange(8))
    env.reset(seed=0)
    other.reset(seed=0)
    for row in actions:
        env.step(row)
        other.step(np.repeat(row, 2).astype(np.int32)[::2])
    assert_same(other.state(), env.state())


def test_cached_kernels_are_forgotten_when_a_file_with_rules_changes(monkeypatch):
    Cage2(np.arange(1)).reset(seed=0)
    cached = start_all._cache._cache_file
    assert cached._load_index()
    touched = (*cached._source_stamp[:-1], (0, 0))
    monkeypatch.setattr(cached, "_source_stamp", touched)
    assert not cached._load_index()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"red": "bline"}, "did you mean b_line"),
        ({"green": "awake"}, "green has no 'awake'"),
        ({"ruleset": "old"}, "ruleset has no 'old'"),
        ({"observation": "tables"}, "did you mean table"),
        ({"channels": ("decoy",)}, "did you mean decoys"),
        ({"action_mask": "sensibel"}, "did you mean sensible"),
        ({"horizons": ()}, "at least one length"),
        ({"horizons": (0,)}, "at least one length"),
        ({"horizons": (40_000,)}, "at least one length"),
        ({"mix": (0, 0, 0)}, "mix needs a weight"),
        ({"mix": (1, -1, 1)}, "mix needs a weight"),
        ({"batch_threads": 0}, "batch_threads must be at least 1"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(SettingsError, match=message):
        Cage2Settings(**wrong)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    red=st.sampled_from(["b_line", "meander", "mix"]),
    ruleset=st.sampled_from(["current", "leaderboard"]),
    leaning=st.sampled_from([0, DECOY_FIRST, RESTORE_FIRST]),
)
def test_the_true_state_never_contradicts_itself(seed, red, ruleset, leaning):
    rows = 16
    env = Cage2(
        np.arange(rows),
        Cage2Settings(
            red=red, ruleset=ruleset, green="scan", horizons=(101,), channels=ALL_CHANNELS
        ),
    )
    out = env.reset(seed)
    rng = np.random.default_rng(seed)
    state, seen = out.true_state, out.observation
    for step in range(100):
        decoys_before = state["decoys"].copy()
        actions = rng.integers(leaning * rng.integers(0, 2), NUM_ACTIONS, rows)
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
        # Blue's own books agree with the truth about decoys.
        types = np.unpackbits(state["decoys"][..., None], axis=-1, bitorder="little")
        assert_array_equal(seen["decoys"], types)
        assert_array_equal(seen["decoy_counts"], state["n_decoys"])
        placing = (actions >= DECOY_FIRST) & (actions < RESTORE_FIRST)
        kind, host = np.divmod(actions - DECOY_FIRST, NUM_HOSTS)
        for row in np.flatnonzero(placing):
            fits = FITTING_DECOYS[host[row], decoys_before[row, host[row]]] >> kind[row] & 1
            assert out.info["blue_success"][row] == fits
        worst = -1 * (access == 2) @ [1, 10, 10, 10, 1, 1, 1, 10, 0, 1, 1, 1, 1]
        worst = worst - 100 * (state["ot_up"] == 0) - 10 * (actions >= RESTORE_FIRST)
        assert_array_equal(out.reward, worst / 10)
        assert_array_equal(seen["elapsed"][:, 0], np.float32((step + 1) / 100))
