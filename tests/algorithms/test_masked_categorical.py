"""A forbidden action has no probability, gradient or luck."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hundredfold.algorithms.distributions import MaskedCategorical


def random_mask(draw, rows, choices):
    """At least one allowed choice per part."""
    parts = []
    for count in choices:
        part = draw.random((rows, count)) < 0.4
        part[np.arange(rows), draw.integers(0, count, rows)] = True
        parts.append(part)
    return torch.from_numpy(np.concatenate(parts, axis=1))


def allowed(mask, actions, choices):
    offsets = torch.tensor(np.cumsum((0, *choices[:-1])))
    return mask.gather(1, actions + offsets)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    choices=st.sampled_from([(2,), (16,), (3, 2), (5, 1, 4)]),
    scale=st.sampled_from([0.0, 1.0, 50.0]),
)
def test_samples_and_best_actions_are_always_allowed(seed, choices, scale):
    draw = np.random.default_rng(seed)
    rows = 200
    logits = torch.from_numpy(scale * draw.normal(size=(rows, sum(choices)))).float()
    mask = random_mask(draw, rows, choices)
    options = MaskedCategorical(logits, mask, choices)
    luck = torch.from_numpy(draw.random((rows, len(choices)))).float()
    luck[0], luck[1] = 0.0, 1.0  # the ends of the range, where rounding could fall off
    assert allowed(mask, options.sample(luck), choices).all()
    assert allowed(mask, options.mode(), choices).all()


def test_a_million_masked_draws_hold_no_forbidden_one():
    draw = np.random.default_rng(0)
    rows, choices = 100_000, (16,)
    for _ in range(10):
        logits = torch.from_numpy(5 * draw.normal(size=(rows, 16))).float()
        mask = random_mask(draw, rows, choices)
        luck = torch.from_numpy(draw.random((rows, 1))).float()
        actions = MaskedCategorical(logits, mask, choices).sample(luck)
        assert allowed(mask, actions, choices).all()


def test_samples_come_as_often_as_their_probability_says():
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).repeat(200_000, 1)
    mask = torch.tensor([[True, True, False, True]]).repeat(200_000, 1)
    luck = torch.from_numpy(np.random.default_rng(1).random((200_000, 1))).float()
    actions = MaskedCategorical(logits, mask, (4,)).sample(luck)
    shares = torch.bincount(actions[:, 0], minlength=4) / len(actions)
    weights = torch.tensor([1.0, np.e, 0.0, np.e**3])
    assert torch.allclose(shares, weights / weights.sum(), atol=0.005)


def test_log_probabilities_and_entropy_are_those_of_the_allowed_part():
    logits = torch.tensor([[0.3, -0.7, 9.0, 1.1]])
    mask = torch.tensor([[True, True, False, True]])
    plain = torch.distributions.Categorical(logits=logits[:, [0, 1, 3]])
    options = MaskedCategorical(logits, mask, (4,))
    assert torch.allclose(options.log_prob(torch.tensor([[3]])), plain.log_prob(torch.tensor(2)))
    assert torch.allclose(options.entropy(), plain.entropy())


def test_parts_of_an_action_add_up():
    logits = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
    options = MaskedCategorical(logits, None, (3, 2))
    one = torch.distributions.Categorical(logits=logits[:, :3])
    two = torch.distributions.Categorical(logits=logits[:, 3:])
    actions = torch.tensor([[0, 1], [1, 0], [2, 1], [0, 0], [1, 1]])
    expected = one.log_prob(actions[:, 0]) + two.log_prob(actions[:, 1])
    assert torch.allclose(options.log_prob(actions), expected)
    assert torch.allclose(options.entropy(), one.entropy() + two.entropy())


def test_no_gradient_reaches_a_forbidden_logit():
    logits = torch.zeros(1, 3, requires_grad=True)
    mask = torch.tensor([[True, False, True]])
    options = MaskedCategorical(logits, mask, (3,))
    (options.log_prob(torch.tensor([[0]])) + options.entropy()).sum().backward()
    assert logits.grad[0, 1] == 0
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 0] != 0
