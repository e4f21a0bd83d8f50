"""Backends whose constants depend on the records: each changes the job of the native loop."""

from dataclasses import replace

import numpy as np

from dpspec.contract import FrozenMap, Phase, TrainingJob
from dpspec.training.gradients import flat_model
from dpspec.training.gradients.persample import FlatModel, per_example_gradients
from dpspec.training.loop.native import NativeTrainer, tensors


class Divisor:
    """Divides by the rate times the actual number of records."""

    def train(self, job: TrainingJob) -> None:
        rate = Phase.of(job.phases[0]).rate(len(job.x))
        NativeTrainer().train(replace(job, expected_batch_size=max(1.0, float(int(rate * len(job.x))))))


class Normalisation:
    """Standardizes features by their mean and standard deviation."""

    def train(self, job: TrainingJob) -> None:
        x = (job.x - job.x.mean(axis=0)) / (job.x.std(axis=0) + 1e-6)
        NativeTrainer().train(replace(job, x=x.astype(np.float32)))


class ClipNorm:
    """Clips to the median gradient norm of all records at the initial model."""

    def train(self, job: TrainingJob) -> None:
        model = FlatModel(job.model, device="cpu")
        x, y = tensors(job.x, job.y, "cpu")
        rows = per_example_gradients(model, x, y, state=flat_model.flatten(job.model))
        clip = float(rows.norm(dim=1).median())
        phases = tuple(FrozenMap({**phase, "clip_norm": clip}) for phase in job.phases)
        NativeTrainer().train(replace(job, phases=phases))


class LearningRate:
    """Divides the learning rate by the root of the number of records."""

    def train(self, job: TrainingJob) -> None:
        rate = float(job.options["learning_rate"]) / len(job.x) ** 0.5
        NativeTrainer().train(replace(job, options=FrozenMap({**job.options, "learning_rate": rate})))
