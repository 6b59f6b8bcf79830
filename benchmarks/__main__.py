"""`python -m benchmarks NAME`: reproduces every measured number in the docs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from benchmarks import columns
from hundredfold.cli.flags import parse_flags
from hundredfold.cli.main import exit_code
from hundredfold.cli.output import note, print_rows
from hundredfold.core.errors import SettingsError, suggest


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTrain:
    """Training with PPO, DQN and PQN, compared with Stable-Baselines3 (if installed).

    Steps per second on CartPole; with --seeds, samples and seconds until an env is solved. PQN is
    compared with DQN (with --seeds also PPO). On dvrp: seconds per epoch by phase, and updates
    compared with a plain torch loop. On cage2: one torch thread compared with one per core.
    """

    env: Annotated[Literal["cartpole", "acrobot", "lunarlander", "cage2", "dvrp"], tyro.conf.Positional] = "cartpole"
    """Env; acrobot and lunarlander (needs Box2D) need --seeds."""
    algo: Literal["ppo", "dqn", "pqn"] = "ppo"
    """Learning algorithm."""
    engine: Literal["sb3", "rllib"] = "sb3"
    """Library to compare with; rllib collects and trains on cage2 with Ray."""
    seeds: int = 0
    """Count samples until a target return instead, with this many seeds; 5 take minutes."""
    first_seed: int = 0
    """First of these seeds."""
    repeats: int = 5
    """Measurements of each library; the table has median, lowest and highest."""
    activation: Literal["relu", "silu", "tanh"] = "relu"
    """Activation of the networks; tanh is the default of Stable-Baselines3."""
    wide: bool = False
    """Show all columns, however wide the table gets."""
    json: bool = False
    """Print a single JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCage2Learning:
    """Samples and seconds until a defender of cage2 reaches a total score, by seed.

    Four trainings: plain, with a privileged critic, with memory, with both. Evaluations between epochs
    are not part of the time. Run it again to continue where it stopped.
    """

    seeds: int = 3
    """Runs per arm, with consecutive seeds."""
    first_seed: int = 0
    """Seed of the first run."""
    arms: tuple[str, ...] = ("plain", "privileged", "memory", "both")
    """Arms to train."""
    targets: tuple[float, ...] = (-60.0, -54.57)
    """Totals of the nine cells; a run ends when it reaches the highest."""
    episodes: int = 100
    """Episodes of an evaluation per red agent and horizon; 100 are 900 in all."""
    interval: int = 5
    """Epochs between evaluations."""
    flags: str = ""
    """Flags of `hundredfold train cage2` for all arms, written --flags="--steps 6e6 --threads 2"."""
    save_dir: Path = Path("runs/cage2-learning")
    """Where the run folders are written."""
    wide: bool = False
    """Show all columns, however wide the table gets."""
    json: bool = False
    """Print a single JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchMemory:
    """Policies with memory on CartPole without velocities, compared with RecurrentPPO of sb3-contrib.

    Samples until the pole is balanced, and steps per second of training.
    """

    seeds: int = 3
    """Trainings of each system; one of all three systems takes about two minutes."""
    samples: int = 150_000
    """Length of each training."""
    wide: bool = False
    """Show all columns, however wide the table gets."""
    json: bool = False
    """Print a single JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchStepping:
    """Steps per second of an env against the number of envs, without a policy."""

    env: Annotated[str, tyro.conf.Positional] = "cartpole"
    """A built-in env or a Gymnasium id."""
    num_envs: tuple[int, ...] = ()
    """Batch sizes; by default 1 to 1024 (cage2 1 to 10000, dvrp 1 to 256)."""
    threads: tuple[int, ...] = (1, 2)
    """Numbers of threads that step the batch, for cage2."""
    customers: int = 30
    """Customers of a day, for dvrp."""
    repeats: int = 5
    """Measurements of each; the table has median, lowest and highest."""
    wide: bool = False
    """Show all columns, however wide the table gets."""
    json: bool = False
    """Print a single JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOracle:
    """Routing oracles compared with OR-Tools, PyVRP and RL4CO (if installed)."""

    num_instances: int = 20
    """Random instances, solved from scratch by every oracle."""
    num_requests: int = 30
    """Requests per instance."""
    repeats: int = 5
    """Measurements of the oracles of hundredfold; the table has median, lowest and highest."""
    peer_seconds: float = 1.0
    """Search time of the other solvers per instance, in seconds."""
    instances: Path | None = None
    """Folder of benchmark files by Li and Lim or by Cordeau to solve instead of random instances;
    with a references.csv (columns instance and reference) the gap is computed."""
    instance_seconds: float = 2.0
    """Search time of every oracle per benchmark file, in seconds."""
    neural_instances: int = 100
    """Held-out instances of each size for the neural oracle; 0: without it."""
    peers: bool = True
    """Measure the other solvers as well."""
    wide: bool = False
    """Show all columns, however wide the table gets."""
    json: bool = False
    """Print a single JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchVector:
    """Backends compared with the vector envs of Gymnasium, Stable-Baselines3 and EnvPool.

    Workloads: CartPole, envs that wait, envs that compute, Dict observations with 5 kB of info.
    """

    repeats: int = 5
    """Measurements of each system; the table has median, lowest and highest."""
    seconds: float = 0.8
    """Duration of a measurement; the whole benchmark takes about 4 minutes at 0.8."""
    only: str = ""
    """Only workloads whose name contains this: CartPole, waiting, computing, dict."""
    wide: bool = False
    """Show all columns, however wide the table gets."""
    json: bool = False
    """Print a single JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRay:
    """Costs of collecting with a Ray actor, and the throughput they predict for many envs."""

    env: Annotated[Literal["cage2", "dvrp", "cartpole"], tyro.conf.Positional] = "cage2"
    """A built-in env."""
    num_envs: int = 512
    """Envs of the measured actor."""
    predict: bool = False
    """Print the prediction for 1,000, 10,000 and 100,000 envs instead of the measurement."""
    repeats: int = 5
    """Measured epochs."""
    wide: bool = False
    """Show all columns, however wide the table gets."""
    json: bool = False
    """Print a single JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOffers:
    """Learned offers on dvrp compared with the look-ahead heuristic, on fresh days.

    Improvement in percent of driving minutes, the difference at equal minutes of shift, and CPU
    milliseconds per decision. Look-ahead takes most of the time: about 0.5 s per day and core.
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Runs of one city that differ in their seed, trained with the default settings of dvrp."""
    days: int = 1024
    """Days per split."""
    seed: int = 20261
    """Seed of the days; must not have played a part in the choice of any setting."""
    splits: tuple[Literal["known", "unseen_trips", "unseen_customers"], ...] = (
        "known",
        "unseen_trips",
        "unseen_customers",
    )
    """Demand to evaluate on."""
    futures: int = 16
    """Sampled futures per offer of the look-ahead heuristic."""
    policy_futures: tuple[int, ...] = ()
    """Also evaluate the networks with look-ahead on top, with these numbers of futures."""
    hindsight: bool = False
    """Also evaluate the offers that are best when the whole day is known (0.5 s per day)."""
    decision_times: bool = True
    """Also measure CPU milliseconds per decision; takes as long as 512 days of every policy."""
    results: Path | None = None
    """Folder that keeps the scores of every policy in parts of 256 days: a second call continues there."""
    wide: bool = False
    """Show all columns, however wide the table gets."""
    json: bool = False
    """Print a single JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchDesk:
    """Booking desk over HTTP: milliseconds of a quote on a full day, and many clerks at once."""

    bookings: int = 100
    """Bookings on the day when quotes are measured."""
    quotes: int = 500
    """Quotes that are measured, each with all offers that save driving."""
    clerks: int = 50
    """Clients that call at once, each waiting for its answer."""
    seconds: float = 300.0
    """Duration of the closed loop; 0: without it."""
    run: str | None = None
    """Run folder, or name of a policy without training, that decides; by default the desk's own."""
    wide: bool = False
    """Show all columns, however wide the table gets."""
    json: bool = False
    """Print a single JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """Draw the pictures of the README again; needs Chromium."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Runs of dvrp for the learning curves."""
    folder: Path = Path("docs/pictures")
    """Where pictures are written."""


def run(arguments: Sequence[str]) -> int:
    """Run the benchmark named by the first argument."""
    argv = list(arguments)
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: python -m benchmarks NAME [--help]\n")
        for name, (_, summary) in BENCHMARKS.items():
            print(f"  {name:16}{summary}")
        return 0 if argv else 2
    if argv[0] not in BENCHMARKS:
        raise SettingsError(f"unknown benchmark {argv[0]!r}; {suggest(argv[0], BENCHMARKS)}")
    return BENCHMARKS[argv[0]][0](argv[1:])


def _train(arguments: Sequence[str]) -> int:
    args = parse_flags(BenchTrain, arguments, "python -m benchmarks train")
    _require_at_least(1, args, "repeats")
    _require_at_least(0, args, "seeds", "first_seed")
    if args.env == "dvrp" and (args.algo != "ppo" or args.seeds):
        raise SettingsError(
            "train dvrp measures epochs of PPO: it cannot be combined with --algo dqn, --algo pqn or --seeds."
        )
    if args.engine == "rllib" and (args.env != "cage2" or args.algo != "ppo" or args.seeds):
        raise SettingsError(
            "--engine rllib works with PPO on cage2 only: python -m benchmarks train cage2 --engine rllib."
        )
    command = ["benchmarks", "train", *arguments]
    shown: columns.Columns = columns.TRAIN
    if args.engine == "rllib":
        from benchmarks.rllib_train import bench_rllib

        rows = bench_rllib(args.repeats, on_progress=note)
        title = "cage2 with Ray, 2 processes each, same network and minibatches"
    elif args.seeds > 0:
        from benchmarks.learning import bench_learning

        rows = bench_learning(args.env, args.algo, args.seeds, on_progress=note, first_seed=args.first_seed)
        shown = columns.SAMPLES_TO_SOLVE
        settings = "own settings" if args.algo == "pqn" else "same settings"
        title = f"samples to solve {args.env}, {args.seeds} seeds: {settings}, deterministic evaluation"
    elif args.env == "dvrp":
        from benchmarks.dvrp_train import bench_dvrp_train

        rows = bench_dvrp_train(args.repeats, on_progress=note)
        shown = columns.TRAIN_DVRP
        title = "PPO on dvrp: whole epochs, seconds by phase; one torch thread"
    elif args.env == "cage2" and args.algo == "ppo":
        from benchmarks.train import bench_threads

        rows = bench_threads(args.repeats, on_progress=lambda threads: note(f"cage2, {threads} torch threads"))
        title = "PPO on cage2: whole training by number of torch threads"
    elif args.env == "cartpole":
        from benchmarks.train import bench_train

        rows = bench_train(args.repeats, args.activation, args.algo, on_progress=note)
        settings = "own" if args.algo == "pqn" else "same"
        title = f"whole training, {settings} hyperparameters, one torch thread"
    else:
        raise SettingsError(f"train {args.env} counts samples and needs --seeds, such as --seeds 5.")
    print_rows(rows, command=command, as_json=args.json, title=title, columns=shown, wide=args.wide)
    return 0


def _cage2_learning(arguments: Sequence[str]) -> int:
    args = parse_flags(BenchCage2Learning, arguments, "python -m benchmarks cage2-learning")
    _require_at_least(1, args, "seeds", "episodes", "interval")
    if not args.arms or not args.targets:
        raise SettingsError("cage2-learning needs at least one of --arms and one of --targets.")
    from benchmarks.cage2_learning import Cage2LearningSettings, bench_cage2_learning

    settings = Cage2LearningSettings(
        arms=args.arms,
        seeds=args.seeds,
        first_seed=args.first_seed,
        targets=args.targets,
        episodes=args.episodes,
        interval=args.interval,
        flags=args.flags,
        save_dir=args.save_dir,
    )
    rows = bench_cage2_learning(settings, on_progress=note)
    title = f"cage2: until the total of nine cells ({args.episodes} episodes each) reaches a target; median of seeds"
    command = ["benchmarks", "cage2-learning", *arguments]
    print_rows(rows, command=command, as_json=args.json, title=title, columns=columns.CAGE2_LEARNING, wide=args.wide)
    return 0


def _memory(arguments: Sequence[str]) -> int:
    args = parse_flags(BenchMemory, arguments, "python -m benchmarks memory")
    _require_at_least(1, args, "seeds", "samples")
    from benchmarks.memory import bench_memory

    rows = bench_memory(args.seeds, args.samples, on_progress=note)
    title = "CartPole without velocities: until a mean return of 475; same settings, one torch thread"
    command = ["benchmarks", "memory", *arguments]
    print_rows(rows, command=command, as_json=args.json, title=title, columns=columns.MEMORY, wide=args.wide)
    return 0


def _stepping(arguments: Sequence[str]) -> int:
    args = parse_flags(BenchStepping, arguments, "python -m benchmarks stepping")
    _require_at_least(1, args, "repeats", "num_envs", "threads")
    command = ["benchmarks", "stepping", *arguments]
    shown: columns.Columns = columns.STEPPING
    if args.env == "cage2":
        from benchmarks import cage2_stepping

        sizes = args.num_envs or cage2_stepping.SIZES
        rows = cage2_stepping.bench_stepping(sizes, args.threads, args.repeats)
        shown = columns.STEPPING_CAGE2
        title = "cage2: true state read before and after every step; other systems as recorded"
    elif args.env == "dvrp":
        from benchmarks import dvrp_stepping
        from hundredfold.envs.dvrp.settings import DvrpSettings

        sizes = args.num_envs or dvrp_stepping.SIZES
        settings = DvrpSettings(num_customers=args.customers)
        rows = dvrp_stepping.bench_stepping(sizes, args.repeats, settings, on_progress=note)
        shown = columns.STEPPING_DVRP
        title = "dvrp: random offers, paired baseline prices included, one thread"
    else:
        from benchmarks import stepping

        sizes = args.num_envs or stepping.SIZES
        rows = stepping.bench_stepping(args.env, sizes, args.repeats, on_progress=note)
        title = f"{args.env}: efficiency is relative to num_envs batches of one env"
    print_rows(rows, command=command, as_json=args.json, title=title, columns=shown, wide=args.wide)
    return 0


def _oracle(arguments: Sequence[str]) -> int:
    args = parse_flags(BenchOracle, arguments, "python -m benchmarks oracle")
    _require_at_least(1, args, "num_instances", "num_requests", "repeats")
    _require_at_least(0, args, "neural_instances")
    from benchmarks.oracle import bench_oracle

    rows = bench_oracle(
        num_instances=args.num_instances,
        num_requests=args.num_requests,
        repeats=args.repeats,
        peer_seconds=args.peer_seconds,
        instances_dir=args.instances,
        instance_seconds=args.instance_seconds,
        with_peers=args.peers,
        neural_instances=args.neural_instances,
        on_progress=note,
    )
    command = ["benchmarks", "oracle", *arguments]
    title = "routing: mean cost (driving minutes), gap to the reference, seconds per instance"
    print_rows(rows, command=command, as_json=args.json, title=title, columns=columns.ORACLE, wide=args.wide)
    return 0


def _vector(arguments: Sequence[str]) -> int:
    args = parse_flags(BenchVector, arguments, "python -m benchmarks vector")
    _require_at_least(1, args, "repeats")
    if args.seconds <= 0:
        raise SettingsError(f"--seconds must be above 0, got {args.seconds}.")
    from benchmarks.vector import WORKLOADS, bench_vector

    selected = [work for work in WORKLOADS if args.only.lower() in work.name.lower()]
    if not selected:
        names = ", ".join(dict.fromkeys(work.name for work in WORKLOADS))
        raise SettingsError(f"no workload name contains {args.only!r}; workloads are {names}.")
    rows = bench_vector(selected, args.repeats, args.seconds, on_progress=note)
    title = "stepping without a policy; ratios are to the row of hundredfold with ratio 1"
    print_rows(
        rows,
        command=["benchmarks", "vector", *arguments],
        as_json=args.json,
        title=title,
        columns=columns.VECTOR,
        wide=args.wide,
    )
    return 0


def _ray(arguments: Sequence[str]) -> int:
    args = parse_flags(BenchRay, arguments, "python -m benchmarks ray")
    _require_at_least(1, args, "num_envs", "repeats")
    from benchmarks.ray_costs import bench_ray

    measured, predicted = bench_ray(args.env, args.num_envs, args.repeats, on_progress=note)
    rows = predicted if args.predict else measured
    if args.json:
        rows = [*measured, *predicted]
    title = "one Ray actor, its policy and the learner; prediction with a policy lag of 1"
    print_rows(rows, command=["benchmarks", "ray", *arguments], as_json=args.json, title=title, wide=args.wide)
    return 0


def _offers(arguments: Sequence[str]) -> int:
    args = parse_flags(BenchOffers, arguments, "python -m benchmarks offers")
    _require_at_least(1, args, "days", "futures", "policy_futures")
    if not args.runs:
        raise SettingsError("offers needs run folders, such as runs/dvrp-1 runs/dvrp-2.")
    from benchmarks.offers import OffersSettings, bench_offers

    settings = OffersSettings(
        days=args.days,
        seed=args.seed,
        splits=args.splits,
        futures=args.futures,
        policy_futures=args.policy_futures,
        hindsight=args.hindsight,
        decision_times=args.decision_times,
        results=args.results,
    )
    rows = bench_offers(args.runs, settings, on_progress=note)
    title = "dvrp: improvement in percent (95 % interval), minutes of shift, CPU ms per decision"
    print_rows(rows, command=["benchmarks", "offers", *arguments], as_json=args.json, title=title, wide=args.wide)
    return 0


def _desk(arguments: Sequence[str]) -> int:
    args = parse_flags(BenchDesk, arguments, "python -m benchmarks desk")
    _require_at_least(1, args, "bookings", "quotes", "clerks")
    from benchmarks.desk import bench_desk

    rows = bench_desk(
        bookings=args.bookings,
        quotes=args.quotes,
        clerks=args.clerks,
        seconds=args.seconds,
        run=args.run,
        on_progress=note,
    )
    title = "booking desk on one core, over HTTP on loopback, SQLite with synchronous=FULL; milliseconds of a quote"
    print_rows(rows, command=["benchmarks", "desk", *arguments], as_json=args.json, title=title, wide=args.wide)
    return 0


def _pictures(arguments: Sequence[str]) -> int:
    args = parse_flags(Pictures, arguments, "python -m benchmarks pictures")
    if not args.runs:
        raise SettingsError("pictures needs run folders of dvrp, such as runs/dvrp-1 runs/dvrp-2.")
    from benchmarks.pictures import draw_pictures

    for path in draw_pictures(args.runs, args.folder, on_progress=note):
        print(f"{path}  {path.stat().st_size / 1e3:,.0f} kB")
    return 0


def _require_at_least(least: int, args: Any, *names: str) -> None:
    for name in names:
        value = getattr(args, name)
        if any(number < least for number in (value if isinstance(value, tuple) else (value,))):
            flag = f"--{name.replace('_', '-')}"
            raise SettingsError(f"{flag} must be at least {least}, got {value}.")


BENCHMARKS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "train": (_train, "training speed and samples to solve an env, compared with Stable-Baselines3"),
    "cage2-learning": (_cage2_learning, "samples and time until a defender of cage2 reaches a score"),
    "memory": (_memory, "policies with memory compared with RecurrentPPO of sb3-contrib"),
    "stepping": (_stepping, "stepping speed of an env against the number of envs"),
    "vector": (_vector, "backends compared with vector envs of other libraries"),
    "ray": (_ray, "costs of collecting with Ray, and where the learner saturates"),
    "oracle": (_oracle, "routing oracles compared with OR-Tools, PyVRP and RL4CO"),
    "desk": (_desk, "latency of the booking desk, and many clerks at once"),
    "offers": (_offers, "learned offers of dvrp compared with look-ahead, at equal shift"),
    "pictures": (_pictures, "draws the pictures of the README again"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; exit codes are those of `hundredfold`."""
    return exit_code(run, list(sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    sys.exit(main())
