"""The events of a recording, and their form on disk.

A folder has ``public.log`` and ``internal.log``, which only grow. The internal log describes records and can be
withheld. An event is its length and the CRC-32 of its bytes (4 bytes each, little-endian), then one MessagePack
mapping. Its key ``event`` names its type, the other keys are the fields below; a field with its default may be missing.

* ``public.log``: :class:`Start` with the :class:`Header`, a :class:`PublicStep` for each step, :class:`End`,
  :class:`Scored`, :class:`Script`.
* ``internal.log``: :class:`Start`, an :class:`InternalStep` for each step, :class:`SavedState`, :class:`Stopped`.

The internal part of a step is written first, and each event by one call. So a killed process leaves both logs readable
up to their last complete event. Checksums find damage, not a forger.

How the format may change. ``FORMAT`` rises with each change, and every later version of dpspec reads the folders of all
formats from 21 on (``tests/plugins/recording/format-21``):

1. A field, a type of event or a fact may be added. A new field has a default, which says that it was not observed; the
   fact of a new observer may be None, and its judge says what remains open without it.
2. No field changes its name, type, unit or meaning. A field without a reader is still written.
3. A range may become wider, never narrower.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
import numpy as np
from msgspec import Meta, Raw, Struct

from dpspec_recording.folder.audit_facts import AuditFacts
from dpspec_recording.folder.merging import Count, Number, Text
from dpspec_recording.folder.script_facts import ScriptFacts
from dpspec_recording.folder.weights import MOST_TENSORS, TensorDigest

#: The version of the format of a folder, and the first one that is read.
FORMAT, FIRST_FORMAT = 21, 21

#: Largest size of an event in bytes.
LONGEST = 1 << 24

#: The largest number of steps.
MOST_STEPS = 2**20

#: The largest numbers of records, canaries, processes that train together, parts in several jobs, and layers.
MOST_RECORDS, MOST_CANARIES, MOST_RANKS, MOST_PARTS, MOST_LAYERS = 2**34, 10**6, 2**16, 1000, 10_000

#: The largest numbers of options of a step, and of parameter groups.
MOST_OPTIONS, MOST_GROUPS = 1000, 10_000

#: The largest number of directions along which gradients of ranks are compared.
DIRECTIONS = 32

#: A count that was not observed.
UNSEEN = 2**32 - 1

#: Opacus' option to replace an empty batch by a random row, as an option of the private sum.
RAND_ON_EMPTY = "rand_on_empty"

#: The attributes of Opacus' optimizer that choose the clip norm of adaptive clipping, and must be constants.
ADAPTIVE_CONSTANTS = (
    *("unclipped_num_std", "target_unclipped_quantile", "clipbound_learning_rate"),
    *("min_clipbound", "max_clipbound"),
)

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Halves: TypeAlias = np.ndarray[Any, np.dtype[np.float16]]
Indices: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

#: The clipping of an optimizer, and the sampling of a loader in rising order of risk.
Clipping: TypeAlias = Literal["flat", "per-layer", "adaptive", "ghost", "own"]
Scheme: TypeAlias = Literal["none", "poisson", "shuffled", "sequential", "weighted", "unknown"]

#: A number of coordinates, of records, of canaries, of ranks; a count that may be :data:`UNSEEN`.
Size: TypeAlias = Annotated[int, Meta(ge=0, le=2**48 - 1)]
Records: TypeAlias = Annotated[int, Meta(ge=1, le=MOST_RECORDS)]
Canaries: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_CANARIES)]
Ranks: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_RANKS)]
Seen: TypeAlias = Annotated[int, Meta(ge=0, le=UNSEEN)]

#: 8 bytes of a digest.
Short: TypeAlias = Annotated[bytes, Meta(min_length=8, max_length=8)]


class Header(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts that are known when a recording begins: the parts of a training by the names of their classes.

    A text is empty and a number None if it is not known.
    """

    versions: dict[Text, Text] = {}
    """Of Python and of the libraries."""
    source: Literal["opacus", "own-loop"] = "own-loop"
    """``own-loop`` for a custom loop, which reports its steps."""
    optimizer: Text = ""
    inner: Text = ""
    """The optimizer that Opacus' one contains."""
    model: Text = ""
    sampler: Text = ""
    clipping: Clipping = "own"
    scheme: Scheme = "none"
    """The sampling of the loader."""
    repeats: Records = 1
    """The largest number of indices of the dataset that lead to one record."""
    rate: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    """The rate of the loader's sampler."""
    records: Records | None = None
    """The number of records of the dataset, with the places of canaries."""
    batch_size: Records | None = None
    workers: Annotated[int, Meta(ge=0, le=10**6)] = 0
    """The number of the loader's processes."""
    reduction: Literal["mean", "sum", ""] = ""
    """Of the loss."""
    expected_batch_size: Annotated[float, Meta(ge=0.0, le=1e12)] | None = None
    """The divisor of a mean."""
    accountant: Text = ""
    """Its mechanism or class."""
    told_before: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """The number of steps that the accountant had counted when the recording began."""
    layers: Annotated[tuple[tuple[Text, Size], ...], Meta(max_length=MOST_LAYERS)] = ()
    """Names and sizes of the noisy parameters; of a sharded model, of the rows of this rank."""
    width: Annotated[int, Meta(ge=0, le=4096)] = 0
    """The number of directions along which noise is measured."""
    canaries: Canaries = 0
    canary_kind: Text = ""
    copies: Annotated[int, Meta(ge=1, le=MOST_CANARIES)] = 1
    """The number of places of each canary, the last ones of ``records``."""
    new_ids: Canaries = 0
    """The number of token ids that only canaries have."""
    left_out: Canaries = 0
    """The number of places of omitted canaries."""
    commitment: Text = ""
    """The digest of the source of the inclusion bits (:mod:`dpspec_recording.folder.coins`)."""
    canary_seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    """The seed of the inclusion bits; None for the system's randomness."""
    world: Ranks = 0
    """The number of processes that train together; 0 for a training in one."""
    rank: Ranks = 0
    """The number of this process."""
    run: Text = ""
    """The id that the folders of all ranks have."""
    share: Annotated[int, Meta(ge=0, le=MOST_RECORDS)] | None = None
    """The number of records that this rank draws from, by Opacus' sampler for several processes."""
    data: Text = ""
    """The digest of some records."""
    shards: tuple[tuple[Size, Size], ...] = ()
    """For each layer of a sharded model, the place of this rank's first coordinate and the number on all ranks."""
    began: Text = ""
    """The time of the beginning."""
    machine: Text = ""
    """The platform and the devices."""
    dtypes: tuple[Text, ...] = ()
    """Of the parameters."""
    dataset: Text = ""
    """The classes of the dataset."""
    indices: Text = ""
    """The commitment to the indices of a subset."""
    indices_salt: Text = ""
    """The salt of this commitment."""
    federated: bool = False
    """Whether the records are clients."""
    part: Annotated[int, Meta(ge=0, le=MOST_PARTS)] = 0
    """The number of the part of a training in several jobs. 0 without ``resume=True``: a killed one may lack steps."""
    no_loader: bool = False
    """Whether the recorder got no loader, so that only a loop that reports its batches has any."""
    notes: tuple[Text, ...] = ()
    """On parts that the recorder does not know."""

    @property
    def is_reported(self) -> bool:
        """Whether the training reports its steps itself: all but Opacus' are not observed."""
        return self.source != "opacus"

    @property
    def batches_are_reported(self) -> bool:
        """Whether drawn batches and their rates are reports; else the sampler of the loader draws them."""
        return self.is_reported

    @property
    def noise_is_reported(self) -> bool:
        """Whether norms, sums and noise are reports; else the optimizer shows them."""
        return self.is_reported

    @property
    def divisor_is_fitted(self) -> bool:
        """Whether the divisor follows from updates, up to rounding; else the optimizer states it."""
        return self.is_reported

    @property
    def is_poisson(self) -> bool:
        return self.scheme == "poisson"

    @property
    def has_rates(self) -> bool:
        """Whether a step with a rate has a Poisson sample: drawn by a sampler, or declared by a loop without one."""
        return self.is_poisson or (self.scheme == "none" and self.batches_are_reported)

    @property
    def in_epochs(self) -> bool:
        """Whether each epoch takes every record once."""
        return self.scheme in ("shuffled", "sequential")

    @property
    def present(self) -> int | None:
        """The number of records without omitted canaries."""
        return None if self.records is None else self.records - self.left_out

    @property
    def parameters(self) -> int:
        """The number of noisy coordinates."""
        return sum(size for _, size in self.layers)

    def differs(self, later: "Header") -> str:
        """The first fact that all parts of a training have in common, and a later one has not; "" if all are equal."""
        facts = (name for name in _OF_ALL_PARTS if getattr(self, name) != getattr(later, name))
        return next(facts, "").replace("_", " ")

    def problem(self) -> str:
        """How fields contradict each other, or are not finite; "" if they do not."""
        within = [start + size <= whole for (start, whole), (_, size) in zip(self.shards, self.layers, strict=False)]
        if self.shards and (len(self.shards) != len(self.layers) or not all(within)):
            return "shards must have one place within a parameter for each layer"
        planted = self.canaries * self.copies
        if not self.left_out <= planted < (self.records or planted + 1):
            return "left_out must be at most canaries times copies, and these below records"
        return ""


#: The facts without which parts of a training cannot be joined.
_OF_ALL_PARTS = (
    *("source", "clipping", "reduction", "layers", "width", "records", "accountant", "world", "rank"),
    *("canaries", "canary_kind", "commitment", "copies", "new_ids"),
)


class _Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """Has one place in a log."""


class Start(_Event, frozen=True, tag="start"):
    """The first event of a log."""

    format: int
    """The version of the format."""
    recording: Text
    """A random word that both logs of a recording have."""
    header: Header | None = None
    """Of the public log."""


class _Format(_Event, frozen=True, tag="start"):
    """The start of any format."""

    format: int


class _Type(Struct, frozen=True):
    """The type of an event."""

    event: str


class Unread(Struct, frozen=True):
    """The value of an option whose type the recorder does not know."""

    kind: Text
    """The name of the type."""


#: The value of an option in a step: a number, a word or the digest of a longer value.
OptionValue: TypeAlias = bool | int | float | Text | Unread | None


class OptionChange(Struct, frozen=True):
    """The new values of one option."""

    by: Text
    """The class of the scheduler that set it, ``start`` at the first step, "" for other code."""
    values: Annotated[tuple[OptionValue, ...], Meta(max_length=MOST_GROUPS)]
    """One for each parameter group."""


Options: TypeAlias = Annotated[Mapping[Text, OptionChange], Meta(max_length=MOST_OPTIONS)]


class PublicStep(_Event, frozen=True, tag="step"):
    """A step without values that depend on single records. NaN and :data:`UNSEEN` mark an unobserved value."""

    step: Annotated[int, Meta(ge=1, le=MOST_STEPS)]
    """Its number, from 1."""
    drawn: Seen = UNSEEN
    """The number of drawn records."""
    batches: Seen = UNSEEN
    """The number of their batches."""
    rows: Seen = UNSEEN
    """The number of contributions."""
    updates: Seen = UNSEEN
    """The number of moves of the parameters by the optimizer, 1 in a correct step."""
    told_steps: Seen = UNSEEN
    """The number of steps in the accountant's history."""
    noise_multiplier: float = math.nan
    clip_norm: float = math.nan
    deviation: float = math.nan
    """The standard deviation of the noise that follows from the options."""
    divisor: float = math.nan
    """From the options."""
    measured_divisor: float = math.nan
    """The actual one."""
    learning_rate: float = math.nan
    told_noise: float = math.nan
    """The noise multiplier of the last entry of the accountant's history."""
    told_rate: float = math.nan
    """The rate of this entry."""
    rate: float = math.nan
    noise_squares: float = math.nan
    """The sum of squares of the noise."""
    layers: Floats = msgspec.field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    """(L,) these sums for each layer."""
    directions: Halves = msgspec.field(default_factory=lambda: np.zeros(0, dtype=np.float16))
    """(W,) the noise along fixed unit directions, over ``deviation`` if that is above 0."""
    options: Options = {}
    """Those that changed before the step."""


#: The numbers of a step that a reader keeps as columns over all steps.
COLUMNS = tuple(name for name in PublicStep.__struct_fields__ if name not in ("layers", "directions", "options"))


class RankStep(Struct, frozen=True, kw_only=True):
    """The observations of one rank at a step, for the comparison of ranks; digests of 8 bytes."""

    gradients: Short
    """The reduced gradients; zeros if these are sharded."""
    parameters: Short
    """The parameters after the step, or those that a sharded model gathered for its passes."""
    seed: Short
    """The seed of batches."""
    noise_seed: Short
    noise_state: Short
    """The state of the noise's generator; zeros unless the model is sharded."""
    order: Short
    """The order of the records."""
    foreign: Seen
    """The number of drawn records that are not in this rank's share."""
    own: Floats
    """The gradients before the reduction along common directions; of sharded parameters, the rank's clipped sum."""
    total: Floats
    """The gradients after the reduction; of sharded parameters, the rank's rows of the sum of all."""
    noise: Halves
    """The noise of this rank, in standard deviations, along directions that are common to all ranks' rows."""


class InternalStep(_Event, frozen=True, tag="step"):
    """The part of a step that depends on records and is not for publication."""

    step: Annotated[int, Meta(ge=1, le=MOST_STEPS)]
    lower: float = math.nan
    """The lower quartile of the norms after clipping, in clip norms."""
    middle: float = math.nan
    """The median."""
    upper: float = math.nan
    """The upper quartile."""
    largest: float = math.nan
    sum_norm: float = math.nan
    """The norm of the clipped sum, in clip norms."""
    outside: float = math.nan
    """1 if anything but the optimizer moved a parameter since the step before, else 0."""
    members: Indices | None = None
    """The drawn records, sorted; None if unknown."""
    rank: RankStep | None = None
    """In a training of several processes."""


class NotedFacts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts of all steps until now."""

    audits: AuditFacts
    seconds: Number
    observed: dict[str, Raw]
    """By the name of an observer its fact, whose form is its dataclass; None if the training does not show it."""
    error: Text = ""
    """The class of the exception that ended the training."""


#: The names of the digests of a saved state.
DIGESTS = (
    *("parameters", "frozen", "optimizer", "accountant", "data"),
    *("noise_seed", "noise_state", "batch_seed", "batch_state"),
)


class SavedState(_Event, frozen=True, tag="state"):
    """A state between two steps, from which a later part may go on."""

    step: Seen
    """The number of the part's steps before it."""
    digests: dict[str, Text]
    """By name, "" if unknown: of the trained parameters, of everything else in the model, of the optimizer's state, of
    the accountant's history, of some records, and of the seeds and states of the generators of noise and batches."""
    accounted: Count = 0
    """The accountant's number of steps."""
    fresh: bool = True
    """Whether the optimizer has no state."""
    options: Options = {}
    """Their values, with the origin of a change since the last step."""
    secret: Text = ""
    """The key of the noise's directions and of the records' digest, equal in all parts."""
    received: bool = False
    """Whether the model's tensors are those that a server sent."""
    facts: NotedFacts | None = None


class Stopped(_Event, frozen=True, tag="stopped"):
    """The recording ends before the training."""

    reason: Annotated[str, Meta(max_length=1000)]


class End(_Event, frozen=True, tag="end"):
    """The training ends."""

    facts: NotedFacts
    weights: Annotated[dict[str, TensorDigest], Meta(max_length=MOST_TENSORS)] | Text = ""
    """The digests of the model's tensors; or why it has no digests, "" if this process has no whole model."""


class Scored(_Event, frozen=True, tag="scores"):
    """Canaries were scored; ``canaries.npz`` has their inclusion bits and scores, and is internal."""

    canaries: Annotated[int, Meta(ge=1, le=MOST_CANARIES)]
    digest: Text
    """SHA-256 of the file."""
    final: bool
    """Whether the scores belong to the final recorded model, or to the recorded gradients."""


class Script(_Event, frozen=True, tag="script"):
    """The script around the recording ends."""

    script: ScriptFacts


def _as_bytes(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (
            encode_members(value) if value.dtype == np.int64 else value.astype(value.dtype.newbyteorder("<")).tobytes()
        )
    if hasattr(value, "item"):  # a number of NumPy or torch
        return value.item()
    raise TypeError(f"a recording cannot hold a {type(value).__name__}")


def _as_array(kind: Any, content: Any) -> Any:
    if not isinstance(content, bytes):
        raise ValueError(f"expected bytes, got {type(content).__name__}")
    (dtype,) = get_args(get_args(kind)[1])
    return decode_members(content) if dtype is np.int64 else np.frombuffer(content, np.dtype(dtype).newbyteorder("<"))


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_as_bytes)

#: The payload of an event or of a fact.
encode = _ENCODER.encode

#: Decode the events of the two logs; ``ValueError`` with the place of a wrong field, as in ``- at `$.rate```.
decode_public = msgspec.msgpack.Decoder(PublicStep | End | Scored | Script, dec_hook=_as_array).decode
decode_internal = msgspec.msgpack.Decoder(InternalStep | SavedState | Stopped, dec_hook=_as_array).decode
decode_start = msgspec.msgpack.Decoder(Start).decode
decode_format = msgspec.msgpack.Decoder(_Format).decode
decode_type = msgspec.msgpack.Decoder(_Type).decode

#: The numbers of bytes of a difference of record numbers.
_WIDTHS = (1, 2, 4, 8)


def encode_members(indices: Indices) -> bytes:
    """The bytes of record numbers, each in [0, 2**34), which may repeat; their order is not kept.

    The first byte is the size of the others: differences of the sorted numbers.
    """
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
    """The record numbers of these bytes; ``ValueError`` for bytes that no recorder writes."""
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
