"""Interfaces between packages; an implementation needs no base class, only the methods.

Each is checked by a suite that runs over all implementations: `tests/contracts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from hundredfold.core.batch import Array, Arrays, EnvSpec, FloatArray, IntArray, State, StepBatch
from hundredfold.core.failures import Failure, RestartPolicy

# Parameters broadcast to all envs, such as the beliefs of a model that learns during training.
SharedParams = Mapping[str, Array]


class BatchEnv(Protocol):
    """A batch of envs that step together.

    * All randomness of an env comes from `rng.stream_keys(seed, env_id, episode)`.
    * Same-step reset: the step that ends an episode returns the first observation of the next one,
      and the last one of the old episode in `final_observation`.
    * Every mask row allows at least one action. Forbidden actions are never passed to `step`.
    """

    spec: EnvSpec

    def set_output_buffers(self, out: StepBatch) -> None:
        """Write into these buffers, which a backend may have placed in shared memory.

        The env's state may live in them, so `reset` or `restore` must follow.
        """
        ...

    def reset(self, seed: int) -> StepBatch:
        """Start episode 0 of every env."""
        ...

    def step(self, actions: Array) -> StepBatch:
        """Take one action per env, (envs, *action_shape), in the order of `env_ids`."""
        ...

    def set_shared_params(self, shared_params: SharedParams) -> None:
        """Use new shared parameters; an env ignores those it does not know."""
        ...

    def state(self) -> Arrays:
        """A snapshot: copies of everything needed to continue from here.

        The first axis of every array is the env, so snapshots can be sliced and concatenated: a run
        continues on another backend or with another number of workers.
        """
        ...

    def restore(self, state: State) -> StepBatch:
        """Continue from a snapshot; returns the batch that was current when it was taken."""
        ...

    def truncate_all(self, skip: IntArray, seed: int | None = None) -> StepBatch:
        """Truncate every episode here and start the one `skip` episodes later.

        `observation` becomes the final observation.

        Args:
            skip: (envs,) by how much the episode numbers advance.
            seed: if given, episodes are counted from episode 0 of this seed: a new env takes the
                place of one that was lost.
        """
        ...

    def timings(self) -> dict[str, float]:
        """Seconds spent so far in parts of the env, by name; empty for most envs."""
        ...

    def close(self) -> None:
        """Release the resources of the envs."""
        ...


@runtime_checkable
class PerEnvBatch(BatchEnv, Protocol):
    """A batch of third-party envs: each is stepped by itself, and may block or fail by itself."""

    restart_policy: RestartPolicy
    infos: list[Mapping[str, Any]]

    def set_busy_since(self, busy_since: FloatArray) -> None:
        """Set the array, (envs,), of the `time.monotonic()` at which a step began; 0 while idle.

        Negative while the env is in reset.
        """
        ...

    def step_rows(self, first: int, last: int, actions: Array) -> None:
        """Step rows `first..last-1` with one action each; threads may step other rows meanwhile."""
        ...

    def step_row(self, row: int, actions: Array) -> None:
        """Step a single row, whose action is `actions[row]`."""
        ...


class BeliefModel(Protocol):
    """A model that is trained during the run and broadcasts its parameters to the envs."""

    def observe(self, batch: StepBatch) -> None:
        """Record the outcomes of a step; the arrays are live, so copy what is kept."""
        ...

    def update(self) -> dict[str, float]:
        """Called after every epoch: refit if due; returns metrics of this epoch."""
        ...

    def params(self, *, exploring: bool) -> SharedParams:
        """Parameters for the envs; `exploring` is False when a policy is evaluated."""
        ...

    def state(self) -> Arrays:
        """A snapshot of everything needed to continue from here."""
        ...

    def restore(self, state: State) -> None:
        """Continue from a snapshot."""
        ...

    def close(self) -> None:
        """Stop background work."""
        ...


class EnvFactory(Protocol):
    """Creates the batch of the envs with these ids; all that a backend knows about an env."""

    def __call__(self, env_ids: IntArray) -> BatchEnv: ...


class Backend(Protocol):
    """Runs shards of a batch of envs somewhere, and decides which envs are waited for.

    `reset` (or `restore`), then `recv` and `send` in alternation: `send` takes one action per row
    of the last `recv`. A call out of order raises `CallOrderError`. The first `recv` after `reset`
    or `restore` has all envs; later ones may have some, if the backend does not wait for all.
    """

    spec: EnvSpec
    num_envs: int
    # (envs,) envs with the same number step together, and can only be held back together.
    groups: IntArray

    def reset(self, seed: int) -> None:
        """Start episode 0 of every env; the first batch comes from `recv`."""
        ...

    def recv(self) -> StepBatch:
        """Wait until enough envs are ready and return their outputs."""
        ...

    def send(self, actions: Array, env_ids: IntArray | None = None) -> None:
        """Step the envs of the last `recv`, or others that wait.

        Args:
            actions: (rows, *action_shape) one action per env.
            env_ids: (rows,) the envs to step: whole groups that wait, from this or an earlier
                `recv`, in any order; the others keep waiting. May be empty while some env is in
                flight. Default: the envs of the last `recv`.
        """
        ...

    def broadcast(self, shared_params: SharedParams) -> None:
        """Set the shared parameters of every env."""
        ...

    def state(self) -> Arrays:
        """A snapshot of all envs, in env order, taken while `send` is pending.

        Waits for envs in flight; their outputs come from the next `recv`.
        """
        ...

    def restore(self, state: State) -> None:
        """Continue from a snapshot; the batch that was current comes from `recv` again."""
        ...

    def health(self) -> dict[str, int]:
        """Counters of failures so far: `env_failures`, `env_restarts`, `worker_restarts`."""
        ...

    @property
    def first_failure(self) -> Failure | None:
        """The first failure that `health` has counted."""
        ...

    def timings(self) -> dict[str, float]:
        """`BatchEnv.timings`, summed over all envs, where the backend can ask them."""
        ...

    def close(self) -> None:
        """Stop everything; safe to call twice."""
        ...
