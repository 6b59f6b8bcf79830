"""Training runs with continuous actions and images: exact resume, evaluation, Pendulum-v1."""

import signal

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import hundredfold
from helpers.batch_envs import Spotlight
from helpers.processes import run_forked
from helpers.third_party_envs import ImageAndVectorGoalEnv
from helpers.training_runs import KILLED_RUN, checkpoint_arrays
from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.ppo import PPO, PPOSettings
from hundredfold.backends import make_backend
from hundredfold.core.batch import with_prefix
from hundredfold.envs.gymnasium_factory import GymnasiumFactory
from hundredfold.rollout.collector import Collector
from hundredfold.rollout.rollout_buffer import RolloutSettings
from hundredfold.training.build import build
from hundredfold.training.evaluate import evaluate
from hundredfold.training.run import Run
from hundredfold.training.run_folder import RunFolder

PENDULUM = PPOSettings(gamma=0.95, update_epochs=10, num_minibatches=8, entropy_coefficient=0.0, clip_range=0.2)


class Training:
    """Backend, learner and collector of a run, without a run folder."""

    def __init__(self, make_envs, settings, rollout, updates, seed, backend="in_process"):
        self.backend = make_backend(backend, make_envs, rollout.num_envs)
        self.learner = PPO.build(
            self.backend.spec,
            settings=settings,
            network=NetworkSettings(normalise_observations=True),
            rollout=rollout,
            num_updates=updates,
            seed=seed,
            device=torch.device("cpu"),
        )
        self.collector = Collector(self.backend, seed)
        self.num_steps, self.updates = rollout.num_steps, updates

    def epochs(self, count):
        return [self.epoch() for _ in range(count)]

    def epoch(self):
        episodes = self.collector.collect(self.learner.policy, self.learner.buffer, self.num_steps)
        return {**episodes.means(), **self.learner.update()}

    def state(self):
        return self.learner.state(), self.collector.state(), self.backend.state()

    def restore(self, learner, collector, env):
        self.learner.restore(learner)
        self.collector.restore(collector, env)


def spotlight_training(interval=1, backend="in_process"):
    rollout = RolloutSettings(num_envs=6, num_steps=16, policy_update_interval=interval)
    return Training(Spotlight, PPOSettings(), rollout, updates=6, seed=3, backend=backend)


@pytest.mark.parametrize("interval", [1, 2])
def test_resume_with_images_and_continuous_actions_is_bit_exact(interval):
    whole, resumed = spotlight_training(interval), spotlight_training(interval, backend="serial")
    whole.collector.start(3)
    whole.epochs(3)
    state = whole.state()
    expected = whole.epochs(3)
    resumed.restore(*state)
    assert resumed.epochs(3) == expected
    for part, other in zip(whole.state(), resumed.state(), strict=True):
        assert part.keys() == other.keys()
        for name, array in part.items():
            assert_array_equal(array, other[name], err_msg=name)


@pytest.mark.process
def test_worker_processes_train_the_same_with_images_and_continuous_actions():
    one, other = spotlight_training(), spotlight_training(backend="processes")
    try:
        for training in (one, other):
            training.collector.start(3)
        assert one.epochs(2) == other.epochs(2)
    finally:
        other.backend.close()


@pytest.mark.process
def test_a_killed_pendulum_run_resumes_with_exact_learner_state(tmp_path):
    small = {"epochs": 6, "num_envs": 4, "num_steps": 16, "eval_interval": 2, "eval_episodes": 2}
    settings = {**small, "save_interval": 3, "normalise_observations": True}
    code = KILLED_RUN.format(env="Pendulum-v1", save_dir=str(tmp_path), settings=settings, moment="after saving")
    run_forked(code, expect=-signal.SIGKILL)
    before = checkpoint_arrays(tmp_path / "killed")
    folder = RunFolder.open(tmp_path / "killed")
    folder.claim()
    parts = build(folder.settings())
    with pytest.warns(UserWarning, match="cannot continue in the middle"):
        run = Run.resume(folder, parts, quiet=True)
    learner_arrays = {name for name in before if name.startswith("learner/")}
    assert {"learner/network/log_std", "learner/network/inputs.mean"} <= learner_arrays
    after = with_prefix("learner", run.last_complete.parts["learner"])
    for name in learner_arrays:
        assert_array_equal(after[name], before[name], err_msg=name)
    run.close()
    parts.close()
    with pytest.warns(UserWarning, match="cannot continue in the middle"):
        assert hundredfold.train(resume=tmp_path / "killed").finished


TINY = {"epochs": 2, "num_envs": 4, "num_steps": 16, "eval_interval": 1, "eval_episodes": 2}


@pytest.mark.process
def test_a_pendulum_run_can_be_evaluated_and_loaded(tmp_path):
    run = hundredfold.train("Pendulum-v1", save_dir=tmp_path, **TINY)
    evaluation = hundredfold.evaluate(run.path, episodes=2, checkpoint="last")
    assert_allclose(evaluation.returns.mean(), run.metrics[-1]["eval/return_mean"], rtol=1e-4)
    assert hundredfold.evaluate("Pendulum-v1", policy="random", episodes=2).returns.max() < 0
    policy = run.policy()
    observation = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    drawn = policy.act(observation, deterministic=False)
    assert (drawn.shape, drawn.dtype) == ((50, 1), np.float32)
    assert 1.0 < np.abs(drawn).max() <= 2.0
    assert_allclose(policy.act(observation[0]), policy.act(observation)[0], atol=1e-6)


@pytest.mark.process
def test_an_image_run_can_be_evaluated_and_loaded(tmp_path):
    run = hundredfold.train(ImageAndVectorGoalEnv, save_dir=tmp_path, **TINY)
    evaluation = hundredfold.evaluate(run.path, episodes=2, checkpoint="last", make_env=ImageAndVectorGoalEnv)
    assert_allclose(evaluation.returns.mean(), run.metrics[-1]["eval/return_mean"])
    assert any(name.startswith("learner/network/policy_encoder.") for name in checkpoint_arrays(run.path))
    space = ImageAndVectorGoalEnv.observation_space
    assert run.policy().act(space.sample()) in range(4)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_pendulum_is_learned_within_66_000_steps_on_at_least_four_of_five_seeds():
    pendulum = GymnasiumFactory("Pendulum-v1", {})
    rollout = RolloutSettings(num_envs=16, num_steps=64)
    means = {}
    for seed in range(5):
        training = Training(pendulum, PENDULUM, rollout, updates=64, seed=seed)
        training.collector.start(seed)
        training.epochs(64)
        act = training.learner.policy.act_deterministic
        evaluation = evaluate(
            make_backend("in_process", pendulum, 50),
            lambda batch, act=act: act(batch.observation, batch.mask),
            episodes=100,
            seed=9999,
            max_steps=1000,
        )
        means[seed] = float(np.mean(evaluation.returns))
    print(means)
    # A random policy has a return of about -1200, a good one of about -150.
    assert sum(mean > -250 for mean in means.values()) >= 4
