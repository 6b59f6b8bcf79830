"""cage2 on the command line: verify, evaluate and train."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from hundredfold.cli import main
from hundredfold.cli.cage2 import blue_policy
from hundredfold.core.errors import SettingsError
from hundredfold.envs.cage2 import blue_agent
from hundredfold.envs.cage2.blue_agent import BlueAgent, shipped_run
from hundredfold.envs.cage2.conformance import COMPARED, RECORDINGS
from hundredfold.envs.cage2.env import Cage2, Cage2Settings

ROOT = Path(__file__).parents[2]


def call(*argv):
    try:
        return main.main([str(argument) for argument in argv])
    except SystemExit as exit_:
        return exit_.code


def test_verify_agrees_with_all_recordings(capsys):
    traces = sorted(RECORDINGS.glob("*.npz"))
    assert call("verify", "cage2", *traces, "--json") == 0
    captured = capsys.readouterr()
    rows = json.loads(captured.out)["rows"]
    assert {row["file"] for row in rows} == {path.name for path in traces}
    assert all(row["steps_compared"] == row["steps_equal"] for row in rows)
    assert "50,300 of 50,300 steps are equal" in captured.err


def test_verify_prints_the_first_difference_and_fails(capsys, tmp_path):
    with np.load(RECORDINGS / "traces_cardiff.npz") as file:
        arrays = dict(file)
    arrays["reward10"] = arrays["reward10"].copy()
    arrays["reward10"][2, 40] -= 7
    np.savez(tmp_path / "changed.npz", **arrays)
    assert call("verify", "cage2", tmp_path / "changed.npz") == 1
    captured = capsys.readouterr()
    assert "799 of 800 steps are equal" in captured.err
    assert "changed.npz: episode 2" in captured.err
    assert "step 40" in captured.err


def test_verify_checks_mean_returns(capsys):
    assert call("verify", "cage2", "--returns", "recorded", "--episodes", "300") == 0
    assert "27 of 27 mean returns" in capsys.readouterr().err


def test_verify_finds_the_recordings_of_the_package_from_any_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("verify", "cage2") == 0
    printed = capsys.readouterr().err
    assert "50,300 of 50,300 steps are equal" in printed
    assert 'docs/cage2.md, section "Conformance"' in printed


def test_the_docs_explain_every_field_that_verify_compares():
    section = (ROOT / "docs" / "cage2.md").read_text().partition("## Conformance")[2].partition("\n## ")[0]
    named = {name for line in section.splitlines() if line.startswith("| `") for name in line.split("|")[1].split("`")}
    assert {*COMPARED, "exploits"} <= named


@pytest.mark.parametrize(("red", "has_published"), [("b_line", True), ("red_agent:Wanderer", False)])
def test_published_rows_are_explained_where_there_are_any(capsys, monkeypatch, red, has_published):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    assert call("evaluate", "cage2", "--policy", "sleep", "--red", red, "--episodes", "2") == 0
    assert ("rows without standard errors are published" in " ".join(capsys.readouterr().out.split())) == has_published


def test_evaluate_prints_the_official_table(capsys):
    argv = ["evaluate", "cage2", "--policy", "reactive", "--episodes", "50", "--json"]
    assert call(*argv) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    evaluated = [row for row in rows if row["policy"] == "reactive"]
    assert len(evaluated) == 10
    total = evaluated[-1]
    assert total["red"] == "total"
    assert total["mean"] == pytest.approx(sum(row["mean"] for row in evaluated[:-1]))
    assert total["mean"] == pytest.approx(-170.2, abs=3)
    published = [row for row in rows if row["policy"] == "CardiffUni"]
    assert published[-1]["mean"] == -54.57


def test_evaluate_accepts_a_trained_run(capsys, tmp_path):
    argv = ["train", "cage2", "--epochs", "2", "--num-envs", "8", "--eval-episodes", "8"]
    assert call(*argv, "--save-dir", tmp_path, "--name", "blue", "--quiet") == 0
    assert call("evaluate", tmp_path / "blue", "--episodes", "5", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[9]["red"] == "total"
    assert call("evaluate", "cage2", "--policy", tmp_path / "blue", "--episodes", "5") == 0


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["evaluate", "cage2"], "needs --policy"),
        (["evaluate", "cage2", "--policy", "reactve"], "did you mean reactive?"),
        (["evaluate", "cage2", "--policy", "reactve"], "neither a policy nor a run folder"),
        (["train", "cage2", "--red", "bline"], "b_line"),
        (["train", "cage2", "--horizons", "0"], "horizons"),
    ],
)
def test_wrong_arguments_get_a_hint(capsys, tmp_path, monkeypatch, argv, hint):
    monkeypatch.chdir(tmp_path)
    assert call(*argv) in (1, 2)
    captured = capsys.readouterr()
    assert hint in captured.err + captured.out
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("policy", "ruleset", "least"),
    [("shipped", "current", -56), ("shipped", "leaderboard", -47), ("shipped-exploits", "current", -46)],
)
def test_shipped_policies_keep_their_scores(capsys, policy, ruleset, least):
    argv = ["evaluate", "cage2", "--policy", policy, "--ruleset", ruleset, "--episodes", "100", "--json"]
    assert call(*argv) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[9]["red"] == "total"
    assert rows[9]["mean"] > least


@pytest.fixture
def shipped_folder(tmp_path, monkeypatch):
    """The policies of the package in a folder that a test can change."""
    package = tmp_path / "package"
    shutil.copytree(shipped_run().parent, package / "shipped")
    monkeypatch.setattr(blue_agent.resources, "files", lambda name: package)
    return package / "shipped"


def test_the_shipped_policy_is_that_of_the_ruleset_or_of_the_current_one(shipped_folder):
    assert shipped_run("shipped", "leaderboard").name in ("leaderboard", "current")
    shutil.rmtree(shipped_folder / "leaderboard", ignore_errors=True)
    assert shipped_run("shipped", "leaderboard") == shipped_folder / "current"
    shutil.copytree(shipped_folder / "current", shipped_folder / "leaderboard")
    assert shipped_run("shipped", "leaderboard") == shipped_folder / "leaderboard"
    assert shipped_run("shipped", "current") == shipped_folder / "current"
    assert BlueAgent.load(ruleset="leaderboard").channels == BlueAgent.load().channels


def test_a_policy_with_another_channel_is_shipped_beside_the_others(shipped_folder):
    shutil.rmtree(shipped_folder / "current-exploits", ignore_errors=True)
    shutil.rmtree(shipped_folder / "leaderboard-exploits", ignore_errors=True)
    with pytest.raises(SettingsError, match="no policy 'shipped-exploits'"):
        shipped_run("shipped-exploits", "leaderboard")
    shutil.copytree(shipped_folder / "current", shipped_folder / "current-exploits")
    assert shipped_run("shipped-exploits", "leaderboard") == shipped_folder / "current-exploits"


def test_the_ruleset_picks_the_shipped_policy_and_the_rules():
    _, settings = blue_policy("shipped", "best", 0, "leaderboard")
    assert settings.ruleset == "leaderboard"
    assert blue_policy("shipped", "best", 0)[1].ruleset == "current"
    assert blue_policy("reactive", "best", 0, "leaderboard")[1].ruleset == "leaderboard"


def test_the_shipped_agent_needs_only_the_52_bits():
    agent = BlueAgent.load()
    env = Cage2(np.arange(1), Cage2Settings(red="b_line"))
    batch = env.reset(3)
    total = 0.0
    for _ in range(100):
        batch = env.step(np.array([agent.act(batch.observation["bits"][0])]))
        total += float(batch.reward[0])
    # Sleeping loses more than 1,000, the reactive baseline about 50.
    assert total > -30


def test_evaluate_logs_episodes_in_words(capsys, tmp_path):
    log = tmp_path / "log.jsonl"
    assert call("evaluate", "cage2", "--policy", "reactive", "--episodes", "3", "--log-episodes", log, "--json") == 0
    rows = [row for row in json.loads(capsys.readouterr().out)["rows"] if row["policy"] == "reactive"]
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(steps) == 3 * 3 * (30 + 50 + 100)
    for cell in rows[:9]:
        returns = [
            step["return"]
            for step in steps
            if (step["red_agent"], step["horizon"], step["step"]) == (cell["red"], cell["horizon"], cell["horizon"])
        ]
        assert np.mean(returns) == pytest.approx(cell["mean"])


def test_envs_cage2_explains_every_number_within_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert call("envs", "cage2") == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for part in ("Op_Server0", "DecoyTomcat", "106 + host", "11 privileged", "red_subnets", "PrivilegeEscalate"):
        assert part in text
    assert call("envs", "cage2", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {"host": 12, "name": "User4"}.items() <= next(row for row in rows if row.get("name") == "User4").items()
    assert call("envs", "cage3") == 2
    assert "cage2" in capsys.readouterr().err
