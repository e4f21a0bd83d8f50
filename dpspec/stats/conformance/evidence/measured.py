"""What was measured on the models that a run released."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import comb, prod

from dpspec.json_records import (
    INLINE,
    AboveZero,
    Amount,
    Count,
    Positive,
    Real,
    Record,
    Row,
)
from dpspec.stats.conformance.evidence.steps import FIRST_COORDINATES, StepSums
from dpspec.stats.independence.layer_noise import MOST_LAYERS, Shared


@dataclass(frozen=True, kw_only=True)
class States(Record):
    """What the released states were.

    still: how many were the one before. apart: in how many runs the last is not the trained model.
    blind: whether rounding may keep a model as it is.
    """

    still: Count
    apart: Count
    blind: bool


@dataclass(frozen=True, kw_only=True)
class OutsideNoise(Record):
    """The squares of what is left of the updates, in the directions that no canary uses; they hold at least the noise.

    statistic, degrees: over all steps. each: step by step. hidden: how many steps rounding hides.
    """

    statistic: Amount
    degrees: Count
    hidden: Count = 0
    each: StepSums | None = None

    def problem(self) -> str | None:
        """Single steps have the degrees of freedom of all of them."""
        if self.each is not None and (self.each.count or 0) * self.each.steps != self.degrees:
            return f"degrees must be those of each step, got {self.degrees}"
        return None


@dataclass(frozen=True)
class PartSum(Row):
    """A sum of squares over a part of the model, and its degrees of freedom."""

    total: Amount
    degrees: Positive


@dataclass(frozen=True, kw_only=True)
class LeastCoordinate(Record):
    """The least sum of squares of any of ``count`` parameters."""

    least: Amount
    count: Positive


@dataclass(frozen=True, kw_only=True)
class Everywhere(Record):
    """Squares of residuals: of each layer over all steps and at its quietest step, and of the quietest parameter."""

    layers: Mapping[str, PartSum] | None = None
    quietest: Mapping[str, PartSum] | None = None
    coordinates: LeastCoordinate

    def problem(self) -> str | None:
        """Both are of the same layers."""
        if self.layers is not None and self.quietest is not None and set(self.layers) != set(self.quietest):
            return "quietest must name the layers"
        return None


@dataclass(frozen=True, kw_only=True)
class Drift(Record):
    """The sum of residuals along the expected updates, and those updates' length."""

    total: Real
    unit: Amount


@dataclass(frozen=True)
class WeakestStep(Row):
    """The step that tells least of its update: the residual's variance, the update's length, and the rounding."""

    variance: Amount
    unit: Amount
    rounding: Amount


@dataclass(frozen=True, kw_only=True)
class DriftAtStep(Record):
    """The same of the most surprising step, with the residual's variance."""

    total: Real
    variance: Amount
    unit: Amount
    weakest: WeakestStep


@dataclass(frozen=True, kw_only=True)
class LagSum(Record):
    """Residuals along those ``lag`` steps before, at the most surprising lag; unit: what the same noise again adds."""

    lag: Count
    total: Real
    unit: Amount


@dataclass(frozen=True, kw_only=True)
class PairSum(Record):
    """The same of the most surprising two steps; least and variance: the noise's, and that with what sampling adds."""

    total: Real
    unit: Amount
    least: AboveZero
    variance: Amount
    rounding: Amount = 0.0


@dataclass(frozen=True, kw_only=True)
class FirstResidual(Record):
    """Some coordinates of the first step's residual, with variances as for two steps."""

    row: tuple[Real, ...]
    least: AboveZero
    variance: Amount
    rounding: Amount = 0.0


@dataclass(frozen=True, kw_only=True)
class Directions(Record):
    """Residuals along directions that were fixed before each step; least and variance: sums over the steps."""

    rounding: Amount
    least: AboveZero
    variance: Amount
    drift: Drift
    step: DriftAtStep | None = None
    lag: LagSum
    pair: PairSum
    first: FirstResidual

    def problem(self) -> str | None:
        """There is a first residual."""
        if not 1 <= len(self.first.row) <= FIRST_COORDINATES:
            return f"first.row must have 1 to {FIRST_COORDINATES} numbers, got {len(self.first.row)}"
        return None


@dataclass(frozen=True, kw_only=True)
class SharedLayers(Record):
    """What two layers show of each other, the most surprising of so many ``pairs``, in units of the declared noise.

    product: the sum over the steps of the inner products of what is left of them. rounding: what that of the parameters
    can have changed of it. squares: of either layer, with what it can have added. count: the coordinates of one, over
    all steps; planned: as many as were planned. See ``stats.independence.layer_noise``.
    """

    squares: Mapping[str, Amount]
    product: Real
    rounding: Amount
    count: Positive
    planned: Positive
    pairs: Positive

    @property
    def shared(self) -> Shared:
        """The same for the test, less what rounding can have changed."""
        product = max(0.0, abs(self.product) - self.rounding)
        first, second = self.squares.values()
        return Shared(product, first, second, self.count, self.planned)

    def problem(self) -> str | None:
        """Two layers, whose product is no larger than both (Cauchy & Schwarz)."""
        if len(self.squares) != 2:
            return "squares must be those of two layers"
        if abs(self.product) > (1.0 + 1e-9) * prod(square**0.5 for square in self.squares.values()):
            return f"product must be at most that of the lengths, got {self.product:g}"
        if self.planned < self.count:
            return f"planned must be at least count ({self.count}), got {self.planned}"
        return None


@dataclass(frozen=True, kw_only=True)
class ResidualSums(Record):
    """What is left of the updates once the expected ones are taken away.

    steps: how many are in ``directions``; hidden: how many are not, because of rounding. seen: how many are in
    ``everywhere``; None in evidence of version 0.1.0, where it was ``steps``. shared: None in evidence that was kept
    before layers were compared.
    """

    steps: Count
    hidden: Count = 0
    seen: Count | None = None
    everywhere: Everywhere | None = field(default=None, metadata=INLINE)
    directions: Directions | None = field(default=None, metadata=INLINE)
    shared: SharedLayers | None = None

    @property
    def steps_seen(self) -> int:
        """How many steps are in ``everywhere``."""
        return self.steps if self.seen is None else self.seen

    def problem(self) -> str | None:
        """Sums are there where steps are."""
        if (self.everywhere is None) != (self.steps_seen == 0):
            return "coordinates must be there where steps were seen, and only then"
        if (self.directions is None) != (self.steps == 0):
            return "drift, lag, pair and first must be there where there are steps, and only then"
        if self.directions is not None and not min(1, self.steps // 2) <= self.directions.lag.lag <= self.steps // 2:
            return f"lag.lag must be one of {self.steps} steps, got {self.directions.lag.lag}"
        layers = self.everywhere.layers if self.everywhere is not None else None
        return None if self.shared is None else _problem_of_shared(self.shared, layers, self.steps_seen)


def _problem_of_shared(shared: SharedLayers, layers: Mapping[str, PartSum] | None, steps: int) -> str | None:
    """Two of the layers that were seen, from as many coordinates as the smaller has, among all pairs of the largest."""
    if layers is None or not set(shared.squares) <= set(layers):
        return "shared.squares must be those of two of the layers"
    count = min(layers[name].degrees for name in shared.squares)
    if shared.count != count or count % steps:
        return f"shared.count must be {count}, of the smaller layer in {steps} steps, got {shared.count}"
    pairs = comb(min(len(layers), MOST_LAYERS), 2)
    if shared.pairs != pairs:
        return f"shared.pairs must be {pairs}, got {shared.pairs}"
    return None


@dataclass(frozen=True)
class GroupSums(Row):
    """Sums along the directions of ``count`` groups of ``size`` canaries: their total and that of their squares.

    coin: 1 for groups that were planted, 0 for those left out.
    """

    size: Positive
    coin: Count
    count: Count
    total: Real
    squares: Amount


@dataclass(frozen=True)
class GroupLuck(Row):
    """What groups of one size and coin share within a step: two statistics of ``degrees`` degrees of freedom.

    See ``stats.independence.step_luck``.
    """

    size: Positive
    coin: Count
    count: Count
    degrees: Positive
    means: Amount
    spreads: Amount


@dataclass(frozen=True, kw_only=True)
class StepTotals(Record):
    """How the totals of groups vary from step to step, less what is declared that planted ones add.

    steps: how many were measured. products: sums over these of the products of what any two totals miss their means
    by; row i is of the i-th size and coin with those up to itself, in the order of ``PlantedSums.moments``.
    """

    steps: Positive
    products: tuple[tuple[Real, ...], ...]

    def problem(self) -> str | None:
        """A triangle of products, none larger than that of two lengths (Cauchy & Schwarz)."""
        if any(len(row) != number for number, row in enumerate(self.products, start=1)):
            return "products must be a triangle, one number more in each row"
        squares = [row[-1] for row in self.products]
        if any(square < 0.0 or (self.steps == 1 and square > 0.0) for square in squares):
            return "products of totals with themselves must be at least 0, and 0 at a single step"
        for row in self.products:
            for other, product in zip(squares, row, strict=False):
                if abs(product) > (1.0 + 1e-9) * row[-1] ** 0.5 * other**0.5:
                    return f"products must be at most those of the lengths, got {product:g}"
        return None


@dataclass(frozen=True, kw_only=True)
class PlantedSums(Record):
    """What was seen along the directions of gradient canaries, added up over the steps.

    draws: what one planted record adds on average. outside: the variance without planted records. inclusion: what each
    planted record adds to it. rounding: a bound on the length of what rounding changed. hidden: the steps it hides.
    luck: what is shared within steps; None in evidence that was kept before it was looked for. by_step: how totals vary
    over the steps; None where the draw of real records leaves nothing to chance, and in such evidence.
    """

    draws: Amount
    moments: tuple[GroupSums, ...]
    outside: Amount
    inclusion: Amount
    rounding: Amount
    hidden: Count = 0
    luck: tuple[GroupLuck, ...] | None = None
    by_step: StepTotals | None = None

    def problem(self) -> str | None:
        """Every size is there twice, left out and planted; luck is that of some of them, and by_step that of all."""
        sizes = sorted({one.size for one in self.moments})
        if not sizes or [(one.size, one.coin) for one in self.moments] != [
            (size, coin) for size in sizes for coin in (0, 1)
        ]:
            return "moments must be those of each size in order, left out (0) and planted (1)"
        groups = {(one.size, one.coin): one.count for one in self.moments}
        lucky = [(one.size, one.coin) for one in self.luck or ()]
        if lucky != sorted(set(lucky)) or any(groups.get((one.size, one.coin)) != one.count for one in self.luck or ()):
            return "luck must be that of groups in moments, each at most once and in order"
        if self.by_step is not None and len(self.by_step.products) != len(self.moments):
            return f"by_step.products must be of {len(self.moments)} sizes and coins, got {len(self.by_step.products)}"
        return None


@dataclass(frozen=True, kw_only=True)
class ReplayedStep(Record):
    """One step without noise on two data sets, and on both together, of ``records`` records.

    apart: by how much the sum of the two updates misses that of both. random: by how much one of them changes with the
    seed and the order of its records. rounding: what that of the parameters can have changed. All in units of the two
    updates' lengths.
    """

    records: Positive
    apart: Amount
    random: Amount
    rounding: Amount
