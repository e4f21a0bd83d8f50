"""Correlated noise, as a part of dpspec's training loop: step t adds row t of C^-1 Z, times the deviation.

A part is called with the sum that it adds to, the deviation of Z, and a generator; what it remembers between steps it
tells as named arrays, so that a killed run goes on.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpspec_ftrl.encoders import Banded

Memory = Mapping[str, np.ndarray[Any, Any]]


class BandedNoise:
    """n_t = z_t - sum_(0 < k < bands) c_k n_(t-k): C n = z, solved row by row with the memory of bands - 1 steps."""

    def __init__(self, encoder: Banded) -> None:
        self._weights = [float(c * encoder.unit) for c in encoder.coefficients[1:]]
        self._last: list[Tensor] = []

    def __call__(self, total: Tensor, deviation: float, source: torch.Generator) -> Tensor:
        """The step's noise, like ``total`` (P,)."""
        noise = torch.randn(total.shape, generator=source, device=total.device, dtype=total.dtype) * deviation
        for weight, earlier in zip(self._weights, self._last, strict=False):
            noise = noise - weight * earlier.to(total)
        self._last = [noise, *self._last][: len(self._weights)]
        return noise

    def state(self) -> Memory:
        """The noise of the last steps, the latest first."""
        return {f"last{k:03}": noise.cpu().numpy() for k, noise in enumerate(self._last)}

    def restore(self, state: Memory) -> None:
        """Go on after them; an empty memory begins anew."""
        self._last = [torch.tensor(state[name]) for name in sorted(state)]
