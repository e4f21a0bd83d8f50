"""The attack: a record whose gradient is the worst there is, looked for in all models that are released.

Undoing the updates gives the noisy sums along the record's direction. With the record they are larger by ``clip_norm``
in its steps, and nothing tells that better than the likelihood ratio: the inner product of the sums, made white
(``decoding``), with what the record adds to them.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

import dpspec.contract as dps
from dpspec.training.canaries import SignBlocks
from dpspec_ftrl.decoding import LOOKS

Array: TypeAlias = np.ndarray[Any, Any]

#: Gradients that are clipped to a norm are longer than it by this much, so that rounding leaves the norm itself.
_LONGER = 4.0


@dataclass(frozen=True)
class Planted:
    """``members`` records of each of ``separation`` slots, of which those in one slot have a gradient, or none has.

    direction: (P,) of length one. norm: the gradient's, above the clip norm; 0 for records that are zeroed out. Records
    are numbered from ``first`` on, behind the real ones, so that record i is in slot (first + i) mod separation.
    """

    direction: Tensor
    norm: float
    first: int
    slot: int
    separation: int
    members: int

    @property
    def count(self) -> int:
        """How many records are planted: as many with the group zeroed out as with it."""
        return self.members * self.separation

    def gradients(self, indices: Tensor) -> Tensor:
        """Shape (b, P): the gradients of planted records ``indices`` (b,), before clipping."""
        mine = ((indices + self.first) % self.separation == self.slot).to(self.direction)
        return mine[:, None].to(self.direction.device) * self.direction * self.norm


class Watch(dps.Observer):
    """What a run releases along one direction, what noise it tells of, and when records took part again.

    sums: per step the noisy sum along the direction. noises: per step the noise along each of ``looks``.
    astray: how often a record took part again at other than ``separation`` steps after its last time, of ``drawn``.
    """

    def __init__(self, direction: Tensor, scale: float, separation: int, looks: SignBlocks) -> None:
        """``scale`` is learning rate / divisor: an update subtracts so many times the noisy sum."""
        self._direction = direction.double()
        self._scale = scale
        self._separation = separation
        self._looks = looks
        self._before: Tensor | None = None
        self._last: dict[int, int] = {}
        self.sums: list[float] = []
        self.noises: list[Array] = []
        self.astray = 0
        self.drawn = 0

    def released(self, step: int, state: Tensor) -> None:
        """Undo the update along the direction."""
        along = state.double() @ self._direction.to(state.device)
        if self._before is not None:
            self.sums.append(float((self._before - along) / self._scale))
        self._before = along

    def noised(self, step: int, noise: Tensor) -> None:
        """Keep the noise along all directions that are looked at."""
        self.noises.append(self._looks.project(noise.double()).cpu().numpy())

    def sampled(self, step: int, indices: Tensor) -> None:
        """Count who is out of turn."""
        for record in indices.tolist():
            self.astray += step - self._last.get(record, step - self._separation) != self._separation
            self._last[record] = step
            self.drawn += 1


def looks_of(parameters: int, seed: int, device: str) -> SignBlocks:
    """The directions along which noise is looked at: orthonormal, and together they hold (nearly) all coordinates."""
    return SignBlocks(parameters, min(LOOKS, parameters), seed=seed, device=device)


def direction_of(model: torch.nn.Module, classes: int) -> Tensor:
    """The direction (P,) in which all of the last ``classes`` parameters, a head's biases, rise alike.

    Real records have no gradient along it: the cross-entropy's derivatives by the scores sum to 0. With another head
    it is a direction as good as any, along which what they add is noise to the attack.
    """
    parameters = sum(p.numel() for p in model.parameters())
    direction = torch.zeros(parameters)
    direction[-min(classes, parameters) :] = 1.0
    return direction / direction.norm()


def plant(direction: Tensor, coin: bool, slot: int, records: int, members: int, phase: dps.Phase) -> Planted:
    """A group of ``members`` records in ``slot`` behind ``records`` real ones; zeroed out where ``coin`` is false."""
    norm = _LONGER * phase.clip_norm if coin else 0.0
    return Planted(direction, norm, records, slot, int(phase["separation"]), members)
