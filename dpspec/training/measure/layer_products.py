"""Inner products of the residuals of two layers at each step: see ``stats.conformance.noise_tests``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from dpspec.stats.conformance import noise_tests
from dpspec.stats.conformance.noise_tests import SharedLayers
from dpspec.training.loop.checkpoint import Memory

Array: TypeAlias = np.ndarray[Any, Any]

#: Replaces non-finite sums, so that the test has no power.
_HUGE = 1e300


class LayerProducts:
    """Sums over steps for every pair of the largest layers, over the first coordinates of each.

    ``sums`` (pairs, 4) float64, in units of the declared noise: inner products, their rounding bounds, and the squared
    norms of both layers, including rounding.
    """

    def __init__(self, parts: Sequence[tuple[str, int]], planned: int) -> None:
        starts = np.cumsum([0, *(size for _, size in parts)]).tolist()
        largest = sorted(range(len(parts)), key=lambda place: -parts[place][1])[: noise_tests.MOST_LAYERS]
        self._planned = planned
        self._pairs = [
            (parts[i][0], parts[j][0], starts[i], starts[j], min(parts[i][1], parts[j][1]))
            for i, j in combinations(sorted(largest), 2)
        ]
        self.restore({})

    def add(self, residual: Array, error: float, sigma: float) -> None:
        """Add a step's residual (P,), float64, with its rounding bound and the noise's standard deviation."""
        self.steps += 1
        slack = error / sigma
        with np.errstate(over="ignore", invalid="ignore"):  # a model that has just diverged
            scaled = residual / sigma
            for row, (_, _, i, j, size) in zip(self.sums, self._pairs, strict=True):
                one, other = scaled[i : i + size], scaled[j : j + size]
                first, second = float(np.sqrt(one @ one)), float(np.sqrt(other @ other))
                row += (
                    float(one @ other),
                    slack * (first + second + slack),
                    (first + slack) ** 2,
                    (second + slack) ** 2,
                )

    def worst(self) -> SharedLayers | None:
        if not self._pairs or not self.steps:
            return None
        found = []
        for row, (one, other, _, _, size) in zip(self.sums, self._pairs, strict=True):
            product, rounding, first, second = row.tolist() if np.isfinite(row).all() else (0.0, 0.0, _HUGE, _HUGE)
            sums = SharedLayers(
                squares={one: first, other: second},
                product=product,
                rounding=rounding,
                count=self.steps * size,
                planned=max(self.steps, self._planned) * size,
                pairs=len(self._pairs),
            )
            found.append(sums)
        return max(found, key=SharedLayers.surprise)

    def state(self) -> Memory:
        return {"pairs": self.sums.copy(), "paired": np.array(self.steps)}

    def restore(self, state: Memory) -> None:
        self.sums: Array = np.array(state.get("pairs", np.zeros((len(self._pairs), 4))))
        self.steps = int(state.get("paired", 0))
