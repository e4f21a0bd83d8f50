"""Data kind ``huggingface``: tables and pictures from the Hugging Face Hub, fetched by the package ``datasets``.

The spec declares the public facts, so bounds, ``validate`` and ``plan`` need no network. A run fetches the records
once, caches them, and rejects records that contradict the facts. Loading scripts are never executed: this module
requires ``datasets`` 4 or later, which does not support them.
"""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, Dataset, Facts, Json, LoadedData
from dpspec.contract.canonical import digest
from dpspec.data.declared import DECLARED
from dpspec.data.files import MAX_BYTES, check_count, import_optional
from dpspec.data.images import KEYS as PICTURES
from dpspec.data.images import check_shape, decoded, scaled
from dpspec.data.options import schema
from dpspec.data.table import KEYS, Columns, Table, column_values, listed, rows

if TYPE_CHECKING:
    import numpy as np

_DECLARED = DECLARED.schema["properties"]

#: Schema of the public facts that a spec declares.
FACTS: dict[str, Json] = {
    "records": {
        **_DECLARED["records"],
        "description": "The number of training records before split and size. Public, and checked on loading.",
    },
    "features": {
        **{key: value for key, value in _DECLARED["features"].items() if key != "default"},
        "description": "The number of features of a record, or its shape: [channels, height, width] for images. "
        "Public, and checked on loading.",
    },
}


def cache() -> Path:
    """Return the cache folder: ``$DPSPEC_DATA``, or ``dpspec`` in the user's cache folder.

    Specs cannot set it, because an untrusted spec must not choose the location of files.
    """
    chosen = os.environ.get("DPSPEC_DATA")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpspec" / "data"


_SPLIT: dict[str, Json] = {"type": "string", "pattern": "^\\w+(\\.\\w+)*$"}

DATASET = Dataset(
    kind="huggingface",
    summary="A table or pictures from the Hugging Face Hub, fetched once and cached (needs datasets).",
    schema=schema(
        {
            "name": {
                "type": "string",
                "pattern": "^[A-Za-z0-9][\\w.-]*/[A-Za-z0-9][\\w.-]*$",
                "description": "The dataset as owner/name.",
            },
            "config": {"type": "string", "minLength": 1, "description": "The configuration, if there are several."},
            "revision": {
                "type": "string",
                "pattern": "^[0-9a-f]{40}$",
                "description": "The commit, 40 hexadecimal digits, which fixes the records.",
            },
            "train_split": {**_SPLIT, "default": "train", "description": "The split of training records."},
            "test_split": {**_SPLIT, "description": "The split of test records; requires test_records."},
            "test_records": {
                "type": "integer",
                "minimum": 1,
                "description": "The number of test records. Public, and checked on loading.",
            },
            **FACTS,
            **KEYS,
            "image": {
                "type": "string",
                "minLength": 1,
                "description": "The column with pictures, instead of columns. Then features is [channels, height, "
                "width], and pixels become numbers from 0 to 1.",
            },
            "resize": PICTURES["resize"],
        },
        required=["name", "revision", "records", "features", "label", "classes"],
    ),
    source="dpspec.data.huggingface:HuggingFace",
)


class HuggingFace(Table):
    """Records in the order of the published split."""

    def identity(self) -> dict[str, Json]:
        """Return the options that identify the records: name, configuration, commit, splits, decoding."""
        keys = ("name", "config", "revision", "test_split", "image")
        given = {key: self.options[key] for key in keys if key in self.options}
        return {"kind": "huggingface", **given, "train_split": self._train_split, "resize": self._resize}

    def describe(self) -> Facts:
        """Return the declared facts. Raises ``DataError`` for inconsistent options."""
        if ("test_split" in self.options) != ("test_records" in self.options):
            raise DataError(f"{self.what()}: test_split and test_records require each other")
        if "image" in self.options:
            for key in ("columns", "categories"):
                if key in self.options:
                    raise DataError(f"{self.what()}: image and {key} exclude each other")
            features = self.options["features"]
            check_shape(features if isinstance(features, tuple) else (features,))
        elif self._resize:
            raise DataError(f"{self.what()}: resize needs the key image")
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
        """Fetch the rows in the declared shape. Raises ``DataError`` if this fails or they contradict the facts."""
        facts, folder = self.describe(), cache()
        try:
            found = self.fetch(folder)
        except DataError:
            raise
        except Exception as error:  # libraries, networks and servers raise many kinds
            raise DataError(
                f"{self.what()}: could not be fetched ({type(error).__name__}: {error}). The first fetch needs a "
                f"network connection; later ones use the cache in {folder} ($DPSPEC_DATA)"
            ) from error
        train_x = self._shaped(found.train_x, facts.records, facts)
        test_x = self._shaped(found.test_x, facts.test_records, facts, test=True)
        return LoadedData(train_x=train_x, train_y=found.train_y, test_x=test_x, test_y=found.test_y)

    def _shaped(self, x: np.ndarray[Any, Any], records: int, facts: Facts, test: bool = False) -> np.ndarray[Any, Any]:
        """Reshape features to the declared shape. Raises ``DataError`` if their number differs."""
        found = prod(x.shape[1:])
        if (len(x), found) != (records, facts.features):
            raise DataError(
                f"{self.what(test)}: {len(x)} records of {found} features, but the spec declares {records} of "
                f"{facts.features}"
            )
        return x.reshape(records, *facts.shape)

    def fetch(self, folder: Path) -> LoadedData:
        """Return the rows of the declared splits."""
        splits = [self._train_split]
        splits += [self.options["test_split"]] if "test_split" in self.options else []
        (x, y), *test = [self._rows(table) for table in tables(self.options, splits, folder)]
        test_x, test_y = test[0] if test else (x[:0], y[:0])
        return LoadedData(train_x=x, train_y=y, test_x=test_x, test_y=test_y)

    def what(self, test: bool = False) -> str:
        """Return the names of the dataset and the split."""
        split = self.options.get("test_split", "test") if test else self._train_split
        return f"huggingface {self.options['name']} ({split})"

    @property
    def _train_split(self) -> str:
        return str(self.options.get("train_split", "train"))

    @property
    def _resize(self) -> bool:
        return bool(self.options.get("resize", False))

    def _rows(self, table: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        import numpy as np

        def read(name: str) -> np.ndarray[Any, Any]:
            return column_values(table[name], name, self.what())

        image = self.options.get("image")
        if image is None:
            return rows(read, self, self.columns(table.column_names, self.what()), self.what())
        for name in (image, self.options["label"]):
            if name not in table.column_names:
                raise DataError(f"{self.what()}: has no column {name!r} (its columns: {listed(table.column_names)})")
        _, y = rows(read, self, Columns(self.options["label"], (), {}), self.what())
        shape = tuple(int(n) for n in self.options["features"])
        x = np.zeros((len(y), *shape), dtype=np.float32)
        for i, cell in enumerate(table[image]):
            where = f"{self.what()}: record {i}"
            x[i] = scaled(decoded(_bytes(cell.as_py(), where), shape, self._resize, "huggingface", where))
        return x, y


def _bytes(cell: Any, where: str) -> bytes:
    """Return the bytes of a picture in a table of the Hub."""
    data = cell.get("bytes") if isinstance(cell, dict) else None
    if not isinstance(data, bytes):
        raise DataError(f"{where}: contains no picture")
    return data


def tables(options: Any, splits: list[str], folder: Path) -> list[Any]:
    """Return the Arrow tables of the splits, fetched or from the cache in ``folder``, with undecoded pictures."""
    from packaging.version import Version

    datasets = import_optional("datasets", "datasets", "huggingface")
    if Version(datasets.__version__) < Version("4"):
        raise DataError(f"data of kind 'huggingface' needs datasets 4 or later, found {datasets.__version__}")
    name = options["name"]
    if os.path.lexists(name):
        raise DataError(f"huggingface {name}: a local file or folder of this name takes precedence; move it")
    datasets.disable_progress_bars()
    builder = datasets.load_dataset_builder(
        name, options.get("config"), revision=options["revision"], cache_dir=str(folder / "huggingface")
    )
    size = max(builder.info.download_size or 0, builder.info.dataset_size or 0)
    if size > MAX_BYTES:
        raise DataError(f"huggingface {name}: {size} bytes; at most {MAX_BYTES} are fetched")
    builder.download_and_prepare()
    return [builder.as_dataset(split=split).with_format("arrow")[:] for split in splits]
