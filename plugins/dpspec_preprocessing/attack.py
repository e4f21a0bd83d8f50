"""Trials: the pipeline executed on one of two neighbours, by fair coins, and its outputs scored.

The adversary knows both data sets, the pipeline and all constants, but neither the coins nor the noise. Pre-processing
is deterministic: both data sets are processed once per call, and the private mechanism runs for every coin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

import dpspec.contract as dps
from dpspec_preprocessing.execution import collection, steps
from dpspec_preprocessing.execution.engines import Engine, LinearEngine, NoiseTally, bin_score, score_output
from dpspec_preprocessing.execution.planting import plant_neighbours
from dpspec_preprocessing.options import AuditBlock, Declaration, Pipeline, Test
from dpspec_preprocessing.theory import sensitivity
from dpspec_preprocessing.theory.declared_steps import Merging, Projection

Array: TypeAlias = np.ndarray[Any, Any]


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
    distances = [0.0 if declared.test is None else distance_inside(rows, pipeline) for rows in planted]
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


def distance_inside(x: Array, pipeline: Pipeline) -> float:
    """J: at least so many records must be replaced before a data set leaves the collection; 0 for chains."""
    step, limits = pipeline.step, pipeline.collection
    if step is None:
        return 0.0
    if isinstance(step, Projection):
        values, k = collection.covariance_spectrum(x), step.components
        gap = float(values[k - 1] - values[k]) / pipeline.radius**2
        least = float(limits["min_eigengap"]) / pipeline.radius**2
        return sensitivity.distance_of_gap(gap, least, len(x))
    if isinstance(step, Merging):
        count = window_count(x, 8.0 * step.eta)
        return sensitivity.distance_of_count(count, float(limits["max_ball"]))
    missing = int(np.isnan(x).any(axis=1).sum())
    return sensitivity.distance_of_count(missing, float(limits["max_missing_rows"]))


def window_count(x: Array, width: float) -> int:
    """The most records in a window of ``width`` along (1, ..., 1) / sqrt(d): no less than any ball of that diameter.

    One replaced record moves it by at most one, unlike the largest ball around a record.
    """
    places = np.sort(x.sum(axis=1) / np.sqrt(x.shape[1]))
    return int((np.searchsorted(places, places + width * (1.0 + 1e-12), side="right") - np.arange(len(places))).max())


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
