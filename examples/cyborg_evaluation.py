"""Evaluate a blue policy on the original simulator: b_line and meander over 30, 50 and 100 steps.

It needs CybORG of CAGE Challenge 2, which is on no package index (the `cyborg` there is another project):

    git clone https://github.com/cage-challenge/cage-challenge-2
    pip install gym==0.26.2 && pip install -e cage-challenge-2/CybORG
    python cyborg_evaluation.py --policy shipped --episodes 100

Its newest commit (24 May 2024) plays by the ruleset `current`; for `leaderboard` check out the last one before
August 2022. Against a sleeping red agent every policy that sleeps as well scores 0, so those three of the nine
cells are left out.
"""

from __future__ import annotations

import argparse
import inspect
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hundredfold.envs.cage2.blue_agent import BlueAgent

LENGTHS = (30, 50, 100)


def play(agent: BlueAgent, red: Any, steps: int, episodes: int) -> Iterator[float]:
    """Returns of some episodes, one after the other.

    Args:
        agent: the blue agent.
        red: class of the red agent.
        steps: length of an episode.
        episodes: number of episodes.
    """
    from CybORG import CybORG
    from CybORG.Agents.Wrappers import ChallengeWrapper

    scenario = Path(inspect.getfile(CybORG)).parent / "Shared" / "Scenarios" / "Scenario2.yaml"
    cyborg = CybORG(str(scenario), "sim", agents={"Red": red})
    env = ChallengeWrapper(env=cyborg, agent_name="Blue")
    for _ in range(episodes):
        bits, total = env.reset(), 0.0
        agent.reset()
        for _ in range(steps):
            # The raw observation is for policies with the channel `exploits`; others ignore it.
            action = agent.act(bits, cyborg.get_observation("Blue"))
            bits, reward, _, _ = env.step(action)
            total += reward
        yield total


def main(argv: Sequence[str] | None = None) -> float:
    """Print the six cells and their total, which is returned."""
    parser = argparse.ArgumentParser(description="Evaluate a blue policy on CybORG (CAGE Challenge 2).")
    parser.add_argument("--policy", default="shipped", help="shipped, shipped-exploits or a run folder")
    parser.add_argument("--ruleset", default="current", choices=("current", "leaderboard"), help="for shipped policies")
    parser.add_argument("--episodes", type=int, default=100, help="episodes per cell")
    parser.add_argument("--seed", type=int, default=0, help="seed of Python's and numpy's random numbers")
    args = parser.parse_args(argv)
    try:
        from CybORG.Agents import B_lineAgent, RedMeanderAgent
    except ModuleNotFoundError as error:
        parser.error(f"{error}; the first lines of this file say how to install CybORG of CAGE Challenge 2.")

    agent = BlueAgent.load(args.policy, ruleset=args.ruleset)
    random.seed(args.seed)
    np.random.seed(args.seed)  # noqa: NPY002 - CybORG draws from the global generators
    total, variance = 0.0, 0.0
    for red in (B_lineAgent, RedMeanderAgent):
        for steps in LENGTHS:
            returns = np.array(list(play(agent, red, steps, args.episodes)))
            error = returns.std(ddof=1) / np.sqrt(len(returns)) if len(returns) > 1 else np.nan
            total, variance = total + returns.mean(), variance + error**2
            print(
                f"{red.__name__:<16} {steps:>3} steps: {returns.mean():8.2f}  (standard error {error:.2f})", flush=True
            )
    print(f"total {total:.2f}  (standard error {np.sqrt(variance):.2f}), {args.episodes} episodes per cell")
    return float(total)


if __name__ == "__main__":
    main()
