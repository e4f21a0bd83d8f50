"""What every data kind has in common: its own facts and rows, then ``split`` and ``size``, as counts and as rows."""

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


#: Keeps draws apart that share a seed.
SPLIT, SIZE, GENERATE = 1, 2, 3


def generator(seed: int, purpose: int) -> np.random.RandomState:
    """A random stream of its own. ``RandomState`` is frozen: every numpy draws the same numbers from the same seed."""
    import numpy as np

    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, purpose])))


@dataclasses.dataclass(frozen=True)
class Selection:
    """``split`` and ``size`` of a data block, resolved to counts. Keys that change no row are None.

    test: how many records are held back. held: which ones, ascending, where the spec lists them; else ``test_seed``
        draws them.
    """

    test: int | None
    held: tuple[int, ...] | None
    test_seed: int
    size: int | None
    size_seed: int

    @classmethod
    def of(cls, options: FrozenMap, whole: Facts) -> Selection:
        """Resolve the options against the whole source; raises ``DataError`` where they do not fit it."""
        split, rest = options.get("split"), whole.records
        test = held = None
        if split is not None:
            if whole.test_records:
                raise DataError("split: this source has test records of its own")
            asked = split["test"]
            held = _listed(asked, whole.records) if isinstance(asked, tuple) else None
            test = _count(float(asked), whole.records) if held is None else len(held)
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
        """What of the selection decides the rows."""
        drawn = None if self.test is None else [self.test, self.test_seed]
        split = drawn if self.held is None else {"held": list(self.held)}
        return {"split": split, "size": None if self.size is None else [self.size, self.size_seed]}

    def facts(self, whole: Facts) -> Facts:
        """The facts of the whole source, with the selection's counts."""
        records = whole.records - (self.test or 0)
        return dataclasses.replace(
            whole, records=self.size or records, test_records=whole.test_records + (self.test or 0)
        )

    def rows(self, whole: LoadedData) -> LoadedData:
        """The selected rows, in the source's own order."""
        x, y, test_x, test_y = whole.train_x, whole.train_y, whole.test_x, whole.test_y
        if self.test is not None:
            held = _mask(len(y), self.held) if self.held else _draw(len(y), self.test, self.test_seed, SPLIT)
            x, y, test_x, test_y = x[~held], y[~held], x[held], y[held]
        if self.size is not None:
            kept = _draw(len(y), self.size, self.size_seed, SIZE)
            x, y = x[kept], y[kept]
        return LoadedData(train_x=x, train_y=y, test_x=test_x, test_y=test_y)


def _count(test: float, records: int) -> int:
    """A fraction of the records to the nearest count, or the count itself; at least one record is left to train on."""
    if test >= 1 and not test.is_integer():
        raise DataError(f"split.test must be a fraction below 1 or a whole count, got {test}")
    count = int(test) if test >= 1 else int(test * records + 0.5)
    if not 1 <= count < records:
        raise DataError(f"split.test holds back {count} of {records} records; at least one must test and one train")
    return count


def _listed(asked: tuple[Json, ...], records: int) -> tuple[int, ...]:
    """The listed places, ascending; at least one record is left to train on."""
    held = tuple(sorted(int(place) for place in asked))
    if held[-1] >= records:
        raise DataError(f"split.test holds back record {held[-1]}, but there are {records} records, counted from 0")
    if len(held) == records:
        raise DataError(f"split.test holds back all {records} records; at least one must train")
    return held


def _mask(records: int, places: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """A mask (records,) that is true at ``places``."""
    import numpy as np

    mask = np.zeros(records, dtype=bool)
    mask[list(places)] = True
    return mask


def _draw(records: int, count: int, seed: int, purpose: int) -> np.ndarray[Any, Any]:
    """A mask (records,) with ``count`` trues, uniform over all such masks."""
    import numpy as np

    mask = np.zeros(records, dtype=bool)
    mask[generator(seed, purpose).permutation(records)[:count]] = True
    return mask


class Selecting(Protocol):
    """Which of a source's rows are kept, which of those are held back, and what that makes of the facts."""

    def key(self) -> dict[str, Json]:
        """What of it decides the rows."""

    def facts(self, whole: Facts) -> Facts:
        """The facts of the whole source, with the counts of what is selected."""

    def rows(self, whole: LoadedData) -> LoadedData:
        """The selected rows, in the source's own order."""


class Source(ABC):
    """A :class:`~dpspec.contract.DataSource` that has still to say what it reads.

    Image records have shape (channels, height, width), all others (features,).
    """

    def __init__(self, options: FrozenMap, directory: Path) -> None:
        self.options = options
        self.directory = directory

    @abstractmethod
    def describe(self) -> Facts:
        """The facts of the whole source before the common options. Cheap; imports neither torch nor scipy.

        Its ``digest`` must change whenever the rows that :meth:`read` returns change.
        """

    @abstractmethod
    def read(self) -> LoadedData:
        """The rows of the whole source before the common options, of any real dtype; empty test arrays if none."""

    def facts(self) -> Facts:
        """The public facts of the records that trials see; raises ``DataError``."""
        whole = self.describe()
        check_constants(self.options, whole.shape)
        selection = self.selection(whole)
        return dataclasses.replace(selection.facts(whole), digest=self._digest(whole, selection))

    def load(self) -> LoadedData:
        """The records that trials see, finite float32 (NaN where missing) with int64 labels; raises ``DataError``."""
        whole, what, what_test = self.describe(), self.what(), self.what(test=True)
        check_constants(self.options, whole.shape)
        raw = self.read()
        missing = bool(self.options.get("missing"))
        train_x, train_y = checked(raw.train_x, raw.train_y, whole.classes, what, missing=missing)
        test_x, test_y = checked(raw.test_x, raw.test_y, whole.classes, what_test, missing=missing)
        if (train_x.shape, test_x.shape) != ((whole.records, *whole.shape), (whole.test_records, *whole.shape)):
            raise DataError(f"{what}: read {train_x.shape} and {test_x.shape}, which are not the shapes described")
        chosen = self.selection(whole).rows(LoadedData(train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y))
        return LoadedData(
            train_x=transformed(chosen.train_x, self.options, what),
            train_y=chosen.train_y,
            test_x=transformed(chosen.test_x, self.options, what_test),
            test_y=chosen.test_y,
            owners=chosen.owners,
        )

    def selection(self, whole: Facts) -> Selecting:
        """Which rows trials see; raises ``DataError`` where the options do not fit the source."""
        return Selection.of(self.options, whole)

    def what(self, test: bool = False) -> str:
        """How messages about the training or test rows begin: with the file, where there is one."""
        name = self.options.get("path")
        return ("data" if name is None else str(self.directory / name)) + " (test)" * test

    def _digest(self, whole: Facts, selection: Selecting) -> str:
        key: dict[str, Json] = {"rows": whole.digest, **selection.key()}
        constants, radius = self.options.get("standardise"), self.options.get("radius")
        if constants is not None:
            key["standardise"] = [_floats(constants.get("mean", 0.0)), _floats(constants.get("std", 1.0))]
        if radius is not None:
            key["radius"] = float(radius)
        return digest(key)


def _floats(constant: Json) -> Json:
    return [float(c) for c in constant] if isinstance(constant, tuple) else float(constant)
