"""The data kinds that come with dpspec. Importing this loads neither numpy, torch, scipy nor scikit-learn."""

from __future__ import annotations

from dpspec.contract import Dataset
from dpspec.data import breast_cancer, csv_file, declared, digits, idx, npz, synthetic

DATASETS: tuple[Dataset, ...] = (
    breast_cancer.DATASET,
    csv_file.DATASET,
    declared.DATASET,
    digits.DATASET,
    idx.DATASET,
    npz.DATASET,
    synthetic.DATASET,
)
