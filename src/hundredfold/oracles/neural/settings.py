"""How the neural oracle works."""

from __future__ import annotations

from dataclasses import dataclass

from hundredfold.core.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuralSettings:
    """One batched forward pass, and what happens to its routes afterwards."""

    weights: str | None = None
    """Weights file of `hundredfold train-oracle`; by default the one that comes along."""
    oracle_samples: int = 1
    """Plans per book, the first greedy and the others drawn; the cheapest is kept."""
    improve_passes: int = 2
    """Relocate passes over every plan."""
    oracle_batch: int = 128
    """Books per batched call; more are split, and halved again when memory runs out."""
    temperature: float = 1.0
    """How boldly plans beyond the first are drawn."""
    device: str = "cpu"
    """Where to compute: cpu, cuda or cuda:1."""
    threads: int = 1
    """Threads over books while decoding and improving; prices do not depend on it."""
    batched_decode: bool = False
    """Decode on a CPU by the loop that GPUs use; the routes are the same."""

    def __post_init__(self) -> None:
        if min(self.oracle_samples, self.oracle_batch, self.threads) < 1:
            raise SettingsError(
                "the neural oracle needs oracle_samples, oracle_batch and threads of at least 1; "
                f"got {self.oracle_samples}, {self.oracle_batch} and {self.threads}."
            )
        if self.improve_passes < 0 or self.temperature <= 0.0:
            raise SettingsError(
                "the neural oracle needs improve_passes >= 0 and temperature > 0; "
                f"got {self.improve_passes} and {self.temperature}."
            )
