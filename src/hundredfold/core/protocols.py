"""The promises between rooms. A new part fits by having the right methods.

Each promise is checked by a suite that runs over all members: `tests/envs/contract`,
`tests/backends/contract`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from hundredfold.core.batch import Array, Arrays, EnvSpec, FloatArray, IntArray, State, StepBatch
from hundredfold.core.failures import RestartPolicy

SharedParams = Mapping[str, Array]


class BatchEnv(Protocol):
    """A batch of envs, stepped together.

    * Randomness of an env comes from `streams.stream_keys(seed, env_id, episode)` and nothing else.
    * The step that ends an episode returns the next one's first observation, with the last one of
      the old episode in `final_observation`.
    * Every mask row allows at least one action; a forbidden action is never taken.
    """

    spec: EnvSpec

    def set_output_buffers(self, out: StepBatch) -> None:
        """Write into these buffers, which a backend may have put into shared memory.

        An env's state may live in them, so `reset` or `restore` must follow.
        """
        ...

    def reset(self, seed: int) -> StepBatch:
        """Start episode 0 of every env."""
        ...

    def step(self, actions: Array) -> StepBatch:
        """Play one action per env, in the order of `env_ids`."""
        ...

    def set_shared_params(self, shared_params: SharedParams) -> None:
        """Take in what a belief model has learned; an env without use for it ignores it."""
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

    def truncate_all(self, ahead: IntArray, seed: int | None = None) -> StepBatch:
        """End every env's episode here, truncated, and begin the one `ahead` episodes later.

        With a seed, episodes are counted from its episode 0: so an env that was made anew takes
        the place of one that is lost. What `out.observation` holds becomes the final observation.
        """
        ...

    def timings(self) -> dict[str, float]:
        """Seconds that parts of the env have taken so far, by name; most envs count none."""
        ...

    def close(self) -> None:
        """Let go of whatever the envs hold."""
        ...


@runtime_checkable
class PerEnvBatch(BatchEnv, Protocol):
    """An env whose envs are somebody else's: each on its own, each free to wait or to fail."""

    restart_policy: RestartPolicy
    infos: list[Mapping[str, Any]]

    def set_busy_since(self, busy_since: FloatArray) -> None:
        """Note there, (envs,), since which `time.monotonic()` each is at work; 0 for not at all."""
        ...

    def step_rows(self, first: int, last: int, actions: Array) -> None:
        """Play one action in each row `first..last-1`; threads may step other rows meanwhile."""
        ...

    def step_row(self, row: int, actions: Array) -> None:
        """The same for a single row, its action among those of all rows."""
        ...


class BeliefModel(Protocol):
    """A model that learns beside the policy and tells the envs what it believes."""

    def observe(self, batch: StepBatch) -> None:
        """Take in what came of some actions; the arrays are live, so copy what you keep."""
        ...

    def update(self) -> dict[str, float]:
        """An epoch is over: learn if it is time; returns what there is to tell of this epoch."""
        ...

    def params(self, *, exploring: bool) -> SharedParams:
        """What the envs should know from now on; without exploring when a policy is judged."""
        ...

    def state(self) -> Arrays:
        """Everything that is needed to go on from here."""
        ...

    def restore(self, state: State) -> None:
        """Go on from a snapshot."""
        ...

    def close(self) -> None:
        """Stop whatever runs in the background."""
        ...


class EnvFactory(Protocol):
    """Makes the part of an env that holds these envs. Backends know an env only through this."""

    def __call__(self, env_ids: IntArray) -> BatchEnv: ...


class Backend(Protocol):
    """Where slices of an env run, and who waits for whom.

    `reset` (or `restore`), then `recv` and `send` by turns: `send` takes one action per row of the
    last `recv`. A call out of order raises `CallOrderError`. The first `recv` after `reset` or
    `restore` has all envs; later ones may have some of them, where a backend does not wait for all.
    """

    spec: EnvSpec
    num_envs: int
    # (envs,) envs with the same number step together; who is held back is held back with them.
    groups: IntArray

    def reset(self, seed: int) -> None:
        """Start episode 0 of every env; the first batch comes from `recv`."""
        ...

    def recv(self) -> StepBatch:
        """Wait for envs to be ready and return what they say."""
        ...

    def send(self, actions: Array, env_ids: IntArray | None = None) -> None:
        """Give each row of the last `recv` its action.

        With `env_ids`, these envs get one instead: any whole groups that wait, from this `recv` or
        earlier ones, in any order; the others go on waiting. No envs at all is fine as long as
        somebody is still at work.
        """
        ...

    def broadcast(self, shared_params: SharedParams) -> None:
        """Inform every slice of the env."""
        ...

    def state(self) -> Arrays:
        """A snapshot of the env, in env order, taken where `send` is pending.

        Envs that are still at work are waited for; what they say comes from the next `recv`.
        """
        ...

    def restore(self, state: State) -> None:
        """Go on from a snapshot; the batch that was current comes from `recv` again."""
        ...

    def health(self) -> dict[str, int]:
        """What went wrong so far: `env_failures`, `env_restarts`, `worker_restarts`."""
        ...

    def timings(self) -> dict[str, float]:
        """What the envs say of their time, where they can be asked."""
        ...

    def close(self) -> None:
        """Stop everything; safe to call twice."""
        ...
