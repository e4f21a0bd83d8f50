"""Intervals of noise, contribution and rate of the executed run, from which the accountant computes epsilon.

There are two readings:

* ``measured``: the noise is at most the residual of released models in directions without canaries, and the
  contribution follows from the canaries' directions. Rate and minimum noise are the reported ones.
* ``reported``: noise, largest clipped norm and batches are those in the backend's logs.

The intervals of a reading hold together by a union bound with fixed shares. Projections show rate * contribution, so
the contribution of a drawn record is the projection over the rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from scipy import special

from dpspec.contract import FrozenMap, Phase
from dpspec.contract.phase import poisson_sampling
from dpspec.stats import binomial
from dpspec.stats.conformance import canary_contributions
from dpspec.stats.conformance.evidence import RunEvidence, read_runs

Reading: TypeAlias = Literal["measured", "reported"]

#: Share of each interval in the error probability.
SHARES = {"sensitivity": 0.8, "noise": 0.1, "rate": 0.1}

#: Largest factor between executed and declared ratio of noise to contribution. Beyond it an end is clipped or missing.
FARTHEST = 30.0


@dataclass(frozen=True, kw_only=True)
class Ran:
    """Intervals relative to the declaration; ends without a limit are 0 or infinite.

    Attributes:
        reading: The source.
        noise: Noise in units of the declared noise.
        contribution: Contribution in clip norms.
        rates: Sampling rate of each phase.
        missing: Quantities that were not measured, with the reason. If there are any, no interval is valid.
    """

    reading: Reading
    noise: tuple[float, float] = (0.0, math.inf)
    contribution: tuple[float, float] = (0.0, math.inf)
    rates: tuple[tuple[float, float], ...] = ()
    missing: tuple[str, ...] = ()

    def least(self, phases: Sequence[Phase]) -> tuple[Phase, ...] | None:
        """Return the phases with the smallest privacy loss; None if an end is missing."""
        ratio = _over(self.noise[1], self.contribution[0])
        return self._at(phases, max(ratio, 1.0 / FARTHEST), [low for low, _ in self.rates])

    def most(self, phases: Sequence[Phase]) -> tuple[Phase, ...] | None:
        """Return the phases with the largest privacy loss; None if an end is missing."""
        ratio = _over(self.noise[0], self.contribution[1])
        return self._at(phases, min(ratio, FARTHEST), [high for _, high in self.rates])

    def _at(self, phases: Sequence[Phase], ratio: float, rates: Sequence[float]) -> tuple[Phase, ...] | None:
        """Return phases whose noise multiplier is relative to the contribution of a drawn record."""
        if self.missing or not 1.0 / FARTHEST <= ratio <= FARTHEST or not all(rate > 0.0 for rate in rates):
            return None
        return tuple(
            phase.replace(
                noise_multiplier=phase.noise_multiplier * ratio,
                sampling=poisson_sampling(rate),
            )
            for phase, rate in zip(phases, rates, strict=True)
        )


def _over(noise: float, contribution: float) -> float:
    return noise / contribution if contribution > 0.0 else math.inf


def ran(phases: Sequence[FrozenMap], evidence: Sequence[FrozenMap], confidence: float) -> tuple[Ran, Ran]:
    """Return the measured and the reported intervals.

    Args:
        phases: The declared phases.
        evidence: The evidence of the trials.
        confidence: Joint confidence of all intervals of a reading, in (0, 1).

    Raises:
        ValueError: If the evidence does not fit the phases, or ``confidence`` is out of range.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    typed = [Phase.of(phase) for phase in phases]
    runs = read_runs(typed, evidence)
    error = {name: 0.5 * share * (1.0 - confidence) for name, share in SHARES.items()}
    rates, strange = _rates(typed, runs, error["rate"])
    told = _reported_noise(runs, error["noise"])
    declared = [phase.rate() for phase in typed] if rates else []
    return _measured(runs, told, rates, declared, strange, error), _reported(runs, told, rates, strange)


def _measured(
    runs: Sequence[RunEvidence],
    told: tuple[float, float] | None,
    rates: tuple[tuple[float, float], ...],
    declared: Sequence[float],
    strange: tuple[str, ...],
    error: dict[str, float],
) -> Ran:
    outside = [run.noise for run in runs if run.noise is not None and run.noise.degrees]
    planted = canary_contributions.interval(
        [run.signal for run in runs if run.signal is not None], error["sensitivity"]
    )
    if not outside or planted is None or strange:
        noise = () if outside else ("noise (no released model shows it)",)
        contribution = () if planted else ("contribution (too few gradient canaries, or none)",)
        return Ran(reading="measured", missing=(*noise, *contribution, *strange))
    total, degrees = sum(one.statistic for one in outside), sum(one.degrees for one in outside)
    most = math.sqrt(total / _quantile(error["noise"], degrees))
    # A log with more noise than the models is not a lower limit.
    least = told[0] if told is not None and told[0] <= most else 0.0
    # Projections show rate * contribution; of several phases the widest ends count.
    thinnest = min(low / rate for (low, _), rate in zip(rates, declared, strict=True))
    thickest = max(high / rate for (_, high), rate in zip(rates, declared, strict=True))
    return Ran(
        reading="measured",
        noise=(least, most),
        contribution=(planted[0] / thickest, planted[1] / thinnest if thinnest > 0.0 else math.inf),
        rates=rates,
    )


def _reported(
    runs: Sequence[RunEvidence],
    told: tuple[float, float] | None,
    rates: tuple[tuple[float, float], ...],
    strange: tuple[str, ...],
) -> Ran:
    norms = [run.norm_log.largest for run in runs if run.norm_log is not None]
    if told is None or not norms or strange:
        noise = () if told else ("noise (the backend reports none)",)
        contribution = () if norms else ("contribution (the backend reports no norms)",)
        return Ran(reading="reported", missing=(*noise, *contribution, *strange))
    return Ran(reading="reported", noise=told, contribution=(max(norms), max(norms)), rates=rates)


def _reported_noise(runs: Sequence[RunEvidence], error: float) -> tuple[float, float] | None:
    """Interval of the scale of the reported noise, by chi-square quantiles."""
    logs = [run.noise_log for run in runs if run.noise_log is not None]
    if not logs:
        return None
    total, degrees = sum(log.statistic for log in logs), sum(log.degrees for log in logs)
    high = 2.0 * float(special.gammainccinv(0.5 * degrees, error))
    return math.sqrt(total / high), math.sqrt(total / _quantile(error, degrees))


def _rates(
    phases: Sequence[Phase], runs: Sequence[RunEvidence], error: float
) -> tuple[tuple[tuple[float, float], ...], tuple[str, ...]]:
    """Clopper-Pearson intervals of the rates of all phases, with equal shares of the error; and missing quantities."""
    logs = [run.sampling_log for run in runs if run.sampling_log is not None]
    found: list[tuple[float, float]] = []
    for number, phase in enumerate(phases):
        if not phase.sampling.is_independent:
            return (), (f"rate ({phase.sampling.scheme} batches are not Poisson samples)",)
        if phase.noise != "gaussian" or phase.noiseless:
            return (), ("noise (a phase has no Gaussian noise)",)
        drawn = sum(log.batches[number].total for log in logs)
        chances = sum(log.records * log.batches[number].steps for log in logs)
        if not chances or drawn > chances:
            return (), ("rate (the backend reports no batches)",)
        one_sided = 1.0 - error / len(phases)
        limits = binomial.lower(drawn, chances, one_sided), binomial.upper(drawn, chances, one_sided)
        found.append((1.0, 1.0) if phase.rate() >= 1.0 and drawn == chances else limits)
    return tuple(found), ()


def _quantile(probability: float, degrees: int) -> float:
    return 2.0 * float(special.gammaincinv(0.5 * degrees, probability))
