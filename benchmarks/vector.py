"""Stepping many envs: our backends beside the vector envs of others, on four kinds of work.

Actions are drawn beforehand and no network is involved. Systems take turns, and each turn begins
with a moment that does not count, so that nobody is helped or hurt by what ran before. A turn that
the host of a virtual machine disturbed is taken again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Final, Literal

import gymnasium

from benchmarks.subjects import EnvMaker, OurPlayer, PeerPlayer, Player, envpool_envs, peers
from hundredfold.backends.settings import WorkerSettings, usable_cores
from hundredfold.core.errors import is_installed
from hundredfold.core.protocols import EnvFactory
from hundredfold.envs.registry import callable_factory, env_factory, settings_class
from hundredfold.profiling.measure import CALM, OURS, HostWatch, rates_row, spread_of
from hundredfold.profiling.workloads import Computing, Talkative, Waiting, WaitingLonger

# The share of a turn that comes before its clock starts.
WARM_UP: Final = 0.15
# A turn counts if it was calm, or if it is the calmest of so many.
TRIES: Final = 4
# One env in so many is waited for in first_ready: fewer would keep us busier than the envs.
FEW: Final = 32

Kind = Literal["cheap", "waiting", "computing"]


@dataclass(frozen=True, slots=True)
class Workload:
    """Envs to step, and what can be said about the ideal."""

    name: str
    make_env: EnvMaker
    num_envs: int
    kind: Kind = "cheap"
    # Our backend that the ratios are about.
    yardstick: str = "processes"

    @property
    def at_best(self) -> int | None:
        """How many envs could be at work at the same time; None where nobody counts seconds."""
        if self.kind == "cheap":
            return None
        return self.num_envs if self.kind == "waiting" else min(usable_cores(), self.num_envs)


CARTPOLE: Final = "CartPole-v1"
TALKATIVE: Final = "dict + 5 kB info"
WORKLOADS: Final = (
    Workload(CARTPOLE, partial(gymnasium.make, CARTPOLE, disable_env_checker=True), 100),
    Workload("waiting 10 ms", Waiting, 100, "waiting", "first_ready"),
    Workload("waiting 10 ms", Waiting, 256, "waiting", "first_ready"),
    Workload("waiting 50 ms", WaitingLonger, 256, "waiting", "first_ready"),
    Workload("computing 1-5 ms", Computing, 100, "computing", "first_ready"),
    Workload(TALKATIVE, Talkative, 100),
)

# What each of our rows should reach: a share of the ideal, or a multiple of a peer's speed.
GOALS: Final[Mapping[tuple[str, str], tuple[str, float]]] = {
    ("waiting 10 ms", "first_ready"): ("efficiency", 0.95),
    ("waiting 10 ms", "first_ready, quarters"): ("efficiency", 0.80),
    ("waiting 50 ms", "first_ready"): ("efficiency", 0.95),
    ("waiting 50 ms", "first_ready, quarters"): ("efficiency", 0.80),
    ("computing 1-5 ms", "first_ready"): ("efficiency", 0.85),
    (CARTPOLE, "processes"): ("gymnasium async", 15.0),
    # Like for like: Gymnasium's own vector envs seed the first episode and no other.
    (CARTPOLE, "processes, seeded once"): ("gymnasium async", 15.0),
    (CARTPOLE, "batch env"): ("envpool", 1.0),
    (TALKATIVE, "processes"): ("stable-baselines3 subproc", 9.0),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """What somebody did in one turn."""

    steps: int
    worked: float  # sum of the rewards: seconds of work, where rewards are that
    seconds: float
    stolen: float = 0.0  # share of the cores' time that the host took meanwhile


def bench_vector(
    workloads: Sequence[Workload] = WORKLOADS,
    repeats: int = 5,
    seconds: float = 0.8,
    on_progress: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """A row per workload and system, with its ratio to our row of that workload."""
    return [
        row for work in workloads for row in bench_workload(work, repeats, seconds, on_progress)
    ]


def bench_workload(
    work: Workload, repeats: int, seconds: float, on_progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Everybody on the same work, in turns."""
    players: dict[tuple[str, str], Player] = {}
    turns: dict[tuple[str, str], list[Turn]] = {}
    where = f"{work.name}, {work.num_envs} envs"
    try:
        for who, make in contestants(work).items():
            on_progress(f"{where}: starting {' '.join(who)}")
            try:
                players[who] = make()
            except OSError as error:  # 256 processes are more than some machines allow
                on_progress(f"{where}: {' '.join(who)} could not start: {error}")
                continue
            turns[who] = []
            take_turn(players[who], seconds / 4)
        for number in range(repeats):
            on_progress(f"{where}: round {number + 1} of {repeats}")
            for who, player in players.items():
                turns[who].append(calm_turn(player, seconds))
    finally:
        for player in players.values():
            player.close()
    return rows_of(work, turns)


def calm_turn(player: Player, seconds: float) -> Turn:
    """A turn in which the host left us alone, or the calmest of a few."""
    taken: list[Turn] = []
    while len(taken) < TRIES:
        taken.append(take_turn(player, seconds))
        if taken[-1].stolen <= CALM:
            break
    return min(taken, key=lambda turn: turn.stolen)


def take_turn(player: Player, seconds: float) -> Turn:
    """Play for so long; a moment before that goes uncounted."""
    begun = perf_counter()
    player.advance()
    while perf_counter() - begun < WARM_UP * seconds:
        player.advance()
    steps, worked, host, begun = 0, 0.0, HostWatch(), perf_counter()
    while True:
        more, reward = player.advance()
        steps, worked = steps + more, worked + reward
        taken = perf_counter() - begun
        if taken >= seconds:
            stolen = host.stolen()
            player.rest()
            return Turn(steps, worked, taken, stolen)


def contestants(work: Workload) -> dict[tuple[str, str], Callable[[], Player]]:
    """(system, backend) and how to start it; none that would take seconds for one batch."""
    factory, num_envs = our_factory(work), work.num_envs
    found: dict[tuple[str, str], Callable[[], Player]] = {}

    def ours(name: str, backend: str, **settings: Any) -> None:
        fitted = WorkerSettings(**settings)
        found[OURS, name] = partial(OurPlayer, backend, factory, num_envs, fitted)

    if work.kind == "waiting":
        threads = -(-num_envs // min(usable_cores(), num_envs))
        ours("processes", "processes", env_threads=threads)
        few = max(1, num_envs // FEW)
        ours("first_ready", "first_ready", env_threads=threads, batch_envs=few)
        quarter = max(1, num_envs // 4)
        ours("first_ready, quarters", "first_ready", env_threads=threads, batch_envs=quarter)
    else:
        ours("in_process", "in_process")
        ours("processes", "processes")
        ours("first_ready", "first_ready")
    if work.name == TALKATIVE:
        found[OURS, "processes, infos read"] = partial(
            OurPlayer, "processes", factory, num_envs, read_infos=True
        )
    if work.name == CARTPOLE:
        # As the peers do it. Seeding an episode of CartPole takes as long as three of its steps.
        once = env_factory(CARTPOLE, settings_class(CARTPOLE)(seed_episodes=False))
        found[OURS, "processes, seeded once"] = partial(OurPlayer, "processes", once, num_envs)
        batch_env = env_factory("cartpole", settings_class("cartpole")())
        found[OURS, "batch env"] = partial(OurPlayer, "in_process", batch_env, num_envs)
        if is_installed("envpool"):
            found["envpool", ""] = lambda: PeerPlayer(envpool_envs(CARTPOLE, num_envs), num_envs, 2)
    choices = 2 if work.name == CARTPOLE else 4
    for (system, backend), make_envs in peers().items():
        if work.kind == "waiting" and backend in ("sync", "dummy"):
            continue
        found[system, backend] = partial(_peer, make_envs, work, choices)
    return found


def our_factory(work: Workload) -> EnvFactory:
    """The envs as our backends make them: those that have an id by their id."""
    if work.name == CARTPOLE:
        return env_factory(CARTPOLE, settings_class(CARTPOLE)())
    return callable_factory(work.make_env)


def _peer(make_envs: Callable[[EnvMaker, int], Any], work: Workload, choices: int) -> Player:
    return PeerPlayer(make_envs(work.make_env, work.num_envs), work.num_envs, choices)


def rows_of(
    work: Workload, turns: Mapping[tuple[str, str], Sequence[Turn]]
) -> list[dict[str, Any]]:
    """Medians with their spread, ratios to our row, and how our rows stand to their goals."""
    rates = {
        who: spread_of([turn.steps / turn.seconds for turn in taken])
        for who, taken in turns.items()
    }
    medians = {" ".join(who).strip(): rate.median for who, rate in rates.items()}
    ours = medians[f"{OURS} {work.yardstick}"]
    rows = []
    for (system, backend), rate in rates.items():
        row = rates_row(system, rate, backend=backend, env=work.name, num_envs=work.num_envs)
        row["ratio_to_ours"] = rate.median / ours
        taken = turns[system, backend]
        row["stolen"] = spread_of([turn.stolen for turn in taken]).median
        if work.at_best is not None:
            shares = [turn.worked / (turn.seconds * work.at_best) for turn in taken]
            row["efficiency"] = spread_of(shares).median
        if system == OURS:
            row |= goal_of(work.name, backend, row, medians)
        rows.append(row)
    return rows


def goal_of(
    work: str, backend: str, row: Mapping[str, Any], medians: Mapping[str, float]
) -> dict[str, Any]:
    """What this row of ours should reach and whether it does; empty where nothing is to be said."""
    what, wanted = GOALS.get((work, backend), ("", 0.0))
    if what == "efficiency":
        return {"goal": f">= {100 * wanted:.0f} % of ideal", "reached": row[what] >= wanted}
    if what not in medians:
        return {}
    times = row["steps_per_second"] / medians[what]
    return {"goal": f">= {wanted:g}x {what} (is {times:.1f}x)", "reached": times >= wanted}
