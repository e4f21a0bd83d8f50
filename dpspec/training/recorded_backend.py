"""The backend ``recorded``: a training that was made elsewhere, and is judged by what was recorded of it."""

from __future__ import annotations

from dpspec.contract import TrainingJob


class RecordedTrainer:
    """Trains nothing: what ran is in the folder that ``training.run`` names."""

    def train(self, job: TrainingJob) -> None:
        """Raises ``TypeError``: a recorded training cannot be made again."""
        raise TypeError("a recorded training is judged as it ran, and cannot be made again")
