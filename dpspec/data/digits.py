"""``digits``: handwritten digits of 8 by 8 pixels, from scikit-learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpspec.contract import Dataset, Facts
from dpspec.data.bundled import Bundled
from dpspec.data.options import schema

if TYPE_CHECKING:
    import numpy as np

DATASET = Dataset(
    kind="digits",
    summary="1797 handwritten digits of 8 x 8 pixels in [0, 1], 10 classes (scikit-learn).",
    schema=schema({}, public=True),
    source="dpspec.data.digits:Digits",
)


class Digits(Bundled):
    """Test part of the UCI set "Optical Recognition of Handwritten Digits": records (1, 8, 8) in [0, 1].

    Pixels count dark dots and run from 0 to 16; they are divided by that public constant.
    """

    FACTS = Facts(
        records=1797,
        features=64,
        classes=10,
        shape=(1, 8, 8),
        digest="f6d9e39f37dc45d327f6db33428ee58970ccceabb2535a5c179de35886b70443",
    )

    def fetch(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Pixels (1797, 64) from 0 to 16 and the digits."""
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        return x, y

    def units(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Pixels from 0 to 1; exact, since 16 is a power of two."""
        return x / 16.0
