"""How an env scales with the number of envs on each backend, and what the rest is lost to.

The yardstick is one env alone: the mean time of its own steps, with nothing around them. Envs that
wait could all wait at once, so the ideal of N envs is N times that; envs that compute need a core,
so it is as many times that as there are cores; a built-in env is one batch and is held against N
times a batch of one.

One sentence of advice from where the time went.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final, Literal

import numpy as np

from hundredfold.backends import make_backend
from hundredfold.backends.auto_select import fit_workers, ready_batch
from hundredfold.backends.env_profile import StepCosts, measure_steps
from hundredfold.backends.settings import WorkerSettings, usable_cores
from hundredfold.core import rng
from hundredfold.core.action_scaling import random_actions
from hundredfold.core.batch import EnvSpec, IntArray, StepBatch
from hundredfold.core.protocols import Backend, EnvFactory
from hundredfold.envs.gymnasium_env import EnvMaker, GymnasiumBatchEnv
from hundredfold.envs.registry import callable_factory, canonical_name, env_factory
from hundredfold.profiling.measure import OURS
from hundredfold.profiling.timeline import (
    Account,
    StampedEnvFactory,
    StampedEnvsFactory,
    Stamps,
    WatchedBackend,
    account,
)
from hundredfold.profiling.workloads import Computing, Talkative, Waiting, WaitingLonger

# What keeps envs from stepping, as rows of `scale` name it after `lost_to_`.
LOSSES: Final = ("slower", "one_by_one", "barrier", "moving", "policy", "learner")
# From here on there is nothing to advise.
GOOD: Final = 0.95
# Steps cheaper than this cost less than sending them elsewhere.
CHEAP_SECONDS: Final = 50e-6

REMEDIES: Final[Mapping[str, str]] = {
    "barrier": "use --backend first_ready, which waits for nobody",
    "one_by_one": "use --backend processes or first_ready, so that envs run side by side",
    "moving": "moving data costs more than the steps: use --backend in_process, or show less in "
    "observations and infos",
    "policy": "a faster policy, or more envs per batch, would help more than another backend",
    "learner": "fewer passes or a smaller network would help more than another backend",
    "slower": "steps take longer side by side than alone: other work is on these cores, or memory "
    "is the limit",
}
WORDS: Final[Mapping[str, str]] = {
    "barrier": "the barrier (waiting for the slowest)",
    "one_by_one": "stepping one after another",
    "moving": "moving data",
    "policy": "the policy",
    "learner": "the learner",
    "slower": "steps that are slower than alone",
}


def advice(rows: Sequence[Mapping[str, Any]]) -> str:
    """One sentence about the largest number of envs, from what was measured there."""
    most = max(row["num_envs"] for row in rows)
    there = [row for row in rows if row["num_envs"] == most]
    best = max(there, key=lambda row: row["steps_per_second"])
    reached = f"{100 * best['efficiency']:.0f} % of the ideal with {most} envs"
    others = [row for row in there if row is not best]
    if others:
        second = max(others, key=lambda row: row["steps_per_second"])
        return (
            f"Use --backend {best['backend']}: it reaches {reached}. With {second['backend']}, "
            f"{_told_loss(second)}."
        )
    if best["efficiency"] >= GOOD:
        return f"{best['backend']} reaches {reached}: there is next to nothing left to gain."
    cause = main_loss(best)
    remedy = REMEDIES[cause]
    if cause == "barrier" and best["backend"] == "first_ready":
        remedy = "use a smaller --batch-envs"
    elif cause == "one_by_one" and best["step_seconds_alone"] < CHEAP_SECONDS:
        remedy = "steps this cheap gain little from other processes; one batch of arrays would"
    return f"{best['backend']} reaches {reached}. {_told_loss(best)}: {remedy}."


def main_loss(row: Mapping[str, Any]) -> str:
    """What most of the loss goes to."""
    return max(LOSSES, key=lambda name: float(row[f"lost_to_{name}"]))


def _told_loss(row: Mapping[str, Any]) -> str:
    cause = main_loss(row)
    total = sum(row[f"lost_to_{name}"] for name in LOSSES)
    share = row[f"lost_to_{cause}"] / total if total > 0 else 0.0
    return f"{100 * share:.0f} % of the loss is {WORDS[cause]}"


# Envs of known cost, by the names they have here.
KNOWN_COST: Final[Mapping[str, EnvMaker]] = {
    "waiting": Waiting,
    "waiting-50ms": WaitingLonger,
    "computing": Computing,
    "talkative": Talkative,
}
SIZES: Final = (1, 8, 64, 100, 256)
ALL_BACKENDS: Final = ("in_process", "processes", "first_ready")
# Less than this is within the luck of the draw for envs whose steps differ anyway.
NOTICEABLE: Final = 0.9
WARM_UP: Final = 0.15
DRAWN: Final = 64
LEARN_STEPS: Final = 32

Kind = Literal["waiting", "computing", "batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSettings:
    """What to measure."""

    num_envs: tuple[int, ...] = SIZES
    backends: tuple[str, ...] = ALL_BACKENDS
    seconds: float = 2.0
    policy_ms: float = 0.0
    learn: bool = False
    # An env that fails ends the measurement: what it does afterwards is another thing.
    workers: WorkerSettings = field(default_factory=lambda: WorkerSettings(on_env_error="stop"))


@dataclass(frozen=True, slots=True)
class Subject:
    """The env that is measured."""

    name: str
    kind: Kind
    make_envs: Callable[[Stamps], EnvFactory]  # one that keeps the book
    found: StepCosts | None  # None for built-in envs

    def at_best(self, num_envs: int, cores: int) -> int:
        """How many lanes could be at work at once."""
        if self.kind == "batch":
            return 1
        return num_envs if self.kind == "waiting" else min(cores, num_envs)

    def most(self, num_envs: int, cores: int) -> int:
        """How many times one env alone would be ideal."""
        return num_envs if self.kind == "batch" else self.at_best(num_envs, cores)

    def ideal(self, cores: int) -> str:
        """What efficiency is measured against, in words."""
        if self.kind == "batch":
            return "N times a batch of one env"
        if self.kind == "waiting":
            return "N times one env, because its envs wait rather than compute"
        return f"{cores} times one env, because its envs compute and there are {cores} cores"


def subject_of(name: str, env_settings: Any = None) -> Subject:
    """Look at one env of this env: ours, a Gymnasium id, or one of known cost."""
    factory = factory_of(name, env_settings)
    env = factory(np.arange(1))
    try:
        if not isinstance(env, GymnasiumBatchEnv):
            return Subject(name, "batch", partial(StampedEnvsFactory, factory), None)
        found = measure_steps(env)
        kind: Kind = "waiting" if found.waits else "computing"
        return Subject(name, kind, partial(StampedEnvFactory, env.make_env, name), found)
    finally:
        env.close()


def factory_of(name: str, env_settings: Any) -> EnvFactory:
    if name in KNOWN_COST:
        return callable_factory(KNOWN_COST[name])
    return env_factory(canonical_name(name), env_settings)


def measure_scaling(
    subject: Subject, asked: ScaleSettings, on_progress: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """A row per number of envs and backend."""
    cores = usable_cores()
    on_progress(f"{subject.name}: one env alone")
    alone = measure_one(subject, "in_process", 1, replace(asked, policy_ms=0.0, learn=False))
    rows = []
    for num_envs in dict.fromkeys(asked.num_envs):
        for backend in asked.backends:
            on_progress(f"{subject.name}: {num_envs} envs, {backend}")
            found = measure_one(subject, backend, num_envs, asked)
            lanes = int(lanes_of(subject, backend, num_envs, asked.workers).max()) + 1
            used = min(1.0, lanes / subject.at_best(num_envs, cores))
            shares = shares_of(found, alone.step_seconds, used, subject.kind)
            rows.append(
                {
                    "system": OURS,
                    "env": subject.name,
                    "num_envs": num_envs,
                    "backend": backend,
                    "steps_per_second": found.steps_per_second,
                    "ideal_steps_per_second": subject.most(num_envs, cores) / alone.step_seconds,
                    "efficiency": shares.pop("stepping"),
                    **{f"lost_to_{name}": share for name, share in shares.items()},
                    "step_seconds": found.step_seconds,
                    "step_seconds_alone": alone.step_seconds,
                }
            )
    return rows


def measure_one(subject: Subject, backend: str, num_envs: int, asked: ScaleSettings) -> Account:
    """Play for a while and see where the time goes."""
    settings = worker_settings(subject, backend, num_envs, asked.workers)
    with TemporaryDirectory(prefix="hundredfold-") as folder:
        stamps = Stamps(Path(folder) / "stamps", num_envs)
        shared = stamps.make()
        envs = WatchedBackend(
            make_backend(backend, subject.make_envs(stamps), num_envs, settings), shared
        )
        try:
            (_learn if asked.learn else _play)(envs, asked)
        finally:
            envs.close()
    return account(envs.events, lanes_of(subject, backend, num_envs, asked.workers))


def worker_settings(
    subject: Subject, backend: str, num_envs: int, given: WorkerSettings
) -> WorkerSettings:
    """Workers and threads as `auto` would set them."""
    if subject.found is None:
        return given
    fitted = fit_workers(subject.found, num_envs, given, usable_cores())
    if backend != "first_ready":
        return replace(fitted, batch_envs=0)
    return replace(fitted, batch_envs=given.batch_envs or ready_batch(subject.found, num_envs))


def lanes_of(subject: Subject, backend: str, num_envs: int, given: WorkerSettings) -> IntArray:
    """(envs,) which lane each env steps in: envs of one lane go one after another."""
    if backend not in ("processes", "first_ready"):
        return np.zeros(num_envs, np.int64)
    fitted = worker_settings(subject, backend, num_envs, given)
    if fitted.env_threads > 1:
        return np.arange(num_envs)
    workers = fitted.num_workers(num_envs)
    edges = np.arange(workers + 1) * num_envs // workers
    return np.repeat(np.arange(workers), np.diff(edges))


def shares_of(found: Account, alone_seconds: float, used: float, kind: Kind) -> dict[str, float]:
    """How the time of the ideal number of lanes is shared out; `used`: the share of them we have.

    `stepping` counts at the pace of one env alone; what it takes longer beside others is `slower`.
    """
    pace = min(1.0, alone_seconds / found.step_seconds)
    if kind == "waiting" and pace > NOTICEABLE:
        pace = 1.0
    shares = {name: used * share for name, share in found.shares.items()}
    shares["slower"] = (1.0 - pace) * shares["stepping"]
    shares["stepping"] *= pace
    shares["one_by_one"] = 1.0 - used
    return {name: shares[name] for name in ("stepping", *LOSSES)}


# -- playing --------------------------------------------------------------------------------------


def _play(envs: WatchedBackend, asked: ScaleSettings) -> None:
    """Random allowed actions, after as much computing as a policy would need."""
    act = _actor(envs.spec, envs.num_envs, asked.policy_ms / 1e3)
    envs.reset(0)
    for part in (WARM_UP, 1.0):
        envs.begin()
        begun, steps = perf_counter(), 0
        # Three times around at least: the first brings what was done before we looked.
        while steps < 3 * envs.num_envs or perf_counter() - begun < part * asked.seconds:
            batch = envs.recv()
            envs.send(act(batch))
            steps += len(batch)


def _actor(spec: EnvSpec, num_envs: int, seconds: float) -> Callable[[StepBatch], IntArray]:
    """Acts by luck that was drawn beforehand; what it takes is as good as the given seconds."""
    counts = np.arange(DRAWN * num_envs * spec.num_logits)
    luck = rng.uniforms(rng.seed_key(0), counts).reshape(-1, spec.num_logits)
    drawn = random_actions(spec, luck).reshape(DRAWN, num_envs, *spec.action_shape)
    moments = cycle(range(DRAWN))

    def act(batch: StepBatch) -> IntArray:
        until = perf_counter() + seconds
        moment = next(moments)
        actions: IntArray = drawn[moment, batch.env_ids]
        if batch.mask is not None:
            mine = luck[moment * num_envs + batch.env_ids]
            actions = random_actions(spec, mine, batch.mask)
        while perf_counter() < until:
            pass
        return actions

    return act


def _learn(envs: WatchedBackend, asked: ScaleSettings) -> None:
    """Our PPO with its usual settings: a real policy, and updates every few steps."""
    import torch

    from hundredfold.algorithms.actor_critic import NetworkSettings
    from hundredfold.algorithms.ppo import PPO, PPOSettings
    from hundredfold.rollout.collector import Collector
    from hundredfold.rollout.rollout_buffer import RolloutSettings

    torch.set_num_threads(1)
    learner = PPO(
        envs.spec,
        settings=PPOSettings(),
        network=NetworkSettings(),
        rollout=RolloutSettings(num_envs=envs.num_envs, num_steps=LEARN_STEPS),
        num_updates=1_000_000,
        seed=0,
        device=torch.device("cpu"),
    )
    collector = Collector(_as_backend(envs), 0)
    collector.start(0)
    collector.collect(learner.policy, learner.buffer, LEARN_STEPS)
    for part in (WARM_UP, 1.0):
        envs.begin()
        begun = perf_counter()
        # Twice at least, so that an update stands between two steps.
        while perf_counter() - begun < part * asked.seconds or len(envs.events.learned) < 2:
            envs.learning(learner.update)
            collector.collect(learner.policy, learner.buffer, LEARN_STEPS)


def _as_backend(envs: WatchedBackend) -> Backend:
    watched: Any = envs
    found: Backend = watched
    return found
