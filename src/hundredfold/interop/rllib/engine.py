"""Training engine `rllib`: PPO and env runners of RLlib, run folder and metrics of this package.

One result of RLlib is one epoch: the weights are copied back, the policy is evaluated, metrics and
checkpoints are written. RLlib's learner cannot update input statistics, so they are estimated with
random actions before training.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from ray.exceptions import RayError
from ray.rllib.algorithms import ppo as rllib_ppo
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.tune.registry import register_env

from hundredfold.algorithms.actor_critic import ActorCritic, InputLayer, tensors
from hundredfold.backends.settings import usable_cores
from hundredfold.config.run import RunSettings
from hundredfold.core.errors import EnvError, SettingsError, WorkerError
from hundredfold.core.failures import Failure
from hundredfold.core.protocols import EnvFactory, PerEnvBatch
from hundredfold.distributed import placement
from hundredfold.interop.rllib.envs import FailureLog, make_env
from hundredfold.interop.rllib.module import ActorCriticModule
from hundredfold.rollout.episode_stats import EpisodeStats
from hundredfold.training.build import Components
from hundredfold.training.build import build as build_components
from hundredfold.training.evaluate import random_actor
from hundredfold.training.process_setup import Interrupted, Interruptible
from hundredfold.training.run import Run

# Input statistics are estimated on at most so many envs, steps per env and seconds.
STATS_ENVS: Final = 32
STATS_STEPS: Final = 64
STATS_SECONDS: Final = 10.0

# Its annotations are incomplete, and stricter than what it accepts.
RLLIB: Final[Any] = rllib_ppo
ENV: Final = "hundredfold-run"
# Loggers that write at every start.
NOISY_LOGGERS: Final = ("ray.rllib", "ray.tune", "ray._common.deprecation")
# Metrics of RLlib's env runners and learner, and their names in this package.
RUNNER_METRICS: Final = {"episode_return_mean": "return_mean", "episode_len_mean": "avg_episode_steps"}
LEARNER_METRICS: Final = {
    "policy_loss": "policy_loss",
    "vf_loss": "value_loss",
    "entropy": "entropy",
    "mean_kl_loss": "approx_kl",
    "vf_explained_var": "explained_variance",
}


@dataclass(slots=True)
class RLlibEnvRunners:
    """The env runners of RLlib, which create and step the envs."""

    num_runners: int
    notes: list[str]  # what differs from the settings, and why
    failure_log: FailureLog
    num_sampled: int = 0  # steps of all envs, as RLlib counts

    @property
    def name(self) -> str:
        return "EnvRunners"

    def health(self) -> dict[str, int]:
        counts, _ = self.failure_log.read()
        return counts

    @property
    def first_failure(self) -> Failure | None:
        return self.failure_log.first_failure()

    def close(self) -> None:
        self.failure_log.close()
        placement.disconnect()


def build(settings: RunSettings, make_envs: EnvFactory | None = None) -> Components:
    """Components of a run, with a backend of one env for its spec; RLlib runs the envs.

    The network of the learner has the weights of checkpoints.
    """
    reject_unsupported(settings)
    num_runners, reason = num_env_runners(settings)
    in_process = replace(settings, machine=replace(settings.machine, backend="in_process"))
    single = replace(in_process, rollout=replace(in_process.rollout, num_envs=1))
    components = build_components(single, make_envs)
    try:
        components.settings = in_process.resolved(components.backend.spec)
        if settings.network.normalise_observations:
            estimate_input_stats(_network(components).inputs, components.make_envs, settings)
        placement.connect(settings.ray, num_runners + 1)
    except BaseException:
        components.close()
        raise
    notes = [*([reason] if reason else []), *unsupported_notes(settings)]
    components.external_envs = RLlibEnvRunners(num_runners, notes, FailureLog())
    return components


def estimate_input_stats(inputs: InputLayer, make_envs: EnvFactory, settings: RunSettings) -> None:
    """Set the input normalisation from some steps of random allowed actions."""
    num_envs = min(STATS_ENVS, settings.rollout.num_envs)
    deadline = time.monotonic() + STATS_SECONDS
    with closing(make_envs(np.arange(num_envs))) as env:
        if isinstance(env, PerEnvBatch):
            env.restart_policy = settings.processes.restart_policy()
        act, batch = random_actor(env.spec, settings.seed), env.reset(settings.seed)
        for step in range(STATS_STEPS):
            inputs.update_stats(tensors(batch.observation, inputs.mean.device))
            if step and time.monotonic() > deadline:
                break
            batch = env.step(act(batch))


def train(run: Run) -> bool:
    """Train to the end; False if it was interrupted."""
    runners = _env_runners(run.components)
    run.display.print(f"  engine: PPO of RLlib, {runners.num_runners} env runners")
    for note in runners.notes:
        run.display.print(f"  note: {note}")
    algorithm = make_algorithm(run.components)
    run.display.start_clock()
    with Interruptible() as signals:
        try:
            while not run.finished:
                signals.check()
                _train_epoch(run, algorithm, signals)
        except Interrupted:
            run.save_last_complete()
            return False
        except Exception:
            run.save_last_complete()
            raise
        finally:
            algorithm.stop()
    return True


def make_algorithm(components: Components) -> Any:
    """The PPO of RLlib on vectorised envs, with the network of the learner."""
    settings, rollout = components.settings, components.settings.rollout
    runners = _env_runners(components)
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    # Runners on any node look it up by name.
    register_env(ENV, _create_env)
    config = (
        RLLIB.PPOConfig()
        .environment(
            ENV,
            env_config={
                "env": settings.env,
                "make_envs": components.make_envs,
                "seed": settings.seed,
                "restart_policy": settings.processes.restart_policy(),
                "failure_log": runners.failure_log,
            },
            # The envs scale and clip actions themselves.
            normalize_actions=False,
        )
        .env_runners(
            num_env_runners=runners.num_runners,
            num_envs_per_env_runner=rollout.num_envs // runners.num_runners,
            num_cpus_per_env_runner=settings.ray.actor_cpus,
            rollout_fragment_length=rollout.num_steps,
            gym_env_vectorize_mode="vector_entry_point",
            sample_timeout_s=settings.ray.fragment_timeout,
        )
        .callbacks(on_environment_created=_set_runner_index)
        # A restarted runner would repeat the same episodes.
        .fault_tolerance(restart_failed_env_runners=False)
        .learners(num_learners=0)
        .training(**ppo_kwargs(settings))
        .rl_module(
            rl_module_spec=RLModuleSpec(
                module_class=ActorCriticModule,
                model_config={
                    "env": components.backend.spec,
                    "network": settings.network,
                    "inputs": _cpu_weights(_network(components).inputs),
                },
            )
        )
        .debugging(seed=settings.seed % 2**31, log_level="ERROR")
    )
    return config.build_algo()


def _create_env(context: Mapping[str, Any]) -> Any:
    return make_env(str(context["env"]), context)


def _set_runner_index(*, env: Any, env_context: Any, **kwargs: Any) -> None:
    env.set_runner_index(env_context.worker_index)


def _train_epoch(run: Run, algorithm: Any, signals: Interruptible) -> None:
    """Train for one result of RLlib and record it as an epoch."""
    begin = time.perf_counter()
    result = _train_once(run.components, algorithm)
    _copy_weights_back(algorithm, run.components)
    spent, timers = time.perf_counter() - begin, result.get("timers", {})
    update = min(float(timers.get("learner_update_timer", 0.0)), spent)
    run.seconds["collect"] += spent - update
    run.seconds["update"] += update
    run.display.advance(run.settings.rollout.samples_per_epoch)
    metrics = _metrics(result)
    run.counters.total_episodes += int(result["env_runners"].get("num_episodes", 0))
    with run.timed("evaluate"):
        metrics |= run.evaluate_if_due(signals)
    run.end_epoch(EpisodeStats(), metrics)


def _train_once(components: Components, algorithm: Any) -> dict[str, Any]:
    """One result of RLlib, or an error that says why there is none."""
    runners = _env_runners(components)
    try:
        result: dict[str, Any] = algorithm.train()
    except RayError as error:
        _, last_error = runners.failure_log.read()
        if last_error:
            raise EnvError(f"an env runner of RLlib failed: {last_error}") from None
        first_line = str(error).strip().partition("\n")[0]
        raise WorkerError(
            f"an env runner of RLlib was lost ({first_line}). The default engine replaces lost "
            "actors of --backend ray; --engine rllib cannot."
        ) from None
    num_sampled = int(result.get("env_runners", {}).get("num_env_steps_sampled_lifetime", 0))
    if num_sampled <= runners.num_sampled:
        limit = components.settings.ray.fragment_timeout
        raise WorkerError(
            f"the env runners of RLlib returned no samples within {limit:g} seconds; raise "
            "--fragment-timeout or use fewer --num-steps."
        )
    runners.num_sampled = num_sampled
    return result


def _copy_weights_back(algorithm: Any, components: Components) -> None:
    weights = _cpu_weights(algorithm.get_module().network)
    with torch.no_grad():
        components.learner.network.load_state_dict(weights)


def _cpu_weights(module: Any) -> dict[str, Any]:
    return {name: tensor.cpu() for name, tensor in module.state_dict().items()}


def _metrics(result: dict[str, Any]) -> dict[str, float]:
    """Finite metrics of a result under the names of this package."""
    learner = result.get("learners", {}).get("default_policy", {})
    metrics = {
        name: float(source[rllib_name])
        for source, names in ((result["env_runners"], RUNNER_METRICS), (learner, LEARNER_METRICS))
        for rllib_name, name in names.items()
        if rllib_name in source
    }
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _env_runners(components: Components) -> RLlibEnvRunners:
    runners = components.external_envs
    assert isinstance(runners, RLlibEnvRunners)
    return runners


def _network(components: Components) -> ActorCritic:
    network = components.learner.network
    assert isinstance(network, ActorCritic)
    return network


# --- settings as arguments of RLlib


def reject_unsupported(settings: RunSettings) -> None:
    """Raise a SettingsError for settings without which another algorithm would be trained."""
    if settings.algo != "ppo":
        raise SettingsError(f"--engine rllib works with --algo ppo only; use the default engine for {settings.algo}.")
    if settings.ppo.separate_epochs:
        raise SettingsError(
            "num_value_epochs and num_policy_epochs need separate losses, and the PPO of RLlib has "
            "one loss; set both to 0 and use update_epochs, or use the default engine."
        )
    if getattr(settings.belief_model, "acceptance_model", "none") != "none":
        raise SettingsError(
            "belief models need per-step data that RLlib does not expose; use --acceptance-model none "
            "--no-acceptance-hint --mask-mode none, or the default engine."
        )
    if settings.network.architecture != "mlp" or settings.ppo.advantages != "gae":
        raise SettingsError(
            "RLlib learns from returns with a multilayer perceptron; use --architecture mlp and "
            "--advantages gae (for dvrp --preset returns), or the default engine."
        )
    if settings.rollout.policy_update_interval != 1:
        raise SettingsError(
            "RLlib updates after every epoch, but policy_update_interval is "
            f"{settings.rollout.policy_update_interval}; set it to 1 or use the default engine."
        )


def unsupported_notes(settings: RunSettings) -> list[str]:
    """What differs from the default engine, in whole sentences."""
    ppo, notes = settings.ppo, []
    if settings.network.normalise_observations:
        notes.append("normalise_observations: statistics of random actions are used throughout.")
    if ppo.normalise_values:
        notes.append("normalise_values is not supported: values are learned unscaled.")
    if not ppo.normalise_advantages:
        notes.append("normalise_advantages is always on: RLlib normalises over every batch.")
    if ppo.target_kl:
        notes.append("target_kl is not supported: updates do not stop early.")
    return notes


def ppo_kwargs(settings: RunSettings) -> dict[str, Any]:
    """Arguments of `PPOConfig.training`."""
    ppo, samples = settings.ppo, settings.rollout.samples_per_epoch
    total = settings.length.epochs * samples
    return {
        "train_batch_size_per_learner": samples,
        "minibatch_size": min(ppo.minibatch_size or -(-samples // ppo.num_minibatches), samples),
        "num_epochs": ppo.update_epochs,
        "lr": linear_schedule(ppo.learning_rate, total if ppo.anneal_learning_rate else 0),
        "gamma": ppo.gamma,
        "lambda_": ppo.gae_lambda,
        "clip_param": ppo.clip_range,
        "vf_clip_param": math.inf,
        "vf_loss_coeff": ppo.value_coefficient,
        "entropy_coeff": linear_schedule(ppo.entropy_coefficient, total if ppo.anneal_entropy else 0),
        "use_kl_loss": False,
        "grad_clip": ppo.max_gradient_norm,
    }


def linear_schedule(value: float, num_steps: int) -> float | list[list[float]]:
    """RLlib's notation of a value that falls to 0 over `num_steps`; 0 steps = constant."""
    return [[0, value], [num_steps, 0.0]] if num_steps else value


def num_env_runners(settings: RunSettings) -> tuple[int, str]:
    """Number of env runners, which must divide the number of envs.

    Returns:
        The number, and if it is not the one in the settings, the reason.
    """
    num_envs, wanted = settings.rollout.num_envs, settings.processes.workers
    cores = usable_cores()
    limit = wanted or cores
    # Only on this machine: the size of another cluster is not known yet.
    too_few_cores = not settings.ray.address and limit > cores
    limit = cores if too_few_cores else limit
    runners = next(count for count in range(min(limit, num_envs), 0, -1) if num_envs % count == 0)
    if runners == wanted or not wanted:
        return runners, ""
    reason = f"there are {cores} cores" if too_few_cores else f"{num_envs} envs do not split evenly"
    return runners, (
        f"{runners} env runners x {num_envs // runners} envs instead of {wanted} x "
        f"{num_envs / wanted:g}, because {reason}; an epoch stays "
        f"{settings.rollout.samples_per_epoch or num_envs:,} samples."
    )
