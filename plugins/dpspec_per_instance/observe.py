"""What a run is watched for: the clipped gradient norm of every audited record before chosen steps."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dpspec.contract.providers import Observer, TrainingJob
from dpspec.training.persample import FlatModel
from dpspec.training.schedule import Schedule

Array: TypeAlias = np.ndarray[Any, Any]

#: Norms are float32 sums: what rounding can have taken from one, relatively, is given back before it is used.
SLACK = 1e-5

#: Predictions are made for so many records at a time.
_ROWS = 4096


class NormObserver(Observer):
    """Clipped norms in units of the clip norm, and whether the model is right, before each observed step.

    ratios: (observed, m) float32 in [0, 1]. right: (observed, m) int8. A model that has diverged saturates.
    """

    def __init__(self, job: TrainingJob, x: Tensor, y: Tensor, steps: Sequence[int]) -> None:
        """``x`` (m, ...), ``y`` (m,): the audited records, on the job's device. ``steps`` count from 1."""
        self._model = FlatModel(copy.deepcopy(job.model), device=job.device)
        self._x, self._y = x, y
        self._clips = [phase.clip_norm for phase in Schedule.of(job.phases, len(job.x))]
        self._place = {step: place for place, step in enumerate(steps)}
        self.ratios: Array = np.zeros((len(steps), len(x)), dtype=np.float32)
        self.right: Array = np.zeros((len(steps), len(x)), dtype=np.int8)

    def released(self, step: int, state: Tensor) -> None:
        """Measure the model before the next step, if that one is observed."""
        place = self._place.get(step + 1)
        if place is None:
            return
        norms = self._model.norms(state, self._x, self._y) * ((1.0 + SLACK) / self._clips[step])
        ratios = torch.nan_to_num(norms, nan=1.0, posinf=1.0).clamp_(max=1.0)
        self.ratios[place] = ratios.cpu().numpy()
        self.right[place] = self._right(state).cpu().numpy()

    def _right(self, state: Tensor) -> Tensor:
        pieces = zip(torch.split(self._x, _ROWS), torch.split(self._y, _ROWS), strict=True)
        with torch.no_grad():
            return torch.cat([self._model.logits(state, x).argmax(dim=1) == y for x, y in pieces])

    def state(self) -> Mapping[str, Array]:
        """What was measured so far."""
        return {"ratios": self.ratios.copy(), "right": self.right.copy()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on measuring; an empty memory begins anew."""
        self.ratios = np.array(state["ratios"]) if state else np.zeros_like(self.ratios)
        self.right = np.array(state["right"]) if state else np.zeros_like(self.right)
