"""The command `hundredfold scale`."""

import json

import pytest

from hundredfold.cli.main import main
from hundredfold.cli.scale import table_rows
from hundredfold.profiling.scaling import LOSSES

pytestmark = pytest.mark.process

QUICK = ["--num-envs", "1,3", "--seconds", "0.05"]
IN_PROCESS = ["--backend", "in_process"]


def scale_json(capsys, *argv):
    assert main(["scale", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def losses(row):
    return {name: share for name, share in row.items() if name.startswith("lost_to_")}


def test_every_size_and_backend_has_a_row_whose_shares_add_up_to_1(capsys):
    output = scale_json(capsys, "waiting", *QUICK)
    assert output["command"] == ["scale", "waiting", *QUICK, "--json"]
    assert [(row["num_envs"], row["backend"]) for row in output["rows"]] == [
        (size, backend) for size in (1, 3) for backend in ("in_process", "processes", "first_ready")
    ]
    for row in output["rows"]:
        assert row["steps_per_second"] > 0
        assert row["efficiency"] + sum(losses(row).values()) == pytest.approx(1.0)
        assert min(losses(row).values()) >= -1e-9
        assert row["num_envs"] > 1 or row["lost_to_serial"] == 0.0
    assert "N times one env" in output["ideal"]
    assert "3 envs" in output["advice"]


def test_envs_in_one_process_step_serially(capsys):
    output = scale_json(capsys, "waiting", "--num-envs", "4", "--seconds", "0.05", *IN_PROCESS)
    (row,) = output["rows"]
    assert row["lost_to_serial"] == pytest.approx(0.75)
    assert row["lost_to_barrier"] == 0.0


def test_a_slow_policy_is_the_main_loss(capsys):
    argv = ["CartPole-v1", "--num-envs", "2", "--seconds", "0.05", *IN_PROCESS]
    (row,) = scale_json(capsys, *argv, "--policy-ms", "20")["rows"]
    assert max(losses(row), key=losses(row).get) in ("lost_to_policy", "lost_to_serial")
    assert row["lost_to_policy"] > 10 * row["efficiency"]


def test_the_learner_is_a_loss(capsys):
    argv = ["CartPole-v1", "--num-envs", "4", "--seconds", "0.05", *IN_PROCESS]
    (row,) = scale_json(capsys, *argv, "--learn")["rows"]
    assert row["lost_to_learner"] > 0
    assert row["lost_to_policy"] > 0


def test_built_in_envs_are_measured(capsys):
    output = scale_json(capsys, "corridor", *QUICK)
    assert "batch of one" in output["ideal"]
    assert len(output["rows"]) == 6


def test_the_page_shows_every_backend_and_the_advice(capsys, tmp_path):
    page = tmp_path / "scale.html"
    assert main(["scale", "CartPole-v1", *QUICK, "--page", str(page)]) == 0
    captured = capsys.readouterr()
    assert "the ideal is" in captured.out
    assert "Use --backend" in captured.out
    text = page.read_text()
    assert "Where the time goes" in text
    assert "Use --backend" in text
    assert "src=" not in text.split("<script", 1)[0]


def test_the_table_omits_losses_that_are_zero_in_all_rows():
    row = {
        "num_envs": 3,
        "backend": "processes",
        "steps_per_second": 5.0,
        "efficiency": 0.6,
        "lost_to_barrier": 0.4,
        **dict.fromkeys([f"lost_to_{name}" for name in LOSSES if name != "barrier"], 0.0),
        "step_seconds": 0.01,
    }
    (shown,) = table_rows([row])
    assert shown["efficiency"] == "60.0 %"
    assert shown["lost_to_barrier"] == "40.0 %"
    assert "lost_to_learner" not in shown
    assert shown["largest_loss"] == "barrier 40.0 %"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["waiting", "--num-envs"], "numbers separated by commas"),
        (["waiting", "--num-envs", "0"], "at least 1"),
        (["waiting", "--backend", "proceses"], "did you mean processes"),
        (["waiting", "--seconds", "0"], "must be above 0"),
        (["waiting", "--env-kwargs", "a=1"], "takes none"),
        (["NoSuchEnv-v0"], "no env called"),
        (["waitin"], "Synthetic envs are waiting, waiting-50ms"),
    ],
)
def test_invalid_arguments_exit_with_a_hint(capsys, argv, message):
    assert main(["scale", *argv]) == 2
    assert message in capsys.readouterr().err
