"""RLlib trains a run: its PPO and env runners, built-in envs and network, our run folder.

A result of RLlib's is an epoch of ours: the weights come home, the policy is judged, metrics and
checkpoints are written as ever.

Scales of a network's inputs for RLlib, whose learner has no place for ones that change.

Random actions are played for a while before training; what the envs show then decides the scales.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Final

import numpy as np
import torch
from ray.exceptions import RayError
from ray.rllib.algorithms import ppo as rllib_ppo
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.tune.registry import register_env

from hundredfold.algorithms.actor_critic import ActorCritic, InputLayer, tensors
from hundredfold.config.run import RunSettings
from hundredfold.core.errors import EnvError, WorkerError
from hundredfold.core.protocols import EnvFactory, PerEnvBatch
from hundredfold.distributed import placement
from hundredfold.interop.rllib.envs import Postbox, make_env
from hundredfold.interop.rllib.module import ActorCriticModule
from hundredfold.interop.rllib.settings_map import (
    notes_on,
    ppo_options,
    refuse_what_it_lacks,
    runners_for,
)
from hundredfold.rollout.episode_stats import EpisodeStats
from hundredfold.training.build import Components
from hundredfold.training.build import build as build_ours
from hundredfold.training.evaluate import random_actor
from hundredfold.training.process_setup import Interrupted, Interruptible
from hundredfold.training.run import Run

# No more envs than will be trained on, and not for long where they are slow.
MOST_ENVS: Final = 32
NUM_STEPS: Final = 64
MOST_SECONDS: Final = 10.0


def learn_first_scales(inputs: InputLayer, make_envs: EnvFactory, settings: RunSettings) -> None:
    """Set the scales from some steps of random allowed actions."""
    num_envs = min(MOST_ENVS, settings.rollout.num_envs)
    until = monotonic() + MOST_SECONDS
    with closing(make_envs(np.arange(num_envs))) as env:
        if isinstance(env, PerEnvBatch):
            env.restart_policy = settings.processes.restart_policy()
        act, batch = random_actor(env.spec, settings.seed), env.reset(settings.seed)
        for step in range(NUM_STEPS):
            inputs.update_stats(tensors(batch.observation, inputs.mean.device))
            if step and monotonic() > until:
                break
            batch = env.step(act(batch))


# Half of it has types, and they are stricter than what it takes.
RLLIB: Final[Any] = rllib_ppo
ENV: Final = "hundredfold-run"
# What its parts tell each other at every start.
TALKATIVE: Final = ("ray.rllib", "ray.tune", "ray._common.deprecation")
# Its names of what we tell as well.
LOSSES: Final = {
    "policy_loss": "policy_loss",
    "vf_loss": "value_loss",
    "entropy": "entropy",
    "mean_kl_loss": "approx_kl",
    "vf_explained_var": "explained_variance",
}


class EnvRunners:
    """Stands for the envs, which live with RLlib."""


@dataclass(slots=True)
class RLlibComponents(Components):
    """Our parts, of which the learner's network is what weights are brought home to."""

    num_runners: int = field(kw_only=True)
    notes: list[str] = field(kw_only=True)  # what is otherwise than asked for, and why
    postbox: Postbox = field(kw_only=True)
    num_sampled: int = 0  # as RLlib counts

    @property
    def env_runner(self) -> object:
        return EnvRunners()

    def health(self) -> dict[str, int]:
        counts, _ = self.postbox.read()
        return counts

    def close(self) -> None:
        # Named in full: a dataclass with slots is made anew, and bare super() means the old one.
        super(RLlibComponents, self).close()
        self.postbox.close()
        placement.disconnect()


def build(settings: RunSettings, make_envs: EnvFactory | None = None) -> Components:
    """Our own parts on one env, to look at and to judge with; the envs live with RLlib."""
    refuse_what_it_lacks(settings)
    num_runners, reason = runners_for(settings)
    here = replace(settings, machine=replace(settings.machine, backend="in_process"))
    ours = build_ours(replace(here, rollout=replace(here.rollout, num_envs=1)), make_envs)
    try:
        ours.settings = here.resolved(ours.backend.spec)
        if settings.network.normalise_observations:
            inputs = _network(ours).inputs
            learn_first_scales(inputs, ours.make_envs, settings)
        placement.connect(settings.ray, num_runners + 1)
    except BaseException:
        ours.close()
        raise
    return RLlibComponents(
        settings=ours.settings,
        backend=ours.backend,
        learner=ours.learner,
        collector=ours.collector,
        make_envs=ours.make_envs,
        choice=ours.choice,
        belief_model=None,
        num_runners=num_runners,
        notes=[*([reason] if reason else []), *notes_on(settings)],
        postbox=Postbox(),
    )


def train(run: Run) -> bool:
    """Train to the end; False when the user stopped it."""
    components = run.components
    assert isinstance(components, RLlibComponents)
    run.display.print(f"  engine: PPO of RLlib, {components.num_runners} env runners")
    for note in components.notes:
        run.display.print(f"  note: {note}")
    algorithm = make_algorithm(components)
    with Interruptible() as signals:
        try:
            while not run.finished:
                signals.check()
                _epoch(run, components, algorithm, signals)
        except Interrupted:
            run.save_last_complete()
            return False
        except Exception:
            run.save_last_complete()
            raise
        finally:
            algorithm.stop()
    return True


def make_algorithm(components: RLlibComponents) -> Any:
    """Its PPO with our settings, batch envs through the vector entry point, masks in the module."""
    settings, rollout = components.settings, components.settings.rollout
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
    # Runners find it by name, wherever they are.
    register_env(ENV, _made_here)
    config = (
        RLLIB.PPOConfig()
        .environment(
            ENV,
            env_config={
                "env": settings.env,
                "make_envs": components.make_envs,
                "seed": settings.seed,
                "guard": settings.processes.restart_policy(),
                "postbox": components.postbox,
            },
            # Numbers around 0, which the envs themselves bring within bounds.
            normalize_actions=False,
        )
        .env_runners(
            num_env_runners=components.num_runners,
            num_envs_per_env_runner=rollout.num_envs // components.num_runners,
            num_cpus_per_env_runner=settings.ray.actor_cpus,
            rollout_fragment_length=rollout.num_steps,
            gym_env_vectorize_mode="vector_entry_point",
            sample_timeout_s=settings.ray.fragment_timeout,
        )
        .callbacks(on_environment_created=_placed)
        # A runner that is started again would begin the same episodes again.
        .fault_tolerance(restart_failed_env_runners=False)
        .learners(num_learners=0)
        .training(**ppo_options(settings))
        .rl_module(
            rl_module_spec=RLModuleSpec(
                module_class=ActorCriticModule,
                model_config={
                    "env": components.backend.spec,
                    "network": settings.network,
                    "inputs": {
                        k: v.cpu() for k, v in _network(components).inputs.state_dict().items()
                    },
                },
            )
        )
        .debugging(seed=settings.seed % 2**31, log_level="ERROR")
    )
    return config.build_algo()


def _network(components: Components) -> ActorCritic:
    network = components.learner.network
    assert isinstance(network, ActorCritic)
    return network


def _made_here(context: Mapping[str, Any]) -> Any:
    return make_env(str(context["env"]), context)


def _placed(*, env: Any, env_context: Any, **more: Any) -> None:
    """Of all envs every runner holds its own."""
    env.take_place(env_context.worker_index)


def _epoch(run: Run, components: RLlibComponents, algorithm: Any, signals: Interruptible) -> None:
    """One result of RLlib's, in our books."""
    begin = time.perf_counter()
    result = _result(components, algorithm)
    _bring_home(run, algorithm)
    spent, timers = time.perf_counter() - begin, result.get("timers", {})
    update = min(float(timers.get("learner_update_timer", 0.0)), spent)
    run.seconds["collect"] += spent - update
    run.seconds["update"] += update
    run.display.advance(run.settings.rollout.samples_per_epoch)
    told = _told(result)
    run.counters.total_episodes += int(result["env_runners"].get("num_episodes", 0))
    with run.timed("evaluate"):
        told |= run.evaluate_if_due(signals)
    run.record(EpisodeStats(), told)
    run.save_if_due()


def _result(components: RLlibComponents, algorithm: Any) -> dict[str, Any]:
    """What RLlib has to tell of one more update, or an error that says why there is none."""
    try:
        result: dict[str, Any] = algorithm.train()
    except RayError as error:
        _, last_words = components.postbox.read()
        if last_words:
            raise EnvError(f"an env runner of RLlib gave up: {last_words}") from None
        first_line = str(error).strip().partition("\n")[0]
        raise WorkerError(
            f"an env runner of RLlib was lost ({first_line}), and this engine does not replace "
            "them; --backend ray without --engine does."
        ) from None
    sampled = int(result.get("env_runners", {}).get("num_env_steps_sampled_lifetime", 0))
    if sampled <= components.num_sampled:
        limit = components.settings.ray.fragment_timeout
        raise WorkerError(
            f"the env runners of RLlib brought nothing within {limit:g} seconds; allow them more "
            "with --fragment-timeout, or ask for fewer --num-steps."
        )
    components.num_sampled = sampled
    return result


def _bring_home(run: Run, algorithm: Any) -> None:
    module = algorithm.get_module()
    weights = {name: tensor.cpu() for name, tensor in module.network.state_dict().items()}
    with torch.no_grad():
        run.components.learner.network.load_state_dict(weights)


def _told(result: dict[str, Any]) -> dict[str, float]:
    """Its figures under our names."""
    played = result["env_runners"]
    learned = result.get("learners", {}).get("default_policy", {})
    names = {"episode_return_mean": "return_mean", "episode_len_mean": "avg_episode_steps"}
    found = {ours: float(played[name]) for name, ours in names.items() if name in played}
    found |= {ours: float(learned[name]) for name, ours in LOSSES.items() if name in learned}
    return {name: value for name, value in found.items() if math.isfinite(value)}
