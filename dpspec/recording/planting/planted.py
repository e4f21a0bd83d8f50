"""``dpspec.plant``: a data set in which canaries are, or are not, by fair coins.

*Places.* The data set has one place for each record and one for each canary, whatever the coins are. Samplers draw
places, and whatever follows from their number (Opacus' rate, one over the number of batches, and its divisor) knows no
coin. A canary that is left out is so when its batch is fetched: nothing stands for it, and it contributes nothing.

*Which epsilon is bounded from below.* Two coins that differ in one place make two trainings that differ in whether one
record contributes to the batches in which its place is drawn: rate, divisor and number of steps agree. That is one
record put to nothing (zero-out), and add-remove as well where constants do not follow from the number of records.
Had canaries that are left out no place, the rate would follow from the coins, and the two trainings would be no such
pair. Had another record stood in their place, the bound would be one for replace-one, which may be twice as large.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dpspec.errors import UsageError
from dpspec.recording.folder.header import MOST_CANARIES
from dpspec.recording.planting.alike import Collate, require_alike
from dpspec.recording.planting.coins import GRADIENTS, Array, CoinSource
from dpspec.recording.planting.kinds import Recipe

#: With fewer canaries than this nothing can be shown, and more are not read.
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
    """The data set with places for canaries, each of which is in or left out by a fair coin of its own.

    dataset: a map-style one of torch. kind: ``mislabelled`` (records with a wrong label), ``noise`` (random features, a
    random label), ``blank`` (all features zero, at most one for each label), ``duplicate`` (records as they are, once
    more) or ``gradients`` (no records: the recorder adds each as a clipped gradient to the sum of a step that drew its
    place; for Opacus' optimizer with flat clipping); count: how many, from 8 to 10**6; classes: how many labels there
    are, which are 0, 1, ...; label: where in a record its label is, by default its last part, or the only one of the
    keys label, labels, y and target.
    records: instead of kind and count, canaries of one's own, each as the data set's records are (tensors, tuples or
    dictionaries of tensors). collate: the loader's ``collate_fn``, where it is not torch's own: canaries are put
    together with a record by it here, so that what does not fit is told of before training. seed: in [0, 2**63), what
    coins and canaries follow from, and is recorded; by default the system's randomness, which no training can know.

    Use it wherever the data set would be: its length does not depend on the coins. Fetch batches by torch's loaders; a
    loop that draws indices itself asks :meth:`Planted.present` which of them are there. :meth:`Recorder.score` scores
    the canaries once the training is over. The models that are trained on it are not the ones to release.

    Raises ``UsageError`` where canaries cannot be made.

        planted = dpspec.plant(dataset, kind="mislabelled", count=1000, classes=10)
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise UsageError(f"dataset must be a map-style data set, with a length, got {type(dataset).__name__}")
    if isinstance(dataset, Planted):
        raise UsageError("dataset is planted already: plant all canaries at once")
    if not len(dataset):
        raise UsageError("dataset is empty: canaries are planted among records")
    if (kind is None) == (records is None):
        raise UsageError("give either kind and count, or records of your own")
    if records is not None and count is not None and count != len(records):
        raise UsageError(f"count is {count}, and there are {len(records)} records: leave count out")
    number = len(records) if records is not None else count
    if type(number) is not int or not LEAST <= number <= MOST:
        raise UsageError(f"there must be from {LEAST} to {MOST} canaries, got {number!r}")
    if classes is not None and (type(classes) is not int or classes < 1):
        raise UsageError(f"classes must be a whole number from 1 on, got {classes!r}")
    source = CoinSource.of(seed)
    if kind == GRADIENTS:
        if classes is not None or label is not None or collate is not None:
            raise UsageError("canaries of kind 'gradients' are no records: leave classes, label and collate out")
        return Planted(dataset, [], source, kind, count=number)
    if records is not None:
        kind, canaries = "crafted", list(records)
    else:
        recipe = Recipe(dataset=dataset, count=number, classes=classes, label=label, chance=source.generator())
        canaries = recipe.make(str(kind))
    require_alike(dataset, canaries, collate)
    return Planted(dataset, canaries, source, str(kind), collate)


class Planted(Dataset[Any]):
    """A data set of ``n`` records with ``m`` places for canaries behind them; made by :func:`plant`.

    kind: of the canaries, ``crafted`` for those of the caller. canaries: all of them, those that are in and those that
    are left out; none of kind ``gradients``, which are no records. count: m. collate: how batches are put together;
    None for torch's own way.
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
        """As for :func:`plant`."""
        self.dataset, self.canaries, self.kind, self.source = dataset, canaries, kind, source
        self.collate = collate
        self._records = len(dataset)
        self.count = len(canaries) if count is None else count
        self._coins = source.coins(self.count)
        self._there = np.concatenate([np.ones(1, dtype=np.int8), self._coins])

    def __len__(self) -> int:
        """How many places there are, n + m."""
        return self._records + self.count

    @property
    def coins(self) -> Array:
        """(m,) int8: 1 for each canary that is in, 0 for one that is left out. No training may look at them."""
        return self._coins.copy()

    @property
    def left_out(self) -> int:
        """How many canaries are left out."""
        return int((self._coins == 0).sum())

    def present(self, indices: Any) -> Any:
        """The indices that contribute, in their order: without those of canaries that are left out.

        indices: (b,) a tensor, and then so is the answer; or a sequence, of which it is a list.
        """
        drawn = indices.detach().cpu().numpy() if isinstance(indices, Tensor) else np.asarray(indices)
        drawn = drawn.reshape(-1).astype(np.int64)
        if len(drawn) and not -len(self) <= drawn.min() <= drawn.max() < len(self):
            raise IndexError(f"indices must lie in [0, {len(self)}), got {drawn.min()} to {drawn.max()}")
        drawn = np.where(drawn < 0, drawn + len(self), drawn)
        kept = drawn[self._there[np.maximum(0, drawn - self._records + 1)] == 1]
        return torch.from_numpy(kept).to(indices.device) if isinstance(indices, Tensor) else kept.tolist()

    def __getitem__(self, index: Any) -> Any:
        """One record; ``UsageError`` in the place of a canary that is left out or is no record, ``IndexError`` beyond
        the last."""
        if self.kind == GRADIENTS and not self._fetched([int(index)]):
            raise UsageError(
                f"place {int(index)} of the planted data set holds no record, its canary is a gradient or nothing: "
                "fetch batches, as torch's loaders do"
            )
        if not self.present([int(index)]):
            raise UsageError(
                f"place {int(index)} of the planted data set is empty, its canary is left out: fetch batches, as "
                "torch's loaders do, or ask planted.present(indices) which are there"
            )
        return self._fetch(int(index) % len(self))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """A batch, as torch's loaders ask for it: the records that are there."""
        return [self._fetch(index) for index in self._fetched(indices)]

    def __iter__(self) -> Iterator[Any]:
        """All records that are there, in order."""
        return (self._fetch(index) for index in self._fetched(range(len(self))))

    def _fetched(self, indices: Sequence[int]) -> list[int]:
        """Those that are there and are records."""
        there: list[int] = self.present(list(indices))
        return there if self.kind != GRADIENTS else [index for index in there if index < self._records]

    def _fetch(self, index: int) -> Any:
        return self.dataset[index] if index < self._records else self.canaries[index - self._records]
