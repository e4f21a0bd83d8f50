"""Gradient canaries: unit vectors that enter the clipped sum as records do.

If a step drew the place of an included canary, the recorder adds the canary's vector, as long as the clip norm, to the
sum of clipped gradients before noise; of several batches drawn since the step before, the last one counts. So another
inclusion bit changes one contribution of at most the clip norm (zero-out). Only clipping is not tested.

Canary i owns ``b`` coordinates with random signs, so directions are orthogonal; they are fixed before the first step. A
score is the inner product of a direction with the sum of all gradients that the inner optimizer stepped with. DP-SGD
releases these gradients, so its epsilon bounds every test on them (Nasr et al. 2023, https://arxiv.org/abs/2302.07956,
and Steinke et al. 2023, https://arxiv.org/abs/2305.08846, attack in this way).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.errors import UsageError
from dpspec.recording.folder.canaries import Array
from dpspec.recording.planting.planted import Planted
from dpspec.recording.planting.scoring import require_numbers

#: Largest number of coordinates of a direction: more would take memory and improve no score.
MOST_COORDINATES = 256

#: A canary is shorter than the clip norm by this relative amount, so that rounding makes none longer.
_SHORTER = 1e-6


class GradientCanaries:
    """The canaries of one recording, in the coordinates of its noisy parameters.

    It keeps ``m`` sums and m directions of at most :data:`MOST_COORDINATES` coordinates, and draws from the planted
    dataset's own stream of randomness.
    """

    def __init__(self, planted: Planted, parameters: Sequence[nn.Parameter]) -> None:
        """parameters: those with noise, in order. Raises ``UsageError`` if they are in half precision, or have fewer
        coordinates than there are canaries."""
        kinds = {p.dtype for p in parameters}
        if not kinds <= {torch.float32, torch.float64}:
            raise UsageError(
                "gradient canaries need parameters in float32 or float64, as half precision rounds their entries: "
                "train in mixed precision, or plant records"
            )
        size, count = sum(p.numel() for p in parameters), planted.count
        if size < count:
            raise UsageError(
                f"{count} gradient canaries need a coordinate each, and {size} are trained: plant {size} at most"
            )
        self._parameters, self._first = list(parameters), len(planted) - count
        own = min(size // count, MOST_COORDINATES)
        chance = planted.source.generator()
        places = chance.choice(size, size=(count, own), replace=False)
        signs = 1.0 - 2.0 * chance.integers(0, 2, size=(count, own))
        device = self._parameters[0].device
        self._places = torch.from_numpy(places.astype(np.int64)).to(device)
        self._directions = torch.from_numpy(signs / np.sqrt(own)).to(device)
        self._sums = torch.zeros(count, dtype=torch.float64, device=device)

    def enter(self, drawn: Array, clip_norm: float) -> Tensor:
        """Add the canaries among the drawn places, (b,), to ``summed_grad`` of each parameter.

        Returns the norm of each contribution, (k,) float64: one for each time that a canary was drawn.
        """
        numbers = drawn[drawn >= self._first] - self._first
        length = clip_norm * (1.0 - _SHORTER)
        norms = torch.full((len(numbers),), length, dtype=torch.float64)
        if not len(numbers):
            return norms
        times = torch.from_numpy(np.bincount(numbers, minlength=len(self._sums))).to(self._places.device)
        sizes = [p.numel() for p in self._parameters]
        flat = torch.zeros(sum(sizes), dtype=self._parameters[0].dtype, device=self._places.device)
        flat[self._places] = (self._directions * (times * length)[:, None]).to(flat)
        with torch.no_grad():
            for p, part in zip(self._parameters, torch.split(flat, sizes), strict=True):
                summed: Any = p.summed_grad  # type: ignore[attr-defined]
                summed.add_(part.view_as(summed).to(summed))
        return norms

    def before_step(self) -> None:
        device = self._places.device
        grads = [torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in self._parameters]
        flat = torch.cat([g.reshape(-1).to(device) for g in grads])
        self._sums += (flat[self._places].double() * self._directions).sum(1)

    def scores(self) -> Array:
        values: Array = self._sums.cpu().numpy()
        require_numbers(values, "the gradients of a step overflowed")
        return values


def refuse_unfit(clipping: str | None, optimizer: Any, batches: Any, *, ahead: bool) -> None:
    why = ""
    if clipping is None:
        why = "the recorder cannot add to the sums of a custom loop"
    elif clipping != "flat":
        why = f"with {clipping} clipping no single clip norm bounds what all parameters of a record contribute"
        why = "with ghost clipping no gradient of a single record is there" if clipping == "ghost" else why
    elif batches is None:
        why = "the recorder does not see who is drawn: give it the loader over the planted dataset"
    elif ahead:
        why = (
            "its loader draws ahead, so that the batch of a step is not known in time: set num_workers=0, and do not "
            "let accelerate prepare the loader"
        )
    elif "add_noise" in vars(optimizer):
        why = "add_noise of this optimizer was replaced, by another recorder or the script: each could add them"
    if why:
        hint = "" if ":" in why else "; plant records, or use Opacus' DPOptimizer with flat clipping"
        raise UsageError(f"gradient canaries cannot enter this training: {why}{hint}")
