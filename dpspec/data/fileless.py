"""Data kinds without files: ``declared``, ``synthetic``, and ``breast-cancer`` and ``digits`` from scikit-learn.

The facts of scikit-learn's datasets are constants checked on loading.
"""

from __future__ import annotations

import hashlib
from importlib import import_module
from math import isqrt, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dpspec.contract import DataError, Dataset, Facts, FrozenMap, Json, LoadedData
from dpspec.contract.fragments import choice, integer, number
from dpspec.data.options import CLASSES, schema
from dpspec.data.source import GENERATE, Source, check_count, generator, whole_facts, whole_rows
from dpspec.data.table import RECORDS_PER_USER

if TYPE_CHECKING:
    import numpy as np

    from dpspec.data.source import Rows

#: Schema of the number of features, or the shape, of a record.
SHAPE: dict[str, Json] = {
    "type": ["integer", "array"],
    "minimum": 1,
    "minItems": 1,
    "maxItems": 3,
    "items": {"type": "integer", "minimum": 1},
}

DECLARED = Dataset(
    kind="declared",
    summary="Only the public facts of a dataset, which suffice for bounds but not for training.",
    schema={
        "type": "object",
        "properties": {
            "records": integer("The number of training records.", least=1),
            "features": {
                **SHAPE,
                "default": 1,
                "description": "The number of features, or the shape: [channels, height, width] for images.",
            },
            "classes": {**CLASSES, "default": 2, "description": "The number of classes."},
            "test_records": integer("The number of test records.", least=0, default=0),
            "records_per_user": RECORDS_PER_USER,
        },
        "required": ["records"],
        "additionalProperties": False,
    },
    source="dpspec.data.fileless:Declared",
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


SYNTHETIC = Dataset(
    kind="synthetic",
    summary="Records drawn from a seed: blobs, linear, rings, xor or images.",
    schema=schema(
        {
            "pattern": choice(
                "blobs: a ball around one random unit vector per class. linear: classes separated by "
                "random hyperplanes. rings: concentric circles in the first two features. xor: opposite quadrants of "
                "the first two features. images: one random square picture per class, pixels in [0, 1].",
                "blobs",
                "linear",
                "rings",
                "xor",
                "images",
                default="blobs",
            ),
            "records": integer(
                "The number of records to draw, before split and size.", least=2, most=10_000_000, default=1000
            ),
            "features": integer(
                "The number of features of a record; for images a square number.", least=1, most=1_000_000, default=16
            ),
            "classes": {**CLASSES, "default": 2, "description": "The number of classes; 2 for xor."},
            "noise": number(
                "The standard deviation of the Gaussian noise added to every feature after labeling.",
                least=0,
                most=1e6,
                default=0.2,
            ),
        },
        public=True,
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
        if pattern in ("rings", "xor") and features < 2:
            raise DataError(f"synthetic {pattern} needs at least 2 features, got {features}")
        if pattern == "xor" and classes != 2:
            raise DataError(f"synthetic xor has 2 classes, got {classes}")
        check_count("synthetic", (numbers["records"], features))
        shape = (1, side, side) if pattern == "images" else (features,)
        key: Json = {"kind": "synthetic", "pattern": pattern, **numbers, "noise": self._noise()}
        return whole_facts(numbers["records"], shape, classes, key)

    def read(self) -> LoadedData:
        facts = self.describe()
        random = generator(self.number("seed"), GENERATE)
        pattern = self.options.get("pattern", "blobs")
        x, y = _draw(pattern, random, facts)
        x += self._noise() * random.standard_normal(x.shape)
        if pattern == "images":
            x = x.clip(0, 1)
        return whole_rows((x.reshape(facts.records, *facts.shape), y))

    def _noise(self) -> float:
        return float(self.options.get("noise", 0.2))


def _draw(pattern: str, random: np.random.RandomState, facts: Facts) -> Rows:
    """Records (n, features) without noise, and their labels (n,)."""
    import numpy as np

    records, features, classes = facts.records, facts.features, facts.classes
    if pattern == "blobs":  # x = c_y with unit vectors c_1, ..., c_classes
        centres = random.standard_normal((classes, features))
        centres /= np.linalg.norm(centres, axis=1, keepdims=True)
        y = random.randint(classes, size=records)
        return centres[y], y
    if pattern == "linear":  # x Gaussian with expected squared norm 1, y = argmax of W x
        weights = random.standard_normal((features, classes))
        x = random.standard_normal((records, features)) / features**0.5
        return x, (x @ weights).argmax(axis=1)
    if pattern == "xor":  # x uniform in [-1, 1], y = 1 if the first two features have opposite signs
        x = random.uniform(-1, 1, size=(records, features))
        return x, (x[:, 0] * x[:, 1] < 0).astype(int)
    if pattern == "rings":
        y = random.randint(classes, size=records)
        angle = random.uniform(0, 2 * np.pi, size=records)
        x = np.zeros((records, features))
        x[:, 0], x[:, 1] = np.cos(angle) * (y + 1) / classes, np.sin(angle) * (y + 1) / classes
        return x, y
    side = isqrt(features)
    coarse = random.uniform(size=(classes, -(-side // 4), -(-side // 4)))
    pictures = coarse.repeat(4, axis=1).repeat(4, axis=2)[:, :side, :side]
    y = random.randint(classes, size=records)
    return np.ascontiguousarray(pictures[y]).reshape(records, features), y


class Bundled(Source):
    """Records (x - MEAN) / STD of the published features x, with public constants.

    Facts are constant, so that describing the data imports neither scikit-learn nor scipy. Their digest is the SHA-256
    of the features as little-endian float64 and the labels as little-endian int64.
    """

    FACTS: ClassVar[Facts]
    LOADER: ClassVar[str]
    MEAN: ClassVar[tuple[float, ...]]
    STD: ClassVar[tuple[float, ...]]

    def fetch(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        x, y = getattr(import_module("sklearn.datasets"), self.LOADER)(return_X_y=True)
        return x, y

    def describe(self) -> Facts:
        return self.FACTS

    def read(self) -> LoadedData:
        import numpy as np

        x, y = self.fetch()
        found = hashlib.sha256(x.astype("<f8").tobytes() + y.astype("<i8").tobytes()).hexdigest()
        if found != self.FACTS.digest:
            raise DataError(f"{self.what()}: the installed scikit-learn has different records (SHA-256 {found})")
        x = (x - np.asarray(self.MEAN)) / np.asarray(self.STD)
        return whole_rows((x.reshape(-1, *self.FACTS.shape), y))


BREAST_CANCER = Dataset(
    kind="breast-cancer",
    summary="569 tumors with 30 standardized measurements each, benign or malignant (scikit-learn).",
    schema=schema({}, public=True),
    source="dpspec.data.fileless:BreastCancer",
)


class BreastCancer(Bundled):
    """The UCI set "Breast Cancer Wisconsin (Diagnostic)": records (30,); class 0 is malignant, 1 benign.

    MEAN and STD are constants: statistics computed from the records would let one record change all others.
    """

    LOADER = "load_breast_cancer"
    MEAN = (
        *(14.0, 19.0, 92.0, 650.0, 0.096, 0.1, 0.089, 0.049, 0.18, 0.063),
        *(0.41, 1.2, 2.9, 40.0, 0.007, 0.025, 0.032, 0.012, 0.021, 0.0038),
        *(16.0, 26.0, 110.0, 880.0, 0.13, 0.25, 0.27, 0.11, 0.29, 0.084),
    )
    STD = (
        *(3.5, 4.3, 24.0, 350.0, 0.014, 0.053, 0.08, 0.039, 0.027, 0.0071),
        *(0.28, 0.55, 2.0, 45.0, 0.003, 0.018, 0.03, 0.0062, 0.0083, 0.0026),
        *(4.8, 6.1, 34.0, 570.0, 0.023, 0.16, 0.21, 0.066, 0.062, 0.018),
    )
    FACTS = Facts(
        records=569,
        features=30,
        classes=2,
        shape=(30,),
        digest="25e2eb7b7a8745b1bde5ba18bc4969983d2e2f403291ecd5bde4a29ef30c3859",
    )


DIGITS = Dataset(
    kind="digits",
    summary="1797 handwritten digits of 8 x 8 pixels in [0, 1], 10 classes (scikit-learn).",
    schema=schema({}, public=True),
    source="dpspec.data.fileless:Digits",
)


class Digits(Bundled):
    """Test part of the UCI set "Optical Recognition of Handwritten Digits": records (1, 8, 8) in [0, 1].

    Pixels count dark dots from 0 to 16.
    """

    LOADER, MEAN, STD = "load_digits", (0.0,), (16.0,)
    FACTS = Facts(
        records=1797,
        features=64,
        classes=10,
        shape=(1, 8, 8),
        digest="f6d9e39f37dc45d327f6db33428ee58970ccceabb2535a5c179de35886b70443",
    )
