"""The stages of a run: bounds, trials (options, tasks, the queue over workers, early stopping), conclusions, result."""
