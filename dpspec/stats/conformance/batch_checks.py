"""Evidence of the batches in the backend's log, and the checks of sampling."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from dpspec.contract import Phase
from dpspec.json_records import Amount, Count, Positive, Record, Row
from dpspec.stats.binomial import TruncatedSize
from dpspec.stats.conformance import epochs, measurement, sampling
from dpspec.stats.conformance.epochs import EpochSums, TogetherSums
from dpspec.stats.conformance.measurement import Abstention, Measurement, Outcome, exactly, the_worst
from dpspec.stats.conformance.sampling import StepSums, single

#: Maximum number of records; no dataset has more.
MOST_RECORDS = 2**34


@dataclass(frozen=True)
class Common(Row):
    """Number of records in common with the batches ``lag`` steps before, and the number of records in those."""

    lag: Positive
    common: Count
    chances: Count

    def problem(self) -> str | None:
        return f"common must be at most {self.chances}, got {self.common}" if self.common > self.chances else None


@dataclass(frozen=True, kw_only=True)
class BatchSums(Record):
    """The batches of one phase.

    Attributes:
        spread: Sum over records of the squared numbers of inclusions. None if the phase was cut short.
        above: The same of the excess over their mean (``sampling.excess``). None if the phase was cut short.
        sizes: Sizes at single steps, if they are random.
        together: Batches of different epochs, if they are shuffled.
        early: Number of records drawn again before their epoch ended, if batches are shuffled.
        epochs: Epochs of random allocation.
    """

    steps: Count
    total: Count
    squares: Count
    spread: Count | None = None
    above: Amount | None = None
    sizes: StepSums | None = None
    overlaps: tuple[Common, ...] = ()
    together: TogetherSums | None = None
    early: Count | None = None
    epochs: EpochSums | None = None

    def problem(self) -> str | None:
        """Some integers are sizes with these sums."""
        if not (self.total <= self.squares <= self.total**2 <= self.squares * self.steps):
            return f"squares must fit {self.steps} sizes with the sum {self.total}, got {self.squares}"
        if self.sizes is not None and self.sizes.steps != self.steps:
            return f"sizes.steps must be {self.steps}, got {self.sizes.steps}"
        if self.early is not None and self.early > self.total:
            return f"early must be at most {self.total}, got {self.early}"
        if self.epochs is not None and self.epochs.whole > self.steps:
            return f"epochs.whole must be at most {self.steps}, got {self.epochs.whole}"
        return None

    def problem_of(self, records: int, *, repeats: bool) -> str | None:
        """The numbers are possible for ``records`` records; ``repeats``: some were drawn twice into one batch."""
        if not repeats and self.total > records * self.steps:
            return f"total must be at most {records} times the steps, got {self.total}"
        if not repeats and self.sizes is not None and self.sizes.most.value > records:
            return f"sizes.most must be at most {records}, got {self.sizes.most.value}"
        if self.above is not None and not (self.spread is not None and self.above <= self.spread):
            return f"above must be at most spread, got {self.above}"
        if self.spread is not None and not self.total**2 <= self.spread * records:
            return f"spread must fit {self.total} inclusions, got {self.spread}"
        if self.epochs is not None and self.epochs.astray > records * self.epochs.whole:
            return f"epochs.astray must be at most {records} an epoch"
        one = self.together.closest if self.together is not None else None
        if one is not None and (one.size + one.before - one.common > records or max(one.size, one.before) >= records):
            return f"together.closest must be of {records} records"
        return None


@dataclass(frozen=True, kw_only=True)
class SamplingSums(Record):
    """The reported batches of each phase, and the number of records drawn again into a batch that has them.

    ``records`` includes canaries.
    """

    records: Positive
    repeats: Count = 0
    batches: tuple[BatchSums, ...]

    def problem(self) -> str | None:
        if self.records > MOST_RECORDS:
            return f"records must be at most {MOST_RECORDS}, got {self.records}"
        found = [batch.problem_of(self.records, repeats=bool(self.repeats)) for batch in self.batches]
        return next((f"batches[{number}].{one}" for number, one in enumerate(found) if one is not None), None)


@dataclass(frozen=True)
class Drawn:
    """A phase and, for each run that reports some, the number of records and the batches."""

    phase: Phase
    batches: Sequence[tuple[int, BatchSums]]

    @property
    def random(self) -> bool:
        return all(0.0 < self.phase.rate(records) < 1.0 for records, _ in self.batches)

    def law(self, records: int) -> TruncatedSize:
        cap = self.phase.sampling.max_batch
        return TruncatedSize(records, self.phase.rate(records), records if cap is None else cap)

    def worst(self, test: Callable[[int, BatchSums], Measurement | None]) -> Measurement | None:
        """Return the worst of the tests of all runs; None if batches are not random."""
        found = (test(*one) for one in self.batches) if self.random else ()
        return the_worst([one for one in found if one is not None])


_CUT_SHORT = Abstention("the trials lack these counts: the run was cut short, or is of an earlier version")

_POISSON, _TRUNCATED, _FIXED, _FULL = "poisson", "truncated-poisson", "fixed", "full"
_SHUFFLE, _ALLOCATION = "shuffled", "random-allocation"

_sampling = partial(measurement.Row, assumption="sampling", observed="reported")


@partial(
    _sampling,
    compares="rate",
    evidence="number of inclusions",
    null="exact binomial, two-sided",
    detects="another rate at all steps",
    schemes=(_POISSON,),
)
def rate(drawn: Drawn) -> Outcome:
    chances = sum(records * batch.steps for records, batch in drawn.batches)
    included = min(chances, sum(batch.total for _, batch in drawn.batches))  # more only if records are drawn twice
    return sampling.inclusions(included, chances, drawn.phase.rate())


@partial(
    _sampling,
    compares="mean batch size",
    evidence="sum of the batch sizes",
    null="Chernoff under the truncated binomial, two-sided; exact if the rate is 1",
    detects="another mean size",
    schemes=(_TRUNCATED,),
)
def mean_size(drawn: Drawn) -> Outcome:
    if drawn.random:
        return drawn.worst(lambda records, batch: sampling.mean_size(batch.steps, batch.total, drawn.law(records)))
    sizes = [min(records, drawn.law(records).cap) for records, _ in drawn.batches]  # all records enter
    right = all(batch.total == size * batch.steps for size, (_, batch) in zip(sizes, drawn.batches, strict=True))
    first = drawn.batches[0][1]
    return exactly("mean batch size", right, sizes[0], first.total / first.steps)


@partial(
    _sampling,
    compares="batch size",
    evidence="sum of the batch sizes, and of their squares",
    null="exact",
    detects="any",
    schemes=(_FIXED, _FULL, _SHUFFLE),
)
def exact_sizes(drawn: Drawn) -> Outcome:
    expected = []
    for records, batch in drawn.batches:
        size = drawn.phase.sampling.batch_size or records
        shuffled = drawn.phase.sampling.is_shuffled
        sums = epochs.sizes_of(records, size, batch.steps) if shuffled else (size * batch.steps, size**2 * batch.steps)
        expected.append(sums)
    right = all((batch.total, batch.squares) == sums for (_, batch), sums in zip(drawn.batches, expected, strict=True))
    first = drawn.batches[0][1]
    return exactly("batch sizes", right, expected[0][0] / first.steps, first.total / first.steps)


@partial(
    _sampling,
    compares="rate at each step",
    evidence="batch size at each step",
    null="exact binomial or Chernoff, two-sided, Bonferroni over steps",
    detects="another rate at one step",
    schemes=(_POISSON, _TRUNCATED, _ALLOCATION),
)
def size_of_each_step(drawn: Drawn) -> Outcome:
    def one(records: int, batch: BatchSums) -> Measurement | None:
        truncated = drawn.phase.sampling.scheme == _TRUNCATED
        law = drawn.law(records) if truncated else sampling.BatchSize(records, drawn.phase.rate(records))
        return None if batch.sizes is None else single(batch.sizes, law)

    return drawn.worst(one)


@partial(
    _sampling,
    compares="variance of the batch size",
    evidence="sum of the squared batch sizes",
    null="Chernoff under the exact distribution, lower tail",
    detects="sizes that vary less, as of a data loader with batches of one size",
    schemes=(_POISSON, _TRUNCATED, _ALLOCATION),
)
def evenness(drawn: Drawn) -> Outcome:
    def one(records: int, batch: BatchSums) -> Measurement | None:
        if drawn.phase.sampling.scheme != _ALLOCATION:
            return sampling.evenness(batch.steps, batch.total, batch.squares, drawn.law(records))
        # Sizes of several batches per record and epoch vary less than multinomial ones.
        if batch.epochs is None or not batch.epochs.whole or drawn.phase.sampling.batches_per_epoch > 1:
            return None
        steps = int(drawn.phase["sampling"]["epoch_steps"])
        return epochs.evenness(batch.epochs.whole, batch.epochs.spread, records, steps)

    return drawn.worst(one)


@partial(
    _sampling,
    compares="inclusions per record",
    evidence="sum over records of squared numbers of inclusions",
    null="Chernoff: independent binomial numbers, or negatively associated ones (upper tail)",
    detects="numbers of inclusions that vary more or less",
    schemes=(_POISSON, _TRUNCATED, _FIXED),
)
def inclusions(drawn: Drawn) -> Outcome:
    def one(records: int, batch: BatchSums) -> Measurement | None:
        chance = drawn.phase.rate(records)
        if drawn.phase.sampling.scheme != _POISSON:
            return None if batch.above is None else sampling.record_excess(records, batch.above, batch.steps, chance)
        if batch.spread is None:
            return None
        return sampling.record_spread(records, batch.total, batch.spread, batch.steps, chance)

    found = drawn.worst(one)
    return _CUT_SHORT if found is None and drawn.random and drawn.phase.sampling.scheme != _POISSON else found


@partial(
    _sampling,
    compares="independence across steps",
    evidence="records in common with the batches 1, 2 and about one epoch before",
    null="a likelihood ratio against independence (Ville), Bonferroni over lags",
    detects="more or fewer records in common",
    schemes=(_POISSON, _TRUNCATED, _FIXED, _ALLOCATION),
)
def overlaps(drawn: Drawn) -> Outcome:
    if not drawn.random:
        return None
    least = drawn.phase.sampling.epoch_steps or 1  # batches of one epoch depend on each other
    fewer = drawn.phase.sampling.scheme != _TRUNCATED
    found = [
        sampling.overlap(one.lag, one.common, one.chances, drawn.phase.rate(records), fewer=fewer)
        for records, batch in drawn.batches
        for one in batch.overlaps
        if one.chances and one.lag >= least
    ]
    several = any(batch.steps > least for _, batch in drawn.batches)
    return the_worst(found) or (Abstention("few records were drawn") if several else None)


@partial(
    _sampling,
    compares="batches of each epoch",
    evidence="records outside of their declared number of batches of an epoch",
    null="exact",
    detects="any",
    schemes=(_SHUFFLE, _ALLOCATION),
)
def batches_of_each_epoch(drawn: Drawn) -> Outcome:
    if drawn.phase.sampling.is_shuffled:
        test = "records drawn again before their epoch ended"
        wrong = [batch.early for _, batch in drawn.batches if batch.early is not None]
    else:
        test = "records outside of their declared number of batches of an epoch"
        wrong = [one.epochs.astray for _, one in drawn.batches if one.epochs is not None and one.epochs.whole]
    return exactly(test, not any(wrong), 0, sum(wrong), None) if wrong else _CUT_SHORT


@partial(
    _sampling,
    compares="batches of different epochs",
    evidence="records in common of two batches of the last four epochs, the worst pair",
    null="hypergeometric, Bonferroni over pairs",
    detects="a batch that returns",
    schemes=(_SHUFFLE,),
)
def batches_of_different_epochs(drawn: Drawn) -> Outcome:
    def one(records: int, batch: BatchSums) -> Measurement | None:
        if batch.together is None or batch.together.closest is None:
            return None
        return epochs.closest(batch.together.closest, records, batch.together.pairs)

    return drawn.worst(one) or Abstention("no epoch came after another one")
