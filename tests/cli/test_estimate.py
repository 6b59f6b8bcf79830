"""`hundredfold plan`, called as a user calls it."""

from __future__ import annotations

import json

from hundredfold.cli.main import main
from hundredfold.training import estimate as planning


def rows_of(said):
    return {row["what"]: row for row in json.loads(said.out)["rows"]}


def test_the_question_of_the_scripts_is_answered_before_anything_runs(capsys):
    words = ["--num-envs", "256", "--episodes", "1000", "--device", "cuda"]
    assert main(["estimate", "dvrp", *words, "--no-measure", "--json"]) == 0
    said = capsys.readouterr()
    assert "1000 episodes at 256 envs are 4 epochs; use --episodes 25600 for 100" in said.err
    rows = rows_of(said)
    assert rows["epochs"]["value"] == 4
    assert rows["samples per epoch"]["value"] == 7_680
    assert rows["memory: oracle routes"]["value"] > 0
    assert rows["largest num_envs"]["value"] > 256
    assert rows["recommended: --episodes"]["value"] == 25_600


def test_a_time_on_a_device_that_is_not_here_is_called_modelled(capsys, monkeypatch):
    monkeypatch.setattr(planning.torch.cuda, "is_available", lambda: False)
    assert main(["estimate", "corridor", "--epochs", "3", "--device", "cuda", "--json"]) == 0
    said = capsys.readouterr()
    assert "no CUDA device was found" in said.err
    rows = rows_of(said)
    assert "modelled" in rows["seconds per epoch: update"]["reason"]
    assert "measured" in rows["seconds per epoch: collect"]["reason"]
    assert rows["time"]["value"] > 0


def test_advice_is_written_to_a_file_that_train_reads(capsys, tmp_path):
    file = tmp_path / "advised.toml"
    words = ["--preset", "meta-train-64", "--num-envs", "256", "--episodes", "1000", "--no-measure"]
    assert main(["estimate", "dvrp", *words, "--write-config", str(file)]) == 0
    capsys.readouterr()
    assert main(["estimate", "dvrp", "--config", str(file), "--no-measure", "--json"]) == 0
    said = capsys.readouterr()
    assert rows_of(said)["epochs"]["value"] == 100
    assert "warning" not in said.err


def test_auto_says_how_many_envs_it_took_and_why(capsys):
    words = ["--num-envs", "auto", "--steps", "6400", "--no-measure", "--json"]
    assert main(["estimate", "corridor", *words]) == 0
    said = capsys.readouterr()
    assert "--num-envs auto: 4 (50 epochs of the run's length" in said.err
    assert rows_of(said)["samples per epoch"]["value"] == 4 * 32
