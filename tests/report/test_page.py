"""Reports of synthetic runs: contents, missing data, escaping."""

from __future__ import annotations

import json
import sys
from html.parser import HTMLParser
from types import SimpleNamespace

import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs

from helpers.run_folders import make_run, metrics
from hundredfold.core.errors import CheckpointError
from hundredfold.report import page as page_module
from hundredfold.report.page import write_report
from hundredfold.report.run_sections import ENV_FIGURES, Section, Table
from hundredfold.training.run_folder import RunFolder


class Page(HTMLParser):
    """Tags, texts, charts and scripts of a page."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__()
        self.tags, self.texts, self.charts, self.scripts = [], [], [], []
        self.inside = ""
        self.feed(write_report(folder).read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        self.inside = tag
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script" and self.tags[-1][1].get("type") == "application/json":
            self.charts.append(json.loads(data))
        elif self.inside == "script":
            self.scripts.append(data.strip())
        elif self.inside != "style" and data.strip():
            self.texts.append(" ".join(data.split()))

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    def count(self, name: str) -> int:
        return sum(tag == name for tag, _ in self.tags)


def test_report_of_a_finished_run_has_all_sections(tmp_path):
    page = Page(make_run(tmp_path / "cartpole-20260102-030405-7", metrics(20), best=20))

    for words in (
        "seed 7",
        "started 2 January 2026, 03:04",
        "finished, 20 epochs",
        "best evaluated return",
        "95 % interval 417 to 433; epoch 20, the best of 4 evaluations",
        "40,960",
        "Policy loss",
        "Explained variance",
        "Length of an episode",
        "Share of time",
        "Throughput",
        "num_envs",
        "env_settings.inner",
        "2.13.0+cpu",
    ):
        assert words in page.text, words
    # Learning, one average, six learner diagnostics, phase shares and throughput.
    assert len(page.charts) == 1 + 1 + 6 + 2
    assert "not drawn: skipped_gradients 0" in page.text


def test_the_best_evaluation_is_highlighted(tmp_path):
    page = Page(make_run(tmp_path / "run", metrics(20), best=10))
    marked = [attrs for tag, attrs in page.tags if tag == "tr" and attrs.get("class") == "marked"]
    assert len(marked) == 1
    assert "epoch 10, the best of 4 evaluations" in page.text


def test_without_a_best_checkpoint_the_highest_evaluation_is_best(tmp_path):
    assert "epoch 20, the best of 4" in Page(make_run(tmp_path / "run", metrics(20))).text


def test_one_epoch_is_enough_for_a_report(tmp_path):
    page = Page(make_run(tmp_path / "run", metrics(1, evaluate_every=1), epochs=1, best=1))
    evaluated = page.charts[0]["data"][-1]
    assert "finished, 1 epoch" in page.texts
    assert evaluated["name"] == "evaluated"
    assert evaluated["error_y"]["array"] == [8.0]


def test_a_run_without_evaluations(tmp_path):
    page = Page(make_run(tmp_path / "run", metrics(20, evaluate_every=0)))
    assert "the policy was never evaluated" in page.text
    assert "best evaluated return" not in page.text
    assert "Evaluations" not in page.texts
    assert [trace["name"] for trace in page.charts[0]["data"]] == ["training"]


def test_an_interrupted_run_shows_its_progress(tmp_path):
    folder = make_run(tmp_path / "run", metrics(12))
    with folder.metrics_file.open("a") as file:
        file.write('{"epoch": 13, "total_st')
    page = Page(folder)
    assert "12 of 20 epochs so far" in page.text
    assert "has not reached its end" in page.text


def test_non_finite_values_leave_a_gap(tmp_path):
    rows = metrics(20)
    rows[7]["return_mean"] = rows[7]["policy_loss"] = None
    rows[14]["eval/ci_low"] = None
    page = Page(make_run(tmp_path / "run", rows))
    training, band, evaluated = (trace["y"] for trace in page.charts[0]["data"])
    assert training[7] is None
    assert training[6] is not None
    assert len(evaluated) == 4
    assert len(band) == 2 * 3


def test_all_nulls_and_missing_keys_are_left_out(tmp_path):
    rows = [{"epoch": 1, "total_steps": 2048, "entropy": None, "return_mean": None}]
    page = Page(make_run(tmp_path / "run", rows))
    assert "No episode has ended yet" in page.text
    assert "Entropy" not in page.text
    assert not page.charts


@pytest.mark.parametrize("keep_file", [True, False])
def test_a_run_without_metrics(tmp_path, keep_file):
    folder = make_run(tmp_path / "run", [])
    if not keep_file:
        folder.metrics_file.unlink()
        (folder.path / "versions.json").unlink()
    page = Page(folder)
    assert "No epoch has been finished yet" in page.text
    assert "0 of 20 epochs so far" in page.text
    assert "num_envs" in page.text


def test_unknown_metrics_are_drawn_with_their_unit(tmp_path):
    rows = metrics(20)
    for row in rows:
        row |= {"avg_wait_minutes": 9 - 0.1 * row["epoch"], "temperature": 1 / row["epoch"]}
    rows[9]["eval/wait_minutes"] = 7.5
    page = Page(make_run(tmp_path / "run", rows))
    charts = {chart["layout"]["yaxis"]["title"]["text"]: chart for chart in page.charts}
    assert "Average wait" in page.text
    assert "Temperature" in page.text
    assert [trace["name"] for trace in charts["min"]["data"]] == ["training", "evaluated"]
    assert charts["min"]["data"][1]["y"] == [7.5]


def test_a_long_run_is_thinned_and_keeps_its_best_row(tmp_path):
    rows = metrics(5_000, evaluate_every=5)
    rows[6]["eval/return_mean"] = 999.5
    page = Page(make_run(tmp_path / "run", rows, epochs=5_000, best=7))
    assert max(len(trace["y"]) for chart in page.charts for trace in chart["data"]) <= 2_000
    assert page.count("tr") < 300
    assert "Curves show one epoch in 5" in page.text
    assert "rows are left out for length" in page.text
    assert page.texts.count("999.5") == 2  # the card and the table


def test_names_from_a_run_cannot_inject_markup(tmp_path):
    evil = "<script>alert(1)</script>"
    rows = metrics(20)
    for row in rows:
        row |= {f"avg_{evil}": row["epoch"], f"time/</script>{evil}": 0.01, "<b>x</b>": row["epoch"]}
        row[f"eval/{evil}"] = 1.0
    rows[0]['"><img src=x onerror=alert(1)>'] = 1.0
    folder = make_run(tmp_path / "a<b>&c", rows, env=f'{evil}"><img src=x>')
    (folder.path / "versions.json").write_text(json.dumps({evil: evil}))
    page = Page(folder)
    assert evil in page.text
    assert page.count("img") == page.count("b") == 0
    assert len(page.scripts) == 2
    assert not any("alert(1)" in script for script in page.scripts)
    names = [trace.get("name", "") for chart in page.charts for trace in chart["data"]]
    assert not any("<" in name for name in names)  # plotly interprets markup in names


def test_the_page_loads_nothing_from_the_network(tmp_path):
    page = Page(make_run(tmp_path / "run", metrics(20)))
    addresses = [
        value
        for _, attrs in page.tags
        for name, value in attrs.items()
        if name in ("src", "href", "srcset", "data", "action", "poster")
    ]
    assert addresses
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert page.scripts.count(get_plotlyjs().strip()) == 1
    (policy,) = [a["content"] for _, a in page.tags if "http-equiv" in a]
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_an_env_adds_its_own_sections(tmp_path, monkeypatch):
    seen = []

    def figures(folder):
        seen.append(folder.path)
        figure = go.Figure(go.Heatmap(z=[[0.1, 0.9]]), layout={"title": "Accepted <offers>"})
        table = Table(columns=["policy", "improvement (%)"], rows=[["ours", 6.25], ["random", None]])
        return [Section("Offers", "Share accepted.", [figure, table])]

    monkeypatch.setitem(sys.modules, "stand_in_figures", SimpleNamespace(draw=figures))
    monkeypatch.setitem(ENV_FIGURES, "stand-in", "stand_in_figures:draw")
    folder = make_run(tmp_path / "run", metrics(20), env="stand-in")
    page = Page(folder)
    assert seen == [folder.path]
    for words in ("Offers", "Share accepted.", "Accepted <offers>", "improvement (%)", "6.25"):
        assert words in page.texts
    own = page.charts[0]
    assert own["data"][0]["type"] == "heatmap"
    assert "template" not in own["layout"]
    assert "Offers" not in Page(make_run(tmp_path / "other", metrics(20))).texts


def test_failing_env_sections_do_not_lose_the_rest(tmp_path, monkeypatch):
    monkeypatch.setitem(ENV_FIGURES, "stand-in", "no_such_module:draw")
    folder = make_run(tmp_path / "run", metrics(20), env="stand-in")
    with pytest.warns(UserWarning, match="figures of stand-in could not be drawn"):
        page = Page(folder)
    assert "No module named 'no_such_module'" in page.text
    assert "Policy loss" in page.text


def test_a_folder_that_is_not_a_run_raises(tmp_path):
    with pytest.raises(CheckpointError, match="not a run folder: there is no such folder"):
        write_report(RunFolder(tmp_path / "nothing"))
    with pytest.raises(CheckpointError, match=r"no settings\.toml"):
        write_report(RunFolder(tmp_path))
    (tmp_path / "settings.toml").write_text("seed = 1\n")
    with pytest.raises(CheckpointError, match="names no env"):
        write_report(RunFolder(tmp_path))


def test_a_report_is_rewritten_without_leftovers(tmp_path):
    folder = make_run(tmp_path / "run", metrics(3))
    first = write_report(folder).read_text("utf-8")
    assert write_report(folder).read_text("utf-8") == first
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "checkpoints",
        "metrics.jsonl",
        "report.html",
        "settings.toml",
        "versions.json",
    ]


def test_a_full_disk_raises_checkpoint_error(tmp_path, monkeypatch):
    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page_module, "write_atomically", full)
    with pytest.raises(CheckpointError, match=r"report\.html: No space left"):
        write_report(make_run(tmp_path / "run", metrics(3)))
