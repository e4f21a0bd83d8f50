"""Gradient canaries: orthonormal directions with disjoint supports, and groups of records that own one each."""

from __future__ import annotations

from math import cos, pi, sin, sqrt

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
        return rows.scatter_(1, *self.supports(indices))

    def supports(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Where the directions ``indices`` (b,) are not zero: coordinates int64 and values float32, (b, block) each."""
        wanted = indices.to(self._values.device)
        return self._coordinates[wanted], self._values[wanted]

    def project(self, vector: Tensor) -> Tensor:
        """The inner products (count,) of ``vector`` (parameters,) with all directions, in O(parameters)."""
        return (vector[self._coordinates] * self._values).sum(1)


class CanaryGroups:
    """Planted records, each with the gradient ``norm`` * (a unit vector of its own), at every step.

    Records that own the same direction are the members of one group. Their unit vectors are that direction rotated by
    the angle ``spread``, each member another way: identical at 0, near-identical at small angles. They stay within the
    support of their direction, so that no group is seen along another one's. ``norm`` lies well above the clip norm,
    so that clipping, when it works, leaves exactly the clip norm.
    """

    def __init__(
        self, directions: SignBlocks, owner: Tensor, norm: float, *, spread: float = 0.0, seed: int = 0
    ) -> None:
        """``owner`` (records,): the direction of each planted record. ``seed`` decides which way members are rotated.

        Raises ``ValueError`` where an argument makes no sense, or the supports leave no room for rotations.
        """
        owner = owner.to(torch.int64)
        if owner.ndim != 1 or (len(owner) and not (int(owner.min()) >= 0 and int(owner.max()) < directions.count)):
            raise ValueError(f"owner must be a vector of directions 0..{directions.count - 1}")
        if not norm > 0:
            raise ValueError(f"the canaries' norm must be above 0, got {norm}")
        if not 0.0 <= spread < pi / 2:
            raise ValueError(f"spread must be an angle in [0, pi/2), got {spread}")
        if spread > 0 and directions.block < 2:
            raise ValueError(f"near-identical members need {2 * directions.count} parameters, two for each direction")
        self._directions = directions
        self._owner = owner
        self._norm = norm
        self._spread = spread
        self._signs = _balanced(len(owner), directions.block, seed) if spread > 0 else None

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
        coordinates, values = self.sparse(indices)
        rows = torch.zeros(len(indices), self._directions.parameters, device=values.device)
        return rows.scatter_(1, coordinates, values)

    def sparse(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Where those gradients are not zero: coordinates and values, (b, block) each.

        A training loop that knows this method clips and sums canaries in O(b block), never holding (b, parameters).
        """
        members = indices.to(self._owner.device)
        coordinates, values = self._directions.supports(self._owner[members])
        if self._signs is not None:
            # Balanced signs times the direction are orthogonal to it. Over an odd block one entry is zero, and the
            # others are longer by sqrt(block / (block - 1)).
            signs = self._signs[members].to(values)
            longer = sqrt(self._directions.block / (self._directions.block // 2 * 2))
            values = cos(self._spread) * values + sin(self._spread) * longer * signs * values
        return coordinates, self._norm * values


def _balanced(rows: int, width: int, seed: int) -> Tensor:
    """(rows, width) int8: as many 1 as -1 in each row, in random places, and a 0 where ``width`` is odd."""
    pattern = torch.zeros(width, dtype=torch.int8)
    pattern[: width // 2], pattern[width // 2 : width // 2 * 2] = 1, -1
    order = torch.rand(rows, width, generator=generator(seed, "rotations")).argsort(1)
    return pattern[order]
