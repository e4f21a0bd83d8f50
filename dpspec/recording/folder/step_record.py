"""One logical step as it is recorded: a public part, and an internal one that speaks of records.

Numbers that were not seen are NaN, counts that were not seen ``UNSEEN``; nothing is guessed. Both parts are fixed
numbers in little-endian order, then arrays; the public one ends with the options that changed, as JSON. No pickle.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import numpy as np

from dpspec.recording.folder import members, option_record

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Halves: TypeAlias = np.ndarray[Any, np.dtype[np.float16]]

#: Stands for a count that nobody saw.
UNSEEN = 2**32 - 1

#: A sum that differs by at most this, in clip norms, differs by rounding alone.
ROUNDING = 5e-3

_COUNTS = ("step", "drawn", "batches", "rows", "virtual", "updates", "told_steps")
_NUMBERS = (
    "time",
    "noise_multiplier",
    "clip_norm",
    "deviation",
    "divisor",
    "measured_divisor",
    "learning_rate",
    "told_noise",
    "told_rate",
    "rate",
    "noise_squares",
)
_PUBLIC = struct.Struct(f"<32s{len(_COUNTS)}I{len(_NUMBERS)}dHH")
_INTERNAL_NUMBERS = ("least", "lower", "middle", "upper", "largest", "sum_norm", "update_norm", "outside")
_INTERNAL = struct.Struct(f"<II{len(_INTERNAL_NUMBERS)}d")


@dataclass(frozen=True, kw_only=True)
class PublicStep:
    """What was done at a step, without what speaks of a record.

    step: its number, from 1 on. drawn: how many records the sampler drew for it; batches: in how many batches.
    rows: how many contributions were added up. virtual: in how many virtual steps. updates: how often the optimizer
    moved the parameters (1 in a step as it should be). told_steps: how many steps the accountant has counted by now.
    time: seconds since the recording began. noise_multiplier, clip_norm: the optimizer's options at that step.
    deviation: of the noise that its options ask for. divisor: what its options divide by; measured_divisor: what the
    gradient was really divided by. told_noise, told_rate: what the accountant was told last. rate: with which each
    record enters a batch, where the sampler is one of Poisson's. noise_squares: the sum of squares of the noise that
    was added; layers (L,): that of each layer; directions (W,): the noise along fixed directions of length one, over
    ``deviation`` where that is above 0. options: those that changed before the step, as :mod:`option_record` has them.
    """

    step: int
    drawn: int = UNSEEN
    batches: int = UNSEEN
    rows: int = UNSEEN
    virtual: int = UNSEEN
    updates: int = UNSEEN
    told_steps: int = UNSEEN
    time: float = math.nan
    noise_multiplier: float = math.nan
    clip_norm: float = math.nan
    deviation: float = math.nan
    divisor: float = math.nan
    measured_divisor: float = math.nan
    learning_rate: float = math.nan
    told_noise: float = math.nan
    told_rate: float = math.nan
    rate: float = math.nan
    noise_squares: float = math.nan
    layers: Floats = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    directions: Halves = field(default_factory=lambda: np.zeros(0, dtype=np.float16))
    options: Mapping[str, option_record.OptionChange] = field(default_factory=dict)

    def encode(self, internal: bytes) -> bytes:
        """Its bytes; ``internal``: the digest of the step's internal part, which they hold fast."""
        counts = [min(int(getattr(self, name)), UNSEEN) for name in _COUNTS]
        numbers = [float(getattr(self, name)) for name in _NUMBERS]
        head = _PUBLIC.pack(internal, *counts, *numbers, len(self.layers), len(self.directions))
        arrays = self.layers.astype("<f4").tobytes() + self.directions.astype("<f2").tobytes()
        return head + arrays + option_record.encode(self.options)

    @classmethod
    def decode(cls, data: bytes, layers: int, width: int) -> tuple[PublicStep, bytes]:
        """A step and the digest of its internal part; ``ValueError`` where bytes are not those of such a step."""
        if len(data) < _PUBLIC.size:
            raise ValueError("a step is cut short")
        internal, *read = _PUBLIC.unpack(data[: _PUBLIC.size])
        found_layers, found_width = read[-2:]
        if found_layers not in (0, layers) or found_width not in (0, width):
            raise ValueError(
                f"a step has {layers} layers and {width} directions, this one {found_layers} and {found_width}"
            )
        rest = data[_PUBLIC.size :]
        length = 4 * found_layers + 2 * found_width
        if len(rest) < length:
            raise ValueError("a step has another length than its numbers say")
        counts = dict(zip(_COUNTS, read[: len(_COUNTS)], strict=True))
        numbers = dict(zip(_NUMBERS, read[len(_COUNTS) : -2], strict=True))
        squares = np.frombuffer(rest[: 4 * found_layers], dtype="<f4")
        along = np.frombuffer(rest[4 * found_layers : length], dtype="<f2")
        options = option_record.decode(rest[length:])
        return cls(**counts, **numbers, layers=squares, directions=along, options=options), internal


@dataclass(frozen=True, kw_only=True)
class InternalStep:
    """What of a step speaks of records, and is not for publication.

    least, lower, middle, upper, largest: the norms after clipping, from the smallest over the quartiles to the largest,
    in clip norms. sum_norm: the norm of their sum, in clip norms. update_norm: how far the parameters moved. outside:
    how far they had moved, since the step before, without the optimizer. members: who was drawn, None where unseen.
    """

    step: int
    least: float = math.nan
    lower: float = math.nan
    middle: float = math.nan
    upper: float = math.nan
    largest: float = math.nan
    sum_norm: float = math.nan
    update_norm: float = math.nan
    outside: float = math.nan
    members: members.Indices | None = None

    def encode(self) -> bytes:
        """Its bytes."""
        known = self.members is not None
        numbers = [float(getattr(self, name)) for name in _INTERNAL_NUMBERS]
        head = _INTERNAL.pack(min(self.step, UNSEEN), int(known), *numbers)
        return head + (members.encode(self.members) if self.members is not None else b"")

    @classmethod
    def decode(cls, data: bytes) -> InternalStep:
        """A step's internal part; ``ValueError`` where bytes are not those of one."""
        if len(data) < _INTERNAL.size:
            raise ValueError("an internal step is cut short")
        step, known, *numbers = _INTERNAL.unpack(data[: _INTERNAL.size])
        rest = data[_INTERNAL.size :]
        if known not in (0, 1) or (rest and not known):
            raise ValueError("an internal step says nothing of who was drawn, and lists records")
        return cls(
            step=step,
            **dict(zip(_INTERNAL_NUMBERS, numbers, strict=True)),
            members=members.decode(rest) if known else None,
        )


#: The numbers of a step that a reader keeps of all steps, as one column each.
COLUMNS = tuple(one.name for one in fields(PublicStep) if one.name in {*_COUNTS, *_NUMBERS})
