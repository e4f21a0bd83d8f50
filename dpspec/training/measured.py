"""What is left of each update, kept as sufficient statistics for conformance: measured on released models alone.

In directions that no canary uses, the residual of a step is the noise plus the deviation of the drawn records from
their mean, if all is as declared. Sums of it along directions that were fixed before the step (the update that was
expected, the residuals of earlier steps) are martingales: :mod:`dpspec.stats.martingale`. Sums of squares are at least
those of the noise: :mod:`dpspec.stats.noise`. All in units of the clip norm.

Unlike an adversary, who must not know them, this knows which canaries are planted.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpspec.contract.providers import GradientCanaries, TrainingJob
from dpspec.training.canaries import SignBlocks
from dpspec.training.clipping import Flat, clipper
from dpspec.training.contributions import RecordsAndCanaries
from dpspec.training.expected import Population
from dpspec.training.logs import kept_width, spaced
from dpspec.training.memories import Memory
from dpspec.training.native import tensors
from dpspec.training.persample import ClippedSum, FlatModel
from dpspec.training.sampling import FixedSize
from dpspec.training.schedule import Schedule

#: Canaries that turn away from their directions by less than this, relatively, count as identical.
_TURNED = 1e-3


class ResidualLog:
    """Collects residuals step by step; steps that declare no Gaussian noise are left out.

    coordinates: (P,) float64, per parameter the sum over steps of (|residual| + rounding)^2 / variance of the noise.
    drift: the sum over steps of the free residual along the expected update. pull: the sum of that update's lengths.
    rounding: the sum over steps of what rounding can have changed, in clip norms.
    variances: per step, the noise's variance, and that with what sampling adds at most along any one direction.
    rows: per step, some coordinates of the free residual.
    """

    def __init__(self, job: TrainingJob, model: FlatModel, real: int, directions: SignBlocks | None = None) -> None:
        """``job`` has its canaries in place: gradients along ``directions``, or rows after the first ``real`` ones."""
        self._model = model
        canaries = job.canaries.count if job.canaries is not None else 0
        self._schedule = Schedule.of(job.phases, len(job.x) + canaries)
        self._ends = list(accumulate(phase.steps for phase in self._schedule.phases))
        x, y = tensors(job.x[real:], job.y[real:], job.device)
        self._planted = RecordsAndCanaries(model, x, y, job.canaries)
        self._indices = torch.arange(len(x) + canaries)
        self._constant = len(x) == 0
        self._free = _Free(directions)
        flat = all(isinstance(clipper(phase.clip), Flat) for phase in self._schedule.phases)
        self._turned = not flat or len(x) > 0 or not _along(self._free, job.canaries)
        self._kept: dict[int, ClippedSum] = {}
        self._width = kept_width(self._schedule.total)
        self.restore({})

    def add(self, step: int, previous: Tensor, noisy: Tensor, known: Population, rounding: float) -> None:
        """A step from the model ``previous`` (P,), its noisy sum (P,), and what is known of the real records.

        rounding: a bound on the l2 norm of what rounding changed of the noisy sum.
        """
        number = bisect_left(self._ends, step)
        phase = self._schedule.phases[number]
        sigma, clip = phase.noise_multiplier, phase.clip_norm
        if sigma == 0.0 or phase.noise != "gaussian":
            return
        planted = self._contribution(number, previous)
        rate = phase.sampler.inclusion
        expected = rate * (known.sum + planted.sum) / clip
        residual, error = noisy / clip - expected, rounding / clip
        self.coordinates += ((residual.double().abs() + error) / sigma).square().cpu()
        free, update = self._free(residual), self._free(expected)
        length = float(torch.linalg.vector_norm(update, dtype=torch.float64))
        if length > 0.0:
            self.drift += float(torch.dot(free.double(), update.double())) / length
            self.pull += length
        squares = known.squares + (float(planted.norms.square().sum()) if self._turned else 0.0)
        without = 1.0 if isinstance(phase.sampler, FixedSize) and rate < 1.0 else 1.0 - rate
        self.rounding += error
        self.variances.append((sigma**2, sigma**2 + rate * without * squares / clip**2))
        self.rows.append(spaced(free, self._width))

    def _contribution(self, number: int, previous: Tensor) -> ClippedSum:
        """The clipped sum of all planted records; that of gradient canaries is the same whatever the model is."""
        if self._constant and number in self._kept:
            return self._kept[number]
        found = self._planted(previous, self._indices, self._schedule.phases[number].clip)
        if self._constant:
            self._kept[number] = found
        return found

    @property
    def steps(self) -> int:
        """How many steps were added."""
        return len(self.rows)

    @property
    def layers(self) -> dict[str, tuple[float, int]]:
        """Per parameter of the model its part of ``coordinates`` as a sum, and its degrees of freedom."""
        layout = self._model.layout
        pieces = zip(layout.names, torch.split(self.coordinates, list(layout.sizes)), strict=True)
        return {name: (float(piece.sum()), len(piece) * self.steps) for name, piece in pieces}

    def state(self) -> Memory:
        """All sums and rows."""
        return {
            "coordinates": self.coordinates.numpy().copy(),
            "sums": np.array([self.drift, self.pull, self.rounding]),
            "variances": np.array(self.variances).reshape(-1, 2),
            "rows": np.stack(self.rows) if self.rows else np.zeros((0, 1), dtype=np.float32),
        }

    def restore(self, state: Memory) -> None:
        """Go on; an empty memory begins anew."""
        self.coordinates = torch.tensor(state.get("coordinates", np.zeros(self._model.size)), dtype=torch.float64)
        self.drift, self.pull, self.rounding = (float(v) for v in state.get("sums", np.zeros(3)))
        self.variances = [(float(a), float(b)) for a, b in state.get("variances", ())]
        self.rows: list[np.ndarray[Any, Any]] = list(state.get("rows", ()))


class _Free:
    """Projects a vector (P,) onto the complement of all directions, in O(P); as it is where there are none."""

    def __init__(self, directions: SignBlocks | None) -> None:
        self._directions = directions
        if directions is not None:
            self._coordinates, self._values = directions.supports(torch.arange(directions.count))

    def __call__(self, vector: Tensor) -> Tensor:
        if self._directions is None:
            return vector
        along = self._directions.project(vector)[:, None] * self._values
        return vector.index_add(0, self._coordinates.flatten(), -along.flatten().to(vector))


def _along(free: _Free, canaries: GradientCanaries | None) -> bool:
    """Whether the first few canaries' gradients point along their directions: no part of them is free."""
    if canaries is None or canaries.count == 0:
        return True
    rows = canaries.gradients(torch.arange(min(8, canaries.count)))
    rest = torch.stack([free(row) for row in rows])
    return bool((rest.norm(dim=1) <= _TURNED * rows.norm(dim=1)).all())
