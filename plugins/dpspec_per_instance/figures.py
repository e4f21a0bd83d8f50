"""Figures of the paper, relative to a saturated record, and a comparison with published values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Floats
from dpspec_per_instance import theory
from dpspec_per_instance.analysis import Analysis, Array
from dpspec_per_instance.bounds import DIRECTIONS, Composer
from dpspec_per_instance.options import Composition


def over_training(records: Analysis) -> dps.Series:
    rows: list[Sequence[dps.Json]] = []
    composer = records.shown_side.composer
    for order in records.shown_orders:
        total = records.total(order)
        for step, contributions in zip(composer.observed.tolist(), total.contributions, strict=True):
            ratio = contributions / composer.saturated(order, step)
            rows.append((step, order, float(ratio.mean()), *(float(v) for v in np.quantile(ratio, (0.1, 0.5, 0.9)))))
    return kit.series(
        "ratio-over-training",
        "Contribution of a step relative to the data-independent value, by step",
        kit.columns_of(("step", "order", "mean", "p10", "median", "p90"), rows),
        rigor="approximate",
        source=theory.RUN_SOURCE,
        privacy=records.privacy,
        x="step",
        y=["mean"],
        by="order",
        band=["p10", "p90"],
    )


def by_correctness(records: Analysis) -> dps.Series:
    side = records.shown_side
    composer, steps = side.composer, side.composer.observed
    shared = side.direction == records.audited.shared_direction
    right_by_run = [trial.arrays["right"] for trial in records.trials] if shared else None
    rows: list[Sequence[dps.Json]] = []
    for order in records.shown_orders:
        total = records.total(order)
        for j in sorted({0, len(steps) // 4, len(steps) // 2, (3 * len(steps)) // 4, len(steps) - 1}):
            ratio, step = composer.relative(order, j, side.places[j]), int(steps[j])
            if right_by_run is not None:
                right = np.stack([run[j] for run in right_by_run]) > 0
            else:
                right = np.tile(records.right[j] >= 0.5, (records.runs, 1))
            added = float(total.contributions[j].mean() / composer.saturated(order, step))
            middle = float(np.median(ratio))
            rows.append((step, order, added, _mean(ratio, right), _mean(ratio, ~right), float(right.mean()), middle))
    return kit.series(
        "right-against-wrong",
        "Steps relative to the data-independent value: mean contribution over records, and one step for records with "
        "correct and incorrect predictions",
        kit.columns_of(("step", "order", "added", "right", "wrong", "share_right", "median"), rows),
        rigor="approximate",
        source=f"{theory.STEP_SOURCE}; {theory.RUN_SOURCE}",
        privacy=records.privacy,
        x="step",
        y=["right", "wrong"],
        by="order",
    )


def by_runs(records: Analysis) -> dps.Series:
    """An estimate that still increases with the runs has not observed the models with the largest loss."""
    side = records.shown_side
    rows: list[Sequence[dps.Json]] = []
    for order in records.shown_orders:
        for runs in sorted({*(2**k for k in range(records.runs.bit_length())), records.runs}):
            total = side.composer.total(order, [place[:runs] for place in side.places], side.log_terms)
            ratio, certain = total.plug_in / total.baseline, total.confidence_upper / total.baseline
            quantiles = (float(v) for v in np.quantile(ratio, (0.1, 0.5)))
            kappa = side.composer.kappa(order)[0]
            rows.append((runs, order, float(ratio.mean()), *quantiles, float(certain.mean()), kappa))
    return kit.series(
        "ratio-by-runs",
        "The run relative to the data-independent divergence, by number of runs",
        kit.columns_of(("runs", "order", "mean", "p10", "median", "confidence_upper", "estimability"), rows),
        rigor="approximate",
        source=theory.RUN_SOURCE,
        privacy=records.privacy,
        x="runs",
        y=["mean", "confidence_upper"],
        by="order",
        log=["x"],
    )


def by_exponent(spec: dps.Spec, records: Analysis) -> dps.Series:
    """The theorem holds for every exponent and schedule. The minimum of several estimates is biased."""
    side, steps = records.shown_side, records.shown_side.composer.count
    choices: dict[str, float | tuple[float, ...]] = {
        "n": 1.0 * steps,
        "3 n": 3.0 * steps,
        "30 n": 30.0 * steps,
        "n to 10 n": (1.0 * steps, 10.0 * steps),
        "10 n to n": (10.0 * steps, 1.0 * steps),
    }
    rows: list[Sequence[dps.Json]] = []
    mechanism = dps.FrozenMap({**spec.mechanism.options, "orders": records.shown_orders})
    tables = None
    for name, p in choices.items():
        composer = Composer(mechanism, DIRECTIONS[side.direction], p if steps > 1 else 3.0, tables)
        tables = composer.tables
        for order in records.shown_orders:
            total = composer.total(order, side.places, side.log_terms)
            ratio, (last, second) = total.plug_in / total.baseline, composer.kappa(order)
            rows.append(
                (
                    name,
                    order,
                    float(theory.recursion(order, steps, composer.p).orders[0]),
                    float(ratio.mean()),
                    float(np.median(ratio)),
                    float(total.confidence_upper.mean() / total.baseline),
                    last,
                    second,
                )
            )
    return kit.series(
        "ratio-by-exponent",
        f"The run by exponent of the composition over {steps} steps; schedules run from the last step to the first",
        kit.columns_of(
            ("exponent", "order", "first_order", "mean", "median", "confidence_upper", "estimability", "at_step_2"),
            rows,
        ),
        rigor="approximate",
        source=f"{theory.RUN_SOURCE}, with an exponent per step",
        privacy=records.privacy,
    )


def _mean(values: Floats, chosen: Array) -> float | None:
    return float(values[chosen].mean()) if chosen.any() else None


def reference_table(spec: dps.Spec, records: Analysis) -> Iterator[dps.Series]:
    reference = (spec.audit.options.get("reference") if spec.audit is not None else None) or {}
    step_bound = Composition.of(spec.mechanism.options).step_bound
    if not reference or reference.get("step_bound", step_bound) != step_bound:
        return
    epsilons = records.epsilons(kit.claimed_deltas(spec)[-1], records.audited.widest_direction)
    pairs: list[tuple[str, float | None, int | None, float, float]] = []
    for ratios in reference.get("ratios", ()):
        order, composer = float(ratios["order"]), records.shown_side.composer
        contributions = records.total(order).contributions
        for step, theirs in zip(ratios["steps"], ratios["means"], strict=True):
            place = int(np.searchsorted(composer.observed, int(step)))
            ours = float(contributions[place].mean() / composer.saturated(order, int(step)))
            pairs.append(("mean ratio", order, int(step), ours, float(theirs)))
    quantities = {
        "median": ("median epsilon", float(np.median(epsilons.estimate))),
        "tenth": ("10th percentile of epsilon", float(np.quantile(epsilons.estimate, 0.1))),
        "share_below": ("share of records below", float(np.mean(epsilons.estimate < epsilons.renyi))),
        "data_independent": ("data-independent epsilon", epsilons.renyi),
    }
    pairs += [
        (what, None, None, ours, float(reference[key])) for key, (what, ours) in quantities.items() if key in reference
    ]
    rows = [(*pair, f"{100.0 * (pair[3] / pair[4] - 1.0):+.1f}%") for pair in pairs]
    yield kit.series(
        "against-reference",
        f"Values of this audit and of {reference.get('source', 'the reference')}",
        kit.columns_of(("what", "order", "step", "found", "reference", "difference"), rows),
        rigor="approximate",
        source=str(reference.get("source", "")),
        privacy=records.privacy,
    )
