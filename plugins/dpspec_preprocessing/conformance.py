"""Whether the noise that ran was as large as declared: measured on a query's outputs, reported of gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import dpspec.contract as dps
from dpspec.stats import checking, noise
from dpspec.stats.measurement import Measurement
from dpspec_preprocessing.options import is_network
from dpspec_preprocessing.private import GRADIENT

_NOTE = "relative to the declared scale"


def checks(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Check]:
    """One check over all trials, of mechanisms whose noise is told: of exponential only what it chose is."""
    count = sum(int(trial.evidence["noise"]["count"]) for trial in trials)
    if count:
        total, kind = sum(float(trial.evidence["noise"]["squares"]) for trial in trials), _kind(spec)
        yield checking.check("noise-scale", _measured(kind, total, count), _observed(kind), _NOTE)


def foreseen(spec: dps.Spec, facts: dps.Facts, executions: int) -> Iterator[dps.Check]:
    """The check that so many executions will allow, and the deviation that it would see."""
    private, kind = spec.mechanism["private"], _kind(spec)
    network, steps = is_network(private), int(private.get("steps", 1))
    wide = (facts.parameters or 0) if network else facts.features
    draws = {
        "gaussian": wide,
        "laplace": 2,
        "dp-gd": steps * wide,
        "sgd-sampled": steps * wide,
        "sgd-iterated": (facts.records + 1) // 2 * wide,
    }
    if kind not in draws or (network and "noise-log" not in facts.capabilities):
        return
    count = executions * max(1, draws[kind])
    found = _measured(kind, float(count), count)
    check = checking.check("noise-scale", found, _observed(kind), _NOTE)
    yield replace(check, test=found.test.partition(", ")[0], p_value=1.0, declared=None, measured=None)


def _measured(kind: str, total: float, count: int) -> Measurement:
    """The test of a sum of squares in units of the declared deviation.

    |x| / scale of Laplace noise, twice, has the law of two such squares: there the scale itself is in their place.
    """
    found = noise.two_sided(total, 1.0, count)
    if kind != "laplace":
        return found
    seen = None if found.detectable is None else (1.0 + found.detectable) ** 2 - 1.0
    return replace(found, measured=found.measured**2, detectable=seen)


def _kind(spec: dps.Spec) -> str:
    return str(spec.mechanism["private"]["kind"])


def _observed(kind: str) -> checking.Observed:
    return "reported" if kind in GRADIENT else "measured"
