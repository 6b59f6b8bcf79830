"""Collecting through actors: the policy goes out, fragments of rollouts come back.

Has the methods of `experience.collect.Collector`, so a training loop takes either. Without lag
every fragment is played by the newest policy. With a lag of 1 the next fragments are ordered before
the last ones are learned from: always one update behind, whoever is fast or slow, so that runs
repeat bit for bit either way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hundredfold.algorithms.policies import NetworkPolicy
from hundredfold.algorithms.weights import network_arrays
from hundredfold.core.batch import Arrays, State, StepBatch, copies, with_prefix, without_prefix
from hundredfold.core.errors import SettingsError
from hundredfold.distributed.actor_pool import Held
from hundredfold.distributed.ray_backend import RayBackend
from hundredfold.distributed.rollout_fragment import Fragment, all_episodes, outcomes
from hundredfold.distributed.weight_sync import Teacher
from hundredfold.rollout.collector import Policy, TransitionBuffer
from hundredfold.rollout.episode_stats import EpisodeStats
from hundredfold.rollout.rollout_buffer import RolloutBuffer, Truncations


class RayCollector:
    """Plays a policy in the actors of a backend. Between two calls all envs wait for actions."""

    def __init__(self, backend: RayBackend, seed: int) -> None:
        if not backend.collecting:
            raise SettingsError(
                "actors of a step backend play single steps; make the RayBackend with "
                "collecting=True."
            )
        self.backend, self.seed = backend, seed
        self.fleet = backend.fleet
        self.teacher = Teacher(backend.fleet.ray.put)
        self.lag = backend.ray_settings.collect_lag
        self.batch: StepBatch | None = None
        # Where the time of waiting for fragments went, as the busiest actor tells it.
        self.policy_seconds = self.env_seconds = 0.0
        # With a lag: the weights that play the fragments on their way, and what they were told.
        self.behaviour: Arrays = {}
        self.told: Arrays = {}
        self.resuming = False
        # Of the last fragments: what travelled, what is played already of the next ones, and how
        # long the policy took to be sent.
        self.fragment_bytes = self.steps_ahead = 0
        self.broadcast_seconds = 0.0

    def start(self, seed: int) -> None:
        """Reset every env."""
        self.behaviour, self.told, self.resuming = {}, {}, False
        self.backend.reset(seed)
        self.batch = self.backend.recv()

    def collect(
        self,
        policy: Policy,
        experience: TransitionBuffer,
        num_steps: int,
        on_progress: Callable[[], None] = lambda: None,
        step_callbacks: Sequence[Callable[[StepBatch], None]] = (),
    ) -> EpisodeStats:
        """Play `num_steps` steps of every env; `tick` is called as often as steps were played."""
        if not isinstance(policy, NetworkPolicy) or not isinstance(experience, RolloutBuffer):
            raise SettingsError(
                "actors collect rollouts for PPO; train other algorithms with --backend processes."
            )
        self.batch = None
        begin = time.perf_counter()
        if not self.fleet.busy:
            self._order(policy, num_steps, bool(step_callbacks))
        fragments = self._gathered(experience, num_steps, on_progress)
        self._share_out(fragments, time.perf_counter() - begin)
        for batch in outcomes(fragments) if step_callbacks else ():
            for hear in step_callbacks:
                hear(batch)
        if self.lag:
            self._order(policy, num_steps, bool(step_callbacks))
        return all_episodes(fragments, [held.plan.first for held in self.fleet.slices])

    def state(self) -> Arrays:
        """Every env's counts, as any collector has them; with a lag also who plays and knows what.

        The snapshot stands where the fragments that are on their way began: they are played again.
        """
        found = self.fleet.snapshot
        assert found is not None, "start() or restore() comes first"
        return {
            **without_prefix("collector", found),
            **with_prefix("behaviour", self.behaviour),
            **with_prefix("told", self.told),
            **with_prefix("news", self.backend.news),
        }

    def restore(self, state: State, env: State) -> None:
        """Go on from a snapshot of the collector and of the backend's env."""
        own = {name: array for name, array in state.items() if "/" not in name}
        self.behaviour = copies(without_prefix("behaviour", state))
        self.told = copies(without_prefix("told", state))
        self.resuming = bool(self.behaviour)
        self.backend.restore_with(env, own)
        self.backend.news = copies(without_prefix("news", state))
        batch = self.backend.recv()
        self.batch = None if self.backend.spec.has_snapshots else batch

    def _order(self, policy: NetworkPolicy, num_steps: int, with_info: bool) -> None:
        """Send everybody the policy and what belief models have learned."""
        begin = time.perf_counter()
        if self.resuming:
            # The fragments that were on their way when the snapshot was taken.
            weights, shared_params = self.behaviour, self.told
        else:
            weights, shared_params = network_arrays(policy.network), self.backend.drain()
        self.resuming = False
        if self.lag:
            self.behaviour, self.told = weights, shared_params
        lesson = self.teacher.lesson(policy, weights)
        self.fleet.begin("gather", *lesson, self.seed, num_steps, with_info, shared_params)
        self.broadcast_seconds = time.perf_counter() - begin

    def _gathered(
        self, experience: RolloutBuffer, num_steps: int, on_progress: Callable[[], None]
    ) -> list[Fragment]:
        """The fragments of all slices, laid into the rollout as they come, but in order.

        Who was first must not matter to anybody who reads the rollout.
        """
        found: dict[int, Fragment] = {}
        added = rows = 0
        for held, reply in self.fleet.answers():
            for lost, shown in self.fleet.take_cut_off():
                experience.truncate_here(self.backend.batch_of(lost, shown))
            found[held.plan.number] = reply.value
            while added in found:
                _add(experience, self.fleet.slices[added], found[added])
                added += 1
            rows += num_steps * held.plan.num_envs
            while rows >= self.backend.num_envs:
                rows -= self.backend.num_envs
                on_progress()
        self.fragment_bytes = sum(fragment.num_bytes for fragment in found.values())
        self.steps_ahead = sum(fragment.num_ahead for fragment in found.values())
        return [found[number] for number in sorted(found)]

    def _share_out(self, fragments: Sequence[Fragment], waited: float) -> None:
        """Share the time of waiting out as the actor tells it that was busy for longest."""
        busiest = max(fragments, key=lambda fragment: sum(fragment.seconds.values()))
        total = sum(busiest.seconds.values())
        share = min(1.0, waited / total) if total else 0.0
        self.policy_seconds += share * busiest.seconds["policy"]
        self.env_seconds += share * busiest.seconds["env"]
        self.backend.count_timings([fragment.timings for fragment in fragments], share)


def _add(experience: RolloutBuffer, held: Held, fragment: Fragment) -> None:
    steps, env_ids, final = fragment.cut_off
    cut = Truncations(steps, env_ids + held.plan.first, final) if len(steps) else None
    experience.add_steps(held.rows, fragment.stored, fragment.seen, cut)
