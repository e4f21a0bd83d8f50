"""One trial: the pipeline executed on one of two neighbours, by fair coins, and its outputs scored.

The adversary knows both data sets, the pipeline and all constants, but neither the coins nor the noise. Pre-processing
is deterministic: both data sets are processed once per trial, and the private mechanism runs for every coin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

import dpspec.contract as dps
from dpspec_preprocessing import measure, ptr, steps
from dpspec_preprocessing.canaries import neighbours
from dpspec_preprocessing.execute import Engine, Executable, Tally, binned, score
from dpspec_preprocessing.options import Pipeline, is_network, kind_of, pipeline_of
from dpspec_preprocessing.rows import device_of, raw, within

Array: TypeAlias = np.ndarray[Any, Any]


def run_trials(inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
    """Execute every trial's repeats; the evidence holds coins and bins of scores, and the first trial's accuracy."""
    mechanism, audit = inputs["mechanism"], inputs["audit"]
    found = pipeline_of(mechanism, context.facts)
    x, y = raw(context, mechanism), _labels(context.data.train_y, mechanism)
    y[0] = 1
    try:
        planted = neighbours(
            x,
            found.steps[0],
            found.collection,
            found.radius,
            clusters=int(audit.get("clusters", 5)),
            members=int(audit.get("members", 3)),
        )
        processed = [_processed(rows, found, mechanism, device_of(context, found)) for rows in planted]
    except ValueError as error:
        raise dps.DataError(f"the pipeline cannot run on these records: {error}") from error
    engine = _engine(found, inputs, context)
    exact = [engine.noiseless(rows, y) for rows in processed]
    distances = [distance_inside(rows, found, mechanism) for rows in planted]
    changed, moved, total = steps.distance(processed[0][1:], processed[1][1:])
    for index in indices:
        coins = np.random.default_rng(context.seed(index, "coins")).integers(0, 2, size=int(audit.get("repeats", 1)))
        tests = np.random.default_rng(context.seed(index, "tests"))
        sides = (1 - coins).tolist()
        refused = [_refuses(distances[side], mechanism, tests) for side in sides]
        which = [side for side, no in zip(sides, refused, strict=True) if not no]
        tally = Tally()
        outputs = engine.released(processed, y, which, np.random.default_rng(context.seed(index, "noise")), tally)
        bins = []
        for done, no in enumerate(refused):
            if isinstance(engine, Executable):  # networks tell of their steps
                context.progress(done, len(coins), "executing")
            bins.append(binned(0.0 if no else score(found.private, next(outputs), exact[0], exact[1])))
        internal: dict[str, dps.Json] = {"planted": {"changed": changed, "moved": moved, "tau": total}}
        if index == 0 and "loss" in mechanism["private"]:
            internal["accuracy"] = _accuracy(context, found, engine, mechanism, x)
        evidence = {
            "records": context.facts.records,
            "features": context.facts.features,
            "coins": "".join(map(str, coins.tolist())),
            "bins": bins,
            "noise": {"count": tally.count, "squares": tally.squares},
            "internal": internal,
        }
        yield dps.Trial(index=index, evidence=dps.FrozenMap(evidence))


def _processed(rows: Array, found: Pipeline, mechanism: Mapping[str, Any], device: str) -> Array:
    """Planted rows after the pipeline; they have to lie in the declared collection as well."""
    if found.step is not None:
        within(rows, found, tested=mechanism.get("ptr") is not None, device=device)
    return steps.run(rows, found.steps, found.radius, device=device)[0]


def out_radius(found: Pipeline) -> float:
    """The radius of processed rows: that of the records, or where they are scaled what they are cut back to."""
    last = found.steps[-1]
    return float(last["clip"]) if "scale" in last else found.radius


def distance_inside(x: Array, found: Pipeline, mechanism: Mapping[str, Any]) -> float:
    """J: at least so many records must be replaced before a data set leaves the collection; 0 without a test."""
    if mechanism.get("ptr") is None or found.step is None:
        return 0.0
    by, c = kind_of(found.step), found.collection
    if by == "pca":
        values, k = measure.spectrum(x), int(found.step["pca"])
        gap = float(values[k - 1] - values[k]) / found.radius**2
        return ptr.distance_gap(gap, float(c["min_eigengap"]) / found.radius**2, len(x))
    if by in ("deduplicate", "quantise"):
        return ptr.distance_count(window_count(x, 8.0 * float(found.step[by])), float(c["max_ball"]))
    return ptr.distance_count(int(np.isnan(x).any(axis=1).sum()), float(c["max_missing_rows"]))


def window_count(x: Array, width: float) -> int:
    """The most records in a window of ``width`` along (1, ..., 1) / sqrt(d): no less than any ball of that diameter.

    One replaced record moves it by at most one, unlike the largest ball around a record.
    """
    places = np.sort(x.sum(axis=1) / np.sqrt(x.shape[1]))
    return int((np.searchsorted(places, places + width * (1.0 + 1e-12), side="right") - np.arange(len(places))).max())


def _refuses(distance: float, mechanism: Mapping[str, Any], random: np.random.Generator) -> bool:
    test = mechanism.get("ptr")
    if test is None:
        return False
    noisy = distance + random.laplace(0.0, 1.0 / float(test["epsilon"]))
    return bool(noisy <= ptr.threshold(float(test["epsilon"]), float(test["delta"])))


def _engine(found: Pipeline, inputs: dps.FrozenMap, context: dps.Context) -> Engine:
    if is_network(inputs["mechanism"]["private"]):
        from dpspec_preprocessing.networks import Network

        return Network(private=found.private, training=inputs["training"], context=context)
    return Executable.of(found.private, inputs["mechanism"]["private"], out_radius(found))


def _labels(y: Array, mechanism: Mapping[str, Any]) -> Array:
    """Classes 0 and others as -1 and 1; networks tell all classes apart."""
    return y.copy() if is_network(mechanism["private"]) else np.where(y == 0, -1.0, 1.0)


def _accuracy(
    context: dps.Context, found: Pipeline, engine: Engine, mechanism: Mapping[str, Any], x: Array
) -> dict[str, dict[str, int]]:
    """How many records the released model gets right, trained on the real rows; test rows by the same maps."""
    others = raw(context, mechanism, test=True)
    rows, test = steps.run(x, found.steps, found.radius, others, device_of(context, found))
    y, test_y = (_labels(own, mechanism) for own in (context.data.train_y, context.data.test_y))
    random = np.random.default_rng(context.seed(0, "twin"))
    output = next(engine.released([rows], y, [0], random, Tally()))
    counts = {"train": {"right": engine.right(output, rows, y), "records": len(rows)}}
    if len(test):
        counts["test"] = {"right": engine.right(output, test, test_y), "records": len(test)}
    return counts
