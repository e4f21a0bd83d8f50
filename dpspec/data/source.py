"""Base class of data kinds with records, location and limits of files, and selection by ``split`` and ``size``."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dpspec.contract import DataError, Facts, FrozenMap, Json, LoadedData
from dpspec.contract.frozen import digest
from dpspec.data.options import check_constants, checked, transformed
from dpspec.text import closest, did_you_mean

if TYPE_CHECKING:
    import numpy as np

    #: Features (n, ...) and labels (n,).
    Rows: TypeAlias = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]

#: Maximum size of a file, and maximum number of values of an array (4 bytes each once loaded).
MAX_BYTES = 2**30
MAX_VALUES = 2**28


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
        siblings: list[str] = []
        with suppress(OSError), os.scandir(path.parent) as entries:
            siblings = [entry.name for entry in islice(entries, 1000)]
        raise DataError(f"{path}: no such file{did_you_mean(closest(path.name, siblings))}", key) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be opened: {error}", key) from error
    if not regular:
        raise DataError(f"{path}: not a regular file", key)
    if size == 0:
        raise DataError(f"{path}: is empty", key)
    if size > MAX_BYTES:
        raise DataError(f"{path}: {size} bytes; at most {MAX_BYTES} are read", key)
    return path


def sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def check_count(what: object, shape: Sequence[int]) -> None:
    if min(shape, default=0) < 1:
        raise DataError(f"{what}: is empty (shape {tuple(shape)})")
    if prod(shape) > MAX_VALUES:
        raise DataError(f"{what}: {prod(shape)} values; at most {MAX_VALUES} are read")


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
    held = int(test) if test >= 1 else int(test * count + 0.5)
    if not 1 <= held < count:
        raise DataError(
            f"split.test holds out {held} of {count} {unit}; testing and training need at least one each", key
        )
    return held


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
    count, drawn_split, held = 0, None, list[int]()
    if split is not None:
        if whole.test_records:
            raise DataError("split: this source already has test records")
        if isinstance(split["test"], tuple):
            held = sorted(int(place) for place in split["test"])
            count = len(held)
            if held[-1] >= records:
                raise DataError(
                    f"split.test holds out record {held[-1]}, but the last of {records} records is {records - 1}"
                )
            if count == records:
                raise DataError(f"split.test holds out all {records} records; training needs at least one")
        else:
            count = held_out_count(float(split["test"]), records, "records")
            drawn_split = (count, int(split.get("seed", 0)))
    rest = records - count
    if size is not None and size > rest:
        raise DataError(f"size is {size}, but there are only {rest} training records")
    drawn_size = None if size is None or size == rest else (int(size), int(options.get("seed", 0)))

    def rows(data: LoadedData) -> LoadedData:
        import numpy as np

        x, y, test = data.train_x, data.train_y, (data.test_x, data.test_y)
        if split is not None:
            out = np.zeros(len(y), dtype=bool)
            out[held if drawn_split is None else _drawn(len(y), *drawn_split, SPLIT)] = True
            x, y, test = x[~out], y[~out], (x[out], y[out])
        if drawn_size is not None:
            kept = np.sort(_drawn(len(y), *drawn_size, SIZE))
            x, y = x[kept], y[kept]
        return whole_rows((x, y), test)

    return Selection(
        key={"split": {"held": held} if held else drawn_split, "size": drawn_size},
        records=rest if drawn_size is None else drawn_size[0],
        test_records=whole.test_records + count,
        rows=rows,
    )


def _drawn(records: int, count: int, seed: int, purpose: int) -> np.ndarray[Any, Any]:
    """Draw ``count`` of ``records`` indices."""
    indices: np.ndarray[Any, Any] = generator(seed, purpose).permutation(records)[:count]
    return indices


class Source(ABC):
    """Base class of :class:`~dpspec.contract.DataSource` with records.

    Records of images have shape (channels, height, width), all others (features,).
    """

    def __init__(self, options: FrozenMap, directory: Path) -> None:
        self.options = options
        self.directory = directory

    @abstractmethod
    def describe(self) -> Facts:
        """Return the facts of the whole source before the common options, without importing torch or scipy.

        The ``digest`` must change if the rows of :meth:`read` change.
        """

    @abstractmethod
    def read(self) -> LoadedData:
        """Return all rows before the common options, of any real dtype; test arrays may be empty."""

    def facts(self) -> Facts:
        whole = self.describe()
        check_constants(self.options, whole.shape)
        chosen = self.selection(whole)
        key: dict[str, Json] = {"rows": whole.digest, **chosen.key}
        constants, radius = self.options.get("standardise"), self.options.get("radius")
        if constants is not None:
            both = constants.get("mean", 0.0), constants.get("std", 1.0)
            key["standardise"] = [[*map(float, c)] if isinstance(c, tuple) else float(c) for c in both]
        if radius is not None:
            key["radius"] = float(radius)
        return dataclasses.replace(
            whole,
            records=chosen.records,
            test_records=chosen.test_records,
            users=chosen.users,
            digest=digest(key),
        )

    def load(self) -> LoadedData:
        """Return the records that trials use: finite float32 (NaN if missing), int64 labels. Raises ``DataError``."""
        whole, what, what_test = self.describe(), self.what(), self.what(test=True)
        check_constants(self.options, whole.shape)
        raw = self.read()
        missing = bool(self.options.get("missing"))
        train = checked(raw.train_x, raw.train_y, whole.classes, what, missing=missing)
        test = checked(raw.test_x, raw.test_y, whole.classes, what_test, missing=missing)
        shapes = train[0].shape, test[0].shape
        if shapes != ((whole.records, *whole.shape), (whole.test_records, *whole.shape)):
            raise DataError(f"{what}: shapes {shapes[0]} and {shapes[1]} differ from those described")
        chosen = self.selection(whole).rows(whole_rows(train, test))
        return dataclasses.replace(
            chosen,
            train_x=transformed(chosen.train_x, self.options, what),
            test_x=transformed(chosen.test_x, self.options, what_test),
        )

    def selection(self, whole: Facts) -> Selection:
        return select(self.options, whole)

    def what(self, test: bool = False) -> str:
        """Return the beginning of messages about the training or test rows: the file, if there is one."""
        if test and "test_path" in self.options:
            return str(self.directory / self.options["test_path"])
        name = self.options.get("path")
        return ("data" if name is None else str(self.directory / name)) + " (test)" * test

    def number(self, key: str) -> int:
        return int(self.options.get(key, _DEFAULTS.get(key)))


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
        (records, *record), *rest = shapes
        for _, *other in rest:
            if other != record:
                message = f"test records have shape {tuple(other)}, training records {tuple(record)}"
                raise DataError(f"{self.what(test=True)}: {message}")
        classes, vocabulary = self.options.get("classes", 10), self.options.get("vocabulary")
        return whole_facts(
            records,
            tuple(record),
            len(classes) if isinstance(classes, tuple) else int(classes),
            self.key(halves),
            test=sum(shape[0] for shape in rest),
            vocabulary=vocabulary,
        )

    def read(self) -> LoadedData:
        return whole_rows(*map(self.rows, self.halves()))
