"""Training runs: loop, run folder, checkpoints, metrics, evaluation, export."""
