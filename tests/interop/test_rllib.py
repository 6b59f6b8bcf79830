"""RLlib on built-in envs: resets that take a step, masks that hold, runs that can be judged."""

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
from hundredfold.core.errors import EnvError, SettingsError
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv
from hundredfold.interop.rllib import settings_map
from hundredfold.interop.rllib.engine import learn_first_scales
from hundredfold.interop.rllib.envs import FlatVectorEnv, first_allowed, flat_rows, width_of
from hundredfold.rollout.rollout_buffer import RolloutSettings

NUM_ENVS = 5
SEED = 3


def actions_for(rows, spec, key):
    """Allowed actions that depend on what is seen and on nothing else."""
    luck = np.random.default_rng(key).random((len(rows), spec.num_logits))
    if spec.continuous_action is not None:
        return (4 * luck - 2).astype(np.float32)  # beyond the bounds as well
    if spec.has_mask:
        luck = np.where(rows[:, -spec.num_logits :] > 0.5, luck, -1.0)
    parts = np.split(luck, np.cumsum(spec.action_nvec)[:-1], axis=1)
    return np.stack([part.argmax(axis=1) for part in parts], 1).reshape(-1, *spec.action_shape)


FOREIGN = ["CartPole-v1", "third_party_masked", "third_party_multi_discrete", "third_party_box"]


@pytest.mark.parametrize("batch_env", ["cartpole", "cage2", "corridor", *FOREIGN])
def test_a_reset_takes_a_step_in_which_the_others_go_on(batch_env):
    """Env by env the story is the one an env alone tells, with a pause after each end."""
    env = FlatVectorEnv(ENV_CASES[batch_env], NUM_ENVS, seed=SEED)
    spec = env.env_spec
    lone = [ENV_CASES[batch_env](np.array([env_id])) for env_id in range(NUM_ENVS)]
    outs = [one.reset(SEED) for one in lone]
    rows, _ = env.reset()
    over = np.zeros(NUM_ENVS, bool)
    pauses = 0
    for step in range(70):
        actions = actions_for(rows, spec, step)
        rows, reward, terminated, truncated, _ = env.step(actions)
        for row, one in enumerate(lone):
            if over[row]:
                pauses += 1
                assert (reward[row], terminated[row], truncated[row]) == (0.0, False, False)
                seen, mask = outs[row].observation, outs[row].mask
            else:
                outs[row] = one.step(env.window.played(actions[row : row + 1]))
                assert reward[row] == np.float32(outs[row].reward[0])
                assert terminated[row] == outs[row].terminated[0]
                assert truncated[row] == outs[row].truncated[0]
                ended = outs[row].ended[0]
                seen = outs[row].final_observation if ended else outs[row].observation
                mask = None if ended else outs[row].mask
            assert_array_equal(rows[row], flat_rows(seen, mask, spec)[0])
        over = terminated | truncated
    assert pauses > NUM_ENVS


def test_slices_of_an_env_hold_envs_of_their_own():
    first, second = (FlatVectorEnv(ENV_CASES["cartpole"], 2, seed=SEED) for _ in range(2))
    first.take_place(1)
    second.take_place(2)
    whole = FlatVectorEnv(ENV_CASES["cartpole"], 4, seed=SEED)
    both = np.concatenate([first.reset()[0], second.reset()[0]])
    assert_array_equal(whole.reset()[0], both)


def test_without_a_seed_of_the_run_every_runner_plays_its_own_episodes():
    def first_rows(seed):
        return FlatVectorEnv(ENV_CASES["cartpole"], 2).reset(seed=seed)[0]

    assert_array_equal(first_rows(7), first_rows(7))
    assert not np.array_equal(first_rows(7), first_rows(8))
    assert not np.array_equal(first_rows(None), first_rows(None))


@pytest.mark.parametrize("batch_env", ["third_party_masked", "third_party_multi_discrete"])
def test_waiting_rows_always_have_an_allowed_action(batch_env):
    with closing(ENV_CASES[batch_env](np.arange(9))) as made:
        spec, batch = made.spec, made.reset(SEED)
    parts = first_allowed(batch, spec).reshape(9, -1) + np.cumsum((0, *spec.action_nvec[:-1]))
    assert np.take_along_axis(batch.mask, parts, axis=1).all()
    assert not batch.mask.all()
    assert width_of(spec) == flat_rows(batch.observation, batch.mask, spec).shape[1]


def test_an_env_that_fails_is_made_anew_while_the_others_go_on():
    batch_env = partial(GymnasiumBatchEnv, make_env=third_party_envs.RaisesInStep)
    env = FlatVectorEnv(
        batch_env, NUM_ENVS, seed=SEED, restart_policy=WorkerSettings().restart_policy()
    )
    env.reset()
    cut = [env.step(np.zeros(NUM_ENVS, np.int64))[3].tolist() for _ in range(5)]
    assert cut[third_party_envs.RaisesInStep.fault_step - 1] == [True] * NUM_ENVS
    assert sum(map(sum, cut)) == NUM_ENVS


@pytest.mark.parametrize(
    "batch_env", ["third_party_masked", "third_party_multi_discrete", "third_party_box"]
)
def test_rllib_draws_from_what_our_policy_would_do(batch_env):
    pytest.importorskip("ray")
    from ray.rllib.core.columns import Columns

    from hundredfold.interop.rllib.module import ActorCriticModule

    env = FlatVectorEnv(ENV_CASES[batch_env], NUM_ENVS, seed=SEED)
    spec = env.env_spec
    rows, _ = env.reset()
    module = ActorCriticModule(
        observation_space=env.single_observation_space,
        action_space=env.single_action_space,
        model_config={"env": spec, "network": NetworkSettings(hidden_sizes=(8,))},
    )
    batch = env.out
    seen = tensors(batch.observation, torch.device("cpu"))
    mask = None if batch.mask is None else torch.from_numpy(batch.mask)
    ours = module.network.distribution(module.network.logits(seen), mask)
    outputs = module.forward_exploration({Columns.OBS: torch.from_numpy(rows)})
    theirs = module.get_exploration_action_dist_cls().from_logits(
        outputs[Columns.ACTION_DIST_INPUTS]
    )
    drawn = theirs.sample()
    assert drawn.shape[1:] == env.single_action_space.shape
    assert_allclose(
        theirs.logp(drawn).detach(),
        ours.log_prob(drawn.reshape(NUM_ENVS, -1)).detach(),
        rtol=1e-5,
    )


def test_scales_of_inputs_are_those_of_random_actions_and_stay():
    batch_env = ENV_CASES["CartPole-v1"]
    spec = batch_env(np.arange(1)).spec
    network = ActorCritic(spec, NetworkSettings(normalise_observations=True))
    settings = preset_settings("CartPole-v1")
    learn_first_scales(network.inputs, batch_env, settings)
    assert network.inputs.count == settings.rollout.num_envs * 64
    # Carts hardly move under random pushes; poles have fallen by 12 degrees.
    assert 0.01 < network.inputs.std[0] < 0.3
    assert 0.05 < network.inputs.std[2] < 0.2
    again = ActorCritic(spec, NetworkSettings(normalise_observations=True))
    learn_first_scales(again.inputs, batch_env, settings)
    assert torch.equal(again.inputs.mean, network.inputs.mean)


def test_a_run_by_rllib_is_recorded_judged_and_loaded(tmp_path):
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
        quiet=True,
    )
    assert run.finished
    rows = read_metrics(run.path)
    assert [row["total_steps"] for row in rows] == [120, 240]
    assert {"policy_loss", "value_loss", "entropy"} <= rows[1].keys()
    assert "eval/return_mean" in rows[1]
    judged = hundredfold.evaluate(run.path, episodes=3, checkpoint="last", backend="in_process")
    assert judged.metrics()["return_mean"] == pytest.approx(rows[1]["eval/return_mean"])
    with pytest.raises(SettingsError, match="trained by the engine rllib"):
        hundredfold.train(resume=run.path)


BRIEF = {
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


def test_rllib_trains_envs_of_somebody_else_each_with_seeds_of_its_own(tmp_path):
    shared_cluster()
    notes = tmp_path / "notes"
    notes.mkdir()
    make_env = partial(third_party_envs.RecordsSeeds, str(notes), seed_of(3))
    brief = {**BRIEF, "normalise_observations": True, "eval_interval": 2, "eval_episodes": 2}
    run = hundredfold.train(make_env, save_dir=tmp_path, name="run", **brief)
    assert run.finished
    assert {str(seed_of(env_id)) for env_id in range(4)} <= {path.name for path in notes.iterdir()}
    rows = read_metrics(run.path)
    assert [row["total_steps"] for row in rows] == [64, 128]
    assert rows[-1]["env_failures"] == rows[-1]["env_restarts"] == 1
    scales = checkpoint_arrays(run.path)
    assert scales["learner/network/inputs.count"] == 4 * 64
    assert scales["learner/network/inputs.std"].max() > 1.5
    action = run.policy().act(third_party_envs.UnevenBoxActions().reset(seed=SEED)[0])
    assert third_party_envs.UnevenBoxActions.action_space.contains(action)


def test_with_stop_an_env_that_fails_ends_the_run_and_says_why(tmp_path):
    shared_cluster()
    make_env = partial(third_party_envs.RecordsSeeds, str(tmp_path), seed_of(3))
    with pytest.raises(EnvError, match=r"env runner of RLlib gave up: .*env 3 .*failed in step"):
        hundredfold.train(make_env, save_dir=tmp_path, name="run", on_env_error="stop", **BRIEF)


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


def test_what_is_annealed_falls_to_nothing_at_the_end():
    pytest.importorskip("ray")
    from ray.rllib.utils.schedules.scheduler import Scheduler

    schedule = Scheduler(settings_map.falling(0.05, 1_000))
    assert [schedule.update(step) for step in (0, 500, 1_000, 2_000)] == [0.05, 0.025, 0.0, 0.0]
    assert Scheduler(settings_map.falling(0.05, 0)).update(500) == 0.05
    start = preset_settings("cage2")
    brief = replace(
        start,
        length=LengthSettings(epochs=3),
        rollout=RolloutSettings(num_envs=4, num_steps=50),
        ppo=replace(start.ppo, anneal_learning_rate=False, anneal_entropy=True),
    )
    told = settings_map.ppo_options(brief)
    assert told["entropy_coeff"] == [[0, start.ppo.entropy_coefficient], [600, 0.0]]
    assert told["lr"] == start.ppo.learning_rate


def test_the_preset_seed_003_is_as_described():
    settings = preset_settings("cage2", "rllib-20x5")
    assert settings.engine == "rllib"
    assert (settings.processes.workers, settings.rollout.num_envs) == (20, 100)
    assert settings.rollout.num_steps == 100
    assert settings.rollout.samples_per_epoch == 10_000
    assert settings.ppo.minibatch_size == 500


def test_fewer_cores_hold_the_same_envs_in_fewer_runners_and_say_so(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setattr(settings_map, "usable_cores", lambda: 8)
    runners, reason = settings_map.runners_for(preset_settings("cage2", "rllib-20x5"))
    assert runners == 5
    assert reason == (
        "5 env runners x 20 envs instead of 20 x 5, because there are 8 cores; an epoch stays "
        "10,000 samples."
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"env": "corridor", "algo": "dqn"}, "trains ppo"),
        ({"env": "dvrp"}, "acceptance-model none"),
        ({"env": "corridor", "num_value_epochs": 2, "num_policy_epochs": 2}, "one loss"),
    ],
)
def test_what_rllib_cannot_do_is_refused_in_words(change, says, tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(SettingsError, match=says):
        hundredfold.train(engine="rllib", save_dir=tmp_path, quiet=True, **change)
    assert not list(tmp_path.iterdir())
