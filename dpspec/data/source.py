"""Base class of data kinds with records: their shared keys, transformations, and location and limits of files."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dpspec.contract import DataError, Facts, FrozenMap, Json, LoadedData
from dpspec.contract.fragments import block, flag, integer, number, string
from dpspec.contract.frozen import digest
from dpspec.text import closest, did_you_mean

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]

    #: Features (n, ...) and labels (n,).
    Rows: TypeAlias = tuple[Array, Array]

_SEED: dict[str, Json] = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1, "default": 0}

COMMON: dict[str, Json] = {
    "split": block(
        "Holds out some records for testing, if the source has no test records.",
        ["test"],
        test={
            "type": ["number", "array"],
            "exclusiveMinimum": 0,
            "minItems": 1,
            "maxItems": 100_000,
            "uniqueItems": True,
            "items": integer("A record's index, from 0.", least=0),
            "description": "The records to hold out: a fraction below 1, a count, or a list of indices, for "
            "example to repeat a published split.",
        },
        seed={**_SEED, "description": "Seed of the held-out records, if test is a fraction or a count."},
    ),
    "size": integer(
        "The number of training records to use, drawn at random by seed. With the same seed, a smaller "
        "size draws a subset of a larger one.",
        least=1,
    ),
    "seed": {
        **_SEED,
        "description": "Seed of the records that size and max_records_per_user keep, and of synthetic data.",
    },
    "standardise": block(
        "Replaces x by (x - mean) / std. Public constants, never computed from the records.",
        mean={
            "type": ["number", "array"],
            "items": {"type": "number"},
            "default": 0.0,
            "description": "The subtrahend: one number, or one per feature (images: one per channel).",
        },
        std={
            "type": ["number", "array"],
            "exclusiveMinimum": 0,
            "items": {"type": "number", "exclusiveMinimum": 0},
            "default": 1.0,
            "description": "The divisor: one number, or one per feature (images: one per channel).",
        },
    ),
    "radius": number(
        "Maximum l2 norm of a record after standardise; longer records are scaled down. A public constant.", least=1e-6
    ),
}


def schema(*required: str, public: bool = False, **kind_keys: Json) -> dict[str, Json]:
    """Return the JSON Schema of a data block with the common keys and the keys of a kind, some of these ``required``.

    ``public`` is the default of this key.
    """
    return block(None, list(required), **kind_keys, **COMMON, public={**_PUBLIC, "default": public})


def unscaled(data_block: dict[str, Json]) -> dict[str, Json]:
    """Return the schema without the keys that scale features: ids are not quantities."""
    keys = {key: value for key, value in data_block["properties"].items() if key not in ("standardise", "radius")}
    return {**data_block, "properties": keys}


_PUBLIC: dict[str, Json] = flag(
    "True if the records are public. Reports of private records omit values that depend on them, such "
    "as accuracy, except with --internal."
)

#: Schema of the number of classes, for file formats that do not contain it.
CLASSES: dict[str, Json] = integer(
    "The number of classes; labels are 0 to classes - 1. A public constant, declared rather than counted.",
    least=2,
    most=100_000,
)


def path(description: str) -> dict[str, Json]:
    return string(f"{description} Relative to the spec's directory.")


def checked(x: Array, y: Array, classes: int, source: object, *, missing: bool = False) -> Rows:
    """Validate records (n, ...) and labels (n,), and convert them to float32 and int64.

    ``classes`` is 1 for real-valued targets, which become float32. ``missing`` accepts missing features, NaN.
    """
    import numpy as np

    if x.dtype.kind not in "fiu":
        raise DataError(f"{source}: features must be real numbers, got dtype {x.dtype}")
    real = classes == 1
    if y.dtype.kind not in ("fiu" if real else "iu"):
        hint = "" if real else '; for real-valued targets of a function, write @dpspec.dataset(..., target="real")'
        needed = "targets must be real numbers" if real else "labels must be integers (classes)"
        raise DataError(f"{source}: {needed}, got dtype {y.dtype}{hint}")
    if y.shape != x.shape[:1]:
        raise DataError(f"{source}: {x.shape[0]} records need {x.shape[0]} labels, got labels of shape {y.shape}")
    wrong = np.flatnonzero((y < 0) | (y >= classes))
    if wrong.size and not real:
        message = f"{source}: the label of record {wrong[0]} is not in 0..{classes - 1}; labels count from 0"
        raise DataError(message, private=str(y[wrong[0]]))
    rows = x if x.dtype == np.float32 else np.empty(x.shape, dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for part in _blocks(x) if rows is not x else ():
            rows[part] = x[part]
    check_finite(rows, source, "features", missing=missing)
    if real:
        with np.errstate(over="ignore"):
            y = y.astype(np.float32)
        check_finite(y, source, "targets")
    return rows, y if real else y.astype(np.int64, copy=False)


#: Number of values per block, which bounds the memory of temporary arrays.
_BLOCK = 2**20


def _blocks(x: np.ndarray[Any, Any]) -> Iterator[slice]:
    """Slices of records (n, ...) with about ``_BLOCK`` values each."""
    step = max(1, _BLOCK // max(1, prod(x.shape[1:])))
    return (slice(start, start + step) for start in range(0, len(x), step))


def check_finite(x: np.ndarray[Any, Any], source: object, when: str, *, missing: bool = False) -> None:
    import numpy as np

    for part in _blocks(x):
        good = np.isfinite(x[part]) | np.isnan(x[part]) if missing else np.isfinite(x[part])
        bad = np.flatnonzero(~good.all(axis=tuple(range(1, x.ndim))))
        if bad.size:
            key = "standardise" if "standardise" in when else ""
            raise DataError(f"{source}: record {part.start + bad[0]} is not finite in float32 ({when})", key)


def check_constants(options: FrozenMap, shape: tuple[int, ...]) -> None:
    for key, value in (options.get("standardise") or {}).items():
        if isinstance(value, tuple) and len(value) != shape[0]:
            unit = "feature" if len(shape) == 1 else "channel"
            raise DataError(f"standardise.{key} must list one number per {unit} ({shape[0]}), got {len(value)}")


def transformed(x: np.ndarray[Any, Any], options: FrozenMap, source: object) -> np.ndarray[Any, Any]:
    """Apply ``standardise`` and ``radius`` to each record of float32 (n, *shape) independently, in float64.

    Records with an l2 norm above ``radius`` are multiplied by radius (1 - 2^-22) / norm: the margin exceeds the
    rounding error of float32. Missing values stay missing and contribute 0 to the norm.
    """
    import numpy as np

    def spread(constant: Json) -> np.ndarray[Any, Any]:
        array = np.asarray(constant, dtype=np.float64)  # a list applies to the first axis of a record
        return array.reshape((-1,) + (1,) * (x.ndim - 2)) if array.ndim else array

    constants, radius = options.get("standardise"), options.get("radius")
    if (constants is None and radius is None) or not len(x):
        return x
    scaled = np.empty_like(x)
    for part in _blocks(x):
        rows = x[part]
        if constants is not None:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                centred = rows.astype(np.float64) - spread(constants.get("mean", 0.0))
                rows = (centred / spread(constants.get("std", 1.0))).astype(np.float32)
        scaled[part] = rows
    if constants is not None:
        check_finite(scaled, source, "after standardise", missing=bool(options.get("missing")))
    if radius is None:
        return scaled
    for part in _blocks(x):
        rows = scaled[part]
        flat = rows.reshape(len(rows), -1).astype(np.float64)
        norms = np.linalg.norm(np.nan_to_num(flat), axis=1, keepdims=True)
        shorter = flat * (radius * (1 - 2.0**-22) / np.maximum(norms, radius))
        scaled[part] = np.where(norms > radius, shorter, flat).astype(np.float32).reshape(rows.shape)
    return scaled


#: Maximum size of a file, and maximum number of values of an array (4 bytes each once loaded).
MAX_BYTES = 2**30
MAX_VALUES = 2**28

#: Maximum number of records, because some work per record is done in Python.
MAX_RECORDS = 2**26

#: Maximum memory per value while rows are loaded: a float64 number and its float32 copies.
LOADING_BYTES = 16

#: Seconds to load a value: 7e-8 from Parquet, 1.8e-6 from CSV. This is their geometric mean.
LOADING_SECONDS = 3.5e-7


def locate(directory: Path, name: str, otherwise: str = "", key: str = "path") -> Path:
    """Return the path of a regular file, with the suffix ``otherwise`` if it is missing without. Raises ``DataError``.

    Empty files are rejected: system files in ``/proc`` report size 0 but may be endless or contain secrets.
    """
    path = directory / name
    try:
        regular, size = path.is_file(), path.stat().st_size
    except FileNotFoundError:
        if otherwise and os.path.exists(directory / (name + otherwise)):
            return locate(directory, name + otherwise, key=key)
        raise DataError(f"{path}: {_absence(path, name)}", key) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be opened: {error}", key) from error
    if not regular:
        raise DataError(f"{path}: {'is a folder; name a file in it' if path.is_dir() else 'not a regular file'}", key)
    if size == 0:
        raise DataError(f"{path}: is empty", key)
    if size > MAX_BYTES:
        raise DataError(f"{path}: {size} bytes; at most {MAX_BYTES} are read", key)
    return path


def _absence(path: Path, name: str) -> str:
    """Describe why a file is missing, with a suggestion from its folder."""
    if path.is_symlink():
        return "is a link to a missing file"
    if re.match(r"\w+://", name):
        return "no such file; data are read from local files only: download it"
    if name.startswith(("~", "$")):
        return "no such file; ~ and variables are not replaced: write the whole path"
    siblings: list[str] = []
    with suppress(OSError), os.scandir(path.parent) as entries:
        siblings = [entry.name for entry in islice(entries, 1000)]
    same_stem = [sibling for sibling in siblings if path.name and sibling.startswith(f"{path.name}.")]
    return f"no such file{did_you_mean(next(iter(same_stem), None) or closest(path.name, siblings))}"


def sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def check_count(source: object, shape: Sequence[int]) -> None:
    if min(shape, default=0) < 1:
        raise DataError(f"{source}: is empty (shape {tuple(shape)})")
    if prod(shape) > MAX_VALUES or shape[0] > MAX_RECORDS:
        if prod(shape) <= MAX_VALUES:
            raise DataError(f"{source}: {shape[0]} records; at most {MAX_RECORDS} are read")
        raise DataError(f"{source}: {prod(shape)} values; at most {MAX_VALUES} are read")


#: Purposes of random draws, which separate streams with the same seed.
SPLIT, SIZE, GENERATE = 1, 2, 3

#: Defaults of the keys of synthetic data.
_DEFAULTS = {"records": 1000, "features": 16, "vocabulary": 50, "length": 16, "classes": 2, "seed": 0}


def generator(seed: int, *purpose: int) -> np.random.RandomState:
    """Return the random stream of a seed and purpose. ``RandomState`` draws the same numbers in all numpy versions."""
    import numpy as np

    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, *purpose])))


def whole_facts(
    records: int, shape: tuple[int, ...], classes: int, key: Json, *, test: int = 0, vocabulary: int | None = None
) -> Facts:
    """Return the facts of a whole source; the digest of ``key`` identifies its rows."""
    return Facts(
        records=records,
        features=prod(shape),
        classes=classes,
        shape=shape,
        test_records=test,
        digest=digest(key),
        vocabulary=vocabulary,
    )


def whole_rows(train: Rows, test: Rows | None = None) -> LoadedData:
    """Return the rows of a whole source, with empty test arrays if it has no test records."""
    (x, y), (test_x, test_y) = train, test or (train[0][:0], train[1][:0])
    return LoadedData(train_x=x, train_y=y, test_x=test_x, test_y=test_y)


def held_out_count(test: float, count: int, unit: str, key: str = "") -> int:
    """Convert a fraction of ``count`` records or users, or their number, to a number that leaves at least one."""
    if test >= 1 and not float(test).is_integer():
        raise DataError(f"split.test must be a fraction below 1 or an integer, got {test}", key)
    test_count = int(test) if test >= 1 else int(test * count + 0.5)
    if not 1 <= test_count < count:
        message = f"split.test holds out {test_count} of {count} {unit}"
        raise DataError(f"{message}; testing and training need at least one each", key)
    return test_count


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """The records that a data block selects from a source: their key and numbers, and the function that takes them."""

    key: dict[str, Json]
    records: int
    test_records: int
    rows: Callable[[LoadedData], LoadedData]
    users: int | None = None
    dropped: int = 0


def select(options: FrozenMap, whole: Facts) -> Selection:
    """Resolve ``split`` and ``size`` to numbers and indices."""
    split, records, size = options.get("split"), whole.records, options.get("size")
    count, drawn_split, test_rows = 0, None, list[int]()
    if split is not None:
        if whole.test_records:
            raise DataError("split: this source already has test records")
        if isinstance(split["test"], tuple):
            test_rows = sorted(int(index) for index in split["test"])
            count = len(test_rows)
            if (last := test_rows[-1]) >= records:
                rule = f"the last of {records} records is {records - 1}"
                raise DataError(f"split.test holds out record {last}, but {rule}")
            if count == records:
                raise DataError(f"split.test holds out all {records} records; training needs at least one")
        else:
            count = held_out_count(float(split["test"]), records, "records")
            drawn_split = (count, int(split.get("seed", 0)))
    training_records = records - count
    if size is not None and size > training_records:
        raise DataError(f"size is {size}, but there are only {training_records} training records")
    drawn_size = None if size is None or size == training_records else (int(size), int(options.get("seed", 0)))

    def rows(data: LoadedData) -> LoadedData:
        import numpy as np

        x, y, test = data.train_x, data.train_y, (data.test_x, data.test_y)
        if split is not None:
            out = np.zeros(len(y), dtype=bool)
            out[test_rows if drawn_split is None else _drawn(len(y), *drawn_split, SPLIT)] = True
            x, y, test = x[~out], y[~out], (x[out], y[out])
        if drawn_size is not None:
            sample = np.sort(_drawn(len(y), *drawn_size, SIZE))
            x, y = x[sample], y[sample]
        return whole_rows((x, y), test)

    return Selection(
        key={"split": {"held": test_rows} if test_rows else drawn_split, "size": drawn_size},
        records=training_records if drawn_size is None else drawn_size[0],
        test_records=whole.test_records + count,
        rows=rows,
    )


def _drawn(records: int, count: int, seed: int, purpose: int) -> np.ndarray[Any, Any]:
    """Draw ``count`` of ``records`` indices."""
    indices: Array = generator(seed, purpose).permutation(records)[:count]
    return indices


class Source(ABC):
    """Base class of :class:`~dpspec.contract.DataSource` with records.

    Records of images have shape (channels, height, width), all others (features,).
    """

    def __init__(self, options: FrozenMap, directory: Path) -> None:
        self.options = options
        self.directory = directory
        self._values: int | None = None  # of all records, also unselected ones

    @abstractmethod
    def describe(self) -> Facts:
        """Return the facts of the whole source before the common options, without importing torch or scipy.

        The ``digest`` must change if the rows of :meth:`read` change.
        """

    @abstractmethod
    def read(self) -> LoadedData:
        """Return all rows before the common options, of any real dtype; test arrays may be empty."""

    def facts(self) -> Facts:
        """The facts of the selected records, whose digest covers the rows and the common options."""
        whole = self.describe()
        check_constants(self.options, whole.shape)
        # A label, and what locates a record, count as two more values.
        self._values = (whole.records + whole.test_records) * (prod(whole.shape) + 2)
        chosen = self.selection(whole)
        key: dict[str, Json] = {"rows": whole.digest, **chosen.key}
        constants, radius = self.options.get("standardise"), self.options.get("radius")
        if constants is not None:
            both = constants.get("mean", 0.0), constants.get("std", 1.0)
            key["standardise"] = [[*map(float, c)] if isinstance(c, tuple) else float(c) for c in both]
        if radius is not None:
            key["radius"] = float(radius)
        counted = dataclasses.replace(whole, records=chosen.records, test_records=chosen.test_records)
        return dataclasses.replace(counted, users=chosen.users, digest=digest(key))

    def loading_bytes(self) -> int:
        """Memory of :meth:`load` in bytes, for all rows of the files: 8 per read and per converted value."""
        if self._values is None:
            self.facts()
        return LOADING_BYTES * (self._values or 0)

    def load(self) -> LoadedData:
        """Return the records that trials use: finite float32 (NaN if missing), int64 labels. Raises ``DataError``."""
        whole, source, what_test = self.describe(), self.what(), self.what(test=True)
        check_constants(self.options, whole.shape)
        raw = self.read()
        missing = bool(self.options.get("missing"))
        train = checked(raw.train_x, raw.train_y, whole.classes, source, missing=missing)
        test = checked(raw.test_x, raw.test_y, whole.classes, what_test, missing=missing)
        del raw  # the memory of the unconverted rows
        shapes = train[0].shape, test[0].shape
        if shapes != ((whole.records, *whole.shape), (whole.test_records, *whole.shape)):
            raise DataError(f"{source}: shapes {shapes[0]} and {shapes[1]} differ from those described")
        rows = whole_rows(train, test)
        del train, test
        chosen = self.selection(whole).rows(rows)
        del rows
        test_x = transformed(chosen.test_x, self.options, what_test)
        return dataclasses.replace(chosen, train_x=transformed(chosen.train_x, self.options, source), test_x=test_x)

    def selection(self, whole: Facts) -> Selection:
        """The records that the options select from a whole source."""
        return select(self.options, whole)

    def what(self, test: bool = False) -> str:
        """Return the beginning of messages about the training or test rows: the file, if there is one."""
        if test and "test_path" in self.options:
            return str(self.directory / self.options["test_path"])
        name = self.options.get("path")
        return ("data" if name is None else str(self.directory / name)) + " (test)" * test

    def number(self, key: str) -> int:
        """The integer option, or its default."""
        return int(self.options[key] if key in self.options else _DEFAULTS[key])


class Halves(Source):
    """Base class of sources whose files have a training half, and possibly a test half."""

    @abstractmethod
    def halves(self) -> list[Any]:
        """Return the training half, and the test half if there is one."""

    @abstractmethod
    def shape(self, half: Any) -> tuple[int, ...]:
        """Return the shape (n, ...) of a half's features, without reading its rows."""

    @abstractmethod
    def rows(self, half: Any) -> Rows:
        """Return the features (n, ...) and labels (n,) of a half."""

    @abstractmethod
    def key(self, halves: list[Any]) -> dict[str, Json]:
        """Return JSON that changes if the rows change."""

    def describe(self) -> Facts:
        halves = self.halves()
        shapes = [self.shape(half) for half in halves]
        for test, shape in enumerate(shapes):
            check_count(self.what(test=bool(test)), shape)
        (records, *record), *test_shapes = shapes
        for _, *test_record in test_shapes:
            if test_record != record:
                message = f"test records have shape {tuple(test_record)}, training records {tuple(record)}"
                raise DataError(f"{self.what(test=True)}: {message}")
        classes, vocabulary = self.options.get("classes", 10), self.options.get("vocabulary")
        count = len(classes) if isinstance(classes, tuple) else int(classes)
        test_records = sum(shape[0] for shape in test_shapes)
        key = self.key(halves)
        return whole_facts(records, tuple(record), count, key, test=test_records, vocabulary=vocabulary)

    def read(self) -> LoadedData:
        return whole_rows(*map(self.rows, self.halves()))
