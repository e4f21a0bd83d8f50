"""What is added to the sum of clipped gradients: independent numbers of one law, drawn on the device of the run.

Every law is named by its standard deviation, so that noise_multiplier * clip_norm means the same for all of them.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from dpspec.training.dpsgd import Noise


class GaussianNoise:
    """Independent N(0, deviation^2) for every parameter."""

    def __call__(self, total: Tensor, deviation: float, source: torch.Generator) -> Tensor:
        """Drawn on the device of ``total``, which must be the generator's."""
        return torch.randn(total.shape, generator=source, device=total.device, dtype=total.dtype) * deviation


class LaplaceNoise:
    """Independent Laplace numbers for every parameter: density exp(-|z| / b) / (2 b) with b = deviation / sqrt(2)."""

    def __call__(self, total: Tensor, deviation: float, source: torch.Generator) -> Tensor:
        """The difference of two independent exponentials, which is Laplace, and finite whatever is drawn."""
        first, second = torch.empty_like(total), torch.empty_like(total)
        first.exponential_(generator=source)
        second.exponential_(generator=source)
        return (first - second) * (deviation / sqrt(2.0))


def noise_of(kind: str) -> Noise:
    """The noise that a phase names: ``gaussian`` or ``laplace``; raises ``ValueError`` on any other name."""
    match kind:
        case "gaussian":
            return GaussianNoise()
        case "laplace":
            return LaplaceNoise()
    raise ValueError(f"noise must be gaussian or laplace, got {kind!r}")
