"""Whose fault it was that a worker is lost, and what to say about it."""

from __future__ import annotations

from typing import NoReturn

from hundredfold.backends.reports import ErrorReport
from hundredfold.backends.worker_process import MAIN_GUARD, WorkerProcess
from hundredfold.core.batch import IntArray
from hundredfold.core.errors import EnvError, HundredfoldError, WorkerError


class HungError(EnvError):
    """An env did not return in time, and its worker was ended."""


def blame(
    worker: WorkerProcess,
    how: str,
    report: ErrorReport | None,
    hanging: IntArray | None,
    inside: IntArray,
) -> tuple[int | None, HundredfoldError]:
    """The env that is at fault, or None for the worker, and the error that tells of it.

    `hanging`: envs whose time was up, none if the worker as a whole said nothing, None if it ended
    by itself. `inside`: envs that were at work at that moment.
    """
    if report is not None:
        error = WorkerError(f"{worker} could not take its place: {report}")
        error.__cause__ = report.cause
        return None, error
    if hanging is not None and not len(hanging):
        return None, WorkerError(
            f"{worker} gave no sign of life for {worker.patience:g} seconds, as if it were "
            "stopped, and was ended. Allow more with step_timeout or start_timeout."
        )
    if hanging is not None and worker.is_foreign:
        env_id = int(hanging[0])
        return env_id, HungError(
            f"env {env_id} hung: it did not return from step() or reset() within "
            f"{worker.step_timeout:g} seconds, and {worker} was ended. Mend the env, or allow "
            "more with step_timeout."
        )
    if hanging is not None:
        return None, WorkerError(
            f"{worker} did not return from a step within {worker.step_timeout:g} seconds and was "
            "ended. Allow more with step_timeout."
        )
    if worker.is_foreign and len(inside) == 1:
        env_id = int(inside[0])
        return env_id, EnvError(
            f"{worker} is gone while env {env_id} was in step() or reset(): {how}."
        )
    return None, WorkerError(f"{worker} is gone: {how}.")


def refuse_start(worker: WorkerProcess, how: str) -> NoReturn:
    """A worker is gone before it had made its envs: say so.

    Only one that ended by itself is a `WorkerError`, after which the envs may be tried in this
    process. What a signal ended, or what never came to an end, would do the same here.
    """
    if worker.ended_by_itself:
        raise WorkerError(f"{worker} did not start: {how}. {MAIN_GUARD}")
    raise EnvError(
        f"{worker} did not come to the end of making its envs: {how}. They are not tried in this "
        "process, which they might take along. Mend the env; if it is the start method that it "
        "does not bear, try another one, or ask for --backend in_process."
    )
