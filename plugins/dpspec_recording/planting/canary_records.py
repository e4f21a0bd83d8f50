"""Canaries of each kind that are records, made from the records of a dataset, and their fit in a batch with records.

A record is a tuple or list, or a mapping, of tensors and numbers with a label; or a sequence of token ids. Torch's
``default_collate`` stacks tensors of any type, so a canary of float64 would make a whole batch float64, and only the
model would fail.

Panda et al. 2025 (https://arxiv.org/abs/2503.06808) let each canary end in a token that the data lacks: nothing else
teaches the model this token, so its loss shows whether the canary was included. Each canary gets one of these tokens by
a random permutation, so included and omitted canaries have one distribution.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from dpspec.errors import UsageError
from dpspec.text import closest, did_you_mean, shortened
from dpspec_recording.folder.coins import GRADIENTS, NEW_TOKENS, RANDOM_TOKENS, Array

#: The keys of labels in records that are mappings.
_LABELS = ("label", "labels", "y", "target")

#: Kinds that are made from records of any form.
KINDS = ("mislabelled", "noise", "duplicate")

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
            kinds = [*KINDS, NEW_TOKENS, RANDOM_TOKENS, GRADIENTS]
            suggestion = did_you_mean(closest(kind, kinds))
            raise UsageError(f"kind must be one of {', '.join(kinds)}, got {kind!r}{suggestion}")
        if kind == "duplicate":
            return list(self.drawn())
        if self.classes is None:
            raise UsageError(f"kind {kind!r} needs classes, the number of labels")
        if kind == "mislabelled" and self.classes < 2:
            raise UsageError("mislabelled records need two classes or more")
        return [self._changed(record, kind, self.classes) for record in self.drawn()]

    def _changed(self, record: Any, kind: str, classes: int) -> Any:
        """The record with another label, or with random features and a random label."""
        label_key, right = self.label_of(record)
        changed_parts: dict[Place, Any] = {}
        for key in record if isinstance(record, Mapping) else range(len(record)):
            if kind == "mislabelled" or key == label_key:
                continue
            part = record[key]
            if not isinstance(part, Tensor) or not part.is_floating_point() or not part.numel():
                part_type = part.dtype if isinstance(part, Tensor) else type(part).__name__
                raise UsageError(
                    f"kind {kind!r} needs records of real numbers, and part {key!r} is {part_type}: give "
                    "records= instead"
                )
            low, high = float(part.min()), float(part.max())
            changed_parts[key] = torch.from_numpy(self.chance.uniform(low, high, size=tuple(part.shape))).to(part)
        drawn = int(self.chance.integers(1 if kind == "mislabelled" else 0, classes))
        label = (right + drawn) % classes if kind == "mislabelled" else drawn
        old_label = record[label_key]
        value = torch.full_like(old_label, label) if isinstance(old_label, Tensor) else type(old_label)(label)
        return rebuilt(record, {**changed_parts, label_key: value})

    def drawn(self) -> Iterator[Any]:
        number = len(self.dataset)
        rounds = [self.chance.permutation(number) for _ in range(-(-self.count // number))]
        for index in np.concatenate(rounds)[: self.count].tolist():
            yield self.dataset[index]

    def label_of(self, record: Any) -> tuple[Place, int]:
        label_key = self.label
        if label_key is None and isinstance(record, Mapping):
            label_names = [name for name in _LABELS if name in record]
            label_key = label_names[0] if len(label_names) == 1 else None
        elif label_key is None and isinstance(record, Sequence) and len(record) > 1:
            label_key = len(record) - 1
        if label_key is None:
            raise UsageError("say where records have their label: label=1 for the second part, label='y' for a key")
        try:
            value = record[label_key]
        except (KeyError, IndexError, TypeError):
            raise UsageError(f"label={label_key!r}: records have nothing there") from None
        single = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        if isinstance(single, bool) or not isinstance(single, int | np.integer):
            raise UsageError(f"label={label_key!r}: no label, which is one integer, but {type(value).__name__}")
        classes = self.classes
        if classes is not None and not 0 <= int(single) < classes:
            raise UsageError(
                f"label={label_key!r}: label {int(single)} is not one of the {classes} classes 0 to {classes - 1}"
            )
        return label_key, int(single)


def rebuilt(record: Any, changed_parts: Mapping[Place, Any]) -> Any:
    if isinstance(record, Mapping):
        return {**record, **changed_parts}
    values = [changed_parts.get(index, part) for index, part in enumerate(record)]
    return type(record)(*values) if hasattr(record, "_fields") else type(record)(values)


def require_alike(dataset: Any, canaries: Sequence[Any], collate: Collate | None) -> None:
    """Raise ``UsageError`` that names the first canary that makes no batch with the dataset's first record.

    One canary of each form is tried. Without ``collate`` torch stacks records; if this cannot combine two
    records, the loader must have another one and the check is skipped.
    """
    record, put = dataset[0], collate or default_collate
    try:
        expected = form(put([record, dataset[len(dataset) - 1]]), sizes=False)
    except Exception as error:
        if collate is None:
            return
        raise UsageError(f"collate cannot put two records of the dataset together: {_why(error)}") from error
    tried: set[str] = set()
    for number, canary in enumerate(canaries):
        shape = form(canary)
        for batch in [] if shape in tried else [[record, canary], [canary, record]]:
            try:
                batch_form = form(put(batch), sizes=False)
                mismatch = "" if batch_form == expected else f"the batch is {batch_form}, and one of records {expected}"
            except Exception as error:
                mismatch = _why(error)
            if mismatch:
                collate_hint = "" if collate is not None else ", or give collate=, if the loader has its own collate_fn"
                raise UsageError(
                    f"canary {number} makes no batch with records of the dataset: it is {shortened(shape, 200)}, a "
                    f"record is {shortened(form(record), 200)} ({mismatch}); make it of the same parts, types and "
                    f"shapes{collate_hint}"
                )
        tried.add(shape)


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


def _why(error: Exception) -> str:
    return shortened(f"{type(error).__name__}: {error}".splitlines()[0], 160)


#: Kinds that this module makes.
TOKEN_KINDS = (NEW_TOKENS, RANDOM_TOKENS)

#: Torch's losses and the models of transformers skip targets with this value.
IGNORED = -100

#: The largest vocabulary.
_MOST_IDS = 2**24

Key: TypeAlias = int | str | None


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The ids of a model. size: their number. extend: whether canaries get ids from ``size`` on. special: ids that no
    canary gets. tokens: number of new tokens per canary. template: first ids of every canary."""

    size: int | None = None
    extend: bool = False
    special: tuple[int, ...] = ()
    tokens: int = 1
    template: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        size = self.size
        if size is not None and (type(size) is not int or not 1 <= size <= _MOST_IDS):
            raise UsageError(f"vocabulary must be the model's number of token ids, up to {_MOST_IDS}, got {size!r}")
        if any(
            isinstance(token_id, bool) or not isinstance(token_id, int | np.integer) or token_id < 0
            for token_id in self.special
        ):
            raise UsageError("special must be token ids, integers from 0 on")
        if type(self.tokens) is not int or self.tokens < 1:
            raise UsageError(f"tokens must be the number of new tokens per canary, from 1 on, got {self.tokens!r}")


def token_canaries(kind: str, recipe: Recipe, vocabulary: Vocabulary) -> list[Any]:
    """Canaries of the lengths and forms of drawn records."""
    records, chance = list(recipe.drawn()), recipe.chance
    form = _Form.of([recipe.dataset[0], *records])
    there = np.zeros(_MOST_IDS, dtype=bool)
    for number in range(len(recipe.dataset)):
        ids = form.ids_of(recipe.dataset[number], number)
        least, most = int(ids.min()), int(ids.max())
        if least < 0 or most >= _MOST_IDS:
            raise UsageError(f"record {number} has the token id {least if least < 0 else most}: no vocabulary has it")
        there[ids] = True
    occurring_ids = np.flatnonzero(there)
    if kind == RANDOM_TOKENS:
        if vocabulary != Vocabulary(special=vocabulary.special):
            raise UsageError(
                "canaries of kind 'random-tokens' have ids of the data: leave vocabulary, extend, tokens and template "
                "out"
            )
        ordinary_ids = np.setdiff1d(occurring_ids, vocabulary.special)
        if len(ordinary_ids) < 2:
            raise UsageError("the records of the dataset have fewer than two token ids that are not special")
        return [form.replaced(record, lambda old: chance.choice(ordinary_ids, len(old))) for record in records]
    size, count = vocabulary.size, len(records) * vocabulary.tokens
    if size is None:
        raise UsageError("kind 'new-tokens' needs vocabulary, the model's number of token ids")
    if int(occurring_ids[-1]) >= size:
        raise UsageError(
            f"a record has the token id {occurring_ids[-1]}, and vocabulary={size} has the ids 0 to {size - 1}"
        )
    if not all(type(token) is int and 0 <= token < size for token in vocabulary.template):
        raise UsageError(f"template must be token ids from 0 to {size - 1}")
    unused = np.arange(size, size + count)
    if not vocabulary.extend:
        used_ids = [*occurring_ids.tolist(), *vocabulary.special, *vocabulary.template]
        free = np.setdiff1d(np.arange(size), used_ids)
        if len(free) < count:
            ids_per_canary = "a token id" if vocabulary.tokens == 1 else f"{vocabulary.tokens} token ids"
            raise UsageError(
                f"{len(records)} canaries of kind 'new-tokens' need {ids_per_canary} each, and {len(free)} of the "
                f"{size} ids occur in no record: plant {len(free) // vocabulary.tokens} at most, or agree by "
                f"extend=True to a model with {size + count} ids"
            )
        unused = chance.choice(free, count, replace=False)
    canary_tokens = chance.permutation(unused).reshape(len(records), vocabulary.tokens)
    template = np.array(vocabulary.template, dtype=np.int64)
    return [form.ending_in(record, template, tokens) for record, tokens in zip(records, canary_tokens, strict=True)]


@dataclass(frozen=True)
class _Form:
    """Where records have token ids, targets and the attention mask; None for a record that is the ids, or no part.

    shifted: whether the target of a place is the next id. Otherwise it is the id, which the model shifts.
    """

    ids: Key
    targets: Key = None
    mask: Key = None
    shifted: bool = False

    @classmethod
    def of(cls, records: Sequence[Any]) -> "_Form":
        first = records[0]
        first_element = first[0] if isinstance(first, list) and first else None
        if isinstance(first, Mapping):
            if "input_ids" not in first:
                raise UsageError("records that are mappings need token ids at the key input_ids")
            there = {key: key if key in first else None for key in ("labels", "attention_mask")}
            form = cls("input_ids", there["labels"], there["attention_mask"])
        elif isinstance(first, Tensor | np.ndarray) or (
            isinstance(first_element, int | np.integer) and type(first_element) is not bool
        ):
            form = cls(None)
        elif isinstance(first, Sequence) and len(first) in (1, 2):
            form = cls(0, 1 if len(first) == 2 else None)
        else:
            raise UsageError(
                "token canaries need records of token ids: a sequence of ids, (ids,), (ids, next ids), or a mapping "
                f"with input_ids, got {type(first).__name__}: give records= instead"
            )
        if form.targets is None:
            return form
        for shifted in (False, True):
            if all(
                _follows(form._part(record, form.ids), form._part(record, form.targets), shifted) for record in records
            ):
                return cls(form.ids, form.targets, form.mask, shifted)
        raise UsageError(
            f"part {form.targets!r} of records must hold the targets of the token ids: the ids themselves, or the next "
            f"ids, and {IGNORED} in places without a loss"
        )

    def ids_of(self, record: Any, number: int) -> Array:
        """All ids of a record, of its inputs and targets."""
        ids = self._part(record, self.ids, f"record {number}")
        if self.targets is None:
            return ids
        targets = self._part(record, self.targets, f"record {number}")
        return np.concatenate([ids, targets[targets != IGNORED]])

    def replaced(self, record: Any, draw: Callable[[Array], Array]) -> Any:
        """Every attended id replaced by a drawn one."""
        ids = self._part(record, self.ids).copy()
        there = self._attended(record)
        ids[there] = draw(ids[there])
        if self.targets is None:
            return self._rebuilt(record, {self.ids: ids})
        targets = self._part(record, self.targets)
        following = np.append(ids[1:], draw(targets[-1:])) if self.shifted else ids
        return self._rebuilt(record, {self.ids: ids, self.targets: np.where(targets == IGNORED, IGNORED, following)})

    def ending_in(self, record: Any, template: Array, tokens: Array) -> Any:
        """The record with ``template`` as its first attended ids, and ``tokens`` as its last ones and only targets."""
        ids, there = self._part(record, self.ids).copy(), self._attended(record)
        inputs = tokens[:-1] if self.shifted else tokens
        if len(there) < max(1 - self.shifted, len(template)) + len(inputs):
            raise UsageError(
                f"a record of {len(there)} token ids has no place for a template of {len(template)} ids and "
                f"{len(tokens)} new tokens after the first id"
            )
        ids[there[: len(template)]] = template
        ids[there[len(there) - len(inputs) :]] = inputs
        if self.targets is None:
            return self._rebuilt(record, {self.ids: ids})
        targets = np.full_like(self._part(record, self.targets), IGNORED)
        targets[there[-len(tokens) :]] = tokens
        return self._rebuilt(record, {self.ids: ids, self.targets: targets})

    def _attended(self, record: Any) -> Array:
        ids = self._part(record, self.ids)
        there = np.arange(len(ids)) if self.mask is None else np.flatnonzero(self._part(record, self.mask))
        if len(there) < (1 if self.shifted else 2):
            raise UsageError("token canaries need records of two token ids or more, as the first one has no loss")
        return there

    @staticmethod
    def _part(record: Any, key: Key, name: str = "a record") -> Array:
        try:
            value = record if key is None else record[key]
        except (KeyError, IndexError, TypeError):
            raise UsageError(f"{name} has no part {key!r}, which other records have") from None
        ids = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
        if ids.ndim != 1 or not len(ids) or not np.issubdtype(ids.dtype, np.integer):
            part = "" if key is None else f"part {key!r} of "
            raise UsageError(
                f"{part}{name} is not a sequence of token ids, which has one axis of integers: give records= instead"
            )
        return ids.astype(np.int64)

    @staticmethod
    def _rebuilt(record: Any, changed_ids: Mapping[Key, Array]) -> Any:
        def alike(old: Any, ids: Array) -> Any:
            if isinstance(old, Tensor):
                return torch.from_numpy(ids).to(old)
            return ids.astype(old.dtype) if isinstance(old, np.ndarray) else ids.tolist()

        if None in changed_ids:
            return alike(record, changed_ids[None])
        return rebuilt(record, {key: alike(record[key], ids) for key, ids in changed_ids.items() if key is not None})


def _follows(ids: Array, targets: Array, shifted: bool) -> bool:
    if len(ids) != len(targets):
        return False
    expected, compared_targets = (ids[1:], targets[:-1]) if shifted else (ids, targets)
    return bool(((compared_targets == expected) | (compared_targets == IGNORED)).all())
