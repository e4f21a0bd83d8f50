"""Attack trials: each executes the pipeline on one of two neighbours, chosen by a fair coin, and scores the output.

Both datasets are processed once per call, and the private mechanism runs for every coin. The neighbours differ as much
as possible after pre-processing (``docs/explanation/proofs/preprocessing.md``). Record 0 is the canary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

import dpspec.contract as dps
from dpspec_preprocessing import collection, sensitivity, steps
from dpspec_preprocessing.engines import BINS, LinearEngine, NoiseTally, score_output
from dpspec_preprocessing.options import AuditBlock, Declaration, Pipeline
from dpspec_preprocessing.sensitivity import Imputation, Merging, Projection, Step

if TYPE_CHECKING:
    from dpspec_preprocessing.network import NetworkEngine

Array: TypeAlias = np.ndarray[Any, Any]

#: In units of eta: distance of a cluster from the canary, and offsets of members of one cluster.
_REACH, _MEMBER_OFFSET, _JITTER = 2.99, 0.95, 0.002


def run_trials(inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
    declared, options = Declaration.of(inputs["mechanism"]), AuditBlock.of(inputs["audit"])
    pipeline = declared.pipeline(context.facts.records, context.facts.features)
    x, y = collection.flat_rows(context, declared), _labels(context.data.train_y, declared)
    engine: LinearEngine | NetworkEngine = LinearEngine.of(pipeline.private, declared.private, pipeline.out_radius)
    if declared.private.network:
        from dpspec_preprocessing.network import NetworkEngine

        engine = NetworkEngine(private=pipeline.private, training=inputs["training"], context=context)
    y[0], tested = 1, declared.ptr is not None
    try:
        clusters, members = options.cluster_layout
        neighbours = build_neighbours(
            x, pipeline.steps[0], pipeline.collection, pipeline.radius, clusters=clusters, members=members
        )
        device, processed = collection.search_device(context, pipeline), []
        for rows in neighbours:
            if pipeline.step is not None:
                collection.require_in_collection(rows, pipeline, tested=tested, device=device)
            processed.append(steps.run_steps(rows, pipeline.steps, pipeline.radius, device=device)[0])
    except ValueError as error:
        raise dps.DataError(f"the pipeline cannot run on these records: {error}") from error

    exact = [engine.execute_without_noise(rows, y) for rows in processed]
    distances = [collection.distance_to_edge(rows, pipeline) if tested else 0.0 for rows in neighbours]
    changed, moved, total = steps.moved_distance(processed[0][1:], processed[1][1:])
    for index in indices:
        coins = np.random.default_rng(context.seed(index, "coins")).integers(0, 2, size=options.repeats)
        tests = np.random.default_rng(context.seed(index, "tests"))
        sides = (1 - coins).tolist()
        refused = [False] * len(sides)
        if declared.ptr is not None:
            epsilon, least = declared.ptr.epsilon, sensitivity.threshold(declared.ptr.epsilon, declared.ptr.delta)
            refused = [bool(distances[side] + tests.laplace(0.0, 1.0 / epsilon) <= least) for side in sides]
        executed = [side for side, refusal in zip(sides, refused, strict=True) if not refusal]
        tally = NoiseTally()
        outputs = engine.execute(processed, y, executed, np.random.default_rng(context.seed(index, "noise")), tally)
        bins = []
        for done, refusal in enumerate(refused):
            if isinstance(engine, LinearEngine):  # the network engine reports steps
                context.progress(done, len(coins), "executing")
            score = 0.0 if refusal else score_output(pipeline.private, next(outputs), exact[0], exact[1])
            bins.append(min(BINS - 1, max(0, math.floor(BINS * (0.5 + math.atan(score) / math.pi)))))
        internal: dict[str, dps.Json] = {"planted": {"changed": changed, "moved": moved, "tau": total}}
        if index == 0 and declared.private.loss is not None:
            internal["accuracy"] = _accuracy(context, pipeline, engine, declared, x)
        evidence: dict[str, dps.Json] = {
            "records": context.facts.records,
            "features": context.facts.features,
            "coins": "".join(map(str, coins.tolist())),
            "bins": bins,
            "noise": {"count": tally.count, "squares": tally.squares},
            "executed": len(executed),
            "internal": internal,
        }
        states = [run["states"] for run in tally.released if run]
        if states:  # a backend released them
            evidence["steps"] = sorted({int(run.get("steps", 0)) for run in tally.released})
            evidence["states"] = {
                "still": sum(state["still"] for state in states),
                "apart": sum(state["apart"] for state in states),
                "blind": any(state["blind"] for state in states),
            }
        yield dps.Trial(index=index, evidence=dps.FrozenMap(evidence))


def _labels(y: Array, declared: Declaration) -> Array:
    """Map class 0 to -1 and other classes to 1; networks keep all classes."""
    return y.copy() if declared.private.network else np.where(y == 0, -1.0, 1.0)


def _accuracy(
    context: dps.Context, pipeline: Pipeline, engine: LinearEngine | NetworkEngine, declared: Declaration, x: Array
) -> dict[str, dict[str, int]]:
    """Correct predictions of a model trained on the real rows; test rows use the same fitted steps."""
    others = collection.flat_rows(context, declared, test=True)
    device = collection.search_device(context, pipeline)
    rows, test = steps.run_steps(x, pipeline.steps, pipeline.radius, others, device)
    y, test_y = (_labels(labels, declared) for labels in (context.data.train_y, context.data.test_y))
    random = np.random.default_rng(context.seed(0, "twin"))
    output = next(engine.execute([rows], y, [0], random, NoiseTally()))
    counts = {"train": {"right": engine.count_right(output, rows, y), "records": len(rows)}}
    if len(test):
        counts["test"] = {"right": engine.count_right(output, test, test_y), "records": len(test)}
    return counts


def build_neighbours(
    x: Array,
    step: Step,
    collection: Mapping[str, Any],
    radius: float,
    *,
    clusters: int = 5,
    members: int = 3,
) -> tuple[Array, Array]:
    """Both neighbours from real rows (n, d): with the canary as record 0, and with its replacement."""
    rows = np.array(x, dtype=np.float64)
    features, replacement = rows.shape[1], None
    if isinstance(step, Merging):
        canary = _insert_clusters(rows, step.eta, radius, clusters, members, together=step.drops)
    elif isinstance(step, Imputation):
        _empty_rows(rows, collection)
        canary = np.full(features, radius / math.sqrt(features))
    elif isinstance(step, Projection):
        values, vectors = np.linalg.eigh(np.cov(rows[1:], rowvar=False))
        order = np.argsort(values)[::-1]
        kept, dropped = vectors[:, order[step.components - 1]], vectors[:, order[step.components]]
        scale = radius / math.sqrt(2.0)
        canary, replacement = scale * (kept + dropped), scale * (kept - dropped)
    else:
        canary = radius * np.eye(features)[int(np.argmin(rows.std(axis=0)))]
    present, absent = rows, rows.copy()
    present[0], absent[0] = canary, -canary if replacement is None else replacement
    return present, absent


def directions(count: int, features: int) -> Array:
    """Unit vectors (count, features) with pairwise angles of at least 72 degrees: axes, or five on a circle."""
    if count <= 2 * features:
        axes = np.concatenate([np.eye(features), -np.eye(features)], axis=1).reshape(2 * features, features)
        return np.asarray(axes[:count], dtype=np.float64)
    if count == 5 and features == 2:
        angles = 2.0 * math.pi * np.arange(5) / 5.0
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)
    raise ValueError(f"{count} clusters do not fit around one record in {features} dimensions")


def _insert_clusters(x: Array, eta: float, radius: float, clusters: int, members: int, *, together: bool) -> Array:
    if clusters * members >= len(x):
        raise ValueError(f"{clusters} clusters of {members} do not fit into {len(x)} records")
    towards = x[0] if np.linalg.norm(x[0]) > 0.0 else np.ones(x.shape[1])
    # Clusters stay inside the ball; a query weighs rows near its boundary most.
    canary = towards / np.linalg.norm(towards) * max(0.0, 0.95 * radius - 3.0 * eta)
    if together:
        around = directions(clusters, x.shape[1])
    else:
        if clusters > x.shape[1]:
            raise ValueError(f"{clusters} clusters need {clusters} features, got {x.shape[1]}")
        axes = np.argsort(-np.abs(canary))[:clusters]
        around = np.zeros((clusters, x.shape[1]))
        around[np.arange(clusters), axes] = -np.where(canary[axes] >= 0.0, 1.0, -1.0)
    row = 1
    for direction in around:
        for member in range(members):
            distance = _REACH - (_JITTER * member if together or member == 0 else _MEMBER_OFFSET)
            x[row] = canary + distance * eta * direction
            row += 1
    return np.asarray(canary, dtype=np.float64)


def _empty_rows(x: Array, collection: Mapping[str, Any]) -> None:
    """Remove all values of as many rows as the collection allows, from the last row."""
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
