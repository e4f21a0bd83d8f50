"""The attack: a record of the worst gradients, found by the likelihood ratio of all released models.

Undoing the updates gives the noisy sums along the record's direction. C times these sums has white noise, and the mean
C x in units of the clip norm for the record's steps x.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy import fft, special
from torch import Tensor

import dpspec.contract as dps
from dpspec.accounting import Floats
from dpspec.training.canaries import SignBlocks
from dpspec_matrix.encoders import encoder_of
from dpspec_matrix.options import BANDS, FIXED, NOISE_DIRECTIONS, Schedule
from dpspec_matrix.theory import sensitivity

#: Length of a canary's gradient in clip norms, so that rounding leaves the clip norm.
_LENGTH = 4.0


@dataclass(frozen=True)
class Canaries:
    """``members`` records of each slot. The records of ``slot`` have a gradient of length ``norm``, and others none.

    Attributes:
        first: Number of records before them: record i of all is in slot i mod ``slots``.
    """

    direction: Tensor
    norm: float
    first: int
    slot: int
    slots: int
    members: int

    @property
    def count(self) -> int:
        return self.members * self.slots

    def gradients(self, indices: Tensor) -> Tensor:
        is_worst = ((indices + self.first) % self.slots == self.slot).to(self.direction)
        return is_worst[:, None].to(self.direction.device) * self.direction * self.norm


class Watch(dps.Observer):
    """The noisy sums along one direction, the noise along many, and statistics of the batches.

    Attributes:
        misplaced: Number of records that entered outside their slot or too often, and of missing ones.
        draws: Number of random draws of records, and of those that resulted in the first half of their outcomes.
    """

    def __init__(
        self, direction: Tensor, scale: float, noise_directions: SignBlocks, schedule: Schedule, records: int
    ) -> None:
        """``scale`` is learning rate / divisor: an update subtracts it times the noisy sum."""
        self._direction, self._scale, self._noise_directions = direction.double(), scale, noise_directions
        self._schedule, self._records = schedule, records
        self._before: Tensor | None = None
        self._slot_of = np.arange(records) % schedule.slots
        self._counts = np.zeros(records, dtype=np.int64)
        self.sums: list[float] = []
        self.noises: list[Floats] = []
        self.misplaced, self.draws, self.first_half = 0, 0, 0

    def released(self, step: int, state: Tensor) -> None:
        along = state.double() @ self._direction.to(state.device)
        if self._before is not None:
            self.sums.append(float((self._before - along) / self._scale))
        self._before = along

    def noised(self, step: int, noise: Tensor) -> None:
        self.noises.append(self._noise_directions.project(noise.double()).cpu().numpy())

    def sampled(self, step: int, indices: Tensor) -> None:
        batch, slots, scheme = indices.cpu().numpy(), self._schedule.slots, self._schedule.participation.scheme
        slot = (step - 1) % slots
        if scheme in FIXED or scheme == "cyclic-poisson":
            self.misplaced += int(np.sum(self._slot_of[batch] != slot))
            members = int(np.sum(self._slot_of == slot))
            if scheme in FIXED:
                self.misplaced += abs(members - len(batch))
            else:
                self.draws, self.first_half = self.draws + members, self.first_half + len(batch)
            return
        epoch = (step - 1) // slots
        if scheme == "random-allocation" or epoch == 0:
            self.first_half += len(batch) if slot < (slots + 1) // 2 else 0
            self._slot_of[batch] = slot
        else:
            self.misplaced += int(np.sum(self._slot_of[batch] != slot))
        np.add.at(self._counts, batch, 1)
        is_last = slot == slots - 1 or step == self._schedule.steps
        if is_last and (scheme == "random-allocation" or epoch == 0):
            self.misplaced += int(np.abs(self._counts - epoch - 1).sum())
            self.draws += self._records


def direction_of(model: torch.nn.Module, classes: int) -> Tensor:
    """The common direction (P,) of the last ``classes`` parameters, a head's biases.

    Gradients of the cross-entropy by the scores of all classes add up to 0, so real records do not move along it.
    """
    parameters = sum(p.numel() for p in model.parameters())
    direction = torch.zeros(parameters)
    count = min(classes, parameters)
    direction[-count:] = count**-0.5
    return direction


def canaries(
    direction: Tensor, coin: bool, schedule: Schedule, records: int, members: int, clip_norm: float
) -> Canaries:
    norm = _LENGTH * clip_norm if coin else 0.0
    slots = schedule.slots if schedule.participation.scheme in (*FIXED, "cyclic-poisson") else 1
    return Canaries(direction, norm, records, worst_slot(schedule) % slots, slots, members)


def worst_slot(schedule: Schedule) -> int:
    """The slot whose cyclic steps change the sums most; 0 if any or unknown."""
    return sensitivity(schedule).steps[0] % schedule.slots if schedule.participation.scheme in FIXED else 0


def changes(schedule: Schedule, members: int) -> Iterator[tuple[Floats, Floats]]:
    """Independent choices of the record's steps: probabilities (m,), and changes (m, T) of C X in clip norms."""
    matrix = encoder_of(schedule.encoder, schedule.steps).matrix() * members
    participation, slots = schedule.participation, schedule.slots
    match participation.scheme:
        case "cyclic-poisson":
            for step in range(0, schedule.steps, slots):
                moved = matrix[:, step]
                yield np.array([1.0 - participation.rate, participation.rate]), np.array([np.zeros_like(moved), moved])
        case "balls-in-bins":
            yield np.full(slots, 1.0 / slots), np.array([matrix[:, j::slots].sum(axis=1) for j in range(slots)])
        case "random-allocation":
            for step in range(0, schedule.steps, slots):
                yield np.full(slots, 1.0 / slots), matrix[:, step : step + slots].T
        case _:
            yield np.ones(1), matrix[:, worst_slot(schedule) :: slots].sum(axis=1)[None]


def score(outputs: Floats, choices: list[tuple[Floats, Floats]], noise_multiplier: float) -> float:
    """The log-likelihood ratio of C times the noisy sums (T,), as if choices did not overlap."""
    total = 0.0
    for probabilities, moved in choices:
        logs = (moved @ outputs - 0.5 * np.square(moved).sum(axis=1)) / noise_multiplier**2
        total += float(special.logsumexp(logs, b=probabilities))
    return total


def band_energies(white: Floats) -> dict[str, float]:
    """Squared whitened noise (T, m) per band of frequencies over the steps: sums of T m / bands squares each."""
    spectrum = np.square(fft.dct(white, axis=0, norm="ortho")).sum(axis=1)
    return {f"band{i}": float(part.sum()) for i, part in enumerate(np.array_split(spectrum, min(BANDS, len(spectrum))))}


def noise_directions_of(parameters: int, seed: int, device: str) -> SignBlocks:
    """Orthonormal directions along which noise is compared."""
    return SignBlocks(parameters, min(NOISE_DIRECTIONS, parameters), seed=seed, device=device)
