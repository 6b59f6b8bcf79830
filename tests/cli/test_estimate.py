"""`hundredfold estimate`: printed estimates, warnings and recommended settings."""

from __future__ import annotations

import json

from hundredfold.cli.estimate import shown_row
from hundredfold.cli.main import main
from hundredfold.training import estimate as estimate_module


def rows_of(captured):
    return {row["what"]: row for row in json.loads(captured.out)["rows"]}


def test_estimate_prints_epochs_memory_and_recommendations_without_training(capsys):
    flags = ["--num-envs", "256", "--episodes", "1000", "--device", "cuda"]
    assert main(["estimate", "dvrp", *flags, "--no-measure", "--json"]) == 0
    captured = capsys.readouterr()
    assert "1000 episodes at 256 envs are 4 epochs, too few to learn from; use --episodes 10240 for 40" in captured.err
    rows = rows_of(captured)
    assert rows["epochs"]["value"] == 4
    assert rows["samples per epoch"]["value"] == 7_680
    assert rows["memory: oracle routes"]["value"] > 0
    assert rows["largest num_envs"]["value"] > 256
    assert rows["recommended: --episodes"]["value"] == 10_240


def test_estimates_are_shown_with_their_units_and_without_false_digits():
    shown = shown_row({"what": "memory: total", "value": 20.6, "unit": "MB", "reason": "", "bytes": 20_601_234})
    assert shown["value"] == "20.6 MB"
    assert shown_row({"what": "time", "value": 237.6, "unit": "s", "reason": ""})["value"] == "3 min 58 s"
    assert shown_row({"what": "largest num_envs", "value": 31_147, "unit": "", "reason": ""})["value"] == "31,000"
    change = {"what": "recommended: --gamma", "value": 0.9, "unit": "instead of 0.99", "reason": "short episodes"}
    assert shown_row(change) == {
        "what": "recommended: --gamma",
        "value": "0.9",
        "reason": "instead of 0.99: short episodes",
    }


def test_the_time_on_a_missing_device_is_marked_as_modelled(capsys, monkeypatch):
    monkeypatch.setattr(estimate_module.torch.cuda, "is_available", lambda: False)
    assert main(["estimate", "corridor", "--epochs", "3", "--device", "cuda", "--json"]) == 0
    captured = capsys.readouterr()
    assert "no CUDA device was found" in captured.err
    rows = rows_of(captured)
    assert "modelled" in rows["time per epoch: update"]["reason"]
    assert "measured" in rows["time per epoch: collect"]["reason"]
    assert rows["time"]["value"] > 0


def test_recommended_settings_are_written_to_a_file_that_train_reads(capsys, tmp_path):
    file = tmp_path / "recommended.toml"
    flags = ["--preset", "meta-train-64", "--num-envs", "256", "--episodes", "1000", "--no-measure"]
    assert main(["estimate", "dvrp", *flags, "--write-config", str(file)]) == 0
    capsys.readouterr()
    assert main(["estimate", "dvrp", "--config", str(file), "--no-measure", "--json"]) == 0
    captured = capsys.readouterr()
    assert rows_of(captured)["epochs"]["value"] == 100
    assert "warning" not in captured.err


def test_num_envs_auto_prints_the_number_and_the_reason(capsys):
    flags = ["--num-envs", "auto", "--steps", "6400", "--no-measure", "--json"]
    assert main(["estimate", "corridor", *flags]) == 0
    captured = capsys.readouterr()
    assert "--num-envs auto: 4 (50 epochs of the run's length" in captured.err
    assert rows_of(captured)["samples per epoch"]["value"] == 4 * 32
