"""What an auditor keeps of a run: statistics of its updates, logs, scores and accuracy."""
