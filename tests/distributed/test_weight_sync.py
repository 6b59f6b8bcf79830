"""How a policy reaches the actors: whole the first time, as weights from then on."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from helpers.cases import ENV_CASES
from hundredfold.algorithms.actor_critic import ActorCritic, NetworkSettings
from hundredfold.algorithms.policies import NetworkPolicy
from hundredfold.algorithms.weights import network_arrays
from hundredfold.distributed.weight_sync import SMALL_BYTES, Pupil, Teacher

SPEC = ENV_CASES["corridor"](np.arange(1)).spec


def policy_of(seed, hidden_sizes=(8,)):
    torch.manual_seed(seed)
    return NetworkPolicy(
        ActorCritic(SPEC, NetworkSettings(hidden_sizes=hidden_sizes)), torch.device("cpu")
    )


def weights_of(policy):
    return network_arrays(policy.network)


def taught(teacher, pupil, policy, weights=None):
    lesson = teacher.lesson(policy, weights_of(policy) if weights is None else weights)
    return pupil.learn(*lesson)


def assert_same_weights(policy, other):
    expected = weights_of(other)
    for name, array in weights_of(policy).items():
        assert_array_equal(array, expected[name], err_msg=name)


def test_a_pupil_keeps_its_policy_while_only_weights_change():
    teacher, pupil, policy = Teacher(pytest.fail), Pupil(), policy_of(0)
    first = taught(teacher, pupil, policy)
    with torch.no_grad():
        policy.network.policy_head.weight += 1
    second = taught(teacher, pupil, policy)
    assert second is first
    assert_same_weights(second, policy)


def test_what_is_taught_is_a_copy():
    policy = policy_of(0)
    pupil = taught(Teacher(pytest.fail), Pupil(), policy)
    assert pupil.network is not policy.network


def test_weights_need_not_be_those_of_the_policy():
    found = taught(Teacher(pytest.fail), Pupil(), policy_of(0), weights_of(policy_of(1)))
    assert_same_weights(found, policy_of(1))


def test_another_network_is_another_policy():
    teacher, pupil = Teacher(pytest.fail), Pupil()
    taught(teacher, pupil, policy_of(0))
    other = policy_of(1, hidden_sizes=(4, 4))
    assert_same_weights(taught(teacher, pupil, other), other)


def test_what_is_large_is_laid_into_the_store_a_network_once():
    stored = []

    def put(packed):
        stored.append(packed)
        return packed

    teacher, pupil, policy = Teacher(put), Pupil(), policy_of(0, hidden_sizes=(200, 200))
    for _ in range(3):
        assert_same_weights(taught(teacher, pupil, policy), policy)
    assert len(stored) == 1 + 3
    assert min(map(len, stored)) > SMALL_BYTES
