"""Data that is not at hand, of which the spec states the public facts: ``declared``, and what is fetched by name.

Nothing but training needs the network: bounds, ``validate`` and ``plan`` never fetch; loading does, once, and then
finds the records in the cache. Rows that contradict the facts are refused. ``openml`` stands here, ``huggingface``
beside it.
"""

from __future__ import annotations

import os
import warnings
from abc import abstractmethod
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, Dataset, Facts, FrozenMap, Json, LoadedData
from dpspec.contract.canonical import digest
from dpspec.data.files import check_count
from dpspec.data.options import CLASSES, schema
from dpspec.data.tables.table import KEYS, Table, rows
from dpspec.data.tables.users import RECORDS_PER_USER

if TYPE_CHECKING:
    import numpy as np


DECLARED = Dataset(
    kind="declared",
    summary="Only the public facts of a data set: bounds can be computed, nothing can be trained.",
    schema={
        "type": "object",
        "properties": {
            "records": {"type": "integer", "minimum": 1, "description": "How many training records there are."},
            "features": {
                "type": ["integer", "array"],
                "minimum": 1,
                "minItems": 1,
                "maxItems": 3,
                "items": {"type": "integer", "minimum": 1},
                "default": 1,
                "description": "How many features a record has, or its shape: [channels, height, width] for images.",
            },
            "classes": {**CLASSES, "default": 2, "description": "How many classes there are."},
            "test_records": {
                "type": "integer",
                "minimum": 0,
                "default": 0,
                "description": "How many test records there are.",
            },
            "records_per_user": RECORDS_PER_USER,
        },
        "required": ["records"],
        "additionalProperties": False,
    },
    source="dpspec.data.fetched.remote:Declared",
)


class Declared:
    """Facts as the spec states them; they have no digest, since there are no rows."""

    def __init__(self, options: FrozenMap, directory: Path) -> None:
        self.options = options

    def facts(self) -> Facts:
        """What the spec declares."""
        features = self.options.get("features", 1)
        shape = tuple(int(f) for f in features) if isinstance(features, tuple) else (int(features),)
        return Facts(
            records=int(self.options["records"]),
            features=prod(shape),
            classes=int(self.options.get("classes", 2)),
            shape=shape,
            test_records=int(self.options.get("test_records", 0)),
        )

    def load(self) -> LoadedData:
        """Always raises ``DataError``: there are no rows."""
        raise DataError("data of kind 'declared' has no records: it can be bounded, not trained on")


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


OPENML = Dataset(
    kind="openml",
    summary="A data set of openml.org by its number, or by name and version; fetched once, then cached.",
    schema=schema(
        {
            "id": {
                "type": "integer",
                "minimum": 1,
                "description": "The number of the data set, as its page's address shows it. Instead of name and "
                "version.",
            },
            "name": {"type": "string", "minLength": 1, "description": "The data set's name; goes with version."},
            "version": {"type": "integer", "minimum": 1, "description": "Which version of the name."},
            **FACTS,
            **KEYS,
        },
        required=["records", "features", "label", "classes"],
    ),
    source="dpspec.data.fetched.remote:Openml",
)


class Openml(Remote):
    """Records in the order that openml.org keeps; a published version of a data set never changes there."""

    def identity(self) -> dict[str, Json]:
        """Number, or name and version; raises ``DataError`` unless exactly one of them is given."""
        given = {key: self.options[key] for key in ("id", "name", "version") if key in self.options}
        if given.keys() not in ({"id"}, {"name", "version"}):
            raise DataError(
                f"openml data is named by id, or by name and version; got {', '.join(given) or 'none of them'}"
            )
        return {"kind": "openml", **given}

    def fetch(self, folder: Path) -> LoadedData:
        """All rows of the data set."""
        import numpy as np

        bunch = fetched(self.identity(), folder)
        check_count(self.what(), bunch.data.shape)
        table = bunch.data if isinstance(bunch.data, np.ndarray) else bunch.data.toarray()
        names = [*bunch.feature_names]

        def column(name: str) -> np.ndarray[Any, Any]:
            values: np.ndarray[Any, Any] = table[:, names.index(name)]
            texts = (bunch.categories or {}).get(name)
            if texts is None:
                return values
            return np.array([None if v != v else texts[int(v)] for v in values], dtype=object)

        x, y = rows(column, self, self.columns(names, self.what()), self.what())
        return LoadedData(train_x=x, train_y=y, test_x=x[:0], test_y=y[:0])

    def what(self, test: bool = False) -> str:
        """The data set."""
        name = f"{self.options.get('name')} version {self.options.get('version')}"
        return f"openml {self.options.get('id', name)}"


def fetched(identity: dict[str, Json], folder: Path) -> Any:
    """scikit-learn's bunch with the label among the columns and categories as numbers; checked by OpenML's MD5."""
    from sklearn.datasets import fetch_openml

    named = {"data_id": identity["id"]} if "id" in identity else {k: identity[k] for k in ("name", "version")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it tries again, and remarks of the site on its data set
        return fetch_openml(
            **named,
            data_home=str(folder),
            target_column=None,
            as_frame=False,
            parser="liac-arff",
            n_retries=1,
        )
