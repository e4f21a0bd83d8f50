"""Canaries in a recorded training: included by fair inclusion bits, and scored after the training.

The planted dataset has one place for each record and one for each canary, for any inclusion bits. Samplers draw places,
so Opacus' rate and divisor do not depend on the bits. Fetching a batch skips omitted canaries. So two vectors of bits
that differ in one place make two trainings that differ in whether one record contributes to the batches that draw its
place. That is zero-out adjacency, and add-remove as well if constants do not follow from the number of records.
Replacing an omitted canary by another record would bound the epsilon of replace-one, which may be twice as large.

Gradient canaries are unit vectors that enter the clipped sum as records do, so that only clipping is not tested. If a
step drew the place of an included one, the recorder adds its vector, as long as the clip norm, to the sum before noise;
of several batches drawn since the step before, the last one counts. Canary i owns ``b`` coordinates with random signs,
fixed before the first step. Its score is the inner product of its direction with the sum of all gradients that the
inner optimizer stepped with. DP-SGD releases these gradients, so its epsilon bounds every test on them (Nasr et al.
2023, https://arxiv.org/abs/2302.07956, and Steinke et al. 2023, https://arxiv.org/abs/2305.08846, attack in this way).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from dpspec.errors import UsageError
from dpspec.stats.attacks import canary_power
from dpspec_recording.folder.coins import GRADIENTS, Array, CoinSource
from dpspec_recording.folder.events import MOST_CANARIES
from dpspec_recording.planting.canary_records import (
    TOKEN_KINDS,
    Collate,
    Recipe,
    Vocabulary,
    require_alike,
    token_canaries,
)
from dpspec_recording.recognized import Loss, losses_of

#: The smallest number of canaries that can show anything, and the largest number that is read.
LEAST, MOST = 8, MOST_CANARIES

#: Delta and confidence of the power of canaries, the defaults of ``dpspec check``.
_DELTA, _CONFIDENCE = 1e-5, 0.95

_ANY = Vocabulary()


def plant(
    dataset: Any,
    *,
    kind: str | None = None,
    count: int | None = None,
    classes: int | None = None,
    label: int | str | None = None,
    records: Sequence[Any] | None = None,
    collate: Collate | None = None,
    vocabulary: int | None = None,
    extend: bool = False,
    special: Sequence[int] = (),
    tokens: int = 1,
    template: Sequence[int] = (),
    copies: int = 1,
    seed: int | None = None,
) -> Planted:
    """Add places for canaries to a dataset, each included or omitted by a fair, independent bit.

    Use the result in place of the dataset: its length does not depend on the bits. Fetch batches by torch's loaders; a
    loop that draws indices itself calls :meth:`Planted.present`. :meth:`Recorder.score` scores the canaries after the
    training. Do not release a model that was trained on canaries.

        planted = dpspec.plant(dataset, kind="mislabelled", count=1000, classes=10)

    Args:
        dataset: A map-style dataset of torch.
        kind: ``mislabelled`` (records with a wrong label), ``noise`` (random features, a random label), ``duplicate``
            (copies of records), ``new-tokens`` (sequences of token ids that end in an id which no record has, one for
            each canary), ``random-tokens`` (sequences of ids of the data) or ``gradients``: the recorder adds each as a
            clipped gradient to the sum of a step that drew its place, for Opacus' optimizer with flat clipping.
        count: The number of canaries, from 8 to 10**6.
        classes: The number of labels, which are 0, 1, ...
        label: The index or key of the label in a record; by default the last part, or the only one of the keys label,
            labels, y and target.
        records: Canaries in the form of the dataset's records, instead of kind and count.
        collate: The loader's ``collate_fn`` if it is not torch's own, to check that canaries fit in batches.
        vocabulary: The model's number of token ids, for ``new-tokens``. Records are sequences of ids, ``(ids,)``,
            ``(ids, targets)`` or mappings with ``input_ids`` and optionally ``labels`` and ``attention_mask``; targets
            are the ids or the next ids. A new token is the only target of its canary, the others are -100.
        extend: Whether the canaries' ids start at ``vocabulary``: the model must have ``vocabulary + count * tokens``
            ids (:attr:`Planted.vocabulary`). By default they are ids below ``vocabulary`` that no record has.
        special: Ids that no token canary gets, for example the padding id.
        tokens: The number of new tokens at the end of each canary, all targets, for ``new-tokens``.
        template: The first ids of each canary, the same for all, for ``new-tokens``; by default a record's first ids.
        copies: The number of records of each canary, which share one bit and one score. The lower bound is then one
            for groups of this size.
        seed: In [0, 2**63), for bits and canaries, and is recorded; by default the system's randomness.

    Raises:
        UsageError: Canaries cannot be made.
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise UsageError(f"dataset must be a map-style dataset, with a length, got {type(dataset).__name__}")
    if isinstance(dataset, Planted):
        raise UsageError("dataset is planted already: plant all canaries in one call")
    if not len(dataset):
        raise UsageError("dataset is empty: canaries are inserted among records")
    if (kind is None) == (records is None) or (records is not None and count not in (None, len(records))):
        raise UsageError("give either kind and count, or records")
    number = len(records) if records is not None else count
    if type(number) is not int or not LEAST <= number <= MOST:
        raise UsageError(f"there must be from {LEAST} to {MOST} canaries, got {number!r}")
    if type(copies) is not int or copies < 1 or number * copies > MOST:
        raise UsageError(f"copies must be an integer from 1 on, with at most {MOST} copies in total, got {copies!r}")
    if classes is not None and (type(classes) is not int or classes < 1):
        raise UsageError(f"classes must be an integer of at least 1, got {classes!r}")
    ids = Vocabulary(size=vocabulary, extend=extend, special=tuple(special), tokens=tokens, template=tuple(template))
    if ids != _ANY and kind not in TOKEN_KINDS:
        names = "vocabulary, extend, special, tokens and template"
        raise UsageError(f"{names} are for canaries of kind 'new-tokens' and 'random-tokens'")
    source = CoinSource.of(seed)
    if kind == GRADIENTS:
        if classes is not None or label is not None or collate is not None or copies > 1:
            raise UsageError("canaries of kind 'gradients' are not records: omit classes, label, collate and copies")
        return Planted(dataset, [], source, kind, count=number)
    if records is not None:
        kind, canaries = "crafted", list(records)
    else:
        recipe = Recipe(dataset=dataset, count=number, classes=classes, label=label, chance=source.generator())
        token = kind in TOKEN_KINDS
        canaries = token_canaries(str(kind), recipe, ids) if token else recipe.make(str(kind))
    require_alike(dataset, canaries, collate)
    return Planted(dataset, canaries, source, str(kind), collate, copies=copies, vocabulary=ids)


class Planted(Dataset[Any]):
    """A dataset of ``n`` records followed by places for ``m`` canaries; made by :func:`plant`.

    Attributes:
        kind: Of the canaries, ``crafted`` for the caller's own.
        canaries: Included and omitted ones; empty for kind ``gradients``.
        count: m.
        copies: The number of consecutive places of each canary.
        collate: The loader's ``collate_fn``; None for torch's own.
        new_ids: The number of token ids that the model needs in addition to the vocabulary.
        vocabulary: The number of token ids that the model needs, with the new ones; None if it was not given.
    """

    def __init__(
        self,
        dataset: Any,
        canaries: list[Any],
        source: CoinSource,
        kind: str,
        collate: Collate | None = None,
        count: int | None = None,
        copies: int = 1,
        vocabulary: Vocabulary = _ANY,
    ) -> None:
        self.dataset, self.canaries, self.kind, self.source = dataset, canaries, kind, source
        self.collate, self.copies = collate, copies
        self._records = len(dataset)
        self.count = len(canaries) if count is None else count
        self.new_ids = self.count * vocabulary.tokens if vocabulary.extend else 0
        self.vocabulary = None if vocabulary.size is None else vocabulary.size + self.new_ids
        self._coins = source.coins(self.count)
        self._there = np.concatenate([np.ones(1, dtype=np.int8), np.repeat(self._coins, copies)])

    def __len__(self) -> int:
        return self._records + self.count * self.copies

    @property
    def coins(self) -> Array:
        """(m,) int8: 1 for each included canary, 0 for an omitted one. A training must not use them."""
        return self._coins.copy()

    @property
    def power(self) -> str:
        """Power of a lower bound: the maximum, computed for right guesses only, and values measured on digits."""
        most = canary_power.largest_epsilon(self.count, _DELTA, _CONFIDENCE)
        measured = canary_power.measured(self.kind, all_iterates=self.kind == GRADIENTS)
        text = (
            f"{self.count} canaries show an epsilon of at most {most:.2f} at delta {_DELTA:g} (computed, all guesses "
            f"right, confidence {_CONFIDENCE:g}); {measured}"
        )
        if self.kind == GRADIENTS:
            return text
        return f"{text}; kind='gradients': {canary_power.measured(GRADIENTS, all_iterates=True)}"

    @property
    def left_out(self) -> int:
        """The number of places of omitted canaries."""
        return int((self._coins == 0).sum()) * self.copies

    def present(self, indices: Any) -> Any:
        """The indices that contribute, in their order, without omitted canaries.

        indices: (b,) a tensor, for a tensor; or a sequence, for a list.
        """
        drawn = indices.detach().cpu().numpy() if isinstance(indices, Tensor) else np.asarray(indices)
        drawn = drawn.reshape(-1).astype(np.int64)
        if len(drawn) and not -len(self) <= drawn.min() <= drawn.max() < len(self):
            raise IndexError(f"indices must lie in [0, {len(self)}), got {drawn.min()} to {drawn.max()}")
        drawn = np.where(drawn < 0, drawn + len(self), drawn)
        present_indices = drawn[self._there[np.maximum(0, drawn - self._records + 1)] == 1]
        return (
            torch.from_numpy(present_indices).to(indices.device)
            if isinstance(indices, Tensor)
            else present_indices.tolist()
        )

    def __getitem__(self, index: Any) -> Any:
        """One record; ``UsageError`` in the place of an omitted canary or of a gradient, ``IndexError`` beyond."""
        if not self._fetched([int(index)]):
            reason = "is a gradient or nothing" if self.kind == GRADIENTS else "is omitted"
            raise UsageError(
                f"place {int(index)} of the planted dataset is empty, its canary {reason}: fetch batches, as torch's "
                "loaders do, or ask planted.present(indices) which are there"
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
        if index < self._records:
            return self.dataset[index]
        return self.canaries[(index - self._records) // self.copies]


#: Largest number of coordinates of a direction: more would take memory and improve no score.
MOST_COORDINATES = 256

#: A canary is shorter than the clip norm by this relative amount, so that rounding makes none longer.
_SHORTER = 1e-6


class GradientCanaries:
    """The canaries of one recording, in the coordinates of its noisy parameters.

    It keeps ``m`` sums and m directions of at most :data:`MOST_COORDINATES` coordinates, and draws from the planted
    dataset's own stream of randomness.
    """

    def __init__(self, planted: Planted, parameters: Sequence[nn.Parameter]) -> None:
        """parameters: those with noise, in order. Raises ``UsageError`` if they are in half precision, or have fewer
        coordinates than there are canaries."""
        kinds = {p.dtype for p in parameters}
        if not kinds <= {torch.float32, torch.float64}:
            raise UsageError(
                "gradient canaries need parameters in float32 or float64, as half precision rounds their entries: "
                "train in mixed precision, or plant records"
            )
        size, count = sum(p.numel() for p in parameters), planted.count
        if size < count:
            raise UsageError(
                f"{count} gradient canaries need a coordinate each, and {size} are trained: plant {size} at most"
            )
        self._parameters, self._first = list(parameters), len(planted) - count
        coordinates_per_canary = min(size // count, MOST_COORDINATES)
        chance = planted.source.generator()
        coordinates = chance.choice(size, size=(count, coordinates_per_canary), replace=False)
        signs = 1.0 - 2.0 * chance.integers(0, 2, size=(count, coordinates_per_canary))
        device = self._parameters[0].device
        self._places = torch.from_numpy(coordinates.astype(np.int64)).to(device)
        self._directions = torch.from_numpy(signs / np.sqrt(coordinates_per_canary)).to(device)
        self._sums = torch.zeros(count, dtype=torch.float64, device=device)

    def enter(self, drawn: Array, clip_norm: float) -> Tensor:
        """Add the canaries among the drawn places, (b,), to ``summed_grad`` of each parameter.

        Returns the norm of each contribution, (k,) float64: one for each time that a canary was drawn.
        """
        numbers = drawn[drawn >= self._first] - self._first
        length = clip_norm * (1.0 - _SHORTER)
        norms = torch.full((len(numbers),), length, dtype=torch.float64)
        if not len(numbers):
            return norms
        times = torch.from_numpy(np.bincount(numbers, minlength=len(self._sums))).to(self._places.device)
        sizes = [p.numel() for p in self._parameters]
        flat = torch.zeros(sum(sizes), dtype=self._parameters[0].dtype, device=self._places.device)
        flat[self._places] = (self._directions * (times * length)[:, None]).to(flat)
        with torch.no_grad():
            for p, part in zip(self._parameters, torch.split(flat, sizes), strict=True):
                summed: Any = p.summed_grad  # type: ignore[attr-defined]
                summed.add_(part.view_as(summed).to(summed))
        return norms

    def before_step(self) -> None:
        device = self._places.device
        grads = [torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in self._parameters]
        flat = torch.cat([g.reshape(-1).to(device) for g in grads])
        self._sums += (flat[self._places].double() * self._directions).sum(1)

    def scores(self) -> Array:
        values: Array = self._sums.cpu().numpy()
        require_numbers(values, "the gradients of a step overflowed")
        return values


def scores_of(
    model: nn.Module, loss: Loss, canaries: Sequence[Any], collate: Callable[[list[Any]], Any], batch_size: int
) -> Array:
    """Minus the loss of each canary, (m,) float64, in evaluation mode; ``UsageError`` if one is NaN."""
    if type(batch_size) is not int or batch_size < 1:
        raise UsageError(f"batch_size must be an integer of at least 1, got {batch_size!r}")
    batch_scores: list[Array] = []
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        for start in range(0, len(canaries), batch_size):
            batch = list(canaries[start : start + batch_size])
            with torch.no_grad():
                losses = losses_of(loss, model, collate(batch), len(batch))
            batch_scores.append(-losses.detach().double().cpu().numpy())
    finally:
        for module in training:
            module.training = True
    values: Array = np.concatenate(batch_scores)
    require_numbers(values, "check the weights of the model, and the loss")
    return values


def require_numbers(scores: Array, advice: str) -> None:
    unusable = np.flatnonzero(np.isnan(scores))
    if unusable.size:
        raise UsageError(
            f"{unusable.size} of {len(scores)} canaries have the score NaN, canary {unusable[0]} first: a score must "
            f"be a number; {advice}"
        )
