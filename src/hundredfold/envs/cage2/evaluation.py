"""Official evaluation of a blue policy: three red agents by three horizons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from hundredfold.core.batch import FloatArray
from hundredfold.envs.cage2.baselines import BluePolicy
from hundredfold.envs.cage2.env import Cage2, Cage2Settings, RedAgent, Ruleset

Row = dict[str, Any]

REDS: Final[tuple[RedAgent, ...]] = ("b_line", "meander", "sleep")
LENGTHS: Final = (30, 50, 100)


class PublishedAgent(NamedTuple):
    """Published mean returns of an agent against b_line and meander, 30 / 50 / 100 steps; against sleep 0."""

    name: str
    ruleset: Ruleset  # the version of the simulator it was scored on
    b_line: tuple[float, float, float]
    meander: tuple[float, float, float]
    total: float
    source: str
    margin: float | None = None  # half-width of the 95 % interval of the total, if known

    @property
    def means(self) -> dict[tuple[str, int], float]:
        """Mean return by red agent and horizon."""
        rows = {"b_line": self.b_line, "meander": self.meander, "sleep": (0.0, 0.0, 0.0)}
        return {(red, length): mean for red, row in rows.items() for length, mean in zip(LENGTHS, row, strict=True)}


# The first is the best entry of the public leaderboard, scored in 2022 on what the ruleset `leaderboard` reproduces.
PUBLISHED_AGENTS: Final = (
    PublishedAgent(
        "CardiffUni",
        "leaderboard",
        (-3.47, -6.41, -13.76),
        (-5.64, -8.69, -16.60),
        -54.57,
        "public leaderboard, 2022",
        0.43,
    ),
    PublishedAgent(
        "Keeping it RL",
        "leaderboard",
        (-3.48, -5.85, -11.39),
        (-6.47, -10.33, -19.38),
        -56.90,
        "public leaderboard, 2022",
    ),
    PublishedAgent(
        "Mindrake", "leaderboard", (-3.53, -6.20, -12.78), (-6.76, -10.13, -17.65), -57.05, "public leaderboard, 2022"
    ),
    PublishedAgent(
        "CardiffUni, current code",
        "current",
        (-5.35, -12.96, -36.89),
        (-5.54, -8.82, -16.47),
        -86.03,
        "github.com/john-cardiff/-cyborg-cage-2, issue 1",
    ),
)
# Shown below an evaluation.
PUBLISHED: Final = {agent.name: agent.means for agent in PUBLISHED_AGENTS[:1]}
PUBLISHED_TOTALS: Final = {agent.name: agent.total for agent in PUBLISHED_AGENTS[:1]}


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
    reds: Sequence[str] = REDS,
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
        reds: red agents, of your own as `module:Class`.
        lengths: horizons, in steps.

    Returns:
        One row per cell, a row with the total, then, on the standard network, the published entries for the same cells.
    """
    settings = settings or Cage2Settings()
    cells = evaluation_cells(seed, reds, lengths)
    rows: list[Row] = []
    for red, length, cell_seed in cells:
        cell_settings = replace(settings, red=red, horizons=(length,))
        rewards = step_rewards(policy, cell_settings, episodes, cell_seed)
        mean, stderr = mean_and_stderr(rewards.sum(axis=1))
        rows.append(_row(name, red, length, mean, stderr, episodes))
    total_stderr = float(np.sqrt(sum(row["stderr"] ** 2 for row in rows)))
    total = sum(row["mean"] for row in rows)
    rows.append(_row(name, "total", None, total, total_stderr, episodes * len(cells)))
    if settings.network_file is not None:
        return rows
    return rows + published_rows([(red, length) for red, length, _ in cells])


def evaluation_cells(
    seed: int, reds: Sequence[str] = REDS, lengths: Sequence[int] = LENGTHS
) -> list[tuple[str, int, int]]:
    """Red agent, horizon and env seed of every cell of the evaluation.

    One seed per cell: with a common seed, short episodes would be prefixes of the long ones.
    """
    cells = [(red, length) for length in lengths for red in reds]
    return [(red, length, seed * len(cells) + number) for number, (red, length) in enumerate(cells)]


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


def published_markdown() -> str:
    """The published agents as a Markdown table, for docs/cage2.md."""
    code = {"leaderboard": "before August 2022 (`leaderboard`)", "current": "since August 2022 (`current`)"}
    lines = ["| agent | b_line | meander | total | code | source |", "|---|---|---|---|---|---|"]
    for agent in PUBLISHED_AGENTS:
        b_line, meander = (" / ".join(f"{mean:.2f}" for mean in row) for row in (agent.b_line, agent.meander))
        margin = "" if agent.margin is None else f" ± {agent.margin:.2f}"
        lines.append(
            f"| {agent.name} | {b_line} | {meander} | {agent.total:.2f}{margin} | {code[agent.ruleset]} "
            f"| {agent.source} |"
        )
    return "\n".join(lines)


def _row(policy: str, red: str, horizon: int | None, mean: float, stderr: float | None, episodes: int | None) -> Row:
    return {"policy": policy, "red": red, "horizon": horizon, "mean": mean, "stderr": stderr, "episodes": episodes}
