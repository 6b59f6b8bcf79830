"""Trained policies for users: validated observations in, actions out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hundredfold.algorithms.policies import BatchActor, NetworkPolicy
from hundredfold.algorithms.protocols import EvaluationPolicy
from hundredfold.core import rng
from hundredfold.core.batch import Array, Arrays, BoolArray, EnvSpec, Float32Array
from hundredfold.core.errors import ShapeError


class LoadedPolicy:
    """A trained policy that acts on single observations or whole batches.

    A policy with memory remembers the observations it has acted on: call `reset` where episodes begin.

    Args:
        policy: The policy itself.
        spec: Observation and action spec it was trained on.
        epoch: Epoch of the checkpoint.
        seed: Seed of stochastic actions.
    """

    def __init__(self, policy: EvaluationPolicy, spec: EnvSpec, epoch: int, seed: int) -> None:
        self.policy, self.spec, self.epoch = policy, spec, epoch
        self.key = rng.spawn(rng.seed_key(seed), 0x6163740A)
        self.draws = 0
        self.memory: Float32Array | None = None  # (rows, size) states; None at the beginning of episodes

    def reset(self, rows: ArrayLike | None = None) -> None:
        """Forget what was observed: new episodes begin. Without effect on policies without memory.

        Args:
            rows: Of a batch, those whose episodes begin, as bools or numbers; all by default.
        """
        if rows is None:
            self.memory = None
        elif self.memory is not None:
            try:
                self.memory[np.asarray(rows)] = 0.0
            except IndexError as error:
                raise ShapeError(
                    f"reset() got {rows!r}, but act() had {len(self.memory)} rows; pass a bool for each of them, or "
                    f"numbers from 0 to {len(self.memory) - 1}."
                ) from error

    def act(
        self,
        observation: ArrayLike | Mapping[str, ArrayLike],
        mask: ArrayLike | None = None,
        deterministic: bool = True,
    ) -> Any:
        """The action for an observation, or one per row of a batch.

        Args:
            observation: An array, or a dictionary of arrays where the env observes several; with a
                leading axis for a batch.
            mask: Allowed actions, True = allowed, `num_logits` per row.
            deterministic: Take the preferred action instead of sampling one.
        """
        arrays, batched = self._rows(observation)
        allowed = self._mask(mask, len(next(iter(arrays.values()))), batched)
        if isinstance(self.policy, NetworkPolicy) and self.policy.memory_size:
            actions = self._act_with_memory(self.policy, arrays, allowed, deterministic)
        elif deterministic:
            actions = self.policy.act_deterministic(arrays, allowed)
        else:
            actions = self.policy.sample(arrays, allowed, self._uniforms(arrays)).actions
        if batched:
            return actions
        return actions[0].item() if actions.ndim == 1 else actions[0]

    @property
    def actor(self) -> BatchActor:
        """A new function from step batches to deterministic actions, with a memory of its own."""
        return BatchActor(self.policy)

    def _act_with_memory(
        self, policy: NetworkPolicy, arrays: Arrays, mask: BoolArray | None, deterministic: bool
    ) -> Array:
        """Actions, after which the memory holds the next states."""
        rows = len(next(iter(arrays.values())))
        if self.memory is None:
            self.memory = np.zeros((rows, policy.memory_size), np.float32)
        if len(self.memory) != rows:
            raise ShapeError(
                f"act() got {rows} rows after {len(self.memory)}, and this policy remembers each of them; call reset() "
                "before another number of episodes."
            )
        if deterministic:
            actions, self.memory = policy.act_with_memory(arrays, mask, self.memory)
            return actions
        sample = policy.sample_with_memory(arrays, mask, self._uniforms(arrays), self.memory)
        self.memory = sample.next_memory
        return sample.actions

    def _rows(self, observation: ArrayLike | Mapping[str, ArrayLike]) -> tuple[Arrays, bool]:
        specs = self.spec.policy_observation
        names = list(specs)
        if not isinstance(observation, Mapping):
            if len(names) != 1:
                raise ShapeError(
                    f"{self.spec.name} observes a dictionary with {', '.join(names)}; got {type(observation).__name__}."
                )
            observation = {names[0]: observation}
        arrays: Arrays = {}
        batched = False
        for name, spec in specs.items():
            if name not in observation:
                raise ShapeError(f"the observation lacks {name!r}; expected {', '.join(names)}.")
            array = np.asarray(observation[name], spec.dtype)
            batched = array.ndim > len(spec.shape)
            array = array if batched else array[None]
            if array.shape[1:] != spec.shape:
                raise ShapeError(
                    f"{name!r} has shape {np.shape(observation[name])}; expected {spec.shape}, or "
                    f"(rows, *{spec.shape}) for a batch."
                )
            if spec.categories is not None:
                counts = np.reshape(spec.categories, spec.shape)
                if np.any((array < 0) | (array >= counts)):
                    raise ShapeError(
                        f"{name!r} has a category out of range; there are {spec.categories}, counted from 0."
                    )
            arrays[name] = array
        return arrays, batched

    def _mask(self, mask: ArrayLike | None, rows: int, batched: bool) -> BoolArray | None:
        if mask is None:
            if self.spec.has_mask:
                warnings.warn(
                    f"{self.spec.name} has masks, but act() got none; the action may be forbidden.", stacklevel=3
                )
            return None
        array: Array = np.asarray(mask, bool)
        array = array if batched else array[None]
        if array.shape != (rows, self.spec.num_logits):
            raise ShapeError(
                f"the mask has shape {np.shape(mask)}; expected {self.spec.num_logits} bools per row (True = allowed)."
            )
        offset = 0
        for count in self.spec.action_nvec:
            if not array[:, offset : offset + count].any(axis=1).all():
                raise ShapeError("the mask forbids every action of a row; at least one must be True.")
            offset += count
        return array

    def _uniforms(self, arrays: Arrays) -> NDArray[np.float64]:
        shape = (len(next(iter(arrays.values()))), self.spec.num_action_dims)
        counts = self.draws + np.arange(shape[0] * shape[1]).reshape(shape)
        self.draws += counts.size
        return rng.uniforms(self.key, counts)
