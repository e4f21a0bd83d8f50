"""The part of flwr-datasets that an official example uses, on scikit-learn's digits.

A dataset with "mnist" in its name has grey images of 28 x 28, others three colors of 32 x 32.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_digits


class Rows:
    """Images and labels, which a transform of a batch may change."""

    def __init__(self, images: Any, labels: Any, column: str, transform: Callable[[Any], Any] | None = None) -> None:
        self._images, self._labels, self._column, self._transform = images, labels, column, transform

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        batch = {self._column: [self._images[index]], "label": [int(self._labels[index])]}
        batch = self._transform(batch) if self._transform else batch
        return {name: values[0] for name, values in batch.items()}

    def train_test_split(self, test_size: float, seed: int) -> "Parts":
        order = np.random.default_rng(seed).permutation(len(self))
        tested = int(test_size * len(self))
        places = {"train": order[tested:], "test": order[:tested]}
        return Parts(
            {name: Rows(self._images[chosen], self._labels[chosen], self._column) for name, chosen in places.items()}
        )


class Parts(dict[str, Rows]):
    """Rows by the name of the part."""

    def with_transform(self, transform: Callable[[Any], Any]) -> "Parts":
        return Parts({name: Rows(rows._images, rows._labels, rows._column, transform) for name, rows in self.items()})


class FederatedDataset:
    """Equal parts of the digits."""

    def __init__(self, dataset: str, partitioners: dict[str, Any]) -> None:
        self._count, digits = partitioners["train"].count, load_digits()
        grey = digits.images / 16.0 * 255.0
        self._column = "image" if "mnist" in dataset else "img"
        if self._column == "image":
            self._images = np.pad(np.kron(grey, np.ones((1, 3, 3))), ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
        else:
            self._images = np.stack([np.kron(grey, np.ones((1, 4, 4))).astype(np.uint8)] * 3, axis=-1)
        self._labels = digits.target

    def load_partition(self, partition_id: int) -> Rows:
        part = slice(partition_id, None, self._count)
        return Rows(self._images[part], self._labels[part], self._column)
