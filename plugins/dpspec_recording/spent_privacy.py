"""The certified epsilon of the recorded steps, inside the training."""

import math
from collections import Counter

from dpspec.accounting import PrivacyLoss
from dpspec_recording.folder.events import PublicStep


class SpentPrivacy:
    """Counts steps by noise multiplier and Poisson rate. Adding a step is a dictionary access."""

    def __init__(self, *, bounded: bool) -> None:
        """bounded: whether the batches are Poisson samples of one process, and no earlier part made steps."""
        self.bounded = bounded
        self._counts: Counter[tuple[float, float]] = Counter()
        self._budget: tuple[float, float, tuple[float, float]] | None = None
        self._affordable, self._further = 0, 1
        self.last: dict[str, float] = {"steps": 0}

    def add(self, step: PublicStep) -> None:
        """Count a step."""
        noise = step.noise_multiplier if step.noise_squares > 0.0 else 0.0
        self._counts[noise, step.rate] += 1
        if self._budget is not None:
            self._affordable -= 1
            if (noise, step.rate) != self._budget[2]:
                self._budget = None
        self.last = {"steps": step.step, "rate": step.rate, "noise_multiplier": step.noise_multiplier}

    def epsilon(self, delta: float) -> float:
        """The upper end for one record at ``delta``; infinite if a step has no noise or an unknown rate."""
        return self._epsilon(self._counts, delta)

    def affords(self, limit: float, delta: float, schedule: tuple[float, float]) -> bool:
        """Whether one more step of ``schedule``, a noise multiplier and a rate, keeps epsilon at or below ``limit``.

        The number of affordable steps of one schedule is found by doubling and halving, so that most calls compute
        nothing: an evaluation at each of thousands of steps would take longer than the training.
        """
        if self._budget != (limit, delta, schedule):
            self._budget, self._affordable, self._further = (limit, delta, schedule), 0, 1
        if self._affordable > 0:
            return True
        self._further = max(1, self._further)
        while self._further and self._epsilon(self._counts + Counter({schedule: self._further}), delta) > limit:
            self._further //= 2
        self._affordable, self._further = self._further, 2 * self._further
        return self._affordable > 0

    def _epsilon(self, counts: Counter[tuple[float, float]], delta: float) -> float:
        if not counts:
            return 0.0
        usable = all(0.0 < noise < math.inf and 0.0 < rate <= 1.0 for noise, rate in counts)
        if not (self.bounded and usable):
            return math.inf
        return PrivacyLoss.of_steps((*schedule, count) for schedule, count in counts.items()).epsilon(delta).upper
