"""The log of the batches of a phase that a backend or a recording reports, its evidence, and the checks of sampling."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, floor

import numpy as np

from dpspec.contract import Phase
from dpspec.json_records import Amount, Count, Positive, Record, Row
from dpspec.sampling import scheme_of
from dpspec.stats.binomial import TruncatedSize
from dpspec.stats.conformance import epochs, measurement, sampling
from dpspec.stats.conformance.epochs import Array, EpochLog, EpochSums, TogetherSums
from dpspec.stats.conformance.measurement import Abstention, Measurement, Outcome, exactly, of_several, the_worst
from dpspec.stats.conformance.sampling import StepExtremes, each_step

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
    sizes: StepExtremes | None = None
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
        pair = self.together.closest if self.together is not None else None
        if pair is None or (pair.size + pair.before - pair.common <= records and max(pair.size, pair.before) < records):
            return None
        return f"together.closest must be of {records} records"


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
        for number, batch in enumerate(self.batches):
            if problem := batch.problem_of(self.records, repeats=bool(self.repeats)):
                return f"batches[{number}].{problem}"
        return None


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
        measurements = (test(*batch) for batch in self.batches) if self.random else ()
        return the_worst([measurement for measurement in measurements if measurement is not None])


_CUT_SHORT = Abstention("the trials lack these counts: the run was cut short, or is of an earlier version")

_sampling = partial(measurement.Row, assumption="sampling", observed="reported", of_batches=True)


@partial(
    _sampling,
    compares="rate",
    evidence="number of inclusions",
    null="exact binomial, two-sided",
    detects="another rate at all steps",
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
)
def exact_sizes(drawn: Drawn) -> Outcome:
    scheme = scheme_of(drawn.phase)
    expected = [scheme.exact_sizes(drawn.phase, records, batch.steps) for records, batch in drawn.batches]
    right = all((batch.total, batch.squares) == sums for (_, batch), sums in zip(drawn.batches, expected, strict=True))
    first = drawn.batches[0][1]
    return exactly("batch sizes", right, expected[0][0] / first.steps, first.total / first.steps)


@partial(
    _sampling,
    compares="rate at each step",
    evidence="batch size at each step, and the largest and the smallest one",
    null="exact binomial or Chernoff, two-sided, Bonferroni over steps",
    detects="another rate at one step, and Poisson samples that are cut or filled to a fixed size",
    limit_of="one-step",
)
def size_of_each_step(drawn: Drawn) -> Outcome:
    def batch_test(records: int, batch: BatchSums) -> Measurement | None:
        if batch.sizes is None:
            return None
        if drawn.phase.sampling.max_batch is not None:
            return each_step(batch.sizes, drawn.law(records))
        law = sampling.BatchSize(records, drawn.phase.rate(records))
        of_step = each_step(batch.sizes, law)
        is_independent = drawn.phase.sampling.epoch_steps is None
        ends = sampling.largest(batch.sizes, law), sampling.smallest(batch.sizes, law)
        return of_several([of_step, *ends]) if is_independent else of_step

    return drawn.worst(batch_test)


@partial(
    _sampling,
    compares="variance of the batch size",
    evidence="sum of the squared batch sizes",
    null="Chernoff under the exact distribution, two-sided",
    detects="sizes that vary less, as of a data loader with batches of one size, or more, as of records drawn together",
    limit_of="other-quantity",
)
def evenness(drawn: Drawn) -> Outcome:
    def batch_test(records: int, batch: BatchSums) -> Measurement | None:
        steps = drawn.phase.sampling.epoch_steps
        if steps is None:
            return sampling.evenness(batch.steps, batch.total, batch.squares, drawn.law(records))
        # Sizes of several batches per record and epoch vary less than multinomial ones.
        if batch.epochs is None or not batch.epochs.whole or drawn.phase.sampling.batches_per_epoch > 1:
            return None
        return epochs.evenness(batch.epochs.whole, batch.epochs.spread, records, steps)

    return drawn.worst(batch_test)


@partial(
    _sampling,
    compares="inclusions per record",
    evidence="sum over records of squared numbers of inclusions",
    null="Chernoff, upper tail",
    reason="independent binomial numbers, or negatively associated ones",
    detects="numbers of inclusions that vary more or less",
    limit_of="other-quantity",
)
def inclusions(drawn: Drawn) -> Outcome:
    def batch_test(records: int, batch: BatchSums) -> Measurement | None:
        chance = drawn.phase.rate(records)
        if not drawn.phase.sampling.is_independent:
            return None if batch.above is None else sampling.record_excess(records, batch.above, batch.steps, chance)
        if batch.spread is None:
            return None
        return sampling.record_spread(records, batch.total, batch.spread, batch.steps, chance)

    outcome = drawn.worst(batch_test)
    negatively_associated = not drawn.phase.sampling.is_independent
    return _CUT_SHORT if outcome is None and drawn.random and negatively_associated else outcome


@partial(
    _sampling,
    compares="independence across steps",
    evidence="records in common with the batches 1, 2 and about one epoch before",
    null="a likelihood ratio against independence (Ville), Bonferroni over lags",
    detects="more or fewer records in common",
    limit_of="other-quantity",
)
def overlaps(drawn: Drawn) -> Outcome:
    if not drawn.random:
        return None
    least = drawn.phase.sampling.epoch_steps or 1  # batches of one epoch depend on each other
    fewer = drawn.phase.sampling.max_batch is None
    measurements = [
        sampling.overlap(overlap.lag, overlap.common, overlap.chances, drawn.phase.rate(records), fewer=fewer)
        for records, batch in drawn.batches
        for overlap in batch.overlaps
        if overlap.chances and overlap.lag >= least
    ]
    several = any(batch.steps > least for _, batch in drawn.batches)
    return the_worst(measurements) or (Abstention("few records were drawn") if several else None)


@partial(
    _sampling,
    compares="batches of each epoch",
    evidence="records outside of their declared number of batches of an epoch",
    null="exact",
    detects="any",
)
def batches_of_each_epoch(drawn: Drawn) -> Outcome:
    if drawn.phase.sampling.epoch_steps is None:
        test = "records drawn again before their epoch ended"
        wrong = [batch.early for _, batch in drawn.batches if batch.early is not None]
    else:
        test = "records outside of their declared number of batches of an epoch"
        wrong = [batch.epochs.astray for _, batch in drawn.batches if batch.epochs is not None and batch.epochs.whole]
    return exactly(test, not any(wrong), 0, sum(wrong), None) if wrong else _CUT_SHORT


@partial(
    _sampling,
    compares="batches of different epochs",
    evidence="records in common of two batches of the last four epochs, the worst pair",
    null="hypergeometric, Bonferroni over pairs",
    detects="a batch that returns",
    limit_of="other-quantity",
)
def batches_of_different_epochs(drawn: Drawn) -> Outcome:
    def batch_test(records: int, batch: BatchSums) -> Measurement | None:
        if batch.together is None or batch.together.closest is None:
            return None
        return epochs.closest(batch.together.closest, records, batch.together.pairs)

    return drawn.worst(batch_test) or Abstention("no epoch came after another one")


#: Maximum total number of records in remembered batches, and of remembered batches; more distant ones are not compared.
_REMEMBERED, _FARTHEST = 2**24, 100_000

#: Attributes of a log that its state keeps.
_KEPT = ["_sizes", "_counts", "_in_epoch", "_overlaps", "repeats", "_astray", "_spread", "_above", "most_often"]

_NONE: Array = np.zeros(0, dtype=np.int32)


def compared_lags(phases: Sequence[Phase], records: int, further: Collection[int] = ()) -> tuple[int, ...]:
    """Lags at which batches of a data loader exclude or repeat each other: within an epoch, and one epoch apart."""
    tried = {1, 2}
    for phase in phases:
        if 0.0 < (rate := phase.rate(records)) < 1.0:
            tried |= {floor(1.0 / rate), ceil(1.0 / rate), phase.sampling.epoch_steps or 1}
    steps, batch = sum(phase.steps for phase in phases), max(phase.expected_batch(records) for phase in phases)
    most = min(steps - 1, _FARTHEST, _REMEMBERED / max(batch, 1.0))
    nearby = sorted(lag for lag in tried if lag <= most)[:8]
    return tuple(sorted({*nearby, *(lag for lag in further if 0 < lag <= most)}))


class BatchLog:
    """Counts of the batches of a phase, and of their records in common with the batches ``lags`` steps before.

    ``places``: the number of indices, if it is not the number of records. ``counted``: whether to count the inclusions
    of each record. ``earlier``: the remembered batches, which logs of several phases may share.

    Attributes:
        repeats: Number of records drawn twice in a batch.
        most_often: The maximum number of inclusions, once the log has ended and if they are counted.
    """

    def __init__(
        self,
        phase: Phase,
        records: int,
        lags: Sequence[int] = (),
        *,
        places: int | None = None,
        counted: bool = True,
        earlier: deque[Array] | None = None,
    ) -> None:
        self._phase, self._rate, self._places, self._lags = phase, phase.rate(records), places or records, lags
        self._random = 0.0 < self._rate < 1.0
        self._earlier: deque[Array] = deque(maxlen=max(lags, default=1)) if earlier is None else earlier
        size, checks = phase.sampling.batch_size, scheme_of(phase).checks
        shuffled = "batches_of_different_epochs" in checks
        self._epochs = EpochLog(records, size) if shuffled and size is not None else None
        self._counted, self._counts, self._in_epoch = counted, _NONE, _NONE
        self._overlaps = np.zeros((len(lags), 2), dtype=np.int64)
        self._sizes: list[int] = []
        self.repeats = self._astray = 0
        self._spread: int | None = None
        self._above: float | None = None
        self.most_often: int | None = None

    @property
    def is_complete(self) -> bool:
        return len(self._sizes) == self._phase.steps

    def add(self, members: Array, *, lost: bool = False) -> None:
        """Count a batch. ``lost``: a later part may draw it again, so a random one is not compared."""
        if lost and self._random:
            return
        epoch_steps = self._phase.sampling.epoch_steps
        if not self._sizes:
            self._counts = np.zeros(self._places if self._counted else 0, dtype=np.int32)
            self._in_epoch = np.zeros(self._places if epoch_steps else 0, dtype=np.int32)
        self._sizes.append(len(members))
        once = np.unique(members)
        self.repeats += len(members) - len(once)
        for counts, lag in zip(self._overlaps, self._lags, strict=True):
            if self._random and lag <= len(self._earlier):
                earlier = self._earlier[-lag]
                positions = np.minimum(np.searchsorted(once, earlier), max(0, len(once) - 1))
                counts += (int((once[positions] == earlier).sum()) if len(once) else 0, len(earlier))
        self._earlier.append(once)
        if self._epochs is not None:
            self._epochs.add(once)
        if self._counted:
            np.add.at(self._counts, members, 1)
        if epoch_steps:
            np.add.at(self._in_epoch, members, 1)
            if len(self._sizes) % epoch_steps == 0:
                self._astray += int((self._in_epoch != self._phase.sampling.batches_per_epoch).sum())
                self._in_epoch[:] = 0
        if self.is_complete:
            self.end()

    def end(self) -> None:
        """Sum up the numbers of inclusions, and forget them."""
        if self._counted and self._spread is None:
            counts = self._counts if self._sizes else np.zeros(self._places, dtype=np.int32)
            self._spread = int((counts.astype(np.int64) ** 2).sum())
            self._above = sampling.excess(counts, len(self._sizes) * self._rate)
            self.most_often = int(counts.max(initial=0))
            self._counts = _NONE

    def sums(self) -> BatchSums:
        sizes = np.array(self._sizes, dtype=np.int64)
        overlaps = zip(self._lags, self._overlaps.tolist(), strict=True)
        allocated = None
        if epoch_steps := self._phase.sampling.epoch_steps:
            whole, mean = len(sizes) // epoch_steps, self._places * self._phase.sampling.batches_per_epoch / epoch_steps
            spread = float(np.square(sizes[: whole * epoch_steps] - mean).sum())
            allocated = EpochSums(whole=whole, astray=self._astray, spread=spread)
        sized = len(sizes) and self._random and self._phase.sampling.batch_size is None
        return BatchSums(
            steps=len(sizes),
            total=int(sizes.sum()),
            squares=int((sizes**2).sum()),
            spread=self._spread,
            above=self._above,
            sizes=sampling.summary(sizes) if sized else None,
            overlaps=tuple(Common(lag, *counts) for lag, counts in overlaps if counts[1]),
            together=None if self._epochs is None else self._epochs.sums(),
            early=None if self._epochs is None else self._epochs.early,
            epochs=allocated,
        )

    def state(self) -> dict[str, Array]:
        """Return what :meth:`restore` resumes from, without the remembered batches."""
        arrays = {name: np.array(value) for name in _KEPT if (value := getattr(self, name)) is not None}
        epochs = {} if self._epochs is None else self._epochs.state()
        return arrays | {f"epochs.{name}": array for name, array in epochs.items()}

    def restore(self, state: Mapping[str, Array]) -> None:
        for name in _KEPT:
            if name in state:
                array = state[name]
                setattr(self, name, array.tolist() if name == "_sizes" or array.ndim == 0 else array.copy())
        if self._epochs is not None:
            self._epochs.restore({name: state[f"epochs.{name}"] for name in self._epochs.state()})
