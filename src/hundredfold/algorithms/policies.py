"""Policies: networks that sample allowed actions, or act greedily in evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from hundredfold.algorithms.actor_critic import ActorCritic, tensors
from hundredfold.algorithms.distributions import ActionDistribution
from hundredfold.algorithms.q_network import QNetwork
from hundredfold.core.batch import Array, Arrays, BoolArray, Float32Array, FloatArray, IntArray, StepBatch
from hundredfold.core.errors import SettingsError
from hundredfold.rollout.rollout_buffer import ActionSample

if TYPE_CHECKING:
    from hundredfold.algorithms.numba_policy import NumbaPolicy
    from hundredfold.algorithms.protocols import EvaluationPolicy

# Up to this many rows a compiled kernel is faster than torch's calls.
FEW_ROWS: Final = 32


class NetworkPolicy:
    """Stochastic policy of an actor-critic network.

    Args:
        network: Its logits define the action distribution.
        device: Device of the network.
    """

    # Compiled inference for few rows, and the network it was made for.
    numba_policy: NumbaPolicy | None = None
    numba_network: ActorCritic | None = None

    def __init__(self, network: ActorCritic, device: torch.device) -> None:
        self.network = network
        self.device = device

    def sample(self, observation: Arrays, mask: BoolArray | None, uniforms: NDArray[np.float64]) -> ActionSample:
        """Sample one action per row.

        Args:
            observation: Named arrays, each (rows, ...).
            mask: (rows, num_logits), True = allowed; None allows everything.
            uniforms: (rows, action dims) uniform random numbers that decide the sample.
        """
        if len(uniforms) <= FEW_ROWS:
            compiled = self._numba_policy()
            if compiled is not None:
                return compiled.sample(observation, mask, uniforms)
        return self._sample(self._distribution(observation, mask), uniforms)

    @torch.inference_mode()
    def sample_with_memory(
        self, observation: Arrays, mask: BoolArray | None, uniforms: NDArray[np.float64], memory: Float32Array
    ) -> ActionSample:
        """Sample one action per row with the memory of its episode.

        Args:
            observation: Named arrays, each (rows, ...).
            mask: (rows, num_logits), True = allowed; None allows everything.
            uniforms: (rows, action dims) uniform random numbers that decide the sample.
            memory: (rows, memory_size) states; 0 at the beginning of an episode.
        """
        distribution, next_memory = self._distribution_and_memory(observation, mask, memory)
        sample = self._sample(distribution, uniforms)
        sample.memory, sample.next_memory = memory, next_memory
        return sample

    @property
    def memory_size(self) -> int:
        """Size of the memory's state; 0 = no memory."""
        return self.network.memory_size

    @torch.inference_mode()
    def _sample(self, distribution: ActionDistribution, uniforms: NDArray[np.float64]) -> ActionSample:
        sampled = distribution.sample(torch.from_numpy(uniforms))
        log_probs = distribution.log_prob(sampled).numpy()
        if self.network.bounds is None:
            return ActionSample(self._shaped(sampled), log_probs)
        return ActionSample(self._in_bounds(sampled), log_probs, unclipped=self._shaped(sampled))

    @torch.inference_mode()
    def act_deterministic(self, observation: Arrays, mask: BoolArray | None) -> Array:
        """The mode of the action distribution of each row."""
        return self._mode(self._distribution(observation, mask))

    @torch.inference_mode()
    def act_with_memory(
        self, observation: Arrays, mask: BoolArray | None, memory: Float32Array
    ) -> tuple[Array, Float32Array]:
        """The mode of the action distribution of each row, and the next states of the memory.

        Args:
            observation: Named arrays, each (rows, ...).
            mask: (rows, num_logits), True = allowed; None allows everything.
            memory: (rows, memory_size) states; 0 at the beginning of an episode.
        """
        distribution, next_memory = self._distribution_and_memory(observation, mask, memory)
        return self._mode(distribution), next_memory

    @torch.inference_mode()
    def action_costs(self, observation: Arrays) -> Array:
        """(rows, actions) predicted cost of every action, of a `per_action` network."""
        if self.network.per_action is None:
            raise SettingsError(
                "this policy does not predict what every action costs, as look-ahead needs it; train it with "
                "--architecture per_action."
            )
        costs: Array = self.network.per_action.costs(tensors(observation, self.device)).cpu().numpy()
        return costs

    def __getstate__(self) -> dict[str, Any]:
        """Without the compiled policy: its views would still read the original's weights."""
        return {"network": self.network, "device": self.device}

    def _numba_policy(self) -> NumbaPolicy | None:
        if self.numba_network is not self.network:
            # Imported late: reading settings must not load a compiler.
            from hundredfold.algorithms.numba_policy import NumbaPolicy

            self.numba_network = self.network
            supported = NumbaPolicy.supports(self.network)
            self.numba_policy = NumbaPolicy(self.network) if supported else None
        return self.numba_policy

    def _mode(self, distribution: ActionDistribution) -> Array:
        mode = distribution.mode()
        return self._shaped(mode) if self.network.bounds is None else self._in_bounds(mode)

    def _distribution_and_memory(
        self, observation: Arrays, mask: BoolArray | None, memory: Float32Array
    ) -> tuple[ActionDistribution, Float32Array]:
        allowed = None if mask is None else torch.from_numpy(mask)
        state = torch.from_numpy(memory).to(self.device)
        logits, next_state = self.network.logits_and_state(tensors(observation, self.device), state)
        return self.network.distribution(logits.cpu(), allowed), next_state.cpu().numpy()

    @torch.inference_mode()
    def _distribution(self, observation: Arrays, mask: BoolArray | None) -> ActionDistribution:
        # Sampling on the CPU adds probabilities in the same order on every device.
        allowed = None if mask is None else torch.from_numpy(mask)
        logits = self.network.logits(tensors(observation, self.device)).cpu()
        return self.network.distribution(logits, allowed)

    def _in_bounds(self, sampled: torch.Tensor) -> Array:
        """Continuous actions in the env's units, clipped to its bounds."""
        assert self.network.bounds is not None
        return self._shaped(self.network.bounds(sampled.to(self.device)).cpu())

    def _shaped(self, actions: torch.Tensor) -> Array:
        """(rows, dims) actions in the env's action shape, e.g. (rows,) for a single dimension."""
        return actions.numpy().reshape(len(actions), *self.network.action_shape)


class BatchActor:
    """Deterministic actions of a policy for step batches; keeps the memory of every env's episode.

    Args:
        policy: The policy.
    """

    def __init__(self, policy: EvaluationPolicy) -> None:
        self.policy = policy
        self.reset()

    @property
    def memory_size(self) -> int:
        """Size of the memory's state; 0 = no memory."""
        return self.policy.memory_size if isinstance(self.policy, NetworkPolicy) else 0

    def reset(self) -> None:
        """Forget all episodes."""
        self.memory: Float32Array = np.zeros((0, self.memory_size), np.float32)  # (envs, size)

    def __call__(self, batch: StepBatch) -> Array:
        """Actions for the rows of a batch."""
        policy, ids = self.policy, batch.env_ids
        if not isinstance(policy, NetworkPolicy) or not policy.memory_size:
            return policy.act_deterministic(batch.observation, batch.mask)
        if ids.max() >= len(self.memory):
            more = np.zeros((int(ids.max()) + 1 - len(self.memory), policy.memory_size), np.float32)
            self.memory = np.concatenate([self.memory, more])
        self.memory[ids[batch.ended]] = 0.0
        actions, self.memory[ids] = policy.act_with_memory(batch.observation, batch.mask, self.memory[ids])
        return actions


class QPolicy:
    """Epsilon-greedy policy of a Q-network.

    Args:
        network: Action values.
        device: Device of the network.
        num_envs: Number of envs, each with its own epsilon.
    """

    def __init__(self, network: QNetwork, device: torch.device, num_envs: int = 1) -> None:
        self.network = network
        self.device = device
        self.epsilons = np.zeros(num_envs)  # (envs,) probability of a random action
        self.rows_sampled = 0

    def sample(self, observation: Arrays, mask: BoolArray | None, uniforms: NDArray[np.float64]) -> ActionSample:
        """Sample one action per row; one uniform decides whether and what is explored.

        Args:
            observation: Named arrays, each (rows, ...).
            mask: (rows, actions), True = allowed; None allows everything.
            uniforms: (rows, 1) uniform random numbers.
        """
        uniform = uniforms[:, 0]
        epsilons = self._next_epsilons(len(uniform))
        greedy = self.act_deterministic(observation, mask)
        actions = greedy.copy()
        num_actions = self.network.num_actions
        counts = np.full(len(uniform), num_actions) if mask is None else mask.sum(axis=1)
        exploring = np.flatnonzero(uniform < epsilons)
        if len(exploring):
            # Given that it lies below epsilon, uniform / epsilon is uniform: it picks the action.
            rescaled = uniform[exploring] / epsilons[exploring]
            nth = np.minimum(rescaled * counts[exploring], counts[exploring] - 1).astype(np.int64)
            actions[exploring] = nth if mask is None else nth_allowed(mask[exploring], nth)
        probs = epsilons / counts + (1.0 - epsilons) * (actions == greedy)
        return ActionSample(actions, np.log(probs, dtype=np.float32))

    @torch.inference_mode()
    def act_deterministic(self, observation: Arrays, mask: BoolArray | None) -> IntArray:
        """The allowed action of the highest value; the lowest index wins a tie."""
        values = self.network(tensors(observation, self.device)).cpu()
        if mask is not None:
            values = torch.where(torch.from_numpy(mask), values, -torch.inf)
        actions: IntArray = values.argmax(dim=-1).numpy()
        return actions

    def _next_epsilons(self, num_rows: int) -> FloatArray:
        """The envs' epsilons in env order; partial batches take them in turn.

        So all epsilons are used equally often however fast the envs are, and no row needs its id.
        """
        turns = (self.rows_sampled + np.arange(num_rows)) % len(self.epsilons)
        self.rows_sampled = (self.rows_sampled + num_rows) % len(self.epsilons)
        return self.epsilons[turns]


def nth_allowed(mask: BoolArray, nth: IntArray) -> IntArray:
    """(rows,) index of the nth allowed action of each row, counted from 0."""
    actions: IntArray = np.argmax(mask.cumsum(axis=1) > nth[:, None], axis=1)
    return actions


def apex_epsilons(epsilon: float, alpha: float, num_envs: int) -> FloatArray:
    """(envs,) exploration rates of Ape-X (Horgan et al. 2018).

    From `epsilon` for the first env down to `epsilon ** (1 + alpha)` for the last.
    """
    exponents = np.arange(num_envs) / max(num_envs - 1, 1)
    return np.asarray(epsilon ** (1.0 + alpha * exponents), np.float64)
