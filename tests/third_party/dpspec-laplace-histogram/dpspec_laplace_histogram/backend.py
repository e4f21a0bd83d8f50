"""Who releases: the pipeline under audit. A team puts its own code here and changes nothing else.

A backend has one method, ``train(job)``. This one is asked for a histogram, not for a model: ``job.model`` is what
holds the counts, ``job.y`` the classes of the records, ``job.phases`` the declared scale, and observers are shown what
is released, as numpy arrays. None of it needs torch.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import dpspec.contract as dps


@dataclass
class Histogram:
    """What is released: one count for each class."""

    classes: int
    counts: np.ndarray[Any, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = np.zeros(self.classes)


class Releases:
    """Counts the classes and adds Laplace noise of the declared scale to every count."""

    def train(self, job: dps.TrainingJob) -> None:
        """Fill ``job.model`` and show the release to the observers, as step 1."""
        if job.canaries is not None:
            raise ValueError("a histogram has no gradients to plant canaries in")
        if job.cancelled is not None and job.cancelled():
            raise dps.Cancelled
        histogram: Any = job.model
        scale = self.scale(float(job.phases[0]["scale"]))
        noise = np.random.default_rng(job.seed).laplace(scale=scale, size=histogram.classes)
        histogram.counts = np.bincount(job.y, minlength=histogram.classes) + noise
        for observer in job.observers:
            observer.released(1, histogram.counts)

    def scale(self, declared: float) -> float:
        """The scale that is used."""
        return declared


class CarelessReleases(Releases):
    """Takes the sensitivity of a histogram for 1, whatever the neighbours are."""

    def scale(self, declared: float) -> float:
        """Half of what a replaced record needs."""
        return declared / 2.0
