"""`hundredfold watch RUN`: episodes of a policy to look at, as a replay page or a video."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
import torch
import tyro

from hundredfold.api import record_video
from hundredfold.cli.cage2 import blue_policy
from hundredfold.cli.flags import parse_flags
from hundredfold.cli.output import note
from hundredfold.core.errors import SettingsError
from hundredfold.core.formatting import format_count
from hundredfold.envs.cage2.baselines import POLICIES, BluePolicy
from hundredfold.envs.cage2.env import Cage2Settings
from hundredfold.envs.dvrp.settings import CityName, DvrpSettings
from hundredfold.envs.registry import canonical_name
from hundredfold.report.page import write_report
from hundredfold.report.replay import Replay, write_replay
from hundredfold.training.run_folder import RunFolder
from hundredfold.training.video import require_video

if TYPE_CHECKING:
    from hundredfold.envs.dvrp.evaluation import SimulatedDays

VIDEOS = "videos"
"""Folder of videos and replay pages, in the run folder or in the working directory."""

HELP: Final = """usage: hundredfold watch RUN [flags]
       hundredfold watch ENV --policy NAME [flags]

RUN is a run folder, ENV a built-in env or a Gymnasium id. What is written and
the flags depend on the env:
  hundredfold watch dvrp --help    a page that replays a day of calls and vans
  hundredfold watch cage2 --help   a page that replays an attack on the network
Other envs are written as a video, with these flags:
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Play episodes of a policy and write something to look at; prints the path."""

    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|ENV")]
    """Run folder; with --policy an env."""
    policy: str | None = None
    """Policy to play instead of a trained one."""
    seed: int = 9999
    """Seed of the episodes; the same seed gives the same episodes."""
    episodes: int = 1
    """Number of episodes."""
    checkpoint: str = "best"
    """Checkpoint of the run: best, last or an epoch."""
    output: Path | None = None
    """File to write; by default in the folder videos/ of the run or of the working directory."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise SettingsError(f"--episodes must be at least 1, got {self.episodes}.")

    def path(self, name: str, suffix: str) -> Path:
        """The file to write: `--output`, or one named after policy and seed.

        Args:
            name: Name of the file without seed and suffix.
            suffix: Suffix of the file.
        """
        if self.output is not None:
            return self.output if suffix else self.output.with_suffix("")
        folder = Path(self.target) if self.policy is None else Path()
        return folder / VIDEOS / f"{name}-seed{self.seed}{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchCage2(Watch):
    """Write an interactive page that replays episodes of a blue policy on cage2; prints its path."""

    policy: str | None = None
    """Policy to play on cage2: a run folder, shipped, shipped-exploits, sleep, random or reactive."""
    beside: str | None = None
    """Another policy or run to show side by side on the same episodes."""
    red: str = "b_line"
    """Red agent: b_line, meander, sleep, mix, which draws one for every episode, or one of your own as
    module:Class."""
    ruleset: Literal["current", "leaderboard"] | None = None
    """Ruleset; by default that of the (first) run, for others current."""
    network_file: str | None = None
    """Network of baselines, a TOML file; a run keeps its network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchDvrp(Watch):
    """Write an interactive page that replays days of dvrp: calls, offers, answers and vans; prints its path."""

    policy: str | None = None
    """Policy to play on dvrp: a run folder, none, random, lookahead, ... (see evaluate dvrp --help)."""
    beside: str | None = None
    """Another policy or run to show side by side on the same days."""
    city: CityName = "spread"
    """Synthetic city of a policy given by name: spread or hubs. A run keeps its city."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchVideo(Watch):
    """Write a video of episodes of a policy, as MP4 and GIF; prints both paths."""

    policy: str | None = None
    """Baseline to play instead of a trained policy: random."""
    max_steps: int = 1000
    """Steps after which an episode is truncated."""
    trust_run: bool = False
    """Import the module of an env that only the run folder names, if the run was not made here."""


def run(argv: Sequence[str]) -> int:
    """Run the watch command of the env."""
    commands: dict[str, Callable[[Sequence[str]], int]] = {"cage2": watch_cage2, "dvrp": watch_dvrp}
    for argument in argv:
        name = argument
        if (Path(argument) / "settings.toml").is_file():
            name = RunFolder.open(Path(argument)).settings().env
        if canonical_name(name) in commands:
            return commands[canonical_name(name)](argv)
    if set(argv) & {"-h", "--help"}:
        print(HELP)
    return watch_video(argv)


def watch_video(argv: Sequence[str]) -> int:
    """Write an MP4 file and a GIF; a run shows them in its report."""
    args = parse_flags(WatchVideo, argv, "hundredfold watch")
    require_video()
    torch.set_num_threads(1)  # more threads are slower on a busy machine
    if args.policy is None and not Path(args.target).exists():
        raise SettingsError(f"{args.target} is not a run folder; to watch a baseline on an env, pass --policy random.")
    video = record_video(
        args.target,
        policy=args.policy,
        episodes=args.episodes,
        max_steps=args.max_steps,
        seed=args.seed,
        checkpoint=args.checkpoint,
        trust_run=args.trust_run,
    )
    name = args.checkpoint if args.policy is None else f"{args.target.replace('/', '-')}-{args.policy}"
    for path in video.write(args.path(name, "")):
        print(path)
    note(f"return: {', '.join(f'{total:.4g}' for total in video.returns)}")
    if args.policy is None and (folder := RunFolder.open(Path(args.target))).report_file.exists():
        write_report(folder)
    return 0


def watch_cage2(argv: Sequence[str]) -> int:
    """Write the replay page of one policy or two."""
    from hundredfold.envs.cage2.episodes import (
        BLUE_DESCRIPTIONS,
        RED_DESCRIPTIONS,
        record_episodes,
        replay_legend,
        replay_record,
    )

    args = parse_flags(WatchCage2, argv, "hundredfold watch")
    torch.set_num_threads(1)  # more threads are slower on a busy machine
    names = [name for name in (args.policy or args.target, args.beside) if name is not None]
    policies = [_blue_policy(name, args) for name in names]
    # Both policies play by the rules of the first, each with its own observation and mask.
    if len({own.network for _, own in policies}) > 1:
        raise SettingsError("policies side by side need the same network; pass --network-file for a baseline.")
    rules = replace(policies[0][1], red=args.red, horizons=(max(policies[0][1].horizons),))
    recorded = []
    for policy, own in policies:
        settings = replace(rules, observation=own.observation, channels=own.channels, action_mask=own.action_mask)
        recorded.append(record_episodes(policy, settings, args.episodes, args.seed))
    shown = [_short(name) for name in names]
    episodes = [
        [replay_record(record, name, episode) for record, name in zip(recorded, shown, strict=True)]
        for episode in range(args.episodes)
    ]
    replay = Replay("cage2", {"legend": replay_legend(rules.network), "episodes": episodes}, unit="step")
    reds = dict.fromkeys(episode[0]["red"] for episode in episodes)
    facts = [
        *(BLUE_DESCRIPTIONS[name] for name in shown if name in BLUE_DESCRIPTIONS),
        *(RED_DESCRIPTIONS.get(red, f"red agent {red}") for red in reds),
        f"{rules.ruleset} ruleset",
        format_count(recorded[0].num_steps, "step"),
        f"seed {args.seed}",
    ]
    path = args.path(f"cage2-{'-'.join(shown)}", ".html")
    print(write_replay(path, replay, heading=f"cage2: {' beside '.join(shown)}", facts=facts))
    return 0


def _blue_policy(name: str, args: WatchCage2) -> tuple[BluePolicy, Cage2Settings]:
    """A policy and its settings; --network-file is for baselines."""
    network_file = args.network_file if name in POLICIES else None
    return blue_policy(name, args.checkpoint, args.seed, args.ruleset, network_file)


def watch_dvrp(argv: Sequence[str]) -> int:
    """Write the replay page of some days of one policy or two."""
    from hundredfold.cli.evaluate_dvrp_policies import PolicyLoader
    from hundredfold.envs.dvrp.belief_warmup import WarmUpSettings
    from hundredfold.envs.dvrp.day_record import city_record, day_record
    from hundredfold.envs.dvrp.evaluation import simulate_days
    from hundredfold.envs.dvrp.lookahead import LookaheadSettings
    from hundredfold.report.dvrp_day import VEHICLE_COLOURS
    from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings

    args = parse_flags(WatchDvrp, argv, "hundredfold watch")
    torch.set_num_threads(1)  # more threads are slower on a busy machine
    names = [name for name in (args.policy or args.target, args.beside) if name is not None]
    if names[0] == "dvrp":
        raise SettingsError("dvrp needs --policy: a run folder, or a policy such as none, random or lookahead.")
    loader = PolicyLoader(
        seed=args.seed,
        warm_up_settings=WarmUpSettings(),
        lookahead=LookaheadSettings(),
        checkpoint=args.checkpoint,
        announce=lambda days: lambda done: None,
    )
    oracle = LNSOracle(LNSSettings())
    settings, shown = DvrpSettings(city=args.city), [_short(name) for name in names]
    episodes: list[list[dict[str, Any]]] = [[] for _ in range(args.episodes)]
    first: SimulatedDays | None = None
    for name, short in zip(names, shown, strict=True):
        # A policy by name plays in the city of the run that it is shown beside.
        chosen = loader.by_name(name, settings)
        settings = replace(chosen.settings, split="known")
        simulated, population = simulate_days(
            chosen.policy,
            settings,
            args.episodes,
            args.seed,
            shared_params=chosen.shared_params,
            options=chosen.options,
        )
        first = first or simulated
        if not _same_days(first, simulated):
            raise SettingsError(f"{shown[0]} and {short} have different days (city, customers or trips).")
        before, after = (
            oracle.solve(simulated.problems(windows, population, settings))
            for windows in (simulated.requested_windows, simulated.booked_windows)
        )
        for day, episode in enumerate(episodes):
            episode.append({"policy": short, **day_record(simulated, before, after, population, settings, day)})
    data = {"city": city_record(population), "colours": list(VEHICLE_COLOURS), "episodes": episodes}
    facts = [format_count(settings.num_customers, "call"), f"seed {args.seed}", "routes by large neighbourhood search"]
    path = args.path(f"dvrp-{'-'.join(shown)}", ".html")
    replay = Replay("dvrp", data, unit="minute (or call)")
    print(write_replay(path, replay, heading=f"dvrp: {' beside '.join(shown)}", facts=facts))
    return 0


def _same_days(first: SimulatedDays, second: SimulatedDays) -> bool:
    """Whether the same customers ask for the same trips."""
    fields = ("cells", "requested_windows", "max_ride_minutes")
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in fields)


def _short(name: str) -> str:
    """The name of a policy, or of a run without its folder."""
    return Path(name).resolve().name if Path(name).is_dir() else name
