"""Intervals of noise, contribution and rate of the executed run, from which the accountant computes epsilon.

There are two readings:

* ``measured``: the noise is at most the residual of released models in directions without canaries, and the
  contribution follows from the canaries' directions. Rate and minimum noise are the reported ones.
* ``reported``: noise, largest clipped norm and batches are those in the backend's logs.

The intervals of a reading hold together by a union bound with fixed shares.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from scipy import special

from dpspec.contract import FrozenMap, Phase
from dpspec.contract.sampling import poisson_sampling
from dpspec.stats import binomial
from dpspec.stats.conformance import canary_contributions
from dpspec.stats.conformance.evidence import Runs

Reading: TypeAlias = Literal["measured", "reported"]
Interval: TypeAlias = tuple[float, float]

#: Share of each interval in the error probability.
SHARES = {"sensitivity": 0.8, "noise": 0.1, "rate": 0.1}

#: Largest factor between executed and declared ratio of noise to contribution. Beyond it an end is clipped or missing.
FARTHEST = 30.0


@dataclass(frozen=True, kw_only=True)
class Ran:
    """Intervals of the noise relative to the declared one, of the contribution in clip norms, and of the rates.

    Ends without a limit are 0 or infinite. No interval is valid if a quantity is ``missing``, with the reason.
    """

    reading: Reading
    noise: Interval = (0.0, math.inf)
    contribution: Interval = (0.0, math.inf)
    rates: tuple[Interval, ...] = ()
    missing: tuple[str, ...] = ()

    def least(self, phases: Sequence[Phase]) -> tuple[Phase, ...] | None:
        ratio = _over(self.noise[1], self.contribution[0])
        return self._at(phases, max(ratio, 1.0 / FARTHEST), [low for low, _ in self.rates])

    def most(self, phases: Sequence[Phase]) -> tuple[Phase, ...] | None:
        ratio = _over(self.noise[0], self.contribution[1])
        return self._at(phases, min(ratio, FARTHEST), [high for _, high in self.rates])

    def _at(self, phases: Sequence[Phase], ratio: float, rates: Sequence[float]) -> tuple[Phase, ...] | None:
        """Return phases whose noise multiplier is relative to the contribution of a drawn record."""
        if self.missing or not 1.0 / FARTHEST <= ratio <= FARTHEST or not all(rate > 0.0 for rate in rates):
            return None
        return tuple(
            phase.replace(noise_multiplier=phase.noise_multiplier * ratio, sampling=poisson_sampling(rate))
            for phase, rate in zip(phases, rates, strict=True)
        )


def _over(noise: float, contribution: float) -> float:
    return noise / contribution if contribution > 0.0 else math.inf


def ran(phases: Sequence[FrozenMap], evidence: Sequence[FrozenMap], confidence: float) -> tuple[Ran, Ran]:
    """Return the measured and the reported intervals.

    ``confidence``, in (0, 1), is the joint confidence of all intervals of a reading.
    """
    runs = Runs.read(phases, evidence)
    error = {name: 0.5 * share * (1.0 - confidence) for name, share in SHARES.items()}
    rates, strange = _rates(runs, error["rate"])
    noise, noise_logs = None, runs.of(lambda run: run.noise_log)
    if noise_logs:
        total, degrees = sum(log.statistic for log in noise_logs), sum(log.degrees for log in noise_logs)
        high = 2.0 * float(special.gammainccinv(0.5 * degrees, error["noise"]))
        low = 2.0 * float(special.gammaincinv(0.5 * degrees, error["noise"]))
        noise = math.sqrt(total / high), math.sqrt(total / low)
    norms = [log.largest for log in runs.of(lambda run: run.norm_log)]
    if noise is None or not norms or strange:
        no_noise = () if noise else ("noise (the backend reports none)",)
        no_norms = () if norms else ("contribution (the backend reports no norms)",)
        reported = Ran(reading="reported", missing=(*no_noise, *no_norms, *strange))
    else:
        reported = Ran(reading="reported", noise=noise, contribution=(max(norms), max(norms)), rates=rates)
    return _measured(runs, noise, rates, strange, error), reported


def _measured(
    runs: Runs,
    reported: Interval | None,
    rates: tuple[Interval, ...],
    strange: tuple[str, ...],
    error: dict[str, float],
) -> Ran:
    outside = [noise for noise in runs.of(lambda run: run.noise) if noise.degrees]
    planted = canary_contributions.interval(runs.of(lambda run: run.signal), error["sensitivity"])
    if not outside or planted is None or strange:
        no_noise = () if outside else ("noise (no released model shows it)",)
        no_canaries = () if planted else ("contribution (too few gradient canaries, or none)",)
        return Ran(reading="measured", missing=(*no_noise, *no_canaries, *strange))
    total, degrees = sum(noise.statistic for noise in outside), sum(noise.degrees for noise in outside)
    most = math.sqrt(total / (2.0 * float(special.gammaincinv(0.5 * degrees, error["noise"]))))
    # A log with more noise than the models is not a lower limit.
    least = reported[0] if reported is not None and reported[0] <= most else 0.0
    # Projections show rate * contribution; of several phases the widest ends count.
    declared = [phase.rate() for phase in runs.phases]
    thinnest = min(low / rate for (low, _), rate in zip(rates, declared, strict=True))
    thickest = max(high / rate for (_, high), rate in zip(rates, declared, strict=True))
    contribution = (planted[0] / thickest, planted[1] / thinnest if thinnest > 0.0 else math.inf)
    return Ran(reading="measured", noise=(least, most), contribution=contribution, rates=rates)


def _rates(runs: Runs, error: float) -> tuple[tuple[Interval, ...], tuple[str, ...]]:
    """Clopper-Pearson intervals of the rates of all phases, with equal shares of the error; and missing quantities."""
    logs = runs.of(lambda run: run.sampling_log)
    intervals: list[Interval] = []
    for number, phase in enumerate(runs.phases):
        if not phase.sampling.is_independent:
            return (), (f"rate ({phase.sampling.scheme} batches are not Poisson samples)",)
        if phase.noise != "gaussian" or phase.noiseless:
            return (), ("noise (a phase has no Gaussian noise)",)
        if phase.clipping_scheme == "adaptive":
            return (), ("noise of the counts (adaptive clipping)",)
        drawn = sum(log.batches[number].total for log in logs)
        chances = sum(log.records * log.batches[number].steps for log in logs)
        if not chances or drawn > chances:
            return (), ("rate (the backend reports no batches)",)
        one_sided = 1.0 - error / len(runs.phases)
        limits = binomial.lower(drawn, chances, one_sided), binomial.upper(drawn, chances, one_sided)
        intervals.append((1.0, 1.0) if phase.rate() >= 1.0 and drawn == chances else limits)
    return tuple(intervals), ()
