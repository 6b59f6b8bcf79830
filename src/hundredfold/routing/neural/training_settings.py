"""How a routing policy is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hundredfold.core.errors import SettingsError

Baseline = Literal["shared", "greedy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """Imitation first, then practice; every update sees fresh books."""

    seed: int = 0
    """Books, first weights and samples follow from this number."""
    imitation_updates: int = 800
    """Updates that imitate searched plans."""
    practice_updates: int = 1000
    """Updates that learn from the prices of the policy's own plans."""
    imitation_books: int = 64
    """Books per update of imitation, all of one size."""
    practice_books: int = 16
    """Books per update of practice, all of one size."""
    practice_samples: int = 16
    """Plans sampled for each book of practice."""
    baseline: Baseline = "shared"
    """What a sampled plan is compared with: the mean of its siblings, or the greedy plan."""
    teacher_rounds: int = 100
    """Rounds of large neighbourhood search behind a plan to imitate."""
    learning_rate: float = 8e-4
    """Peak of imitation; it rises over the first updates and falls along half a cosine."""
    practice_learning_rate: float = 1e-4
    """Peak of practice, likewise."""
    finished_share: float = 0.3
    """Weight, in practice, of a plan's price after two relocate passes; the rest is before."""
    max_gradient: float = 1.0
    """Norm to which a gradient is cut."""
    validate_every: int = 100
    """Updates between two looks at held-out books; checkpoints are written then."""
    validation_books: int = 100
    """Held-out books of each size that is looked at."""

    def __post_init__(self) -> None:
        counts = (self.imitation_books, self.practice_books, self.teacher_rounds)
        if min(*counts, self.validate_every, self.validation_books) < 1:
            raise SettingsError(
                "imitation_books, practice_books, teacher_rounds, validate_every and "
                f"validation_books must be at least 1; got {self}."
            )
        if min(self.imitation_updates, self.practice_updates) < 0:
            raise SettingsError(f"numbers of updates cannot be negative; got {self}.")
        if self.practice_samples < 2:
            raise SettingsError(
                f"practice compares plans of one book; practice_samples must be at least 2, "
                f"got {self.practice_samples}."
            )
        if not 0.0 <= self.finished_share <= 1.0:
            raise SettingsError(f"finished_share must lie in 0..1, got {self.finished_share}.")
        if min(self.learning_rate, self.practice_learning_rate, self.max_gradient) <= 0.0:
            raise SettingsError(f"learning rates and max_gradient must be above 0; got {self}.")

    @property
    def num_updates(self) -> int:
        """Updates of both kinds."""
        return self.imitation_updates + self.practice_updates
