"""Data kinds ``breast-cancer`` and ``digits`` from scikit-learn. Their facts are constants checked on loading."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from dpspec.contract import DataError, Dataset, Facts, LoadedData
from dpspec.data.options import schema
from dpspec.data.source import Source

if TYPE_CHECKING:
    import numpy as np


class Bundled(Source):
    """A dataset of scikit-learn with constant facts, so that describing it needs no import of scikit-learn and scipy.

    ``FACTS.digest`` is the SHA-256 of the features as little-endian float64 and the labels as little-endian int64.
    """

    FACTS: ClassVar[Facts]

    @abstractmethod
    def fetch(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return scikit-learn's features (n, features) and labels (n,)."""

    @abstractmethod
    def units(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Convert features to the documented units."""

    def describe(self) -> Facts:
        """Return the constants."""
        return self.FACTS

    def read(self) -> LoadedData:
        """Return the rows. Raises ``DataError`` if the installed scikit-learn has other rows."""
        x, y = self.fetch()
        found = hashlib.sha256(x.astype("<f8").tobytes() + y.astype("<i8").tobytes()).hexdigest()
        if found != self.FACTS.digest:
            raise DataError(f"{self.what()}: the installed scikit-learn has different records (SHA-256 {found})")
        x = self.units(x).reshape(-1, *self.FACTS.shape)
        return LoadedData(train_x=x, train_y=y, test_x=x[:0], test_y=y[:0])


BREAST_CANCER = Dataset(
    kind="breast-cancer",
    summary="569 tumors with 30 standardized measurements each, benign or malignant (scikit-learn).",
    schema=schema({}, public=True),
    source="dpspec.data.bundled:BreastCancer",
)

#: Mean and standard deviation of each feature of the published dataset, to two digits. They are constants: statistics
#: computed from the records would let one record change all others.
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


class BreastCancer(Bundled):
    """The UCI set "Breast Cancer Wisconsin (Diagnostic)": records (30,); class 0 is malignant, 1 benign."""

    FACTS = Facts(
        records=569,
        features=30,
        classes=2,
        shape=(30,),
        digest="25e2eb7b7a8745b1bde5ba18bc4969983d2e2f403291ecd5bde4a29ef30c3859",
    )

    def fetch(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the published measurements (569, 30) and the diagnoses."""
        from sklearn.datasets import load_breast_cancer

        x, y = load_breast_cancer(return_X_y=True)
        return x, y

    def units(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Standardize: (x - MEAN) / STD per feature."""
        import numpy as np

        standard: np.ndarray[Any, Any] = (x - np.asarray(MEAN)) / np.asarray(STD)
        return standard


DIGITS = Dataset(
    kind="digits",
    summary="1797 handwritten digits of 8 x 8 pixels in [0, 1], 10 classes (scikit-learn).",
    schema=schema({}, public=True),
    source="dpspec.data.bundled:Digits",
)


class Digits(Bundled):
    """Test part of the UCI set "Optical Recognition of Handwritten Digits": records (1, 8, 8) in [0, 1].

    Pixels count dark dots from 0 to 16 and are divided by the public constant 16.
    """

    FACTS = Facts(
        records=1797,
        features=64,
        classes=10,
        shape=(1, 8, 8),
        digest="f6d9e39f37dc45d327f6db33428ee58970ccceabb2535a5c179de35886b70443",
    )

    def fetch(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the pixels (1797, 64) from 0 to 16 and the digits."""
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        return x, y

    def units(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Scale pixels to [0, 1], exactly because 16 is a power of two."""
        return x / 16.0
