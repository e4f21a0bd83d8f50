"""Training of the spec's model on processed rows by its backend, with per-record clipping and noise.

dp-gd uses all records in every step, sgd-sampled one random record. The mechanisms declare the noise of a mean
gradient, a backend the noise of a sum: sqrt(T) / noise times the clip norm L, and sqrt(c T) / (noise n). The last model
is released.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

import dpspec.contract as dps
from dpspec.training.device import TransferQueue
from dpspec.training.gradients import flat_model
from dpspec.training.loop.native import train_many
from dpspec.training.measure.logs import StateLog
from dpspec.training.measure.scores import accuracy
from dpspec_preprocessing.engines import NoiseTally, require_declared_count
from dpspec_preprocessing.private import PrivateMechanism

Array: TypeAlias = np.ndarray[Any, Any]

#: Number of runs per training batch, and replacement of infinite parameters.
_TOGETHER, _LARGE = 16, 1e30


@dataclass(frozen=True, kw_only=True)
class NetworkEngine:
    private: PrivateMechanism
    training: dps.FrozenMap
    context: dps.Context

    @property
    def batch_size(self) -> int:
        return self.private.records if self.private.kind == "dp-gd" else 1

    @property
    def multiplier(self) -> float:
        """Noise multiplier of a sum of gradients: sigma * batch size / L."""
        return self.private.sigma * self.batch_size / self.private.lipschitz

    def execute_without_noise(self, x: Array, y: Array) -> Array:
        """Parameters of the last model without noise, with the same initial model and batches for all datasets."""
        job = self._job(self._shaped(x), y, self.context.seed(0, "noiseless"), 0.0)
        self.context.trainer.train(job)
        return _parameters(job.model)

    def execute(
        self, sides: Sequence[Array], y: Array, which: Sequence[int], random: np.random.Generator, tally: NoiseTally
    ) -> Iterator[Array]:
        shaped = [self._shaped(x) for x in sides]
        for start in range(0, len(which), _TOGETHER):
            some = which[start : start + _TOGETHER]
            queue = TransferQueue()
            noise = _NoiseLog(tally, self.multiplier * self.private.lipschitz, queue)
            jobs = [self._job(shaped[side], y, int(random.integers(2**63)), self.multiplier, (noise,)) for side in some]
            jobs[0] = replace(jobs[0], progress=partial(self._report, start, len(some), len(which)))
            logs = [StateLog() for _ in jobs]
            jobs = [replace(job, observers=(*job.observers, log)) for job, log in zip(jobs, logs, strict=True)]
            train_many(self.context.trainer, jobs)
            queue.flush()
            tally.released += [log.evidence(job) for job, log in zip(jobs, logs, strict=True)]
            yield from (_parameters(job.model) for job in jobs)

    def count_right(self, output: Array, x: Array, y: Array) -> int:
        model = self._model()
        flat_model.load(model, torch.tensor(output, dtype=torch.float32))
        return round(accuracy(model, self._shaped(x), y, device=self.context.device) * len(x))

    def _report(self, before: int, together: int, runs: int, done: int, total: int) -> None:
        """Report the progress of all runs during one batch of runs."""
        steps, records = before * total + together * done, float(self.batch_size)
        self.context.progress(steps, runs * total, "training", unit="steps", records=records)

    def _model(self) -> torch.nn.Module:
        return self.context.model.build(self.context.seed(0, "model"))

    def _shaped(self, x: Array) -> Array:
        return np.asarray(x.reshape(len(x), *self.context.facts.shape), dtype=np.float32)

    def _job(
        self, x: Array, y: Array, seed: int, multiplier: float, observers: tuple[dps.Observer, ...] = ()
    ) -> dps.TrainingJob:
        m = self.private
        require_declared_count(m, x)
        sampling = {"scheme": "full"} if m.kind == "dp-gd" else {"scheme": "fixed", "batch_size": 1}
        phase = {"steps": m.steps, "noise_multiplier": multiplier, "clip_norm": m.lipschitz, "sampling": sampling}
        return dps.TrainingJob(
            x=x,
            y=y,
            model=self._model(),
            phases=(dps.Phase(phase),),
            options=self.training,
            expected_batch_size=float(self.batch_size),
            device=self.context.device,
            seed=seed,
            observers=observers,
            cancelled=self.context.cancelled,
        )


class _NoiseLog(dps.Observer):
    def __init__(self, tally: NoiseTally, std: float, queue: TransferQueue) -> None:
        self._tally, self._std, self._queue = tally, std, queue

    def noised(self, step: int, noise: torch.Tensor) -> None:
        self._queue.add(self._count, noise.clone())

    def _count(self, noise: Array) -> None:
        self._tally.add(noise.astype(np.float64) / self._std)


def _parameters(model: torch.nn.Module) -> Array:
    parameters = flat_model.flatten(model).double().cpu().numpy()
    return np.nan_to_num(np.asarray(parameters, dtype=np.float64), nan=0.0, posinf=_LARGE, neginf=-_LARGE)
