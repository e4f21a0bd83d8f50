"""``run.json``, the facts that are known when a recording begins, and the inclusion bits that it commits to.

The bits of m canaries are the first m bits of SHAKE-256 of 32 bytes, which are the system's own randomness or SHA-256
of a given seed. The header states SHA-256 of these bytes, which does not reveal the bits; ``canaries.npz`` holds the
bytes, which prove them.
"""

from __future__ import annotations

import hashlib
import io
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self, TypeAlias

import numpy as np

from dpspec.errors import RecordingError, UsageError
from dpspec.recording.folder.step_record import MOST_RECORDS

#: The version of the folder's format. Folders of a single process have the first one.
FORMAT = 2

#: The largest number of canaries.
MOST_CANARIES = 10**6

#: The largest number of processes that train together.
MOST_RANKS = 2**16

#: The largest number of parts of a training in several jobs.
MOST_PARTS = 1000

#: Limits of a header: bytes, layers, and characters of a name.
MOST_BYTES, MOST_LAYERS, _LONGEST = 1 << 21, 10_000, 400


@dataclass(frozen=True, kw_only=True)
class Header:
    """The parts of a run by the names of their classes; "" or None if unknown.

    source: ``opacus``, or ``own-loop`` for a custom loop. repeats: the largest number of indices of the dataset that
    lead to one record. reduction: ``mean`` or ``sum``; expected_batch_size: the divisor of a mean. accountant: its
    mechanism or class; told_before: its number of earlier steps. layers: names and sizes of the noisy parameters.
    width: the number of directions of the noise sketch. secure: whether noise comes from a cryptographic generator.
    canaries: the number of canaries; copies: the number of places of each, the last of ``records``; left_out: the
    number of places of omitted ones; commitment: the digest of the source of their inclusion bits; canary_seed: its
    seed, None for the system's randomness; new_ids: the number of token ids that the model has for canaries only.
    world: the number of processes that train together, 0 for a training in one; rank: this one's number; run: the id
    of their run; share: the number of records that this rank draws from, by Opacus' sampler for several processes;
    data: the digest of some records; shards: of each layer of a sharded model the place of this rank's first
    coordinate, and the number of coordinates on all ranks. part: the number of a part of a training in several
    jobs; 0 without ``resume=True``, so that a killed one may lack its last steps. notes: unknown parts.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    source: str = "own-loop"
    optimizer: str = ""
    inner: str = ""
    model: str = ""
    loader: str = ""
    sampler: str = ""
    clipping: str = "own"
    scheme: str = "none"
    repeats: int = 1
    rate: float | None = None
    records: int | None = None
    batch_size: int | None = None
    workers: int = 0
    reduction: str = ""
    expected_batch_size: float | None = None
    accountant: str = ""
    told_before: int = 0
    layers: tuple[tuple[str, int], ...] = ()
    width: int = 0
    secure: bool = False
    canaries: int = 0
    canary_kind: str = ""
    copies: int = 1
    new_ids: int = 0
    left_out: int = 0
    commitment: str = ""
    canary_seed: int | None = None
    world: int = 0
    rank: int = 0
    run: str = ""
    share: int | None = None
    data: str = ""
    shards: tuple[tuple[int, int], ...] = ()
    part: int = 0
    notes: tuple[str, ...] = ()

    def write(self) -> bytes:
        written = asdict(self)
        absent: tuple[str, ...] = () if self.world else ("world", "rank", "run", "share", "data", "shards")
        absent += () if self.part else ("part",)
        written = {key: value for key, value in written.items() if key not in absent}
        text = json.dumps({"dpspec-run": FORMAT if self.world else 1, **written}, indent=1, allow_nan=False)
        return text.encode("utf-8") + b"\n"

    def differs(self, later: Header) -> str:
        """The first fact that all parts of a training have in common, and a later one has not; "" if all are equal."""
        return next(
            (name.replace("_", " ") for name in _OF_ALL_PARTS if getattr(self, name) != getattr(later, name)), ""
        )

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
    if not isinstance(read, dict) or "dpspec-run" not in read:
        raise RecordingError(f"{name}: not the mark of a recorded run: it has no 'dpspec-run'")
    version = read["dpspec-run"]
    if type(version) is not int or version < 1:
        raise RecordingError(f"{name}: dpspec-run must be an integer of at least 1")
    if version > FORMAT:
        raise RecordingError(f"{name}: format {version} is of a later version of dpspec; this one knows {FORMAT}")
    found: dict[str, Any] = {key: read[key] for key in Header.__dataclass_fields__ if key in read}
    for key, value in found.items():
        problem = _problem(key, value)
        if problem:
            raise RecordingError(f"{name}: {key} must be {problem}")
    if "layers" in found:
        found["layers"] = tuple((layer, size) for layer, size in found["layers"])
    found["notes"] = tuple(found.get("notes", ()))
    found["shards"] = tuple((start, whole) for start, whole in found.get("shards", ()))
    header = Header(**found)
    fits = [start + size <= whole for (start, whole), (_, size) in zip(header.shards, header.layers, strict=False)]
    if header.shards and (len(header.shards) != len(header.layers) or not all(fits)):
        raise RecordingError(f"{name}: shards must have one place within a parameter for each layer")
    places = header.canaries * header.copies
    if not header.left_out <= places < (header.records or places + 1):
        raise RecordingError(f"{name}: left_out must be at most canaries times copies, and these below records")
    return header


#: The facts without which parts of a training cannot be joined.
_OF_ALL_PARTS = (
    *("source", "clipping", "reduction", "layers", "width", "records", "accountant", "world", "rank"),
    *("canaries", "canary_kind", "commitment", "copies", "new_ids"),
)

_WORDS = {
    "source": ("opacus", "own-loop"),
    "clipping": ("flat", "per-layer", "adaptive", "ghost", "own"),
    "scheme": ("poisson", "shuffled", "sequential", "weighted", "unknown", "none"),
    "reduction": ("mean", "sum", ""),
}
_COUNTS = {"records": (1, MOST_RECORDS), "batch_size": (1, MOST_RECORDS), "workers": (0, 10**6), "width": (0, 4096)}
_COUNTS |= {"told_before": (0, 2**53), "canaries": (0, MOST_CANARIES), "left_out": (0, MOST_CANARIES)}
_COUNTS |= {"repeats": (1, MOST_RECORDS), "copies": (1, MOST_CANARIES), "new_ids": (0, MOST_CANARIES)}
_COUNTS["canary_seed"] = (0, 2**63 - 1)
_COUNTS |= {"world": (0, MOST_RANKS), "rank": (0, MOST_RANKS), "share": (0, MOST_RECORDS), "part": (0, MOST_PARTS)}
_REALS = {"rate": 1.0, "expected_batch_size": 1e12}


def _problem(key: str, value: Any) -> str | None:
    if key in _WORDS:
        return None if value in _WORDS[key] else f"one of {', '.join(map(repr, _WORDS[key]))}"
    if key in _COUNTS:
        low, high = _COUNTS[key]
        optional = key in ("records", "batch_size", "canary_seed", "share")
        fits = (value is None and optional) or (type(value) is int and low <= value <= high)
        return None if fits else f"an integer from {low} to {high}"
    if key in _REALS:
        fits = value is None or (type(value) in (int, float) and 0.0 <= value <= _REALS[key])
        return None if fits else f"a number from 0 to {_REALS[key]:g}"
    if key == "secure":
        return None if type(value) is bool else "true or false"
    if key == "versions":
        fits = isinstance(value, dict) and len(value) <= 20 and all(map(_is_name, [*value, *value.values()]))
        return None if fits else "a mapping of names to versions"
    if key == "notes":
        return (
            None if isinstance(value, list) and len(value) <= 100 and all(map(_is_name, value)) else "a list of texts"
        )
    if key == "shards":
        fits = isinstance(value, list) and len(value) <= MOST_LAYERS
        fits = fits and all(type(pair) is list and len(pair) == 2 for pair in value)
        fits = fits and all(type(n) is int and 0 <= n < 2**48 for pair in value for n in pair)
        return None if fits else f"a list of at most {MOST_LAYERS} pairs of integers"
    if key == "layers":
        fits = (
            isinstance(value, list)
            and len(value) <= MOST_LAYERS
            and all(type(pair) is list and len(pair) == 2 for pair in value)
        )
        fits = fits and all(_is_name(name) and type(size) is int and 0 <= size < 2**48 for name, size in value)
        return None if fits else f"a list of at most {MOST_LAYERS} names with sizes"
    return None if _is_name(value) else f"a text of at most {_LONGEST} characters"


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST


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
