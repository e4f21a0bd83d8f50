"""``declared``: the public facts of a dataset without its records."""

from __future__ import annotations

from math import prod
from pathlib import Path

from dpspec.contract import DataError, Dataset, Facts, FrozenMap, LoadedData
from dpspec.data.options import CLASSES
from dpspec.data.users import RECORDS_PER_USER

DECLARED = Dataset(
    kind="declared",
    summary="Only the public facts of a dataset, which suffice for bounds but not for training.",
    schema={
        "type": "object",
        "properties": {
            "records": {"type": "integer", "minimum": 1, "description": "The number of training records."},
            "features": {
                "type": ["integer", "array"],
                "minimum": 1,
                "minItems": 1,
                "maxItems": 3,
                "items": {"type": "integer", "minimum": 1},
                "default": 1,
                "description": "The number of features, or the shape: [channels, height, width] for images.",
            },
            "classes": {**CLASSES, "default": 2, "description": "The number of classes."},
            "test_records": {
                "type": "integer",
                "minimum": 0,
                "default": 0,
                "description": "The number of test records.",
            },
            "records_per_user": RECORDS_PER_USER,
        },
        "required": ["records"],
        "additionalProperties": False,
    },
    source="dpspec.data.declared:Declared",
)


def declared_shape(features: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a record from the number of features, or the shape."""
    return tuple(int(n) for n in features) if isinstance(features, tuple) else (int(features),)


class Declared:
    def __init__(self, options: FrozenMap, directory: Path) -> None:
        self.options = options

    def facts(self) -> Facts:
        shape = declared_shape(self.options.get("features", 1))
        return Facts(
            records=int(self.options["records"]),
            features=prod(shape),
            classes=int(self.options.get("classes", 2)),
            shape=shape,
            test_records=int(self.options.get("test_records", 0)),
        )

    def load(self) -> LoadedData:
        raise DataError("data of kind 'declared' has no records, so it supports bounds but not training")
