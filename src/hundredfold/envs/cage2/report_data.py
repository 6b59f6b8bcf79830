"""Data for the report page of a cage2 run: its score, where it loses points, episodes to replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from hundredfold.core.batch import Array, BoolArray, IntArray, StepBatch
from hundredfold.envs.cage2.blue_actions import action_names
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.episodes import (
    CAUSES,
    RESTORED,
    RecordedEpisodes,
    record_episodes,
    replay_legend,
    replay_record,
)
from hundredfold.envs.cage2.evaluation import PUBLISHED_AGENTS, evaluation_cells, mean_and_stderr

Record = dict[str, Any]

FORMAT: Final = 1
EPISODES: Final = 500
"""Episodes per red agent and horizon."""
SEED: Final = 9999
LONGEST: Final = 100
"""Horizon of the episodes whose losses are listed."""
THIS_RUN: Final = "this run"


def record_report_data(
    act: Callable[[StepBatch], IntArray], settings: Cage2Settings, *, episodes: int = EPISODES, seed: int = SEED
) -> Record:
    """Play the official evaluation and record it; the result can be written as JSON.

    Args:
        act: The trained policy.
        settings: The run's env; red agent and horizon are those of the evaluation.
        episodes: Episodes per red agent and horizon.
        seed: Evaluation seed.
    """
    policy = _BluePolicy(act, settings, episodes)
    cells: list[Record] = []
    lost: Record = {}
    used: Record = {}
    replays = []
    for red, horizon, cell_seed in evaluation_cells(seed):
        recorded = record_episodes(policy, replace(settings, red=red, horizons=(horizon,)), episodes, cell_seed)
        returns = recorded.rewards.sum(axis=1)
        mean, stderr = mean_and_stderr(returns)
        cells.append({"red": red, "horizon": horizon, "mean": mean, "stderr": stderr})
        if horizon == LONGEST and red != "sleep":
            lost[red] = (recorded.lost_tenths().sum(axis=1).mean(axis=0) / 10).round(4).tolist()
            used[red] = action_rows(recorded)
            # The lower median: a typical episode that was really played.
            typical = int(np.argsort(returns, kind="stable")[(episodes - 1) // 2])
            replays.append([replay_record(recorded, THIS_RUN, typical)])
    return {
        "format": FORMAT,
        "episodes": episodes,
        "seed": seed,
        "ruleset": settings.ruleset,
        "cells": cells,
        "total": sum(cell["mean"] for cell in cells),
        "total_stderr": float(np.sqrt(sum(cell["stderr"] ** 2 for cell in cells))) if episodes > 1 else None,
        "published": [
            {"name": agent.name, "ruleset": agent.ruleset, "total": agent.total, "means": _by_name(agent.means)}
            for agent in (PUBLISHED_AGENTS if settings.network_file is None else ())
        ],
        "hosts": list(settings.network.host_names),
        "causes": list(CAUSES),
        "lost": lost,
        "actions": used,
        "replay": {"legend": replay_legend(settings.network), "episodes": replays},
    }


def run_report_data(
    act: Callable[[StepBatch], IntArray], settings: Cage2Settings, *, shared_params: object, days: int, seconds: float
) -> Record:
    """Report data of a run; number of days and time limit do not matter, as this takes a second."""
    return record_report_data(act, settings)


def action_rows(recorded: RecordedEpisodes) -> list[Record]:
    """One row per kind of blue action: uses per episode, points it cost itself, points lost to red in these steps."""
    lost = recorded.lost_tenths() / 10
    own, by_red = lost[..., RESTORED].sum(axis=2), np.delete(lost, RESTORED, axis=3).sum(axis=(2, 3))
    verbs = np.array([name.split()[0] for name in action_names(recorded.network)])
    episodes = len(recorded.actions)
    rows: list[Record] = []
    for verb in dict.fromkeys(verbs.tolist()):
        steps = verbs[recorded.actions] == verb
        if steps.any():
            rows.append(
                {
                    "action": verb,
                    "uses": round(float(steps.sum() / episodes), 3),
                    "own_cost": round(float(own[steps].sum() / episodes), 3),
                    "lost_to_red": round(float(by_red[steps].sum() / episodes), 3),
                }
            )
    return sorted(rows, key=lambda row: -row["uses"])


def _by_name(means: Mapping[tuple[str, int], float]) -> dict[str, float]:
    return {f"{red} {horizon}": mean for (red, horizon), mean in means.items()}


class _BluePolicy:
    """A policy of step batches as one of observations and masks.

    Args:
        act: The policy of step batches.
        settings: The run's env.
        episodes: Rows of a batch.
    """

    def __init__(self, act: Callable[[StepBatch], IntArray], settings: Cage2Settings, episodes: int) -> None:
        self.act = act
        self.batch = Cage2(np.arange(episodes), settings).out

    def reset(self, episodes: int) -> None:
        """Let a policy with memory forget the last episodes."""
        forget = getattr(self.act, "reset", None)
        if forget is not None:
            forget()

    def __call__(self, observation: Mapping[str, Array], mask: BoolArray | None = None) -> IntArray:
        return self.act(replace(self.batch, observation=dict(observation), mask=mask))
