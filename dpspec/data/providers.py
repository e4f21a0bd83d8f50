"""The data kinds that come with dpspec. Importing this loads neither numpy, torch, scipy nor scikit-learn."""

from __future__ import annotations

from dpspec.contract import Dataset
from dpspec.data import (
    breast_cancer,
    csv_file,
    declared,
    digits,
    huggingface,
    idx,
    images,
    npz,
    openml,
    parquet,
    synthetic,
)

DATASETS: tuple[Dataset, ...] = (
    breast_cancer.DATASET,
    csv_file.DATASET,
    declared.DATASET,
    digits.DATASET,
    huggingface.DATASET,
    idx.DATASET,
    images.DATASET,
    npz.DATASET,
    openml.DATASET,
    parquet.DATASET,
    synthetic.DATASET,
)
