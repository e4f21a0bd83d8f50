"""Who releases: the pipeline under audit. A team puts its own code here and changes nothing else.

A backend has one method, ``train(job)``. This one is asked for a histogram, not for a model: ``job.model`` is what
holds the counts, ``job.y`` the classes of the records, ``job.phases`` the declared scale, and observers are shown what
is released, as numpy arrays. None of it needs torch.
"""

from typing import Any

import numpy as np

import dpspec.contract as dps


class Histogram:
    """What is released: one count for each class."""

    def __init__(self, classes: int) -> None:
        self.classes, self.counts = classes, np.zeros(classes)


class Releases:
    """Counts the classes and adds Laplace noise of the declared scale to every count."""

    #: The scale that is used, in units of the declared one.
    factor = 1.0

    def train(self, job: dps.TrainingJob) -> None:
        """Fill ``job.model`` and show the release to the observers, as step 1."""
        if job.canaries is not None:
            raise ValueError("a histogram has no gradients to plant canaries in")
        if job.cancelled is not None and job.cancelled():
            raise dps.Cancelled
        histogram: Any = job.model
        scale = self.factor * float(job.phases[0]["scale"])
        noise = np.random.default_rng(job.seed).laplace(scale=scale, size=histogram.classes)
        histogram.counts = np.bincount(job.y, minlength=histogram.classes) + noise
        for observer in job.observers:
            observer.released(1, histogram.counts)


class CarelessReleases(Releases):
    """Takes the sensitivity of a histogram for 1, although a replaced record changes two counts."""

    factor = 0.5


class Observed(dps.Observer):
    """What the threat model says is released: the counts."""

    counts: Any = None

    def released(self, step: int, state: Any) -> None:
        """Keep the release."""
        self.counts = state.copy()


def released(backend: dps.Trainer, labels: Any, classes: int, scale: float, seed: int) -> Any:
    """The counts that a backend releases of the records with these labels, as an observer gets them."""
    observed = Observed()
    backend.train(
        dps.TrainingJob(
            x=np.zeros((0, 1), dtype=np.float32),
            y=labels,
            model=Histogram(classes),  # type: ignore[arg-type]
            phases=(dps.FrozenMap({"scale": scale}),),
            options=dps.FrozenMap(),
            expected_batch_size=float(len(labels)),
            device="cpu",
            seed=seed,
            observers=(observed,),
        )
    )
    return observed.counts
