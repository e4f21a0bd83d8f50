"""Gradient canaries that each own some coordinates: one-hot, in as few as the theorem's worst case has, or spread."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from dpspec.training.seeds import generator
from dpspec_modelmix.options import Attack


class Owned:
    """Every canary's coordinates and signs, both (m, width); no coordinate belongs to two."""

    def __init__(self, attack: Attack, sparsity: int, pool: Tensor, seed: int, device: str) -> None:
        """``pool``: the coordinates (n,) that canaries may own. Raises ``ValueError`` where it is too small."""
        width = sparsity if attack.kind == "one-hot" else len(pool) // attack.count
        if width < 1 or attack.count * width > len(pool):
            raise ValueError(f"{attack.count} canaries of {width} coordinates do not fit into {len(pool)}")
        source = generator(seed, "canaries")
        order = torch.randperm(len(pool), generator=source)[: attack.count * width]
        signs = torch.randint(0, 2, (attack.count, width), generator=source) * 2 - 1
        self.coordinates = pool.cpu()[order].view(attack.count, width).to(device)
        self.signs = signs.to(device, torch.float32)

    @property
    def width(self) -> int:
        """How many coordinates each canary owns."""
        return self.coordinates.shape[1]


class Planted:
    """The canaries that are in the data: the gradient ``norm`` * signs / sqrt(width) on the coordinates of each."""

    def __init__(self, owned: Owned, present: Tensor, parameters: int, norm: float) -> None:
        """``present`` (m,): bool."""
        self._coordinates = owned.coordinates[present.to(owned.coordinates.device)]
        self._values = norm / sqrt(owned.width) * owned.signs[present.to(owned.signs.device)]
        self._parameters = parameters

    @property
    def count(self) -> int:
        """How many canaries are planted."""
        return len(self._coordinates)

    def gradients(self, indices: Tensor) -> Tensor:
        """The gradients (b, parameters) of planted canaries ``indices`` (b,), before clipping."""
        coordinates, values = self.sparse(indices)
        rows = torch.zeros(len(indices), self._parameters, device=values.device)
        return rows.scatter_(1, coordinates, values)

    def sparse(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Where those gradients are not zero: coordinates and values, (b, width) each."""
        members = indices.to(self._coordinates.device)
        return self._coordinates[members], self._values[members]
