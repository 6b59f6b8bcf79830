"""Columns of the benchmarks' tables: first those that tell rows apart, then the results, fewer where it is narrow."""

from __future__ import annotations

from typing import Final

from hundredfold.cli.output import Column

Columns = tuple[Column, ...]

SYSTEM: Final = Column("system")
ENVS: Final = Column("num_envs", "envs")
STEPS: Final = Column("steps_per_second", "steps per second")
SAMPLES: Final = Column("samples_per_second", "samples per second")
RANGE: Final = Column(("low", "high"), "lowest to highest", priority=3)
TIMES_HUNDREDFOLD: Final = Column("ratio_to_hundredfold", "times hundredfold")

TRAIN: Final[Columns] = (
    SYSTEM,
    Column("work"),
    Column("env", priority=2),
    ENVS,
    Column("threads"),
    STEPS,
    RANGE,
    TIMES_HUNDREDFOLD,
    Column("ratio_to_one_thread", "times one thread"),
)
SAMPLES_TO_SOLVE: Final[Columns] = (
    SYSTEM,
    Column("solved"),
    Column("samples_to_target", "samples to target"),
    Column(("low", "high"), "fewest to most", priority=2),
    Column("seconds"),
    Column("best", decimals=2, priority=2),
    Column("ratio_to_hundredfold", "times hundredfold", priority=3),
)
TRAIN_DVRP: Final[Columns] = (
    SYSTEM,
    Column("preset"),
    SAMPLES,
    Column("env_seconds", priority=2),
    Column("oracle_seconds", priority=2),
    Column("policy_seconds", priority=2),
    Column("update_seconds"),
    Column("ratio_to_bare", "times plain torch"),
)
MEMORY: Final[Columns] = (
    SYSTEM,
    Column("solved"),
    Column("samples_to_target", "samples to target"),
    Column(("low", "high"), "fewest to most", priority=2),
    STEPS,
    TIMES_HUNDREDFOLD,
)
STEPPING: Final[Columns] = (
    SYSTEM,
    Column("env", priority=3),
    ENVS,
    STEPS,
    RANGE,
    Column("efficiency"),
    Column("times_one_gymnasium_env", "times one Gymnasium env", priority=2),
)
STEPPING_CAGE2: Final[Columns] = (
    SYSTEM,
    ENVS,
    Column("threads"),
    STEPS,
    Column("ratio_to_python_loop", "times a Python loop", priority=2),
    Column("ratio_to_compiled_loop", "times a compiled loop", priority=4),
    Column("ratio_to_hundredfold", "times hundredfold", priority=2),
    Column("efficiency", priority=3),
)
STEPPING_DVRP: Final[Columns] = (
    SYSTEM,
    ENVS,
    SAMPLES,
    RANGE,
    Column("oracle_share", decimals=2),
    Column("env_share", decimals=2),
    Column("policy_share", decimals=2),
)
VECTOR: Final[Columns] = (
    SYSTEM,
    Column("backend"),
    Column("env"),
    ENVS,
    STEPS,
    Column("ratio_to_hundredfold", "ratio"),
    Column("efficiency", priority=2),
    RANGE,
    Column("goal", priority=4),
)
ORACLE: Final[Columns] = (
    SYSTEM,
    Column("oracle"),
    Column("instance"),
    Column("cost"),
    Column("gap_pct", "gap %"),
    Column("seconds"),
    Column("ratio_to_hundredfold", "times hundredfold", priority=2),
    RANGE,
)
CAGE2_LEARNING: Final[Columns] = (
    Column("arm"),
    Column("target", decimals=2),
    Column("reached"),
    Column("samples_to_target", "samples until"),
    Column(("low", "high"), "fewest to most", priority=2),
    Column("seconds"),
    Column(("seconds_low", "seconds_high"), "least to most", priority=3),
    Column("samples_per_second", "samples per second", priority=2),
    Column("best_total", "best total", decimals=2),
)
