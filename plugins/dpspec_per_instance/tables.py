"""Tables and curves: one row per record, and what becomes of all of them over training, by correctness and by runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

import dpspec.contract as dps
from dpspec.accounting.checks import Floats
from dpspec_per_instance import bounds, composition, divergence
from dpspec_per_instance.analysis import Analysis, Array
from dpspec_per_instance.derived import advantage
from dpspec_per_instance.options import DIRECTIONS
from dpspec_per_instance.rows import table
from dpspec_per_instance.totals import Composer

#: Figures are rounded to so many significant digits in the table of all records.
_DIGITS = 6


def series(spec: dps.Spec, found: Analysis) -> Iterator[dps.Series]:
    """All tables that follow from the norms."""
    yield records(spec, found)
    yield over_training(spec, found)
    yield by_correctness(spec, found)
    yield by_runs(spec, found)
    yield by_exponent(spec, found)


def records(spec: dps.Spec, found: Analysis) -> dps.Series:
    """One row per audited record: epsilon per direction, the data-independent one, the smaller, and which it is.

    ratio: the estimate over the data-independent epsilon by the same method; it may exceed 1. advantage: the most that
    knowing the record helps to tell that it was used, or that the model is right about it for having seen it.
    """
    delta = bounds.claimed_deltas(spec)[-1]
    whole = found.epsilons(delta, found.audited.whole)
    norms = np.mean([ratios.mean(axis=0, dtype=np.float64) for ratios in found.first.ratios], axis=0)
    full = np.mean([(ratios >= 1.0).mean(axis=0) for ratios in found.first.ratios], axis=0)
    columns: dict[str, Sequence[dps.Json]] = {
        "record": list(found.audited.points),
        "label": [int(label) for label in found.labels],
        "right": _rounded(found.right[-1]),
        "mean_norm": _rounded(norms),
        "saturated": _rounded(full),
    }
    for direction in found.audited.directions:
        one = whole if direction == whole.direction else found.epsilons(delta, direction)
        columns[f"estimate_{direction}"] = _rounded(one.estimate)
        columns[f"certified_{direction}"] = _rounded(one.certified)
    columns |= {
        "data_independent": [whole.tight] * len(norms),
        "epsilon": [min(value, whole.tight) for value in _rounded(whole.estimate)],
        "from": ["data set" if value >= whole.tight else "record" for value in _rounded(whole.estimate)],
        "ratio": _rounded(whole.estimate / whole.renyi),
        "advantage": _rounded(advantage(whole.reported, delta)),
    }
    return dps.Series(
        name="records",
        title=f"Every audited record at delta {delta:g}: estimates, and what is certified".replace("e-0", "e-"),
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap({name: "clip norms" if name == "mean_norm" else "" for name in columns}),
        rigor="approximate",
        source=f"{divergence.SOURCE}; {composition.SOURCE}",
        privacy="per-record",
        plot=dps.FrozenMap({"kind": "sorted", "y": ["epsilon"], "by": "label"}),
    )


def over_training(spec: dps.Spec, found: Analysis) -> dps.Series:
    """What a step adds at each record's models, over what a saturated record loses in it: the ratio over training."""

    def rows() -> Iterator[Sequence[dps.Json]]:
        for order in found.shown:
            total = found.total(order)
            for step, contributions in zip(found.first.composer.observed.tolist(), total.contributions, strict=True):
                ratio = contributions / found.first.composer.saturated(order, step)
                yield step, order, float(ratio.mean()), *(float(v) for v in np.quantile(ratio, (0.1, 0.5, 0.9)))

    return table(
        "ratio-over-training",
        "What a step adds, relative to the data-independent value, over training",
        ("step", "order", "mean", "p10", "median", "p90"),
        rows(),
        rigor="approximate",
        source=composition.SOURCE,
        privacy=found.privacy,
        plot={"x": "step", "y": ["mean"], "by": "order", "band": ["p10", "p90"]},
    )


def by_correctness(spec: dps.Spec, found: Analysis) -> dps.Series:
    """Five moments of training: what the step adds over all runs, and its divergence at the models that were met, both
    relative to a saturated record: of records that the model gets right and of those that it does not."""
    steps, first = found.first.composer.observed, found.first
    own = [trial.arrays["right"] for trial in found.trials] if first.direction == found.audited.shared else None

    def rows() -> Iterator[Sequence[dps.Json]]:
        for order in found.shown:
            total = found.total(order)
            for j in sorted({0, len(steps) // 4, len(steps) // 2, (3 * len(steps)) // 4, len(steps) - 1}):
                ratio, step = first.composer.relative(order, j, first.places[j]), int(steps[j])
                right = (
                    np.stack([r[j] for r in own]) > 0
                    if own is not None
                    else np.tile(found.right[j] >= 0.5, (found.runs, 1))
                )
                added = float(total.contributions[j].mean() / first.composer.saturated(order, step))
                middle = float(np.median(ratio))
                yield step, order, added, _mean(ratio, right), _mean(ratio, ~right), float(right.mean()), middle

    return table(
        "right-against-wrong",
        "Steps relative to the data-independent value: what they add on average over records, and one step of records "
        "that the model gets right, and wrong",
        ("step", "order", "added", "right", "wrong", "share_right", "median"),
        rows(),
        rigor="approximate",
        source=f"{divergence.SOURCE}; {composition.SOURCE}",
        privacy=found.privacy,
        plot={"x": "step", "y": ["right", "wrong"], "by": "order"},
    )


def by_runs(spec: dps.Spec, found: Analysis) -> dps.Series:
    """The whole run relative to the data-independent divergence, from few runs and from all: an estimate that still
    rises has not seen what counts. certified: what so many runs make certain."""

    def rows() -> Iterator[Sequence[dps.Json]]:
        for order in found.shown:
            for runs in sorted({*(2**k for k in range(found.runs.bit_length())), found.runs}):
                total = found.first.with_runs(order, runs)
                ratio, certain = total.plug_in / total.baseline, total.certified / total.baseline
                quantiles = (float(v) for v in np.quantile(ratio, (0.1, 0.5)))
                kappa = found.first.composer.kappa(order)[0]
                yield runs, order, float(ratio.mean()), *quantiles, float(certain.mean()), kappa

    return table(
        "ratio-by-runs",
        "The run relative to the data-independent divergence, by how many runs are averaged",
        ("runs", "order", "mean", "p10", "median", "certified", "estimability"),
        rows(),
        rigor="approximate",
        source=composition.SOURCE,
        privacy=found.privacy,
        plot={"x": "runs", "y": ["mean", "certified"], "by": "order", "log": ["x"]},
    )


def by_exponent(spec: dps.Spec, found: Analysis) -> dps.Series:
    """The same by the exponents of the composition: the theorem holds for each of them, and for schedules.

    Small ones ask less of runs and raise the orders of early steps. The least of several estimates is biased.
    """
    steps, first = found.first.composer.count, found.first
    choices: dict[str, float | tuple[float, ...]] = {
        "n": 1.0 * steps,
        "3 n": 3.0 * steps,
        "30 n": 30.0 * steps,
        "n to 10 n": (1.0 * steps, 10.0 * steps),
        "10 n to n": (10.0 * steps, 1.0 * steps),
    }

    def rows() -> Iterator[Sequence[dps.Json]]:
        mechanism = dps.FrozenMap({**spec.mechanism.options, "orders": found.shown})
        direction = DIRECTIONS[first.direction]
        tables = None
        for name, p in choices.items():
            composer = Composer(mechanism, direction, p if steps > 1 else 3.0)
            tables = composer.tabulated(tables)
            for order in found.shown:
                total = composer.total(order, first.places, first.log_terms)
                ratio, (last, second) = total.plug_in / total.baseline, composer.kappa(order)
                yield (
                    name,
                    order,
                    float(composition.recursion(order, steps, composer.p).orders[0]),
                    float(ratio.mean()),
                    float(np.median(ratio)),
                    float(total.certified.mean() / total.baseline),
                    last,
                    second,
                )

    return table(
        "ratio-by-exponent",
        f"The same by the exponent of the composition over {steps} steps, from the last to the first where it changes",
        ("exponent", "order", "first_order", "mean", "median", "certified", "estimability", "at_step_2"),
        rows(),
        rigor="approximate",
        source=f"{composition.SOURCE}, with an exponent for every turn",
        privacy=found.privacy,
    )


def _rounded(values: Floats | Array) -> list[float]:
    return [float(f"{float(value):.{_DIGITS}g}") for value in values]


def _mean(values: Floats, chosen: Array) -> float | None:
    return float(values[chosen].mean()) if chosen.any() else None
