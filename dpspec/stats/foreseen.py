"""What the conformance tests of a run will be able to see, said beforehand: they are put to a run as declared."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpspec.contract import Check, FrozenMap
from dpspec.stats import conformance
from dpspec.stats.looks import looked

#: As many coordinates of each step are kept as by ``dpspec.training.logs``.
_WIDTH, _NUMBERS = 4096, 2**22


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is known of a run beforehand.

    records: real and planted ones together, planted ones as they are on average.
    groups: per group size, how many groups of gradient canaries are drawn for; empty for other canaries.
    capabilities: of the backend.
    trials: how many runs there are; twin: whether each has a second run beside it.
    looks: how many steps whoever sees the released models looks at, spread evenly over the run; None for all.
    """

    phases: Sequence[FrozenMap]
    records: int
    parameters: int
    groups: Mapping[int, int]
    capabilities: Collection[str]
    trials: int = 1
    twin: bool = True
    looks: int | None = None


def foresee(run: Run) -> Iterator[Check]:
    """The checks of a run, each with the deviation that it would see; ``p_value`` is 1, and nothing is measured.

    Where what is seen depends on the gradients, every record's is taken to be as long as the clip norm, which is the
    worst case; how well the update itself can be tested is known only afterwards.
    """
    evidence = FrozenMap(conformance.arranged(_evidence(run)))
    for check in conformance.checks(run.phases, [evidence] * run.trials, privacy="public"):
        yield Check(
            assumption=check.assumption,
            test=check.test.partition(", ")[0],
            p_value=1.0,
            observed=check.observed,
            detectable=check.detectable if check.assumption != "update" else None,
            note=check.note,
        )


def _evidence(run: Run) -> dict[str, Any]:
    rates = [rate_of(phase, run.records) for phase in run.phases]
    steps = [int(phase["steps"]) for phase in run.phases]
    sigmas = [float(phase["noise_multiplier"]) for phase in run.phases]
    gaussian = all(phase.get("noise", "gaussian") == "gaussian" for phase in run.phases)
    total = sum(steps)
    seen = [int(part.sum()) for part in np.split(looked(total, run.looks), np.cumsum(steps)[:-1])]
    noisy, noisy_seen = (
        sum(n for n, sigma in zip(counts, sigmas, strict=True) if _noisy(sigma)) if gaussian else 0
        for counts in (steps, seen)
    )
    found: dict[str, Any] = {}
    width = min(run.parameters, max(64, min(_WIDTH, _NUMBERS // total)))
    if "iterates" in run.capabilities:
        found["steps"] = total
        degrees = (run.parameters - sum(run.groups.values())) * noisy_seen
        found["noise"] = {"statistic": float(degrees), "degrees": degrees}
        if noisy_seen:
            found["measured"] = _measured(run, seen, sigmas, rates, noisy_seen, width)
        if run.groups and "gradient-canaries" in run.capabilities:
            found["signal"] = _signal(run, seen, sigmas, rates)
    if "noise-log" in run.capabilities and noisy == total:
        found["noise_log"] = _noise_log(run, total, width)
    if "sampling-log" in run.capabilities:
        varies = [phase["sampling"]["scheme"] == "poisson" for phase in run.phases]
        batches = [_batches(run.records, *each, total) for each in zip(steps, rates, varies, strict=True)]
        found["sampling_log"] = {"records": run.records, "repeats": 0, "batches": batches}
    if "norm-log" in run.capabilities:
        found["norm_log"] = {"largest": 1.0, "missing": 0}
    return found


def rate_of(phase: FrozenMap, records: int) -> float:
    """The probability with which one of ``records`` enters a batch."""
    sampling = phase["sampling"]
    if sampling["scheme"] == "poisson":
        return float(sampling["rate"])
    return min(1.0, float(sampling["batch_size"]) / records) if "batch_size" in sampling else 1.0


def _noisy(sigma: float) -> bool:
    """Whether there is noise to measure: a variance that is not 0, as that of 1e-200 is in floating point."""
    return sigma * sigma > 0.0


def _measured(
    run: Run, steps: Sequence[int], sigmas: Sequence[float], rates: Sequence[float], noisy: int, width: int
) -> dict[str, Any]:
    phases = [(n, s, q * (1.0 - q) * run.records) for n, s, q in zip(steps, sigmas, rates, strict=True) if _noisy(s)]
    least = sum(n * s * s for n, s, _ in phases)
    variance = sum(n * (s * s + sampled) for n, s, sampled in phases)
    sigma = math.sqrt(least / noisy)
    again = sigma * sigma * width / math.sqrt(width * (sigma * sigma + (variance - least) / noisy / run.parameters))
    return {
        "steps": noisy,
        "rounding": 0.0,
        "least": least,
        "variance": variance,
        "coordinates": {"least": float(noisy), "count": run.parameters},
        "drift": {"total": 0.0, "unit": 0.0},
        "lag": {"lag": 1 if noisy > 1 else 0, "total": 0.0, "unit": again * (noisy - 1)},
        "pair": {"total": 0.0, "unit": again, "least": sigma * sigma, "variance": variance / noisy},
        "first": {"row": [0.0] * min(width, 1024), "least": sigma * sigma, "variance": variance / noisy},
    }


def _signal(run: Run, steps: Sequence[int], sigmas: Sequence[float], rates: Sequence[float]) -> dict[str, Any]:
    draws = sum(n * q for n, q in zip(steps, rates, strict=True))
    noise = sum(n * s * s for n, s in zip(steps, sigmas, strict=True))
    inclusion = sum(n * q * (1.0 - q) for n, q in zip(steps, rates, strict=True))
    outside = noise + inclusion * run.records / run.parameters
    moments: list[list[Any]] = []
    for size, count in run.groups.items():
        for coin in (0, 1):
            number, mean = count // 2, coin * size * draws
            variance = outside + coin * size * inclusion
            moments.append([size, coin, number, number * mean, number * mean**2 + max(0, number - 1) * variance])
    return {"draws": draws, "moments": moments, "outside": outside, "inclusion": inclusion, "rounding": 0.0}


def _noise_log(run: Run, total: int, width: int) -> dict[str, Any]:
    log: dict[str, Any] = {
        "statistic": float(run.parameters * total),
        "degrees": run.parameters * total,
        "products": 0.0,
        "pairs": run.parameters * (total - 1),
        "steps": total,
        "width": width,
        "quietest": float(total),
        "halves": 0.0,
        "lag": {"lag": 1 if total > 1 else 0, "products": 0.0},
        "pair": 0.0,
        "first": [0.0] * min(width, 1024),
    }
    return log | ({"twin": {"aligned": 0.0, "largest": 0.0}} if run.twin else {})


def _batches(records: int, steps: int, rate: float, varies: bool, total: int) -> dict[str, Any]:
    size = round(records * rate)
    variance = records * rate * (1.0 - rate) if varies else 0.0
    spread = records * steps * rate * (1.0 - rate) + (steps * size) ** 2 / records
    lags = {1, math.floor(min(1.0 / rate, total))} if 0.0 < rate < 1.0 else set()
    overlaps = [
        [lag, round((steps - lag) * size * rate), (steps - lag) * size] for lag in lags if lag < min(steps, total)
    ]
    return {
        "steps": steps,
        "total": steps * size,
        "squares": round(steps * (size * size + variance)),
        "spread": round(spread),
        "overlaps": overlaps,
    }
