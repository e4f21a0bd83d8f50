"""Good clusters: which records eta-approximate deduplication and quantisation take for copies of one another.

x is the centre of a good cluster where the balls of radius eta and 3 eta around it hold the same records. Two good
clusters are equal or disjoint; of several centres the one with the lowest index represents the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dpspec_preprocessing.neighbours import finder

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Clusters:
    """centres (n,) bool: which records are centres. representative (n,): whom a record's cluster keeps, or itself."""

    centres: Array
    representative: Array
    largest: int


class Neighbourhoods:
    """Records (n, d), made ready to be searched up to some radius; closed balls, distances in float64.

    Equal rows are searched for once: data that is worth deduplicating may hold the same row many thousand times.
    """

    def __init__(self, x: Array, radius: float, device: str = "cpu") -> None:
        rows = np.ascontiguousarray(x, dtype=np.float64) + 0.0  # one zero
        keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
        _, first, which, weight = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        order = np.argsort(first)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        #: Of every distinct row the first record, and of every record which distinct row it is.
        self._first, self._which = first[order], place[which.ravel()]
        self._finder = finder(rows[self._first], weight[order], radius, device)

    def ball_counts(self, radius: float) -> Array:
        """How many records lie within ``radius`` of each, itself included, (n,) int64."""
        return np.asarray(self._finder.weights_within(radius)[self._which], dtype=np.int64)

    def good_clusters(self, eta: float) -> Clusters:
        """The good clusters."""
        near, wide = self._finder.weights_within(eta), self._finder.weights_within(3.0 * eta)
        centres = near == wide
        keeper = self._keepers(near, centres, eta)[self._which]
        representative = np.where(keeper < 0, np.arange(len(keeper)), keeper)
        return Clusters(centres[self._which], representative, int(near[centres].max(initial=1)))

    def _keepers(self, near: Array, centres: Array, eta: float) -> Array:
        """The record that represents each distinct row, the first centre of its cluster; -1 outside of clusters.

        A cluster is looked up at any of its centres, in an order that has nothing to do with that of rows, as many at
        once as their lists hold records: so few clusters are looked up twice.
        """
        keeper, left = np.full(len(near), -1), centres & (near > 1)
        random = np.random.default_rng(0)
        while left.any():
            waiting = random.permutation(np.flatnonzero(left))
            some = waiting[: max(1, int(np.searchsorted(np.cumsum(near[waiting]), len(near), side="right")))]
            for inside in self._finder.within(some, eta):
                keeper[inside] = self._first[inside[centres[inside]]].min()
                left[inside] = False
        return keeper


def good_clusters(x: Array, eta: float, device: str = "cpu") -> Clusters:
    """The good clusters of records (n, d)."""
    return Neighbourhoods(x, 3.0 * eta, device).good_clusters(eta)


def ball_counts(x: Array, radius: float, device: str = "cpu") -> Array:
    """How many records lie within ``radius`` of each, itself included, (n,) int64."""
    return Neighbourhoods(x, radius, device).ball_counts(radius)
