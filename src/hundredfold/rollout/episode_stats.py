"""Episode statistics: return, length and episode info of every episode that ends."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hundredfold.core.batch import Array, Arrays, BoolArray, FloatArray, IntArray, State


@dataclass(slots=True)
class EpisodeStats:
    """Episodes that ended while collecting, in the order in which they ended."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    info: dict[str, list[Array]] = field(default_factory=dict)  # each a list of (episodes, ...)

    def means(self) -> dict[str, float]:
        """Averages as metrics; empty if no episode ended."""
        if not self.returns:
            return {}
        means = {
            "return_mean": float(np.mean(self.returns)),
            "return_std": float(np.std(self.returns)),
            "avg_episode_steps": float(np.mean(self.lengths)),
        }
        for name, values in self.info.items():
            means[mean_name(name)] = float(np.mean(np.concatenate(values), dtype=np.float64))
        return means


def mean_name(name: str) -> str:
    """Metric name of the mean of an episode info."""
    return "failure_rate" if name == "failed" else f"avg_{name}"


class RunningReturns:
    """Return and length of every env's episode so far."""

    def __init__(self, num_envs: int) -> None:
        from hundredfold.rollout import kernels

        self.kernels = kernels
        self.returns = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, np.int64)

    def step(
        self, env_ids: IntArray, reward: FloatArray, ended: BoolArray, info: State, episodes: EpisodeStats
    ) -> None:
        """Add one step of these envs and move episodes that ended in it to `episodes`.

        Args:
            env_ids: (rows,) envs that stepped.
            reward: (rows,) rewards.
            ended: (rows,) True where the episode terminated or was truncated.
            info: episode infos, each (rows, ...), valid where `ended`.
            episodes: statistics that receive the finished episodes.
        """
        self.kernels.add_rewards(env_ids, reward, self.returns, self.lengths)
        if not np.count_nonzero(ended):
            return
        finished = env_ids[ended]
        episodes.returns.extend(self.returns[finished].tolist())
        episodes.lengths.extend(self.lengths[finished].tolist())
        for name, array in info.items():
            episodes.info.setdefault(name, []).append(array[ended])
        self.returns[finished] = 0.0
        self.lengths[finished] = 0

    def reset(self) -> None:
        """Start all episodes at zero."""
        self.returns[:] = 0.0
        self.lengths[:] = 0

    def arrays(self) -> Arrays:
        """The live arrays, for snapshots."""
        return {"returns": self.returns, "lengths": self.lengths}
