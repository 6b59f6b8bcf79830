"""Batches: allocation, views and copies of rows, snapshots."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hundredfold.core.batch import (
    ArraySpec,
    EnvSpec,
    concat_batches,
    concat_rows,
    copies,
    fill,
    flatten_rows,
    slice_rows,
    with_prefix,
    without_prefix,
)
from hundredfold.core.errors import CheckpointError

SPEC = EnvSpec(
    name="meadow",
    observation={"grass": ArraySpec((2, 3)), "sheep": ArraySpec((), "int64", 0, 8)},
    action_nvec=(3, 2),
    has_mask=True,
    info={"wind": ArraySpec((), "float64")},
    episode_info={"wool": ArraySpec((4,), "int32")},
    true_state={"wolf": ArraySpec((), "bool")},
)


def filled(env_ids, seed=0):
    """A batch with random values in every array."""
    batch = SPEC.batch(np.asarray(env_ids))
    rng = np.random.default_rng(seed)
    for array in arrays_of(batch):
        array[...] = rng.integers(0, 2, array.shape)
    return batch


def arrays_of(batch):
    yield from (batch.reward, batch.terminated, batch.truncated, batch.mask)
    for group in ("observation", "final_observation", "info", "episode_info", "true_state"):
        yield from getattr(batch, group).values()


def test_a_new_batch_has_the_shapes_and_dtypes_of_the_spec():
    batch = SPEC.batch(np.arange(5))
    shapes = {name: (array.shape, str(array.dtype)) for name, array in copies(batch.arrays()).items()}
    assert shapes == {
        "reward": ((5,), "float64"),
        "terminated": ((5,), "bool"),
        "truncated": ((5,), "bool"),
        "mask": ((5, 5), "bool"),
        "observation/grass": ((5, 2, 3), "float32"),
        "observation/sheep": ((5,), "int64"),
        "final_observation/grass": ((5, 2, 3), "float32"),
        "final_observation/sheep": ((5,), "int64"),
        "info/wind": ((5,), "float64"),
        "episode_info/wool": ((5, 4), "int32"),
        "true_state/wolf": ((5,), "bool"),
    }
    assert len(batch) == 5


def test_a_new_batch_allows_every_action_and_is_zero_otherwise():
    batch = SPEC.batch(np.arange(2))
    assert batch.mask.all()
    assert not any(array.any() for name, array in copies(batch.arrays()).items() if name != "mask")


def test_an_env_without_masks_has_none():
    spec = EnvSpec(name="plain", observation={"x": ArraySpec((1,))}, action_nvec=(2,))
    batch = spec.batch(np.arange(3))
    assert batch.mask is None
    assert batch.rows(0, 1).mask is None
    assert "mask" not in copies(batch.arrays())


@pytest.mark.parametrize(("choices", "logits", "action_shape"), [((16,), 16, ()), ((3, 2), 5, (2,)), ((1,), 1, ())])
def test_action_nvec_determines_logits_and_action_shape(choices, logits, action_shape):
    spec = EnvSpec(name="w", observation={"x": ArraySpec((1,))}, action_nvec=choices)
    assert (spec.num_logits, spec.action_shape) == (logits, action_shape)


@pytest.mark.parametrize(("shape", "size"), [((), 1), ((4,), 4), ((2, 3), 6), ((2, 0), 0)])
def test_size_is_the_number_of_entries(shape, size):
    assert ArraySpec(shape).size == size


def test_an_episode_has_ended_when_it_terminated_or_was_truncated():
    batch = SPEC.batch(np.arange(4))
    batch.terminated[:] = [False, True, False, True]
    batch.truncated[:] = [False, False, True, True]
    assert batch.ended.tolist() == [False, True, True, True]


def test_rows_are_views_of_the_same_buffers():
    batch = filled(range(6))
    batch.infos = [{"env": env} for env in range(6)]
    part = batch.rows(2, 4)
    assert part.env_ids.tolist() == [2, 3]
    assert part.infos == [{"env": 2}, {"env": 3}]
    for piece, whole in zip(arrays_of(part), arrays_of(batch), strict=True):
        assert np.shares_memory(piece, whole)
        assert_array_equal(piece, whole[2:4], strict=True)
    outside = copies(batch.rows(4, 6).arrays())
    for array in arrays_of(part):
        array[...] = 0
    assert not batch.reward[2:4].any()
    assert not batch.true_state["wolf"][2:4].any()
    for name, array in copies(batch.rows(4, 6).arrays()).items():
        assert_array_equal(array, outside[name], err_msg=name)


def test_a_snapshot_is_a_copy():
    batch = filled(range(3))
    saved = copies(batch.arrays())
    expected = {name: array.copy() for name, array in saved.items()}
    for array in arrays_of(batch):
        array[...] = 1 - array.astype(np.int64)
    for name, array in saved.items():
        assert_array_equal(array, expected[name], err_msg=name)


def test_fill_restores_every_array_in_place():
    batch, other = filled(range(3), seed=1), filled(range(3), seed=2)
    buffers = list(arrays_of(other))
    fill(other.arrays(), copies(batch.arrays()))
    assert all(buffer is array for buffer, array in zip(buffers, arrays_of(other), strict=True))
    for name, array in other.arrays().items():
        assert_array_equal(array, batch.arrays()[name], err_msg=name)


MISMATCHES = {
    "a missing array": ({"steps": np.zeros(3)}, r"missing \['toll'\]"),
    "one too many": ({"steps": np.zeros(3), "toll": np.zeros(3), "luggage": np.zeros(1)}, r"unexpected \['luggage'\]"),
    "another shape": ({"steps": np.zeros(3), "toll": np.zeros(4)}, r"'toll' is float64\[4\]"),
    "another type": ({"steps": np.zeros(3), "toll": np.zeros(3, int)}, r"'toll' is int64\[3\]"),
}


@pytest.mark.parametrize(("state", "message"), MISMATCHES.values(), ids=MISMATCHES)
def test_a_snapshot_that_does_not_fit_changes_nothing(state, message):
    arrays = {"steps": np.ones(3), "toll": np.ones(3)}
    with pytest.raises(CheckpointError, match=message):
        fill(arrays, state)
    assert arrays["steps"].tolist() == arrays["toll"].tolist() == [1.0, 1.0, 1.0]


def test_sliced_and_concatenated_rows_are_the_whole_again():
    arrays = {"a": np.arange(12).reshape(6, 2), "b": np.arange(6.0)}
    parts = [slice_rows(arrays, slice(0, 2)), slice_rows(arrays, slice(2, 6))]
    assert np.shares_memory(parts[0]["a"], arrays["a"])
    for name, array in concat_rows(parts).items():
        assert_array_equal(array, arrays[name], strict=True)
    assert slice_rows(arrays, np.array([5, 0]))["b"].tolist() == [5.0, 0.0]
    columns = [{"a": arrays["a"]}, {"a": arrays["a"]}]
    assert concat_rows(columns, axis=1)["a"].shape == (6, 4)


def test_prefixes_separate_groups_of_arrays():
    both = {
        **with_prefix("out", {"reward": np.ones(1)}),
        **with_prefix("outside", {"reward": np.zeros(1)}),
        "out": np.full(1, 9.0),
    }
    assert sorted(both) == ["out", "out/reward", "outside/reward"]
    assert without_prefix("out", both) == {"reward": np.ones(1)}
    assert without_prefix("outside", both) == {"reward": np.zeros(1)}


# --- rows of a batch, and concatenation


def test_taken_rows_are_copies_in_the_given_order():
    batch = filled([4, 5, 6])
    taken = batch.take(np.array([2, 0]))
    assert taken.env_ids.tolist() == [6, 4]
    for name, array in batch.arrays().items():
        assert_array_equal(taken.arrays()[name], array[[2, 0]])
        assert not np.shares_memory(taken.arrays()[name], array)


def test_infos_of_taken_rows_are_looked_up_when_they_are_read():
    batch = filled([4, 5, 6])
    read = []

    class RecordingList(list):
        def __getitem__(self, row):
            read.append(row)
            return super().__getitem__(row)

    batch.infos = RecordingList([{"a": 0}, {"a": 1}, {"a": 2}])
    infos = batch.take(np.array([2, 0])).infos
    assert len(infos) == 2
    assert read == []
    assert infos[0] == {"a": 2}
    assert list(infos[1:]) == [{"a": 0}]
    assert read == [2, 0]


def test_concatenated_batches_keep_the_order_of_rows():
    one, other = filled([4, 5], seed=1), filled([0], seed=2)
    both = concat_batches(one, other)
    assert both.env_ids.tolist() == [4, 5, 0]
    for name, array in both.arrays().items():
        assert_array_equal(array, np.concatenate([one.arrays()[name], other.arrays()[name]]))


def test_flat_rows_are_the_arrays_side_by_side():
    arrays = [np.arange(6).reshape(2, 3), np.array([[[0.5, 1.0]], [[2.0, 3.0]]]), np.empty((2, 0))]
    rows = flatten_rows(arrays, np.float32)
    assert rows.dtype == np.float32
    assert_array_equal(rows, [[0, 1, 2, 0.5, 1], [3, 4, 5, 2, 3]])


def test_flat_rows_of_one_array_are_a_copy_unless_a_view_is_asked_for():
    array = np.zeros((4, 3), np.float32)
    assert not np.shares_memory(flatten_rows([array], np.float32), array)
    assert np.shares_memory(flatten_rows([array], np.float32, copy=False), array)
    columns = array.T
    assert flatten_rows([columns], np.float32, copy=False).flags.c_contiguous
