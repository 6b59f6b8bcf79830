"""Training speed by number of threads."""

import json
from dataclasses import replace

import torch

from benchmarks import train
from benchmarks.__main__ import run
from hundredfold.rollout.rollout_buffer import RolloutSettings


def test_one_thread_is_compared_with_one_per_core_on_cage2(monkeypatch, capsys):
    small = replace(train.preset_settings("cage2"), rollout=RolloutSettings(num_envs=4, num_steps=8))
    numbers = []
    monkeypatch.setattr(train, "preset_settings", lambda env: small)
    monkeypatch.setattr(train.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    assert run(["train", "cage2", "--repeats", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["threads"] for row in rows] == [1, 2]
    assert rows[0]["ratio_to_one_thread"] == 1.0
    assert rows[1]["ratio_to_one_thread"] == rows[1]["steps_per_second"] / rows[0]["steps_per_second"]
    assert numbers[-6:] == [1, 2] * 3  # one warm-up and two repeats of each
