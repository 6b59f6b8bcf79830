"""Official evaluation of a blue policy: three red agents by three horizons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from hundredfold.core.batch import FloatArray
from hundredfold.envs.cage2.baselines import BluePolicy
from hundredfold.envs.cage2.env import Cage2, Cage2Settings, RedAgent

Row = dict[str, Any]

REDS: Final[tuple[RedAgent, ...]] = ("b_line", "meander", "sleep")
LENGTHS: Final = (30, 50, 100)

# Best entry of the public leaderboard, scored in 2022 on what the ruleset `leaderboard` reproduces.
# Its total implies 0 for the sleeping red agent.
PUBLISHED: Final = {
    "CardiffUni": {
        ("b_line", 30): -3.47,
        ("meander", 30): -5.64,
        ("sleep", 30): 0.0,
        ("b_line", 50): -6.41,
        ("meander", 50): -8.69,
        ("sleep", 50): 0.0,
        ("b_line", 100): -13.76,
        ("meander", 100): -16.60,
        ("sleep", 100): 0.0,
    }
}
PUBLISHED_TOTALS: Final = {"CardiffUni": -54.57}


def step_rewards(
    policy: BluePolicy, settings: Cage2Settings, episodes: int, seed: int, batch: int = 1000
) -> FloatArray:
    """Rewards of a policy, one episode per env.

    Args:
        policy: blue policy.
        settings: env settings with a single horizon.
        episodes: number of episodes; episode e is the first of env e.
        seed: seed of the envs.
        batch: most envs stepped at a time.

    Returns:
        (episodes, horizon) rewards.
    """
    (horizon,) = settings.horizons
    rewards = np.empty((episodes, horizon))
    for first in range(0, episodes, batch):
        env_ids = np.arange(first, min(first + batch, episodes))
        env = Cage2(env_ids, settings)
        out = env.reset(seed)
        reset = getattr(policy, "reset", None)
        if reset is not None:
            reset(len(env_ids))
        for step in range(horizon):
            inputs = (out.observation,) if out.mask is None else (out.observation, out.mask)
            env.step(policy(*inputs))
            rewards[env_ids, step] = out.reward
    return rewards


def mean_and_stderr(returns: FloatArray) -> tuple[float, float]:
    """Mean of the returns and its standard error."""
    std = returns.std(ddof=1) if len(returns) > 1 else float("nan")
    return float(returns.mean()), float(std / np.sqrt(len(returns)))


def evaluate_table(
    policy: BluePolicy,
    episodes: int = 1000,
    seed: int = 0,
    settings: Cage2Settings | None = None,
    name: str = "policy",
    reds: Sequence[RedAgent] = REDS,
    lengths: Sequence[int] = LENGTHS,
) -> list[Row]:
    """Mean return and standard error for every red agent and horizon, and their total.

    The policy does not observe which red agent it faces. Every cell has its own episodes, so the
    standard errors are independent.

    Args:
        policy: blue policy.
        episodes: episodes per cell.
        seed: seed of the episodes.
        settings: ruleset, wrapper, green agent, channels and mask; red and horizon are replaced.
        name: name of the policy in the rows.
        reds: red agents.
        lengths: horizons, in steps.

    Returns:
        One row per cell, a row with the total, then the published entries for the same cells.
    """
    settings = settings or Cage2Settings()
    cells = [(red, length) for length in lengths for red in reds]
    rows: list[Row] = []
    for number, (red, length) in enumerate(cells):
        cell_settings = replace(settings, red=red, horizons=(length,))
        # One seed per cell: with a common seed, short episodes would be prefixes of the long ones.
        rewards = step_rewards(policy, cell_settings, episodes, seed * len(cells) + number)
        mean, stderr = mean_and_stderr(rewards.sum(axis=1))
        rows.append(_row(name, red, length, mean, stderr, episodes))
    total_stderr = float(np.sqrt(sum(row["stderr"] ** 2 for row in rows)))
    total = sum(row["mean"] for row in rows)
    rows.append(_row(name, "total", None, total, total_stderr, episodes * len(cells)))
    return rows + published_rows(cells)


def published_rows(cells: Sequence[tuple[str, int]]) -> list[Row]:
    """Published entries for these cells, with a total if the cells are the whole table."""
    rows: list[Row] = []
    for name, means in PUBLISHED.items():
        rows += [
            _row(name, red, length, means[red, length], None, None) for red, length in cells if (red, length) in means
        ]
        if set(cells) == set(means):
            rows.append(_row(name, "total", None, PUBLISHED_TOTALS[name], None, None))
    return rows


def _row(policy: str, red: str, horizon: int | None, mean: float, stderr: float | None, episodes: int | None) -> Row:
    return {"policy": policy, "red": red, "horizon": horizon, "mean": mean, "stderr": stderr, "episodes": episodes}
