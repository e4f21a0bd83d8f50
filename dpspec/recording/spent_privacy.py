"""The certified epsilon of the recorded steps, inside the training."""

import math
from collections import Counter

from dpspec.accounting import Mixture, PrivacyLoss
from dpspec.recording.folder.step_record import PublicStep


class SpentPrivacy:
    """Counts steps by noise multiplier and Poisson rate. Adding a step is a dictionary access."""

    def __init__(self, *, bounded: bool) -> None:
        """bounded: whether the batches are Poisson samples of one process, and no earlier part made steps."""
        self._bounded = bounded
        self._counts: Counter[tuple[float, float]] = Counter()
        self.last: dict[str, float] = {"steps": 0}

    def add(self, step: PublicStep) -> None:
        """Count a step."""
        noise = step.noise_multiplier if step.noise_squares > 0.0 else 0.0
        self._counts[noise, step.rate] += 1
        self.last = {"steps": step.step, "rate": step.rate, "noise_multiplier": step.noise_multiplier}

    def epsilon(self, delta: float) -> float:
        """The upper end for one record at ``delta``; infinite if a step has no noise or an unknown rate."""
        if not self._counts:
            return 0.0
        usable = all(0.0 < noise < math.inf and 0.0 < rate <= 1.0 for noise, rate in self._counts)
        if not (self._bounded and usable):
            return math.inf
        mixture_counts = tuple(
            (Mixture.poisson(1, rate, noise), count) for (noise, rate), count in self._counts.items()
        )
        return PrivacyLoss(mixture_counts).epsilon(delta).upper
