"""Synthetic run folders, to test reports without training."""

from __future__ import annotations

import json
import math
from pathlib import Path

from hundredfold.core.files import write_atomically
from hundredfold.training.run_folder import RunFolder

SETTINGS = """\
env = {env}
seed = 7

[length]
epochs = {epochs}

[rollout]
num_envs = 64
num_steps = 32

[network]
hidden_sizes = [64, 64]
shared = false

[env_settings]
name = "a < b & c"

[env_settings.inner]
depth = 2
"""


def make_run(
    path: Path, rows: list[dict], *, env: str = "cartpole", epochs: int = 20, best: int | None = None
) -> RunFolder:
    """A run folder with these metrics; `best` marks an epoch as the best checkpoint."""
    folder = RunFolder(path)
    folder.checkpoints.mkdir(parents=True)
    settings = SETTINGS.format(env=json.dumps(env), epochs=epochs)
    folder.settings_file.write_text(settings)
    (path / "versions.json").write_text('{"python": "3.11.7", "torch": "2.13.0+cpu"}')
    folder.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if best is not None:
        score = rows[best - 1]["eval/return_mean"]
        write_atomically(folder.best_file, json.dumps({"epoch": best, "score": score}))
    return folder


def metrics(epochs: int, *, evaluate_every: int = 5, steps: int = 2048) -> list[dict]:
    """Metrics of a successful run, with all keys of a real one."""
    return [
        {
            "epoch": epoch,
            "total_steps": epoch * steps,
            "total_episodes": epoch * 40,
            **_training_metrics(1 - math.exp(-epoch / 12)),
            **_evaluation_metrics(epoch, evaluate_every),
            "samples_per_second": 40_000.0,
            "wall_seconds": 0.05 * epoch,
            "time/collect": 0.02,
            "time/update": 0.025,
            "time/evaluate": 0.005,
        }
        for epoch in range(1, epochs + 1)
    ]


def _training_metrics(progress: float) -> dict[str, float]:
    return {
        "return_mean": 20 + 400 * progress,
        "avg_episode_steps": 20 + 400 * progress,
        "policy_loss": -0.01 * (1 - progress),
        "entropy": 0.69 - 0.1 * progress,
        "approx_kl": 0.003,
        "clip_fraction": 0.02,
        "value_loss": 2 * (1 - progress),
        "explained_variance": progress,
        "skipped_gradients": 0.0,
    }


def _evaluation_metrics(epoch: int, evaluate_every: int) -> dict[str, float]:
    if not evaluate_every or epoch % evaluate_every:
        return {}
    mean = 25 + 20 * min(epoch, 20)
    return {
        "eval/episodes": 32.0,
        "eval/stderr": 4.0,
        "eval/ci_low": mean - 8.0,
        "eval/ci_high": mean + 8.0,
        "eval/min": mean - 60.0,
        "eval/max": mean + 60.0,
        "eval/episode_steps": float(mean),
        "eval/return_mean": float(mean),
    }
