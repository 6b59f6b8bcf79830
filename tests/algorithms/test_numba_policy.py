"""Few rows are drawn in one kernel: the same actions as torch draws, from the same weights."""

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


def policy_of(spec=PLAIN, seed=0, **settings):
    torch.manual_seed(seed)
    network = ActorCritic(spec, NetworkSettings(hidden_sizes=(32, 16), **settings))
    with torch.no_grad():
        network.policy_head.weight *= 300  # beyond the shyness of a first policy
    return NetworkPolicy(network, torch.device("cpu"))


def some_rows(rows, seed=0):
    draw = np.random.default_rng(seed)
    observation = {
        "near": draw.normal(size=(rows, 2, 3)).astype(np.float32),
        "far": draw.integers(-3, 4, rows),
    }
    mask = draw.random((rows, 5)) < 0.6
    mask[np.arange(rows), draw.integers(0, 5, rows)] = True
    return observation, mask, draw.random((rows, 1))


def assert_same_choice(one, other):
    assert_array_equal(one.actions, other.actions)
    assert one.actions.dtype == other.actions.dtype
    assert one.log_probs.dtype == other.log_probs.dtype
    assert_allclose(one.log_probs, other.log_probs, atol=2e-6)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("rows", [1, 7, FEW_ROWS])
@pytest.mark.parametrize("masked", [True, False])
def test_few_rows_are_drawn_as_torch_draws_them(activation, rows, masked):
    policy = policy_of(activation=activation)
    for seed in range(20):
        observation, mask, luck = some_rows(rows, seed)
        mask = mask if masked else None
        compiled = policy.sample(observation, mask, luck)
        assert_same_choice(compiled, policy._sample(observation, mask, luck))
    assert policy.numba_policy is not None


def test_a_row_is_drawn_alone_as_in_any_company():
    policy = policy_of(activation="tanh")
    observation, mask, luck = some_rows(FEW_ROWS)
    together = policy.sample(observation, mask, luck)
    for row in range(FEW_ROWS):
        only = slice(row, row + 1)
        seen = {name: array[only] for name, array in observation.items()}
        alone = policy.sample(seen, mask[only], luck[only])
        assert_array_equal(alone.actions, together.actions[only])
        assert_array_equal(alone.log_probs, together.log_probs[only])


def test_rows_that_may_not_be_written_to_are_read():
    policy = policy_of()
    observation, mask, luck = some_rows(4)
    expected = policy.sample(observation, mask, luck)
    spread_out = {name: np.asfortranarray(array) for name, array in observation.items()}
    for array in (*spread_out.values(), mask, luck):
        array.flags.writeable = False
    assert_same_choice(policy.sample(spread_out, mask, luck), expected)


@pytest.mark.parametrize("lowered", [0.0, 3e9])
def test_a_forbidden_action_is_never_drawn_however_large_the_draw(lowered):
    policy = policy_of()
    with torch.no_grad():
        policy.network.policy_head.bias -= lowered
    observation, mask, _ = some_rows(FEW_ROWS)
    for luck in (0.0, 1 - 1e-9, np.nextafter(1.0, 0.0)):
        drawn = policy.sample(observation, mask, np.full((FEW_ROWS, 1), luck))
        assert mask[np.arange(FEW_ROWS), drawn.actions].all()
        assert np.isfinite(drawn.log_probs).all()


def test_what_an_optimiser_writes_is_seen():
    policy = policy_of()
    observation, mask, luck = some_rows(8)
    before = policy.sample(observation, mask, luck)
    optimiser = torch.optim.Adam(policy.network.parameters(), lr=0.1, fused=True)
    tensors = {name: torch.from_numpy(array) for name, array in observation.items()}
    policy.network.logits(tensors)[:, 0].sum().backward()
    optimiser.step()
    after = policy.sample(observation, mask, luck)
    assert np.abs(after.log_probs - before.log_probs).max() > 0.01
    assert_same_choice(after, policy._sample(observation, mask, luck))


@pytest.mark.parametrize("copied", [copy.copy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_draws_from_its_own_weights(copied):
    policy, other = policy_of(seed=0), policy_of(seed=1)
    observation, mask, luck = some_rows(8)
    policy.sample(observation, mask, luck)
    twin = copied(policy)
    twin.network = other.network
    assert_same_choice(twin.sample(observation, mask, luck), other._sample(observation, mask, luck))


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        (PLAIN, {"activation": "silu"}),
        (PLAIN, {"normalise_observations": True}),
        (replace(PLAIN, action_nvec=(2, 3)), {}),
        (
            replace(PLAIN, action_nvec=(), continuous_action=ArraySpec((2,), "float32", -1.0, 1.0)),
            {},
        ),
        (replace(PLAIN, observation={"kind": ArraySpec((), "int64", 0, 3, categories=(4,))}), {}),
        (replace(PLAIN, observation={"eye": ArraySpec((32, 32, 3), "uint8", 0, 255)}), {}),
    ],
    ids=["silu", "scaled", "two parts", "box", "categories", "picture"],
)
def test_what_is_not_simple_is_left_to_torch(spec, settings):
    assert not NumbaPolicy.supports(policy_of(spec, **settings).network)
