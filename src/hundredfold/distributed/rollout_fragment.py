"""What travels: a fragment of a rollout as plain arrays, one column per env of a slice.

An actor cuts it out of its own rollout; the driver lays fragments side by side. A round trip costs
about a millisecond on one machine and several between machines, so nothing smaller travels while
training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hundredfold.core.batch import (
    Array,
    Arrays,
    FloatArray,
    IntArray,
    StepBatch,
    concat_rows,
    slice_rows,
)
from hundredfold.rollout.episode_stats import EpisodeStats
from hundredfold.rollout.rollout_buffer import RolloutBuffer


@dataclass(slots=True)
class Ended:
    """Episodes that ended in a fragment, in the order they ended."""

    steps: IntArray  # (episodes,) where in the fragment
    env_ids: IntArray  # (episodes,) counted from the slice's first env
    returns: FloatArray  # (episodes,)
    lengths: IntArray  # (episodes,)
    info: Arrays  # each (episodes, ...)


@dataclass(slots=True)
class Fragment:
    """Some steps of every env of a slice, and what came of them."""

    stored: Arrays  # actions, log_probs, rewards, ...: each (steps, envs, ...)
    seen: Arrays  # observations, each (steps + 1, envs, ...)
    cut_off: tuple[IntArray, IntArray, Arrays]  # steps, envs and last observations
    ended: Ended
    info: Arrays  # each (steps, envs, ...); empty unless somebody listens
    num_ahead: int  # steps that fast envs have played beyond these, which come the next time
    seconds: dict[str, float]  # what policy and env took
    timings: dict[str, float]  # what the env says of its own parts, since it was made

    @property
    def num_steps(self) -> int:
        return len(self.stored["actions"])

    @property
    def num_bytes(self) -> int:
        """What travels, but for a few hundred bytes around it."""
        arrays = [*self.stored.values(), *self.seen.values(), *self.info.values()]
        return sum(array.nbytes for array in arrays)


@dataclass(slots=True)
class Notes:
    """What an actor writes down while its collector plays: who ended when, and infos if wanted."""

    rollout: RolloutBuffer
    with_info: bool
    steps: list[IntArray] = field(default_factory=list)
    env_ids: list[IntArray] = field(default_factory=list)
    info: dict[str, list[Array]] = field(default_factory=dict)

    def hear(self, batch: StepBatch) -> None:
        """A listener: the rollout has kept this batch already."""
        ended = batch.ended
        if np.count_nonzero(ended):
            over = batch.env_ids[ended]
            self.steps.append(self.rollout.cursor[over] - 1)
            self.env_ids.append(over)
        if self.with_info:
            # Only built-in envs have listeners, and their envs step together.
            for name, array in batch.info.items():
                self.info.setdefault(name, []).append(array.copy())

    def ended(self, episodes: EpisodeStats) -> Ended:
        return Ended(
            _joined(self.steps),
            _joined(self.env_ids),
            np.array(episodes.returns, np.float64),
            np.array(episodes.lengths, np.int64),
            {name: np.concatenate(parts) for name, parts in episodes.info.items()},
        )


def cut_out(
    rollout: RolloutBuffer,
    notes: Notes,
    episodes: EpisodeStats,
    num_ahead: int,
    seconds: dict[str, float],
    timings: dict[str, float],
) -> Fragment:
    """The full rollout of an actor as a fragment; views, so send it before the next step."""
    steps = rollout.num_steps
    nothing = np.zeros(0, np.int64)
    cut_off = rollout.all_truncations() if rollout.truncations else (nothing, nothing, {})
    return Fragment(
        stored=slice_rows(rollout.arrays, slice(steps)),
        seen=rollout.observation,
        cut_off=cut_off,
        ended=notes.ended(episodes),
        info={name: np.stack(parts) for name, parts in notes.info.items()},
        num_ahead=num_ahead,
        seconds=seconds,
        timings=timings,
    )


def all_episodes(fragments: Sequence[Fragment], firsts: Sequence[int]) -> EpisodeStats:
    """Episodes of all slices in the order one batch would tell them: by step, then by env."""
    parts = [fragment.ended for fragment in fragments]
    env_ids = _joined([part.env_ids + first for part, first in zip(parts, firsts, strict=True)])
    order = np.lexsort((env_ids, _joined([part.steps for part in parts])))
    names = next((part.info for part in parts if part.info), {})
    some = [part for part in parts if len(part.steps)]
    return EpisodeStats(
        np.concatenate([part.returns for part in parts])[order].tolist(),
        np.concatenate([part.lengths for part in parts])[order].tolist(),
        {name: [np.concatenate([part.info[name] for part in some])[order]] for name in names},
    )


def outcomes(fragments: Sequence[Fragment]) -> Iterator[StepBatch]:
    """Step by step what came of the actions of all envs, for listeners.

    Final observations and what only counts at the end of an episode are left out.
    """
    stored = {
        name: np.concatenate([fragment.stored[name] for fragment in fragments], axis=1)
        for name in ("rewards", "terminated", "ended")
    }
    seen = concat_rows([fragment.seen for fragment in fragments], axis=1)
    info = concat_rows([fragment.info for fragment in fragments], axis=1)
    for step in range(len(stored["ended"])):
        terminated = stored["terminated"][step]
        yield StepBatch(
            env_ids=np.arange(len(terminated)),
            observation={name: array[step + 1] for name, array in seen.items()},
            reward=stored["rewards"][step].astype(np.float64),
            terminated=terminated,
            truncated=stored["ended"][step] & ~terminated,
            mask=None,
            final_observation={},
            info={name: array[step] for name, array in info.items()},
            episode_info={},
            true_state={},
        )


def _joined(parts: Sequence[IntArray]) -> IntArray:
    return np.concatenate([np.zeros(0, np.int64), *parts])
