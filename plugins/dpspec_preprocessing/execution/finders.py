"""Which records lie within a radius of one another, exactly, and the good clusters that they form.

x is the centre of a good cluster where the balls of radius eta and 3 eta around it hold the same records. Two good
clusters are equal or disjoint; of several centres the one with the lowest index represents the cluster.

Closed balls, distances as the norm of a difference of float64 rows. Three ways, of which ``choose_finder`` takes one:

* few features: a k-d tree;
* many features, on a CPU, where few records are near one another: a k-d tree on the first principal directions, along
  which distances are never longer, and then the distances of what it found;
* else blocked products of centred float32 rows on the device, of bounded rounding; close calls are measured again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

#: Features that a k-d tree takes.
TREE_FEATURES = 15

#: Numbers that one block of differences, and one block of products, may hold.
_DIFFERENCES, _PRODUCTS = 1 << 23, 1 << 24

#: Records whose neighbourhoods along principal directions are counted to tell whether they are sparse, and the share of
#: all records that they may hold on average.
_SAMPLE, _SPARSE = 256, 1.0 / 64.0


#: From so many records on a tree answers with all cores.
_MANY = 1 << 14


class Finder(Protocol):
    """Neighbours among records (n, d), each with a weight (n,)."""

    def weights_within(self, radius: float) -> Array:
        """The summed weight of the records within ``radius`` of each, itself included, (n,)."""

    def within(self, rows: Array, radius: float) -> list[Array]:
        """Of some records, who lies within ``radius``, in ascending order."""


def choose_finder(x: Array, weight: Array, radius: float, device: str = "cpu") -> Finder:
    """The way that suits records (n, d), their largest radius and the device."""
    if x.shape[1] <= TREE_FEATURES:
        return Tree(x, weight)
    if device == "cpu":
        tree = Tree(x, weight)
        if tree.sparse(radius):
            return tree
    return Products(x, weight, device)


class Tree:
    """A k-d tree; of many features on the first principal directions."""

    def __init__(self, x: Array, weight: Array) -> None:
        from scipy.spatial import cKDTree

        self._x, self._weight = x, weight
        self._exact = x.shape[1] <= TREE_FEATURES
        self._places = x if self._exact else _leading(x)
        self._tree = cKDTree(self._places)
        self._workers = -1 if len(x) > _MANY else 1

    def sparse(self, radius: float) -> bool:
        """Whether few records are near one another along the first principal directions."""
        n = len(self._x)
        some = self._places[:: max(1, n // _SAMPLE)]
        return float(self._tree.query_ball_point(some, radius, return_length=True).mean()) <= max(8.0, _SPARSE * n)

    def weights_within(self, radius: float) -> Array:
        """Counted by the tree where its distances are exact, and what heavier records add; else pair by pair."""
        counts = np.asarray(
            self._tree.query_ball_point(self._places, self._reach(radius), return_length=True, workers=self._workers)
        )
        total = counts.astype(np.float64) if self._exact else self._weight.astype(np.float64)
        some = np.flatnonzero(self._weight > 1 if self._exact else counts > 1)
        for left, right in self._pairs(some, counts[some], radius):
            added = self._weight[left] - 1 if self._exact else np.where(left == right, 0, self._weight[left])
            total += np.bincount(right, weights=added, minlength=len(total))
        return np.rint(total).astype(np.int64)

    def within(self, rows: Array, radius: float) -> list[Array]:
        """Lists from the tree, measured again where its distances are not exact."""
        counts = self._tree.query_ball_point(
            self._places[rows], self._reach(radius), return_length=True, workers=self._workers
        )
        lists: list[Array] = []
        for left, right in self._pairs(rows, np.asarray(counts), radius):
            lists += np.split(right, np.flatnonzero(np.diff(left)) + 1)
        return lists

    def _pairs(self, rows: Array, counts: Array, radius: float) -> Iterator[tuple[Array, Array]]:
        """Pairs of ``rows``, in their order, and who lies within; ``counts`` of the tree say how long its lists are."""
        reach, width = self._reach(radius), 1 if self._exact else self._x.shape[1]
        for start, stop in _blocks(counts * width, _DIFFERENCES):
            some = rows[start:stop]
            lists = self._tree.query_ball_point(self._places[some], reach, return_sorted=True, workers=self._workers)
            left, right = np.repeat(some, counts[start:stop]), np.concatenate(lists).astype(np.int64)
            if not self._exact:
                inside = _distances(self._x[left], self._x[right]) <= radius
                left, right = left[inside], right[inside]
            yield left, right

    def _reach(self, radius: float) -> float:
        """What the tree is asked for: a little more where rounding may have moved rows in it."""
        return radius if self._exact else radius * (1.0 + 1e-9) + 1e-12 * self._x.shape[1] * self._largest

    @cached_property
    def _largest(self) -> float:
        return float(np.abs(self._x).max(initial=0.0))


class Products:
    """Blocked products of centred rows on a device."""

    def __init__(self, x: Array, weight: Array, device: str) -> None:
        import torch

        self._x, self._weight = x, weight
        centred = x - x.mean(axis=0)
        # By a power of two to numbers of at most 1, so that no float32 product is out of range.
        self._scale = float(np.ldexp(1.0, min(1000, -int(np.frexp(np.abs(centred).max(initial=0.0))[1]))))
        centred = centred * self._scale
        squares = np.einsum("ij,ij->i", centred, centred)
        self._rows = torch.tensor(centred, dtype=torch.float32, device=device)
        self._squares = torch.tensor(squares, dtype=torch.float32, device=device)
        self._weights = torch.tensor(weight, dtype=torch.float64, device=device)
        self._slack = (4.0 * x.shape[1] + 64.0) * 2.0**-24 * float(squares.max(initial=0.0))
        self._block = max(1, _PRODUCTS // max(1, len(x)))

    def weights_within(self, radius: float) -> Array:
        """Summed on the device, but for close calls."""
        total = np.zeros(len(self._x))
        for start in range(0, len(self._x), self._block):
            rows = np.arange(start, min(len(self._x), start + self._block))
            sure, close = self._split(rows, radius)
            total[rows] = (sure.to(self._weights.dtype) @ self._weights).cpu().numpy()
            for left, right in close:
                np.add.at(total, left, self._weight[right])
        return np.rint(total).astype(np.int64)

    def within(self, rows: Array, radius: float) -> list[Array]:
        """Pairs from the device, but for close calls."""
        neighbours: list[Array] = []
        for start in range(0, len(rows), self._block):
            some = rows[start : start + self._block]
            sure, close = self._split(some, radius)
            left, right = (part.cpu().numpy() for part in sure.nonzero(as_tuple=True))
            place = {int(row): i for i, row in enumerate(some)}
            lists = [right[left == i] for i in range(len(some))]
            for a, b in close:
                for row in np.unique(a):
                    lists[place[int(row)]] = np.sort(np.concatenate([lists[place[int(row)]], b[a == row]]))
            neighbours += lists
        return neighbours

    def _split(self, rows: Array, radius: float) -> tuple[Any, list[tuple[Array, Array]]]:
        """Who surely lies within ``radius`` of ``rows``, (b, n) on the device, and in pairs the close calls that do."""
        from dpspec.training.device import full_precision

        at = self._rows[rows]
        with full_precision(self._rows.device):
            squared = self._squares[rows][:, None] + self._squares[None, :] - 2.0 * at @ self._rows.T
        limit = (radius * self._scale) * (radius * self._scale)
        sure = squared <= limit - self._slack
        left, right = ((squared <= limit + self._slack) & ~sure).nonzero(as_tuple=True)
        left, right = rows[left.cpu().numpy()], right.cpu().numpy()
        close = []
        each = max(1, _DIFFERENCES // self._x.shape[1])
        for start in range(0, len(left), each):
            a, b = left[start : start + each], right[start : start + each]
            inside = _distances(self._x[a], self._x[b]) <= radius
            close.append((a[inside], b[inside]))
        return sure, close


def _leading(x: Array) -> Array:
    """Rows on the first principal directions, (n, 15)."""
    centred = x - x.mean(axis=0)
    vectors = np.linalg.eigh(centred.T @ centred)[1]
    return np.asarray(centred @ vectors[:, -TREE_FEATURES:], dtype=np.float64)


def _distances(one: Array, other: Array) -> Array:
    return np.asarray(np.sqrt(np.square(one - other).sum(axis=1)), dtype=np.float64)


def _blocks(sizes: Array, most: int) -> Iterator[tuple[int, int]]:
    """Ranges that hold ``most`` at most together, or one place."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = float(ends[start - 1]) if start else 0.0
        stop = max(start + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield start, stop
        start = stop


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
        self._finder = choose_finder(rows[self._first], weight[order], radius, device)

    def count_in_balls(self, radius: float) -> Array:
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


def find_good_clusters(x: Array, eta: float, device: str = "cpu") -> Clusters:
    """The good clusters of records (n, d)."""
    return Neighbourhoods(x, 3.0 * eta, device).good_clusters(eta)
