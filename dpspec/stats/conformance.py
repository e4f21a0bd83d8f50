"""Every test of an executed DP-SGD run, from the evidence of its trials: one ``Check`` per property that is declared.

``dpspec.training.conformance`` writes the evidence. What was measured on released models comes first, what the backend
said of itself after. Where several trials tell the same, the most surprising one counts, for its number (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Literal, TypeAlias

import numpy as np

from dpspec.contract import Check, FrozenMap
from dpspec.stats import contributions, freshness, martingale, noise, sampling
from dpspec.stats.measurement import Measurement

Observed: TypeAlias = Literal["measured", "reported"]

#: Float32 gradients clip to the norm within this relative error.
CLIP_TOLERANCE = 1e-4


def checks(phases: Sequence[FrozenMap], evidence: Sequence[FrozenMap]) -> Iterator[Check]:
    """All checks of the trials' evidence against ``phases``; none for what is absent."""
    yield from _steps(phases, evidence)
    yield from _noise_scale([e["noise"] for e in evidence if "noise" in e])
    yield from _measured([e["measured"] for e in evidence if "measured" in e])
    yield from contributions.checks([e["signal"] for e in evidence if "signal" in e])
    yield from _noise_log([e["noise_log"] for e in evidence if "noise_log" in e])
    for number, phase in enumerate(phases):
        yield from _sampling_log(phase, number, [e["sampling_log"] for e in evidence if "sampling_log" in e])
    yield from _repeats([e["sampling_log"] for e in evidence if "sampling_log" in e])
    yield from _norm_log([e["norm_log"] for e in evidence if "norm_log" in e])


def _steps(phases: Sequence[FrozenMap], evidence: Sequence[FrozenMap]) -> Iterator[Check]:
    counts = {int(e["steps"]) for e in evidence if "steps" in e}
    if counts:
        declared = sum(int(phase["steps"]) for phase in phases)
        wrong = next((count for count in sorted(counts) if count != declared), declared)
        yield _exact("steps", "count of released states", "measured", wrong == declared, declared, wrong)


def _noise_scale(found: Sequence[FrozenMap]) -> Iterator[Check]:
    degrees = sum(one["degrees"] for one in found)
    if degrees:
        outside = noise.lower_tail(sum(one["statistic"] for one in found), 1.0, degrees)
        yield _check("noise-scale", outside, "measured", "relative to the declared scale, from released states alone")


def _measured(found: Sequence[FrozenMap]) -> Iterator[Check]:
    if not found:
        return
    parts = {
        name: (sum(one["layers"][name][0] for one in found), sum(one["layers"][name][1] for one in found))
        for name in found[0].get("layers", {})
    }
    if parts:
        name, layer = noise.quietest(parts)
        yield _check("noise-isotropy", layer, "measured", f"in each layer, least in {name}")
    yield _worst(
        "noise-isotropy",
        [noise.least_coordinate(o["coordinates"]["least"], o["steps"], o["coordinates"]["count"]) for o in found],
        "measured",
        "in each parameter",
    )
    yield _check("update", _drift(found), "measured", "relative to rate * sum of clipped gradients")
    several = [one for one in found if one["lag"]["lag"]]
    if several:
        lags = [_along(o["lag"], o, o["steps"] - 1, "residuals of steps at the worst lag") for o in several]
        yield _worst("fresh-noise", lags, "measured", "at every lag")
        pairs = [
            _along(o["pair"], o["pair"], o["steps"] * (o["steps"] - 1) // 2, "residuals of two steps") for o in several
        ]
        yield _worst("fresh-noise", pairs, "measured", "every two steps")
    tested = [_two_runs(one["first"], other["first"]) for one, other in combinations(found, 2)]
    if tested:
        yield _worst("fresh-noise", tested, "measured", "first steps of different trials")


def _drift(found: Sequence[FrozenMap]) -> Measurement:
    """The sum over trials along the expected update; what rounding can have changed is taken off."""
    total, rounding = sum(one["drift"]["total"] for one in found), sum(one["rounding"] for one in found)
    total = np.sign(total) * max(0.0, abs(total) - rounding)
    variance, least = sum(one["variance"] for one in found), sum(one["least"] for one in found)
    unit = sum(one["drift"]["unit"] for one in found)
    test = "residuals along the expected update, Freedman"
    return martingale.drift(float(total), variance, least, unit, test=test, declared=1.0)


def _along(one: FrozenMap, limits: FrozenMap, tried: int, test: str) -> Measurement:
    total = max(0.0, abs(one["total"]) - limits.get("rounding", 0.0)) * float(np.sign(one["total"]))
    found = martingale.drift(
        total, limits["variance"], limits["least"], one["unit"], test=f"{test}, Freedman", tried=max(1, tried)
    )
    return replace(found, detectable=_correlation(found.detectable))


def _two_runs(one: FrozenMap, other: FrozenMap) -> Measurement:
    """The other run's first residual along the one's."""
    earlier, later = np.asarray(one["row"], dtype=np.float64), np.asarray(other["row"], dtype=np.float64)
    length = float(np.linalg.norm(earlier)) or 1.0
    unit = (one["least"] * other["least"]) ** 0.5 * len(earlier) / length
    total = float(earlier @ later) / length if len(earlier) == len(later) else 0.0
    test = "residuals of two runs, Freedman"
    found = martingale.drift(total, other["variance"], other["least"], unit, test=test)
    return replace(found, detectable=_correlation(found.detectable))


def _noise_log(logs: Sequence[FrozenMap]) -> Iterator[Check]:
    if not logs:
        return
    total, degrees = sum(log["statistic"] for log in logs), sum(log["degrees"] for log in logs)
    yield _check("noise-scale", noise.two_sided(total, 1.0, degrees), "reported", "relative to the declared scale")
    quiet = [noise.least_coordinate(log["quietest"], log["steps"], log["width"]) for log in logs]
    yield _worst("noise-isotropy", quiet, "reported", "in each parameter that was looked at")
    half = sum(log["steps"] * (log["width"] // 2) for log in logs)
    if half:
        halves = freshness.repeated(sum(log["halves"] for log in logs), half, 2 * half, 1, "correlation of parameters")
        yield _check("noise-isotropy", halves, "reported", "independent across parameters")
    pairs = sum(log["pairs"] for log in logs)
    if pairs:
        products = sum(log["products"] for log in logs)
        yield _check("fresh-noise", noise.correlation(products, pairs, degrees), "reported", "")
    yield from _again(logs)


def _again(logs: Sequence[FrozenMap]) -> Iterator[Check]:
    """Whether a step's noise, or a run's, was used before."""
    several = [log for log in logs if log["lag"]["lag"]]
    if several:
        lags = [_lag(log) for log in several]
        yield _worst("fresh-noise", lags, "reported", "at every lag")
        pairs = [_pair(log["pair"], log["width"], log["steps"] * (log["steps"] - 1) // 2) for log in several]
        yield _worst("fresh-noise", pairs, "reported", "every two steps")
    twins = [log for log in logs if "twin" in log]
    if twins:
        numbers = [log["steps"] * log["width"] for log in twins]
        test = "correlation of two runs"
        aligned = [
            freshness.repeated(log["twin"]["aligned"], n, 2 * n, 1, test) for log, n in zip(twins, numbers, strict=True)
        ]
        yield _worst("fresh-noise", aligned, "reported", "with another seed, step by step")
        any_two = [_pair(log["twin"]["largest"], log["width"], log["steps"] ** 2) for log in twins]
        yield _worst("fresh-noise", any_two, "reported", "with another seed, every two steps")
    firsts = [np.asarray(log["first"], dtype=np.float64) for log in logs]
    widths = {len(first) for first in firsts}
    if len(firsts) > 1 and len(widths) == 1:
        width = widths.pop()
        across = [_pair(float(a @ b), width, 1) for a, b in combinations(firsts, 2)]
        yield _worst("fresh-noise", across, "reported", "first steps of different trials")


def _lag(log: FrozenMap) -> Measurement:
    lag, steps, width = log["lag"]["lag"], log["steps"], log["width"]
    test = f"correlation of steps {lag} apart"
    return freshness.repeated(log["lag"]["products"], (steps - lag) * width, steps * width, steps - 1, test)


def _pair(product: float, width: int, tried: int) -> Measurement:
    return freshness.repeated(product, width, 2 * width, max(1, tried), "largest correlation of two steps")


def _sampling_log(phase: FrozenMap, number: int, logs: Sequence[FrozenMap]) -> Iterator[Check]:
    logs = [log for log in logs if log["batches"][number]["steps"]]  # a run that ended early is told of by its steps
    if not logs:
        return
    scheme, where = phase["sampling"]["scheme"], f"phase {number + 1}"
    batches = [log["batches"][number] for log in logs]
    if scheme == "poisson":
        rate = float(phase["sampling"]["rate"])
        chances = sum(log["records"] * batch["steps"] for log, batch in zip(logs, batches, strict=True))
        included = sum(batch["total"] for batch in batches)
        yield _check("sampling", sampling.inclusions(included, chances, rate), "reported", f"rate, {where}")
        tested = list(zip(logs, batches, strict=True))
        sizes = [sampling.batch_variance(b["steps"], b["total"], b["squares"], g["records"], rate) for g, b in tested]
        yield _worst("sampling", sizes, "reported", f"variance of the batch size, {where}")
        even = [
            sampling.record_spread(g["records"], b["total"], b["spread"], b["steps"], rate)
            for g, b in tested
            if "spread" in b
        ]
        if even:
            yield _worst("sampling", even, "reported", f"inclusions per record, {where}")
        yield from _overlaps(batches, [rate] * len(batches), where)
        return
    records = [int(log["records"]) for log in logs]
    size = int(phase["sampling"]["batch_size"]) if scheme == "fixed" else records[0]
    same = [size if scheme == "fixed" else n for n in records]
    right = all(
        b["total"] == n * b["steps"] and b["squares"] == n * n * b["steps"] for b, n in zip(batches, same, strict=True)
    )
    realised = batches[0]["total"] / batches[0]["steps"]
    note = f"batch size, {where}"
    yield _exact("sampling", "batch sizes, exact", "reported", right, size, realised, note)
    if scheme == "fixed":
        yield from _overlaps(batches, [size / n for n in records], where)


def _overlaps(batches: Sequence[FrozenMap], rates: Sequence[float], where: str) -> Iterator[Check]:
    found = [
        sampling.overlap(lag, common, chances, rate)
        for batch, rate in zip(batches, rates, strict=True)
        if 0.0 < rate < 1.0
        for lag, common, chances in batch.get("overlaps", ())
        if chances
    ]
    if found:
        yield _worst("sampling", found, "reported", f"independence across steps, {where}")


def _repeats(logs: Sequence[FrozenMap]) -> Iterator[Check]:
    if logs:
        repeats = sum(log.get("repeats", 0) for log in logs)
        test = "records drawn twice into one batch"
        yield _exact("sampling", test, "reported", repeats == 0, 0, repeats)


def _norm_log(logs: Sequence[FrozenMap]) -> Iterator[Check]:
    if not logs:
        return
    worst = max(log["largest"] for log in logs)
    yield Check(
        assumption="clipping",
        test="largest clipped norm",
        p_value=1.0 if worst <= 1.0 + CLIP_TOLERANCE else 0.0,
        observed="reported",
        declared=1.0,
        measured=worst,
        detectable=CLIP_TOLERANCE,
        note="relative to the clip norm",
    )
    missing = [log["missing"] for log in logs if "missing" in log]
    if missing:
        wrong = next((m for m in missing if m), 0)
        test = "drawn records without a clipped norm of their own"
        yield _exact("clipping", test, "reported", wrong == 0, 0, wrong)


def _worst(assumption: str, found: Sequence[Measurement], observed: Observed, note: str) -> Check:
    """The most surprising of several measurements of one kind, Bonferroni over their number."""
    worst = min(found, key=lambda m: m.p_value)
    return _check(assumption, replace(worst, p_value=min(1.0, len(found) * worst.p_value)), observed, note)


def _check(assumption: str, found: Measurement, observed: Observed, note: str) -> Check:
    return Check(
        assumption=assumption,
        test=found.test,
        p_value=found.p_value,
        observed=observed,
        declared=found.declared,
        measured=found.measured,
        detectable=found.detectable,
        note=note,
    )


def _exact(
    assumption: str, test: str, observed: Observed, right: bool, declared: float, seen: float, note: str = ""
) -> Check:
    """A property that holds or does not, without chance."""
    return Check(
        assumption=assumption,
        test=test,
        p_value=1.0 if right else 0.0,
        observed=observed,
        declared=float(declared),
        measured=float(seen),
        detectable=0.0,
        note=note,
    )


def _correlation(detectable: float | None) -> float | None:
    """A correlation above 1 cannot be; what would need one is not detectable."""
    return detectable if detectable is not None and detectable <= 1.0 else None
