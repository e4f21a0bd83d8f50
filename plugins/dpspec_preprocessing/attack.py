"""Trials: the pipeline executed on one of two neighbours, by fair coins, and its outputs scored.

The adversary knows both data sets, the pipeline and all constants, but neither the coins nor the noise. Pre-processing
is deterministic: both data sets are processed once per call, and the private mechanism runs for every coin.

The neighbours are two data sets that a pre-processing tells apart as far as it can; record 0 is the canary.

deduplicate   clusters of near-duplicates at 2.99 eta around the canary: it lies in every centre's ball of 3 eta and in
              none of eta, so that none of them is a good cluster any more. Its replacement lies opposite.
quantise      the same with members 0.95 eta closer to the canary than the one that represents them.
impute        rows that miss everything, as many as the collection allows; the canary is a unit vector or its negative.
pca           the canary leans from the last kept principal direction to the first lost one, or away from it.
scale         the canary stands at either end of the feature that varies least.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import dpspec.contract as dps
from dpspec_preprocessing.execution import collection, steps
from dpspec_preprocessing.execution.engines import Engine, LinearEngine, NoiseTally, bin_score, score_output
from dpspec_preprocessing.options import AuditBlock, Declaration, Pipeline, Test
from dpspec_preprocessing.theory import sensitivity
from dpspec_preprocessing.theory.declared_steps import Imputation, Merging, Projection, Step

Array: TypeAlias = np.ndarray[Any, Any]

#: How far a cluster is planted from the canary, how far its members stand apart, in units of eta.
_REACH, _APART, _JITTER = 2.99, 0.95, 0.002


def run_trials(inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
    """Execute every trial's repeats; the evidence holds coins and bins of scores, and the first trial's accuracy."""
    declared, options = Declaration.of(inputs["mechanism"]), AuditBlock.of(inputs["audit"])
    pipeline = declared.pipeline(context.facts.records, context.facts.features)
    x, y = collection.flat_rows(context, declared), _labels(context.data.train_y, declared)
    y[0] = 1
    try:
        clusters, members = options.planted
        planted = plant_neighbours(
            x, pipeline.steps[0], pipeline.collection, pipeline.radius, clusters=clusters, members=members
        )
        device = collection.search_device(context, pipeline)
        processed = [_process(rows, pipeline, declared, device) for rows in planted]
    except ValueError as error:
        raise dps.DataError(f"the pipeline cannot run on these records: {error}") from error
    engine = _engine(pipeline, declared, inputs["training"], context)
    exact = [engine.execute_without_noise(rows, y) for rows in processed]
    distances = [0.0 if declared.test is None else collection.distance_inside(rows, pipeline) for rows in planted]
    changed, moved, total = steps.moved_distance(processed[0][1:], processed[1][1:])
    for index in indices:
        coins = np.random.default_rng(context.seed(index, "coins")).integers(0, 2, size=options.repeats)
        tests = np.random.default_rng(context.seed(index, "tests"))
        sides = (1 - coins).tolist()
        refused = [_refuses(distances[side], declared.test, tests) for side in sides]
        executed = [side for side, no in zip(sides, refused, strict=True) if not no]
        tally = NoiseTally()
        outputs = engine.execute(processed, y, executed, np.random.default_rng(context.seed(index, "noise")), tally)
        bins = []
        for done, no in enumerate(refused):
            if isinstance(engine, LinearEngine):  # networks report their own steps
                context.progress(done, len(coins), "executing")
            bins.append(bin_score(0.0 if no else score_output(pipeline.private, next(outputs), exact[0], exact[1])))
        internal: dict[str, dps.Json] = {"planted": {"changed": changed, "moved": moved, "tau": total}}
        if index == 0 and declared.private.loss is not None:
            internal["accuracy"] = _accuracy(context, pipeline, engine, declared, x)
        evidence = {
            "records": context.facts.records,
            "features": context.facts.features,
            "coins": "".join(map(str, coins.tolist())),
            "bins": bins,
            "noise": {"count": tally.count, "squares": tally.squares},
            "executed": len(executed),
            "internal": internal,
        }
        evidence |= _released_states(tally)
        yield dps.Trial(index=index, evidence=dps.FrozenMap(evidence))


def _released_states(tally: NoiseTally) -> dict[str, dps.Json]:
    """What a backend released in all runs of a trial: every number of states that a run had, and what they were."""
    states = [run["states"] for run in tally.released if run]
    if not states:
        return {}
    return {
        "steps": sorted({int(run.get("steps", 0)) for run in tally.released}),
        "states": {
            "still": sum(state["still"] for state in states),
            "apart": sum(state["apart"] for state in states),
            "blind": any(state["blind"] for state in states),
        },
    }


def _process(rows: Array, pipeline: Pipeline, declared: Declaration, device: str) -> Array:
    """Planted rows after the pipeline; they have to lie in the declared collection as well."""
    if pipeline.step is not None:
        collection.require_inside(rows, pipeline, tested=declared.test is not None, device=device)
    return steps.run_steps(rows, pipeline.steps, pipeline.radius, device=device)[0]


def _refuses(distance: float, test: Test | None, random: np.random.Generator) -> bool:
    if test is None:
        return False
    noisy = distance + random.laplace(0.0, 1.0 / test.epsilon)
    return bool(noisy <= sensitivity.threshold(test.epsilon, test.delta))


def _engine(pipeline: Pipeline, declared: Declaration, training: dps.FrozenMap, context: dps.Context) -> Engine:
    if declared.private.network:
        from dpspec_preprocessing.execution.network import NetworkEngine

        return NetworkEngine(private=pipeline.private, training=training, context=context)
    return LinearEngine.of(pipeline.private, declared.private, pipeline.out_radius)


def _labels(y: Array, declared: Declaration) -> Array:
    """Classes 0 and others as -1 and 1; networks tell all classes apart."""
    return y.copy() if declared.private.network else np.where(y == 0, -1.0, 1.0)


def _accuracy(
    context: dps.Context, pipeline: Pipeline, engine: Engine, declared: Declaration, x: Array
) -> dict[str, dict[str, int]]:
    """How many records the released model gets right: trained on real rows, test rows processed by the same maps."""
    others = collection.flat_rows(context, declared, test=True)
    device = collection.search_device(context, pipeline)
    rows, test = steps.run_steps(x, pipeline.steps, pipeline.radius, others, device)
    y, test_y = (_labels(own, declared) for own in (context.data.train_y, context.data.test_y))
    random = np.random.default_rng(context.seed(0, "twin"))
    output = next(engine.execute([rows], y, [0], random, NoiseTally()))
    counts = {"train": {"right": engine.count_right(output, rows, y), "records": len(rows)}}
    if len(test):
        counts["test"] = {"right": engine.count_right(output, test, test_y), "records": len(test)}
    return counts


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
