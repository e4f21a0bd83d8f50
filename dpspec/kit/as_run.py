"""Estimate epsilon from the measured noise, sensitivity and sampling rate of a run.

The estimate decides no claim: other sampling, other noise, or records with different contributions can exceed it.
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
    from dpspec.stats.as_run import Ran

_HOW = {
    "measured": "noise and sensitivity measured on released models; rate and minimum noise as logged",
    "reported": "noise, sensitivity and rate as logged by the backend",
}

_SAMPLED_GAUSSIAN = dps.Assumption(
    name="sampled-gaussian-steps",
    status="unchecked",
    text="each step is a Poisson sample with Gaussian noise at the measured values, equal for all records, and the "
    "number of steps is the declared one",
)


def epsilon_as_run(
    spec: dps.Spec,
    trials: Sequence[dps.Trial],
    epsilons: Callable[[Sequence[dps.Phase], int, Sequence[float]], Sequence[Interval]],
) -> Iterator[dps.Finding]:
    """Interval of the executed run's epsilon for each group size and delta, by two methods.

    Args:
        spec: The spec.
        trials: The trials.
        epsilons: Computes epsilon of steps with given phases and group size, at each delta.

    Returns:
        Findings with the upper end as ``value`` (``inf`` if unbounded) and the lower end as ``lower``; without a
        measurement, one finding with the assumption ``not-measured``.
    """
    from dpspec.stats import as_run

    assert spec.audit is not None
    confidence = spec.audit.confidence

    def finding(
        found: Ran, value: float, lower: float | None, at: dict[str, dps.Json], assumption: dps.Assumption
    ) -> dps.Finding:
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
            assumptions=(assumption,),
            confidence=confidence,
            privacy=spec.data_privacy,
        )

    for found in as_run.ran(spec.phases, [trial.evidence for trial in trials], confidence):
        if found.missing:
            missing = dps.Assumption(name="not-measured", status="unchecked", text="; ".join(found.missing))
            yield finding(found, math.inf, None, {}, missing)
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
                yield finding(found, upper, lower, at, _SAMPLED_GAUSSIAN)
