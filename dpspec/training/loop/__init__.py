"""The DP-SGD loop and its parts: batches, noise, optimizers, schedules, checkpoints."""
