"""Tables of the benchmarks at 80 columns: rows can be told apart, and numbers are whole."""

from itertools import product

import pytest

from benchmarks import columns
from hundredfold.cli.output import all_columns, fit_columns, print_rows

WIDTH = 80
# What a row is a measurement of; all other columns are results.
SUBJECT = {"system", "work", "preset", "oracle", "backend", "instance", "env", "num_envs", "threads", "arm", "target"}
RATES = {"steps_per_second": 1_234_567.8, "low": 1_123_456.7, "high": 1_345_678.9, "ratio_to_hundredfold": 0.0345}
OURS, SB3 = "hundredfold", "stable-baselines3"


def rows(names, values, **results):
    return [dict(zip(names, row, strict=True)) | results for row in values]


def vector_rows():
    systems = (OURS, "in_process"), (OURS, "processes, seeded once"), ("envpool", ""), (SB3, "subproc")
    envs = ("CartPole-v1", 100), ("waiting 10 ms", 100), ("waiting 10 ms", 256), ("dict + 5 kB info", 100)
    return rows(
        ("system", "backend", "env", "num_envs"),
        [(*system, *env) for env, system in product(envs, systems)],
        efficiency=0.97,
        goal=">= 15x gymnasium async (is 17.3x)",
        **RATES,
    )


def oracle_rows():
    efforts = "insertion, 0 iterations x 1", "insertion, 600 iterations x 1", "neural, best of 16 + relocate"
    instances = "city 20 x 30", "loose 20 x 30", "held-out days 500 x 30"
    costs = {
        "cost": 1_431.2,
        "reference": 1_425.1,
        "gap_pct": 12.34,
        "seconds": 0.000123,
        "low": 0.0001,
        "high": 0.0002,
    }
    named = ("system", "oracle", "instance")
    return rows(named, [(OURS, *row) for row in product(efforts, instances)], ratio_to_hundredfold=None, **costs)


def stepping_rows():
    sizes = [(OURS, envs, threads) for envs, threads in product((1, 100, 10_000), (1, 2))]
    return [
        *rows(("system", "num_envs", "threads"), [(f"{OURS}, compiled loop over one env", 1, 1)], **RATES),
        *rows(("system", "num_envs", "threads"), sizes, ratio_to_python_loop=98.1, efficiency=12.3, **RATES),
    ]


def solve_rows():
    systems = [(name, "acrobot") for name in (OURS, "hundredfold, DQN", "stable-baselines3, DQN")]
    samples = {"samples_to_target": 1_557_056.0, "low": 262_144.0, "high": 1_262_144.0, "seconds": 123.4}
    return rows(("system", "env"), systems, solved=5, seeds=5, best=-76.2, **samples, steps_per_second=12_300.0)


def dvrp_rows():
    presets = [(OURS, "default"), *product((OURS, "bare torch loop"), ("returns", "meta-train-64"))]
    phases = {f"{phase}_seconds": 12.3 for phase in ("env", "oracle", "policy", "update")}
    return rows(("system", "preset"), presets, samples_per_second=131_234.5, ratio_to_bare=1.05, **phases)


def ray_rows():
    systems = (OURS, "hundredfold in_process", "rllib"), ("collecting", "training")
    return rows(("system", "work"), product(*systems), env="cage2", num_envs=512, **RATES)


@pytest.mark.parametrize(
    ("shown", "make_rows"),
    [
        (columns.TRAIN, ray_rows),
        (columns.TRAIN_DVRP, dvrp_rows),
        (columns.SAMPLES_TO_SOLVE, solve_rows),
        (columns.STEPPING_CAGE2, stepping_rows),
        (columns.VECTOR, vector_rows),
        (columns.ORACLE, oracle_rows),
    ],
)
def test_rows_can_be_told_apart_at_80_columns(shown, make_rows, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    made = make_rows()
    fitting = fit_columns(made, [column for column in all_columns(made, shown) if column in shown], WIDTH)
    subjects = [tuple(column.cell(row) for column in fitting if column.key in SUBJECT) for row in made]
    assert len(set(subjects)) == len(made)
    print_rows(made, command=[], as_json=False, columns=shown)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= WIDTH


def test_samples_to_solve_show_how_many_runs_did_and_how_far_apart_they_are():
    made = solve_rows()
    fitting = fit_columns(made, all_columns(made, columns.SAMPLES_TO_SOLVE), WIDTH)
    keys = [column.key for column in fitting]
    assert {"solved", "samples_to_target", ("low", "high"), "seconds", "best"} <= set(keys)
