"""Input canaries: records that stand out, to be planted among the training records.

A canary group is ``copies`` equal records, all planted or none. Which records there are follows from the seed, which
groups are planted from the coins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


class Records(NamedTuple):
    """Canary records: features ``x`` (count, ...) and labels ``y`` (count,)."""

    x: Array
    y: Array


class Rows(NamedTuple):
    """A training set with planted records appended, and which canary each planted one is: ``owner`` (planted,)."""

    x: Array
    y: Array
    owner: Array


def make(kind: str, count: int, x: Array, y: Array, classes: int, seed: int) -> Records:
    """``count`` canary records after the training records ``x`` (n, ...), ``y`` (n,).

    mislabelled: training records with a wrong label. blank: all features at their smallest value, each with another
    label, so that there are no more than ``classes``. noise: features uniform between the smallest and the largest
    value in ``x``, a random label. duplicate: training records as they are. Training records are taken without
    repetition as long as there are enough of them. Raises ``ValueError`` where the kind cannot be made.
    """
    if kind not in KINDS:
        raise ValueError(f"the kind of input canaries must be one of {', '.join(KINDS)}, got {kind!r}")
    if len(x) == 0:
        raise ValueError("canaries are made after training records, and there are none")
    return KINDS[kind](count, x, y, classes, np.random.default_rng(seed))


def plant(x: Array, y: Array, canaries: Records, copies: Array, coins: Array) -> Rows:
    """Append ``copies[i]`` records equal to canary i for each ``coins[i]`` that is 1; the order of canaries is kept."""
    owner = np.repeat(np.arange(len(copies)), copies * coins)
    return Rows(np.concatenate([x, canaries.x[owner]]), np.concatenate([y, canaries.y[owner]]), owner)


def _mislabelled(count: int, x: Array, y: Array, classes: int, rng: np.random.Generator) -> Records:
    if classes < 2:
        raise ValueError("a record cannot be mislabelled where there is one class only")
    chosen = _some(count, len(x), rng)
    return Records(x[chosen], (y[chosen] + rng.integers(1, classes, size=count)) % classes)


def _blank(count: int, x: Array, y: Array, classes: int, rng: np.random.Generator) -> Records:
    if count > classes:
        raise ValueError(f"there are {classes} blank records at most, one for each label, not {count}")
    blank = np.full((count, *x.shape[1:]), x.min(), dtype=x.dtype)
    return Records(blank, rng.permutation(classes)[:count].astype(y.dtype))


def _noise(count: int, x: Array, y: Array, classes: int, rng: np.random.Generator) -> Records:
    features = rng.uniform(x.min(), x.max(), size=(count, *x.shape[1:])).astype(x.dtype)
    return Records(features, rng.integers(0, classes, size=count).astype(y.dtype))


def _duplicate(count: int, x: Array, y: Array, classes: int, rng: np.random.Generator) -> Records:
    chosen = _some(count, len(x), rng)
    return Records(x[chosen], y[chosen])


def _some(count: int, records: int, rng: np.random.Generator) -> Array:
    rounds = [rng.permutation(records) for _ in range(-(-count // records))]
    return np.concatenate([np.zeros(0, dtype=np.int64), *rounds])[:count]


#: How each kind is made.
KINDS: dict[str, Callable[[int, Array, Array, int, np.random.Generator], Records]] = {
    "mislabelled": _mislabelled,
    "blank": _blank,
    "noise": _noise,
    "duplicate": _duplicate,
}
