"""Data kind ``synthetic``: records drawn from a seed in one of several patterns."""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING

from dpspec.contract import DataError, Dataset, Facts, Json, LoadedData
from dpspec.data.files import check_count
from dpspec.data.options import CLASSES, schema
from dpspec.data.source import GENERATE, Source, generator, whole_facts, whole_rows

if TYPE_CHECKING:
    import numpy as np

    from dpspec.data.source import Rows

DATASET = Dataset(
    kind="synthetic",
    summary="Records drawn from a seed: blobs, linear, rings, xor or images.",
    schema=schema(
        {
            "pattern": {
                "enum": ["blobs", "linear", "rings", "xor", "images"],
                "default": "blobs",
                "description": "blobs: a ball around one random unit vector per class. linear: classes separated by "
                "random hyperplanes. rings: concentric circles in the first two features. xor: opposite quadrants of "
                "the first two features. images: one random square picture per class, pixels in [0, 1].",
            },
            "records": {
                "type": "integer",
                "minimum": 2,
                "maximum": 10_000_000,
                "default": 1000,
                "description": "The number of records to draw, before split and size.",
            },
            "features": {
                "type": "integer",
                "minimum": 1,
                "maximum": 1_000_000,
                "default": 16,
                "description": "The number of features of a record; for images a square number.",
            },
            "classes": {**CLASSES, "default": 2, "description": "The number of classes; 2 for xor."},
            "noise": {
                "type": "number",
                "minimum": 0,
                "maximum": 1e6,
                "default": 0.2,
                "description": "The standard deviation of the Gaussian noise added to every feature after labeling.",
            },
        },
        public=True,
    ),
    source="dpspec.data.synthetic:Synthetic",
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
        x, y = _PATTERNS[pattern](random, facts)
        x += self._noise() * random.standard_normal(x.shape)
        if pattern == "images":
            x = x.clip(0, 1)
        return whole_rows((x.reshape(facts.records, *facts.shape), y))

    def _noise(self) -> float:
        return float(self.options.get("noise", 0.2))


def _blobs(random: np.random.RandomState, facts: Facts) -> Rows:
    """x = c_y with unit vectors c_1, ..., c_classes."""
    import numpy as np

    centres = random.standard_normal((facts.classes, facts.features))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    y = random.randint(facts.classes, size=facts.records)
    return centres[y], y


def _linear(random: np.random.RandomState, facts: Facts) -> Rows:
    """x Gaussian with expected squared norm 1, y = argmax of W x."""
    weights = random.standard_normal((facts.features, facts.classes))
    x = random.standard_normal((facts.records, facts.features)) / facts.features**0.5
    return x, (x @ weights).argmax(axis=1)


def _rings(random: np.random.RandomState, facts: Facts) -> Rows:
    import numpy as np

    y = random.randint(facts.classes, size=facts.records)
    angle = random.uniform(0, 2 * np.pi, size=facts.records)
    x = np.zeros((facts.records, facts.features))
    x[:, 0], x[:, 1] = np.cos(angle) * (y + 1) / facts.classes, np.sin(angle) * (y + 1) / facts.classes
    return x, y


def _xor(random: np.random.RandomState, facts: Facts) -> Rows:
    """x uniform in [-1, 1], y = 1 if the first two features have opposite signs."""
    x = random.uniform(-1, 1, size=(facts.records, facts.features))
    return x, (x[:, 0] * x[:, 1] < 0).astype(int)


def _images(random: np.random.RandomState, facts: Facts) -> Rows:
    import numpy as np

    side = isqrt(facts.features)
    coarse = random.uniform(size=(facts.classes, -(-side // 4), -(-side // 4)))
    pictures = coarse.repeat(4, axis=1).repeat(4, axis=2)[:, :side, :side]
    y = random.randint(facts.classes, size=facts.records)
    return np.ascontiguousarray(pictures[y]).reshape(facts.records, facts.features), y


_PATTERNS = {"blobs": _blobs, "linear": _linear, "rings": _rings, "xor": _xor, "images": _images}
