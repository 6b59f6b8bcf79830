"""`hundredfold scale ENV`: how much more one gets from more envs, and where the rest goes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from hundredfold.backends import BACKENDS
from hundredfold.backends.settings import WorkerSettings, usable_cores
from hundredfold.cli.output import Row, machine, note, print_rows
from hundredfold.core.errors import SettingsError, suggest


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Throughput against the number of envs, and where the rest goes.

    Waiting for the slowest, moving data, the policy, the learner: read off the clock, in the envs.
    """

    env: Annotated[str, tyro.conf.Positional]
    """A Gymnasium id, one of built-in envs, or an env of known cost: waiting (10 ms), waiting-50ms,
    computing, talkative."""
    num_envs: str = "1,8,64,100,256"
    """Numbers of envs, with commas between them."""
    backend: str = "all"
    """all (in_process, processes, first_ready) or the name of one."""
    policy_ms: float = 0.0
    """Milliseconds of computing that stand for a policy before each batch of actions."""
    learn: bool = False
    """Let our PPO play and learn instead of random actions: a real policy and a real learner."""
    seconds: float = 2.0
    """How long each number of envs is played on each backend."""
    workers: int = 0
    """Worker processes; 0: as many as there are cores."""
    batch_envs: int = 0
    """Ready envs that first_ready waits for; 0: as auto would choose."""
    nodes: str = ""
    """With --backend ray: collect on so many nodes of a simulated cluster, such as 1,2,4, instead
    of stepping; for envs that wait."""
    env_kwargs: tuple[str, ...] = ()
    """Arguments of a Gymnasium env as key=value."""
    page: Path | None = None
    """Write a page with the plots to this file; it needs no network."""
    json: bool = False
    """Print one JSON object and nothing else."""


def run(arguments: Sequence[str]) -> int:
    """Rows, a page where asked for, and a sentence of options."""
    args = tyro.cli(Scale, args=list(arguments), prog="hundredfold scale")
    sizes = _sizes(args.num_envs)
    if args.seconds <= 0 or args.policy_ms < 0:
        raise SettingsError(
            f"seconds ({args.seconds}) must be above 0, policy_ms ({args.policy_ms}) not below."
        )
    if args.backend not in ("all", *BACKENDS):
        names = ["all", *BACKENDS]
        raise SettingsError(
            f"there is no backend called {args.backend!r}; {suggest(args.backend, names)}"
        )
    from hundredfold.profiling.scaling import (
        ALL_BACKENDS,
        ScaleSettings,
        advice,
        measure_scaling,
        subject_of,
    )

    if bool(args.nodes) != (args.backend == "ray"):
        raise SettingsError("--nodes goes with --backend ray and the other way round: --nodes 1,2.")
    subject = subject_of(args.env, _env_settings(args))
    if args.nodes:
        return _run_nodes(args, subject, sizes, ["scale", *arguments])
    settings = ScaleSettings(
        num_envs=sizes,
        backends=ALL_BACKENDS if args.backend == "all" else (args.backend,),
        seconds=args.seconds,
        policy_ms=args.policy_ms,
        learn=args.learn,
        workers=WorkerSettings(
            workers=args.workers, batch_envs=args.batch_envs, on_env_error="stop"
        ),
    )
    rows = measure_scaling(subject, settings, on_progress=note)
    ideal, sentence = subject.ideal(usable_cores()), advice(rows)
    command = ["scale", *arguments]
    if args.page is not None:
        from hundredfold.report.scale_page import draw_scaling
        from hundredfold.training.run_folder import write_atomically

        page = draw_scaling(rows, ideal, sentence, f"hundredfold {' '.join(command)}", machine())
        write_atomically(args.page, page)
        note(f"page {args.page}")
    if args.json:
        answer: dict[str, Any] = {"command": command, "machine": machine(), "rows": rows}
        print(json.dumps(answer | {"ideal": ideal, "advice": sentence}))
        return 0
    title = f"{args.env}: the ideal is {ideal}; efficiency and what is lost, in % of it"
    print_rows(table_rows(rows), command=command, as_json=False, title=title)
    print(sentence)
    return 0


def _run_nodes(args: Scale, subject: Any, sizes: tuple[int, ...], command: list[str]) -> int:
    """The same against the number of nodes."""
    from hundredfold.profiling.ray_scaling import measure_nodes

    nodes = _sizes(args.nodes, "--nodes")
    given = _env_settings(args)
    rows = measure_nodes(
        subject, given, nodes, sizes, args.seconds, args.batch_envs, on_progress=note
    )
    title = f"{args.env}: the ideal is {subject.ideal(usable_cores())}; nodes are simulated"
    print_rows(rows, command=command, as_json=args.json, title=title)
    return 0


def table_rows(rows: Sequence[Row]) -> list[Row]:
    """The same in percent, without what is the same in every row or nothing in all of them."""
    shares = [name for name in rows[0] if name == "efficiency" or name.startswith("lost_to_")]
    shown = [name for name in shares if any(row[name] >= 0.0005 for row in rows)]
    return [
        {
            **{name: row[name] for name in ("num_envs", "backend", "steps_per_second")},
            **{name: f"{100 * row[name]:.1f} %" for name in shown},
            "ms_per_step": 1e3 * row["step_seconds"],
        }
        for row in rows
    ]


def _env_settings(args: Scale) -> Any:
    """Settings of the env's own, with the arguments of a Gymnasium env in them."""
    from hundredfold.envs.registry import ENVS, canonical_name, settings_class
    from hundredfold.profiling.scaling import KNOWN_COST

    ours = canonical_name(args.env) in ENVS or args.env in KNOWN_COST
    if ours and args.env_kwargs:
        raise SettingsError(f"env_kwargs go with a Gymnasium id; {args.env} takes none.")
    if args.env in KNOWN_COST:
        return None
    try:
        kind = settings_class(args.env)
    except SettingsError as error:
        raise SettingsError(f"{error} Envs of known cost are {', '.join(KNOWN_COST)}.") from None
    return kind() if ours else kind(env_kwargs=args.env_kwargs)


def _sizes(text: str, flag: str = "--num-envs") -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise SettingsError(
            f"{flag} takes numbers with commas between them, such as 1,8,64; got {text!r}."
        ) from error
    if min(sizes) < 1:
        raise SettingsError(f"{flag} must be at least 1 each, got {text}.")
    return sizes
