"""Data kinds without files: ``declared``, ``synthetic``, and ``digits`` from scikit-learn."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from math import isqrt, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, Dataset, Facts, FrozenMap, Json, LoadedData
from dpspec.contract.fragments import block, choice, integer, number
from dpspec.data.source import CLASSES, GENERATE, Source, check_count, generator, schema, whole_facts, whole_rows
from dpspec.data.table import RECORDS_PER_USER

if TYPE_CHECKING:
    import numpy as np

DECLARED = Dataset(
    kind="declared",
    summary="Only the public facts of a dataset, which suffice for bounds but not for training.",
    schema=block(
        None,
        ["records"],
        records=integer("The number of training records.", least=1),
        features={
            "type": ["integer", "array"],
            "minimum": 1,
            "minItems": 1,
            "maxItems": 3,
            "items": {"type": "integer", "minimum": 1},
            "default": 1,
            "description": "The number of features, or the shape: [channels, height, width] for images.",
        },
        classes={**CLASSES, "default": 2, "description": "The number of classes."},
        test_records=integer("The number of test records.", least=0, default=0),
        records_per_user=RECORDS_PER_USER,
    ),
    source="dpspec.data.fileless:Declared",
)


class Declared:
    def __init__(self, options: FrozenMap, directory: Path) -> None:
        self.options = options

    def facts(self) -> Facts:
        features = self.options.get("features", 1)
        shape = tuple(map(int, features if isinstance(features, tuple) else (features,)))
        return Facts(
            records=int(self.options["records"]),
            features=prod(shape),
            classes=int(self.options.get("classes", 2)),
            shape=shape,
            test_records=int(self.options.get("test_records", 0)),
        )

    def load(self) -> LoadedData:
        raise DataError("data of kind 'declared' has no records, so it supports bounds but not training")


SYNTHETIC = Dataset(
    kind="synthetic",
    summary="Records drawn from a seed: blobs, images or rows of low rank.",
    schema=schema(
        public=True,
        pattern=choice(
            "blobs: a ball around one random unit vector per class. images: one random square picture per class, "
            "pixels in [0, 1]. low-rank: standard normal in the first rank features, with noise in the others; "
            "the class is the sign of the first feature, which is wrong in about 3 % of the records.",
            "blobs",
            "images",
            "low-rank",
            default="blobs",
        ),
        rank=integer(
            "The number of features of low-rank with standard deviation 1. Default: 8.", least=1, most=1_000_000
        ),
        records=integer(
            "The number of records to draw, before split and size.", least=2, most=10_000_000, default=1000
        ),
        features=integer(
            "The number of features of a record; for images a square number.", least=1, most=1_000_000, default=16
        ),
        classes={**CLASSES, "default": 2, "description": "The number of classes."},
        noise=number(
            "The standard deviation of the Gaussian noise added to every feature after labeling, or of the other "
            "features of low-rank.",
            least=0,
            most=1e6,
            default=0.2,
        ),
    ),
    source="dpspec.data.fileless:Synthetic",
)


class Synthetic(Source):
    def describe(self) -> Facts:
        numbers = {key: self.number(key) for key in ("records", "features", "classes", "seed")}
        pattern, features, classes = self.options.get("pattern", "blobs"), numbers["features"], numbers["classes"]
        side = isqrt(features)
        if pattern == "images" and side * side != features:
            raise DataError(f"synthetic images need a square number of features, got {features}")
        if pattern == "low-rank" and classes != 2:
            raise DataError(f"synthetic rows of low rank have two classes, got {classes}")
        if pattern == "low-rank" and self._rank() >= features:
            raise DataError(f"rank must be below the {features} features, got {self._rank()}")
        check_count("synthetic", (numbers["records"], features))
        shape = (1, side, side) if pattern == "images" else (features,)
        key: dict[str, Json] = {"kind": "synthetic", "pattern": pattern, **numbers, "noise": self._noise()}
        if pattern == "low-rank":
            key["rank"] = self._rank()
        return whole_facts(numbers["records"], shape, classes, key)

    def read(self) -> LoadedData:
        import numpy as np

        facts = self.describe()
        random = generator(self.number("seed"), GENERATE)
        pattern = self.options.get("pattern", "blobs")
        records, features, classes = facts.records, facts.features, facts.classes
        if pattern == "low-rank":
            stds = np.where(np.arange(features) < self._rank(), 1.0, self._noise())
            x = random.standard_normal((records, features)) * stds
            y = (x[:, 0] + _LABEL_NOISE * random.standard_normal(records) > 0.0).astype(np.int64)
            return whole_rows((x, y))
        if pattern == "blobs":  # x = c_y with unit vectors c_1, ..., c_classes
            centres = random.standard_normal((classes, features))
            centres /= np.linalg.norm(centres, axis=1, keepdims=True)
        else:  # squares of 4 x 4 equal pixels
            side = isqrt(features)
            coarse = random.uniform(size=(classes, -(-side // 4), -(-side // 4)))
            centres = coarse.repeat(4, axis=1).repeat(4, axis=2)[:, :side, :side].reshape(classes, features)
        y = random.randint(classes, size=records)
        x = centres[y] + self._noise() * random.standard_normal((records, features))
        if pattern == "images":
            x = x.clip(0, 1)
        return whole_rows((x.reshape(records, *facts.shape), y))

    def _noise(self) -> float:
        return float(self.options.get("noise", 0.2))

    def _rank(self) -> int:
        return int(self.options.get("rank", 8))


#: Standard deviation of the noise before the sign of low-rank rows: wrong in arctan(0.1) / pi = 3.2 % of the records.
_LABEL_NOISE = 0.1


DIGITS = Dataset(
    kind="digits",
    summary="1797 handwritten digits of 8 x 8 pixels in [0, 1], 10 classes (scikit-learn).",
    schema=schema(
        public=True,
        target=choice("The class: digit (the default), or its parity (0 even, 1 odd).", "digit", "parity"),
    ),
    source="dpspec.data.fileless:Digits",
)


class Digits(Source):
    """Test part of the UCI set "Optical Recognition of Handwritten Digits": records (1, 8, 8) in [0, 1].

    Pixels count dark dots from 0 to 16. Facts are constant, so that describing the data imports neither scikit-learn
    nor scipy. Their digest is the SHA-256 of the features as little-endian float64 and the labels as little-endian
    int64.
    """

    FACTS = Facts(
        records=1797,
        features=64,
        classes=10,
        shape=(1, 8, 8),
        digest="f6d9e39f37dc45d327f6db33428ee58970ccceabb2535a5c179de35886b70443",
    )
    PARITY_DIGEST = "7213fe478bd738bed1093475c3cf73576df6cad806abf97dade5498458025da5"

    def fetch(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        return x, y

    def describe(self) -> Facts:
        return replace(self.FACTS, classes=2, digest=self.PARITY_DIGEST) if self._parity() else self.FACTS

    def _parity(self) -> bool:
        return str(self.options.get("target", "digit")) == "parity"

    def read(self) -> LoadedData:
        x, y = self.fetch()
        digest = hashlib.sha256(x.astype("<f8").tobytes() + y.astype("<i8").tobytes()).hexdigest()
        if digest != self.FACTS.digest:
            raise DataError(f"{self.what()}: the installed scikit-learn has different records (SHA-256 {digest})")
        rows = (x / 16.0).reshape(-1, *self.FACTS.shape)
        return whole_rows((rows, y % 2 if self._parity() else y))
