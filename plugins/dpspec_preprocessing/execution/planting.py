"""Two neighbouring data sets that a pre-processing tells apart as far as it can: record 0 is the canary.

deduplicate   clusters of near-duplicates at 2.99 eta around the canary: it lies in every centre's ball of 3 eta and in
              none of eta, so that none of them is a good cluster any more. Its replacement lies opposite.
quantise      the same with members 0.95 eta closer to the canary than the one that represents them.
impute        rows that miss everything, as many as the collection allows; the canary is a unit vector or its negative.
pca           the canary leans from the last kept principal direction to the first lost one, or away from it.
scale         the canary stands at either end of the feature that varies least.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dpspec_preprocessing.theory.declared_steps import Imputation, Merging, Projection, Step

Array: TypeAlias = np.ndarray[Any, Any]

#: How far a cluster is planted from the canary, how far its members stand apart, in units of eta.
_REACH, _APART, _JITTER = 2.99, 0.95, 0.002


class PlantedNeighbours(NamedTuple):
    """Rows (n, d) with the canary and with its replacement; all but record 0 are equal."""

    present: Array
    absent: Array


def plant_neighbours(
    x: Array,
    step: Step,
    collection: Mapping[str, Any],
    radius: float,
    *,
    clusters: int = 5,
    members: int = 3,
) -> PlantedNeighbours:
    """Both data sets, from real rows. Raises ``ValueError`` where the construction does not fit them."""
    rows = np.array(x, dtype=np.float64)
    if isinstance(step, Merging):
        canary = _plant_clusters(rows, step.eta, radius, clusters, members, together=step.drops)
        return _pair(rows, canary, -canary)
    if isinstance(step, Imputation):
        _empty_rows(rows, collection)
        canary = np.full(rows.shape[1], radius / math.sqrt(rows.shape[1]))
        return _pair(rows, canary, -canary)
    if isinstance(step, Projection):
        values, vectors = np.linalg.eigh(np.cov(rows[1:], rowvar=False))
        order = np.argsort(values)[::-1]
        kept, lost = vectors[:, order[step.components - 1]], vectors[:, order[step.components]]
        scale = radius / math.sqrt(2.0)
        return _pair(rows, scale * (kept + lost), scale * (kept - lost))
    least = int(np.argmin(rows.std(axis=0)))
    canary = radius * np.eye(rows.shape[1])[least]
    return _pair(rows, canary, -canary)


def directions(count: int, features: int) -> Array:
    """Unit vectors (count, d) with angles of at least 72 degrees: plus and minus axes, or five on a circle.

    Raises ``ValueError`` where so many do not fit.
    """
    if count <= 2 * features:
        axes = np.concatenate([np.eye(features), -np.eye(features)], axis=1).reshape(2 * features, features)
        return np.asarray(axes[:count], dtype=np.float64)
    if count == 5 and features == 2:
        angles = 2.0 * math.pi * np.arange(5) / 5.0
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)
    raise ValueError(f"{count} clusters do not fit around one record in {features} dimensions")


def _plant_clusters(x: Array, eta: float, radius: float, clusters: int, members: int, *, together: bool) -> Array:
    """Clusters in rows 1, 2, ... of ``x``; returns the canary at their middle."""
    if clusters * members >= len(x):
        raise ValueError(f"{clusters} clusters of {members} do not fit into {len(x)} records")
    towards = x[0] if np.linalg.norm(x[0]) > 0.0 else np.ones(x.shape[1])
    # Clusters stay inside the ball; further out a query counts them most.
    canary = towards / np.linalg.norm(towards) * max(0.0, 0.95 * radius - 3.0 * eta)
    if together:
        around = directions(clusters, x.shape[1])
    else:
        if clusters > x.shape[1]:
            raise ValueError(f"{clusters} clusters need as many features, there are {x.shape[1]}")
        axes = np.argsort(-np.abs(canary))[:clusters]
        around = np.zeros((clusters, x.shape[1]))
        around[np.arange(clusters), axes] = -np.where(canary[axes] >= 0.0, 1.0, -1.0)
    row = 1
    for direction in around:
        for member in range(members):
            distance = _REACH - (_JITTER * member if together or member == 0 else _APART)
            x[row] = canary + distance * eta * direction
            row += 1
    return np.asarray(canary, dtype=np.float64)


def _empty_rows(x: Array, collection: Mapping[str, Any]) -> None:
    """Rows from the last on lose all their values, as many as the collection still allows."""
    missing = np.isnan(x)
    rows = int(np.count_nonzero(missing.any(axis=1)))
    limit = int(collection.get("max_missing_rows", len(x) // 10)) - rows
    observed = int((~missing).sum(axis=0).min()) - int(collection.get("min_observed", 2))
    if int(collection.get("max_missing_in_row", x.shape[1])) < x.shape[1]:
        return
    for row in range(len(x) - 1, 0, -1):
        if min(limit, observed) <= 0:
            return
        if not missing[row].any():
            x[row] = np.nan
            limit, observed = limit - 1, observed - 1


def _pair(x: Array, present: Array, absent: Array) -> PlantedNeighbours:
    one, other = x.copy(), x.copy()
    one[0], other[0] = present, absent
    return PlantedNeighbours(one, other)
