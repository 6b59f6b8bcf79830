"""Report of a cage2 run: the official score, losses by host and action, an episode to replay."""

import numpy as np
import pytest

from helpers.browser import BROWSER, REPLAY_PROBE, inspect_page
from helpers.run_folders import make_run, metrics
from hundredfold.envs.cage2.baselines import make_policy
from hundredfold.envs.cage2.env import Cage2Settings
from hundredfold.envs.cage2.evaluation import evaluate_table
from hundredfold.envs.cage2.report_data import EPISODES, record_report_data
from hundredfold.report.cage2_sections import cage2_sections
from hundredfold.report.page import write_report
from hundredfold.report.run_data import write_report_data


@pytest.fixture(scope="module")
def data():
    return record_report_data(lambda batch: make_policy("reactive")(batch.observation), Cage2Settings(), episodes=20)


@pytest.fixture
def folder(data, tmp_path):
    rows = metrics(3)
    for row in rows:
        row |= {"avg_red": 0.63, "avg_horizon": 60.0}
    run = make_run(tmp_path / "run", rows, epochs=3, env="cage2")
    write_report_data(run, data)
    return run


def test_the_score_is_that_of_the_official_evaluation(data):
    rows = evaluate_table(make_policy("reactive"), 20, 9999, Cage2Settings())
    assert [cell["mean"] for cell in data["cells"]] == [row["mean"] for row in rows[:9]]
    assert data["total"] == pytest.approx(rows[9]["mean"])
    assert data["total_stderr"] == pytest.approx(rows[9]["stderr"])
    assert EPISODES >= 100


def test_losses_by_host_and_by_action_add_up_to_the_return(data):
    for red in ("b_line", "meander"):
        mean = next(cell["mean"] for cell in data["cells"] if (cell["red"], cell["horizon"]) == (red, 100))
        assert np.sum(data["lost"][red]) == pytest.approx(-mean, abs=0.01)
        rows = data["actions"][red]
        assert sum(row["own_cost"] + row["lost_to_red"] for row in rows) == pytest.approx(-mean, abs=0.01)
        assert sum(row["uses"] for row in rows) == pytest.approx(100, abs=0.01)
        assert {row["action"] for row in rows if row["own_cost"]} == {"Restore"}


def test_the_replayed_episode_has_the_median_return(data):
    for (record,) in data["replay"]["episodes"]:
        cell = next(cell for cell in data["cells"] if (cell["red"], cell["horizon"]) == (record["red"], 100))
        assert abs(sum(record["rewards"]) - cell["mean"]) < 3 * cell["stderr"] * np.sqrt(20)


def test_the_page_has_cells_losses_and_replay_instead_of_averages_of_codes(folder):
    titles = [section.title for section in cage2_sections(folder)]
    assert titles == ["Score", "Where points are lost", "One episode to replay"]
    page = write_report(folder).read_text("utf-8")
    for text in ("CardiffUni, current code", "meander 100", "lost to red meanwhile", "points worse than CardiffUni"):
        assert text in page
    assert "avg_red" not in page
    assert "average red" not in page


def test_a_score_within_the_interval_is_no_verdict(data, folder):
    for total, expected in ((-54.6, "no clear difference from CardiffUni ("), (-50.0, "points better than Card")):
        write_report_data(folder, {**data, "total": total, "total_stderr": 0.3})
        card = cage2_sections(folder)[0].card
        assert card.note.endswith(" points better than CardiffUni (\N{MINUS SIGN}86.03, code: current).")
        assert expected in card.details[-1]


def test_a_folder_without_report_data_says_how_to_make_it(tmp_path):
    (section,) = cage2_sections(make_run(tmp_path / "run", metrics(1), epochs=1, env="cage2"))
    assert "hundredfold report" in section.explanation


@BROWSER
@pytest.mark.browser
def test_the_replay_in_the_report_is_played_on_a_phone(folder, tmp_path):
    # Within a report keys belong to the replay only while it has the focus.
    probe = REPLAY_PROBE.replace("document.body.dispatchEvent", 'find(".replay").dispatchEvent')
    seen = inspect_page(write_report(folder), 390, tmp_path / "profile", probe)
    assert seen["after_arrows"] == 1
    assert seen["last_position"] == 100
    assert 7 < seen["played_to"] < 100
    assert seen["wanted_width"] <= seen["given_width"] <= 390
