"""The built-in data kinds. Importing this module does not import numpy, torch, scipy or scikit-learn."""

from __future__ import annotations

from dpspec.contract import Dataset
from dpspec.data import arrays, bundled, declared, huggingface, images, synthetic, table_files, tokens

DATASETS: tuple[Dataset, ...] = (
    bundled.BREAST_CANCER,
    table_files.CSV,
    declared.DECLARED,
    bundled.DIGITS,
    huggingface.DATASET,
    arrays.IDX,
    images.DATASET,
    arrays.NPZ,
    table_files.PARQUET,
    synthetic.DATASET,
    tokens.SYNTHETIC,
    tokens.TOKENS,
)
