"""The `BatchEnv` interface (`core/protocols.py`), checked for each entry of `ENV_CASES`."""

import functools
import pickle
import warnings

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers.cases import ENV_CASES
from helpers.trajectories import (
    ACTION_TABLE,
    EnvBackend,
    assert_same_trajectory,
    continue_trajectory,
    fixed_actions,
    record_env_trajectory,
    record_trajectory,
    same_trajectory,
    steps_until_ends,
)
from hundredfold.core.batch import copies
from hundredfold.core.errors import CheckpointError
from hundredfold.envs.registry import ENVS

SEED = 7
ALL_ENV_IDS = tuple(range(64))

SPECS = {name: make_envs(np.arange(1)).spec for name, make_envs in ENV_CASES.items()}

every_env = pytest.mark.parametrize("name", ENV_CASES)
every_env_with_snapshots = pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if spec.has_snapshots])
every_env_without_snapshots = pytest.mark.parametrize(
    "name", [name for name, spec in SPECS.items() if not spec.has_snapshots]
)


def make(name, env_ids=(0, 1, 2, 3, 4)):
    return ENV_CASES[name](np.array(env_ids, np.int64))


@functools.cache
def reference(name, env_ids=ALL_ENV_IDS, seed=SEED):
    """The uninterrupted trajectory, recorded once for all tests."""
    return record_env_trajectory(make(name, env_ids), seed, steps_until_ends(SPECS[name]))


def test_every_built_in_env_is_in_the_suite():
    missing = ENVS.keys() - {spec.name for spec in SPECS.values()}
    assert not missing, f"add a line for {missing} to ENV_CASES in tests/helpers/cases.py"


@every_env
def test_env_factories_can_be_pickled(name):
    make_envs = pickle.loads(pickle.dumps(ENV_CASES[name]))
    actual = record_env_trajectory(make_envs(np.arange(2)), SEED, 10)
    assert_same_trajectory(actual, reference(name).select_envs([0, 1]).between(0, 10))


# --- shapes and ranges


def assert_matches_spec(batch, env, env_ids):
    """Every array has the shape and dtype of the spec."""
    fresh = env.spec.batch(np.array(env_ids))
    expected = {key: (array.shape, array.dtype) for key, array in fresh.arrays().items()}
    assert {key: (array.shape, array.dtype) for key, array in batch.arrays().items()} == expected
    assert (batch.mask is not None) == env.spec.has_mask
    assert batch.env_ids.tolist() == list(env_ids)


@every_env
def test_batches_have_the_shapes_and_dtypes_of_the_spec(name):
    env = make(name, (4, 9, 2))
    batch = env.reset(SEED)
    assert_matches_spec(batch, env, (4, 9, 2))
    for step in range(20):
        batch = env.step(fixed_actions(batch, env.spec, np.full(3, step)))
        assert_matches_spec(batch, env, (4, 9, 2))


@every_env
def test_reset_has_no_reward_and_no_ended_episode(name):
    trajectory = reference(name)
    assert not trajectory["reward"][0].any()
    assert not trajectory.ended[0].any()


@every_env
def test_observations_lie_within_the_bounds_of_the_spec(name):
    trajectory = reference(name)
    for key, spec in SPECS[name].observation.items():
        low, high = (np.reshape(bound, spec.shape if np.ndim(bound) else ()) for bound in (spec.low, spec.high))
        for actual in (trajectory[f"observation/{key}"], trajectory[f"final_observation/{key}"][trajectory.ended]):
            assert (actual >= low).all(), key
            assert (actual <= high).all(), key
        if spec.categories is not None:
            assert (trajectory[f"observation/{key}"] < np.reshape(spec.categories, spec.shape)).all()


@every_env
def test_rewards_and_observations_are_finite(name):
    trajectory = reference(name)
    assert np.isfinite(trajectory["reward"]).all()
    for key in SPECS[name].observation:
        assert np.isfinite(trajectory[f"observation/{key}"]).all()


@every_env
def test_every_mask_allows_an_action_in_every_dimension(name):
    spec = SPECS[name]
    if not spec.has_mask:
        assert "mask" not in reference(name).arrays
        return
    mask, first = reference(name)["mask"], 0
    for count in spec.action_nvec:
        assert mask[..., first : first + count].any(axis=-1).all()
        first += count
    assert first == mask.shape[-1]
    assert not mask.all(), "an env with masks must forbid something at some time"


# --- determinism


@every_env
def test_the_same_seed_gives_the_same_trajectory(name):
    actual = record_env_trajectory(make(name, range(16)), SEED, 30)
    assert_same_trajectory(actual, reference(name).select_envs(range(16)).between(0, 30))


@every_env
def test_reset_gives_the_same_trajectory_in_a_used_env(name):
    env = make(name)
    record_env_trajectory(env, SEED + 1, 33)
    assert_same_trajectory(record_env_trajectory(env, SEED, 30), reference(name).select_envs(range(5)).between(0, 30))


@every_env
@pytest.mark.parametrize("seed", [SEED + 1, -SEED, 2**70])
def test_another_seed_gives_another_trajectory(name, seed):
    actual = record_env_trajectory(make(name), seed, 30)
    assert not same_trajectory(actual, reference(name).select_envs(range(5)).between(0, 30))


@every_env
def test_envs_of_a_batch_differ(name):
    # These ids share a row of the action table, so only randomness distinguishes the envs.
    env_ids = np.arange(16) * len(ACTION_TABLE)
    trajectory = record_env_trajectory(make(name, env_ids), SEED, 40)
    keys = [key for key in trajectory.arrays if key.startswith("observation/")]
    actual = [b"".join(trajectory[key][:, env].tobytes() for key in keys) for env in range(16)]
    assert len(set(actual)) > 12


@every_env
@pytest.mark.parametrize(
    "env_ids", [range(1), range(7), range(5, 9), (63,), (40, 3, 11)], ids=["one", "seven", "slice", "last", "scattered"]
)
def test_an_env_has_the_same_trajectory_in_any_batch(name, env_ids):
    actual = record_env_trajectory(make(name, env_ids), SEED, steps_until_ends(SPECS[name]))
    assert_same_trajectory(actual, reference(name).select_envs(env_ids))


@every_env
def test_actions_of_other_envs_change_nothing(name):
    steps = steps_until_ends(SPECS[name])
    odd = record_env_trajectory(make(name, range(16)), SEED, steps, action_shift=lambda env_ids: env_ids % 2)
    stayed, changed = range(0, 16, 2), range(1, 16, 2)
    assert_same_trajectory(odd.select_envs(stayed), reference(name).select_envs(stayed))
    assert not same_trajectory(odd.select_envs(changed), reference(name).select_envs(changed))


# --- the step that ends an episode


def first_ends(trajectory):
    """Env and step of every env's first episode end."""
    return {env: int(np.argmax(ended)) for env, ended in enumerate(trajectory.ended.T) if ended.any()}


@every_env
def test_the_next_episode_starts_in_the_same_step_and_does_not_depend_on_the_last_one(name):
    """RNG keys depend on seed, env and episode: episode 1 starts the same after any episode 0."""
    steps = steps_until_ends(SPECS[name])
    trajectory = reference(name).select_envs(range(24))
    other = record_env_trajectory(make(name, range(24)), SEED, steps, action_shift=np.ones_like)
    ends, other_ends = first_ends(trajectory), first_ends(other)
    both = ends.keys() & other_ends.keys()
    assert len(both) > 5
    starts = [f"observation/{key}" for key in SPECS[name].observation]
    starts += ["mask"] if SPECS[name].has_mask else []
    for env in both:
        for key in starts:
            assert_array_equal(trajectory[key][ends[env], env], other[key][other_ends[env], env])
    assert not same_trajectory(trajectory, other)


@every_env
def test_the_final_observation_of_an_episode_is_returned(name):
    trajectory = reference(name)
    for key in SPECS[name].observation:
        last, first = trajectory[f"final_observation/{key}"], trajectory[f"observation/{key}"]
        assert (last[trajectory.ended] != first[trajectory.ended]).any()


@every_env
def test_episode_steps_of_the_spec_is_exact(name):
    fixed = SPECS[name].episode_steps
    if fixed is None:
        lengths = set(first_ends(reference(name)).values())
        assert len(lengths) > 1, "episodes of equal length must be declared as episode_steps"
        return
    trajectory = reference(name)
    assert trajectory.ended[fixed::fixed].all()
    assert trajectory.ended.sum() == trajectory.ended[fixed::fixed].size


# --- buffers


def fill_randomly(batch):
    """Fill every array with random values, which the env must overwrite."""
    rng = np.random.default_rng(5)
    for array in batch.arrays().values():
        array[...] = rng.integers(0, 2, array.shape)


@every_env
def test_output_buffers_are_written_in_their_rows_only(name):
    env = make(name, range(4, 9))
    first_out = env.reset(SEED)
    before = copies(first_out.arrays())
    common = env.spec.batch(np.arange(2, 11))
    fill_randomly(common)
    above, below = copies(common.rows(0, 2).arrays()), copies(common.rows(7, 9).arrays())
    env.set_output_buffers(common.rows(2, 7))

    actual = record_env_trajectory(env, SEED, 30)

    assert_same_trajectory(actual, reference(name).select_envs(range(4, 9)).between(0, 30))
    last_rows = copies(common.rows(2, 7).arrays())
    for key, array in actual.arrays.items():
        if not key.startswith(("final_observation", "episode_info", "infos")):
            assert_array_equal(last_rows[key], array[-1], err_msg=key)
    for expected, now in ((above, common.rows(0, 2)), (below, common.rows(7, 9)), (before, first_out)):
        for key, array in now.arrays().items():
            assert_array_equal(array, expected[key], err_msg=key)


@every_env
def test_reset_step_and_restore_return_the_output_buffers(name):
    env = make(name)
    buffers = env.spec.batch(np.arange(5))
    env.set_output_buffers(buffers)
    batches = [env.reset(SEED)]
    batches.append(env.step(fixed_actions(batches[0], env.spec, np.zeros(5, np.int64))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches.append(env.restore(env.state()))
    for batch in batches:
        assert np.shares_memory(batch.reward, buffers.reward)
        for key, array in batch.observation.items():
            assert np.shares_memory(array, buffers.observation[key])


# --- shared parameters


@every_env
def test_unknown_shared_params_are_ignored(name):
    env = make(name)
    env.set_shared_params({"unknown": np.ones((3, 3))})
    env.set_shared_params({})
    assert_same_trajectory(record_env_trajectory(env, SEED, 20), reference(name).select_envs(range(5)).between(0, 20))


# --- snapshots

HALF = 17


def stopped(name, env_ids=(0, 1, 2, 3, 4)):
    """An env in the middle of its trajectory."""
    recorder = EnvBackend(make(name, env_ids))
    record_trajectory(recorder, SEED, HALF)
    return recorder


def expected_rest(name, env_ids):
    return reference(name).select_envs(env_ids).between(HALF, HALF + 30)


def continued(name, env_ids, state, recorder=None):
    recorder = recorder or EnvBackend(make(name, env_ids))
    recorder.restore(state)
    return continue_trajectory(recorder, 30, first_step=HALF)


@every_env_with_snapshots
def test_a_restored_env_continues_bit_exactly(name):
    state = stopped(name).env.state()
    assert_same_trajectory(continued(name, range(5), state), expected_rest(name, range(5)))


@every_env_with_snapshots
def test_an_env_can_be_restored_to_its_own_snapshot(name):
    recorder = stopped(name)
    state = recorder.env.state()
    continue_trajectory(recorder, 25, first_step=HALF)
    assert_same_trajectory(continued(name, range(5), state, recorder), expected_rest(name, range(5)))


@every_env_with_snapshots
def test_a_snapshot_replaces_the_state_of_another_seed(name):
    recorder = EnvBackend(make(name))
    record_trajectory(recorder, SEED + 1, 8)
    assert_same_trajectory(
        continued(name, range(5), stopped(name).env.state(), recorder), expected_rest(name, range(5))
    )


@every_env_with_snapshots
def test_taking_a_snapshot_changes_nothing(name):
    recorder = stopped(name)
    before = recorder.env.state()
    recorder.env.state()
    assert_same_trajectory(continue_trajectory(recorder, 30, first_step=HALF), expected_rest(name, range(5)))
    assert_same_trajectory(continued(name, range(5), before), expected_rest(name, range(5)))


@every_env
def test_every_array_of_a_snapshot_has_one_row_per_env(name):
    for key, array in stopped(name).env.state().items():
        assert len(array) == 5, key


@every_env_with_snapshots
def test_a_snapshot_can_be_sliced(name):
    state = stopped(name, range(6)).env.state()
    for env_ids in (range(2), range(2, 5), range(5, 6)):
        part = {key: array[env_ids.start : env_ids.stop] for key, array in state.items()}
        assert_same_trajectory(continued(name, env_ids, part), expected_rest(name, env_ids))


@every_env_with_snapshots
def test_snapshots_of_shards_can_be_concatenated(name):
    parts = [stopped(name, env_ids).env.state() for env_ids in (range(2), range(2, 5))]
    joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    assert_same_trajectory(continued(name, range(5), joined), expected_rest(name, range(5)))


@every_env
def test_a_snapshot_of_another_number_of_envs_is_refused(name):
    for env_ids in (range(4), range(6)):
        with pytest.raises(CheckpointError, match="snapshot"):
            make(name).restore(stopped(name, env_ids).env.state())


@every_env
def test_a_snapshot_without_an_array_is_refused_and_the_array_named(name):
    state = stopped(name).env.state()
    for missing in state:
        rest = {key: array for key, array in state.items() if key != missing}
        with pytest.raises(CheckpointError, match=missing.removeprefix("out/")):
            make(name).restore(rest)


@every_env
def test_a_snapshot_of_another_dtype_is_refused(name):
    state = stopped(name).env.state()
    state["episodes"] = state["episodes"].astype(np.float64)
    with pytest.raises(CheckpointError, match=r"episodes.*float64"):
        make(name).restore(state)


@every_env
def test_a_snapshot_of_another_env_is_refused(name):
    others = [other for other in SPECS if SPECS[other].name != SPECS[name].name]
    for other in others:
        state = stopped(other).env.state()
        if signature(make(name).state()) == signature(state):
            continue  # equal arrays cannot be distinguished
        with pytest.raises(CheckpointError, match="snapshot"):
            make(name).restore(state)


def signature(state):
    return {key: (array.shape, array.dtype) for key, array in state.items()}


@every_env
@pytest.mark.filterwarnings("ignore:.*truncated")
def test_a_snapshot_with_unknown_arrays_is_refused(name):
    state = stopped(name).env.state()
    with pytest.raises(CheckpointError, match="luggage"):
        make(name).restore({**state, "luggage": np.zeros(5)})


@every_env_with_snapshots
def test_a_refused_snapshot_leaves_the_env_unchanged(name):
    recorder = stopped(name)
    broken = stopped(name, range(20, 25)).env.state()
    broken.popitem()
    with pytest.raises(CheckpointError):
        recorder.env.restore(broken)
    assert_same_trajectory(continue_trajectory(recorder, 30, first_step=HALF), expected_rest(name, range(5)))


# --- snapshots of third-party envs


@every_env_without_snapshots
def test_restoring_a_third_party_env_truncates_its_episodes(name):
    recorder = stopped(name)
    state = recorder.env.state()
    with pytest.warns(UserWarning, match="truncated") as warned:
        batch = make(name).restore(state)
    assert len(warned) == 1
    assert batch.truncated.all()
    assert not batch.terminated.any()
    assert not batch.reward.any()
    for key, array in batch.final_observation.items():
        assert_array_equal(array, state[f"out/observation/{key}"])


@every_env_without_snapshots
@pytest.mark.filterwarnings("ignore:.*truncated")
def test_a_restored_third_party_env_continues_with_the_next_episodes(name):
    """Episode k was truncated, so episode k + 1 starts as in the uninterrupted trajectory."""
    trajectory = reference(name)
    state = stopped(name).env.state()
    batch = make(name).restore(state)
    episode = trajectory.ended[: HALF + 1].sum(axis=0)[:5]
    assert_array_equal(state["episodes"], episode)
    found = 0
    for env in range(5):
        ends = np.flatnonzero(trajectory.ended[:, env])
        if len(ends) > episode[env]:
            found += 1
            for key, array in batch.observation.items():
                assert_array_equal(array[env], trajectory[f"observation/{key}"][ends[episode[env]], env])
    assert found > 0


@every_env_without_snapshots
@pytest.mark.filterwarnings("ignore:.*truncated")
def test_two_restores_of_a_third_party_snapshot_give_the_same_trajectory(name):
    state = stopped(name).env.state()
    actual = continued(name, range(5), state)
    assert_same_trajectory(continued(name, range(5), state), actual)
    part = {key: array[3:5] for key, array in state.items()}
    assert_same_trajectory(continued(name, (3, 4), part), actual.select_envs([3, 4]))
    assert not actual["truncated"][1:].all()


@every_env
def test_an_env_can_be_closed(name):
    env = make(name)
    env.reset(SEED)
    env.close()
