"""One sentence of advice from where the time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

# What keeps envs from stepping, as rows of `scale` name it after `lost_to_`.
LOSSES: Final = ("slower", "one_by_one", "barrier", "moving", "policy", "learner")
# From here on there is nothing to advise.
GOOD: Final = 0.95
# Steps cheaper than this cost less than sending them elsewhere.
CHEAP_SECONDS: Final = 50e-6

REMEDIES: Final[Mapping[str, str]] = {
    "barrier": "use --backend first_ready, which waits for nobody",
    "one_by_one": "use --backend processes or first_ready, so that envs run side by side",
    "moving": "moving data costs more than the steps: use --backend in_process, or show less in "
    "observations and infos",
    "policy": "a faster policy, or more envs per batch, would help more than another backend",
    "learner": "fewer passes or a smaller network would help more than another backend",
    "slower": "steps take longer side by side than alone: other work is on these cores, or memory "
    "is the limit",
}
WORDS: Final[Mapping[str, str]] = {
    "barrier": "the barrier (waiting for the slowest)",
    "one_by_one": "stepping one after another",
    "moving": "moving data",
    "policy": "the policy",
    "learner": "the learner",
    "slower": "steps that are slower than alone",
}


def advice(rows: Sequence[Mapping[str, Any]]) -> str:
    """One sentence about the largest number of envs, from what was measured there."""
    most = max(row["num_envs"] for row in rows)
    there = [row for row in rows if row["num_envs"] == most]
    best = max(there, key=lambda row: row["steps_per_second"])
    reached = f"{100 * best['efficiency']:.0f} % of the ideal with {most} envs"
    others = [row for row in there if row is not best]
    if others:
        second = max(others, key=lambda row: row["steps_per_second"])
        return (
            f"Use --backend {best['backend']}: it reaches {reached}. With {second['backend']}, "
            f"{_told_loss(second)}."
        )
    if best["efficiency"] >= GOOD:
        return f"{best['backend']} reaches {reached}: there is next to nothing left to gain."
    cause = main_loss(best)
    remedy = REMEDIES[cause]
    if cause == "barrier" and best["backend"] == "first_ready":
        remedy = "use a smaller --batch-envs"
    elif cause == "one_by_one" and best["step_seconds_alone"] < CHEAP_SECONDS:
        remedy = "steps this cheap gain little from other processes; one batch of arrays would"
    return f"{best['backend']} reaches {reached}. {_told_loss(best)}: {remedy}."


def main_loss(row: Mapping[str, Any]) -> str:
    """What most of the loss goes to."""
    return max(LOSSES, key=lambda name: float(row[f"lost_to_{name}"]))


def _told_loss(row: Mapping[str, Any]) -> str:
    cause = main_loss(row)
    total = sum(row[f"lost_to_{name}"] for name in LOSSES)
    share = row[f"lost_to_{cause}"] / total if total > 0 else 0.0
    return f"{100 * share:.0f} % of the loss is {WORDS[cause]}"
