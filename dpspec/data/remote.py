"""Data that is fetched by name: the spec states its public facts, so that nothing but training needs the network.

Bounds, ``validate`` and ``plan`` never fetch; loading does, once, and then finds the records in the cache. Rows that
contradict the facts are refused.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, Facts, Json, LoadedData
from dpspec.contract.canonical import digest
from dpspec.data.declared import DATASET as DECLARED
from dpspec.data.files import check_count
from dpspec.data.table import Table

if TYPE_CHECKING:
    import numpy as np

_DECLARED = DECLARED.schema["properties"]

#: The public facts that a spec states of data that is not at hand.
FACTS: dict[str, Json] = {
    "records": {
        **_DECLARED["records"],
        "description": "How many training records there are, before split and size. Public, and checked on loading.",
    },
    "features": {
        **{key: value for key, value in _DECLARED["features"].items() if key != "default"},
        "description": "How many features a record has, or its shape: [channels, height, width] for images. Public, "
        "and checked on loading.",
    },
}


def cache() -> Path:
    """Where fetched data is kept: ``$DPSPEC_DATA``, or else ``dpspec`` in the user's cache folder.

    The environment decides, never a spec: specs of others must not choose where files are written.
    """
    chosen = os.environ.get("DPSPEC_DATA")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpspec" / "data"


class Remote(Table):
    """A source whose records must be fetched: it has still to say from where and how."""

    @abstractmethod
    def identity(self) -> dict[str, Json]:
        """What names the records once and for all: whatever else is published under it makes the facts untrue."""

    @abstractmethod
    def fetch(self, folder: Path) -> LoadedData:
        """The rows, fetched or from ``folder``, where they are kept; features (n, prod(shape)) or (n, *shape)."""

    def describe(self) -> Facts:
        """What the spec declares."""
        features = self.options["features"]
        shape = tuple(int(n) for n in features) if isinstance(features, tuple) else (int(features),)
        records, test_records = int(self.options["records"]), int(self.options.get("test_records", 0))
        check_count(self.what(), (records, *shape))
        check_count(self.what(test=True), (max(1, test_records), *shape))
        columns = [*(self.options.get("columns") or ())]
        return Facts(
            records=records,
            features=prod(shape),
            classes=len(self.classes()),
            shape=shape,
            test_records=test_records,
            digest=digest({**self.identity(), **self.table_key(), "columns": columns, "shape": [*shape]}),
        )

    def read(self) -> LoadedData:
        """The rows, in the declared shape; raises ``DataError`` where they cannot be had or are not as declared."""
        facts, folder = self.describe(), cache()
        try:
            rows = self.fetch(folder)
        except DataError:
            raise
        except Exception as error:  # libraries, networks and servers fail in more ways than can be listed
            raise DataError(
                f"{self.what()}: could not be fetched ({type(error).__name__}: {error}). The first time it takes a "
                f"network connection; then it is kept in {folder} ($DPSPEC_DATA)"
            ) from error
        train_x = self._shaped(rows.train_x, facts.records, facts)
        test_x = self._shaped(rows.test_x, facts.test_records, facts, test=True)
        return LoadedData(train_x=train_x, train_y=rows.train_y, test_x=test_x, test_y=rows.test_y)

    def _shaped(self, x: np.ndarray[Any, Any], records: int, facts: Facts, test: bool = False) -> np.ndarray[Any, Any]:
        """Features in the declared shape, if there are as many as declared."""
        found = prod(x.shape[1:])
        if (len(x), found) != (records, facts.features):
            raise DataError(
                f"{self.what(test)}: has {len(x)} records of {found} features; the spec declares {records} of "
                f"{facts.features}"
            )
        return x.reshape(records, *facts.shape)
