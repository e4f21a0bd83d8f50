"""Tables and curves: one row per record, and what becomes of all of them over training, by correctness and by runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

import dpspec.contract as dps
from dpspec.accounting.checks import Floats
from dpspec_per_instance import bounds, composition, divergence, tuples
from dpspec_per_instance.analysis import Analysis, Array
from dpspec_per_instance.derived import advantage

#: Figures are rounded to so many significant digits in the table of all records.
_DIGITS = 6

_STAGES = ("initial", "middle", "final")


def series(spec: dps.Spec, found: Analysis) -> Iterator[dps.Series]:
    """All tables that follow from the norms."""
    yield records(spec, found)
    yield over_training(spec, found)
    yield by_correctness(spec, found)
    yield by_runs(spec, found)


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
        "epsilon": _rounded(whole.reported),
        "from": ["data set" if value >= whole.tight else "record" for value in whole.estimate],
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
    )


def over_training(spec: dps.Spec, found: Analysis) -> dps.Series:
    """What a step adds at each record's models, over what a saturated record loses in it: the ratio over training."""
    columns: dict[str, list[dps.Json]] = {name: [] for name in ("step", "order", "mean", "p10", "median", "p90")}
    for order in found.shown:
        total = found.total(order)
        for step, contributions in zip(found.first.composer.observed.tolist(), total.contributions, strict=True):
            ratio = contributions / found.first.composer.saturated(order, step)
            told = (step, order, float(ratio.mean()), *(float(v) for v in np.quantile(ratio, (0.1, 0.5, 0.9))))
            for name, value in zip(columns, told, strict=True):
                columns[name].append(value)
    return dps.Series(
        name="ratio-over-training",
        title="What a step adds, relative to the data-independent value, over training",
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap(dict.fromkeys(columns, "")),
        rigor="approximate",
        source=composition.SOURCE,
        privacy=spec.data_privacy,
        plot=dps.FrozenMap({"x": "step", "y": ["mean", "p10", "p90"], "by": "order"}),
    )


def by_correctness(spec: dps.Spec, found: Analysis) -> dps.Series:
    """The divergence of one step at the models met, relative to a saturated one: of records that the model gets right
    and of those that it does not, over all runs."""
    names = ("step", "order", "right", "wrong", "share_right", "median")
    columns: dict[str, list[dps.Json]] = {name: [] for name in names}
    steps = found.first.composer.observed
    own = [trial.arrays["right"] for trial in found.trials] if found.first.direction == found.audited.shared else None
    for order in found.shown:
        for j in sorted({0, len(steps) // 4, len(steps) // 2, (3 * len(steps)) // 4, len(steps) - 1}):
            ratio = found.first.composer.relative(order, j, found.first.places[j])
            right = (
                np.stack([r[j] for r in own]) > 0
                if own is not None
                else np.tile(found.right[j] >= 0.5, (found.runs, 1))
            )
            told = (
                int(steps[j]),
                order,
                _mean(ratio, right),
                _mean(ratio, ~right),
                float(right.mean()),
                float(np.median(ratio)),
            )
            for name, value in zip(names, told, strict=True):
                columns[name].append(value)
    return dps.Series(
        name="right-against-wrong",
        title="One step relative to the data-independent value: records that the model gets right, and wrong",
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap(dict.fromkeys(columns, "")),
        rigor="approximate",
        source=divergence.SOURCE,
        privacy=spec.data_privacy,
        plot=dps.FrozenMap({"x": "step", "y": ["right", "wrong"], "by": "order"}),
    )


def by_runs(spec: dps.Spec, found: Analysis) -> dps.Series:
    """The whole run relative to the data-independent divergence, from few runs and from all: an estimate that still
    rises has not seen what counts. certified: what so many runs make certain."""
    names = ("runs", "order", "mean", "p10", "median", "certified", "estimability")
    columns: dict[str, list[dps.Json]] = {name: [] for name in names}
    for order in found.shown:
        for runs in sorted({*(2**k for k in range(found.runs.bit_length())), found.runs}):
            total = found.first.with_runs(order, runs)
            ratio, certain = total.plug_in / total.baseline, total.certified / total.baseline
            told = (
                runs,
                order,
                float(ratio.mean()),
                *(float(v) for v in np.quantile(ratio, (0.1, 0.5))),
                float(certain.mean()),
                found.first.composer.kappa(order)[0],
            )
            for name, value in zip(names, told, strict=True):
                columns[name].append(value)
    return dps.Series(
        name="ratio-by-runs",
        title="The run relative to the data-independent divergence, by how many runs are averaged",
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap(dict.fromkeys(columns, "")),
        rigor="approximate",
        source=composition.SOURCE,
        privacy=spec.data_privacy,
        plot=dps.FrozenMap({"x": "runs", "y": ["mean", "certified"], "by": "order", "log": ["x"]}),
    )


def mean_rule(spec: dps.Spec, trial: dps.Trial) -> dps.Series | None:
    """The effect of the batch size where noise is added to means: medians over records, with what one saturated record
    loses at that batch size, by Theorem 3.2."""
    asked = spec.audit.options.get("mean_rule") if spec.audit is not None else None
    if asked is None or "mean_rule" not in trial.arrays:
        return None
    values, sizes = trial.arrays["mean_rule"], trial.arrays["mean_rule_sizes"]
    names = ("stage", "batch", "order", "remove", "add", "data_independent", "tuples")
    columns: dict[str, list[dps.Json]] = {name: [] for name in names}
    records_of, phases = int(trial.evidence["sizes"][0]), spec.phases
    for s, stage in enumerate(_STAGES):
        sigma = float(phases[0 if s == 0 else -1]["noise_multiplier"])
        for b, batch in enumerate(asked["batches"]):
            for o, order in enumerate(asked["orders"]):
                base = float(divergence.step_divergence(float(order), float(batch) / records_of, 1.0 / sigma))
                medians = [float(np.median(values[s, b, o, side])) for side in (0, 1)]
                told = (stage, float(batch), int(order), *medians, base, float(sizes[s, b, o].min()))
                for name, value in zip(names, told, strict=True):
                    columns[name].append(value)
    return dps.Series(
        name="mean-rule",
        title="One step if noise were added to the mean of a batch: the median record, by expected batch size",
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap(dict.fromkeys(columns, "")),
        rigor="approximate",
        source=f"{tuples.SOURCE}, sampled",
        privacy=spec.data_privacy,
        plot=dps.FrozenMap({"x": "batch", "y": ["remove", "data_independent"], "by": "stage", "log": ["x", "y"]}),
    )


def _rounded(values: Floats | Array) -> list[dps.Json]:
    return [float(f"{float(value):.{_DIGITS}g}") for value in values]


def _mean(values: Floats, chosen: Array) -> float | None:
    return float(values[chosen].mean()) if chosen.any() else None
