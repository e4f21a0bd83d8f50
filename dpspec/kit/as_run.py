"""Estimate epsilon of the executed run: compose its noise, sensitivity and sampling rate with the accountant.

No claim depends on the estimate: a run without Poisson samples or Gaussian noise, or with records of unequal
sensitivity, can leak more than the upper end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import dpspec.contract as dps
from dpspec.contract.findings import AS_RUN
from dpspec.kit.findings import executed_scope
from dpspec.kit.specs import claimed_deltas

if TYPE_CHECKING:
    from dpspec.accounting import Interval
    from dpspec.stats.conformance.as_run import Ran

_HOW = {
    "measured": "noise and sensitivity measured on released models; rate and minimum noise as logged",
    "reported": "noise, sensitivity and rate as logged by the backend",
}

_SAMPLED_GAUSSIAN = dps.Assumption(
    name="sampled-gaussian-steps",
    status="unchecked",
    text="each step is a Poisson sample with Gaussian noise of what was measured, alike for all records, and there are "
    "as many as declared",
)


def epsilon_as_run(
    spec: dps.Spec,
    trials: Sequence[dps.Trial],
    epsilons: Callable[[Sequence[dps.Phase], int, Sequence[float]], Sequence[Interval]],
) -> Iterator[dps.Finding]:
    """For each group size and delta, from where to where epsilon of what ran lies, by each of two readings.

    epsilons: epsilon of steps with these phases, for groups of a size, at each delta. The finding's ``value`` is the
    upper end, ``inf`` where there is none, ``lower`` the lower one. Where something was not measured there is one
    finding without conditions, whose ``lower`` is None and whose assumption ``not-measured`` says what.
    """
    from dpspec.stats.conformance import as_run

    assert spec.audit is not None
    confidence = spec.audit.confidence
    for found in as_run.ran(spec.phases, [trial.evidence for trial in trials], confidence):
        if found.missing:
            missing = dps.Assumption(name="not-measured", status="unchecked", text="; ".join(found.missing))
            yield _finding(spec, found, math.inf, None, {}, missing)
            continue
        least, most = found.least(spec.phases), found.most(spec.phases)
        for size in spec.threat_model.group_size:
            deltas = claimed_deltas(spec, size)
            low = None if least is None else epsilons(least, size, deltas)
            high = None if most is None else epsilons(most, size, deltas)
            for place, delta in enumerate(deltas):
                upper = math.inf if high is None else high[place].upper
                lower = 0.0 if low is None else low[place].lower
                at: dict[str, dps.Json] = {"delta": delta, "group_size": size}
                yield _finding(spec, found, upper, lower, at, _SAMPLED_GAUSSIAN)


def _finding(
    spec: dps.Spec, found: Ran, value: float, lower: float | None, at: dict[str, dps.Json], rests_on: dps.Assumption
) -> dps.Finding:
    assert spec.audit is not None
    return dps.Finding(
        quantity=AS_RUN,
        value=value,
        lower=lower,
        bound="estimate",
        rigor="approximate",
        at=dps.FrozenMap(at),
        scope=executed_scope(spec, adversary="gradient"),
        method=_HOW[found.reading],
        source="conformance's intervals, composed",
        assumptions=(rests_on,),
        confidence=spec.audit.confidence,
        privacy=spec.data_privacy,
    )
