"""Data kinds ``breast-cancer`` and ``digits`` from scikit-learn. Their facts are constants checked on loading."""

from __future__ import annotations

import hashlib
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from dpspec.contract import DataError, Dataset, Facts, LoadedData
from dpspec.data.options import schema
from dpspec.data.source import Source, whole_rows

if TYPE_CHECKING:
    import numpy as np


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
    source="dpspec.data.bundled:BreastCancer",
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
    source="dpspec.data.bundled:Digits",
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
