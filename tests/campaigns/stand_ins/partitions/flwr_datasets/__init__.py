"""The part of flwr-datasets that an official example uses, on scikit-learn's digits in three colors of 32 x 32."""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_digits


class Rows:
    """Images and labels, which a transform of a batch may change."""

    def __init__(self, images: Any, labels: Any, transform: Callable[[Any], Any] | None = None) -> None:
        self._images, self._labels, self._transform = images, labels, transform

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        batch = {"img": [self._images[index]], "label": [int(self._labels[index])]}
        batch = self._transform(batch) if self._transform else batch
        return {name: values[0] for name, values in batch.items()}

    def train_test_split(self, test_size: float, seed: int) -> "Parts":
        order = np.random.default_rng(seed).permutation(len(self))
        tested = int(test_size * len(self))
        places = {"train": order[tested:], "test": order[:tested]}
        return Parts({name: Rows(self._images[chosen], self._labels[chosen]) for name, chosen in places.items()})


class Parts(dict[str, Rows]):
    """Rows by the name of the part."""

    def with_transform(self, transform: Callable[[Any], Any]) -> "Parts":
        return Parts({name: Rows(rows._images, rows._labels, transform) for name, rows in self.items()})


class FederatedDataset:
    """Equal parts of the digits."""

    def __init__(self, dataset: str, partitioners: dict[str, Any]) -> None:
        self._count, digits = partitioners["train"].count, load_digits()
        grey = np.kron(digits.images / 16.0 * 255.0, np.ones((1, 4, 4))).astype(np.uint8)
        self._images, self._labels = np.stack([grey] * 3, axis=-1), digits.target

    def load_partition(self, number: int) -> Rows:
        part = slice(number, None, self._count)
        return Rows(self._images[part], self._labels[part])
