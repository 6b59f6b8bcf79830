"""The training loop: collect, update, broadcast the belief model, evaluate, record, save."""

from __future__ import annotations

import torch

from hundredfold.core.errors import EnvError, TrainingError
from hundredfold.training.process_setup import Interrupted, Interruptible
from hundredfold.training.run import Run


def train(run: Run) -> bool:
    """Train a run to its end.

    Returns:
        False when the user stopped it (Ctrl-C or SIGTERM); the last complete epoch is saved.
    """
    learner, collector = run.components.learner, run.components.collector
    num_steps = run.settings.rollout.num_steps
    with Interruptible() as signals:
        try:
            while not run.finished:
                signals.check()
                with run.timed("collect"):
                    episodes = collector.collect(
                        learner.policy, learner.buffer, num_steps, run.progress_callback(signals), run.step_callbacks
                    )
                run.split_collect_time()
                with run.timed("update"):
                    losses = learner.update()
                with run.timed("belief_model"):
                    belief_metrics = run.update_belief_model()
                with run.timed("evaluate"):
                    evaluation = run.evaluate_if_due(signals)
                run.end_epoch(episodes, {**losses, **belief_metrics, **evaluation})
        except Interrupted:
            run.save_last_complete()
            return False
        except KeyboardInterrupt as error:
            if signals.requested:
                raise
            run.save_last_complete()
            raise EnvError(
                "an env raised KeyboardInterrupt without a signal. With --backend processes such an env is restarted."
            ) from error
        except torch.OutOfMemoryError as error:
            run.save_last_complete()
            raise TrainingError(
                "the device ran out of memory; try fewer samples at a time (--num-steps, "
                "--num-envs, --batch-size) or --device cpu. The last complete epoch is saved: "
                f"continue with --resume {run.folder.path} --device cpu."
            ) from error
        except Exception:
            # The epochs before the error are worth keeping.
            run.save_last_complete()
            raise
    return True
