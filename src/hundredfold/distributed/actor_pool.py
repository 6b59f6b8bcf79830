"""Actors, each with a slice of the env, and what happens when one is lost.

Every order is a function of the slice's last snapshot (and of the few steps played since), and the
driver keeps that snapshot in its own memory. So an actor that was killed, that hangs or whose node
is gone is replaced by another, wherever there is room: it restores, plays the steps again and gets
the same order. Of built-in envs nothing is lost, to the last bit; episodes of foreign envs cannot
be frozen, so theirs are cut off.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from hundredfold.backends.processes.cpu_affinity import LocalRank
from hundredfold.backends.settings import WorkerSettings, usable_cores
from hundredfold.core.batch import Arrays, IntArray, concat_rows, copies
from hundredfold.core.errors import WorkerError
from hundredfold.core.failures import Health
from hundredfold.core.protocols import EnvFactory
from hundredfold.distributed import placement
from hundredfold.distributed.actor import Identity, Reply, SlicePlan, Told
from hundredfold.distributed.placement import Places
from hundredfold.distributed.settings import RaySettings

# How often to look whether somebody hangs while waiting for answers.
LOOK_SECONDS: Final = 0.5
CLOSE_SECONDS: Final = 5.0


@dataclass(slots=True)
class Held:
    """A slice as the driver sees it."""

    plan: SlicePlan
    actor: Any = None
    identity: Identity | None = None
    cpus: float = 0.0  # cores that are set aside for its actor
    node: str = ""  # where its actor is, once it has said so
    snapshot: Arrays | None = None
    log: list[IntArray] = field(default_factory=list)  # actions since the snapshot
    order: tuple[Any, ...] = ()  # what it is at work on
    answer: Any = None  # where its answer will be
    before: list[Any] = field(default_factory=list)  # answers to what a new actor does first
    deadline: float = 0.0
    health: Counter[str] = field(default_factory=Counter)  # of this actor
    health_before: Counter[str] = field(default_factory=Counter)  # of those before it

    @property
    def rows(self) -> slice:
        return slice(self.plan.first, self.plan.last)

    def __str__(self) -> str:
        return f"actor {self.plan.number} (envs {self.plan.first}..{self.plan.last - 1})"


class Fleet:
    """All slices of an env. `begin` gives orders, `answers` waits for what comes of them."""

    places_type: type[Places] = Places

    def __init__(
        self,
        make_envs: EnvFactory,
        num_envs: int,
        choose: Callable[[int], tuple[str, WorkerSettings]],
        settings: WorkerSettings,
        ray: RaySettings,
        *,
        collecting: bool,
    ) -> None:
        self.settings, self.ray_settings = settings, ray
        self.restart_policy = settings.restart_policy()
        self.record = Health()
        # What envs were told before their first reset; later it is part of their snapshots.
        self.shared_params: Arrays = {}
        self.warned: set[str] = set()
        # Foreign episodes that were cut off because their actor was lost, until somebody asks.
        self.cut_off: list[tuple[Held, Told]] = []
        self.slices: list[Held] = []
        self.closed = False
        self.ray = placement.join(ray, min(settings.workers or usable_cores(), num_envs))
        self.places = self.places_type(self.ray, ray)
        try:
            wanted = settings.workers or placement.actors_that_fit(self.ray, ray.actor_cpus)
            num_actors = min(wanted, num_envs)
            backend, inner = choose(-(-num_envs // num_actors))
            edges = [number * num_envs // num_actors for number in range(num_actors + 1)]
            self.slices = [
                Held(SlicePlan(number, *ends, make_envs, backend, inner, collecting))
                for number, ends in enumerate(pairwise(edges))
            ]
            self._hire_all()
        except BaseException:
            self.close()
            raise

    # -- orders ---------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether an order is on its way."""
        return any(held.order for held in self.slices)

    def begin(self, *orders: Any, each: Callable[[Held], Sequence[Any]] | None = None) -> None:
        """Give everybody an order: its name and arguments, and arguments of each one's own."""
        self.warned.clear()
        for held in self.slices:
            assert not held.order, f"{held} is still at work"
            self._give(held, (*orders, *(() if each is None else each(held))))

    def answers(self) -> Iterator[tuple[Held, Reply]]:
        """What came of the order, as it comes; lost actors are replaced meanwhile."""
        while waiting := {held.answer: held for held in self.slices if held.order}:
            ready, _ = self.ray.wait(list(waiting), timeout=LOOK_SECONDS)
            # Whoever else is done or lost: those are replaced side by side.
            ready, _ = self.ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
            for answer in ready:
                held = waiting[answer]
                try:
                    *before, reply = self.ray.get([*held.before, answer])
                except self.ray.exceptions.RayError as error:
                    if isinstance(error, self.ray.exceptions.ActorUnavailableError):
                        self.places.suspect(held.node, self._cores_taken_on(held.node))
                    self._replace(held, _short(error))
                else:
                    yield held, self._heard(held, before, reply)
            # Only when nobody has anything to say: we may have been busy ourselves for long.
            for held in () if ready else waiting.values():
                if time.monotonic() > held.deadline:
                    limit = self._patience(held.order[0])
                    self._replace(held, f"said nothing for {limit:g} seconds")

    def ask(self, *orders: Any, each: Callable[[Held], Sequence[Any]] | None = None) -> list[Any]:
        """Give an order and wait for everybody; the values of their answers in order."""
        self.begin(*orders, each=each)
        found = {held.plan.number: reply.value for held, reply in self.answers()}
        return [found[number] for number in range(len(self.slices))]

    def forget_orders(self) -> None:
        """Let answers that are still on their way come to nothing, before another beginning."""
        for held in self.slices:
            held.order, held.answer = (), None

    @property
    def is_per_env(self) -> bool:
        """Whether the envs are somebody else's, whose episodes cannot be frozen."""
        identity = self.slices[0].identity
        return identity is not None and identity.is_per_env

    def take_cut_off(self) -> list[tuple[Held, Told]]:
        """Foreign slices whose episodes were cut off since the last call, and what they show."""
        found, self.cut_off = self.cut_off, []
        return found

    @property
    def snapshot(self) -> Arrays | None:
        """All envs as of the last snapshot, in order; None where steps were played since."""
        states = [held.snapshot for held in self.slices if held.snapshot and not held.log]
        if len(states) < len(self.slices):
            return None
        return concat_rows(states)

    def health(self) -> dict[str, int]:
        """What went wrong: in envs that actors mended themselves, and with actors."""
        inside: Counter[str] = sum(
            (held.health + held.health_before for held in self.slices), Counter()
        )
        counts = self.record.counts()
        return {name: count + inside[name] for name, count in counts.items()}

    def close(self) -> None:
        """Let envs close, then let actors go; the cluster stays unless it is our own."""
        if self.closed:
            return
        self.closed = True
        actors = [held.actor for held in self.slices if held.actor is not None]
        if self.ray.is_initialized():
            idle = [held for held in self.slices if held.actor is not None and not held.order]
            goodbyes = [held.actor.obey.remote("close") for held in idle if held.identity]
            if goodbyes:
                self.ray.wait(goodbyes, num_returns=len(goodbyes), timeout=CLOSE_SECONDS)
            for actor in actors:
                self.places.release(actor)
        placement.leave()

    # -- actors ---------------------------------------------------------------------------------

    def _hire_all(self) -> None:
        hired = self.places.hire_all(len(self.slices))
        for held, (actor, cpus) in zip(self.slices, hired, strict=True):
            held.actor, held.cpus = actor, cpus
        self._seat_all()
        self.begin("open", each=lambda held: (self._packed(held),))
        for held, reply in self.answers():
            held.identity, held.node = reply.value, reply.value.node

    def _seat_all(self) -> None:
        """Tell everybody who else is on their machine; whoever is replaced keeps the seat."""
        asked = [held.actor.here.remote() for held in self.slices]
        try:
            machines = self.ray.get(asked, timeout=self.settings.start_timeout)
        except self.ray.exceptions.RayError:
            return  # somebody is lost already, and opening will show it
        rank_counts = Counter(machines)
        taken: Counter[str] = Counter()
        for held, machine in zip(self.slices, machines, strict=True):
            if rank_counts[machine] > 1:
                held.plan = replace(
                    held.plan, local_rank=LocalRank(taken[machine], rank_counts[machine])
                )
            taken[machine] += 1

    def _replace(self, held: Held, reason: str) -> None:
        """Put another actor in the place of a lost one and let it repeat the order.

        Nothing is waited for: the new actor does one thing after another.
        """
        # Raises when the run should end; else the loss is noted.
        error = WorkerError(f"{held} was lost: {reason}")
        self.restart_policy.record_failure(None, error, worker=held.plan.number)
        self.record.count_worker_restart(self.restart_policy.drain(), held.plan.num_envs)
        self.places.release(held.actor)
        held.health_before += held.health
        held.health = Counter()
        (held.actor, held.cpus), held.node = self.places.hire_another(len(self.slices)), ""
        order, obey = held.order, held.actor.obey.remote
        held.before = []
        if order[0] != "open":
            held.before = [obey("open", self._packed(held)), *self._what_it_missed(held, obey)]
        if order[0] == "step" and self.is_per_env:
            # Its episodes are cut off, and that is the answer to this step.
            held.answer = held.before.pop()
        else:
            held.answer = obey(*order)
        held.deadline = time.monotonic() + self.settings.start_timeout + self._patience(order[0])

    def _cores_taken_on(self, node: str) -> float:
        return sum(held.cpus for held in self.slices if held.node == node)

    def _what_it_missed(self, held: Held, obey: Callable[..., Any]) -> list[Any]:
        """Bring a new actor to where the lost one began its last order."""
        missed = []
        if self.shared_params:
            missed.append(obey("inform", self.shared_params, False))
        if held.snapshot is None or held.order[0] in ("reset", "restore"):
            return missed
        missed.append(obey("restore", held.snapshot))
        if held.log:
            missed.append(obey("replay", held.log))
        return missed

    def _packed(self, held: Held) -> bytes:
        packed: bytes = self.ray.cloudpickle.dumps(held.plan)
        return packed

    # -- one order ------------------------------------------------------------------------------

    def _give(self, held: Held, order: tuple[Any, ...]) -> None:
        held.order = order
        held.answer = held.actor.obey.remote(*order)
        held.deadline = time.monotonic() + self._patience(order[0])

    def _patience(self, order: str) -> float:
        if order == "gather":
            return self.ray_settings.fragment_timeout
        return self.settings.step_timeout if order == "step" else self.settings.start_timeout

    def _heard(self, held: Held, before: list[Reply], reply: Reply) -> Reply:
        """An answer has come: keep what it says of the slice."""
        order, held.order, held.answer, held.before = held.order, (), None, []
        for done in before:
            self._sound(held, done)
            if isinstance(done.value, Identity):
                held.identity, held.node = done.value, done.value.node
            elif isinstance(done.value, Told) and done.state is not None and self.is_per_env:
                self.cut_off.append((held, done.value))
        self._sound(held, reply)
        held.health = Counter(reply.health)
        self.restart_policy.consecutive.pop(f"worker {held.plan.number}", None)
        if reply.state is not None:
            # A copy of our own: what lies in the object store may be lost with its node.
            held.snapshot, held.log = copies(reply.state), []
        elif order[0] == "step":
            held.log.append(order[2])
        return reply

    def _sound(self, held: Held, reply: Reply) -> Reply:
        """Raise what was raised in the actor, warn as it did."""
        if reply.refusal is not None:
            self.forget_orders()
            reply.refusal.raise_here(str(held))
        for text, category in reply.warnings:
            if text not in self.warned:
                self.warned.add(text)
                warnings.warn(text, category, stacklevel=2)
        return reply


def _short(error: BaseException) -> str:
    """The first lines of what Ray says, without its advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:300]}"
