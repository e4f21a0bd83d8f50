"""The frames of a run's journals: the public and the internal part of a step, and the states between steps.

Numbers that were not observed are NaN, counts ``UNSEEN``. Both parts of a step are fixed numbers in little-endian
order, then arrays. The public part ends with the changed options, as JSON; the internal part with the drawn records:
the differences of their sorted numbers, after the number of bytes of each.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Halves: TypeAlias = np.ndarray[Any, np.dtype[np.float16]]
Indices: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

#: A count that was not observed.
UNSEEN = 2**32 - 1

#: The numbers of bytes of a difference of record numbers, and the largest number of records.
_WIDTHS, MOST_RECORDS = (1, 2, 4, 8), 2**34

#: Limits on the options of one step: bytes, options, parameter groups, and the length of a name or word.
MOST_BYTES, MOST_OPTIONS, MOST_GROUPS, _LONGEST = 1 << 18, 1000, 10_000, 200

#: Opacus' option to replace an empty batch by a random row, as an option of the private sum.
RAND_ON_EMPTY = "rand_on_empty"

#: The attributes of Opacus' optimizer that choose the clip norm of adaptive clipping, and must be constants.
ADAPTIVE_CONSTANTS = (
    *("unclipped_num_std", "target_unclipped_quantile", "clipbound_learning_rate"),
    *("min_clipbound", "max_clipbound"),
)

#: The largest number of directions along which gradients of ranks are compared.
DIRECTIONS = 32


@dataclass(frozen=True)
class Unread:
    """The value of an option whose type the recorder does not know; ``kind`` is the name of this type."""

    kind: str


#: The value of an option in a step: a number, a word or the digest of a longer value.
OptionValue: TypeAlias = float | str | Unread | None


@dataclass(frozen=True)
class OptionChange:
    """The new values of one option.

    Attributes:
        by: The class of the scheduler that set it, ``start`` at the first step, "" for other code.
        values: One for each parameter group.
    """

    by: str
    values: tuple[OptionValue, ...]


def encode_options(changes: Mapping[str, OptionChange]) -> bytes:
    """The bytes of the changes: ``[[0.1, 2]]`` means that two groups have the value 0.1. Raises ``ValueError``."""
    written = {}
    for name, change in changes.items():
        runs = [[next(same), 1 + sum(1 for _ in same)] for _, same in groupby(change.values, key=repr)]
        written[name] = [change.by, runs]
    content = json.dumps(written, separators=(",", ":"), default=vars).encode("utf-8") if changes else b""
    if len(content) > MOST_BYTES:
        raise ValueError(f"the options of a step have at most {MOST_BYTES} bytes, got {len(content)}")
    return content


def decode_options(content: bytes) -> dict[str, OptionChange]:
    try:
        read = json.loads(content or b"{}") if len(content) <= MOST_BYTES else None
        if not isinstance(read, dict) or len(read) > MOST_OPTIONS:
            raise ValueError
        return {_word(name): _change(*change) for name, change in read.items()}
    except (TypeError, ValueError, RecursionError):
        raise ValueError("the options of a step are not a mapping of their origins and counted values") from None


def _change(by: Any, runs: Any) -> OptionChange:
    values: list[OptionValue] = []
    for value, times in runs:
        huge = isinstance(value, int) and not -(2**63) < value < 2**63
        if type(times) is not int or not 0 < times <= MOST_GROUPS - len(values) or huge:
            raise ValueError
        values += [value if value is None or isinstance(value, int | float) else _word_or_unread(value)] * times
    return OptionChange(_word(by), tuple(values))


def _word_or_unread(value: Any) -> str | Unread:
    if isinstance(value, dict) and list(value) == ["kind"]:
        return Unread(_word(value["kind"]))
    return _word(value)


def _word(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise ValueError
    return value


def encode_members(indices: Indices) -> bytes:
    """The bytes of record numbers, each in [0, 2**34), which may repeat; their order is not kept."""
    ordered = np.sort(np.asarray(indices, dtype=np.int64))
    if len(ordered) == 0:
        return b""
    if ordered[0] < 0 or ordered[-1] >= MOST_RECORDS:
        raise ValueError(f"record numbers must lie in [0, {MOST_RECORDS}), got {ordered[0]} to {ordered[-1]}")
    gaps = ordered.copy()
    gaps[1:] -= ordered[:-1]
    width = next(width for width in _WIDTHS if int(gaps.max()) < 256**width)
    return bytes([width]) + gaps.astype(f"<u{width}").tobytes()


def decode_members(data: bytes) -> Indices:
    if not data:
        return np.zeros(0, dtype=np.int64)
    width = data[0]
    if width not in _WIDTHS or (len(data) - 1) % width:
        raise ValueError("a record number is cut short or too long")
    gaps = np.frombuffer(data, f"<u{width}", offset=1)
    if float(gaps.astype(np.float64).sum()) >= MOST_RECORDS:
        raise ValueError(f"record numbers must be below {MOST_RECORDS}")
    indices: Indices = np.cumsum(gaps.astype(np.int64))
    return indices


@dataclass(frozen=True, kw_only=True)
class PublicStep:
    """A step without what depends on single records.

    drawn: the number of drawn records; batches: of their batches; rows: of contributions;
    updates: of moves of the parameters by the optimizer, 1 in a correct step; told_steps: of steps in the accountant's
    history, whose last entry is told_noise, told_rate. deviation: the standard deviation of the noise
    that follows from the options. divisor: from the options; measured_divisor: the actual one. noise_squares: the sum
    of squares of the noise; layers (L,): for each layer; directions (W,): along fixed unit directions, over
    ``deviation`` if that is above 0. options: those that changed before the step.
    """

    step: int
    drawn: int = UNSEEN
    batches: int = UNSEEN
    rows: int = UNSEEN
    updates: int = UNSEEN
    told_steps: int = UNSEEN
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
    options: Mapping[str, OptionChange] = field(default_factory=dict)

    def encode(self) -> bytes:
        counts = [min(int(getattr(self, name)), UNSEEN) for name in _COUNTS]
        numbers = [float(getattr(self, name)) for name in _NUMBERS]
        head = _PUBLIC.pack(*counts, *numbers, len(self.layers), len(self.directions))
        arrays = self.layers.astype("<f4").tobytes() + self.directions.astype("<f2").tobytes()
        return head + arrays + encode_options(self.options)

    @classmethod
    def decode(cls, data: bytes, layers: int, width: int) -> PublicStep:
        read = _unpacked(_PUBLIC, data)
        found_layers, found_width = read[-2:]
        if found_layers not in (0, layers) or found_width not in (0, width):
            raise ValueError(
                f"a step has {layers} layers and {width} directions, this one {found_layers} and {found_width}"
            )
        ends = np.cumsum([_PUBLIC.size, 4 * found_layers, 2 * found_width]).tolist()
        return cls(
            **dict(zip(COLUMNS, read[:-2], strict=True)),
            layers=np.frombuffer(data, "<f4", found_layers, ends[0]),
            directions=np.frombuffer(data, "<f2", found_width, ends[1]),
            options=decode_options(data[ends[2] :]),
        )


@dataclass(frozen=True, kw_only=True)
class InternalStep:
    """The part of a step that depends on records and is not for publication.

    lower, middle, upper, largest: quartiles of the norms after clipping, in clip norms. sum_norm: of the clipped
    sum, in clip norms. outside: 1 if anything but the optimizer moved a parameter since the step before, else 0.
    members: the drawn records, None if unknown. rank: in a training of several processes.
    """

    step: int
    lower: float = math.nan
    middle: float = math.nan
    upper: float = math.nan
    largest: float = math.nan
    sum_norm: float = math.nan
    outside: float = math.nan
    members: Indices | None = None
    rank: RankStep | None = None

    def encode(self) -> bytes:
        content_flags = int(self.members is not None) + 2 * int(self.rank is not None)
        with np.errstate(over="ignore"):
            numbers = np.array([float(getattr(self, name)) for name in _INTERNAL_NUMBERS]).astype("<f4")
        head = _INTERNAL.pack(min(self.step, UNSEEN), content_flags, numbers.tobytes())
        if self.rank is not None:
            part = self.rank.encode()
            head += _LENGTH.pack(len(part)) + part
        return head + (encode_members(self.members) if self.members is not None else b"")

    @classmethod
    def decode(cls, data: bytes) -> InternalStep:
        step, content_flags, numbers = _unpacked(_INTERNAL, data)
        payload, rank = data[_INTERNAL.size :], None
        if content_flags & 2:
            (length,) = _unpacked(_LENGTH, payload)
            rank, payload = RankStep.decode(payload[4 : 4 + length]), payload[4 + length :]
        if content_flags > 3 or (payload and not content_flags & 1):
            raise ValueError("an internal step has no known batch, and lists records")
        return cls(
            step=step,
            **dict(zip(_INTERNAL_NUMBERS, np.frombuffer(numbers, "<f4").tolist(), strict=True)),
            members=decode_members(payload) if content_flags & 1 else None,
            rank=rank,
        )


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """The observations of one rank at a step, for the comparison of ranks.

    gradients, parameters, seed, noise_seed, noise_state, order: 8 bytes of digests of the reduced gradients (zeros if
    these are sharded), of the parameters after the step (those that a sharded model gathered for its passes), of the
    seeds of batches and of noise, of the state of the noise's generator (zeros unless sharded), and of the order of the
    records. foreign: the number of drawn records that are not in this rank's share. own, total: the gradients before
    and after the reduction along common directions; of sharded parameters, the clipped sum of the rank, and its rows of
    the sum of all. noise: of this rank, in standard deviations, along directions that are common to all ranks' rows.
    """

    gradients: bytes
    parameters: bytes
    seed: bytes
    noise_seed: bytes
    noise_state: bytes
    order: bytes
    foreign: int
    own: Floats
    total: Floats
    noise: Halves

    def encode(self) -> bytes:
        sketches = (self.own.astype("<f4"), self.total.astype("<f4"), self.noise.astype("<f2"))
        digests = [getattr(self, name) for name in _DIGESTS]
        head = _RANK.pack(*digests, min(self.foreign, UNSEEN), *map(len, sketches))
        return head + b"".join(sketch.tobytes() for sketch in sketches)

    @classmethod
    def decode(cls, data: bytes) -> RankStep:
        *digests, foreign, own_length, total_length, noise_length = _unpacked(_RANK, data)
        if (longest := max(own_length, total_length, noise_length)) > DIRECTIONS:
            raise ValueError(f"a rank observes at most {DIRECTIONS} directions, this one {longest}")
        end = _RANK.size + 4 * (own_length + total_length)
        if len(data) != end + 2 * noise_length:
            raise ValueError("the observations of a rank have another length")
        sketches = np.frombuffer(data, "<f4", own_length + total_length, _RANK.size)
        return cls(
            **dict(zip(_DIGESTS, digests, strict=True)),
            foreign=foreign,
            own=sketches[:own_length],
            total=sketches[own_length:],
            noise=np.frombuffer(data, "<f2", noise_length, end),
        )


def _unpacked(form: struct.Struct, data: bytes) -> tuple[Any, ...]:
    if len(data) < form.size:
        raise ValueError("a step is cut short")
    return form.unpack_from(data)


def _fields_of_type(kind: Any, hint: str) -> tuple[str, ...]:
    """The fields of one type, in the order in which a frame holds them."""
    return tuple(record_field.name for record_field in fields(kind) if record_field.type == hint)


_COUNTS, _NUMBERS = _fields_of_type(PublicStep, "int"), _fields_of_type(PublicStep, "float")
_INTERNAL_NUMBERS, _DIGESTS = _fields_of_type(InternalStep, "float"), _fields_of_type(RankStep, "bytes")
_PUBLIC = struct.Struct(f"<{len(_COUNTS)}I{len(_NUMBERS)}dHH")
_INTERNAL = struct.Struct(f"<II{4 * len(_INTERNAL_NUMBERS)}s")
_RANK = struct.Struct(f"<{'8s' * len(_DIGESTS)}IBBB")
_LENGTH = struct.Struct("<I")

#: The numbers of a step that a reader keeps as columns over all steps.
COLUMNS = _COUNTS + _NUMBERS

#: The names of the digests.
DIGESTS = (
    *("parameters", "frozen", "optimizer", "accountant", "data"),
    *("noise_seed", "noise_state", "batch_seed", "batch_state"),
)


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """A state between two steps.

    step: the number of the part's steps before it. digests: by name, "" if unknown: of the trained parameters, of
    everything else in the model, of the optimizer's state, of the accountant's history, of some records, and of the
    seeds and states of the generators of noise and batches. accounted: the accountant's number of steps. fresh: whether
    the optimizer has no state. options: their values, with the origin of a change since the last step. secret: the key
    of the noise's directions and of the records' digest, equal in all parts. received: whether the model's tensors are
    those that a server sent. facts: as in the end record.
    """

    step: int
    digests: Mapping[str, str]
    accounted: int = 0
    fresh: bool = True
    options: Mapping[str, OptionChange] = field(default_factory=dict)
    secret: str = ""
    received: bool = False
    facts: Mapping[str, Any] | None = None

    def encode(self) -> bytes:
        written = {**vars(self), "options": encode_options(self.options).decode("utf-8")}
        return json.dumps(written).encode("utf-8")

    @classmethod
    def decode(cls, payload: bytes) -> SavedState:
        """Raises ``ValueError`` for bytes that no recorder writes."""
        try:
            read = json.loads(payload)
        except RecursionError:
            read = None
        if not isinstance(read, dict) or set(read) != set(cls.__dataclass_fields__):
            raise ValueError("a saved state is not a mapping of its fields")
        digests, facts = read["digests"] if isinstance(read["digests"], dict) else {}, read["facts"]
        fits = (
            set(digests) == set(DIGESTS)
            and all(isinstance(text, str) and len(text) <= _LONGEST for text in (read["secret"], *digests.values()))
            and all(type(read[name]) is int and 0 <= read[name] <= UNSEEN for name in ("step", "accounted"))
            and (type(read["fresh"]), type(read["options"]), type(read["received"])) == (bool, str, bool)
            and (facts is None or isinstance(facts, dict))
        )
        if not fits:
            raise ValueError("a saved state has digests, counts, options or facts that no recorder writes")
        return cls(**{**read, "options": decode_options(read["options"].encode("utf-8"))})
