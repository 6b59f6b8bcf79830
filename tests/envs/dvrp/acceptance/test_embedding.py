"""EmbeddingTypeModel: gradients, Adam steps, accuracy, minimum data, checkpoints."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch.nn import functional as F

from helpers.offers import OFFER_MINUTES
from helpers.responses import simulate_responses
from hundredfold.envs.dvrp.acceptance import metrics
from hundredfold.envs.dvrp.acceptance.embedding import (
    BATCH_SIZE,
    NUM_PATTERNS,
    EmbeddingNetwork,
    EmbeddingTypeModel,
    compatible_types,
    init_weights,
    response_patterns,
)
from hundredfold.envs.dvrp.acceptance.model import ResponseBuffer, Responses
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.offers import DEFAULT_OFFERS
from hundredfold.envs.dvrp.population import FLEXIBLE_SIDES, NUM_TYPES
from hundredfold.envs.dvrp.settings import DvrpSettings

HARD = DvrpSettings(tolerances="types")
CPU = torch.device("cpu")


def plain_loss(weights, customers, offers, accepted):
    """The loss from its definition, one row per response."""
    hidden = torch.tanh(F.linear(weights["embeddings"][customers], weights["weight_1"], weights["bias_1"]))
    hidden = torch.tanh(F.linear(hidden, weights["weight_2"], weights["bias_2"]))
    probs = torch.softmax(F.linear(hidden, weights["weight_3"], weights["bias_3"]), dim=1)
    accepts = DEFAULT_OFFERS.tolerated(np.where(FLEXIBLE_SIDES, 30.0, 0.0))[:, offers].T
    compatible = torch.from_numpy((accepts == accepted[:, None]).astype(np.float32))
    targets = probs * compatible
    targets = (targets / targets.sum(dim=1, keepdim=True)).detach()
    variance = weights["embeddings"].var(dim=0)
    variance_penalty = ((variance / variance.mean() - 1) ** 2).sum()
    entropy = -(probs * probs.log()).sum(dim=1).mean()
    return -(targets * probs.log()).sum(dim=1).mean() + 0.4 * variance_penalty - 0.05 * entropy


def random_responses(num_customers, number, seed):
    rng = np.random.default_rng(seed)
    offers = rng.choice(np.delete(np.arange(16), 12), number)
    return rng.integers(num_customers, size=number), offers, rng.random(number) < 0.4


def network(num_customers, seed=3):
    return EmbeddingNetwork(init_weights(num_customers, torch.Generator().manual_seed(seed)), CPU)


@pytest.mark.parametrize("num_customers", [30, 200], ids=["few customers", "many customers"])
def test_gradient_agrees_with_autograd(num_customers):
    customers, offers, accepted = random_responses(num_customers, BATCH_SIZE, seed=1)
    trained = network(num_customers)
    weights = {name: w.clone().requires_grad_() for name, w in trained.weights.items()}
    loss = plain_loss(weights, customers, offers, accepted)
    loss.backward()
    norm = torch.sqrt(sum((w.grad**2).sum() for w in weights.values()))
    codes = torch.from_numpy(customers * NUM_PATTERNS + response_patterns(DEFAULT_OFFERS, offers, accepted))
    trained.epoch(codes)
    for name, tensor in weights.items():
        expected = tensor.grad * min(1.0, 1.0 / float(norm))
        assert_allclose(trained.gradients[name], expected, rtol=1e-4, atol=1e-6)


def test_loss_terms_add_up_to_the_loss():
    customers, offers, accepted = random_responses(12, 40, seed=2)
    trained = network(12)
    cells = torch.from_numpy(customers * NUM_PATTERNS + response_patterns(DEFAULT_OFFERS, offers, accepted))
    counts = torch.bincount(cells, minlength=12 * NUM_PATTERNS).reshape(12, -1) / 40
    expected = plain_loss(trained.weights, customers, offers, accepted)
    assert trained.losses(counts).loss == pytest.approx(float(expected), rel=1e-5)


def test_steps_agree_with_torch_adam_and_gradient_clipping():
    customers, offers, accepted = random_responses(30, 10 * BATCH_SIZE + 7, seed=4)
    trained = network(30)
    weights = {name: w.clone().requires_grad_() for name, w in trained.weights.items()}
    optimiser = torch.optim.Adam(weights.values(), lr=1e-3)
    for first in range(0, len(customers), BATCH_SIZE):
        rows = slice(first, first + BATCH_SIZE)
        optimiser.zero_grad()
        plain_loss(weights, customers[rows], offers[rows], accepted[rows]).backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimiser.step()
    trained.epoch(torch.from_numpy(customers * NUM_PATTERNS + response_patterns(DEFAULT_OFFERS, offers, accepted)))
    assert trained.steps == 11
    for name, tensor in weights.items():
        assert_allclose(trained.weights[name], tensor.detach(), atol=2e-5)


def test_patterns_have_the_compatible_types_of_their_offers():
    accepts = DEFAULT_OFFERS.tolerated(np.where(FLEXIBLE_SIDES, 30.0, 0.0))
    compatible = compatible_types()
    for offer in np.flatnonzero(OFFER_MINUTES.sum(axis=1)):
        for response in (False, True):
            (pattern,) = response_patterns(DEFAULT_OFFERS, np.array([offer]), np.array([response]))
            assert_array_equal(compatible[pattern], accepts[:, offer] == response)


def test_strict_types_are_identified():
    population, responses = population_for(HARD), simulate_responses(HARD, days=60)
    model = EmbeddingTypeModel(population.size, 10, seed=5, epochs=12)
    losses = model.refit(responses)
    known = np.unique(responses.customer)
    assert metrics.accuracy(model.type_probabilities(known), population.customers.types[known]) == 1.0
    assert losses["acceptance/loss"] < losses["acceptance/first_loss"]
    terms = (losses["acceptance/reconstruction"], losses["acceptance/variance_penalty"])
    assert losses["acceptance/loss"] == pytest.approx(terms[0] + 0.4 * terms[1] - 0.05 * losses["acceptance/entropy"])


def test_ready_needs_enough_customers_responses_and_offers():
    model = EmbeddingTypeModel(6, 10, seed=0, epochs=1)

    def rows(customers, offers):
        responses = ResponseBuffer()
        customers, offers = np.array(customers), np.array(offers)
        responses.add(customers, np.zeros_like(customers), np.zeros_like(customers), offers, customers > 0)
        return responses.rows()

    assert not model.ready(rows([0, 0, 0], [1, 2, 3]))
    assert not model.ready(rows([0, 0, 0, 1, 1], [1, 2, 3, 1, 2]))
    assert not model.ready(rows([0, 0, 0, 1, 1, 1], [1, 2, 1, 2, 1, 2]))
    assert not model.ready(rows([0, 0, 0, 1, 1, 1, 2], [1, 2, 1, 2, 1, 2, 3]))
    assert model.ready(rows([0, 0, 0, 1, 1, 1], [1, 2, 3, 1, 2, 3]))


def test_customers_with_few_responses_get_the_mean_belief():
    responses = simulate_responses(HARD, days=20)
    few = np.flatnonzero(responses.customer == responses.customer[0])[2:]
    others = np.delete(np.arange(len(responses)), few)
    rows = Responses(*(array[others] for array in responses.arrays().values()))
    model = EmbeddingTypeModel(60, 10, seed=0, epochs=1)
    before = model.weights["embeddings"].copy()
    model.refit(rows)
    left_out = int(responses.customer[0])
    trained = np.setdiff1d(np.unique(rows.customer), left_out)
    mean = model.type_probabilities(trained).mean(axis=0)
    assert_allclose(model.type_probabilities(np.array([left_out, 59])), [mean, mean], atol=1e-6)
    assert_array_equal(model.weights["embeddings"][left_out], before[left_out])
    assert (model.weights["embeddings"][trained] != before[trained]).any(axis=1).all()


def test_refits_are_deterministic_and_resume_from_a_checkpoint():
    first, second = (EmbeddingTypeModel(60, 10, seed=8, epochs=2) for _ in range(2))
    other = EmbeddingTypeModel(60, 10, seed=9, epochs=2)
    days = [simulate_responses(HARD, days=20, seed=seed) for seed in (1, 2)]
    first.refit(days[0])
    other.restore(first.state())
    other.key = first.key  # the seed is a setting; the checkpoint holds the weights
    first.refit(days[1])
    other.refit(days[1])
    second.refit(days[0])
    second.refit(days[1])
    for name, array in first.state().items():
        assert_array_equal(second.state()[name], array)
        assert_array_equal(other.state()[name], array)
    assert int(first.refits) == 2


def test_a_stopped_refit_changes_nothing():
    model = EmbeddingTypeModel(60, 10, seed=0, epochs=3)
    before = model.state()
    assert model.refit(simulate_responses(HARD, days=10), should_stop=lambda: True) == {}
    assert_array_equal(model.state()["embeddings"], before["embeddings"])
    assert_array_equal(model.beliefs, np.full((60, NUM_TYPES), 0.25))
