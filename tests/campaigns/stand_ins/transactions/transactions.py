"""Invented transactions in the form of ``sklearn.datasets.fetch_openml("creditcard")``: 29 numbers and a rare class."""

from types import SimpleNamespace
from typing import Any

import numpy as np

_ROWS, _FEATURES = 1000, 29


def fetch_openml(*_: Any, **__: Any) -> SimpleNamespace:
    """The same rows at each call."""
    drawn = np.random.default_rng(7)
    x = drawn.normal(size=(_ROWS, _FEATURES))
    y = (x[:, 0] + x[:, 1] > 2.0).astype(int).astype(str)
    return SimpleNamespace(data=SimpleNamespace(values=x), target=SimpleNamespace(values=y))
