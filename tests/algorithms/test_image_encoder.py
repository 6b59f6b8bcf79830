"""Image observations: channel layout, uint8 storage, the encoder, and PPO on images."""

from functools import partial

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from helpers import third_party_envs
from helpers.ppo_learner import make_ppo
from helpers.training_runs import PairedLearners
from hundredfold.algorithms.actor_critic import ActorCritic, NetworkSettings, tensors
from hundredfold.algorithms.image_encoder import NUM_FEATURES, SingleImageEncoder, image_layout, pixel_bounds
from hundredfold.algorithms.ppo import PPOSettings
from hundredfold.core.batch import ArraySpec, EnvSpec
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv

CPU = torch.device("cpu")
GOAL_SETTINGS = PPOSettings(learning_rate=2e-3, gamma=0.9, num_minibatches=8)


def image_spec(shape, low=0, high=255):
    return ArraySpec(shape, "uint8", low, high)


def random_pixels(rows, shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, *shape), np.uint8)


def make_encoder(spec, seed=1):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SingleImageEncoder(spec)


def make_image_ppo(make_env, settings=GOAL_SETTINGS, updates=40, **network):
    batch_env = partial(GymnasiumBatchEnv, make_env=make_env)
    return make_ppo(batch_env, settings, updates=updates, network=NetworkSettings(**network))


# --- layout


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((16, 20), (1, 16, 20, True)),
        ((3, 16, 20), (3, 16, 20, True)),
        ((16, 20, 3), (3, 16, 20, False)),
        ((4, 84, 84), (4, 84, 84, True)),
        ((8, 8, 13), (13, 8, 8, False)),
    ],
)
def test_channel_axis_is_found_first_or_last(shape, expected):
    assert image_layout(image_spec(shape)) == expected


@pytest.mark.parametrize(
    "spec",
    [
        image_spec((128,)),
        image_spec((7, 30)),
        image_spec((13, 8)),
        image_spec((15, 30)),
        image_spec((3, 2, 1)),
        image_spec((2, 9, 9, 3)),
        ArraySpec((16, 16, 3), "float32", 0, 1),
        ArraySpec((16, 16), "uint8", 0, 3, categories=(4,) * 256),
    ],
)
def test_other_arrays_are_not_images(spec):
    assert image_layout(spec) is None


@pytest.mark.parametrize("side", [8, 9, 15, 16, 23, 47, 48, 64, 84, 96])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_from_8_pixels_up_give_the_same_number_of_features(side, channels):
    shape = (side, side + 5, channels)
    features = make_encoder(image_spec(shape))(torch.from_numpy(random_pixels(3, shape)))
    assert features.shape == (3, NUM_FEATURES)
    assert torch.isfinite(features).all()


def test_channels_first_and_channels_last_give_the_same_features():
    last, first = make_encoder(image_spec((16, 20, 3))), make_encoder(image_spec((3, 16, 20)))
    pixels = random_pixels(4, (16, 20, 3))
    transposed = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    cases = ((last, pixels), (first, transposed))
    features = (encoder(torch.from_numpy(array)) for encoder, array in cases)
    assert_allclose(*(array.detach().numpy() for array in features), atol=1e-5)


def test_pixels_are_scaled_by_their_bounds():
    assert pixel_bounds(image_spec((8, 8))) == (0.0, 255.0)
    assert pixel_bounds(image_spec((8, 8), low=(1.0,) * 64, high=(2.0,) * 63 + (4.0,))) == (1.0, 4.0)
    assert pixel_bounds(ArraySpec((8, 8), "uint8")) == (0.0, 255.0)
    narrow, wide = (make_encoder(image_spec((16, 16), 0, 5)), make_encoder(image_spec((16, 16), 0, 255)))
    pixels = random_pixels(3, (16, 16)) % 6
    features = narrow(torch.from_numpy(pixels)), wide(torch.from_numpy(pixels * np.uint8(51)))
    assert torch.allclose(*features, atol=1e-5)


# --- in a network

MIXED = EnvSpec(
    name="mixed",
    observation={
        "front": image_spec((12, 12, 3)),
        "speed": ArraySpec((2,)),
        "back": image_spec((17, 17)),
        "hint": ArraySpec((4,)),
    },
    action_nvec=(4,),
    logit_bias="hint",
)


def mixed_observation(rows):
    rng = np.random.default_rng(3)
    return {
        "front": random_pixels(rows, (12, 12, 3)),
        "speed": (20 + 5 * rng.normal(size=(rows, 2))).astype(np.float32),
        "back": random_pixels(rows, (17, 17), seed=1),
        "hint": rng.normal(size=(rows, 4)).astype(np.float32),
    }


@pytest.mark.parametrize("shared", [False, True])
def test_images_and_vectors_are_combined(shared):
    settings = NetworkSettings(shared=shared, normalise_observations=True)
    net, observation = ActorCritic(MIXED, settings), tensors(mixed_observation(50), CPU)
    net.inputs.update_stats(observation)
    assert_allclose(net.inputs.mean, observation["speed"].mean(dim=0), rtol=1e-4)
    logits, values = net.logits_and_value(observation)
    assert torch.allclose(logits, net.logits(observation), atol=1e-6)
    assert torch.allclose(values, net.normalised_value(observation), atol=1e-6)
    for name in ("front", "back", "speed"):
        changed = observation | {name: torch.zeros_like(observation[name])}
        assert not torch.allclose(net.normalised_value(changed), values)
    preprocessed = net.preprocess(observation)
    assert preprocessed["front"].dtype == torch.uint8
    assert torch.equal(net.logits(preprocessed), net.logits(observation))
    policy, value = (
        {id(weights) for weights in parameters} for parameters in (net.policy_parameters(), net.value_parameters())
    )
    assert policy | value == {id(weights) for weights in net.parameters()}
    assert bool(policy & value) == shared


# --- in PPO


def test_images_stay_uint8_in_the_rollout_buffer():
    learner, collector = make_image_ppo(third_party_envs.ImageGoalEnv)
    collector.collect(learner.policy, learner.buffer, 32)
    assert learner.buffer.observation["observation"].dtype == np.uint8
    assert learner.update()["first_ratio_error"] < 1e-5


@pytest.mark.parametrize(
    ("make_env", "shared"), [(third_party_envs.ImageGoalEnv, True), (third_party_envs.ImageAndVectorGoalEnv, False)]
)
def test_a_restored_learner_continues_bit_exact(make_env, shared):
    settings = PPOSettings(update_epochs=1, num_minibatches=4)
    learner, collector = make_image_ppo(make_env, settings, shared=shared)
    collector.collect(learner.policy, learner.buffer, 32)
    learner.update()
    state = learner.state()
    restored, _ = make_image_ppo(make_env, settings, shared=shared)
    restored.restore(state)

    pair = PairedLearners(learner, restored)
    collector.collect(pair, pair, 32)
    assert learner.update() == restored.update()
    for name, array in learner.state().items():
        assert_array_equal(array, restored.state()[name], err_msg=name)


def test_ppo_learns_from_images():
    learner, collector = make_image_ppo(third_party_envs.ImageGoalEnv, updates=30, shared=True)
    first = collector.collect(learner.policy, learner.buffer, 32)
    learner.update()
    for _ in range(29):
        last = collector.collect(learner.policy, learner.buffer, 32)
        learner.update()
    # A random policy needs most of its 20 steps, the shortest path takes 2.7 on average.
    assert np.mean(first.returns) < 0.3
    assert np.mean(last.returns) > 0.6
