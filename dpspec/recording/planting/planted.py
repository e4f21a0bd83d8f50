"""``dpspec.plant``: a dataset that contains canaries, or not, by fair inclusion bits.

The dataset has one place for each record and one for each canary, for any inclusion bits. Samplers draw places, so
Opacus' rate and divisor do not depend on the bits. Fetching a batch skips omitted canaries. So two vectors of bits that
differ in one place make two trainings that differ in whether one record contributes to the batches that draw its place.
That is zero-out adjacency, and add-remove as well if constants do not follow from the number of records. Replacing an
omitted canary by another record would bound the epsilon of replace-one, which may be twice as large.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dpspec.errors import UsageError
from dpspec.recording.folder.canaries import GRADIENTS, Array, CoinSource
from dpspec.recording.folder.header import MOST_CANARIES
from dpspec.recording.planting.canary_records import Collate, Recipe, require_alike

#: The smallest number of canaries that can show anything, and the largest number that is read.
LEAST, MOST = 8, MOST_CANARIES


def plant(
    dataset: Any,
    *,
    kind: str | None = None,
    count: int | None = None,
    classes: int | None = None,
    label: int | str | None = None,
    records: Sequence[Any] | None = None,
    collate: Collate | None = None,
    seed: int | None = None,
) -> Planted:
    """Add places for canaries to a dataset, each included or omitted by a fair, independent bit.

    Use the result in place of the dataset: its length does not depend on the bits. Fetch batches by torch's loaders; a
    loop that draws indices itself calls :meth:`Planted.present`. :meth:`Recorder.score` scores the canaries after the
    training. Do not release a model that was trained on canaries.

        planted = dpspec.plant(dataset, kind="mislabelled", count=1000, classes=10)

    Args:
        dataset: A map-style dataset of torch.
        kind: ``mislabelled`` (records with a wrong label), ``noise`` (random features, a random label), ``blank`` (all
            features zero, at most one for each label), ``duplicate`` (copies of records) or ``gradients``: the recorder
            adds each as a clipped gradient to the sum of a step that drew its place, for Opacus' optimizer with flat
            clipping.
        count: The number of canaries, from 8 to 10**6.
        classes: The number of labels, which are 0, 1, ...
        label: The index or key of the label in a record; by default the last part, or the only one of the keys label,
            labels, y and target.
        records: Canaries in the form of the dataset's records, instead of kind and count.
        collate: The loader's ``collate_fn`` if it is not torch's own, to check that canaries fit in batches.
        seed: In [0, 2**63), for bits and canaries, and is recorded; by default the system's randomness.

    Raises:
        UsageError: Canaries cannot be made.
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise UsageError(f"dataset must be a map-style dataset, with a length, got {type(dataset).__name__}")
    if isinstance(dataset, Planted):
        raise UsageError("dataset is planted already: plant all canaries in one call")
    if not len(dataset):
        raise UsageError("dataset is empty: canaries are planted among records")
    if (kind is None) == (records is None):
        raise UsageError("give either kind and count, or records")
    if records is not None and count is not None and count != len(records):
        raise UsageError(f"count is {count}, and there are {len(records)} records: leave count out")
    number = len(records) if records is not None else count
    if type(number) is not int or not LEAST <= number <= MOST:
        raise UsageError(f"there must be from {LEAST} to {MOST} canaries, got {number!r}")
    if classes is not None and (type(classes) is not int or classes < 1):
        raise UsageError(f"classes must be an integer of at least 1, got {classes!r}")
    source = CoinSource.of(seed)
    if kind == GRADIENTS:
        if classes is not None or label is not None or collate is not None:
            raise UsageError("canaries of kind 'gradients' are not records: leave classes, label and collate out")
        return Planted(dataset, [], source, kind, count=number)
    if records is not None:
        kind, canaries = "crafted", list(records)
    else:
        recipe = Recipe(dataset=dataset, count=number, classes=classes, label=label, chance=source.generator())
        canaries = recipe.make(str(kind))
    require_alike(dataset, canaries, collate)
    return Planted(dataset, canaries, source, str(kind), collate)


class Planted(Dataset[Any]):
    """A dataset of ``n`` records followed by ``m`` places for canaries; made by :func:`plant`.

    Attributes:
        kind: Of the canaries, ``crafted`` for the caller's own.
        canaries: Included and omitted ones; empty for kind ``gradients``.
        count: m.
        collate: The loader's ``collate_fn``; None for torch's own.
    """

    def __init__(
        self,
        dataset: Any,
        canaries: list[Any],
        source: CoinSource,
        kind: str,
        collate: Collate | None = None,
        count: int | None = None,
    ) -> None:
        self.dataset, self.canaries, self.kind, self.source = dataset, canaries, kind, source
        self.collate = collate
        self._records = len(dataset)
        self.count = len(canaries) if count is None else count
        self._coins = source.coins(self.count)
        self._there = np.concatenate([np.ones(1, dtype=np.int8), self._coins])

    def __len__(self) -> int:
        return self._records + self.count

    @property
    def coins(self) -> Array:
        """(m,) int8: 1 for each included canary, 0 for an omitted one. A training must not use them."""
        return self._coins.copy()

    @property
    def left_out(self) -> int:
        """The number of omitted canaries."""
        return int((self._coins == 0).sum())

    def present(self, indices: Any) -> Any:
        """The indices that contribute, in their order, without omitted canaries.

        indices: (b,) a tensor, for a tensor; or a sequence, for a list.
        """
        drawn = indices.detach().cpu().numpy() if isinstance(indices, Tensor) else np.asarray(indices)
        drawn = drawn.reshape(-1).astype(np.int64)
        if len(drawn) and not -len(self) <= drawn.min() <= drawn.max() < len(self):
            raise IndexError(f"indices must lie in [0, {len(self)}), got {drawn.min()} to {drawn.max()}")
        drawn = np.where(drawn < 0, drawn + len(self), drawn)
        kept = drawn[self._there[np.maximum(0, drawn - self._records + 1)] == 1]
        return torch.from_numpy(kept).to(indices.device) if isinstance(indices, Tensor) else kept.tolist()

    def __getitem__(self, index: Any) -> Any:
        """One record; ``UsageError`` in the place of an omitted canary or of a gradient, ``IndexError`` beyond."""
        if self.kind == GRADIENTS and not self._fetched([int(index)]):
            raise UsageError(
                f"place {int(index)} of the planted dataset holds no record, its canary is a gradient or nothing: "
                "fetch batches, as torch's loaders do"
            )
        if not self.present([int(index)]):
            raise UsageError(
                f"place {int(index)} of the planted dataset is empty, its canary is omitted: fetch batches, as "
                "torch's loaders do, or ask planted.present(indices) which are there"
            )
        return self._fetch(int(index) % len(self))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The present records of a batch; torch's loaders call this."""
        return [self._fetch(index) for index in self._fetched(indices)]

    def __iter__(self) -> Iterator[Any]:
        return (self._fetch(index) for index in self._fetched(range(len(self))))

    def _fetched(self, indices: Sequence[int]) -> list[int]:
        there: list[int] = self.present(list(indices))
        return there if self.kind != GRADIENTS else [index for index in there if index < self._records]

    def _fetch(self, index: int) -> Any:
        return self.dataset[index] if index < self._records else self.canaries[index - self._records]
