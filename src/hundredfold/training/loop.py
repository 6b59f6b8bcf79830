"""The training loop: collect, update, share what was learned, judge, record, save."""

from __future__ import annotations

import torch

from hundredfold.core.errors import TrainingError
from hundredfold.training.process_setup import Interrupted, Interruptible
from hundredfold.training.run import Run


def train(run: Run) -> bool:
    """Train to the end; False when the user stopped it, in which case everything is saved."""
    learner, collector = run.components.learner, run.components.collector
    num_steps = run.settings.rollout.num_steps
    with Interruptible() as signals:
        try:
            while not run.finished:
                signals.check()
                with run.timed("collect"):
                    episodes = collector.collect(
                        learner.policy,
                        learner.buffer,
                        num_steps,
                        run.progress_callback(signals),
                        run.step_callbacks,
                    )
                run.split_collect_time()
                with run.timed("update"):
                    losses = learner.update()
                with run.timed("belief_model"):
                    learned = run.update_belief_model()
                with run.timed("evaluate"):
                    judged = run.evaluate_if_due(signals)
                run.record(episodes, {**losses, **learned, **judged})
                run.save_if_due()
        except Interrupted:
            run.save_last_complete()
            return False
        except torch.OutOfMemoryError as error:
            run.save_last_complete()
            raise TrainingError(
                "the device ran out of memory; try fewer samples at a time (--num-steps, "
                "--num-envs, --batch-size) or --device cpu. What was learned is saved: "
                f"--resume {run.folder.path} --device cpu goes on from there."
            ) from error
        except Exception:
            # Whatever went wrong in this epoch, the ones before it are worth keeping.
            run.save_last_complete()
            raise
    return True
