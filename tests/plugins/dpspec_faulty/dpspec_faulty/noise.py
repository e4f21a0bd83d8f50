"""Faults of the noise: each stands where dpspec's own loop has its noise."""

from collections.abc import Callable, Sequence

import torch

from dpspec.training.loop.native import Noise


class NoiseByStep:
    """The real noise, but of a size that depends on the step."""

    def __init__(self, noise: Noise, factor: Callable[[int], float]) -> None:
        self._noise = noise
        self._factor = factor
        self._step = 0

    def __call__(self, total: torch.Tensor, deviation: float, source: torch.Generator) -> torch.Tensor:
        """Noise like ``total`` (P,) of standard deviation factor(step) * deviation; steps count from 1."""
        self._step += 1
        return self._noise(total, self._factor(self._step) * deviation, source)


class ReusedNoise:
    """Drawn at the first step, and added at each one: as when a buffer is filled before the loop."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise
        self._drawn: torch.Tensor | None = None

    def __call__(self, total: torch.Tensor, deviation: float, source: torch.Generator) -> torch.Tensor:
        """Repeat the first noise, with the first step's standard deviation."""
        if self._drawn is None:
            self._drawn = self._noise(total, deviation, source)
        return self._drawn


class SeededAlike:
    """Draw from a generator with the same seed in every run, like a script with ``manual_seed(42)``."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise
        self._source: torch.Generator | None = None

    def __call__(self, total: torch.Tensor, deviation: float, source: torch.Generator) -> torch.Tensor:
        """Noise of the declared size that another run has too."""
        if self._source is None:
            self._source = torch.Generator(total.device).manual_seed(42)
        return self._noise(total, deviation, self._source)


class LayersSeededAlike:
    """New at each step, and the same in every layer: as when a generator is seeded inside the loop over parameters."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes

    def __call__(self, total: torch.Tensor, deviation: float, source: torch.Generator) -> torch.Tensor:
        """Noise of the declared size; ``total`` (P,) consists of layers of these sizes."""
        seed = int(torch.randint(2**31, (), generator=source, device=source.device))
        drawn = [
            torch.randn(size, generator=torch.Generator(total.device).manual_seed(seed), device=total.device)
            for size in self._sizes
        ]
        return torch.cat(drawn) * deviation
