"""Stable-Baselines3 trains a run: its algorithms, built-in envs, our run folder.

PPO becomes MaskablePPO where an env has masks. A callback closes our epochs: it brings the weights
home, judges, records and saves, and listens for signals between two steps.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from hundredfold.algorithms.actor_critic import ActorCritic
from hundredfold.algorithms.q_network import QNetwork
from hundredfold.backends.auto_select import BackendChoice
from hundredfold.backends.call_checks import refuse_while_importing_main
from hundredfold.config.run import LengthSettings, RunSettings
from hundredfold.core.batch import EnvSpec
from hundredfold.core.errors import EnvError
from hundredfold.core.protocols import EnvFactory
from hundredfold.envs.registry import ENVS
from hundredfold.interop.sb3 import require_contrib
from hundredfold.interop.sb3.envs import BackendVecEnv, single_envs
from hundredfold.interop.sb3.networks import Reader, bring_home, policy_options
from hundredfold.interop.sb3.settings_map import (
    dqn_options,
    notes_on,
    ppo_options,
    refuse_what_it_lacks,
)
from hundredfold.training.build import Components
from hundredfold.training.build import build as build_ours
from hundredfold.training.engines import EpisodeTracker
from hundredfold.training.process_setup import Interrupted, Interruptible
from hundredfold.training.run import Run

# Its names of what we tell as well.
LOSSES: Final = {
    "train/policy_gradient_loss": "policy_loss",
    "train/value_loss": "value_loss",
    "train/approx_kl": "approx_kl",
    "train/clip_fraction": "clip_fraction",
    "train/explained_variance": "explained_variance",
    "train/loss": "q_loss",
    "train/n_updates": "gradient_steps",
}

# Rollouts, or episodes, between two lines of its own log, which we read but never show.
NEVER: Final = 10**9

# A worker of SubprocVecEnv that has gone shows as one of these.
WORKER_GONE: Final = (EOFError, BrokenPipeError, ConnectionResetError)


@dataclass(slots=True)
class SB3Components(Components):
    """Our parts, of which the learner's network is what weights are brought home to."""

    envs: VecEnv = field(kw_only=True)

    @property
    def env_runner(self) -> object:
        return self.envs

    def health(self) -> dict[str, int]:
        # Its own vector envs do not tell.
        return self.backend.health() if isinstance(self.envs, BackendVecEnv) else {}

    def close(self) -> None:
        # Workers that have gone cannot be told to go.
        with suppress(*WORKER_GONE):
            self.envs.close()
        if isinstance(self.envs, SubprocVecEnv):
            for process in self.envs.processes:
                process.terminate()
                process.join()
        # Named in full: a dataclass with slots is made anew, and bare super() means the old one.
        super(SB3Components, self).close()


def build(settings: RunSettings, make_envs: EnvFactory | None = None) -> Components:
    """Envs of ours on a backend of ours, other envs in the vector envs of Stable-Baselines3."""
    refuse_while_importing_main("choose a backend")
    if settings.machine.backend == "first_ready":
        # It steps everybody together.
        settings = with_backend(settings, "processes")
    ours, spec = _first_look(settings, make_envs)
    try:
        refuse_what_it_lacks(settings, spec)
        if spec.has_mask:
            require_contrib()
        envs: VecEnv
        if spec.has_snapshots:
            envs = BackendVecEnv(ours.backend, settings.seed)
        else:
            settings = settings.resolved(spec)
            apart = settings.rollout.num_envs > 1 and settings.machine.backend in (
                "auto",
                "processes",
            )
            envs = single_envs(ours.make_envs, settings, apart=apart)
            ran = "processes" if isinstance(envs, SubprocVecEnv) else "in_process"
            ours.choice = BackendChoice(ran, settings.processes, type(envs).__name__)
            ours.settings = with_backend(settings, ran)
        return SB3Components(
            settings=ours.settings,
            backend=ours.backend,
            learner=ours.learner,
            collector=ours.collector,
            make_envs=ours.make_envs,
            choice=ours.choice,
            belief_model=ours.belief_model,
            envs=envs,
        )
    except BaseException:
        ours.close()
        raise


def train(run: Run) -> bool:
    """Train to the end; False when the user stopped it."""
    components = run.components
    assert isinstance(components, SB3Components)
    model = make_model(components)
    library = type(model).__module__.split(".")[0]
    run.display.print(f"  engine: {type(model).__name__} of {library}")
    for note in notes_on(run.settings):
        run.display.print(f"  note: {note}")
    total_steps = run.num_epochs * run.settings.rollout.samples_per_epoch
    with Interruptible() as signals:
        try:
            model.learn(total_steps, callback=Bookkeeper(run, signals), log_interval=NEVER)
        except Interrupted:
            run.save_last_complete()
            return False
        except WORKER_GONE as error:
            run.save_last_complete()
            if signals.requested:  # the same Ctrl-C reached the workers
                return False
            raise EnvError(
                "a worker of SubprocVecEnv has stopped; what its env said is above. "
                "Stable-Baselines3 cannot start it again; without --engine sb3 envs that fail do."
            ) from error
        except Exception:
            run.save_last_complete()
            raise
    return True


def make_model(components: SB3Components) -> OnPolicyAlgorithm | DQN:
    """The algorithm with our settings, and networks built like ours."""
    settings, spec, learner = components.settings, components.backend.spec, components.learner
    assert isinstance(learner.network, ActorCritic | QNetwork)
    common: dict[str, Any] = {
        "policy": "MlpPolicy",
        "env": components.envs,
        "policy_kwargs": policy_options(learner.network, spec, settings.network),
        "seed": settings.seed % 2**32,
        "device": learner.device,
    }
    if settings.algo == "dqn":
        return DQN(**common, **dqn_options(settings, spec))
    if not spec.has_mask:
        return PPO(**common, **ppo_options(settings))
    from sb3_contrib import MaskablePPO

    found: OnPolicyAlgorithm = MaskablePPO(**common, **ppo_options(settings))
    return found


class Bookkeeper(BaseCallback):
    """Hears every step, and closes an epoch of ours after the update that ends it."""

    def __init__(self, run: Run, signals: Interruptible) -> None:
        super().__init__()
        assert isinstance(run.components, SB3Components)
        self.run, self.signals, self.envs = run, signals, run.components.envs
        self.on_progress = run.progress_callback(signals)
        rollout = run.settings.rollout
        self.episodes = EpisodeTracker(rollout.num_envs)
        self.steps_per_epoch = rollout.num_steps
        # PPO learns between two rollouts; DQN all the time.
        on_policy = run.settings.algo == "ppo"
        self.steps_per_update = rollout.num_steps * rollout.policy_update_interval * on_policy
        self.waits_for_update = False
        self.mark = time.perf_counter()

    def _on_training_start(self) -> None:
        self.mark = time.perf_counter()

    def _on_rollout_start(self) -> None:
        self._count_as("update")
        if self.waits_for_update:
            self._learn_scale()
            self._close_epoch()

    def _on_step(self) -> bool:
        self._hear()
        self.on_progress()
        if self.n_calls % self.steps_per_epoch == 0:
            self._count_as("collect")
            if self.steps_per_update and self.n_calls % self.steps_per_update == 0:
                self.waits_for_update = True
            else:
                self._close_epoch()
        # Its DQN would gather a whole bout more; PPO has its last update before it.
        return not self.run.finished

    def _on_rollout_end(self) -> None:
        self._count_as("collect")
        ppo = self.run.settings.ppo
        if self.run.settings.algo == "ppo" and ppo.anneal_entropy:
            done = self.n_calls - self.steps_per_update
            whole = self.run.num_epochs * self.steps_per_epoch
            self.learning.ent_coef = ppo.entropy_coefficient * (1 - done / whole)

    def _on_training_end(self) -> None:
        self._on_rollout_start()

    def _hear(self) -> None:
        rewards, ended = self.locals["rewards"], self.locals["dones"]
        if not isinstance(self.envs, BackendVecEnv):
            self.episodes.record(rewards, ended)
            return
        batch = self.envs.batch
        self.episodes.record(batch.reward, ended, batch.episode_info)
        for hear in self.run.step_callbacks:
            hear(batch)

    def _close_epoch(self) -> None:
        run, network = self.run, self.run.components.learner.network
        self.waits_for_update = False
        assert isinstance(network, ActorCritic | QNetwork)
        bring_home(self.model.policy, network)
        with run.timed("belief_model"):
            learned = run.update_belief_model()
        with run.timed("evaluate"):
            judged = run.evaluate_if_due(self.signals)
        run.record(self.episodes.drain(), {**self._losses(), **learned, **judged})
        run.save_if_due()
        self.mark = time.perf_counter()

    def _losses(self) -> dict[str, float]:
        """What it logged of the last update, under our names."""
        logged = self.model.logger.name_to_value
        found = {mine: float(logged[name]) for name, mine in LOSSES.items() if name in logged}
        if self.run.settings.algo == "dqn":
            return found | {"exploration": float(self.learning.exploration_rate)}
        found.pop("q_loss", None)
        found.pop("gradient_steps", None)
        if "train/entropy_loss" in logged:
            found["entropy"] = -float(logged["train/entropy_loss"])
        return found

    def _learn_scale(self) -> None:
        """Where inputs are scaled: follow what the rollout has seen, once it is learned from."""
        policy = self.learning.policy
        for reader in {policy.pi_features_extractor, policy.vf_features_extractor}:
            assert isinstance(reader, Reader)
            reader.update_stats(self.learning.rollout_buffer.observations)

    @property
    def learning(self) -> Any:
        """The model, whose attributes depend on the algorithm."""
        return self.model

    def _count_as(self, phase: str) -> None:
        now = time.perf_counter()
        self.run.seconds[phase] += now - self.mark
        self.mark = now


def with_backend(settings: RunSettings, name: str) -> RunSettings:
    """The same run with its envs elsewhere."""
    return replace(settings, machine=replace(settings.machine, backend=name))


def _first_look(settings: RunSettings, make_envs: EnvFactory | None) -> tuple[Components, EnvSpec]:
    """Our parts for this env, and what it looks like; of envs that are not ours a single one."""
    if make_envs is None and settings.env in ENVS:
        ours = build_ours(settings)
        return ours, ours.backend.spec
    alone = replace(
        with_backend(settings, "in_process"),
        rollout=replace(settings.rollout, num_envs=1, num_steps=max(settings.rollout.num_steps, 1)),
        length=LengthSettings(epochs=settings.rollout.policy_update_interval),
    )
    ours = build_ours(alone, make_envs)
    return ours, ours.backend.spec
