"""Test the contribution of inserted canaries by projections on their directions.

The mean projection of groups of k inserted canaries exceeds the mean of absent groups by k * (sum of the rate over the
steps) clip norms; random bits decide which are inserted. The larger p-value of two tests counts:

- Welch's t over groups, which are independent. No variance is taken below the declared one, because possibly no
  inserted group was drawn.
- Student's t over steps, if groups may share the draw of the real records (:class:`SharedDraw`): not in full or known
  batches, and not at the first step, whose gradients precede all canaries.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from dpspec.json_records import Amount, Count, Positive, Real, Record, Row
from dpspec.stats.conformance.measurement import LEVEL, POWER, Abstention, Measurement, Outcome

#: Minimum number of groups of each kind.
LEAST = 12

#: Ratio of successive points of the grid of variances.
_RATIO = 1.25

#: Share of the distance times the effect of one draw that is added to the variance.
_RARE = 0.6


@dataclass(frozen=True)
class GroupSums(Row):
    """Projections on the directions of ``count`` groups of ``size`` canaries: sum and sum of squares.

    ``coin``: 1 for inserted groups, else 0.
    """

    size: Positive
    coin: Count
    count: Count
    total: Real
    squares: Amount


@dataclass(frozen=True, kw_only=True)
class StepTotals(Record):
    """Covariance over ``steps`` steps of the totals of groups, less the declared contribution of inserted ones.

    ``products``: sums of products of deviations; row i has the i-th size and coin with all up to itself, in the order
    of ``PlantedSums.moments``.
    """

    steps: Positive
    products: tuple[tuple[Real, ...], ...]

    def problem(self) -> str | None:
        if any(len(row) != number for number, row in enumerate(self.products, start=1)):
            return "products must be a triangle, one number more in each row"
        squares = [row[-1] for row in self.products]
        if any(square < 0.0 or (self.steps == 1 and square > 0.0) for square in squares):
            return "products of totals with themselves must be at least 0, and 0 at a single step"
        for row in self.products:
            for other_square, product in zip(squares, row, strict=False):
                if abs(product) > (1.0 + 1e-9) * row[-1] ** 0.5 * other_square**0.5:
                    return f"products must be at most the products of the norms, got {product:g}"
        return None


@dataclass(frozen=True, kw_only=True)
class PlantedSums(Record):
    """Projections on the directions of gradient canaries, summed over the steps, in clip norms.

    Attributes:
        draws: Mean contribution of an inserted canary.
        moments: Per size, absent (0) and inserted (1) groups.
        outside: Variance without canaries.
        inclusion: Variance that each inserted canary adds.
        rounding: Bound on the norm of the rounding error over all directions, without the ``hidden`` steps.
        by_step: Covariance over steps. None if no real records are drawn at random.
    """

    draws: Amount
    moments: tuple[GroupSums, ...]
    outside: Amount
    inclusion: Amount
    rounding: Amount
    hidden: Count = 0
    by_step: StepTotals | None = None

    def problem(self) -> str | None:
        sizes = sorted({group.size for group in self.moments})
        if not sizes or [(group.size, group.coin) for group in self.moments] != list(itertools.product(sizes, (0, 1))):
            return "moments must have each size in order, absent (0) and inserted (1)"
        if self.by_step is not None and len(self.by_step.products) != len(self.moments):
            return f"by_step.products must be of {len(self.moments)} sizes and coins, got {len(self.by_step.products)}"
        return None


@dataclass(frozen=True, kw_only=True)
class SharedDraw:
    """Student's t of a sum over steps whose terms all groups may share.

    "Shared draws of the contribution" in ``docs/explanation/proofs/residuals.md`` derives it. The estimated
    ``variance`` may be infinite, ``declared`` is above 0 and at most ``variance``, ``degrees`` is the number of steps
    minus the number of runs, and ``single`` the largest effect of one draw.
    """

    variance: float
    declared: float
    degrees: int
    single: float

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
        distance = half + math.sqrt(half**2 + t * t * self.variance)
        return distance if math.isfinite(distance) else math.inf


def variance_over_steps(by_step: Sequence[StepTotals], runs: int, weights: Sequence[float]) -> float:
    """Return the variance of the sum over the steps of ``runs`` trials of totals times ``weights``.

    Trials without steps get the mean variance of the others. Infinite if it overflows.
    """
    products = np.zeros((len(weights),) * 2)
    with np.errstate(over="ignore", invalid="ignore"):  # a model that has diverged
        for totals in by_step:
            times = runs / len(by_step) * totals.steps / max(1, totals.steps - 1)
            for i, row in enumerate(totals.products):
                products[i, : i + 1] += times * np.array(row)
        products += np.tril(products, -1).T
        variance = float(np.array(weights) @ products @ np.array(weights))
    return max(0.0, variance) if math.isfinite(variance) else math.inf


@dataclass(frozen=True, kw_only=True)
class _Difference:
    """An estimate of the contribution."""

    test: str
    estimate: float
    deviation: float
    degrees: float
    shared: SharedDraw | None
    rounding: float

    def tail(self, distance: float) -> float:
        welch = float(special.stdtr(self.degrees, -distance / self.deviation))
        return welch if self.shared is None else max(welch, self.shared.tail(distance))

    def reach(self, error: float) -> float:
        welch = -float(special.stdtrit(self.degrees, error)) * self.deviation
        return welch if self.shared is None else max(welch, self.shared.reach(error))


def test(runs: Sequence[PlantedSums]) -> Outcome:
    """Test that each inserted canary adds 1, in units of ``draws`` clip norms; two-sided."""
    difference = _difference(runs)
    if not isinstance(difference, _Difference):
        return difference
    # the larger standard deviation of both tests
    deviation = difference.deviation if difference.shared is None else math.sqrt(difference.shared.variance)
    detectable = difference.reach(0.5 * LEVEL) + float(special.ndtri(POWER)) * deviation + difference.rounding
    tail = difference.tail(max(0.0, abs(difference.estimate - 1.0) - difference.rounding))
    limit = detectable if math.isfinite(detectable) else None
    return Measurement(difference.test, 1.0, difference.estimate, min(1.0, 2.0 * tail), limit)


def interval(runs: Sequence[PlantedSums], error: float) -> tuple[float, float] | None:
    """Return an interval of the contribution, in units of rate * clip norm; None if :func:`test` abstains.

    Each end errs with probability ``error`` at most.
    """
    difference = _difference(runs)
    if not isinstance(difference, _Difference):
        return None
    reach = difference.reach(error) + difference.rounding
    return max(0.0, difference.estimate - reach), difference.estimate + reach


def _difference(runs: Sequence[PlantedSums]) -> _Difference | Outcome:
    """Return the statistic over the runs with the most measured steps; a measurement if they have no power.

    The differences of all sizes are weighted by k over their declared variance. Welch's t has the smallest degrees of
    freedom of any mean. Directions are orthonormal: rounding adds at most its norm times the norm of the weights.
    """
    draws = max((run.draws for run in runs), default=0.0)
    if draws == 0.0 and any(run.hidden for run in runs):
        return Abstention("rounding hides every step")
    pooled = [run for run in runs if run.draws == draws]
    moments: dict[tuple[int, int], list[float]] = {}
    for group in (group for run in pooled for group in run.moments):
        sums = moments.setdefault((group.size, group.coin), [0.0, 0.0, 0.0])
        for index, value in enumerate((group.count, group.total, group.squares)):
            sums[index] += value
    if not moments:
        return None
    if any(count < LEAST for count, _, _ in moments.values()):
        return Abstention(f"of some size fewer than {LEAST} groups were inserted, or absent")
    by_step = [run.by_step for run in pooled if run.by_step is not None]
    degrees = sum(totals.steps - 1 for totals in by_step)
    if by_step and degrees == 0:
        return Abstention("groups may share the drawn records of the only measured step")
    test = "inserted and absent groups, Welch" + (" and Student over the steps" if by_step else "")
    outside, inclusion = sum(run.outside for run in pooled) / len(pooled), pooled[0].inclusion
    means, variances, declared, counts = {}, {}, {}, {}
    for (size, coin), (count, total, squares) in moments.items():
        mean, least = total / count, outside + coin * size * inclusion
        spread = max(0.0, squares - count * mean * mean) / (count - 1.0)
        means[size, coin], counts[size, coin] = mean, count
        variances[size, coin], declared[size, coin] = max(spread, least) / count, least / count
    sizes = sorted({size for size, _ in moments})
    declared_of = {size: declared[size, 0] + declared[size, 1] for size in sizes}
    weights = {size: size * draws / declared_of[size] if declared_of[size] > 0.0 else 0.0 for size in sizes}
    unit = sum(weights[size] * size * draws for size in sizes)
    if unit == 0.0:
        return Measurement(test=test, declared=1.0, measured=1.0, p_value=1.0, detectable=None)
    shares = {size: weights[size] / unit for size in sizes}
    deviation = math.sqrt(sum(shares[size] ** 2 * (variances[size, 0] + variances[size, 1]) for size in sizes))
    length = math.sqrt(sum(shares[size] ** 2 * (1.0 / counts[size, 0] + 1.0 / counts[size, 1]) for size in sizes))
    shared = None
    if by_step:
        signed_weights = [(2 * coin - 1) * shares[size] / counts[size, coin] for size in sizes for coin in (0, 1)]
        variance = max(deviation**2, variance_over_steps(by_step, len(pooled), signed_weights))
        least = sum(shares[size] ** 2 * declared_of[size] for size in sizes)
        shared = SharedDraw(variance=variance, declared=least, degrees=degrees, single=length)
    return _Difference(
        test=test,
        estimate=sum(shares[size] * (means[size, 1] - means[size, 0]) for size in sizes),
        deviation=deviation,
        degrees=min(min(counts[size, 0], counts[size, 1]) - 1.0 for size in sizes if weights[size] > 0.0),
        shared=shared,
        rounding=math.hypot(*(run.rounding for run in pooled)) * length,
    )
