"""Who is hidden where: a trial's candidates, its target, and the records that a run trains on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import dpspec.contract as dps
from dpspec_rero.prior import Candidates

Array = np.ndarray[Any, Any]
Places = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Hidden:
    """One trial's candidates.

    x, y: the records that were made for this trial, (m, ...) and (m,); they stand behind the n records of the data.
    places: (k,), where each candidate stands among all n + m; target: which of the k is hidden.
    rows: the places of the records that the run trains on: the known ones in order, and the target last.
    """

    x: Array
    y: Array
    places: Places
    target: int
    rows: Places


def hide(chosen: Candidates, x: Array, y: Array, classes: int, seed: int) -> Hidden:
    """Candidates from the records ``x`` (n, ...), ``y`` (n,), or made for the purpose; ``seed`` decides everything.

    Raises ``DataError`` where no class has enough records, or no more records can be told apart.
    """
    source = np.random.default_rng(seed)
    made_x, made_y = x[:0], y[:0]
    if chosen.source == "planted":
        made_x, made_y = planted(chosen.count, x, y, classes, source)
        places = len(y) + np.arange(chosen.count, dtype=np.int64)
    else:
        pool = _pool(chosen, y, source)
        places = source.choice(pool, size=chosen.count, replace=False).astype(np.int64)
    target = int(source.choice(chosen.count, p=chosen.masses))
    known = np.setdiff1d(np.arange(len(y), dtype=np.int64), places)
    return Hidden(x=made_x, y=made_y, places=places, target=target, rows=np.append(known, places[target]))


def planted(count: int, x: Array, y: Array, classes: int, source: np.random.Generator) -> tuple[Array, Array]:
    """``count`` records that are as unlike as records can be: all zero but for one feature, and a label.

    No two share both, so that their gradients in a first dense layer are orthogonal, or opposed: the worst case that
    bounds speak of, which natural records come near to only where they are few. They are as long as the longest
    record. Raises ``DataError`` where there are fewer pairs of features and labels.
    """
    features = int(np.prod(x.shape[1:]))
    if count > features * classes:
        raise dps.DataError(f"{features} features and {classes} classes tell {features * classes} records apart")
    feature, label = np.divmod(source.choice(features * classes, size=count, replace=False), classes)
    made = np.zeros((count, features), dtype=x.dtype)
    made[np.arange(count), feature] = np.linalg.norm(x.reshape(len(x), -1), axis=1).max()
    return made.reshape(count, *x.shape[1:]), label.astype(y.dtype)


def _pool(chosen: Candidates, labels: Array, source: np.random.Generator) -> Places:
    if chosen.source == "all":
        return np.arange(len(labels), dtype=np.int64)
    classes, counts = np.unique(labels, return_counts=True)
    large = classes[counts >= chosen.count]
    if len(large) == 0:
        raise dps.DataError(f"no class has {chosen.count} records to choose candidates from")
    return np.flatnonzero(labels == source.choice(large))
