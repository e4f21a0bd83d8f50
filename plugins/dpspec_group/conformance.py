"""What a trial measured of the pipeline that ran, held against what the spec declares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import dpspec.contract as dps
from dpspec.stats import noise, sampling
from dpspec.stats.measurement import Measurement

#: Float32 gradients clip to the norm within this relative error.
_CLIP_TOLERANCE = 1e-4


def checks(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Check]:
    """One check per declared property, over all trials together."""
    evidence = [trial.evidence for trial in trials]
    yield _steps(spec.steps, evidence)
    degrees = sum(e["noise"]["degrees"] for e in evidence)
    if degrees:
        statistic = sum(e["noise"]["statistic"] for e in evidence)
        measured = noise.lower_tail(statistic, 1.0, degrees)
        yield _check("noise-scale", measured, "measured", "relative to the declared scale, from released states alone")
    yield from _noise_log([e["noise_log"] for e in evidence if "noise_log" in e])
    for number, phase in enumerate(spec.phases):
        yield from _sampling_log(phase, number, [e["sampling_log"] for e in evidence if "sampling_log" in e])
    yield from _norm_log([e["norm_log"]["largest"] for e in evidence if "norm_log" in e])


def _steps(declared: int, evidence: Sequence[dps.FrozenMap]) -> dps.Check:
    counts = {int(e["steps"]) for e in evidence}
    wrong = next((count for count in sorted(counts) if count != declared), declared)
    return dps.Check(
        assumption="steps",
        test="count of released states",
        p_value=1.0 if wrong == declared else 0.0,
        observed="measured",
        declared=float(declared),
        measured=float(wrong),
        detectable=0.0,
    )


def _noise_log(logs: Sequence[dps.FrozenMap]) -> Iterator[dps.Check]:
    if not logs:
        return
    total, degrees = sum(log["statistic"] for log in logs), sum(log["degrees"] for log in logs)
    yield _check("noise-scale", noise.two_sided(total, 1.0, degrees), "reported", "relative to the declared scale")
    pairs = sum(log["pairs"] for log in logs)
    if pairs:
        products = sum(log["products"] for log in logs)
        yield _check("fresh-noise", noise.correlation(products, pairs, degrees), "reported", "")


def _sampling_log(phase: dps.FrozenMap, number: int, logs: Sequence[dps.FrozenMap]) -> Iterator[dps.Check]:
    logs = [log for log in logs if log["batches"][number]["steps"]]  # a run that ended early is told of by its steps
    if not logs:
        return
    scheme, where = phase["sampling"]["scheme"], f"phase {number + 1}"
    if scheme == "poisson":
        rate = float(phase["sampling"]["rate"])
        chances = sum(log["records"] * log["batches"][number]["steps"] for log in logs)
        included = sum(log["batches"][number]["total"] for log in logs)
        yield _check("sampling", sampling.inclusions(included, chances, rate), "reported", f"rate, {where}")
        for log in logs:
            batch = log["batches"][number]
            spread = sampling.batch_variance(batch["steps"], batch["total"], batch["squares"], log["records"], rate)
            yield _check("sampling", spread, "reported", f"variance of the batch size, {where}")
        return
    for log in logs:
        batch = log["batches"][number]
        size = int(phase["sampling"]["batch_size"]) if scheme == "fixed" else int(log["records"])
        exact = batch["total"] == size * batch["steps"] and batch["squares"] == size * size * batch["steps"]
        yield dps.Check(
            assumption="sampling",
            test="batch sizes, exact",
            p_value=1.0 if exact else 0.0,
            observed="reported",
            declared=float(size),
            measured=batch["total"] / batch["steps"],
            detectable=0.0,
            note=f"batch size, {where}",
        )


def _norm_log(largest: Sequence[float]) -> Iterator[dps.Check]:
    if largest:
        worst = max(largest)
        yield dps.Check(
            assumption="clipping",
            test="largest clipped norm",
            p_value=1.0 if worst <= 1.0 + _CLIP_TOLERANCE else 0.0,
            observed="reported",
            declared=1.0,
            measured=worst,
            detectable=_CLIP_TOLERANCE,
            note="relative to the clip norm",
        )


def _check(assumption: str, measured: Measurement, observed: str, note: str) -> dps.Check:
    return dps.Check(
        assumption=assumption,
        test=measured.test,
        p_value=measured.p_value,
        observed=observed,  # type: ignore[arg-type]
        declared=measured.declared,
        measured=measured.measured,
        detectable=measured.detectable,
        note=note,
    )
