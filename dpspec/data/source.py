"""Base class of data kinds with records, and the selection of records by ``split`` and ``size``."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dpspec.contract import DataError, Facts, FrozenMap, Json, LoadedData
from dpspec.contract.canonical import digest
from dpspec.data.options import check_constants, checked, transformed

if TYPE_CHECKING:
    import numpy as np


#: Purposes of random draws, which separate streams with the same seed.
SPLIT, SIZE, GENERATE = 1, 2, 3


def generator(seed: int, purpose: int) -> np.random.RandomState:
    """Return the random stream of a seed and purpose. ``RandomState`` draws the same numbers in all numpy versions."""
    import numpy as np

    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, purpose])))


@dataclasses.dataclass(frozen=True)
class Selection:
    """``split`` and ``size`` of a data block, resolved to counts. Keys without effect are None.

    Attributes:
        test: The number of held-out records.
        held: Their indices, ascending, if the spec lists them; otherwise ``test_seed`` draws them.
        test_seed: The seed of the held-out records.
        size: The number of training records to keep.
        size_seed: The seed of the kept records.
    """

    test: int | None
    held: tuple[int, ...] | None
    test_seed: int
    size: int | None
    size_seed: int

    @classmethod
    def of(cls, options: FrozenMap, whole: Facts) -> Selection:
        """Resolve the options for a source. Raises ``DataError`` if they do not fit it."""
        split, rest = options.get("split"), whole.records
        test = held = None
        if split is not None:
            if whole.test_records:
                raise DataError("split: this source already has test records")
            test_option = split["test"]
            held = _listed(test_option, whole.records) if isinstance(test_option, tuple) else None
            test = _count(float(test_option), whole.records) if held is None else len(held)
            rest -= test
        size = options.get("size")
        if size is not None and size > rest:
            raise DataError(f"size is {size}, but there are only {rest} training records")
        return cls(
            test=test,
            held=held,
            test_seed=0 if split is None else int(split.get("seed", 0)),
            size=None if size == rest else size,
            size_seed=int(options.get("seed", 0)),
        )

    def key(self) -> dict[str, Json]:
        """Return the values that determine the selected rows, for the digest."""
        drawn = None if self.test is None else [self.test, self.test_seed]
        split = drawn if self.held is None else {"held": list(self.held)}
        return {"split": split, "size": None if self.size is None else [self.size, self.size_seed]}

    def facts(self, whole: Facts) -> Facts:
        """Return the facts of the whole source with the selection's counts."""
        records = whole.records - (self.test or 0)
        return dataclasses.replace(
            whole, records=self.size or records, test_records=whole.test_records + (self.test or 0)
        )

    def rows(self, whole: LoadedData) -> LoadedData:
        """Return the selected rows in the source's order."""
        x, y, test_x, test_y = whole.train_x, whole.train_y, whole.test_x, whole.test_y
        if self.test is not None:
            held = _mask(len(y), self.held) if self.held else _draw(len(y), self.test, self.test_seed, SPLIT)
            x, y, test_x, test_y = x[~held], y[~held], x[held], y[held]
        if self.size is not None:
            kept = _draw(len(y), self.size, self.size_seed, SIZE)
            x, y = x[kept], y[kept]
        return LoadedData(train_x=x, train_y=y, test_x=test_x, test_y=test_y)


def _count(test: float, records: int) -> int:
    """Convert a fraction of the records, or a count, to a count that leaves at least one training record."""
    if test >= 1 and not test.is_integer():
        raise DataError(f"split.test must be a fraction below 1 or an integer, got {test}")
    count = int(test) if test >= 1 else int(test * records + 0.5)
    if not 1 <= count < records:
        raise DataError(
            f"split.test holds out {count} of {records} records; testing and training need at least one each"
        )
    return count


def _listed(test_option: tuple[Json, ...], records: int) -> tuple[int, ...]:
    """Return the listed indices, ascending. Raises ``DataError`` unless a training record remains."""
    held = tuple(sorted(int(place) for place in test_option))
    if held[-1] >= records:
        raise DataError(f"split.test holds out record {held[-1]}, but the last of {records} records is {records - 1}")
    if len(held) == records:
        raise DataError(f"split.test holds out all {records} records; training needs at least one")
    return held


def _mask(records: int, places: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return a mask (records,) that is true at ``places``."""
    import numpy as np

    mask = np.zeros(records, dtype=bool)
    mask[list(places)] = True
    return mask


def _draw(records: int, count: int, seed: int, purpose: int) -> np.ndarray[Any, Any]:
    """Draw a uniformly random mask (records,) with ``count`` true entries."""
    import numpy as np

    mask = np.zeros(records, dtype=bool)
    mask[generator(seed, purpose).permutation(records)[:count]] = True
    return mask


class RowSelection(Protocol):
    """A selection of kept and held-out rows of a source."""

    def key(self) -> dict[str, Json]:
        """Return the values that determine the rows, for the digest."""

    def facts(self, whole: Facts) -> Facts:
        """Return the facts of the whole source with the counts of the selected rows."""

    def rows(self, whole: LoadedData) -> LoadedData:
        """Return the selected rows in the source's order."""


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
        """Return all rows before the common options, of any real dtype, with empty test arrays if there are none."""

    def facts(self) -> Facts:
        """Return the public facts of the records that trials use. Raises ``DataError``."""
        whole = self.describe()
        check_constants(self.options, whole.shape)
        selection = self.selection(whole)
        return dataclasses.replace(selection.facts(whole), digest=self._digest(whole, selection))

    def load(self) -> LoadedData:
        """Return the records that trials use: finite float32 (NaN if missing), int64 labels. Raises ``DataError``."""
        whole, what, what_test = self.describe(), self.what(), self.what(test=True)
        check_constants(self.options, whole.shape)
        raw = self.read()
        missing = bool(self.options.get("missing"))
        train_x, train_y = checked(raw.train_x, raw.train_y, whole.classes, what, missing=missing)
        test_x, test_y = checked(raw.test_x, raw.test_y, whole.classes, what_test, missing=missing)
        if (train_x.shape, test_x.shape) != ((whole.records, *whole.shape), (whole.test_records, *whole.shape)):
            raise DataError(f"{what}: shapes {train_x.shape} and {test_x.shape} differ from those described")
        chosen = self.selection(whole).rows(LoadedData(train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y))
        return LoadedData(
            train_x=transformed(chosen.train_x, self.options, what),
            train_y=chosen.train_y,
            test_x=transformed(chosen.test_x, self.options, what_test),
            test_y=chosen.test_y,
            owners=chosen.owners,
        )

    def selection(self, whole: Facts) -> RowSelection:
        """Return the rows that trials use. Raises ``DataError`` if the options do not fit the source."""
        return Selection.of(self.options, whole)

    def what(self, test: bool = False) -> str:
        """Return the beginning of messages about the training or test rows: the file, if there is one."""
        name = self.options.get("path")
        return ("data" if name is None else str(self.directory / name)) + " (test)" * test

    def _digest(self, whole: Facts, selection: RowSelection) -> str:
        key: dict[str, Json] = {"rows": whole.digest, **selection.key()}
        constants, radius = self.options.get("standardise"), self.options.get("radius")
        if constants is not None:
            key["standardise"] = [_floats(constants.get("mean", 0.0)), _floats(constants.get("std", 1.0))]
        if radius is not None:
            key["radius"] = float(radius)
        return digest(key)


def _floats(constant: Json) -> Json:
    return [float(c) for c in constant] if isinstance(constant, tuple) else float(constant)
