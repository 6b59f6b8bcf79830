"""`python -m benchmarks NAME`: measures every speed in the docs again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from hundredfold.cli.main import exit_code
from hundredfold.cli.output import note, print_rows
from hundredfold.core.errors import SettingsError, suggest


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTrain:
    """Training of PPO and DQN: ours beside Stable-Baselines3 (when installed), taken in turns.

    Steps per second on CartPole; with --seeds, samples until an env is solved. On dvrp: whole
    epochs with the split of their time, and updates beside a bare torch loop.
    """

    env: Annotated[
        Literal["cartpole", "acrobot", "lunarlander", "cage2", "dvrp"], tyro.conf.Positional
    ] = "cartpole"
    """What to train on; acrobot, lunarlander (needs Box2D) and cage2 go with --seeds."""
    algo: Literal["ppo", "dqn"] = "ppo"
    """Who learns."""
    engine: Literal["sb3", "rllib"] = "sb3"
    """Whom to measure ours against; rllib collects and trains on cage2 through Ray."""
    seeds: int = 0
    """Train this many seeds to a target return instead, and count samples; 5 take minutes."""
    repeats: int = 5
    """Measurements of each system; the table shows their median, lowest and highest."""
    activation: Literal["relu", "silu", "tanh"] = "relu"
    """Activation of both systems' networks; tanh is Stable-Baselines3's own default."""
    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchStepping:
    """Steps per second of an env against the number of envs; no network involved."""

    env: Annotated[str, tyro.conf.Positional] = "cartpole"
    """An env's name or a Gymnasium id."""
    num_envs: tuple[int, ...] = ()
    """Sizes of the batch; by default 1 to 1024 (cage2 1 to 10000, dvrp 1 to 256)."""
    threads: tuple[int, ...] = (1, 2)
    """Numbers of threads that share the envs, for cage2."""
    customers: int = 30
    """Customers of a day, for dvrp."""
    repeats: int = 5
    """Measurements of each; the table shows their median, lowest and highest."""
    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOracle:
    """Routing oracles on the same books: ours beside OR-Tools, PyVRP and RL4CO (when installed)."""

    books: int = 20
    """Random books priced from scratch by everybody."""
    requests: int = 30
    """Requests in each book."""
    repeats: int = 5
    """Measurements of our own oracles; the table shows their median, lowest and highest."""
    peer_seconds: float = 1.0
    """Seconds that each peer may search on each book."""
    instances: Path | None = None
    """A folder with files of Li and Lim or of Cordeau, to be solved instead of random books; with
    a references.csv (columns instance and reference) in it, the gap is shown."""
    instance_seconds: float = 2.0
    """Seconds that everybody may search on each instance."""
    neural_books: int = 100
    """Held-out days of each book size that the neural oracle routes; 0 leaves it out."""
    peers: bool = True
    """Measure the peers as well."""
    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchVector:
    """Our backends beside the vector envs of Gymnasium, Stable-Baselines3 and EnvPool.

    On CartPole, on envs that wait, on envs that compute, and on a Dict with 5 kB of info.
    """

    repeats: int = 5
    """Turns of each system; the table shows their median, lowest and highest."""
    seconds: float = 0.8
    """How long a turn is; all of it takes about 4 minutes at 0.8."""
    only: str = ""
    """Measure only workloads whose name has this in it: CartPole, waiting, computing, dict."""
    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRay:
    """What collecting through Ray actors costs, and what that predicts for many more envs."""

    env: Annotated[Literal["cage2", "dvrp", "cartpole"], tyro.conf.Positional] = "cage2"
    """One of built-in envs."""
    num_envs: int = 512
    """Envs of the actor that is measured."""
    predict: bool = False
    """Show the prediction for 1,000, 10,000 and 100,000 envs instead of what was measured."""
    repeats: int = 5
    """Epochs that are measured."""
    json: bool = False
    """Print one JSON object and nothing else."""


def run(arguments: Sequence[str]) -> int:
    """Hand on to the benchmark named by the first word."""
    words = list(arguments)
    if not words or words[0] in ("-h", "--help"):
        print("usage: python -m benchmarks NAME [--help]\n")
        for name, (_, summary) in BENCHES.items():
            print(f"  {name:10}{summary}")
        return 0 if words else 2
    if words[0] not in BENCHES:
        raise SettingsError(f"there is no benchmark {words[0]!r}; {suggest(words[0], BENCHES)}")
    return BENCHES[words[0]][0](words[1:])


def _train(arguments: Sequence[str]) -> int:
    args = tyro.cli(BenchTrain, args=list(arguments), prog="python -m benchmarks train")
    if args.repeats < 1 or args.seeds < 0:
        raise SettingsError(
            f"repeats ({args.repeats}) must be at least 1, and seeds ({args.seeds}) not negative."
        )
    if args.env == "dvrp" and (args.algo != "ppo" or args.seeds):
        raise SettingsError(
            "benchmarks train dvrp measures epochs of PPO; leave --algo and --seeds away."
        )
    if args.engine == "rllib" and (args.env != "cage2" or args.algo != "ppo" or args.seeds):
        raise SettingsError(
            "RLlib is measured on cage2 with PPO: python -m benchmarks train cage2 --engine rllib."
        )
    command = ["benchmarks", "train", *arguments]
    if args.engine == "rllib":
        from benchmarks.rllib_train import bench_rllib

        rows = bench_rllib(args.repeats, on_progress=note)
        title = "cage2 through Ray, 2 processes each, same network and minibatches"
    elif args.seeds > 0:
        from benchmarks.learning import bench_learning

        rows = bench_learning(args.env, args.algo, args.seeds, on_progress=note)
        title = f"samples to solve {args.env}: same settings, best actions judged alike"
    elif args.env == "dvrp":
        from benchmarks.dvrp_train import bench_dvrp_train

        rows = bench_dvrp_train(args.repeats, on_progress=note)
        title = "PPO on dvrp: whole epochs, seconds by phase; one torch thread"
    elif args.env == "cartpole":
        from benchmarks.train import bench_train

        rows = bench_train(args.repeats, args.activation, args.algo, on_progress=note)
        title = "whole training, same hyperparameters, one torch thread; peers run CartPole-v1"
    else:
        raise SettingsError(f"benchmarks train {args.env} counts samples: say --seeds 5.")
    print_rows(rows, command=command, as_json=args.json, title=title)
    return 0


def _stepping(arguments: Sequence[str]) -> int:
    args = tyro.cli(BenchStepping, args=list(arguments), prog="python -m benchmarks stepping")
    if args.repeats < 1 or min((*args.num_envs, *args.threads)) < 1:
        raise SettingsError(
            f"repeats ({args.repeats}), num_envs {args.num_envs} and threads {args.threads} "
            "must be at least 1."
        )
    command = ["benchmarks", "stepping", *arguments]
    if args.env == "cage2":
        from benchmarks import cage2_stepping

        sizes = args.num_envs or cage2_stepping.SIZES
        rows = cage2_stepping.bench_stepping(sizes, args.threads, args.repeats)
        title = "cage2: true state read before and after every step; peers as recorded elsewhere"
    elif args.env == "dvrp":
        from benchmarks import dvrp_stepping
        from hundredfold.envs.dvrp.settings import DvrpSettings

        sizes = args.num_envs or dvrp_stepping.SIZES
        settings = DvrpSettings(num_customers=args.customers)
        rows = dvrp_stepping.bench_stepping(sizes, args.repeats, settings, on_progress=note)
        title = "dvrp: random offers, paired baseline prices included, one thread"
    else:
        from benchmarks import stepping

        sizes = args.num_envs or stepping.SIZES
        rows = stepping.bench_stepping(args.env, sizes, args.repeats, on_progress=note)
        title = f"{args.env}: efficiency is against num_envs times one env of ours"
    print_rows(rows, command=command, as_json=args.json, title=title)
    return 0


def _oracle(arguments: Sequence[str]) -> int:
    args = tyro.cli(BenchOracle, args=list(arguments), prog="python -m benchmarks oracle")
    if min(args.books, args.requests, args.repeats) < 1:
        raise SettingsError(
            f"books ({args.books}), requests ({args.requests}) and repeats ({args.repeats}) "
            "must be at least 1."
        )
    if args.neural_books < 0:
        raise SettingsError(f"neural_books must be at least 0, got {args.neural_books}.")
    from benchmarks.oracle import bench_oracle

    rows = bench_oracle(
        num_books=args.books,
        num_requests=args.requests,
        repeats=args.repeats,
        peer_seconds=args.peer_seconds,
        instances_dir=args.instances,
        instance_seconds=args.instance_seconds,
        with_peers=args.peers,
        neural_books=args.neural_books,
        on_progress=note,
    )
    command = ["benchmarks", "oracle", *arguments]
    title = "routing: driving minutes (mean cost), gap to the reference, seconds per book"
    print_rows(rows, command=command, as_json=args.json, title=title)
    return 0


def _vector(arguments: Sequence[str]) -> int:
    args = tyro.cli(BenchVector, args=list(arguments), prog="python -m benchmarks vector")
    if args.repeats < 1 or args.seconds <= 0:
        raise SettingsError(
            f"repeats ({args.repeats}) must be at least 1 and seconds ({args.seconds}) above 0."
        )
    from benchmarks.vector import WORKLOADS, bench_vector

    chosen = [work for work in WORKLOADS if args.only.lower() in work.name.lower()]
    if not chosen:
        names = ", ".join(dict.fromkeys(work.name for work in WORKLOADS))
        raise SettingsError(f"no workload has {args.only!r} in its name; there are {names}.")
    rows = bench_vector(chosen, args.repeats, args.seconds, on_progress=note)
    title = "stepping without a policy; ratios are to our row with ratio 1 on the same work"
    print_rows(rows, command=["benchmarks", "vector", *arguments], as_json=args.json, title=title)
    return 0


def _ray(arguments: Sequence[str]) -> int:
    args = tyro.cli(BenchRay, args=list(arguments), prog="python -m benchmarks ray")
    if min(args.num_envs, args.repeats) < 1:
        raise SettingsError(
            f"num_envs ({args.num_envs}) and repeats ({args.repeats}) must be at least 1."
        )
    from benchmarks.ray_costs import bench_ray

    measured, predicted = bench_ray(args.env, args.num_envs, args.repeats, on_progress=note)
    rows = predicted if args.predict else measured
    if args.json:
        rows = [*measured, *predicted]
    title = "one Ray actor, its policy and the learner; prediction: with a lag of 1"
    print_rows(rows, command=["benchmarks", "ray", *arguments], as_json=args.json, title=title)
    return 0


BENCHES: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "train": (_train, "training speed, and samples to solve an env, beside Stable-Baselines3"),
    "stepping": (_stepping, "stepping speed of an env against the number of envs"),
    "vector": (_vector, "stepping many envs, beside Gymnasium, Stable-Baselines3 and EnvPool"),
    "ray": (_ray, "what collecting through Ray costs, and where the learner saturates"),
    "oracle": (_oracle, "routing oracles beside OR-Tools, PyVRP and RL4CO"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark; the exit codes are those of `hundredfold`."""
    return exit_code(run, list(sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    sys.exit(main())
