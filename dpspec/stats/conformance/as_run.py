"""What ran, as intervals around what was declared: noise, contribution and rate, from which an accountant gets epsilon.

Two readings, never mixed silently:

* ``measured``: the noise is at most what released models hold where no canary points (what else is in there only
  adds), a planted record's contribution is what its direction shows. Batches are drawn where nobody looks on, so that
  the rate is the reported one, and so is the least that the noise can have been.
* ``reported``: the noise, the largest clipped norm and the batches that the backend tells of.

Each interval misses with its share of the error (a union bound): most of it goes to the contribution, which is the
least certain, and the shares are fixed before anything is seen. A contribution along its direction is rate * clip norm,
so that what a record adds once it is drawn is that over the rate.
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
from dpspec.stats.conformance.evidence.run import RunEvidence, read_runs

Reading: TypeAlias = Literal["measured", "reported"]

#: How the chance of an error is shared out among the intervals.
SHARES = {"contribution": 0.8, "noise": 0.1, "rate": 0.1}

#: Where noise for what a record adds is this many times less, or more, than declared, it is taken for no less, or no
#: more: a lower end stays one, and there is no upper end, or the other way round.
FARTHEST = 30.0


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What ran, relative to what was declared.

    noise, contribution: (low, high) times the declared noise, and times the clip norm, at every step. rates: (low,
    high) of each phase, as probabilities. Infinite, or 0, where nothing limits an end. missing: what of these was not
    measured, with the reason; the others are not to be used then.
    """

    reading: Reading
    noise: tuple[float, float] = (0.0, math.inf)
    contribution: tuple[float, float] = (0.0, math.inf)
    rates: tuple[tuple[float, float], ...] = ()
    missing: tuple[str, ...] = ()

    def least(self, phases: Sequence[Phase]) -> tuple[Phase, ...] | None:
        """The phases at the ends that leak least; None where something has no such end."""
        ratio = _over(self.noise[1], self.contribution[0])
        return self._at(phases, max(ratio, 1.0 / FARTHEST), [low for low, _ in self.rates])

    def most(self, phases: Sequence[Phase]) -> tuple[Phase, ...] | None:
        """The phases at the ends that leak most; None where something has no such end."""
        ratio = _over(self.noise[0], self.contribution[1])
        return self._at(phases, min(ratio, FARTHEST), [high for _, high in self.rates])

    def _at(self, phases: Sequence[Phase], ratio: float, rates: Sequence[float]) -> tuple[Phase, ...] | None:
        """Phases whose noise multiplier is relative to what a drawn record adds, and not to the clip norm."""
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
    """What the trials' evidence says of runs that were declared to have ``phases``: as measured, and as reported.

    confidence: in (0, 1), that all intervals of one reading, at both ends, hold together. Raises ``ValueError`` where
    the evidence is not that of a run of these phases, and for a confidence that is none.
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
        [run.signal for run in runs if run.signal is not None], error["contribution"]
    )
    if not outside or planted is None or strange:
        noise = () if outside else ("noise (no released model shows it)",)
        contribution = () if planted else ("contribution (too few planted gradients were seen, or none)",)
        return Ran(reading="measured", missing=(*noise, *contribution, *strange))
    total, degrees = sum(one.statistic for one in outside), sum(one.degrees for one in outside)
    most = math.sqrt(total / _quantile(error["noise"], degrees))
    # A log that tells of more noise than the models hold says nothing of how little there was.
    least = told[0] if told is not None and told[0] <= most else 0.0
    # What lies along a direction is the rate times what a drawn record adds; of several phases the widest ends.
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
        noise = () if told else ("noise (the backend tells of none)",)
        contribution = () if norms else ("contribution (the backend tells of no norms)",)
        return Ran(reading="reported", missing=(*noise, *contribution, *strange))
    return Ran(reading="reported", noise=told, contribution=(max(norms), max(norms)), rates=rates)


def _reported_noise(runs: Sequence[RunEvidence], error: float) -> tuple[float, float] | None:
    """The scale of the noise in the backend's log: the sum of its squares is chi-square times the squared scale."""
    logs = [run.noise_log for run in runs if run.noise_log is not None]
    if not logs:
        return None
    total, degrees = sum(log.statistic for log in logs), sum(log.degrees for log in logs)
    high = 2.0 * float(special.gammainccinv(0.5 * degrees, error))
    return math.sqrt(total / high), math.sqrt(total / _quantile(error, degrees))


def _rates(
    phases: Sequence[Phase], runs: Sequence[RunEvidence], error: float
) -> tuple[tuple[tuple[float, float], ...], tuple[str, ...]]:
    """The rate of each phase by Clopper and Pearson, the error shared out over them; and what is missing."""
    logs = [run.sampling_log for run in runs if run.sampling_log is not None]
    found: list[tuple[float, float]] = []
    for number, phase in enumerate(phases):
        if not phase.sampling.is_independent:
            return (), (f"rate ({phase.sampling.scheme} batches are no Poisson samples)",)
        if phase.noise != "gaussian" or phase.noiseless:
            return (), ("noise (phases without Gaussian noise are no such steps)",)
        drawn = sum(log.batches[number].total for log in logs)
        chances = sum(log.records * log.batches[number].steps for log in logs)
        if not chances or drawn > chances:
            return (), ("rate (the backend tells of no batches)",)
        one_sided = 1.0 - error / len(phases)
        limits = binomial.lower(drawn, chances, one_sided), binomial.upper(drawn, chances, one_sided)
        found.append((1.0, 1.0) if phase.rate() >= 1.0 and drawn == chances else limits)
    return tuple(found), ()


def _quantile(probability: float, degrees: int) -> float:
    return 2.0 * float(special.gammaincinv(0.5 * degrees, probability))
