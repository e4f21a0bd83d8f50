"""Canary records of each kind, made from the records of a dataset, and their fit in a batch with records.

A record is a tuple or list, or a mapping, of tensors and numbers with a label. Torch's ``default_collate`` stacks
tensors of any type, so a canary of float64 would make a whole batch float64, and only the model would fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from dpspec.errors import UsageError
from dpspec.recording.folder.canaries import GRADIENTS, NEW_TOKENS, RANDOM_TOKENS
from dpspec.text import closest, did_you_mean, shortened

#: The keys of labels in records that are mappings.
_LABELS = ("label", "labels", "y", "target")

#: The index or key of a part of a record.
Place: TypeAlias = int | str

#: Combines a list of records into a batch, as a loader's ``collate_fn``.
Collate: TypeAlias = Callable[[list[Any]], Any]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The dataset and options of canaries. label: its place in records; classes: their number; None if not given."""

    dataset: Any
    count: int
    classes: int | None
    label: Place | None
    chance: np.random.Generator

    def make(self, kind: str) -> list[Any]:
        if kind not in KINDS:
            known = [*KINDS, NEW_TOKENS, RANDOM_TOKENS, GRADIENTS]
            near = did_you_mean(closest(kind, known))
            raise UsageError(f"kind must be one of {', '.join(known)}, got {kind!r}{near}")
        return KINDS[kind](self)

    def drawn(self) -> Iterator[Any]:
        number = len(self.dataset)
        rounds = [self.chance.permutation(number) for _ in range(-(-self.count // number))]
        for index in np.concatenate(rounds)[: self.count].tolist():
            yield self.dataset[index]

    def labelled(self, kind: str) -> int:
        if self.classes is None:
            raise UsageError(f"kind {kind!r} needs classes, the number of labels")
        return self.classes

    def label_of(self, record: Any) -> tuple[Place, int]:
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
            raise UsageError(f"label={place!r}: no label, which is one integer, but {type(value).__name__}")
        known = self.classes
        if known is not None and not 0 <= int(single) < known:
            raise UsageError(f"label={place!r}: label {int(single)} is not one of the {known} classes 0 to {known - 1}")
        return place, int(single)


def _mislabelled(recipe: Recipe) -> list[Any]:
    classes = recipe.labelled("mislabelled")
    if classes < 2:
        raise UsageError("mislabelled records need two classes or more")
    made = []
    for record in recipe.drawn():
        place, right = recipe.label_of(record)
        made.append(_with(record, place, (right + int(recipe.chance.integers(1, classes))) % classes))
    return made


def _noise(recipe: Recipe) -> list[Any]:
    classes, made = recipe.labelled("noise"), []

    def random(part: Tensor) -> Tensor:
        low, high = float(part.min()), float(part.max())
        return torch.from_numpy(recipe.chance.uniform(low, high, size=tuple(part.shape))).to(part)

    for record in recipe.drawn():
        place, _ = recipe.label_of(record)
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


#: The function that makes each kind.
KINDS: dict[str, Callable[[Recipe], list[Any]]] = {
    "mislabelled": _mislabelled,
    "noise": _noise,
    "blank": _blank,
    "duplicate": lambda recipe: list(recipe.drawn()),
}


def _with(record: Any, place: Place, label: int) -> Any:
    own = record[place]
    value = torch.full_like(own, label) if isinstance(own, Tensor) else type(own)(label)
    return rebuilt(record, {place: value})


def _features(record: Any, label: Place, kind: str, change: Callable[[Tensor], Tensor]) -> Any:
    places = record if isinstance(record, Mapping) else range(len(record))
    changed = {}
    for place in (place for place in places if place != label):
        part = record[place]
        if not isinstance(part, Tensor) or not part.is_floating_point() or not part.numel():
            what = part.dtype if isinstance(part, Tensor) else type(part).__name__
            raise UsageError(
                f"kind {kind!r} needs records of real numbers, and part {place!r} is {what}: give records= instead"
            )
        changed[place] = change(part)
    return rebuilt(record, changed)


def rebuilt(record: Any, parts: Mapping[Place, Any]) -> Any:
    if isinstance(record, Mapping):
        return {**record, **parts}
    values = [parts.get(place, part) for place, part in enumerate(record)]
    return type(record)(*values) if hasattr(record, "_fields") else type(record)(values)


def require_alike(dataset: Any, canaries: Sequence[Any], collate: Collate | None) -> None:
    """Raise ``UsageError`` that names the first canary that makes no batch with the dataset's first record.

    One canary of each form is tried. Without ``collate`` torch stacks records; if this cannot combine two
    records, the loader must have another one and the check is skipped.
    """
    record = dataset[0]
    put = collate or default_collate
    try:
        expected = form(put([record, dataset[len(dataset) - 1]]), sizes=False)
    except Exception as error:
        if collate is None:
            return
        raise UsageError(f"collate cannot put two records of the dataset together: {_why(error)}") from error
    tried: set[str] = set()
    for number, canary in enumerate(canaries):
        shape = form(canary)
        if shape in tried:
            continue
        tried.add(shape)
        for batch in ([record, canary], [canary, record]):
            try:
                found = form(put(batch), sizes=False)
            except Exception as error:
                raise _unlike(number, shape, record, collate, _why(error)) from error
            if found != expected:
                raise _unlike(number, shape, record, collate, f"the batch is {found}, and one of records {expected}")


def form(value: Any, *, sizes: bool = True) -> str:
    """Types and shapes of a record or a batch, such as ``(float32 [5], int)``; without ``sizes`` the number of axes."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        kind = f"{'' if isinstance(value, Tensor) else 'numpy '}{str(value.dtype).removeprefix('torch.')}"
        return f"{kind} {list(value.shape)}" if sizes else f"{kind} of {value.ndim} axes"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {form(part, sizes=sizes)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(form(part, sizes=sizes) for part in value) + ")"
    return type(value).__name__


def _unlike(number: int, shape: str, record: Any, collate: Collate | None, why: str) -> UsageError:
    other = "" if collate is not None else ", or give collate=, if the loader has its own collate_fn"
    return UsageError(
        f"canary {number} makes no batch with records of the dataset: it is {shortened(shape, 200)}, a record is "
        f"{shortened(form(record), 200)} ({why}); make it of the same parts, types and shapes{other}"
    )


def _why(error: Exception) -> str:
    return shortened(f"{type(error).__name__}: {error}".splitlines()[0], 160)
