"""Canaries that are sequences of token ids: random tokens, or a record that ends in a token that no record has.

Panda et al. 2025 (https://arxiv.org/abs/2503.06808) let each canary end in a token that the data lacks: nothing else
teaches the model this token, so its loss shows whether the canary was included. Each canary gets one of these tokens by
a random permutation, so included and omitted canaries have one distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dpspec.errors import UsageError
from dpspec.recording.folder.canaries import NEW_TOKENS, RANDOM_TOKENS, Array
from dpspec.recording.planting.canary_records import Recipe, rebuilt

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
    canary gets."""

    size: int | None = None
    extend: bool = False
    special: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        size = self.size
        if size is not None and (type(size) is not int or not 1 <= size <= _MOST_IDS):
            raise UsageError(f"vocabulary must be the model's number of token ids, up to {_MOST_IDS}, got {size!r}")
        if any(isinstance(one, bool) or not isinstance(one, int | np.integer) or one < 0 for one in self.special):
            raise UsageError("special must be token ids, integers from 0 on")


def token_canaries(kind: str, recipe: Recipe, vocabulary: Vocabulary) -> list[Any]:
    """Canaries of the lengths and forms of drawn records."""
    records, chance = list(recipe.drawn()), recipe.chance
    form = _Form.of([recipe.dataset[0], *records])
    seen = _seen(recipe.dataset, form)
    if kind == RANDOM_TOKENS:
        if vocabulary.size is not None or vocabulary.extend:
            raise UsageError("canaries of kind 'random-tokens' have ids of the data: leave vocabulary and extend out")
        known = np.setdiff1d(seen, vocabulary.special)
        if len(known) < 2:
            raise UsageError("the records of the dataset have fewer than two token ids that are not special")
        return [form.replaced(record, lambda old: chance.choice(known, len(old))) for record in records]
    own = chance.permutation(_unused(seen, len(records), vocabulary, chance))
    return [form.ending_in(record, int(token)) for record, token in zip(records, own, strict=True)]


def _seen(dataset: Any, form: _Form) -> Array:
    """The ids that occur in the dataset, ascending."""
    there = np.zeros(0, dtype=bool)
    for number in range(len(dataset)):
        ids = form.ids_of(dataset[number], number)
        least, most = int(ids.min()), int(ids.max())
        if least < 0 or most >= _MOST_IDS:
            raise UsageError(f"record {number} has the token id {least if least < 0 else most}: no vocabulary has it")
        if most >= len(there):
            there = np.append(there, np.zeros(most + 1 - len(there), dtype=bool))
        there[ids] = True
    return np.flatnonzero(there)


def _unused(seen: Array, count: int, vocabulary: Vocabulary, chance: np.random.Generator) -> Array:
    size = vocabulary.size
    if size is None:
        raise UsageError("kind 'new-tokens' needs vocabulary, the model's number of token ids")
    if int(seen[-1]) >= size:
        raise UsageError(f"a record has the token id {seen[-1]}, and vocabulary={size} has the ids 0 to {size - 1}")
    if vocabulary.extend:
        return np.arange(size, size + count)
    free = np.setdiff1d(np.arange(size), np.concatenate([seen, np.array(vocabulary.special, dtype=np.int64)]))
    if len(free) < count:
        raise UsageError(
            f"{count} canaries of kind 'new-tokens' need a token id each, and {len(free)} of the {size} ids occur in "
            f"no record: plant {len(free)} at most, or agree by extend=True to a model with {size + count} ids"
        )
    chosen: Array = chance.choice(free, count, replace=False)
    return chosen


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
    def of(cls, records: Sequence[Any]) -> _Form:
        first = records[0]
        if isinstance(first, Mapping):
            if "input_ids" not in first:
                raise UsageError("records that are mappings need token ids at the key input_ids")
            there = {key: key if key in first else None for key in ("labels", "attention_mask")}
            form = cls("input_ids", there["labels"], there["attention_mask"])
        elif isinstance(first, Tensor | np.ndarray) or (isinstance(first, list) and first and _is_id(first[0])):
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

    def ending_in(self, record: Any, token: int) -> Any:
        """The record with ``token`` as its last attended id and only target."""
        ids, last = self._part(record, self.ids).copy(), self._attended(record)[-1]
        if not self.shifted:
            ids[last] = token
        if self.targets is None:
            return self._rebuilt(record, {self.ids: ids})
        targets = np.full_like(self._part(record, self.targets), IGNORED)
        targets[last] = token
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
        found = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
        if found.ndim != 1 or not len(found) or not np.issubdtype(found.dtype, np.integer):
            part = "" if key is None else f"part {key!r} of "
            raise UsageError(
                f"{part}{name} is not a sequence of token ids, which has one axis of integers: give records= instead"
            )
        return found.astype(np.int64)

    @staticmethod
    def _rebuilt(record: Any, parts: Mapping[Key, Array]) -> Any:
        def alike(old: Any, ids: Array) -> Any:
            if isinstance(old, Tensor):
                return torch.from_numpy(ids).to(old)
            return ids.astype(old.dtype) if isinstance(old, np.ndarray) else ids.tolist()

        if None in parts:
            return alike(record, parts[None])
        return rebuilt(record, {key: alike(record[key], ids) for key, ids in parts.items() if key is not None})


def _is_id(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _follows(ids: Array, targets: Array, shifted: bool) -> bool:
    if len(ids) != len(targets):
        return False
    expected, given = (ids[1:], targets[:-1]) if shifted else (ids, targets)
    return bool(((given == expected) | (given == IGNORED)).all())
