"""What every data kind has in common: its own facts and rows, then the common options on top."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from pathlib import Path

from dpspec.contract import DataError, Facts, FrozenMap, Json, LoadedData
from dpspec.contract.canonical import digest
from dpspec.data.selection import Selection
from dpspec.data.values import check_constants, checked, transformed


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
        selection = Selection.of(self.options, whole)
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
        chosen = Selection.of(self.options, whole).rows(
            LoadedData(train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y)
        )
        return LoadedData(
            train_x=transformed(chosen.train_x, self.options, what),
            train_y=chosen.train_y,
            test_x=transformed(chosen.test_x, self.options, what_test),
            test_y=chosen.test_y,
        )

    def what(self, test: bool = False) -> str:
        """How messages about the training or test rows begin: with the file, where there is one."""
        name = self.options.get("path")
        return ("data" if name is None else str(self.directory / name)) + " (test)" * test

    def _digest(self, whole: Facts, selection: Selection) -> str:
        key: dict[str, Json] = {"rows": whole.digest, **selection.key()}
        constants, radius = self.options.get("standardise"), self.options.get("radius")
        if constants is not None:
            key["standardise"] = [_floats(constants.get("mean", 0.0)), _floats(constants.get("std", 1.0))]
        if radius is not None:
            key["radius"] = float(radius)
        return digest(key)


def _floats(constant: Json) -> Json:
    return [float(c) for c in constant] if isinstance(constant, tuple) else float(constant)
