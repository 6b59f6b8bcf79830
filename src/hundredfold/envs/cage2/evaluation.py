"""How good a blue policy is: the official table of three red agents by three lengths."""

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

# The best entry of the challenge's public table, scored in 2022 on what is our `leaderboard`
# ruleset. Its total leaves 0 for the sleeping red.
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
    """(episodes, horizon) rewards of one episode per env, played in batches of at most `batch`.

    The settings must name a single horizon. Episode e is the first one of env e.
    """
    (horizon,) = settings.horizons
    rewards = np.empty((episodes, horizon))
    for first in range(0, episodes, batch):
        env_ids = np.arange(first, min(first + batch, episodes))
        env = Cage2(env_ids, settings)
        out = env.reset(seed)
        begin = getattr(policy, "begin", None)
        if begin is not None:
            begin(len(env_ids))
        for step in range(horizon):
            shown = (out.observation,) if out.mask is None else (out.observation, out.mask)
            env.step(policy(*shown))
            rewards[env_ids, step] = out.reward
    return rewards


def mean_and_stderr(returns: FloatArray) -> tuple[float, float]:
    """The mean of some returns and its standard error."""
    spread = returns.std(ddof=1) if len(returns) > 1 else float("nan")
    return float(returns.mean()), float(spread / np.sqrt(len(returns)))


def evaluate_table(
    policy: BluePolicy,
    episodes: int = 1000,
    seed: int = 0,
    settings: Cage2Settings | None = None,
    name: str = "policy",
    reds: Sequence[RedAgent] = REDS,
    lengths: Sequence[int] = LENGTHS,
) -> list[Row]:
    """Mean return and standard error in every cell of the table, and their total.

    Ruleset, wrapper, green and channels come from `settings`; red and horizon are the table's. The
    policy is not told which red it meets. Every cell has episodes of its own, so the cells' errors
    are independent. Rows of published entries follow ours, where they cover the same cells.
    """
    settings = settings or Cage2Settings()
    cells = [(red, length) for length in lengths for red in reds]
    rows: list[Row] = []
    for number, (red, length) in enumerate(cells):
        played = replace(settings, red=red, horizons=(length,))
        # A seed of its own for each cell: with a common one, short episodes would be the
        # beginnings of the long ones.
        rewards = step_rewards(policy, played, episodes, seed * len(cells) + number)
        mean, stderr = mean_and_stderr(rewards.sum(axis=1))
        rows.append(_row(name, red, length, mean, stderr, episodes))
    total_stderr = float(np.sqrt(sum(row["stderr"] ** 2 for row in rows)))
    total = sum(row["mean"] for row in rows)
    rows.append(_row(name, "total", None, total, total_stderr, episodes * len(cells)))
    return rows + published_rows(cells)


def published_rows(cells: Sequence[tuple[str, int]]) -> list[Row]:
    """Entries of the public table for these cells, with a total when they cover all of it."""
    rows: list[Row] = []
    for name, means in PUBLISHED.items():
        rows += [
            _row(name, red, length, means[red, length], None, None)
            for red, length in cells
            if (red, length) in means
        ]
        if set(cells) == set(means):
            rows.append(_row(name, "total", None, PUBLISHED_TOTALS[name], None, None))
    return rows


def _row(
    policy: str,
    red: str,
    horizon: int | None,
    mean: float,
    stderr: float | None,
    episodes: int | None,
) -> Row:
    return {
        "policy": policy,
        "red": red,
        "horizon": horizon,
        "mean": mean,
        "stderr": stderr,
        "episodes": episodes,
    }
