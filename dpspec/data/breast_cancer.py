"""``breast-cancer``: measurements of cell nuclei, from scikit-learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpspec.contract import Dataset, Facts
from dpspec.data.bundled import Bundled
from dpspec.data.options import schema

if TYPE_CHECKING:
    import numpy as np

DATASET = Dataset(
    kind="breast-cancer",
    summary="569 tumours, 30 standardised measurements each, benign or malignant (scikit-learn).",
    schema=schema({}, public=True),
    source="dpspec.data.breast_cancer:BreastCancer",
)

#: Mean and standard deviation of each feature over the published set, to two digits. They are constants of this
#: data kind and never computed again: were they taken from the records, one record would move all the others.
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
        """Measurements (569, 30) as published, and the diagnoses."""
        from sklearn.datasets import load_breast_cancer

        x, y = load_breast_cancer(return_X_y=True)
        return x, y

    def units(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """(x - MEAN) / STD per feature."""
        import numpy as np

        standard: np.ndarray[Any, Any] = (x - np.asarray(MEAN)) / np.asarray(STD)
        return standard
