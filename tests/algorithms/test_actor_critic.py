"""Inputs side by side, scales that follow the data, values that survive a change of scale."""

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
        "place": ArraySpec((2, 2)),
        "kind": ArraySpec((), "int64", 0, 2, categories=(3,)),
        "flags": ArraySpec((2,), "int8", 0, 1),
        "dice": ArraySpec((2,), "int64", categories=(6, 4)),
    },
    action_nvec=(3, 2),
)


def observation(rows, seed=0):
    draw = np.random.default_rng(seed)
    return {
        "place": (50 + 10 * draw.normal(size=(rows, 2, 2))).astype(np.float32),
        "kind": draw.integers(0, 3, rows),
        "flags": draw.integers(0, 2, (rows, 2)).astype(np.int8),
        "dice": draw.integers(0, 4, (rows, 2)),
    }


def network(**settings):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return ActorCritic(SPEC, NetworkSettings(**settings))


def test_every_kind_of_array_becomes_numbers_side_by_side():
    arrays = observation(5)
    row = network().inputs(tensors(arrays, torch.device("cpu"))).numpy()
    assert row.shape == (5, 4 + 3 + 2 + 10)
    assert np.array_equal(row[:, :4], arrays["place"].reshape(5, 4))
    assert np.array_equal(row[:, 4:7].argmax(axis=1), arrays["kind"])
    assert np.array_equal(row[:, 7:9], arrays["flags"])
    assert np.array_equal(row[:, 9:15].argmax(axis=1), arrays["dice"][:, 0])
    assert np.array_equal(row[:, 15:].argmax(axis=1), arrays["dice"][:, 1])


@pytest.mark.parametrize("shared", [False, True])
def test_both_heads_agree_with_each_alone(shared):
    net, seen = network(shared=shared), tensors(observation(7), torch.device("cpu"))
    logits, values = net.logits_and_value(seen)
    assert logits.shape == (7, 5)
    assert torch.allclose(logits, net.logits(seen))
    assert torch.allclose(values, net.normalised_value(seen))


def test_changing_the_scale_of_values_changes_no_value():
    net, seen = network(), tensors(observation(20), torch.device("cpu"))
    net.rescale_values(3.0, 7.0, keep_values=False)
    before = net.value(seen)
    net.rescale_values(-40.0, 0.5)
    assert torch.allclose(net.value(seen), before, atol=1e-4)
    assert float(net.value_std) == 0.5


def test_learned_input_scale_is_mean_and_spread_of_all_batches():
    net = network(normalise_observations=True)
    batches = [observation(rows, seed) for seed, rows in enumerate((10, 200, 3))]
    for batch in batches:
        net.inputs.update_stats(tensors(batch, torch.device("cpu")))
    everything = np.concatenate([batch["place"].reshape(-1, 4) for batch in batches])
    assert np.allclose(net.inputs.mean[:4].numpy(), everything.mean(axis=0), rtol=1e-5)
    assert np.allclose(net.inputs.std[:4].numpy(), everything.std(axis=0), rtol=1e-4)


def test_an_input_that_never_changes_is_left_at_its_scale():
    net = network(normalise_observations=True)
    batch = observation(50)
    batch["flags"][:] = 1
    net.inputs.update_stats(tensors(batch, torch.device("cpu")))
    row = net.inputs(tensors(batch, torch.device("cpu")))
    assert torch.isfinite(row).all()
    assert float(net.inputs.std[7]) == 1.0


def test_weights_travel_as_arrays():
    one, other = network(), ActorCritic(SPEC, NetworkSettings())
    seen = tensors(observation(4), torch.device("cpu"))
    load_network(other, network_arrays(one))
    assert torch.equal(one.logits(seen), other.logits(seen))


def test_weights_of_another_network_are_refused():
    with pytest.raises(CheckpointError, match="settings of the run that made"):
        load_network(network(), network_arrays(network(hidden_sizes=(8, 8))))
    with pytest.raises(CheckpointError, match="do not fit this network"):
        load_network(network(), network_arrays(network(hidden_sizes=(64, 64, 64))))


def test_a_network_without_layers_is_refused():
    with pytest.raises(SettingsError, match="at least one layer"):
        NetworkSettings(hidden_sizes=())
