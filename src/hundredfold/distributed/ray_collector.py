"""Ray collector: sends the policy to the actors of a backend and gathers their rollout fragments.

It has the methods of `rollout.collector.Collector`, so a training loop takes either. With
`policy_lag` 0 every fragment is collected with the newest policy. With 1 the next fragments are
requested before the update, so the policy is always exactly one update old, however fast or slow
the actors are: runs are reproducible bit for bit either way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hundredfold.algorithms.policies import NetworkPolicy
from hundredfold.algorithms.weights import network_arrays
from hundredfold.core.batch import Arrays, State, StepBatch, copies, with_prefix, without_prefix
from hundredfold.core.errors import SettingsError
from hundredfold.distributed.actor_pool import ActorHandle
from hundredfold.distributed.ray_backend import RayBackend
from hundredfold.distributed.rollout_fragment import Fragment, merge_episodes, merge_steps
from hundredfold.distributed.weight_sync import WeightPublisher
from hundredfold.rollout.collector import Policy, StepCallback, TransitionBuffer
from hundredfold.rollout.episode_stats import EpisodeStats
from hundredfold.rollout.rollout_buffer import RolloutBuffer, Truncations


class RayCollector:
    """Collects rollouts in the actors of a backend.

    Args:
        backend: A `RayBackend` with `collecting=True`.
        seed: Seed of action sampling.
    """

    def __init__(self, backend: RayBackend, seed: int) -> None:
        if not backend.collecting:
            raise SettingsError(
                "this RayBackend takes single steps; create it with collecting=True to collect rollouts."
            )
        self.backend, self.seed = backend, seed
        self.pool = backend.pool
        self.publisher = WeightPublisher(backend.pool.ray.put)
        self.policy_lag = backend.ray_settings.policy_lag
        self.batch: StepBatch | None = None
        # Time spent waiting for fragments, divided as in the slowest actor.
        self.policy_seconds = self.env_seconds = 0.0
        # With a lag: weights and shared parameters of the fragments in flight.
        self.behaviour_weights: Arrays = {}
        self.behaviour_params: Arrays = {}
        self.resuming = False
        # Of the last fragments: size, steps taken beyond them, time to send the policy.
        self.fragment_bytes = self.steps_ahead = 0
        self.broadcast_seconds = 0.0

    def start(self, seed: int) -> None:
        """Reset every env."""
        self.behaviour_weights, self.behaviour_params, self.resuming = {}, {}, False
        self.backend.reset(seed)
        self.batch = self.backend.recv()

    def collect(
        self,
        policy: Policy,
        buffer: TransitionBuffer,
        num_steps: int,
        on_progress: Callable[[], None] = lambda: None,
        step_callbacks: Sequence[StepCallback] = (),
    ) -> EpisodeStats:
        """Take `num_steps` steps in every env; see `Collector.collect`."""
        if not isinstance(policy, NetworkPolicy) or not isinstance(buffer, RolloutBuffer):
            raise SettingsError(
                "Ray actors collect rollouts for PPO only; use --backend processes for other algorithms."
            )
        self.batch = None
        begin = time.perf_counter()
        if not self.pool.busy:
            self._submit(policy, num_steps, bool(step_callbacks))
        fragments = self._gather(buffer, num_steps, on_progress)
        self._add_seconds(fragments, time.perf_counter() - begin)
        for batch in merge_steps(fragments) if step_callbacks else ():
            for callback in step_callbacks:
                callback(batch)
        if self.policy_lag:
            self._submit(policy, num_steps, bool(step_callbacks))
        return merge_episodes(fragments, [handle.shard.first for handle in self.pool.actors])

    def state(self) -> Arrays:
        """Snapshot of counters and running returns, with a lag also of the behaviour policy.

        It is taken where the fragments in flight began: they are collected again.
        """
        snapshot = self.pool.snapshot
        assert snapshot is not None, "call start() or restore() first"
        return {
            **without_prefix("collector", snapshot),
            **with_prefix("behaviour_weights", self.behaviour_weights),
            **with_prefix("behaviour_params", self.behaviour_params),
            **with_prefix("pending_params", self.backend.pending_params),
        }

    def restore(self, state: State, env: State) -> None:
        """Continue from a snapshot of the collector and one of the backend."""
        counters = {name: array for name, array in state.items() if "/" not in name}
        self.behaviour_weights = copies(without_prefix("behaviour_weights", state))
        self.behaviour_params = copies(without_prefix("behaviour_params", state))
        self.resuming = bool(self.behaviour_weights)
        self.backend.restore_with_collector(env, counters)
        self.backend.pending_params = copies(without_prefix("pending_params", state))
        batch = self.backend.recv()
        self.batch = None if self.backend.spec.has_snapshots else batch

    def _submit(self, policy: NetworkPolicy, num_steps: int, with_info: bool) -> None:
        """Request fragments, with the policy and new shared parameters."""
        begin = time.perf_counter()
        if self.resuming:
            # Those of the fragments that were in flight when the snapshot was taken.
            weights, shared_params = self.behaviour_weights, self.behaviour_params
        else:
            weights, shared_params = network_arrays(policy.network), self.backend.drain_params()
        self.resuming = False
        if self.policy_lag:
            self.behaviour_weights, self.behaviour_params = weights, shared_params
        payload = self.publisher.payload(policy, weights)
        self.pool.submit("collect", *payload, self.seed, num_steps, with_info, shared_params)
        self.broadcast_seconds = time.perf_counter() - begin

    def _gather(self, buffer: RolloutBuffer, num_steps: int, on_progress: Callable[[], None]) -> list[Fragment]:
        """Wait for the fragments of all shards.

        They are added to the buffer in order of shards, so that it does not depend on which actor
        was faster.
        """
        fragments: dict[int, Fragment] = {}
        num_added = rows_since_progress = 0
        for handle, reply in self.pool.results():
            for lost, step in self.pool.drain_truncated():
                buffer.truncate_here(self.backend.shard_batch(lost, step))
            fragments[handle.shard.index] = reply.value
            while num_added in fragments:
                _add(buffer, self.pool.actors[num_added], fragments[num_added])
                num_added += 1
            rows_since_progress += num_steps * handle.shard.num_envs
            while rows_since_progress >= self.backend.num_envs:
                rows_since_progress -= self.backend.num_envs
                on_progress()
        self.fragment_bytes = sum(fragment.num_bytes for fragment in fragments.values())
        self.steps_ahead = sum(fragment.steps_ahead for fragment in fragments.values())
        return [fragments[index] for index in sorted(fragments)]

    def _add_seconds(self, fragments: Sequence[Fragment], waited: float) -> None:
        """Divide the time spent waiting into policy and env as in the slowest actor."""
        slowest = max(fragments, key=lambda fragment: sum(fragment.seconds.values()))
        total = sum(slowest.seconds.values())
        fraction = min(1.0, waited / total) if total else 0.0
        self.policy_seconds += fraction * slowest.seconds["policy"]
        self.env_seconds += fraction * slowest.seconds["env"]
        self.backend.add_timings([fragment.timings for fragment in fragments], fraction)


def _add(buffer: RolloutBuffer, handle: ActorHandle, fragment: Fragment) -> None:
    local = fragment.truncations
    truncations = None
    if local is not None:
        first = handle.shard.first
        truncations = Truncations(local.steps, local.env_ids + first, local.final_observation)
    buffer.add_steps(handle.rows, fragment.arrays, fragment.observations, truncations)
