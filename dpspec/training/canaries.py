"""Gradient canaries: orthonormal directions with disjoint supports, and groups of records that own one each."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from dpspec.training.seeds import generator


class SignBlocks:
    """``count`` exactly orthonormal directions in ``parameters`` dimensions, in O(parameters) memory.

    A random permutation of the coordinates is cut into ``count`` blocks of s = floor(parameters / count); direction i
    is random signs on block i, divided by sqrt(s). The seed decides all of it, alike on every device. Coordinates
    that are left over belong to no direction.
    """

    def __init__(self, parameters: int, count: int, *, seed: int, device: str | torch.device = "cpu") -> None:
        if not 1 <= count <= parameters:
            raise ValueError(f"the number of directions must be within 1..{parameters} (the parameters), got {count}")
        self.parameters = parameters
        self.count = count
        self.block = parameters // count
        source = generator(seed, "directions")
        used = count * self.block
        order = torch.randperm(parameters, generator=source)[:used]
        signs = torch.randint(0, 2, (used,), generator=source, dtype=torch.int8) * 2 - 1
        self._coordinates = order.view(count, self.block).to(device)
        self._values = (signs.view(count, self.block).to(device, torch.float32)) / sqrt(self.block)

    def directions(self, indices: Tensor) -> Tensor:
        """The directions ``indices`` (b,) as float32 rows (b, parameters) of length one."""
        rows = torch.zeros(len(indices), self.parameters, device=self._values.device)
        wanted = indices.to(self._values.device)
        return rows.scatter_(1, self._coordinates[wanted], self._values[wanted])

    def project(self, vector: Tensor) -> Tensor:
        """The inner products (count,) of ``vector`` (parameters,) with all directions, in O(parameters)."""
        return (vector[self._coordinates] * self._values).sum(1)


class CanaryGroups:
    """Planted records, each with the gradient ``norm`` * (the direction that it owns), at every step.

    Records that own the same direction are the identical members of one group. ``norm`` lies well above the clip
    norm, so that clipping, when it works, leaves exactly the clip norm.
    """

    def __init__(self, directions: SignBlocks, owner: Tensor, norm: float) -> None:
        """``owner`` (records,): the direction of each planted record."""
        owner = owner.to(torch.int64)
        if owner.ndim != 1 or (len(owner) and not (int(owner.min()) >= 0 and int(owner.max()) < directions.count)):
            raise ValueError(f"owner must be a vector of directions 0..{directions.count - 1}")
        if not norm > 0:
            raise ValueError(f"the canaries' norm must be above 0, got {norm}")
        self._directions = directions
        self._owner = owner
        self._norm = norm

    @classmethod
    def planted(cls, directions: SignBlocks, present: Tensor, members: int, norm: float) -> CanaryGroups:
        """A group of ``members`` records for each direction i with ``present[i]`` (count,), none for the others."""
        if members < 1:
            raise ValueError(f"a group has at least one member, got {members}")
        return cls(directions, present.nonzero().squeeze(1).repeat_interleave(members), norm)

    @property
    def count(self) -> int:
        """How many records are planted."""
        return len(self._owner)

    @property
    def owner(self) -> Tensor:
        """The direction (records,) of each planted record."""
        return self._owner

    def gradients(self, indices: Tensor) -> Tensor:
        """The gradients (b, parameters) of planted records ``indices`` (b,), before clipping."""
        return self._norm * self._directions.directions(self._owner[indices.to(self._owner.device)])
