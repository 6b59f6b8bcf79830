"""RLlib: next-step autoreset, action masks, `--engine rllib`, and built-in envs in RLlib itself."""

import re
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import hundredfold
from helpers import third_party_envs
from helpers.cases import ENV_CASES
from helpers.ray_pool import shared_cluster
from helpers.training_runs import checkpoint_arrays, read_metrics
from hundredfold.algorithms.actor_critic import ActorCritic, NetworkSettings, tensors
from hundredfold.backends.settings import WorkerSettings
from hundredfold.config.presets import preset_settings
from hundredfold.config.run import LengthSettings
from hundredfold.core import rng
from hundredfold.core.action_scaling import argmax_actions
from hundredfold.core.errors import EnvError, SettingsError
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv
from hundredfold.envs.next_step import with_ignored_actions
from hundredfold.interop.rllib.envs import FlatVectorEnv
from hundredfold.rollout.rollout_buffer import RolloutSettings
from hundredfold.training.console import describe_run

NUM_ENVS = 5
SEED = 3

pytestmark = pytest.mark.ray


def actions_for(rows, spec, key):
    """Random allowed actions; continuous ones also beyond the bounds."""
    uniforms = np.random.default_rng(key).random((len(rows), spec.num_logits))
    if spec.continuous_action is not None:
        return (4 * uniforms - 2).astype(np.float32)
    if spec.has_mask:
        uniforms = np.where(rows[:, -spec.num_logits :] > 0.5, uniforms, -1.0)
    parts = np.split(uniforms, np.cumsum(spec.action_nvec)[:-1], axis=1)
    return np.stack([part.argmax(axis=1) for part in parts], 1).reshape(-1, *spec.action_shape)


THIRD_PARTY = ["CartPole-v1", "third_party_masked", "third_party_multi_discrete", "third_party_box"]


@pytest.mark.parametrize("env", ["cartpole", "cage2", "corridor", *THIRD_PARTY])
def test_reset_takes_a_step_during_which_the_other_envs_step(env):
    """Each env equals the same env alone, with one step more after each episode."""
    vec_env = FlatVectorEnv(ENV_CASES[env], NUM_ENVS, seed=SEED)
    spec = vec_env.env_spec
    singles = [ENV_CASES[env](np.array([env_id])) for env_id in range(NUM_ENVS)]
    outs = [single.reset(SEED) for single in singles]
    rows, _ = vec_env.reset()
    ended = np.zeros(NUM_ENVS, bool)
    num_resets = 0
    for step in range(70):
        actions = actions_for(rows, spec, step)
        rows, reward, terminated, truncated, _ = vec_env.step(actions)
        for row, single in enumerate(singles):
            if ended[row]:
                num_resets += 1
                assert (reward[row], terminated[row], truncated[row]) == (0.0, False, False)
                observation, mask = outs[row].observation, outs[row].mask
            else:
                outs[row] = single.step(vec_env.flat.unflatten_action(actions[row : row + 1]))
                assert reward[row] == np.float32(outs[row].reward[0])
                assert terminated[row] == outs[row].terminated[0]
                assert truncated[row] == outs[row].truncated[0]
                is_last = outs[row].ended[0]
                observation = outs[row].final_observation if is_last else outs[row].observation
                mask = None if is_last else outs[row].mask
            assert_array_equal(rows[row], vec_env.flat.flatten(observation, mask)[0])
        ended = terminated | truncated
    assert num_resets > NUM_ENVS


def test_runners_have_different_envs():
    first, second = (FlatVectorEnv(ENV_CASES["cartpole"], 2, seed=SEED) for _ in range(2))
    first.set_runner_index(1)
    second.set_runner_index(2)
    whole = FlatVectorEnv(ENV_CASES["cartpole"], 4, seed=SEED)
    both = np.concatenate([first.reset()[0], second.reset()[0]])
    assert_array_equal(whole.reset()[0], both)


def test_without_a_seed_of_the_run_every_runner_has_its_own_episodes():
    def first_rows(seed):
        return FlatVectorEnv(ENV_CASES["cartpole"], 2).reset(seed=seed)[0]

    assert_array_equal(first_rows(7), first_rows(7))
    assert not np.array_equal(first_rows(7), first_rows(8))
    assert not np.array_equal(first_rows(None), first_rows(None))


@pytest.mark.parametrize("env", ["third_party_masked", "third_party_multi_discrete"])
def test_rows_that_wait_for_a_reset_get_an_allowed_action(env):
    with closing(FlatVectorEnv(ENV_CASES[env], 9, seed=SEED)) as vec_env:
        vec_env.reset()
        spec, mask = vec_env.env_spec, vec_env.out.mask
        forbidden = argmax_actions(spec, ~mask)
        actions = with_ignored_actions(forbidden, np.ones(9, bool), vec_env.out, spec).reshape(9, -1)
    logit_ids = actions + np.cumsum((0, *spec.action_nvec[:-1]))
    assert np.take_along_axis(mask, logit_ids, axis=1).all()
    assert not mask.all()


def test_failed_env_is_recreated_and_its_episode_truncated():
    make_envs = partial(GymnasiumBatchEnv, make_env=third_party_envs.RaisesInStep)
    restart_policy = WorkerSettings().restart_policy()
    vec_env = FlatVectorEnv(make_envs, NUM_ENVS, seed=SEED, restart_policy=restart_policy)
    vec_env.reset()
    truncated = [vec_env.step(np.zeros(NUM_ENVS, np.int64))[3].tolist() for _ in range(5)]
    assert truncated[third_party_envs.RaisesInStep.fault_step - 1] == [True] * NUM_ENVS
    assert sum(map(sum, truncated)) == NUM_ENVS


@pytest.mark.parametrize("env", ["third_party_masked", "third_party_multi_discrete", "third_party_box"])
def test_rllib_samples_from_the_distribution_of_the_network(env):
    pytest.importorskip("ray")
    from ray.rllib.core.columns import Columns

    from hundredfold.interop.rllib.module import ActorCriticModule

    vec_env = FlatVectorEnv(ENV_CASES[env], NUM_ENVS, seed=SEED)
    spec = vec_env.env_spec
    rows, _ = vec_env.reset()
    module = ActorCriticModule(
        observation_space=vec_env.single_observation_space,
        action_space=vec_env.single_action_space,
        model_config={"env": spec, "network": NetworkSettings(hidden_sizes=(8,))},
    )
    batch = vec_env.out
    observation = tensors(batch.observation, torch.device("cpu"))
    mask = None if batch.mask is None else torch.from_numpy(batch.mask)
    ours = module.network.distribution(module.network.logits(observation), mask)
    outputs = module.forward_exploration({Columns.OBS: torch.from_numpy(rows)})
    theirs = module.get_exploration_action_dist_cls().from_logits(outputs[Columns.ACTION_DIST_INPUTS])
    actions = theirs.sample()
    assert actions.shape[1:] == vec_env.single_action_space.shape
    assert_allclose(theirs.logp(actions).detach(), ours.log_prob(actions.reshape(NUM_ENVS, -1)).detach(), rtol=1e-5)


def test_input_stats_are_those_of_random_actions():
    pytest.importorskip("ray")
    from hundredfold.interop.rllib.engine import estimate_input_stats

    make_envs = ENV_CASES["CartPole-v1"]
    spec = make_envs(np.arange(1)).spec
    network = ActorCritic(spec, NetworkSettings(normalise_observations=True))
    settings = preset_settings("CartPole-v1")
    estimate_input_stats(network.inputs, make_envs, settings)
    assert network.inputs.count == settings.rollout.num_envs * 64
    # Carts hardly move under random actions; poles fall by 12 degrees.
    assert 0.01 < network.inputs.std[0] < 0.3
    assert 0.05 < network.inputs.std[2] < 0.2
    again = ActorCritic(spec, NetworkSettings(normalise_observations=True))
    estimate_input_stats(again.inputs, make_envs, settings)
    assert torch.equal(again.inputs.mean, network.inputs.mean)


def test_rllib_run_is_recorded_evaluated_and_loaded(tmp_path, capfd):
    shared_cluster()
    run = hundredfold.train(
        "cage2",
        engine="rllib",
        save_dir=tmp_path,
        name="run",
        epochs=2,
        num_envs=4,
        num_steps=30,
        minibatch_size=40,
        hidden_sizes=(16,),
        eval_interval=2,
        eval_episodes=3,
        workers=2,
        actor_cpus=0.5,
        report=False,
        quiet=False,
    )
    assert run.finished
    rows = read_metrics(run.path)
    assert [row["total_steps"] for row in rows] == [120, 240]
    # The last line of the progress and the summary have the same steps and the same rate.
    shown = re.search(r"epoch 2/2  steps (240)  (\S+) steps/s", capfd.readouterr().err).groups()
    assert (
        re.match(r"trained (\S+) steps in 2 epochs, .*, (\S+) steps/s", describe_run(run.path, run.metrics)).groups()
        == shown
    )
    assert {"policy_loss", "value_loss", "entropy"} <= rows[1].keys()
    assert "eval/return_mean" in rows[1]
    evaluated = hundredfold.evaluate(run.path, episodes=3, checkpoint="last", backend="in_process")
    assert evaluated.metrics()["return_mean"] == pytest.approx(rows[1]["eval/return_mean"])
    with pytest.raises(SettingsError, match="trained with --engine rllib"):
        hundredfold.train(resume=run.path)


SHORT = {
    "engine": "rllib",
    "epochs": 2,
    "num_envs": 4,
    "num_steps": 16,
    "hidden_sizes": (8,),
    "workers": 2,
    "actor_cpus": 0.5,
    "seed": SEED,
    "report": False,
    "quiet": True,
}


def seed_of(env_id):
    return int(rng.stream_keys(SEED, env_id, 0)) >> 33


def test_rllib_trains_third_party_envs_each_with_its_own_seeds(tmp_path):
    shared_cluster()
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    make_env = partial(third_party_envs.RecordsSeeds, str(seeds), seed_of(3))
    settings = {**SHORT, "normalise_observations": True, "eval_interval": 2, "eval_episodes": 2}
    run = hundredfold.train(make_env, save_dir=tmp_path, name="run", **settings)
    assert run.finished
    assert {str(seed_of(env_id)) for env_id in range(4)} <= {path.name for path in seeds.iterdir()}
    rows = read_metrics(run.path)
    assert [row["total_steps"] for row in rows] == [64, 128]
    assert rows[-1]["env_failures"] == rows[-1]["env_restarts"] == 1
    arrays = checkpoint_arrays(run.path)
    assert arrays["learner/network/inputs.count"] == 4 * 64
    assert arrays["learner/network/inputs.std"].max() > 1.5
    action = run.policy().act(third_party_envs.UnevenBoxActions().reset(seed=SEED)[0])
    assert third_party_envs.UnevenBoxActions.action_space.contains(action)


def test_on_env_error_stop_ends_the_run_with_the_error_of_the_env(tmp_path):
    shared_cluster()
    make_env = partial(third_party_envs.RecordsSeeds, str(tmp_path), seed_of(3))
    with pytest.raises(EnvError, match=r"env runner of RLlib failed: .*env 3 .*failed in step"):
        hundredfold.train(make_env, save_dir=tmp_path, name="run", on_env_error="stop", **SHORT)


def test_registered_envs_train_from_rllib_itself():
    shared_cluster()
    from ray.rllib.algorithms.ppo import PPOConfig

    from hundredfold.interop.rllib import module_spec, register

    register()
    name, settings = "hundredfold/Corridor-v0", {"max_episode_steps": 9}
    config = (
        PPOConfig()
        .environment(name, env_config=settings)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=4,
            rollout_fragment_length=20,
            gym_env_vectorize_mode="vector_entry_point",
        )
        .training(train_batch_size_per_learner=80, minibatch_size=40, num_epochs=1)
        .rl_module(rl_module_spec=module_spec(name, NetworkSettings(hidden_sizes=(8,)), **settings))
    )
    algorithm = config.build_algo()
    try:
        # A forbidden action would raise.
        result = algorithm.train()
    finally:
        algorithm.stop()
    assert result["env_runners"]["num_env_steps_sampled"] == 80
    assert 1 <= result["env_runners"]["episode_len_mean"] <= 9


def test_annealed_values_fall_to_zero_at_the_end():
    pytest.importorskip("ray")
    from ray.rllib.utils.schedules.scheduler import Scheduler

    from hundredfold.interop.rllib import engine

    schedule = Scheduler(engine.linear_schedule(0.05, 1_000))
    assert [schedule.update(step) for step in (0, 500, 1_000, 2_000)] == [0.05, 0.025, 0.0, 0.0]
    assert Scheduler(engine.linear_schedule(0.05, 0)).update(500) == 0.05
    start = preset_settings("cage2")
    short = replace(
        start,
        length=LengthSettings(epochs=3),
        rollout=RolloutSettings(num_envs=4, num_steps=50),
        ppo=replace(start.ppo, anneal_learning_rate=False, anneal_entropy=True),
    )
    kwargs = engine.ppo_kwargs(short)
    assert kwargs["entropy_coeff"] == [[0, start.ppo.entropy_coefficient], [600, 0.0]]
    assert kwargs["lr"] == start.ppo.learning_rate


def test_preset_rllib_20x5_has_20_runners_of_5_envs():
    settings = preset_settings("cage2", "rllib-20x5")
    assert settings.engine == "rllib"
    assert (settings.processes.workers, settings.rollout.num_envs) == (20, 100)
    assert settings.rollout.num_steps == 100
    assert settings.rollout.samples_per_epoch == 10_000
    assert settings.ppo.minibatch_size == 500


def test_fewer_cores_run_the_same_envs_in_fewer_runners_and_say_why(monkeypatch):
    pytest.importorskip("ray")
    from hundredfold.interop.rllib import engine

    monkeypatch.setattr(engine, "usable_cores", lambda: 8)
    runners, reason = engine.num_env_runners(preset_settings("cage2", "rllib-20x5"))
    assert runners == 5
    assert reason == (
        "5 env runners x 20 envs instead of 20 x 5, because there are 8 cores; an epoch stays 10,000 samples."
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"env": "corridor", "algo": "dqn"}, "works with --algo ppo only"),
        ({"env": "dvrp"}, "--acceptance-model none --no-acceptance-hint --mask-mode none"),
        ({"env": "corridor", "num_value_epochs": 2, "num_policy_epochs": 2}, "one loss"),
    ],
)
def test_unsupported_settings_are_rejected(change, message, tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(SettingsError, match=message):
        hundredfold.train(engine="rllib", save_dir=tmp_path, quiet=True, **change)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("num_envs", [{}, {"num_envs": 2}], ids=["env", "vector env"])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"acceptance_hint": True}, r"acceptance_hint=True of dvrp come from the belief model"),
        ({"mask_mode": "soft"}, r"mask_mode=soft of dvrp come from the belief model"),
        ({"acceptance": True}, "dvrp has no setting 'acceptance'"),
    ],
)
def test_env_configs_that_need_a_training_are_refused(settings, message, num_envs):
    pytest.importorskip("ray")
    from hundredfold.interop.rllib.envs import make_env

    with pytest.raises(SettingsError, match=message):
        make_env("dvrp", {**settings, **num_envs})
