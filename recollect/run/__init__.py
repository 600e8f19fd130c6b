"""What surrounds training: folder, metrics, checkpoints, evaluation, progress, devices."""
