"""A logical step while it happens, and the record that it becomes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dpspec_recording.folder.events import UNSEEN, Indices, InternalStep, OptionChange, PublicStep, RankStep

#: A number, or a tensor on a device that holds one.
Scalar: TypeAlias = Tensor | float


_QUARTILES = np.array((0.25, 0.5, 0.75, 1.0))


@dataclass
class PendingStep:
    """Numbers are NaN and counts ``UNSEEN`` until they are observed; tensors stay on their device until the end.

    number: counted from 1. drawn: the records; batches: of these. accounted: the last noise multiplier and rate, and
    the number of steps, of the accountant's history. options: those that changed before the step. noise: the flat one
    that a custom loop reported. noise_generators, batch_generators: of torch, from which a traced step of a custom loop
    drew its noise and indices. rank: of this process among several.
    norms: (b,) of the contributions of each call, as a tensor or an array, or the observed call.
    indices: the tensors of indices that a custom loop reported.
    silent: the loop did not report whether there was noise. Otherwise a step without a sketch had none.
    """

    number: int = 0
    drawn: Indices | None = None
    batches: int = UNSEEN
    rows: int = UNSEEN
    updates: int = 0
    noise_multiplier: float = math.nan
    clip_norm: float = math.nan
    deviation: float = math.nan
    divisor: float = math.nan
    rate: float = math.nan
    learning_rate: float = math.nan
    accounted: tuple[float, float, int] | None = None
    options: Mapping[str, OptionChange] = field(default_factory=dict)
    rank: RankStep | None = None
    norms: list[Any] = field(default_factory=list)
    sketch: Any = None
    summed: bool = False
    noised: bool = False
    sum_norm: Scalar | None = None
    divided: tuple[Scalar | None, Scalar] | None = None
    outside: Scalar | None = None
    members: list[Indices] = field(default_factory=list)
    indices: list[Tensor] = field(default_factory=list)
    silent: bool = False
    noise: Tensor | None = None
    noise_generators: list[torch.Generator] = field(default_factory=list)
    batch_generators: list[torch.Generator] = field(default_factory=list)

    def add_rows(self, rows: int) -> None:
        self.rows = rows if self.rows == UNSEEN else self.rows + rows

    def omit_padding(self) -> None:
        """Omit norms of 0 that a custom loop reports for places that fill a batch, as compiled loops do.

        A contribution of 0 adds nothing to the sum, and further rows with a gradient remain.
        """
        if not self.members or not all(isinstance(norms, Tensor) for norms in self.norms):
            return
        surplus = self.rows - sum(map(len, self.members))
        for number in reversed(range(len(self.norms))):
            norms = self.norms[number]
            zeros = torch.nonzero(norms == 0.0).flatten()
            if not 0 < surplus <= len(zeros):
                continue
            is_row = torch.ones(len(norms), dtype=torch.bool, device=norms.device)
            is_row[zeros[-surplus:]] = False
            self.norms[number] = norms[is_row]
            self.rows -= surplus
            return

    def moved_outside(self, moved: Scalar) -> None:
        self.outside = moved if self.outside is None else torch.maximum(*map(torch.as_tensor, (self.outside, moved)))

    def reported_norms(self) -> Any:
        """The norms that a custom loop reported, (b,); None for Opacus, whose norms are read later."""
        if not self.norms or not all(isinstance(norms, Tensor) for norms in self.norms):
            return None
        return torch.cat([norms.reshape(-1) for norms in self.norms]).double().cpu().numpy()

    def finish(self, layers: int) -> tuple[PublicStep, InternalStep]:
        """The record of the step: one transfer from the device for its scalars, one for its noise, one for its norms.

        Args:
            layers: The number of noisy parameters.
        """
        before, after = self.divided if self.divided is not None else (None, None)
        scalars = together([before, after, self.sum_norm, self.outside])
        measured = scalars[0] / scalars[1] if scalars[1] > 0.0 else math.nan
        clip = self.clip_norm if self.clip_norm > 0.0 else math.nan
        squares, along, total = np.zeros(0), np.zeros(0), math.nan
        if self.sketch is not None:
            sketch = np.asarray(self.sketch.cpu() if isinstance(self.sketch, Tensor) else self.sketch)
            squares, along, total = sketch[:layers], sketch[layers:], float(sketch[:layers].sum())
            along = along / self.deviation if self.deviation > 0.0 else along
        elif not (self.noised or self.silent):
            total = 0.0
        quartiles = self._quartiles(clip)
        with np.errstate(over="ignore"):
            public = PublicStep(
                step=self.number,
                drawn=UNSEEN if self.drawn is None else len(self.drawn),
                batches=self.batches,
                rows=self.rows,
                updates=self.updates,
                told_steps=UNSEEN if self.accounted is None else self.accounted[2],
                noise_multiplier=self.noise_multiplier,
                clip_norm=self.clip_norm,
                deviation=self.deviation,
                divisor=self.divisor,
                measured_divisor=measured,
                learning_rate=self.learning_rate,
                told_noise=math.nan if self.accounted is None else self.accounted[0],
                told_rate=math.nan if self.accounted is None else self.accounted[1],
                rate=self.rate,
                noise_squares=total,
                layers=squares.astype(np.float32),
                directions=along.astype(np.float16),
                options=self.options,
            )
        internal = InternalStep(
            step=self.number,
            **dict(zip(("lower", "middle", "upper", "largest"), quartiles, strict=True)),
            sum_norm=scalars[2] / clip,
            outside=scalars[3],
            members=self.drawn,
            rank=self.rank,
        )
        return public, internal

    def _quartiles(self, clip: float) -> list[float]:
        if not self.norms:
            return [math.nan] * 4
        norms = np.concatenate(
            [n.double().cpu().numpy() if isinstance(n, Tensor) else n for n in self.norms], axis=None
        )
        if len(norms) == 0:
            return [0.0] * 4
        norms.sort()
        if not norms[-1] < math.inf:  # NaN is last
            return [math.nan] * 3 + [math.inf]
        positions = _QUARTILES * (len(norms) - 1)
        below = positions.astype(int)
        low, high = norms[below], norms[np.ceil(positions).astype(int)]
        quartiles: list[float] = ((low + (positions - below) * (high - low)) / clip).tolist()
        return quartiles


def together(values: Sequence[Scalar | None]) -> list[float]:
    """Scalars on any devices, NaN for None; a device is read in one transfer."""
    scalars = [v for v in values if v is not None]
    device = next((v.device for v in scalars if isinstance(v, Tensor) and not v.is_cpu), None)
    if device is None:
        return [math.nan if v is None else float(v) for v in values]
    read = iter(torch.stack([torch.as_tensor(v).detach().double().to(device) for v in scalars]).tolist())
    return [math.nan if v is None else next(read) for v in values]
