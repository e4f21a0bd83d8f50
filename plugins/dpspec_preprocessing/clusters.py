"""Good clusters: which records eta-approximate deduplication and quantisation take for copies of one another.

x is the centre of a good cluster where the balls of radius eta and 3 eta around it hold the same records. Two good
clusters are equal or disjoint; of several centres the one with the lowest index represents the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

#: Up to so many features a k-d tree counts neighbours, above it blocked products do.
_TREE_FEATURES = 15

#: Bytes that one block of products may take.
_BLOCK_BYTES = 1 << 26


@dataclass(frozen=True, eq=False)
class Clusters:
    """centres (n,) bool: which records are centres. representative (n,): whom a record's cluster keeps, or itself."""

    centres: Array
    representative: Array
    largest: int


def good_clusters(x: Array, eta: float) -> Clusters:
    """The good clusters of records (n, d), closed balls, distances in float64."""
    x = np.asarray(x, dtype=np.float64)
    near, wide = ball_counts(x, eta), ball_counts(x, 3.0 * eta)
    centres = near == wide
    representative = np.full(len(x), len(x))
    # A cluster of one represents itself; only the others have to be looked up.
    for rows, members in _members(x, np.flatnonzero(centres & (near > 1)), eta):
        for row, inside in zip(rows, members, strict=True):
            representative[inside] = np.minimum(representative[inside], row)
    representative = np.where(representative == len(x), np.arange(len(x)), representative)
    return Clusters(centres, representative, int(near[centres].max(initial=1)))


def ball_counts(x: Array, radius: float) -> Array:
    """How many records lie within ``radius`` of each, itself included, (n,) int64."""
    x = np.asarray(x, dtype=np.float64)
    if x.shape[1] <= _TREE_FEATURES:
        from scipy.spatial import cKDTree

        counts = cKDTree(x).query_ball_point(x, radius, return_length=True)
        return np.asarray(counts, dtype=np.int64)
    counted = np.ones(len(x), dtype=np.int64)
    for left, right in _pairs(x, radius):
        np.add.at(counted, left, 1)
        np.add.at(counted, right, 1)
    return counted


def _members(x: Array, rows: Array, radius: float) -> Iterator[tuple[Array, list[Array]]]:
    """Of some records, who lies within ``radius``: in one go, since good clusters are small or few."""
    if not len(rows):
        return
    if x.shape[1] <= _TREE_FEATURES:
        from scipy.spatial import cKDTree

        found = cKDTree(x).query_ball_point(x[rows], radius)
        yield rows, [np.asarray(inside, dtype=np.int64) for inside in found]
        return
    neighbours: dict[int, list[int]] = {int(row): [int(row)] for row in rows}
    for left, right in _pairs(x, radius):
        for a, b in zip(left.tolist(), right.tolist(), strict=True):
            if a in neighbours:
                neighbours[a].append(b)
            if b in neighbours:
                neighbours[b].append(a)
    yield rows, [np.asarray(inside, dtype=np.int64) for inside in neighbours.values()]


def _pairs(x: Array, radius: float) -> Iterator[tuple[Array, Array]]:
    """All pairs i < j within ``radius``, by blocked products of centred rows; close calls are measured again."""
    centred = x - x.mean(axis=0)
    squares = np.einsum("ij,ij->i", centred, centred)
    block = max(1, min(len(x), _BLOCK_BYTES // (8 * max(1, len(x)))))
    # Products of float64 rows err by less than this; whoever may be inside is measured as a difference of rows.
    limit = radius**2 + 1e-12 * (1.0 + 4.0 * float(squares.max(initial=0.0)))
    for start in range(0, len(x), block):
        rows = slice(start, start + block)
        squared = squares[rows, None] + squares[None, start:] - 2.0 * centred[rows] @ centred[start:].T
        left, right = np.nonzero(squared <= limit)
        left, right = left + start, right + start
        ahead = left < right
        left, right = left[ahead], right[ahead]
        inside = np.linalg.norm(x[left] - x[right], axis=1) <= radius
        yield left[inside], right[inside]
