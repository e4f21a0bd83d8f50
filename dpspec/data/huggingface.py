"""Data kind ``huggingface``: tables from the Hugging Face Hub, fetched by the package ``datasets``.

The spec declares the public facts, so that only runs need a network; records that contradict the facts are rejected.
Loading scripts are never executed: ``datasets`` 4 or later does not support them.
"""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, Dataset, Json
from dpspec.contract.fragments import integer, string
from dpspec.data.fileless import DECLARED, SHAPE, declared_shape
from dpspec.data.options import schema
from dpspec.data.source import MAX_BYTES, import_optional
from dpspec.data.table import KEYS, Table, column_values

if TYPE_CHECKING:
    from dpspec.data.source import Rows


def cache() -> Path:
    """Return the cache folder: ``$DPSPEC_DATA``, or ``dpspec`` in the user's cache folder.

    Specs cannot set it, because an untrusted spec must not choose the location of files.
    """
    if chosen := os.environ.get("DPSPEC_DATA"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpspec" / "data"


_DECLARED = DECLARED.schema["properties"]
_SPLIT: dict[str, Json] = {"type": "string", "pattern": "^\\w+(\\.\\w+)*$"}

DATASET = Dataset(
    kind="huggingface",
    summary="A table from the Hugging Face Hub, fetched once and cached (needs datasets).",
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
        },
        required=["name", "revision", "records", "features", "label", "classes"],
    ),
    source="dpspec.data.huggingface:HuggingFace",
)


class HuggingFace(Table):
    def halves(self) -> list[bool]:
        if ("test_split" in self.options) != ("test_records" in self.options):
            raise DataError(f"{self.what()}: test_split and test_records require each other")
        return [False, True] if "test_split" in self.options else [False]

    def shape(self, half: bool) -> tuple[int, ...]:
        return int(self.options["test_records" if half else "records"]), *declared_shape(self.options["features"])

    def key(self, halves: list[bool]) -> dict[str, Json]:
        keys = [key for key in ("name", "config", "revision", "test_split") if key in self.options]
        return {
            "kind": "huggingface",
            "train_split": self._split(False),
            **{name: self.options[name] for name in keys},
            **self.table_key(),
            "columns": [*(self.options.get("columns") or ())],
            "shape": [*declared_shape(self.options["features"])],
        }

    def rows(self, half: bool) -> Rows:
        what, folder = self.what(test=half), cache()
        try:
            table = fetched(self.options, self._split(half), folder)
            columns = self.columns(table.column_names, what)
            x, y = self.converted(lambda name: column_values(table[name], name, what), columns, what)
        except DataError:
            raise
        except Exception as error:  # libraries, networks and servers raise many kinds
            raise DataError(
                f"{what}: could not be fetched ({type(error).__name__}: {error}). The first fetch needs a "
                f"network connection; later ones use the cache in {folder} ($DPSPEC_DATA)"
            ) from error
        (found, width), (records, *shape) = x.shape, self.shape(half)
        if (found, width) != (records, prod(shape)):
            declared = f"the spec declares {records} of {prod(shape)}"
            raise DataError(f"{what}: {found} records of {width} features, but {declared}")
        return x.reshape(records, *shape), y

    def what(self, test: bool = False) -> str:
        return f"huggingface {self.options['name']} ({self._split(test)})"

    def _split(self, test: bool) -> str:
        return str(self.options.get("test_split", "test") if test else self.options.get("train_split", "train"))


def fetched(options: Any, split: str, folder: Path) -> Any:
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
    return builder.as_dataset(split=split).with_format("arrow")[:]
