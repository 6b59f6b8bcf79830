"""How DQN learns: numbers that may be changed, and what they must keep to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hundredfold.core.batch import WorldSpec
from hundredfold.core.errors import SettingsError
from hundredfold.experience.replay import row_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DQNSettings:
    """How DQN learns from its replay."""

    learning_rate: float = 2.3e-3
    """Step size of Adam."""
    gamma: float = 0.99
    """Discount per step."""
    batch_size: int = 64
    """Samples per gradient step."""
    train_frequency: int = 256
    """Samples between two bouts of learning; all envs together."""
    gradient_steps: int = 128
    """Gradient steps per bout; divided by train_frequency: gradient steps per sample."""
    learning_starts: int = 1_000
    """Samples that are gathered before the first bout."""
    replay_size: int = 100_000
    """Samples to keep."""
    replay_memory_gb: float = 0.0
    """Keep fewer samples if they would take more than this many GB of memory; 0: no limit."""
    save_replay: bool = True
    """Write the replay into checkpoints; without it a resumed run gathers a new one first."""
    return_steps: int = 3
    """Rewards that are summed up before the network's own estimate takes over."""
    double_q: bool = True
    """Let one network choose the next action and the other value it (van Hasselt et al. 2016)."""
    dueling: bool = False
    """Value the situation and the actions' differences apart (Wang et al. 2016)."""
    target_interval: int = 128
    """Gradient steps between two moves of the target network."""
    target_rate: float = 1.0
    """How far the target network moves towards the learning one (1: all the way)."""
    loss: Literal["huber", "mse"] = "huber"
    """Huber grows linearly for errors beyond 1, mse with their square."""
    max_gradient_norm: float = 10.0
    """Gradients longer than this are shortened to it."""
    exploration_start: float = 1.0
    """Share of random actions at the start."""
    exploration_end: float = 0.04
    """Share of random actions once it has fallen."""
    exploration_fraction: float = 0.16
    """Share of the run over which it falls."""
    exploration_spread: float = 0.0
    """Let env i of n explore with epsilon ** (1 + spread * i/(n-1)); 7 with exploration_end 0.4 is
    the spread of Ape-X; 0: all alike."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_gradient_norm", "target_rate"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"{name} must be above 0, got {getattr(self, name)}.")
        for name in ("replay_memory_gb", "exploration_spread", "learning_starts"):
            if not getattr(self, name) >= 0:
                raise SettingsError(f"{name} must not be negative, got {getattr(self, name)}.")
        for name in (
            "gamma", "target_rate", "exploration_start", "exploration_end", "exploration_fraction",
        ):  # fmt: skip
            if not 0 <= getattr(self, name) <= 1:
                raise SettingsError(f"{name} must lie in 0..1, got {getattr(self, name)}.")
        for name in (
            "batch_size", "train_frequency", "gradient_steps", "replay_size", "return_steps",
            "target_interval",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1, got {getattr(self, name)}.")

    def rows_per_env(self, spec: WorldSpec, num_envs: int) -> int:
        """Rows of each env's ring; refuses a replay that holds too little to learn from."""
        size = self.replay_size
        if self.replay_memory_gb:
            size = min(size, int(self.replay_memory_gb * 1e9) // row_bytes(spec))
        # One row more than it may look back on: what was seen last.
        rows = -(-size // num_envs) + 1
        least = max(self.learning_starts, num_envs * (self.return_steps + 1), self.batch_size)
        if size < least:
            limit = f" (of {self.replay_memory_gb:g} GB)" if size < self.replay_size else ""
            raise SettingsError(
                f"a replay of {size} samples{limit} is too small for {num_envs} envs, "
                f"return_steps {self.return_steps}, learning_starts {self.learning_starts} and "
                f"batch_size {self.batch_size}; it needs room for at least {least}."
            )
        return rows
