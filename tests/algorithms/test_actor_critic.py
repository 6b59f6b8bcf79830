"""The actor-critic network: input features, observation and value normalisation, weights."""

import numpy as np
import pytest
import torch

from hundredfold.algorithms.actor_critic import ActorCritic, NetworkSettings, tensors
from hundredfold.algorithms.weights import load_network, network_arrays
from hundredfold.core.batch import ArraySpec, EnvSpec
from hundredfold.core.errors import CheckpointError, SettingsError

SPEC = EnvSpec(
    name="mixed",
    observation={
        "position": ArraySpec((2, 2)),
        "kind": ArraySpec((), "int64", 0, 2, categories=(3,)),
        "flags": ArraySpec((2,), "int8", 0, 1),
        "dice": ArraySpec((2,), "int64", categories=(6, 4)),
    },
    action_nvec=(3, 2),
)


def random_observation(rows, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "position": (50 + 10 * rng.normal(size=(rows, 2, 2))).astype(np.float32),
        "kind": rng.integers(0, 3, rows),
        "flags": rng.integers(0, 2, (rows, 2)).astype(np.int8),
        "dice": rng.integers(0, 4, (rows, 2)),
    }


def make_network(**settings):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return ActorCritic(SPEC, NetworkSettings(**settings))


def test_observation_arrays_are_concatenated_and_categories_one_hot_encoded():
    arrays = random_observation(5)
    row = make_network().inputs(tensors(arrays, torch.device("cpu"))).numpy()
    assert row.shape == (5, 4 + 3 + 2 + 10)
    assert np.array_equal(row[:, :4], arrays["position"].reshape(5, 4))
    assert np.array_equal(row[:, 4:7].argmax(axis=1), arrays["kind"])
    assert np.array_equal(row[:, 7:9], arrays["flags"])
    assert np.array_equal(row[:, 9:15].argmax(axis=1), arrays["dice"][:, 0])
    assert np.array_equal(row[:, 15:].argmax(axis=1), arrays["dice"][:, 1])


@pytest.mark.parametrize("shared", [False, True])
def test_logits_and_value_equal_the_separate_forward_passes(shared):
    net = make_network(shared=shared)
    observation = tensors(random_observation(7), torch.device("cpu"))
    logits, values = net.logits_and_value(observation)
    assert logits.shape == (7, 5)
    assert torch.allclose(logits, net.logits(observation))
    assert torch.allclose(values, net.normalised_value(observation))


def test_rescaling_the_value_head_preserves_its_values():
    net, observation = make_network(), tensors(random_observation(20), torch.device("cpu"))
    net.rescale_values(3.0, 7.0, keep_values=False)
    before = net.value(observation)
    net.rescale_values(-40.0, 0.5)
    assert torch.allclose(net.value(observation), before, atol=1e-4)
    assert float(net.value_std) == 0.5


def test_observation_statistics_are_mean_and_std_over_all_batches():
    net = make_network(normalise_observations=True)
    batches = [random_observation(rows, seed) for seed, rows in enumerate((10, 200, 3))]
    for batch in batches:
        net.inputs.update_stats(tensors(batch, torch.device("cpu")))
    all_rows = np.concatenate([batch["position"].reshape(-1, 4) for batch in batches])
    assert np.allclose(net.inputs.mean[:4].numpy(), all_rows.mean(axis=0), rtol=1e-5)
    assert np.allclose(net.inputs.std[:4].numpy(), all_rows.std(axis=0), rtol=1e-4)


def test_constant_inputs_keep_unit_scale():
    net = make_network(normalise_observations=True)
    batch = random_observation(50)
    batch["flags"][:] = 1
    net.inputs.update_stats(tensors(batch, torch.device("cpu")))
    row = net.inputs(tensors(batch, torch.device("cpu")))
    assert torch.isfinite(row).all()
    assert float(net.inputs.std[7]) == 1.0


def test_weights_round_trip_through_arrays():
    one, other = make_network(), ActorCritic(SPEC, NetworkSettings())
    observation = tensors(random_observation(4), torch.device("cpu"))
    load_network(other, network_arrays(one))
    assert torch.equal(one.logits(observation), other.logits(observation))


def test_weights_of_another_architecture_are_rejected():
    with pytest.raises(CheckpointError, match="settings of the run that made"):
        load_network(make_network(), network_arrays(make_network(hidden_sizes=(8, 8))))
    with pytest.raises(CheckpointError, match="do not fit this network"):
        load_network(make_network(), network_arrays(make_network(hidden_sizes=(64, 64, 64))))


def test_a_network_without_hidden_layers_is_rejected():
    with pytest.raises(SettingsError, match="at least one layer"):
        NetworkSettings(hidden_sizes=())
