"""Pictures: found whatever their layout, kept as bytes, looked at by a network that learns."""

from functools import partial

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from helpers import third_party_envs as foreign
from helpers.training_runs import PairedLearners
from hundredfold.algorithms.actor_critic import ActorCritic, NetworkSettings, tensors
from hundredfold.algorithms.image_encoder import (
    NUM_FEATURES,
    SingleImageEncoder,
    image_layout,
    pixel_bounds,
)
from hundredfold.algorithms.ppo import PPO, PPOSettings
from hundredfold.backends import make_backend
from hundredfold.core.batch import ArraySpec, EnvSpec
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv
from hundredfold.rollout.collector import Collector
from hundredfold.rollout.rollout_buffer import RolloutSettings

CPU = torch.device("cpu")
SEEK = PPOSettings(learning_rate=2e-3, gamma=0.9, num_minibatches=8)


def picture_of(shape, low=0, high=255):
    return ArraySpec(shape, "uint8", low, high)


def bytes_of(rows, shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, *shape), np.uint8)


def eye_of(spec, seed=1):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SingleImageEncoder(spec)


def make_ppo(make_env, settings=SEEK, updates=40, seed=5, **network):
    backend = make_backend("in_process", partial(GymnasiumBatchEnv, make_env=make_env), 16)
    learner = PPO(
        backend.spec,
        settings=settings,
        network=NetworkSettings(**network),
        rollout=RolloutSettings(num_envs=16, num_steps=32),
        num_updates=updates,
        seed=seed,
        device=CPU,
    )
    collector = Collector(backend, seed)
    collector.start(seed)
    return learner, collector


# --- what is a picture


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
def test_channels_are_found_first_or_last(shape, expected):
    assert image_layout(picture_of(shape)) == expected


@pytest.mark.parametrize(
    "spec",
    [
        picture_of((128,)),
        picture_of((7, 30)),
        picture_of((13, 8)),
        picture_of((15, 30)),
        picture_of((3, 2, 1)),
        picture_of((2, 9, 9, 3)),
        ArraySpec((16, 16, 3), "float32", 0, 1),
        ArraySpec((16, 16), "uint8", 0, 3, categories=(4,) * 256),
    ],
)
def test_other_arrays_are_no_pictures(spec):
    assert image_layout(spec) is None


@pytest.mark.parametrize("side", [8, 9, 15, 16, 23, 47, 48, 64, 84, 96])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_size_from_eight_pixels_on_comes_down_to_as_many_features(side, channels):
    shape = (side, side + 5, channels)
    found = eye_of(picture_of(shape))(torch.from_numpy(bytes_of(3, shape)))
    assert found.shape == (3, NUM_FEATURES)
    assert torch.isfinite(found).all()


def test_channels_first_and_last_show_the_same():
    last, first = eye_of(picture_of((16, 20, 3))), eye_of(picture_of((3, 16, 20)))
    pixels = bytes_of(4, (16, 20, 3))
    turned = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    seen = (eye(torch.from_numpy(array)) for eye, array in ((last, pixels), (first, turned)))
    assert_allclose(*(one.detach().numpy() for one in seen), atol=1e-5)


def test_bytes_are_scaled_by_their_bounds():
    assert pixel_bounds(picture_of((8, 8))) == (0.0, 255.0)
    assert pixel_bounds(picture_of((8, 8), low=(1.0,) * 64, high=(2.0,) * 63 + (4.0,))) == (
        1.0,
        4.0,
    )
    assert pixel_bounds(ArraySpec((8, 8), "uint8")) == (0.0, 255.0)
    board, photo = eye_of(picture_of((16, 16), 0, 5)), eye_of(picture_of((16, 16), 0, 255))
    pieces = bytes_of(3, (16, 16)) % 6
    seen = board(torch.from_numpy(pieces)), photo(torch.from_numpy(pieces * np.uint8(51)))
    assert torch.allclose(*seen, atol=1e-5)


# --- in a network

MIXED = EnvSpec(
    name="mixed",
    observation={
        "front": picture_of((12, 12, 3)),
        "speed": ArraySpec((2,)),
        "back": picture_of((17, 17)),
        "hint": ArraySpec((4,)),
    },
    action_nvec=(4,),
    logit_bias="hint",
)


def mixed(rows):
    draw = np.random.default_rng(3)
    return {
        "front": bytes_of(rows, (12, 12, 3)),
        "speed": (20 + 5 * draw.normal(size=(rows, 2))).astype(np.float32),
        "back": bytes_of(rows, (17, 17), seed=1),
        "hint": draw.normal(size=(rows, 4)).astype(np.float32),
    }


@pytest.mark.parametrize("shared", [False, True])
def test_pictures_and_numbers_go_side_by_side(shared):
    settings = NetworkSettings(shared=shared, normalise_observations=True)
    net, seen = ActorCritic(MIXED, settings), tensors(mixed(50), CPU)
    net.inputs.update_stats(seen)
    assert_allclose(net.inputs.mean, seen["speed"].mean(dim=0), rtol=1e-4)
    logits, values = net.logits_and_value(seen)
    assert torch.allclose(logits, net.logits(seen), atol=1e-6)
    assert torch.allclose(values, net.normalised_value(seen), atol=1e-6)
    for name in ("front", "back", "speed"):
        changed = seen | {name: torch.zeros_like(seen[name])}
        assert not torch.allclose(net.normalised_value(changed), values)
    ready = net.preprocess(seen)
    assert ready["front"].dtype == torch.uint8
    assert torch.equal(net.logits(ready), net.logits(seen))
    policy, value = (
        {id(weights) for weights in found}
        for found in (net.policy_parameters(), net.value_parameters())
    )
    assert policy | value == {id(weights) for weights in net.parameters()}
    assert bool(policy & value) == shared


# --- in PPO


def test_pictures_stay_bytes_in_the_rollout():
    learner, collector = make_ppo(foreign.ImageGoalEnv)
    collector.collect(learner.policy, learner.buffer, 32)
    assert learner.buffer.observation["observation"].dtype == np.uint8
    assert learner.update()["first_ratio_error"] < 1e-5


@pytest.mark.parametrize(
    ("make_env", "shared"), [(foreign.ImageGoalEnv, True), (foreign.ImageAndVectorGoalEnv, False)]
)
def test_a_restored_learner_learns_on_bit_for_bit(make_env, shared):
    settings = PPOSettings(update_epochs=1, num_minibatches=4)
    learner, collector = make_ppo(make_env, settings, shared=shared)
    collector.collect(learner.policy, learner.buffer, 32)
    learner.update()
    state = learner.state()
    again, _ = make_ppo(make_env, settings, shared=shared)
    again.restore(state)

    twice = PairedLearners(learner, again)
    collector.collect(twice, twice, 32)
    assert learner.update() == again.update()
    for name, array in learner.state().items():
        assert_array_equal(array, again.state()[name], err_msg=name)


def test_it_learns_to_seek_by_a_picture():
    learner, collector = make_ppo(foreign.ImageGoalEnv, updates=30, shared=True)
    first = collector.collect(learner.policy, learner.buffer, 32)
    learner.update()
    for _ in range(29):
        last = collector.collect(learner.policy, learner.buffer, 32)
        learner.update()
    # At random it takes most of its 20 steps; straight ahead it takes 2.7 on average.
    assert np.mean(first.returns) < 0.3
    assert np.mean(last.returns) > 0.6
