"""Does a planted record add what it should? What was seen along the canaries' directions, held against the declared.

A planted record's gradient is clipped to the clip norm and enters a batch with the declared rate, so that the mean of
the projections on the directions of groups of k planted records exceeds that of groups left out by

    k * (sum over steps of the rate) clip norms.

Coins decide which groups are planted, so that whatever else lies along the directions is in both alike, until a model
has moved along what was planted. Copies of a record and gradients that escape clipping add more; records that are
dropped, or canaries that share a clip norm or never reach the model, add less, which would make the attack blind. What
rounding can have changed of the difference is taken off. Two tests have to find it before it is said to be another one:

- Groups against groups. Each group's sum over the steps is close to normal (noise, and a binomial number of
  inclusions), and Welch's t statistic compares the two means. No variance is taken to be below the declared one: where
  records are drawn rarely and noise is small, no planted group may have been drawn at all, and what was seen would then
  vary far less than it does. It takes groups to vary on their own.
- Steps against steps, where groups may share the draw of the real records: :mod:`dpspec.stats.independence.shared_draw`
  says how, and what that takes for granted. Nothing is shared where a step's draw leaves nothing to chance: of full
  batches, of those that an adversary is told of, and at the first step, whose gradients knew of no coin. Evidence that
  was kept before says nothing of steps, and is held to the first test alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from dpspec.stats.conformance.evidence import PlantedSums
from dpspec.stats.conformance.measurement import LEVEL, POWER, Abstention, Measurement
from dpspec.stats.conformance.shared_draw import SharedDraw

#: Means of fewer groups than this are not compared.
LEAST = 12


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What a run says of the sums along the directions, in clip norms.

    draws: what one planted record adds on average, above 0.
    outside: the variance without planted records. inclusion: what each planted record adds to it.
    rounding: a bound on the length of what rounding changed, over all directions.
    """

    draws: float
    outside: float
    inclusion: float
    rounding: float = 0.0

    @classmethod
    def of(cls, runs: Sequence[PlantedSums]) -> Declared:
        """From the evidence of trials that share their declaration, pooled."""
        return cls(
            draws=float(runs[0].draws),
            outside=sum(run.outside for run in runs) / len(runs),
            inclusion=float(runs[0].inclusion),
            rounding=math.hypot(*(run.rounding for run in runs)),
        )


@dataclass(frozen=True, kw_only=True)
class ByStep:
    """How totals of groups vary over the steps of all trials, by size and coin.

    degrees: steps less trials. products: (m, m) float64, what totals of any two sizes and coins vary by together.
    """

    degrees: int
    products: npt.NDArray[np.float64]

    @classmethod
    def of(cls, runs: Sequence[PlantedSums]) -> ByStep | None:
        """From the evidence of trials that share their sizes; those without any vary as the others do. None where none
        has any."""
        kept = [run.by_step for run in runs if run.by_step is not None]
        if not kept:
            return None
        products = np.zeros((len(kept[0].products),) * 2)
        with np.errstate(over="ignore"):  # a model that has diverged
            for one in kept:
                times = len(runs) / len(kept) * one.steps / max(1, one.steps - 1)
                for i, row in enumerate(one.products):
                    products[i, : i + 1] += times * np.array(row)
        return cls(degrees=sum(one.steps - 1 for one in kept), products=products + np.tril(products, -1).T)

    def variance(self, weights: Sequence[float]) -> float:
        """Of the sum of totals times ``weights`` (m,); infinite where that is beyond floating point."""
        with np.errstate(over="ignore", invalid="ignore"):
            found = float(np.array(weights) @ self.products @ np.array(weights))
        return max(0.0, found) if math.isfinite(found) else math.inf


def test(runs: Sequence[PlantedSums]) -> Measurement | Abstention | None:
    """Test the contribution over all trials and group sizes.

    Abstains if too few groups were inserted or absent, if rounding hides every step, or if a single step was measured
    whose drawn records all groups may share.
    """
    if runs and not any(run.draws > 0.0 for run in runs) and any(run.hidden for run in runs):
        return Abstention("rounding hides every step")
    pooled_runs, groups = _pooled(runs)
    if not groups:
        return None
    if _too_few(groups):
        return Abstention(f"of some size fewer than {LEAST} groups were inserted, or absent")
    by_step = ByStep.of(pooled_runs)
    if by_step is not None and by_step.degrees == 0:
        return Abstention("groups may share the drawn records of the only measured step")
    return contribution(groups, Declared.of(pooled_runs), by_step)


def interval(runs: Sequence[PlantedSums], error: float) -> tuple[float, float] | None:
    """What a planted record adds, in units of rate * clip norm: low to high, each missing with ``error`` at most.

    The wider of both tests' around the estimate of :func:`contribution`, widened by what rounding can have changed.
    None where the check of it would abstain.
    """
    pooled_runs, groups = _pooled(runs)
    if not groups or _too_few(groups) or not any(run.draws > 0.0 for run in runs):
        return None
    by_step = ByStep.of(pooled_runs)
    if by_step is not None and by_step.degrees == 0:
        return None
    found = _difference(groups, Declared.of(pooled_runs), by_step)
    if found is None:
        return None
    reach = found.reach(error) + found.rounding
    return max(0.0, found.estimate - reach), found.estimate + reach


#: Per group size the moments (count, sum, sum of squares) of the groups left out and of those planted.
_Groups = list[tuple[int, list[float], list[float]]]


def _pooled(runs: Sequence[PlantedSums]) -> tuple[list[PlantedSums], _Groups]:
    """The runs that count, and their moments added up: trials share their declaration, but not the steps that rounding
    hides."""
    most = max((run.draws for run in runs), default=0.0)
    pooled_runs = [run for run in runs if run.draws == most]
    groups: dict[int, list[list[float]]] = {}
    for group in (group for run in pooled_runs for group in run.moments):
        moments = groups.setdefault(group.size, [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])[group.coin]
        for place, value in enumerate((group.count, group.total, group.squares)):
            moments[place] += value
    return pooled_runs, [(size, absent, present) for size, (absent, present) in sorted(groups.items())]


def _too_few(groups: _Groups) -> bool:
    return any(moments[0] < LEAST for _, *both in groups for moments in both)


def contribution(
    groups: Sequence[tuple[int, Sequence[float], Sequence[float]]], declared: Declared, by_step: ByStep | None = None
) -> Measurement:
    """Test that every planted record adds 1, in units of ``declared.draws`` clip norms; two-sided.

    groups: per group size k, the moments (count, sum, sum of squares) of the groups left out and of those planted.
    by_step: how their totals vary over the steps, in the same order; None where groups share nothing.
    The sizes' differences are weighted by k over their declared variance, which no chance moves; Welch's p is by
    Student's t with the fewest degrees of freedom of any mean, which errs upwards. The directions are orthonormal, so
    that rounding changes the weighted sum by at most its own length times that of the weights. ``measured`` is the
    estimate, ``detectable`` in its unit.
    """
    test = "planted groups against those left out, Welch" + (" and Student over the steps" if by_step else "")
    found = _difference(groups, declared, by_step)
    if found is None:
        return Measurement(test=test, declared=1.0, measured=1.0, p_value=1.0, detectable=None)
    detectable = found.reach(0.5 * LEVEL) + float(special.ndtri(POWER)) * found.largest + found.rounding
    return Measurement(
        test=test,
        declared=1.0,
        measured=found.estimate,
        p_value=min(1.0, 2.0 * found.tail(max(0.0, abs(found.estimate - 1.0) - found.rounding))),
        detectable=detectable if math.isfinite(detectable) else None,
    )


@dataclass(frozen=True, kw_only=True)
class _Difference:
    """An estimate with its standard deviation, by Student's t with ``degrees``; luck: where groups may share some;
    rounding: how far that can move it."""

    estimate: float
    deviation: float
    degrees: float
    luck: SharedDraw | None
    rounding: float

    @property
    def largest(self) -> float:
        """The larger of the standard deviations."""
        return self.deviation if self.luck is None else self.luck.deviation

    def tail(self, distance: float) -> float:
        """The chance that the estimate is so far above what it estimates, or below: the larger of both tests'."""
        welch = float(special.stdtr(self.degrees, -distance / self.deviation))
        return welch if self.luck is None else max(welch, self.luck.tail(distance))

    def reach(self, error: float) -> float:
        """The distance at which that chance is ``error``."""
        welch = -float(special.stdtrit(self.degrees, error)) * self.deviation
        return welch if self.luck is None else max(welch, self.luck.reach(error))


def _difference(
    groups: Sequence[tuple[int, Sequence[float], Sequence[float]]], declared: Declared, by_step: ByStep | None
) -> _Difference | None:
    """What :func:`contribution` tests; None where nothing would show it."""
    told = [_OfSize.of(size, absent, present, declared) for size, absent, present in groups]
    unit = sum(one.weight * one.size * declared.draws for one in told)
    if unit == 0.0:
        return None
    shares = [one.weight / unit for one in told]
    pairs = list(zip(shares, told, strict=True))
    deviation = math.sqrt(sum(share**2 * one.variance for share, one in pairs))
    length = math.sqrt(sum(share**2 * (1.0 / one.absent + 1.0 / one.present) for share, one in pairs))
    luck = None
    if by_step is not None:
        weights = [part for share, one in pairs for part in (-share / one.absent, share / one.present)]
        luck = SharedDraw(
            variance=max(deviation**2, by_step.variance(weights)),
            declared=sum(share**2 * one.least for share, one in pairs),
            degrees=by_step.degrees,
            single=length,
        )
    return _Difference(
        estimate=sum(share * one.difference for share, one in pairs),
        deviation=deviation,
        degrees=min(min(one.absent, one.present) - 1.0 for one in told if one.weight > 0.0),
        luck=luck,
        rounding=declared.rounding * length,
    )


@dataclass(frozen=True, kw_only=True)
class _OfSize:
    """What groups of one size tell: by how much the means differ, the variance of that and the ``least`` it can be, how
    many groups were left out and planted, and the size's weight, 0 where nothing varies."""

    size: int
    weight: float
    difference: float
    variance: float
    least: float
    absent: float
    present: float

    @classmethod
    def of(cls, size: int, absent: Sequence[float], present: Sequence[float], declared: Declared) -> _OfSize:
        """From the moments (count, sum, sum of squares) of groups left out and planted."""
        least_out, least_in = declared.outside, declared.outside + size * declared.inclusion
        (mean_out, variance_out), (mean_in, variance_in) = _mean(absent, least_out), _mean(present, least_in)
        least = least_out / absent[0] + least_in / present[0]
        return cls(
            size=size,
            weight=size * declared.draws / least if least > 0.0 else 0.0,
            difference=mean_in - mean_out,
            variance=variance_out + variance_in,
            least=least,
            absent=absent[0],
            present=present[0],
        )


def _mean(moments: Sequence[float], least: float) -> tuple[float, float]:
    """The mean, and the variance of it: as estimated, but not below that of numbers of variance ``least``."""
    count, total, squares = moments
    mean = total / count
    spread = max(0.0, squares - count * mean * mean) / (count - 1.0)
    return mean, max(spread, least) / count
