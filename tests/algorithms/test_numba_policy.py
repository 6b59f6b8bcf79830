"""The Numba policy for small batches samples the same actions as the torch policy."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from hundredfold.algorithms.actor_critic import ActorCritic, NetworkSettings
from hundredfold.algorithms.numba_policy import NumbaPolicy
from hundredfold.algorithms.policies import FEW_ROWS, NetworkPolicy
from hundredfold.core.batch import ArraySpec, EnvSpec

PLAIN = EnvSpec(
    name="plain",
    observation={"near": ArraySpec((2, 3), "float32"), "far": ArraySpec((), "int64")},
    action_nvec=(5,),
    has_mask=True,
)


def make_policy(spec=PLAIN, seed=0, **settings):
    torch.manual_seed(seed)
    network = ActorCritic(spec, NetworkSettings(hidden_sizes=(32, 16), **settings))
    with torch.no_grad():
        network.policy_head.weight *= 300  # a new policy is almost uniform
    return NetworkPolicy(network, torch.device("cpu"))


def random_rows(rows, seed=0):
    rng = np.random.default_rng(seed)
    observation = {"near": rng.normal(size=(rows, 2, 3)).astype(np.float32), "far": rng.integers(-3, 4, rows)}
    mask = rng.random((rows, 5)) < 0.6
    mask[np.arange(rows), rng.integers(0, 5, rows)] = True
    return observation, mask, rng.random((rows, 1))


def assert_same_sample(one, other):
    assert_array_equal(one.actions, other.actions)
    assert one.actions.dtype == other.actions.dtype
    assert one.log_probs.dtype == other.log_probs.dtype
    assert_allclose(one.log_probs, other.log_probs, atol=2e-6)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("rows", [1, 7, FEW_ROWS])
@pytest.mark.parametrize("masked", [True, False])
def test_numba_samples_equal_torch_samples(activation, rows, masked):
    policy = make_policy(activation=activation)
    for seed in range(20):
        observation, mask, uniforms = random_rows(rows, seed)
        mask = mask if masked else None
        compiled = policy.sample(observation, mask, uniforms)
        assert_same_sample(compiled, policy._sample(policy._distribution(observation, mask), uniforms))
    assert policy.numba_policy is not None


def test_a_sample_does_not_depend_on_other_rows():
    policy = make_policy(activation="tanh")
    observation, mask, uniforms = random_rows(FEW_ROWS)
    together = policy.sample(observation, mask, uniforms)
    for row in range(FEW_ROWS):
        only = slice(row, row + 1)
        observation_row = {name: array[only] for name, array in observation.items()}
        alone = policy.sample(observation_row, mask[only], uniforms[only])
        assert_array_equal(alone.actions, together.actions[only])
        assert_array_equal(alone.log_probs, together.log_probs[only])


def test_read_only_and_fortran_order_arrays_are_accepted():
    policy = make_policy()
    observation, mask, uniforms = random_rows(4)
    expected = policy.sample(observation, mask, uniforms)
    fortran_order = {name: np.asfortranarray(array) for name, array in observation.items()}
    for array in (*fortran_order.values(), mask, uniforms):
        array.flags.writeable = False
    assert_same_sample(policy.sample(fortran_order, mask, uniforms), expected)


@pytest.mark.parametrize("bias_shift", [0.0, 3e9])
def test_forbidden_actions_are_never_sampled_at_the_ends_of_the_uniform_range(bias_shift):
    policy = make_policy()
    with torch.no_grad():
        policy.network.policy_head.bias -= bias_shift
    observation, mask, _ = random_rows(FEW_ROWS)
    for uniform in (0.0, 1 - 1e-9, np.nextafter(1.0, 0.0)):
        sample = policy.sample(observation, mask, np.full((FEW_ROWS, 1), uniform))
        assert mask[np.arange(FEW_ROWS), sample.actions].all()
        assert np.isfinite(sample.log_probs).all()


def test_optimiser_steps_are_visible_to_the_kernel():
    policy = make_policy()
    observation, mask, uniforms = random_rows(8)
    before = policy.sample(observation, mask, uniforms)
    optimiser = torch.optim.Adam(policy.network.parameters(), lr=0.1, fused=True)
    tensors = {name: torch.from_numpy(array) for name, array in observation.items()}
    policy.network.logits(tensors)[:, 0].sum().backward()
    optimiser.step()
    after = policy.sample(observation, mask, uniforms)
    assert np.abs(after.log_probs - before.log_probs).max() > 0.01
    assert_same_sample(after, policy._sample(policy._distribution(observation, mask), uniforms))


@pytest.mark.parametrize("make_copy", [copy.copy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_a_copy_samples_from_its_own_weights(make_copy):
    policy, other = make_policy(seed=0), make_policy(seed=1)
    observation, mask, uniforms = random_rows(8)
    policy.sample(observation, mask, uniforms)
    twin = make_copy(policy)
    twin.network = other.network
    assert_same_sample(
        twin.sample(observation, mask, uniforms), other._sample(other._distribution(observation, mask), uniforms)
    )


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        (PLAIN, {"activation": "silu"}),
        (PLAIN, {"normalise_observations": True}),
        (replace(PLAIN, action_nvec=(2, 3)), {}),
        (replace(PLAIN, action_nvec=(), continuous_action=ArraySpec((2,), "float32", -1.0, 1.0)), {}),
        (replace(PLAIN, observation={"kind": ArraySpec((), "int64", 0, 3, categories=(4,))}), {}),
        (replace(PLAIN, observation={"image": ArraySpec((32, 32, 3), "uint8", 0, 255)}), {}),
    ],
    ids=["silu", "normalised", "two action dimensions", "box", "categories", "image"],
)
def test_unsupported_networks_are_left_to_torch(spec, settings):
    assert not NumbaPolicy.supports(make_policy(spec, **settings).network)
