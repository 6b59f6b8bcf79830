"""Episodes as they end: what they returned, how long they took, and what the env says of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hundredfold.core.batch import Array, Arrays, BoolArray, FloatArray, IntArray, State


@dataclass(slots=True)
class EpisodeStats:
    """The episodes that ended while collecting, in the order they ended."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    info: dict[str, list[Array]] = field(default_factory=dict)

    def means(self) -> dict[str, float]:
        """Averages for the metrics; empty when nothing ended."""
        if not self.returns:
            return {}
        means = {
            "avg_reward": float(np.mean(self.returns)),
            "reward_spread": float(np.std(self.returns)),
            "avg_episode_steps": float(np.mean(self.lengths)),
        }
        for name, values in self.info.items():
            means[mean_name(name)] = float(np.mean(np.concatenate(values), dtype=np.float64))
        return means


def mean_name(name: str) -> str:
    """What the mean of something an env tells at the end of an episode is called in metrics."""
    return "failure_rate" if name == "failed" else f"avg_{name}"


class RunningReturns:
    """The running return and length of every env's episode."""

    def __init__(self, num_envs: int) -> None:
        from hundredfold.rollout import kernels

        self.kernels = kernels
        self.returns = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, np.int64)

    def step(
        self,
        env_ids: IntArray,
        reward: FloatArray,
        ended: BoolArray,
        info: State,
        episodes: EpisodeStats,
    ) -> None:
        """One step of these envs; episodes that ended in it are told, with their infos."""
        self.kernels.add_up(env_ids, reward, self.returns, self.lengths)
        if not np.count_nonzero(ended):
            return
        over = env_ids[ended]
        episodes.returns.extend(self.returns[over].tolist())
        episodes.lengths.extend(self.lengths[over].tolist())
        for name, array in info.items():
            episodes.info.setdefault(name, []).append(array[ended])
        self.returns[over] = 0.0
        self.lengths[over] = 0

    def forget(self) -> None:
        """All episodes begin anew."""
        self.returns[:] = 0.0
        self.lengths[:] = 0

    def arrays(self) -> Arrays:
        return {"returns": self.returns, "lengths": self.lengths}
