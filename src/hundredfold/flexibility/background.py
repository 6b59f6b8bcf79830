"""A refit beside everything else, on copies, so that nobody sees it half done."""

from __future__ import annotations

import threading

from hundredfold.core.errors import TrainingError
from hundredfold.flexibility.answers import AnswerRows
from hundredfold.flexibility.model import FlexibilityModel


class BackgroundRefit:
    """Teaches a model these answers in a thread; both must be the thread's own until `result`."""

    def __init__(self, model: FlexibilityModel, answers: AnswerRows) -> None:
        self.model, self.answers = model, answers
        self.report: dict[str, float] = {}
        self.error: BaseException | None = None
        self.cancelled = threading.Event()
        self.thread = threading.Thread(target=self._run, name="companion-refit", daemon=True)
        self.thread.start()

    def result(self) -> tuple[FlexibilityModel, dict[str, float]]:
        """Wait for the model and what it reports; an error of the thread comes home here."""
        self.thread.join()
        if self.error is not None:
            raise TrainingError(
                f"the companion's background refit of {len(self.answers)} answers stopped with "
                f"{type(self.error).__name__}: {self.error}"
            ) from self.error
        return self.model, self.report

    def cancel(self) -> None:
        """End it at the next chance and forget it."""
        self.cancelled.set()
        self.thread.join()

    def _run(self) -> None:
        try:
            self.report = self.model.refit(self.answers, self.cancelled.is_set)
        except BaseException as error:
            self.error = error
