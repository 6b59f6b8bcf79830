"""The network acceptance model: its gradient, its steps, what it learns and when it waits."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch.nn import functional as F

from helpers.asking import asked
from hundredfold.envs.dvrp.acceptance import metrics
from hundredfold.envs.dvrp.acceptance.embedding import (
    BATCH,
    NUM_PATTERNS,
    Descent,
    Embedding,
    first_weights,
    patterns,
    possible_types,
)
from hundredfold.envs.dvrp.acceptance.responses import ResponseBuffer, Responses
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.offers import OFFER_MINUTES, tolerated_offers
from hundredfold.envs.dvrp.population import FLEXIBLE_SIDES, NUM_TYPES
from hundredfold.envs.dvrp.settings import DvrpSettings

HARD = DvrpSettings(tolerances="types")
CPU = torch.device("cpu")


def plain_loss(weights, people, offers, accepted):
    """The loss as it is written down, one row per answer."""
    hidden = torch.tanh(F.linear(weights["table"][people], weights["weight_1"], weights["bias_1"]))
    hidden = torch.tanh(F.linear(hidden, weights["weight_2"], weights["bias_2"]))
    odds = torch.softmax(F.linear(hidden, weights["weight_3"], weights["bias_3"]), dim=1)
    accepts = tolerated_offers(np.where(FLEXIBLE_SIDES, 30.0, 0.0))[:, offers].T
    would_say_so = torch.from_numpy((accepts == accepted[:, None]).astype(np.float32))
    taught = odds * would_say_so
    taught = (taught / taught.sum(dim=1, keepdim=True)).detach()
    variance = weights["table"].var(dim=0)
    evenness = ((variance / variance.mean() - 1) ** 2).sum()
    entropy = -(odds * odds.log()).sum(dim=1).mean()
    return -(taught * odds.log()).sum(dim=1).mean() + 0.4 * evenness - 0.05 * entropy


def random_answers(num_people, number, seed):
    rng = np.random.default_rng(seed)
    offers = rng.choice(np.delete(np.arange(16), 12), number)
    return rng.integers(num_people, size=number), offers, rng.random(number) < 0.4


def network(num_people, seed=3):
    return Descent(first_weights(num_people, torch.Generator().manual_seed(seed)), CPU)


@pytest.mark.parametrize("num_people", [30, 200], ids=["few people", "many people"])
def test_the_written_gradient_is_that_of_the_loss(num_people):
    people, offers, accepted = random_answers(num_people, BATCH, seed=1)
    descent = network(num_people)
    weights = {name: w.clone().requires_grad_() for name, w in descent.weights.items()}
    loss = plain_loss(weights, people, offers, accepted)
    loss.backward()
    norm = torch.sqrt(sum((w.grad**2).sum() for w in weights.values()))
    questions = torch.from_numpy(people * NUM_PATTERNS + patterns(offers, accepted))
    descent.epoch(questions)
    for name, tensor in weights.items():
        expected = tensor.grad * min(1.0, 1.0 / float(norm))
        assert_allclose(descent.gradients[name], expected, rtol=1e-4, atol=1e-6)


def test_the_reported_parts_add_up_to_the_loss():
    people, offers, accepted = random_answers(12, 40, seed=2)
    descent = network(12)
    cells = torch.from_numpy(people * NUM_PATTERNS + patterns(offers, accepted))
    counts = torch.bincount(cells, minlength=12 * NUM_PATTERNS).reshape(12, -1) / 40
    expected = plain_loss(descent.weights, people, offers, accepted)
    assert descent.losses(counts).loss == pytest.approx(float(expected), rel=1e-5)


def test_steps_are_those_of_adam_with_a_clipped_gradient():
    people, offers, accepted = random_answers(30, 10 * BATCH + 7, seed=4)
    descent = network(30)
    weights = {name: w.clone().requires_grad_() for name, w in descent.weights.items()}
    optimiser = torch.optim.Adam(weights.values(), lr=1e-3)
    for first in range(0, len(people), BATCH):
        cut = slice(first, first + BATCH)
        optimiser.zero_grad()
        plain_loss(weights, people[cut], offers[cut], accepted[cut]).backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimiser.step()
    descent.epoch(torch.from_numpy(people * NUM_PATTERNS + patterns(offers, accepted)))
    assert descent.steps == 11
    for name, tensor in weights.items():
        assert_allclose(descent.weights[name], tensor.detach(), atol=2e-5)


def test_every_real_offer_has_its_pattern():
    accepts = tolerated_offers(np.where(FLEXIBLE_SIDES, 30.0, 0.0))
    possible = possible_types()
    for offer in np.flatnonzero(OFFER_MINUTES.sum(axis=1)):
        for answer in (False, True):
            (pattern,) = patterns(np.array([offer]), np.array([answer]))
            assert_array_equal(possible[pattern], accepts[:, offer] == answer)


def test_strict_types_are_found():
    population, answers = population_for(HARD), asked(HARD, days=60)
    model = Embedding(population.size, 10, seed=5, epochs=12)
    losses = model.refit(answers)
    heard = np.unique(answers.person)
    assert (
        metrics.accuracy(model.type_probabilities(heard), population.customers.types[heard]) == 1.0
    )
    assert losses["acceptance/loss"] < losses["acceptance/first_loss"]
    sides = (losses["acceptance/reconstruction"], losses["acceptance/evenness"])
    assert losses["acceptance/loss"] == pytest.approx(
        sides[0] + 0.4 * sides[1] - 0.05 * losses["acceptance/entropy"]
    )


def test_it_waits_for_enough_people_answers_and_offers():
    model = Embedding(6, 10, seed=0, epochs=1)

    def rows(people, offers):
        answers = ResponseBuffer()
        people, offers = np.array(people), np.array(offers)
        answers.add(people, np.zeros_like(people), offers, people > 0)
        return answers.rows()

    assert not model.ready(rows([0, 0, 0], [1, 2, 3]))
    assert not model.ready(rows([0, 0, 0, 1, 1], [1, 2, 3, 1, 2]))
    assert not model.ready(rows([0, 0, 0, 1, 1, 1], [1, 2, 1, 2, 1, 2]))
    assert not model.ready(rows([0, 0, 0, 1, 1, 1, 2], [1, 2, 1, 2, 1, 2, 3]))
    assert model.ready(rows([0, 0, 0, 1, 1, 1], [1, 2, 3, 1, 2, 3]))


def test_people_with_few_answers_are_believed_to_be_like_the_others():
    answers = asked(HARD, days=20)
    few = np.flatnonzero(answers.person == answers.person[0])[2:]
    kept = np.delete(np.arange(len(answers)), few)
    rows = Responses(*(array[kept] for array in answers.arrays().values()))
    model = Embedding(60, 10, seed=0, epochs=1)
    before = model.weights["table"].copy()
    model.refit(rows)
    left_out = int(answers.person[0])
    taught = np.setdiff1d(np.unique(rows.person), left_out)
    mean = model.type_probabilities(taught).mean(axis=0)
    assert_allclose(model.type_probabilities(np.array([left_out, 59])), [mean, mean], atol=1e-6)
    assert_array_equal(model.weights["table"][left_out], before[left_out])
    assert (model.weights["table"][taught] != before[taught]).any(axis=1).all()


def test_the_same_seed_learns_the_same_and_a_snapshot_goes_on():
    first, second = (Embedding(60, 10, seed=8, epochs=2) for _ in range(2))
    other = Embedding(60, 10, seed=9, epochs=2)
    days = [asked(HARD, days=20, seed=seed) for seed in (1, 2)]
    first.refit(days[0])
    other.restore(first.state())
    other.key = first.key  # the seed is a setting; the snapshot holds what was learned
    first.refit(days[1])
    other.refit(days[1])
    second.refit(days[0])
    second.refit(days[1])
    for name, array in first.state().items():
        assert_array_equal(second.state()[name], array)
        assert_array_equal(other.state()[name], array)
    assert int(first.refits) == 2


def test_a_stopped_refit_teaches_nothing():
    model = Embedding(60, 10, seed=0, epochs=3)
    before = model.state()
    assert model.refit(asked(HARD, days=10), stopped=lambda: True) == {}
    assert_array_equal(model.state()["table"], before["table"])
    assert_array_equal(model.beliefs, np.full((60, NUM_TYPES), 0.25))
