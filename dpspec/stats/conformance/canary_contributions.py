"""Test the contribution of inserted canaries by projections on their directions.

A canary's gradient is clipped to the clip norm and enters a batch with the declared rate. So the mean projection of
groups of k inserted canaries exceeds the mean projection of absent groups by

    k * (sum over steps of the rate) clip norms.

Random bits decide which groups are inserted, so everything else contributes equally to both until the model depends on
the canaries. Copies of a record and unclipped gradients add more. Dropped records, and canaries that share a clip norm,
add less. A bound on the rounding error is subtracted. The larger p-value of two tests counts:

- Welch's t over groups: each group's sum over steps is close to normal (noise, and a binomial number of inclusions). No
  variance is taken below the declared one, because possibly no inserted group was drawn. Assumes independent groups.
- Student's t over steps, if groups may share the draw of the real records (:class:`SharedDraw`). They share nothing if
  no draw is random (full batches, a known batch), and at the first step, whose gradients precede all canaries.
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

#: Minimum number of groups of each kind.
LEAST = 12


#: Ratio of successive points of the grid of variances.
_RATIO = 1.25

#: Share of the distance times the effect of one draw that is added to the variance.
_RARE = 0.6


@dataclass(frozen=True, kw_only=True)
class SharedDraw:
    """Student's t of a sum over steps whose terms all groups may share.

    Given the past, each step's term has mean zero, so the sum is a martingale, and the squares of the terms estimate
    its variance with everything that is shared. The level is divided over variances, and the variance is increased by
    0.6 times the distance times the largest effect of one draw. The section "Shared draws of the contribution" of
    ``docs/explanation/proofs/residuals.md`` derives this, and states its assumptions.

    Attributes:
        variance: Estimated variance, possibly infinite.
        declared: Declared variance, above 0 and at most ``variance``.
        degrees: Number of steps minus number of runs, at least 1.
        single: Largest effect of one draw.
    """

    variance: float
    declared: float
    degrees: int
    single: float

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return math.sqrt(self.variance)

    @property
    def among(self) -> float:
        """Factor on the p-value for the choice of the variance, at least 2."""
        point = max(0.0, math.log(self.variance / self.declared) / math.log(_RATIO))
        return (point + 1.0) * (point + 2.0)

    def tail(self, distance: float) -> float:
        """Return the one-sided p-value of a sum of at least ``distance``."""
        variance = self.variance + _RARE * self.single * distance
        if not math.isfinite(variance):
            return 1.0
        return min(1.0, self.among * float(special.stdtr(self.degrees, -distance / math.sqrt(variance))))

    def reach(self, error: float) -> float:
        """Return the distance whose tail is ``error``, in (0, 0.5); infinite if it overflows."""
        t = -float(special.stdtrit(self.degrees, error / self.among))
        half = 0.5 * _RARE * self.single * t * t
        found = half + math.sqrt(half**2 + t * t * self.variance)
        return found if math.isfinite(found) else math.inf


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Declared moments of the sums along the directions, in clip norms.

    Attributes:
        draws: Mean contribution of an inserted canary, above 0.
        outside: Variance without canaries.
        inclusion: Variance that each inserted canary adds.
        rounding: Bound on the norm of the rounding error over all directions.
    """

    draws: float
    outside: float
    inclusion: float
    rounding: float = 0.0

    @classmethod
    def of(cls, runs: Sequence[PlantedSums]) -> Declared:
        """Pool the evidence of trials with the same declaration."""
        return cls(
            draws=float(runs[0].draws),
            outside=sum(run.outside for run in runs) / len(runs),
            inclusion=float(runs[0].inclusion),
            rounding=math.hypot(*(run.rounding for run in runs)),
        )


@dataclass(frozen=True, kw_only=True)
class ByStep:
    """Covariance over the steps of all trials of the totals of groups, by size and inclusion bit.

    Attributes:
        degrees: Number of steps minus number of trials.
        products: Covariance matrix (m, m), float64.
    """

    degrees: int
    products: npt.NDArray[np.float64]

    @classmethod
    def of(cls, runs: Sequence[PlantedSums]) -> ByStep | None:
        """Pool trials with the same sizes; trials without steps get the mean of the others. None without any step."""
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
        """Return the variance of the sum of totals times ``weights`` (m,); infinite if it overflows."""
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
    """Return an interval of the contribution, in units of rate * clip norm; None if :func:`test` abstains.

    Each end errs with probability ``error`` at most. The interval is the wider one of both tests, plus rounding.
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


#: Per group size, the moments (count, sum, sum of squares) of absent and of inserted groups.
_Groups = list[tuple[int, list[float], list[float]]]


def _pooled(runs: Sequence[PlantedSums]) -> tuple[list[PlantedSums], _Groups]:
    """Return the runs with the most measured steps, and the sums of their moments."""
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
    """Test that each inserted canary adds 1, in units of ``declared.draws`` clip norms; two-sided.

    The differences of all sizes are weighted by k over their declared variance. Welch's p uses Student's t with the
    smallest degrees of freedom of any mean, which is conservative. The directions are orthonormal, so rounding changes
    the weighted sum by at most its norm times the norm of the weights. ``measured`` is the estimate.

    Args:
        groups: Per group size k, the moments (count, sum, sum of squares) of absent and of inserted groups.
        declared: Declared moments.
        by_step: Covariance of their totals over steps; None if groups share nothing.
    """
    test = "inserted and absent groups, Welch" + (" and Student over the steps" if by_step else "")
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
    """An estimate with its standard deviation and degrees of freedom, and a bound on its rounding error."""

    estimate: float
    deviation: float
    degrees: float
    luck: SharedDraw | None
    rounding: float

    @property
    def largest(self) -> float:
        """The larger standard deviation of both tests."""
        return self.deviation if self.luck is None else self.luck.deviation

    def tail(self, distance: float) -> float:
        """Return the larger one-sided p-value of both tests for an error of ``distance``."""
        welch = float(special.stdtr(self.degrees, -distance / self.deviation))
        return welch if self.luck is None else max(welch, self.luck.tail(distance))

    def reach(self, error: float) -> float:
        """Return the distance whose :meth:`tail` is ``error``."""
        welch = -float(special.stdtrit(self.degrees, error)) * self.deviation
        return welch if self.luck is None else max(welch, self.luck.reach(error))


def _difference(
    groups: Sequence[tuple[int, Sequence[float], Sequence[float]]], declared: Declared, by_step: ByStep | None
) -> _Difference | None:
    """Return the statistic of :func:`sensitivity`; None without power."""
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
    """Groups of one size: the difference of the means with its variance and declared variance, numbers, and weight."""

    size: int
    weight: float
    difference: float
    variance: float
    least: float
    absent: float
    present: float

    @classmethod
    def of(cls, size: int, absent: Sequence[float], present: Sequence[float], declared: Declared) -> _OfSize:
        """Compute from the moments (count, sum, sum of squares) of absent and inserted groups."""
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
    """Return the mean and its variance, estimated with a variance of at least ``least``."""
    count, total, squares = moments
    mean = total / count
    spread = max(0.0, squares - count * mean * mean) / (count - 1.0)
    return mean, max(spread, least) / count
