"""What a backend says of a run: batches drawn, noise added, norms after clipping."""

from __future__ import annotations

from dataclasses import dataclass

from dpspec.json_records import Amount, Count, Positive, Real, Record, Row, Whole
from dpspec.stats.conformance.evidence.steps import FIRST_COORDINATES, StepSums

#: More records than this are in no data set that was trained on.
MOST_RECORDS = 2**34


@dataclass(frozen=True, kw_only=True)
class Told(Record):
    """How many steps each log of the backend tells of; None where it has no such log."""

    batches: Count | None = None
    noise: Count | None = None
    norms: Count | None = None


@dataclass(frozen=True)
class Common(Row):
    """How many records of the batches ``lag`` steps before were drawn again, and how many those held."""

    lag: Positive
    common: Count
    chances: Count

    def problem(self) -> str | None:
        """No more are in common than there were."""
        return f"common must be at most {self.chances}, got {self.common}" if self.common > self.chances else None


@dataclass(frozen=True)
class CommonAtStep(Common):
    """The same of the most surprising of ``tried`` steps."""

    tried: Positive


@dataclass(frozen=True)
class Closest(Row):
    """Two batches ``lag`` steps apart: of ``size`` records ``common`` are among the ``before`` ones of the earlier."""

    lag: Positive
    common: Count
    size: Positive
    before: Positive

    def problem(self) -> str | None:
        """No more are in common than either holds."""
        most = min(self.size, self.before)
        return f"common must be at most {most}, got {self.common}" if self.common > most else None


@dataclass(frozen=True, kw_only=True)
class TogetherSums(Record):
    """Batches against earlier ones that were remembered (``sampling.RememberedBatches``).

    looked: how many batches were compared with ``references`` others of their size; ``most`` of them were more like
    the earlier ones than each of those, ``least`` less. pairs: how many overlaps were looked at, over all steps;
    closest: the most surprising of them.
    """

    looked: Count
    references: Positive
    most: Count
    least: Count
    pairs: Count
    closest: Closest | None = None

    def problem(self) -> str | None:
        """All are of the same steps."""
        if self.most + self.least > self.looked:
            return f"most must be with least at most {self.looked}, got {self.most} and {self.least}"
        if self.pairs < self.looked:
            return f"pairs must be at least the {self.looked} steps, got {self.pairs}"
        if (self.closest is None) != (self.pairs == 0):
            return f"closest must be one of {self.pairs} pairs"
        return None


@dataclass(frozen=True, kw_only=True)
class EpochSums(Record):
    """The whole epochs of a phase whose records are allocated to steps at random.

    whole: how many there are. astray: how often, over all of them, a record was not drawn exactly once, or as often as
    is declared. spread: the sum over their batches of (size - records times that / steps of an epoch)^2. stays: how
    often one record was in the same of the steps as in the epoch before (of several, in the same last one), the record
    of which that is most. None of trials of earlier versions, and of phases that were cut short.
    """

    whole: Count
    astray: Count
    spread: Amount
    stays: Count | None = None

    def problem(self) -> str | None:
        """Nobody is astray in no epoch."""
        if not self.whole and (self.astray or self.spread):
            return f"astray and spread must be 0 of no epoch, got {self.astray} and {self.spread}"
        if self.stays is not None and self.stays > max(0, self.whole - 1):
            return f"stays must be less than the {self.whole} epochs, got {self.stays}"
        return None


@dataclass(frozen=True, kw_only=True)
class BatchSums(Record):
    """The batches of one phase.

    total, squares: the sum of their sizes and that of the squares. spread: the sum over records of their squared
    numbers of inclusions; above: that of the squares by which these exceed their mean (``sampling.excess``);
    most: the largest number. None, all three, of a phase that was cut short. sizes: what single steps drew, under
    Poisson sampling and random allocation. together: of trials of earlier versions None. early: of shuffled batches,
    how often a record was drawn again before its epoch ended. epochs: of random allocation alone.
    """

    steps: Count
    total: Count
    squares: Count
    spread: Count | None = None
    above: Amount | None = None
    most: Count | None = None
    sizes: StepSums | None = None
    again: tuple[CommonAtStep, ...] = ()
    overlaps: tuple[Common, ...] = ()
    together: TogetherSums | None = None
    early: Count | None = None
    epochs: EpochSums | None = None

    def problem(self) -> str | None:
        """Whole sizes have these sums."""
        if not (self.total <= self.squares <= self.total**2 <= self.squares * self.steps):
            return f"squares must be those of {self.steps} sizes with the sum {self.total}, got {self.squares}"
        if self.sizes is not None and self.sizes.steps != self.steps:
            return f"sizes.steps must be {self.steps}, got {self.sizes.steps}"
        if self.together is not None and self.together.looked > self.steps:
            return f"together.looked must be at most {self.steps}, got {self.together.looked}"
        if self.early is not None and self.early > self.total:
            return f"early must be at most {self.total}, got {self.early}"
        if self.epochs is not None and self.epochs.whole > self.steps:
            return f"epochs.whole must be at most {self.steps}, got {self.epochs.whole}"
        return None


@dataclass(frozen=True, kw_only=True)
class SamplingSums(Record):
    """What the backend says it drew from ``records``, planted ones included.

    repeats: how often a record was drawn that was in the batch already. batches: phase by phase.
    """

    records: Positive
    repeats: Count = 0
    batches: tuple[BatchSums, ...]

    def problem(self) -> str | None:
        """So many records can be drawn so often."""
        if self.records > MOST_RECORDS:
            return f"records must be at most {MOST_RECORDS}, got {self.records}"
        for number, batch in enumerate(self.batches):
            if not self.repeats and batch.total > self.records * batch.steps:
                return f"batches[{number}].total must be at most {self.records} times the steps, got {batch.total}"
            if not self.repeats and batch.sizes is not None and batch.sizes.most.value > self.records:
                return f"batches[{number}].sizes.most must be at most {self.records}, got {batch.sizes.most.value}"
            if batch.above is not None and not (batch.spread is not None and batch.above <= batch.spread):
                return f"batches[{number}].above must be at most spread, got {batch.above}"
            if batch.most is not None and not self._likely(batch, batch.most):
                return f"batches[{number}].most must be the largest count with the other sums, got {batch.most}"
            if batch.spread is not None and not batch.total**2 <= batch.spread * self.records:
                return f"batches[{number}].spread must be that of {batch.total} inclusions, got {batch.spread}"
            if batch.epochs is not None and batch.epochs.astray > self.records * batch.epochs.whole:
                return f"batches[{number}].epochs.astray must be at most {self.records} an epoch"
            if batch.together is not None and not self._fit(batch.together.closest):
                return f"batches[{number}].together.closest must be of {self.records} records"
        return None

    def _fit(self, closest: Closest | None) -> bool:
        """Whether there are enough records for two such batches, and neither holds all."""
        if closest is None:
            return True
        either = closest.size + closest.before - closest.common
        return either <= self.records and max(closest.size, closest.before) < self.records

    def _likely(self, batch: BatchSums, most: int) -> bool:
        """Whether so many inclusions of one record can be the most."""
        squares = batch.spread is not None and most**2 <= batch.spread
        return squares and batch.total <= self.records * most and (self.repeats > 0 or most <= batch.steps)


@dataclass(frozen=True, kw_only=True)
class LagProducts(Record):
    """The sum of products of steps ``lag`` apart, the most surprising lag; lag 0 of a run of one step."""

    lag: Count
    products: Real


@dataclass(frozen=True, kw_only=True)
class TwinProducts(Record):
    """The products of two runs with seeds of their own: of equal steps added up, and the largest of any two steps."""

    aligned: Real
    largest: Real


@dataclass(frozen=True, kw_only=True)
class NoiseSums(Record):
    """The Gaussian noise that the backend says it added, in units of the declared deviation.

    statistic, degrees: the sum of all its squares, and their number. products, pairs: the same of the products of
    successive steps. each: step by step. The rest is of the ``width`` coordinates that are kept: quietest, the least
    sum of squares of one; halves, products of one half of them with the other; pair, the most surprising product of two
    steps; first, the first step's.
    """

    statistic: Amount
    degrees: Positive
    products: Real
    pairs: Count
    each: StepSums | None = None
    steps: Positive
    width: Positive
    quietest: Amount
    halves: Real
    lag: LagProducts
    pair: Real
    first: tuple[Real, ...]
    twin: TwinProducts | None = None

    def problem(self) -> str | None:
        """All numbers are of the same steps and parameters."""
        count, rest = divmod(self.degrees, self.steps)
        if rest or self.width > count:
            return f"degrees must be a multiple of {self.steps} steps and at least {self.width} of each"
        if self.pairs != count * (self.steps - 1):
            return f"pairs must be {count * (self.steps - 1)}, got {self.pairs}"
        if self.each is not None and (self.each.steps, self.each.count) != (self.steps, count):
            return f"each must be of {self.steps} steps and {count} parameters"
        if not min(1, self.steps // 2) <= self.lag.lag <= self.steps // 2:
            return f"lag.lag must be one of {self.steps} steps, got {self.lag.lag}"
        if len(self.first) != min(self.width, FIRST_COORDINATES):
            return f"first must have {min(self.width, FIRST_COORDINATES)} numbers, got {len(self.first)}"
        return None


@dataclass(frozen=True, kw_only=True)
class NormSums(Record):
    """The norms after clipping that the backend tells of.

    largest: in clip norms. missing: how many more records were drawn than have a norm. astray: at how many steps the
    numbers differ.
    """

    largest: Amount
    missing: Whole | None = None
    astray: Count | None = None
