"""`hundredfold scale ENV`: throughput and efficiency against the number of envs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import tyro

from hundredfold.backends import BACKENDS
from hundredfold.backends.settings import WorkerSettings, usable_cores
from hundredfold.cli.flags import parse_flags
from hundredfold.cli.output import Column, Row, machine, note, print_rows, print_text
from hundredfold.core.errors import SettingsError, suggest

MAX_ENVS: Final = 10_000_000
MAX_SECONDS: Final = 86_400.0
COLUMNS: Final = (
    Column("num_envs", "envs"),
    Column("backend"),
    Column("steps_per_second", "steps per second"),
    Column("efficiency"),
    Column("largest_loss", priority=2),
    Column("ms_per_step", priority=3),
)
NODE_COLUMNS: Final = (
    Column("num_envs", "envs"),
    Column("nodes"),
    Column("steps_per_second", "steps per second"),
    Column("ideal_steps_per_second", "ideal steps per second", priority=2),
    Column("efficiency"),
    Column("steal_fraction", "stolen CPU time", priority=3),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Measure throughput and efficiency against the number of envs, on each backend.

    Lost time is measured by cause: waiting for the slowest env, data transfer, policy, learner.
    """

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """A Gymnasium id, a built-in env, or a synthetic one: waiting (10 ms), waiting-50ms, computing,
    large-info."""
    num_envs: tuple[int, ...] = (1, 8, 64, 100, 256)
    """Numbers of envs."""
    backend: str = "all"
    """all (in_process, processes and first_ready) or the name of one backend."""
    policy_ms: float = 0.0
    """Simulated policy: milliseconds of computing before each batch of actions."""
    learn: bool = False
    """Train PPO instead of taking random actions."""
    seconds: float = 2.0
    """Duration of each measurement, in seconds."""
    workers: int = 0
    """Worker processes; 0: one per core."""
    batch_envs: int = 0
    """Ready envs that first_ready waits for; 0: automatic."""
    nodes: tuple[int, ...] = ()
    """With --backend ray: numbers of nodes of a simulated Ray cluster to collect rollouts on, such
    as 1,2,4; for envs that wait."""
    env_kwargs: tuple[str, ...] = ()
    """Arguments of the Gymnasium env as key=value."""
    page: Path | None = None
    """Write an HTML page with the plots to this file; it needs no network."""
    wide: bool = False
    """Show all columns, however wide the table gets."""
    json: bool = False
    """Print a single JSON object."""


def run(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse_flags(Scale, argv, "hundredfold scale")
    _check_sizes(args.num_envs, "--num-envs")
    if not (0 < args.seconds <= MAX_SECONDS and 0 <= args.policy_ms <= 1000 * MAX_SECONDS):
        raise SettingsError(
            f"--seconds must be above 0 and --policy-ms at least 0, both at most a day; got {args.seconds} s and "
            f"{args.policy_ms} ms."
        )
    if args.backend not in ("all", *BACKENDS):
        names = ["all", *BACKENDS]
        raise SettingsError(f"unknown backend {args.backend!r}; {suggest(args.backend, names)}")
    from hundredfold.profiling.scaling import ALL_BACKENDS, ScaleSettings, advice, measure_scaling, profile_env

    if bool(args.nodes) != (args.backend == "ray"):
        raise SettingsError("--nodes and --backend ray need each other: --backend ray --nodes 1,2.")
    env = profile_env(args.env, _env_settings(args))
    if args.nodes:
        return _run_nodes(args, env, ["scale", *argv])
    settings = ScaleSettings(
        num_envs=args.num_envs,
        backends=ALL_BACKENDS if args.backend == "all" else (args.backend,),
        seconds=args.seconds,
        policy_ms=args.policy_ms,
        learn=args.learn,
        workers=WorkerSettings(workers=args.workers, batch_envs=args.batch_envs, on_env_error="stop"),
    )
    rows = measure_scaling(env, settings, on_progress=note)
    ideal, sentence = env.describe_ideal(usable_cores()), advice(rows)
    command = ["scale", *argv]
    if args.page is not None:
        from hundredfold.core.files import write_atomically
        from hundredfold.report.command_pages import draw_scaling

        page = draw_scaling(rows, ideal, sentence, f"hundredfold {' '.join(command)}", machine())
        write_atomically(args.page, page)
        note(f"page {args.page}")
    if args.json:
        output: dict[str, Any] = {"command": command, "machine": machine(), "rows": rows}
        print(json.dumps(output | {"ideal": ideal, "advice": sentence}))
        return 0
    title = f"{args.env}: the ideal is {ideal}; efficiency and losses in % of it"
    print_rows(table_rows(rows), command=command, as_json=False, title=title, columns=COLUMNS, wide=args.wide)
    print_text(sentence)
    return 0


def _run_nodes(args: Scale, env: Any, command: list[str]) -> int:
    """Measure against the number of nodes of a simulated Ray cluster."""
    from hundredfold.profiling.ray_scaling import measure_nodes

    _check_sizes(args.nodes, "--nodes")
    given = _env_settings(args)
    rows = measure_nodes(env, given, args.nodes, args.num_envs, args.seconds, args.batch_envs, on_progress=note)
    title = f"{args.env}: the ideal is {env.describe_ideal(usable_cores())}; nodes are simulated"
    print_rows(rows, command=command, as_json=args.json, title=title, columns=NODE_COLUMNS, wide=args.wide)
    return 0


def table_rows(rows: Sequence[Row]) -> list[Row]:
    """Rows for the terminal: fractions in percent, without losses that are 0 in all rows."""
    shares = [name for name in rows[0] if name == "efficiency" or name.startswith("lost_to_")]
    shown = [name for name in shares if any(abs(row[name]) >= 0.0005 for row in rows)]
    return [
        {
            **{name: row[name] for name in ("num_envs", "backend", "steps_per_second")},
            **{name: f"{100 * row[name]:.1f} %" for name in shown},
            "ms_per_step": 1e3 * row["step_seconds"],
            "largest_loss": _largest_loss(row),
        }
        for row in rows
    ]


def _largest_loss(row: Row) -> str:
    from hundredfold.profiling.scaling import main_loss

    cause = main_loss(row)
    share = row[f"lost_to_{cause}"]
    return f"{cause} {100 * share:.1f} %" if share >= 0.0005 else ""


def _env_settings(args: Scale) -> Any:
    """Settings of the env, with the arguments of a Gymnasium env."""
    from hundredfold.envs.registry import ENVS, canonical_name, settings_class
    from hundredfold.profiling.scaling import SYNTHETIC_ENVS

    built_in = canonical_name(args.env) in ENVS or args.env in SYNTHETIC_ENVS
    if built_in and args.env_kwargs:
        raise SettingsError(f"--env-kwargs works with Gymnasium ids only; {args.env} takes none.")
    if args.env in SYNTHETIC_ENVS:
        return None
    try:
        kind = settings_class(args.env)
    except SettingsError as error:
        raise SettingsError(f"{error} Synthetic envs are {', '.join(SYNTHETIC_ENVS)}.") from None
    return kind() if built_in else kind(env_kwargs=args.env_kwargs)


def _check_sizes(sizes: Sequence[int], flag: str) -> None:
    if not sizes:
        raise SettingsError(f"{flag} expects numbers separated by commas, such as 1,8,64; got none.")
    if min(sizes) < 1:
        raise SettingsError(f"{flag} must be at least 1 each, got {min(sizes)}.")
    if max(sizes) > MAX_ENVS:
        raise SettingsError(f"{flag} must be at most {MAX_ENVS:,} each, got a number of {len(str(max(sizes)))} digits.")
