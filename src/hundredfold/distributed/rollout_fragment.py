"""Rollout fragments: what actors send to the driver, plain arrays with one column per env.

A round trip costs about a millisecond on one machine and several between machines, so nothing
smaller is sent during training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hundredfold.core.batch import Array, Arrays, FloatArray, IntArray, StepBatch, concat_rows, slice_rows
from hundredfold.rollout.episode_stats import EpisodeStats
from hundredfold.rollout.rollout_buffer import RolloutBuffer, Truncations


@dataclass(slots=True)
class FinishedEpisodes:
    """Episodes that ended in a fragment, in the order they ended."""

    steps: IntArray  # (episodes,) last step, counted from the start of the fragment
    env_ids: IntArray  # (episodes,) counted from the first env of the shard
    returns: FloatArray  # (episodes,)
    lengths: IntArray  # (episodes,)
    info: Arrays  # each (episodes, ...)


@dataclass(slots=True)
class Fragment:
    """Consecutive steps of all envs of a shard."""

    arrays: Arrays  # actions, log_probs, rewards, ...: each (steps, envs, ...)
    observations: Arrays  # each (steps + 1, envs, ...)
    truncations: Truncations | None  # env ids counted from the first env of the shard
    finished: FinishedEpisodes
    info: Arrays  # each (steps, envs, ...); empty without step callbacks
    steps_ahead: int  # steps that fast envs have taken beyond these; they come with the next one
    seconds: dict[str, float]  # spent in policy and env
    timings: dict[str, float]  # the backend's own timings since it was started

    @property
    def num_bytes(self) -> int:
        """Size of the arrays; the rest is a few hundred bytes."""
        arrays = [*self.arrays.values(), *self.observations.values(), *self.info.values()]
        return sum(array.nbytes for array in arrays)


@dataclass(slots=True)
class EpisodeLog:
    """Ends of episodes, and infos if wanted, logged by an actor while it collects."""

    buffer: RolloutBuffer
    with_info: bool
    steps: list[IntArray] = field(default_factory=list)
    env_ids: list[IntArray] = field(default_factory=list)
    info: dict[str, list[Array]] = field(default_factory=dict)

    def record(self, batch: StepBatch) -> None:
        """Step callback; the buffer has stored this batch already."""
        ended = batch.ended
        if np.count_nonzero(ended):
            env_ids = batch.env_ids[ended]
            self.steps.append(self.buffer.cursor[env_ids] - 1)
            self.env_ids.append(env_ids)
        if self.with_info:
            # Only built-in envs have step callbacks, and their envs step together.
            for name, array in batch.info.items():
                self.info.setdefault(name, []).append(array.copy())

    def finished(self, episodes: EpisodeStats) -> FinishedEpisodes:
        """The logged episodes, with their returns, lengths and infos from `episodes`."""
        return FinishedEpisodes(
            _concat(self.steps),
            _concat(self.env_ids),
            np.array(episodes.returns, np.float64),
            np.array(episodes.lengths, np.int64),
            {name: np.concatenate(parts) for name, parts in episodes.info.items()},
        )


def extract(
    buffer: RolloutBuffer,
    log: EpisodeLog,
    episodes: EpisodeStats,
    steps_ahead: int,
    seconds: dict[str, float],
    timings: dict[str, float],
) -> Fragment:
    """The full rollout buffer of an actor as a fragment of views: send it before the next step."""
    return Fragment(
        arrays=slice_rows(buffer.arrays, slice(buffer.num_steps)),
        observations=buffer.observation,
        truncations=Truncations(*buffer.all_truncations()) if buffer.truncations else None,
        finished=log.finished(episodes),
        info={name: np.stack(parts) for name, parts in log.info.items()},
        steps_ahead=steps_ahead,
        seconds=seconds,
        timings=timings,
    )


def merge_episodes(fragments: Sequence[Fragment], first_env_ids: Sequence[int]) -> EpisodeStats:
    """Episodes of all shards in the order of a single batch: by step, then by env."""
    parts = [fragment.finished for fragment in fragments]
    env_ids = _concat([p.env_ids + first for p, first in zip(parts, first_env_ids, strict=True)])
    order = np.lexsort((env_ids, _concat([part.steps for part in parts])))
    names = next((part.info for part in parts if part.info), {})
    nonempty = [part for part in parts if len(part.steps)]
    return EpisodeStats(
        np.concatenate([part.returns for part in parts])[order].tolist(),
        np.concatenate([part.lengths for part in parts])[order].tolist(),
        {name: [np.concatenate([part.info[name] for part in nonempty])[order]] for name in names},
    )


def merge_steps(fragments: Sequence[Fragment]) -> Iterator[StepBatch]:
    """The steps of all envs one by one, for step callbacks.

    Final observations and episode infos are left out.
    """
    arrays = {
        name: np.concatenate([fragment.arrays[name] for fragment in fragments], axis=1)
        for name in ("rewards", "terminated", "ended")
    }
    observations = concat_rows([fragment.observations for fragment in fragments], axis=1)
    info = concat_rows([fragment.info for fragment in fragments], axis=1)
    for step in range(len(arrays["ended"])):
        terminated = arrays["terminated"][step]
        yield StepBatch(
            env_ids=np.arange(len(terminated)),
            observation={name: array[step + 1] for name, array in observations.items()},
            reward=arrays["rewards"][step].astype(np.float64),
            terminated=terminated,
            truncated=arrays["ended"][step] & ~terminated,
            mask=None,
            final_observation={},
            info={name: array[step] for name, array in info.items()},
            episode_info={},
            true_state={},
        )


def _concat(parts: Sequence[IntArray]) -> IntArray:
    return np.concatenate([np.zeros(0, np.int64), *parts])
