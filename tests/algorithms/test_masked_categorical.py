"""Masked categorical distributions: forbidden actions have no probability and no gradient."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hundredfold.algorithms.distributions import MaskedCategorical


def random_mask(rng, rows, action_nvec):
    """A mask with at least one allowed action per action dimension."""
    masks = []
    for count in action_nvec:
        mask = rng.random((rows, count)) < 0.4
        mask[np.arange(rows), rng.integers(0, count, rows)] = True
        masks.append(mask)
    return torch.from_numpy(np.concatenate(masks, axis=1))


def is_allowed(mask, actions, action_nvec):
    offsets = torch.tensor(np.cumsum((0, *action_nvec[:-1])))
    return mask.gather(1, actions + offsets)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    action_nvec=st.sampled_from([(2,), (16,), (3, 2), (5, 1, 4)]),
    scale=st.sampled_from([0.0, 1.0, 50.0]),
)
def test_samples_and_modes_are_always_allowed(seed, action_nvec, scale):
    rng = np.random.default_rng(seed)
    rows = 200
    logits = torch.from_numpy(scale * rng.normal(size=(rows, sum(action_nvec)))).float()
    mask = random_mask(rng, rows, action_nvec)
    distribution = MaskedCategorical(logits, mask, action_nvec)
    uniforms = torch.from_numpy(rng.random((rows, len(action_nvec)))).float()
    uniforms[0], uniforms[1] = 0.0, 1.0  # the ends of the range, where rounding could fail
    assert is_allowed(mask, distribution.sample(uniforms), action_nvec).all()
    assert is_allowed(mask, distribution.mode(), action_nvec).all()


def test_a_million_masked_samples_contain_no_forbidden_action():
    rng = np.random.default_rng(0)
    rows, action_nvec = 100_000, (16,)
    for _ in range(10):
        logits = torch.from_numpy(5 * rng.normal(size=(rows, 16))).float()
        mask = random_mask(rng, rows, action_nvec)
        uniforms = torch.from_numpy(rng.random((rows, 1))).float()
        actions = MaskedCategorical(logits, mask, action_nvec).sample(uniforms)
        assert is_allowed(mask, actions, action_nvec).all()


def test_sample_frequencies_match_probabilities():
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).repeat(200_000, 1)
    mask = torch.tensor([[True, True, False, True]]).repeat(200_000, 1)
    uniforms = torch.from_numpy(np.random.default_rng(1).random((200_000, 1))).float()
    actions = MaskedCategorical(logits, mask, (4,)).sample(uniforms)
    frequencies = torch.bincount(actions[:, 0], minlength=4) / len(actions)
    weights = torch.tensor([1.0, np.e, 0.0, np.e**3])
    assert torch.allclose(frequencies, weights / weights.sum(), atol=0.005)


def test_log_prob_and_entropy_equal_torch_categorical_over_allowed_actions():
    logits = torch.tensor([[0.3, -0.7, 9.0, 1.1]])
    mask = torch.tensor([[True, True, False, True]])
    plain = torch.distributions.Categorical(logits=logits[:, [0, 1, 3]])
    distribution = MaskedCategorical(logits, mask, (4,))
    assert torch.allclose(distribution.log_prob(torch.tensor([[3]])), plain.log_prob(torch.tensor(2)))
    assert torch.allclose(distribution.entropy(), plain.entropy())


def test_log_prob_and_entropy_sum_over_action_dimensions():
    logits = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
    distribution = MaskedCategorical(logits, None, (3, 2))
    one = torch.distributions.Categorical(logits=logits[:, :3])
    two = torch.distributions.Categorical(logits=logits[:, 3:])
    actions = torch.tensor([[0, 1], [1, 0], [2, 1], [0, 0], [1, 1]])
    expected = one.log_prob(actions[:, 0]) + two.log_prob(actions[:, 1])
    assert torch.allclose(distribution.log_prob(actions), expected)
    assert torch.allclose(distribution.entropy(), one.entropy() + two.entropy())


def test_no_gradient_reaches_a_forbidden_logit():
    logits = torch.zeros(1, 3, requires_grad=True)
    mask = torch.tensor([[True, False, True]])
    distribution = MaskedCategorical(logits, mask, (3,))
    (distribution.log_prob(torch.tensor([[0]])) + distribution.entropy()).sum().backward()
    assert logits.grad[0, 1] == 0
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 0] != 0
