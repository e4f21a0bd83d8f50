"""Canary records that are made after the records of a data set, for each kind.

A record is a tuple or list, or a mapping, of tensors and numbers, one of which is its label. Canaries are made once,
as the data set gave the records then, so that all that is planted and all that is scored is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dpspec.errors import UsageError
from dpspec.recording.planting.coins import GRADIENTS
from dpspec.text import closest, did_you_mean

#: A record's label is under one of these, where it is a mapping and nobody says which.
_LABELS = ("label", "labels", "y", "target")

#: Where in a record something is.
Place: TypeAlias = int | str


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What canaries are made after. label: where records have it; classes: how many there are; None where not told."""

    dataset: Any
    count: int
    classes: int | None
    label: Place | None
    chance: np.random.Generator

    def make(self, kind: str) -> list[Any]:
        """The canaries; ``UsageError`` where there is no such kind, or records are not such as it needs."""
        if kind not in KINDS:
            known = [*KINDS, GRADIENTS]
            near = did_you_mean(closest(kind, known))
            raise UsageError(f"kind must be one of {', '.join(known)}, got {kind!r}{near}")
        return KINDS[kind](self)

    def drawn(self) -> Iterator[Any]:
        """Records of the data set, drawn without repetition as long as there are enough."""
        number = len(self.dataset)
        rounds = [self.chance.permutation(number) for _ in range(-(-self.count // number))]
        for index in np.concatenate(rounds)[: self.count].tolist():
            yield self.dataset[index]

    def labelled(self, kind: str) -> int:
        """How many classes there are; ``UsageError`` where a kind needs to know, and nobody said."""
        if self.classes is None:
            raise UsageError(f"kind {kind!r} needs classes, how many labels there are")
        return self.classes

    def label_of(self, record: Any) -> tuple[Place, int]:
        """Where the record has its label, and which it is; ``UsageError`` where that is none."""
        place = self.label
        if place is None and isinstance(record, Mapping):
            found = [name for name in _LABELS if name in record]
            place = found[0] if len(found) == 1 else None
        elif place is None and isinstance(record, Sequence) and len(record) > 1:
            place = len(record) - 1
        if place is None:
            raise UsageError("say where records have their label: label=1 for the second part, label='y' for a key")
        try:
            value = record[place]
        except (KeyError, IndexError, TypeError):
            raise UsageError(f"label={place!r}: records have nothing there") from None
        single = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        if isinstance(single, bool) or not isinstance(single, int | np.integer):
            raise UsageError(f"label={place!r}: no label, which is one whole number, but {type(value).__name__}")
        known = self.classes
        if known is not None and not 0 <= int(single) < known:
            raise UsageError(f"label={place!r}: label {int(single)} is none of {known} classes, 0 to {known - 1}")
        return place, int(single)


def _mislabelled(recipe: Recipe) -> list[Any]:
    classes = recipe.labelled("mislabelled")
    if classes < 2:
        raise UsageError("a record cannot be mislabelled where there is one class only")
    made = []
    for record in recipe.drawn():
        place, right = recipe.label_of(record)
        made.append(_with(record, place, (right + int(recipe.chance.integers(1, classes))) % classes))
    return made


def _duplicate(recipe: Recipe) -> list[Any]:
    return list(recipe.drawn())


def _noise(recipe: Recipe) -> list[Any]:
    classes, made = recipe.labelled("noise"), []
    for record in recipe.drawn():
        place, _ = recipe.label_of(record)

        def random(part: Tensor) -> Tensor:
            low, high = float(part.min()), float(part.max())
            return torch.from_numpy(recipe.chance.uniform(low, high, size=tuple(part.shape))).to(part)

        record = _features(record, place, "noise", random)
        made.append(_with(record, place, int(recipe.chance.integers(classes))))
    return made


def _blank(recipe: Recipe) -> list[Any]:
    classes = recipe.labelled("blank")
    if recipe.count > classes:
        raise UsageError(f"there are {classes} blank records at most, one for each label, not {recipe.count}")
    labels, made = recipe.chance.permutation(classes).tolist(), []
    for record, label in zip(recipe.drawn(), labels, strict=False):
        place, _ = recipe.label_of(record)
        made.append(_with(_features(record, place, "blank", torch.zeros_like), place, label))
    return made


#: How each kind is made.
KINDS: dict[str, Callable[[Recipe], list[Any]]] = {
    "mislabelled": _mislabelled,
    "noise": _noise,
    "blank": _blank,
    "duplicate": _duplicate,
}


def _with(record: Any, place: Place, label: int) -> Any:
    """The record with another label, of the type that its own has."""
    own = record[place]
    value = torch.full_like(own, label) if isinstance(own, Tensor) else type(own)(label)
    return _rebuilt(record, {place: value})


def _features(record: Any, label: Place, kind: str, change: Callable[[Tensor], Tensor]) -> Any:
    """The record with all parts but the label changed."""
    places = record if isinstance(record, Mapping) else range(len(record))
    changed = {}
    for place in (place for place in places if place != label):
        part = record[place]
        if not isinstance(part, Tensor) or not part.is_floating_point() or not part.numel():
            what = part.dtype if isinstance(part, Tensor) else type(part).__name__
            raise UsageError(
                f"kind {kind!r} needs records of real numbers, and part {place!r} is {what}: give records of your own"
            )
        changed[place] = change(part)
    return _rebuilt(record, changed)


def _rebuilt(record: Any, parts: Mapping[Place, Any]) -> Any:
    """A record of the same type, with other parts."""
    if isinstance(record, Mapping):
        return {**record, **parts}
    values = [parts.get(place, part) for place, part in enumerate(record)]
    return type(record)(*values) if hasattr(record, "_fields") else type(record)(values)
