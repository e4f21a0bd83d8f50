"""Data kind ``huggingface``: tables and pictures from the Hugging Face Hub, fetched by the package ``datasets``.

The spec declares the public facts, so that only runs need a network; records that contradict the facts are rejected.
Loading scripts are never executed: ``datasets`` 4 or later does not support them.
"""

from __future__ import annotations

import os
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, Dataset, Facts, Json, LoadedData
from dpspec.contract.fragments import integer, string
from dpspec.data.fileless import DECLARED, SHAPE, declared_shape
from dpspec.data.images import KEYS as PICTURES
from dpspec.data.images import check_shape, decoded
from dpspec.data.options import schema
from dpspec.data.source import MAX_BYTES, check_count, import_optional, whole_facts, whole_rows
from dpspec.data.table import KEYS, Columns, Table, column_values, listed

if TYPE_CHECKING:
    import numpy as np


def cache() -> Path:
    """Return the cache folder: ``$DPSPEC_DATA``, or ``dpspec`` in the user's cache folder.

    Specs cannot set it, because an untrusted spec must not choose the location of files.
    """
    chosen = os.environ.get("DPSPEC_DATA")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpspec" / "data"


_DECLARED = DECLARED.schema["properties"]
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
            "config": string("The configuration, if there are several."),
            "revision": {
                "type": "string",
                "pattern": "^[0-9a-f]{40}$",
                "description": "The commit, 40 hexadecimal digits, which fixes the records.",
            },
            "train_split": {**_SPLIT, "default": "train", "description": "The split of training records."},
            "test_split": {**_SPLIT, "description": "The split of test records; requires test_records."},
            "test_records": integer("The number of test records. Public, and checked on loading.", least=1),
            "records": {
                **_DECLARED["records"],
                "description": "The number of training records before split and size. Public, and checked on loading.",
            },
            "features": {
                **SHAPE,
                "description": "The number of features of a record, or its shape: [channels, height, width] for "
                "images. Public, and checked on loading.",
            },
            **KEYS,
            "image": string(
                "The column with pictures, instead of columns. Then features is [channels, height, "
                "width], and pixels become numbers from 0 to 1."
            ),
            "resize": PICTURES["resize"],
        },
        required=["name", "revision", "records", "features", "label", "classes"],
    ),
    source="dpspec.data.huggingface:HuggingFace",
)


class HuggingFace(Table):
    def describe(self) -> Facts:
        if ("test_split" in self.options) != ("test_records" in self.options):
            raise DataError(f"{self.what()}: test_split and test_records require each other")
        shape = declared_shape(self.options["features"])
        if "image" in self.options:
            for other in ("columns", "categories"):
                if other in self.options:
                    raise DataError(f"{self.what()}: image and {other} exclude each other")
            check_shape(shape)
        elif self._resize:
            raise DataError(f"{self.what()}: resize needs the key image")
        records, test_records = int(self.options["records"]), int(self.options.get("test_records", 0))
        check_count(self.what(), (records, *shape))
        check_count(self.what(test=True), (max(1, test_records), *shape))
        keys = [key for key in ("name", "config", "revision", "test_split", "image") if key in self.options]
        key: Json = {
            "kind": "huggingface",
            "train_split": self._train_split,
            "resize": self._resize,
            **{name: self.options[name] for name in keys},
            **self.table_key(),
            "columns": [*(self.options.get("columns") or ())],
            "shape": [*shape],
        }
        return whole_facts(records, shape, len(self.classes()), key, test=test_records)

    def read(self) -> LoadedData:
        facts, folder = self.describe(), cache()
        splits = [self._train_split, *([self.options["test_split"]] if "test_split" in self.options else [])]
        try:
            found = whole_rows(*(self._rows(table) for table in tables(self.options, splits, folder)))
        except DataError:
            raise
        except Exception as error:  # libraries, networks and servers raise many kinds
            raise DataError(
                f"{self.what()}: could not be fetched ({type(error).__name__}: {error}). The first fetch needs a "
                f"network connection; later ones use the cache in {folder} ($DPSPEC_DATA)"
            ) from error
        for test, x, records in ((False, found.train_x, facts.records), (True, found.test_x, facts.test_records)):
            if (len(x), features := prod(x.shape[1:])) != (records, facts.features):
                raise DataError(
                    f"{self.what(test)}: {len(x)} records of {features} features, but the spec declares {records} of "
                    f"{facts.features}"
                )
        train_x, test_x = (x.reshape(-1, *facts.shape) for x in (found.train_x, found.test_x))
        return replace(found, train_x=train_x, test_x=test_x)

    def what(self, test: bool = False) -> str:
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
            return self.rows(read, self.columns(table.column_names, self.what()), self.what())
        for name in (image, self.options["label"]):
            if name not in table.column_names:
                raise DataError(f"{self.what()}: has no column {name!r} (its columns: {listed(table.column_names)})")
        _, y = self.rows(read, Columns(self.options["label"], (), {}), self.what())
        shape = declared_shape(self.options["features"])
        x = np.zeros((len(y), *shape), dtype=np.float32)
        for i, cell in enumerate(table[image]):
            where = f"{self.what()}: record {i}"
            picture = cell.as_py()
            data = picture.get("bytes") if isinstance(picture, dict) else None
            if not isinstance(data, bytes):
                raise DataError(f"{where}: contains no picture")
            x[i] = decoded(data, shape, self._resize, "huggingface", where)
        return x, y


def tables(options: Any, splits: list[str], folder: Path) -> list[Any]:
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
