"""The promises between rooms. A new part fits by having the right methods.

Each promise is checked by a suite that runs over all members: `tests/worlds/contract`,
`tests/backends/contract`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hundredfold.core.batch import Array, Arrays, IntArray, State, StepBatch, WorldSpec

Knowledge = Mapping[str, Array]


class World(Protocol):
    """A batch of envs, stepped together.

    * Randomness of an env comes from `streams.stream_keys(seed, env_id, episode)` and nothing else.
    * The step that ends an episode returns the next one's first observation, with the last one of
      the old episode in `final_observation`.
    * Every mask row allows at least one action; a forbidden action is never taken.
    """

    spec: WorldSpec

    def bind(self, out: StepBatch) -> None:
        """Write into these buffers, which a backend may have put into shared memory.

        A world's state may live in them, so `reset` or `restore` must follow.
        """
        ...

    def reset(self, seed: int) -> StepBatch:
        """Start episode 0 of every env."""
        ...

    def step(self, actions: IntArray) -> StepBatch:
        """Play one action per env, in the order of `env_ids`."""
        ...

    def inform(self, knowledge: Knowledge) -> None:
        """Take in what a companion has learned; a world without use for it ignores it."""
        ...

    def state(self) -> Arrays:
        """Copies of everything that is needed to go on from here.

        The first axis of every array is the env, so a snapshot can be sliced and joined: a run
        continues on another backend or with another number of workers.
        """
        ...

    def restore(self, state: State) -> StepBatch:
        """Go on from a snapshot; returns the batch that was current when it was taken."""
        ...

    def close(self) -> None:
        """Let go of whatever the envs hold."""
        ...


class WorldFactory(Protocol):
    """Makes the part of a world that holds these envs. Backends know a world only through this."""

    def __call__(self, env_ids: IntArray) -> World: ...


class Backend(Protocol):
    """Where slices of a world run, and who waits for whom.

    `reset` (or `restore`), then `recv` and `send` by turns: `send` takes one action per row of the
    last `recv`. A call out of turn raises `TurnError`.
    """

    spec: WorldSpec
    num_envs: int

    def reset(self, seed: int) -> None:
        """Start episode 0 of every env; the first batch comes from `recv`."""
        ...

    def recv(self) -> StepBatch:
        """Wait for envs to be ready and return what they say."""
        ...

    def send(self, actions: IntArray) -> None:
        """Give each row of the last `recv` its action."""
        ...

    def broadcast(self, knowledge: Knowledge) -> None:
        """Inform every slice of the world."""
        ...

    def state(self) -> Arrays:
        """A snapshot of the world, in env order; allowed when every env waits for an action."""
        ...

    def restore(self, state: State) -> None:
        """Go on from a snapshot; the batch that was current comes from `recv` again."""
        ...

    def close(self) -> None:
        """Stop everything; safe to call twice."""
        ...
