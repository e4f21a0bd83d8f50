"""``run.json``, the facts that are known when a recording begins, and the inclusion bits that it commits to.

The bits of m canaries are the first m bits of SHAKE-256 of 32 bytes, which are the system's own randomness or SHA-256
of a given seed. The header states SHA-256 of these bytes, which does not reveal the bits; ``canaries.npz`` holds the
bytes, which prove them.
"""

import hashlib
import io
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np

from dpspec import json_records
from dpspec.errors import RecordingError, UsageError
from dpspec.json_records import Between
from dpspec_recording.folder.step_record import MOST_RECORDS

#: The version of the format of a folder.
FORMAT = 21

#: The clipping of an optimizer, and the sampling of a loader in rising order of risk.
Clipping: TypeAlias = Literal["flat", "per-layer", "adaptive", "ghost", "own"]
Scheme: TypeAlias = Literal["none", "poisson", "shuffled", "sequential", "weighted", "unknown"]

#: The facts without which parts of a training cannot be joined.
_OF_ALL_PARTS = (
    *("source", "clipping", "reduction", "layers", "width", "records", "accountant", "world", "rank"),
    *("canaries", "canary_kind", "commitment", "copies", "new_ids"),
)

#: The largest number of canaries.
MOST_CANARIES = 10**6

#: The largest number of processes that train together.
MOST_RANKS = 2**16

#: The largest number of parts of a training in several jobs.
MOST_PARTS = 1000

#: Limits of a header: bytes, layers, and characters of a text.
MOST_BYTES, MOST_LAYERS, LONGEST = 1 << 21, 10_000, 400

#: A number of coordinates.
Size: TypeAlias = Annotated[int, Between(0, 2**48 - 1)]


@dataclass(frozen=True, kw_only=True)
class Header:
    """The parts of a run by the names of their classes; "" or None if unknown.

    source: ``opacus``, or ``own-loop`` for a custom loop. repeats: the largest number of indices of the dataset that
    lead to one record. reduction: ``mean`` or ``sum``; expected_batch_size: the divisor of a mean. accountant: its
    mechanism or class; told_before: its number of earlier steps. layers: names and sizes of the noisy parameters.
    width: the number of directions of the noise sketch. copies: the number of places of each canary, the last of
    ``records``; left_out: of places of omitted ones; commitment: the digest of the source of the inclusion bits;
    canary_seed: its seed, None for the system's randomness; new_ids: the number of token ids for canaries only.
    world: the number of processes that train together, 0 for a training in one; rank: this one's number; run: the id
    of their run; share: the number of records that this rank draws from, by Opacus' sampler for several processes;
    data: the digest of some records; shards: of each layer of a sharded model the place of this rank's first
    coordinate, and the number of coordinates on all ranks. began: the time of its beginning; machine: its platform and
    devices; dtypes: of the parameters; dataset: its classes; indices: the commitment to the indices of a subset, whose
    salt is ``indices_salt``; federated: whether the records are clients. part: the number of a part of a training in
    several jobs; 0 without ``resume=True``, so that a killed one may lack its last steps. no_loader: whether
    dpspec.record got no loader, so that only a loop that reports its batches has any. notes: unknown parts.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    source: Literal["opacus", "own-loop"] = "own-loop"
    optimizer: str = ""
    inner: str = ""
    model: str = ""
    sampler: str = ""
    clipping: Clipping = "own"
    scheme: Scheme = "none"
    repeats: Annotated[int, Between(1, MOST_RECORDS)] = 1
    rate: Annotated[float, Between(0.0, 1.0)] | None = None
    records: Annotated[int, Between(1, MOST_RECORDS)] | None = None
    batch_size: Annotated[int, Between(1, MOST_RECORDS)] | None = None
    workers: Annotated[int, Between(0, 10**6)] = 0
    reduction: Literal["mean", "sum", ""] = ""
    expected_batch_size: Annotated[float, Between(0.0, 1e12)] | None = None
    accountant: str = ""
    told_before: Annotated[int, Between(0, 2**53)] = 0
    layers: tuple[tuple[str, Size], ...] = ()
    width: Annotated[int, Between(0, 4096)] = 0
    canaries: Annotated[int, Between(0, MOST_CANARIES)] = 0
    canary_kind: str = ""
    copies: Annotated[int, Between(1, MOST_CANARIES)] = 1
    new_ids: Annotated[int, Between(0, MOST_CANARIES)] = 0
    left_out: Annotated[int, Between(0, MOST_CANARIES)] = 0
    commitment: str = ""
    canary_seed: Annotated[int, Between(0, 2**63 - 1)] | None = None
    world: Annotated[int, Between(0, MOST_RANKS)] = 0
    rank: Annotated[int, Between(0, MOST_RANKS)] = 0
    run: str = ""
    share: Annotated[int, Between(0, MOST_RECORDS)] | None = None
    data: str = ""
    shards: tuple[tuple[Size, Size], ...] = ()
    began: str = ""
    machine: str = ""
    dtypes: tuple[str, ...] = ()
    dataset: str = ""
    indices: str = ""
    indices_salt: str = ""
    federated: bool = False
    part: Annotated[int, Between(0, MOST_PARTS)] = 0
    no_loader: bool = False
    notes: tuple[str, ...] = ()

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

    def write(self) -> bytes:
        text = json.dumps({"dpspec-run": FORMAT, **asdict(self)}, indent=1, allow_nan=False)
        return text.encode("utf-8") + b"\n"

    def differs(self, later: "Header") -> str:
        """The first fact that all parts of a training have in common, and a later one has not; "" if all are equal."""
        facts = (name for name in _OF_ALL_PARTS if getattr(self, name) != getattr(later, name))
        return next(facts, "").replace("_", " ")

    @property
    def present(self) -> int | None:
        return None if self.records is None else self.records - self.left_out

    @property
    def parameters(self) -> int:
        return sum(size for _, size in self.layers)


def read_header(content: bytes, name: str) -> Header:
    try:
        read = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RecordingError(f"{name}: not JSON: {str(error)[:80]}") from None
    version = read.get("dpspec-run") if isinstance(read, dict) else None
    if type(version) is not int or version < 1:
        raise RecordingError(f"{name}: not the mark of a recorded run: it has no number 'dpspec-run'")
    if version != FORMAT:
        raise RecordingError(f"{name}: format {version} is of another version of dpspec: record again")
    try:
        header = json_records.read(Header, {k: v for k, v in read.items() if k != "dpspec-run"}, f"{name}: header")
    except ValueError as error:
        raise RecordingError(str(error)) from None
    if len(header.layers) > MOST_LAYERS:
        raise RecordingError(f"{name}: layers must be at most {MOST_LAYERS}")
    for key, value in vars(header).items():
        if any(len(text) > LONGEST for text in texts(value)):
            raise RecordingError(f"{name}: {key} must have texts of at most {LONGEST} characters")
    within = [start + size <= whole for (start, whole), (_, size) in zip(header.shards, header.layers, strict=False)]
    if header.shards and (len(header.shards) != len(header.layers) or not all(within)):
        raise RecordingError(f"{name}: shards must have one place within a parameter for each layer")
    planted_records = header.canaries * header.copies
    if not header.left_out <= planted_records < (header.records or planted_records + 1):
        raise RecordingError(f"{name}: left_out must be at most canaries times copies, and these below records")
    return header


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from texts((*value, *value.values()))
    elif isinstance(value, tuple):
        for element in value:
            yield from texts(element)


Array: TypeAlias = np.ndarray[Any, Any]

#: The number of bytes that determine all inclusion bits.
BYTES = 32

#: Canaries that are not records: the recorder adds them to sums of gradients.
GRADIENTS = "gradients"

#: Canaries that are sequences of token ids.
NEW_TOKENS, RANDOM_TOKENS = "new-tokens", "random-tokens"

#: Seeds are below this.
MOST_SEEDS = 2**63


@dataclass(frozen=True)
class CoinSource:
    """The source of the inclusion bits. seed: the given one, None for the system's randomness."""

    secret: bytes
    seed: int | None

    @classmethod
    def of(cls, seed: int | None) -> Self:
        """From a seed in [0, 2**63), or from the system's randomness; ``UsageError`` for other seeds."""
        if seed is None:
            return cls(secrets.token_bytes(BYTES), None)
        if type(seed) is not int or not 0 <= seed < MOST_SEEDS:
            raise UsageError(f"seed must be an integer from 0 to 2**63 - 1, or None, got {seed!r}")
        return cls(hashlib.sha256(f"dpspec seed {seed}".encode()).digest(), seed)

    def coins(self, count: int) -> Array:
        drawn = hashlib.shake_256(b"dpspec coins" + self.secret).digest(-(-count // 8))
        return np.unpackbits(np.frombuffer(drawn, dtype=np.uint8), count=count).astype(np.int8)

    def generator(self) -> np.random.Generator:
        return np.random.default_rng(int.from_bytes(hashlib.sha256(b"dpspec canaries" + self.secret).digest(), "big"))

    @property
    def commitment(self) -> str:
        return hashlib.sha256(b"dpspec commitment" + self.secret).hexdigest()


def table(coins: Array, scores: Array, source: CoinSource) -> bytes:
    """The file of scores: an npz of ``coin`` (m,) int8, ``score`` (m,) float64, and ``secret``, their source."""
    content = io.BytesIO()
    secret = np.frombuffer(source.secret, dtype=np.uint8)
    np.savez(content, coin=coins.astype(np.int8), score=scores.astype(np.float64), secret=secret)
    return content.getvalue()
