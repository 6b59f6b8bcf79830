"""Values of a rollout by a network with memory, which runs over every env's steps in order.

The memory of the value function is needed only for updates, so no collector keeps it: its state
after a rollout is where the next rollout begins.
"""

from __future__ import annotations

import numpy as np
import torch

from hundredfold.algorithms.actor_critic import ActorCritic, tensors
from hundredfold.algorithms.memory import sequence_steps
from hundredfold.core.batch import Arrays, Float32Array, IntArray
from hundredfold.core.errors import SettingsError
from hundredfold.rollout.rollout_buffer import MEMORY, RolloutBuffer


class ValueMemory:
    """Memory of the value function, from one rollout to the next.

    Args:
        network: A network with memory.
        num_envs: Number of envs.
        num_steps: Steps per env in a rollout.
    """

    def __init__(self, network: ActorCritic, num_envs: int, num_steps: int) -> None:
        wanted = network.settings.memory_steps
        steps = sequence_steps(num_steps, wanted)
        if steps is None:
            raise SettingsError(
                f"--memory-steps {wanted} does not divide the {num_steps} steps of an update; use a divisor, or 0."
            )
        self.network, self.sequence_steps = network, steps
        # (envs, size) states at the beginning of the rollout.
        self.state = np.zeros((num_envs, network.memory_size), np.float32)
        # (steps + 1, envs, size) states after each observation of the last rollout.
        self.states = np.zeros((num_steps + 1, num_envs, network.memory_size), np.float32)

    @torch.inference_mode()
    def values(self, rollout: RolloutBuffer, device: torch.device, chunk: int) -> tuple[Float32Array, Float32Array]:
        """Values of all observations, and states before each training sequence; the memory moves on.

        Args:
            rollout: A full rollout.
            device: Device of the network.
            chunk: Observations valued at a time.

        Returns:
            (steps + 1, envs) values and (sequences of an env, envs, size) states.
        """
        num_steps, num_envs = rollout.num_steps, rollout.num_envs
        if self.network.settings.shared:
            self.state[...] = rollout.arrays[MEMORY][0]
        starts = np.zeros((num_steps + 1, num_envs), bool)
        # Episodes may begin without an end before, where envs were recreated or restored between two
        # rollouts: the policy's states are 0 there, too.
        starts[0] = ~rollout.arrays[MEMORY][0].any(axis=1)
        starts[1:] = rollout.ended
        values = np.empty((num_steps + 1, num_envs), np.float32)
        width = max(1, chunk // (num_steps + 1))
        for first in range(0, num_envs, width):
            envs = slice(first, first + width)
            observation = {name: _by_env(array[:, envs]) for name, array in rollout.observation.items()}
            state = torch.from_numpy(self.state[envs]).to(device)
            begins = torch.from_numpy(_by_env(starts[:, envs])).to(device)
            flat_values, flat_states = self.network.value_and_states(tensors(observation, device), state, begins)
            count = len(state)
            values[:, envs] = flat_values.cpu().numpy().reshape(count, num_steps + 1).T
            states = flat_states.cpu().numpy().reshape(count, num_steps + 1, -1)
            self.states[:, envs] = states.swapaxes(0, 1)
        before = np.concatenate([self.state[None], self.states[:-1]])
        before[starts] = 0.0
        self.state[...] = before[num_steps]
        return values, before[: num_steps : self.sequence_steps]

    @torch.inference_mode()
    def final_values(self, steps: IntArray, env_ids: IntArray, final: Arrays, device: torch.device) -> Float32Array:
        """(rows,) values of the final observations of truncated episodes.

        Args:
            steps: (rows,) last steps of the episodes in the rollout.
            env_ids: (rows,) their envs.
            final: Final observations, each (rows, ...).
            device: Device of the network.
        """
        state = torch.from_numpy(self.states[steps, env_ids]).to(device)
        values: Float32Array = self.network.value_and_states(tensors(final, device), state)[0].cpu().numpy()
        return values


def _by_env(array: np.ndarray) -> np.ndarray:
    """A (steps, envs, ...) array as (envs x steps, ...) rows."""
    return np.ascontiguousarray(array.swapaxes(0, 1)).reshape(-1, *array.shape[2:])
