"""Weight sync: the network is published once, weights every time."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from helpers.cases import ENV_CASES
from hundredfold.algorithms.actor_critic import ActorCritic, NetworkSettings
from hundredfold.algorithms.policies import NetworkPolicy
from hundredfold.algorithms.weights import network_arrays
from hundredfold.distributed.weight_sync import MAX_INLINE_BYTES, WeightPublisher, WeightReceiver

SPEC = ENV_CASES["corridor"](np.arange(1)).spec


def make_policy(seed, hidden_sizes=(8,)):
    torch.manual_seed(seed)
    return NetworkPolicy(ActorCritic(SPEC, NetworkSettings(hidden_sizes=hidden_sizes)), torch.device("cpu"))


def weights_of(policy):
    return network_arrays(policy.network)


def sync(publisher, receiver, policy, weights=None):
    payload = publisher.payload(policy, weights_of(policy) if weights is None else weights)
    return receiver.load(*payload)


def assert_same_weights(policy, other):
    expected = weights_of(other)
    for name, array in weights_of(policy).items():
        assert_array_equal(array, expected[name], err_msg=name)


def test_receiver_reuses_its_policy_while_only_weights_change():
    publisher, receiver = WeightPublisher(pytest.fail), WeightReceiver()
    policy = make_policy(0)
    first = sync(publisher, receiver, policy)
    with torch.no_grad():
        policy.network.policy_head.weight += 1
    second = sync(publisher, receiver, policy)
    assert second is first
    assert_same_weights(second, policy)


def test_received_policy_is_a_copy():
    policy = make_policy(0)
    received = sync(WeightPublisher(pytest.fail), WeightReceiver(), policy)
    assert received.network is not policy.network


def test_weights_may_differ_from_those_of_the_policy():
    weights = weights_of(make_policy(1))
    received = sync(WeightPublisher(pytest.fail), WeightReceiver(), make_policy(0), weights)
    assert_same_weights(received, make_policy(1))


def test_another_network_replaces_the_policy():
    publisher, receiver = WeightPublisher(pytest.fail), WeightReceiver()
    sync(publisher, receiver, make_policy(0))
    other = make_policy(1, hidden_sizes=(4, 4))
    assert_same_weights(sync(publisher, receiver, other), other)


def test_large_payloads_go_to_the_object_store_and_the_network_only_once():
    stored = []

    def put(packed):
        stored.append(packed)
        return packed

    publisher, receiver = WeightPublisher(put), WeightReceiver()
    policy = make_policy(0, hidden_sizes=(200, 200))
    for _ in range(3):
        assert_same_weights(sync(publisher, receiver, policy), policy)
    assert len(stored) == 1 + 3
    assert min(map(len, stored)) > MAX_INLINE_BYTES
