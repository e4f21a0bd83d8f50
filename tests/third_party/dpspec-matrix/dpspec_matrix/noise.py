"""Correlated noise, as a part of dpspec's training loop: step t adds row t of C^-1 Z, times the deviation.

A part is called with the sum that it adds to, the deviation of Z, and a generator; what it remembers between steps it
tells as named arrays, so that a killed run goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpspec_matrix.encoders import Banded, Encoder, Tree

Memory = Mapping[str, np.ndarray[Any, Any]]


class BandedNoise:
    """n_t = z_t - sum_(0 < k < bands) c_k n_(t-k): C n = z, solved row by row with the memory of bands - 1 steps."""

    def __init__(self, encoder: Banded) -> None:
        self._weights = [float(c * encoder.unit) for c in encoder.coefficients[1:]]
        self._last: list[Tensor] = []

    def __call__(self, total: Tensor, deviation: float, source: torch.Generator) -> Tensor:
        """The step's noise, like ``total`` (P,)."""
        noise = _normal(total, source) * deviation
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


class TreeNoise:
    """n_t = P_t - P_(t-1), where P_t sums the noise of the nodes that the running sum of step t is put together of."""

    def __init__(self, encoder: Tree) -> None:
        self._encoder = encoder
        self._step = 0
        self._open: dict[int, Tensor] = {}

    def __call__(self, total: Tensor, deviation: float, source: torch.Generator) -> Tensor:
        """The step's noise, like ``total`` (P,). Nodes that the next sum does without are forgotten."""
        before = {node: noise.to(total) for node, noise in self._open.items()}
        nodes = self._encoder.prefix(self._step)
        self._open = {node: before[node] for node in nodes if node in before}
        for node in nodes:
            if node not in before:
                self._open[node] = _normal(total, source) * deviation
        self._step += 1
        return sum(self._open.values(), torch.zeros_like(total)) - sum(before.values(), torch.zeros_like(total))

    def state(self) -> Memory:
        """The step and the open nodes by number."""
        return {"step": np.array(self._step), **{f"node{n}": noise.cpu().numpy() for n, noise in self._open.items()}}

    def restore(self, state: Memory) -> None:
        """Go on after that step; an empty memory begins anew."""
        self._step = int(state.get("step", 0))
        self._open = {int(name[4:]): torch.tensor(noise) for name, noise in state.items() if name.startswith("node")}


def noise_of(encoder: Encoder) -> BandedNoise | TreeNoise:
    """The noise part of an encoder; raises ``TypeError`` for one that has none."""
    match encoder:
        case Banded():
            return BandedNoise(encoder)
        case Tree():
            return TreeNoise(encoder)
    raise TypeError(f"no noise is known for {type(encoder).__name__}")


def _normal(like: Tensor, source: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=source, device=like.device, dtype=like.dtype)
