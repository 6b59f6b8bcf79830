"""Slices of an env in Ray actors, on this machine or many.

As a step backend every step is a round trip to all actors, for evaluation and for trainers of
others. While training, `distributed.collector` orders whole fragments of rollouts from the same
actors instead. Ray is imported when the first backend is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from hundredfold.backends.auto_select import choose_backend
from hundredfold.backends.call_checks import (
    CallOrder,
    check_all_envs,
    check_num_envs,
    check_snapshot,
    checked_actions,
)
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.batch import (
    Arrays,
    IntArray,
    State,
    StepBatch,
    copies,
    slice_rows,
    with_prefix,
    without_prefix,
)
from hundredfold.core.protocols import EnvFactory, SharedParams
from hundredfold.distributed.actor import Told
from hundredfold.distributed.actor_pool import Fleet, Held
from hundredfold.distributed.settings import RaySettings

# Steps between two snapshots of built-in envs: no more than these are played again after a loss.
SNAPSHOT_STEPS: Final = 64


class RayBackend:
    """Envs in Ray actors; everybody steps together."""

    fleet_type: type[Fleet] = Fleet

    def __init__(
        self,
        make_envs: EnvFactory,
        num_envs: int,
        settings: WorkerSettings | None = None,
        ray: RaySettings | None = None,
        *,
        collecting: bool = False,
    ) -> None:
        self.num_envs = check_num_envs(num_envs)
        self.settings = settings or WorkerSettings()
        self.ray_settings = ray or RaySettings()
        self.make_envs, self.collecting = make_envs, collecting
        self.call_order = CallOrder()
        self.fleet = self.fleet_type(
            make_envs,
            self.num_envs,
            self._inside,
            self.settings,
            self.ray_settings,
            collecting=collecting,
        )
        identity = self.fleet.slices[0].identity
        assert identity is not None
        self.spec, self.is_per_env = identity.spec, identity.is_per_env
        self.groups = np.zeros(self.num_envs, np.int64)
        self.batch = self.spec.batch(np.arange(self.num_envs))
        self.infos: list[object] = [{} for _ in range(self.num_envs)]
        self.since_snapshot = 0
        # What a belief model has learned while fragments are on their way: it goes with the next.
        self.news: Arrays = {}
        self.timings_seen: list[dict[str, float]] = [{} for _ in self.fleet.slices]
        self.spent: dict[str, float] = {}

    def reset(self, seed: int) -> None:
        self.call_order.expect_open("reset()")
        self.fleet.forget_orders()
        with self.call_order.transition_to("recv"):
            self._show(self.fleet.ask("reset", seed))

    def recv(self) -> StepBatch:
        self.call_order.expect("recv", "recv()")
        with self.call_order.transition_to("send"):
            for held, reply in self.fleet.answers():
                self._show_slice(held, reply.value)
            # What lost actors left of foreign episodes is in the batch: it says they are truncated.
            self.fleet.take_cut_off()
        return self.batch

    def send(self, actions: IntArray, env_ids: IntArray | None = None) -> None:
        self.call_order.expect("send", "send()")
        check_all_envs(env_ids, self.num_envs)
        chosen = checked_actions(actions, self.batch, self.spec).copy()
        self.since_snapshot += 1
        with_state = self.is_per_env or self.since_snapshot >= SNAPSHOT_STEPS
        if with_state:
            self.since_snapshot = 0
        with self.call_order.transition_to("recv"):
            self.fleet.begin("step", with_state, each=lambda held: (chosen[held.rows],))

    def broadcast(self, shared_params: SharedParams) -> None:
        self.call_order.expect_open("broadcast()")
        if self.collecting and self.fleet.busy:
            self.news = copies(shared_params)
            return
        pending = list(self.fleet.answers())
        begun = self.call_order.pending != "reset"
        self.fleet.ask("inform", self.fleet.ray.put(dict(shared_params)), begun)
        for held, reply in pending:
            self._show_slice(held, reply.value)
        self.fleet.shared_params |= copies(shared_params)

    def state(self) -> Arrays:
        self.call_order.expect("send", "state()")
        found = self.fleet.snapshot
        if found is None:
            self.fleet.ask("state")
            found = self.fleet.snapshot
            assert found is not None
        return without_prefix("env", found)

    def restore(self, state: State) -> None:
        self.restore_with(state, {})

    def restore_with(self, state: State, collector: State) -> None:
        """The same with what the actors' own collectors had counted."""
        self.call_order.expect_open("restore()")
        check_snapshot(state, self.num_envs)
        whole = {**with_prefix("env", state), **with_prefix("collector", collector)}
        self.fleet.forget_orders()
        with self.call_order.transition_to("recv"):
            self._show(self.fleet.ask("restore", each=lambda held: (slice_rows(whole, held.rows),)))

    def health(self) -> dict[str, int]:
        return self.fleet.health()

    def timings(self) -> dict[str, float]:
        """Of the busiest actor, since they work at once."""
        if self.collecting or self.is_per_env or self.call_order.pending == "closed":
            return dict(self.spent)
        if self.fleet.busy:
            return {}
        told = self.fleet.ask("timings")
        return {name: max(part[name] for part in told) for name in told[0]}

    def close(self) -> None:
        if self.call_order.close():
            self.fleet.close()

    # -- for collectors -------------------------------------------------------------------------

    def drain(self) -> Arrays:
        """What is to be told to everybody with the next order."""
        news, self.news = self.news, {}
        return news

    def count_timings(self, told: Sequence[dict[str, float]], share: float) -> None:
        """Add what parts of the envs took for the last fragments, as far as it was waited for."""
        longest: dict[str, float] = {}
        for number, timings in enumerate(told):
            before, self.timings_seen[number] = self.timings_seen[number], timings
            for name, seconds in timings.items():
                # An actor that took another's place counts from 0.
                spent = seconds - before.get(name, 0.0)
                longest[name] = max(longest.get(name, 0.0), seconds if spent < 0 else spent)
        for name, seconds in longest.items():
            self.spent[name] = self.spent.get(name, 0.0) + share * seconds

    def batch_of(self, held: Held, told: Told) -> StepBatch:
        """What these envs show, under the numbers they have among all."""
        self._show_slice(held, told)
        return self.batch.rows(held.plan.first, held.plan.last)

    # -- parts ----------------------------------------------------------------------------------

    def _inside(self, num_envs: int) -> tuple[str, WorkerSettings]:
        """How an actor runs its envs: as one would on a machine with a single core."""
        # Actors are full of threads, so nothing may be forked there.
        start = "spawn" if self.settings.start_method == "auto" else self.settings.start_method
        inner = replace(self.settings, workers=1, start_method=start)
        name: str = self.ray_settings.actor_backend
        if name == "auto":
            choice = choose_backend(self.make_envs, num_envs, inner)
            name, inner = choice.backend, choice.settings
        if name == "first_ready" and not self.collecting:
            name, inner = "processes", replace(inner, batch_envs=0)
        return name, inner

    def _show(self, told: Sequence[Told]) -> None:
        for held, shown in zip(self.fleet.slices, told, strict=True):
            self._show_slice(held, shown)
        self.fleet.take_cut_off()
        self.since_snapshot = 0

    def _show_slice(self, held: Held, told: Told) -> None:
        """Write what a slice shows into its rows of the batch."""
        for name, array in self.batch.rows(held.plan.first, held.plan.last).arrays().items():
            array[...] = told.arrays[name]
        if told.infos is not None:
            self.infos[held.rows] = told.infos
            self.batch.infos = self.infos  # type: ignore[assignment]
