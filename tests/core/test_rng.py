"""Random number generator: equal in numpy, Numba and Python, and statistically sound."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from hundredfold.core import numba_kernels, rng

BITS = st.integers(0, 2**64 - 1)
ANY_SEED = st.integers(-(2**100), 2**100)
MODULUS = 2**64

# No deadline, because the first call compiles; every run tries the same examples.
repeatable = settings(deadline=None, derandomize=True)

# Seeds are fixed, so results never vary between runs; limits are about five sigma.
SIGMAS = 5.0


def chi_square_sigmas(observed):
    """How many sigmas the chi-square statistic of uniform counts lies above its mean."""
    expected = observed.sum() / observed.size
    freedom = observed.size - 1
    return (((observed - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


def correlation_sigmas(one, other):
    """How far the correlation of two equally long samples lies from 0, in sigmas."""
    return np.corrcoef(one.ravel(), other.ravel())[0, 1] * np.sqrt(one.size)


def reference_bits(key, count):
    """The definition in Python integers, which do not overflow."""

    def mixed(bits):
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % MODULUS
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % MODULUS
        return bits ^ bits >> 31

    return mixed(mixed((count + 1) * 0x9E3779B97F4A7C15 % MODULUS) ^ key)


# --- equal implementations


@repeatable
@given(key=BITS, count=BITS)
def test_numpy_follows_the_definition(key, count):
    assert int(rng.random_bits_array(np.uint64(key), np.uint64(count))) == reference_bits(key, count)


@repeatable
@given(key=BITS, count=BITS)
def test_numba_draws_are_bit_identical(key, count):
    key, count = np.uint64(key), np.uint64(count)
    assert numba_kernels.random_bits(key, count) == rng.random_bits_array(key, count)
    assert numba_kernels.uniform(key, count) == rng.uniforms(key, count)


@repeatable
@given(key=BITS, count=BITS, below=st.integers(1, 2**53))
def test_numba_draws_the_same_integers(key, count, below):
    key, count = np.uint64(key), np.uint64(count)
    assert numba_kernels.integer(key, count, below) == rng.integers(key, count, below)


@repeatable
@given(key=BITS, index=st.integers(-(2**63), 2**63 - 1))
def test_numba_spawns_the_same_keys_also_for_negative_indices(key, index):
    assert numba_kernels.spawn(np.uint64(key), np.int64(index)) == rng.spawn(np.uint64(key), index)


@repeatable
@given(keys=st.lists(BITS, min_size=1, max_size=9), counts=st.lists(BITS, min_size=1, max_size=5))
def test_broadcast_draws_equal_single_draws(keys, counts):
    table = rng.random_bits_array(np.array(keys, np.uint64)[:, None], np.array(counts, np.uint64))
    assert table.shape == (len(keys), len(counts))
    assert table.tolist() == [[reference_bits(key, count) for count in counts] for key in keys]


def test_draws_match_recorded_values():
    # Saved runs rely on these numbers: if they change, old runs cannot be resumed.
    assert rng.random_bits_array(np.uint64(1), [0, 1, 2]).tolist() == [
        11385487063155714807,
        658006869215568080,
        12570163593899035840,
    ]
    assert rng.stream_keys(42, [0, 1], [0, 3]).tolist() == [15695729488936758074, 9237016960815370613]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 17, 64])
def test_normals_do_not_depend_on_how_many_are_drawn_together(size):
    keys = rng.spawn(rng.seed_key(5), np.arange(64))
    together = rng.normals(keys, 3)
    for start in range(0, 64 - size + 1, size):
        cut = slice(start, start + size)
        assert_array_equal(rng.normals(keys[cut], 3), together[cut])
    assert rng.normals(keys[7], 3) == together[7]


def test_shapes_follow_broadcasting_and_scalars_stay_scalar():
    key = rng.seed_key(1)
    assert key.shape == ()
    assert rng.uniforms(key, 0).shape == ()
    assert rng.uniforms(key, np.arange(3)).shape == (3,)
    assert rng.integers(np.arange(4)[:, None], np.arange(3), below=7).shape == (4, 3)
    assert rng.normals(np.arange(0), 0).shape == (0,)


def test_overflow_raises_no_warning():
    with np.errstate(all="raise"):
        rng.random_bits_array(np.uint64(MODULUS - 1), np.uint64(MODULUS - 1))
        rng.stream_keys(-1, np.array([-1]), 2**63 - 1)


# --- seeds and spawned keys


@repeatable
@given(seed=ANY_SEED)
def test_any_integer_is_a_seed(seed):
    keys = rng.stream_keys(seed, np.arange(3), 0)
    assert keys.dtype == np.uint64
    assert len(set(keys.tolist())) == 3
    assert_array_equal(keys, rng.stream_keys(seed, np.arange(3), 0))


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint64])
def test_numpy_integers_are_the_same_seeds_as_python_integers(kind):
    assert rng.seed_key(kind(7)) == rng.seed_key(7)


def test_neighbouring_negative_and_huge_seeds_have_distinct_keys():
    seeds = [*range(-500, 500), 2**31, 2**32, 2**63 - 1, -(2**63)]
    assert len({int(rng.seed_key(seed)) for seed in seeds}) == len(seeds)


def test_every_env_and_episode_has_its_own_key():
    keys = rng.stream_keys(3, np.arange(300)[:, None], np.arange(300))
    assert len(np.unique(keys)) == 300 * 300


def test_env_and_episode_are_not_interchangeable():
    assert rng.stream_keys(3, 1, 2) != rng.stream_keys(3, 2, 1)


def test_the_key_of_an_episode_is_spawned_from_the_key_of_its_env():
    env_key = rng.spawn(rng.seed_key(9), 4)
    assert rng.stream_keys(9, 4, 11) == rng.spawn(env_key, 11)


def test_spawned_keys_are_not_draws_of_the_parent():
    parent = rng.seed_key(8)
    children = rng.spawn(parent, np.arange(100_000))
    draws = rng.random_bits_array(parent, np.arange(100_000))
    assert not np.intersect1d(children, draws).size
    same_bits = np.bitwise_count(~(children ^ draws))
    assert abs(same_bits.mean() - 32) < SIGMAS * 4 / np.sqrt(len(draws))


def test_spawned_streams_are_uncorrelated_with_parent_and_siblings():
    parent = rng.seed_key(8)
    counts = np.arange(20_000)
    parents, first, second = (rng.uniforms(key, counts) for key in (parent, rng.spawn(parent, 0), rng.spawn(parent, 1)))
    for one, other in ((parents, first), (parents, second), (first, second)):
        assert abs(correlation_sigmas(one, other)) < SIGMAS


# --- statistics


@repeatable
@given(key=BITS, count=BITS)
def test_uniforms_lie_in_the_half_open_unit_interval(key, count):
    number = float(rng.uniforms(np.uint64(key), np.uint64(count)))
    assert 0.0 <= number < 1.0
    assert number == (reference_bits(key, count) >> 11) / 2**53


@pytest.mark.parametrize("seed", [0, 1, -7, 2**80])
def test_uniforms_of_one_stream_fill_their_range_evenly(seed):
    numbers = rng.uniforms(rng.stream_keys(seed, 0, 0), np.arange(200_000))
    assert abs(chi_square_sigmas(np.histogram(numbers, 100, (0, 1))[0])) < SIGMAS
    assert abs(numbers.mean() - 0.5) < SIGMAS * np.sqrt(1 / 12 / numbers.size)
    assert abs(numbers.var() - 1 / 12) < SIGMAS * np.sqrt(1 / 180 / numbers.size)


TABLES = {
    "seeds": lambda: np.array([rng.stream_keys(seed, 0, 0) for seed in range(-1000, 1000)]),
    "envs": lambda: rng.stream_keys(11, np.arange(2000), 0),
    "episodes": lambda: rng.stream_keys(11, 5, np.arange(2000)),
}


@pytest.mark.parametrize("neighbours", TABLES)
def test_neighbouring_streams_are_independent(neighbours):
    numbers = rng.uniforms(TABLES[neighbours]()[:, None], np.arange(50))
    assert abs(chi_square_sigmas(np.histogram(numbers[:, 0], 40, (0, 1))[0])) < SIGMAS
    for lag in (1, 2, 8):
        assert abs(correlation_sigmas(numbers[lag:], numbers[:-lag])) < SIGMAS
        # And at other offsets, in case neighbouring streams are shifted copies.
        assert abs(correlation_sigmas(numbers[lag:, 1:], numbers[:-lag, :-1])) < SIGMAS
    pairs = np.histogram2d(numbers[1:].ravel(), numbers[:-1].ravel(), 16, [(0, 1)] * 2)[0]
    assert abs(chi_square_sigmas(pairs)) < SIGMAS


def test_successive_draws_are_independent():
    numbers = rng.uniforms(rng.stream_keys(2, np.arange(200)[:, None], 0), np.arange(1000))
    for lag in (1, 2, 3, 64):
        assert abs(correlation_sigmas(numbers[:, lag:], numbers[:, :-lag])) < SIGMAS
    pairs = np.histogram2d(numbers[:, 1:].ravel(), numbers[:, :-1].ravel(), 20, [(0, 1)] * 2)[0]
    assert abs(chi_square_sigmas(pairs)) < SIGMAS


def test_every_bit_is_one_half_of_the_time():
    drawn = rng.random_bits_array(rng.stream_keys(6, 0, 0), np.arange(100_000))
    ones = [int((drawn >> np.uint64(bit) & np.uint64(1)).sum()) for bit in range(64)]
    assert np.abs(np.array(ones) - 50_000).max() < SIGMAS * np.sqrt(100_000) / 2


@pytest.mark.parametrize("flipped", ["key", "count"])
def test_one_flipped_bit_flips_half_of_the_output_bits(flipped):
    key, counts = rng.seed_key(3), np.arange(2000, dtype=np.uint64)
    straight = rng.random_bits_array(key, counts)
    for bit in range(64):
        flip = np.uint64(1) << np.uint64(bit)
        other = (
            rng.random_bits_array(key ^ flip, counts) if flipped == "key" else rng.random_bits_array(key, counts ^ flip)
        )
        changed = np.bitwise_count(straight ^ other)
        assert abs(changed.mean() - 32) < 0.9, bit


@pytest.mark.parametrize("below", [1, 2, 3, 7, 10, 145])
def test_integers_are_uniform(below):
    numbers = rng.integers(rng.stream_keys(4, 0, 0), np.arange(100_000), below)
    assert numbers.dtype == np.int64
    assert (numbers.min(), numbers.max()) == (0, below - 1)
    if below > 1:
        assert abs(chi_square_sigmas(np.bincount(numbers, minlength=below))) < SIGMAS


@repeatable
@given(key=BITS, count=BITS, below=st.integers(1, 2**53))
def test_integers_stay_below_the_bound_for_huge_ranges(key, count, below):
    assert 0 <= int(rng.integers(np.uint64(key), np.uint64(count), below)) < below


def test_integers_take_a_bound_per_draw():
    below = np.arange(1, 1001)
    numbers = rng.integers(rng.stream_keys(4, 0, 0), np.arange(1000), below)
    assert (numbers < below).all()
    assert (numbers >= 0).all()
    assert numbers.max() > 800


def test_normals_have_the_moments_of_the_standard_normal():
    numbers = rng.normals(rng.stream_keys(12, np.arange(200)[:, None], 0), np.arange(1000))
    size = numbers.size
    assert np.isfinite(numbers).all()
    assert abs(numbers.mean()) < SIGMAS / np.sqrt(size)
    assert abs(numbers.var() - 1) < SIGMAS * np.sqrt(2 / size)
    assert abs((numbers**3).mean()) < SIGMAS * np.sqrt(15 / size)
    assert abs((numbers**4).mean() - 3) < SIGMAS * np.sqrt(96 / size)
    assert abs((np.abs(numbers) < 1.0).mean() - 0.682689) < SIGMAS * np.sqrt(0.217 / size)
    assert abs((np.abs(numbers) < 1.959964).mean() - 0.95) < SIGMAS * np.sqrt(0.0475 / size)


def test_neighbouring_normals_share_no_uniforms():
    numbers = rng.normals(rng.stream_keys(12, np.arange(50)[:, None], 0), np.arange(1000))
    for power in (1, 2):
        powers = numbers**power
        assert abs(correlation_sigmas(powers[:, 1:], powers[:, :-1])) < SIGMAS


def test_spawn_one_equals_spawn():
    keys = rng.random_bits_array(np.arange(50), np.arange(50)).tolist()
    for index, key in enumerate(keys):
        assert rng.spawn_one(key, index * 7) == int(rng.spawn(np.uint64(key), index * 7))
