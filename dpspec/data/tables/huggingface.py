"""``huggingface``: tables and pictures of the Hugging Face Hub, fetched by its package ``datasets``.

The spec states the public facts, so that bounds, ``validate`` and ``plan`` never fetch. A run fetches the records once
and reads them from the cache after that. It refuses rows that contradict the facts.

Loading scripts, which are programs of others, are never run: ``datasets`` 4 and later cannot, and earlier ones are
refused.
"""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, Dataset, Facts, Json, LoadedData
from dpspec.contract.canonical import digest
from dpspec.data.declared import DECLARED
from dpspec.data.files import MAX_BYTES, check_count, need
from dpspec.data.images import KEYS as PICTURES
from dpspec.data.images import check_shape, decoded, scaled
from dpspec.data.options import schema
from dpspec.data.tables.table import KEYS, Columns, Table, arrow_column, listed, rows

if TYPE_CHECKING:
    import numpy as np

_DECLARED = DECLARED.schema["properties"]

#: The public facts that a spec states of data that is not at hand.
FACTS: dict[str, Json] = {
    "records": {
        **_DECLARED["records"],
        "description": "Number of training records, before split and size. Public, and checked on loading.",
    },
    "features": {
        **{key: value for key, value in _DECLARED["features"].items() if key != "default"},
        "description": "Number of features of a record, or its shape: [channels, height, width] for images. Public, "
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


_SPLIT: dict[str, Json] = {"type": "string", "pattern": "^\\w+(\\.\\w+)*$"}

DATASET = Dataset(
    kind="huggingface",
    summary="A data set of the Hugging Face Hub: a table or pictures; fetched once, then cached (needs datasets).",
    schema=schema(
        {
            "name": {
                "type": "string",
                "pattern": "^[A-Za-z0-9][\\w.-]*/[A-Za-z0-9][\\w.-]*$",
                "description": "The data set as owner/name.",
            },
            "config": {"type": "string", "minLength": 1, "description": "Its configuration, where it has several."},
            "revision": {
                "type": "string",
                "pattern": "^[0-9a-f]{40}$",
                "description": "The commit, 40 hexadecimal digits, so that the records cannot change behind the "
                "spec's back.",
            },
            "train_split": {**_SPLIT, "default": "train", "description": "The split of training records."},
            "test_split": {**_SPLIT, "description": "The split of test records; goes with test_records."},
            "test_records": {
                "type": "integer",
                "minimum": 1,
                "description": "Number of test records. Public, and checked on loading.",
            },
            **FACTS,
            **KEYS,
            "image": {
                "type": "string",
                "minLength": 1,
                "description": "The column that holds pictures, instead of columns; features is then [channels, "
                "height, width], and pixels become numbers from 0 to 1.",
            },
            "resize": PICTURES["resize"],
        },
        required=["name", "revision", "records", "features", "label", "classes"],
    ),
    source="dpspec.data.tables.huggingface:HuggingFace",
)


class HuggingFace(Table):
    """Records in the order of the published split."""

    def identity(self) -> dict[str, Json]:
        """Name, configuration, commit, splits and how pictures are read."""
        keys = ("name", "config", "revision", "test_split", "image")
        given = {key: self.options[key] for key in keys if key in self.options}
        return {"kind": "huggingface", **given, "train_split": self._train_split, "resize": self._resize}

    def describe(self) -> Facts:
        """What the spec declares; raises ``DataError`` where options do not go together."""
        if ("test_split" in self.options) != ("test_records" in self.options):
            raise DataError(f"{self.what()}: test_split and test_records go together")
        if "image" in self.options:
            for key in ("columns", "categories"):
                if key in self.options:
                    raise DataError(f"{self.what()}: image takes the place of {key}")
            features = self.options["features"]
            check_shape(features if isinstance(features, tuple) else (features,))
        elif self._resize:
            raise DataError(f"{self.what()}: resize is for pictures, and no column is named under image")
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
            found = self.fetch(folder)
        except DataError:
            raise
        except Exception as error:  # libraries, networks and servers fail in more ways than can be listed
            raise DataError(
                f"{self.what()}: could not be fetched ({type(error).__name__}: {error}). The first time it takes a "
                f"network connection; then it is kept in {folder} ($DPSPEC_DATA)"
            ) from error
        train_x = self._shaped(found.train_x, facts.records, facts)
        test_x = self._shaped(found.test_x, facts.test_records, facts, test=True)
        return LoadedData(train_x=train_x, train_y=found.train_y, test_x=test_x, test_y=found.test_y)

    def _shaped(self, x: np.ndarray[Any, Any], records: int, facts: Facts, test: bool = False) -> np.ndarray[Any, Any]:
        """Features in the declared shape, if there are as many as declared."""
        found = prod(x.shape[1:])
        if (len(x), found) != (records, facts.features):
            raise DataError(
                f"{self.what(test)}: has {len(x)} records of {found} features; the spec declares {records} of "
                f"{facts.features}"
            )
        return x.reshape(records, *facts.shape)

    def fetch(self, folder: Path) -> LoadedData:
        """The rows of the declared splits."""
        splits = [self._train_split]
        splits += [self.options["test_split"]] if "test_split" in self.options else []
        (x, y), *test = [self._rows(table) for table in tables(self.options, splits, folder)]
        test_x, test_y = test[0] if test else (x[:0], y[:0])
        return LoadedData(train_x=x, train_y=y, test_x=test_x, test_y=test_y)

    def what(self, test: bool = False) -> str:
        """The data set and the split."""
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
            return arrow_column(table[name], name, self.what())

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
    """The bytes of a picture, as the Hub's tables hold them."""
    data = cell.get("bytes") if isinstance(cell, dict) else None
    if not isinstance(data, bytes):
        raise DataError(f"{where}: holds no picture in its table")
    return data


def tables(options: Any, splits: list[str], folder: Path) -> list[Any]:
    """The Arrow tables of some splits, fetched or from ``folder``; pictures stay undecoded."""
    from packaging.version import Version

    datasets = need("datasets", "datasets", "huggingface")
    if Version(datasets.__version__) < Version("4"):
        raise DataError(f"data of kind 'huggingface' needs datasets 4 or later, found {datasets.__version__}")
    name = options["name"]
    if os.path.lexists(name):
        raise DataError(f"huggingface {name}: a local file or folder of that name would be read instead; move it")
    datasets.disable_progress_bars()
    builder = datasets.load_dataset_builder(
        name, options.get("config"), revision=options["revision"], cache_dir=str(folder / "huggingface")
    )
    size = max(builder.info.download_size or 0, builder.info.dataset_size or 0)
    if size > MAX_BYTES:
        raise DataError(f"huggingface {name}: {size} bytes; at most {MAX_BYTES} are fetched")
    builder.download_and_prepare()
    return [builder.as_dataset(split=split).with_format("arrow")[:] for split in splits]
