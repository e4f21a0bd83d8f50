"""The DP-SGD loop: batches, noise, optimizers, schedules, checkpoints."""
