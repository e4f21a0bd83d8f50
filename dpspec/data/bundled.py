"""Data that comes with scikit-learn: its facts are constants, and its rows are checked against them."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from dpspec.contract import DataError, Facts, LoadedData
from dpspec.data.source import Source

if TYPE_CHECKING:
    import numpy as np


class Bundled(Source):
    """A data set whose facts are known without importing scikit-learn, which would import scipy.

    ``FACTS.digest`` is the SHA-256 of the features as little-endian float64 and the labels as little-endian int64.
    """

    FACTS: ClassVar[Facts]

    @abstractmethod
    def fetch(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """scikit-learn's own features (n, features) and labels (n,)."""

    @abstractmethod
    def units(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The features in the units that this data kind documents."""

    def describe(self) -> Facts:
        """The constants."""
        return self.FACTS

    def read(self) -> LoadedData:
        """The rows; raises ``DataError`` where the installed scikit-learn brings others than the facts describe."""
        x, y = self.fetch()
        found = hashlib.sha256(x.astype("<f8").tobytes() + y.astype("<i8").tobytes()).hexdigest()
        if found != self.FACTS.digest:
            raise DataError(f"{self.what()}: the installed scikit-learn brings other records (SHA-256 {found})")
        x = self.units(x).reshape(-1, *self.FACTS.shape)
        return LoadedData(train_x=x, train_y=y, test_x=x[:0], test_y=y[:0])
