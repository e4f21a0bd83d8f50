"""The checks of what a backend says it drew, scheme by scheme: one ``Check`` per property."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dpspec.contract import Check, Phase
from dpspec.stats.conformance import step_tests
from dpspec.stats.conformance.evidence.reported import BatchSums, SamplingSums, TogetherSums
from dpspec.stats.conformance.measurement import Measurement, abstaining, check, exact, worst
from dpspec.stats.conformance.sampling.allocations import most_stays, size_spread
from dpspec.stats.conformance.sampling.epochs import sizes_of
from dpspec.stats.conformance.sampling.joint import alike, closest
from dpspec.stats.conformance.sampling.overlaps import overlap, overlap_at_a_step
from dpspec.stats.conformance.sampling.records import most_inclusions, record_excess, record_spread
from dpspec.stats.conformance.sampling.sizes import BatchSize, batch_variance, inclusions, mean_size, size_variance
from dpspec.stats.truncated_binomial import TruncatedSize


def of_phase(phase: Phase, number: int, logs: Sequence[SamplingSums]) -> Iterator[Check]:
    """The batches of one phase: rate, sizes, inclusions per record, and independence across steps."""
    # A run that ended early is told of by its steps.
    drawn = [(log.records, log.batches[number]) for log in logs if log.batches[number].steps]
    if not drawn:
        return
    where = f"users of phase {number + 1}" if phase.sampling.of_users else f"phase {number + 1}"
    drawn_by: str = phase.sampling.scheme  # one that is not named here is none of these
    match drawn_by:
        case "poisson":
            yield from _poisson(drawn, phase.rate(), where)
        case "truncated-poisson":
            yield from _truncated_poisson(drawn, phase.rate(), int(phase["sampling"]["max_batch"]), where)
        case "fixed" | "full":
            yield from _exact_sizes(drawn, phase.sampling.batch_size, where)
        case "shuffled":
            yield from _shuffled(drawn, int(phase["sampling"]["batch_size"]), where)
        case "random-allocation":
            yield from _allocated(drawn, int(phase["sampling"]["epoch_steps"]), phase.sampling.batches_per_epoch, where)
        case scheme:
            yield abstaining("sampling", "batch sizes", "reported", where, f"no test is made of {scheme} batches")


def _poisson(drawn: Sequence[tuple[int, BatchSums]], rate: float, where: str) -> Iterator[Check]:
    chances = sum(records * batch.steps for records, batch in drawn)
    included = min(chances, sum(batch.total for _, batch in drawn))  # more only where records are drawn twice
    yield check("sampling", inclusions(included, chances, rate), "reported", f"rate, {where}")
    variances = [batch_variance(batch.steps, batch.total, batch.squares, records, rate) for records, batch in drawn]
    yield worst("sampling", variances, "reported", f"variance of the batch size, {where}")
    sizes = [(batch.sizes, BatchSize(records, rate)) for records, batch in drawn if batch.sizes is not None]
    if sizes:
        single = [step_tests.single(sums, law) for sums, law in sizes]
        yield worst("sampling", single, "reported", f"rate at each step, {where}")
    patterns = [step_tests.patterns(sums, law) for sums, law in sizes if sums.stretches is not None]
    if patterns:
        yield worst("sampling", patterns, "reported", f"rate in stretches and patterns of steps, {where}")
    spreads = [
        record_spread(records, batch.total, batch.spread, batch.steps, rate)
        for records, batch in drawn
        if batch.spread is not None
    ]
    if spreads:
        yield worst("sampling", spreads, "reported", f"inclusions per record, {where}")
    if 0.0 < rate < 1.0:
        yield _most(drawn, [rate] * len(drawn), where)
        yield from _together(drawn, where)
    yield from _overlaps([batch for _, batch in drawn], [rate] * len(drawn), where)


def _truncated_poisson(drawn: Sequence[tuple[int, BatchSums]], rate: float, cap: int, where: str) -> Iterator[Check]:
    """Poisson batches with a cap: no batch is larger, and sizes have the law that the cap leaves of a binomial one."""
    seen = [int(batch.sizes.most.value) for _, batch in drawn if batch.sizes is not None]
    if seen:
        largest = max(seen)
        yield exact("sampling", "largest batch", "reported", largest <= cap, cap, largest, f"cap, {where}", None)
    if not 0.0 < rate < 1.0:
        yield abstaining("sampling", "batch sizes", "reported", where, "a truncated batch of all records is no sample")
        return
    laws = [(batch, TruncatedSize(records, rate, cap)) for records, batch in drawn]
    means = [mean_size(batch.steps, batch.total, law) for batch, law in laws]
    yield worst("sampling", means, "reported", f"mean batch size, {where}")
    spreads = [size_variance(batch.steps, batch.total, batch.squares, law) for batch, law in laws]
    yield worst("sampling", spreads, "reported", f"variance of the batch size, {where}")
    sizes = [(batch.sizes, law) for batch, law in laws if batch.sizes is not None]
    if sizes:
        yield worst("sampling", [step_tests.single(*one) for one in sizes], "reported", f"size at each step, {where}")
    patterns = [step_tests.patterns(sums, law) for sums, law in sizes if sums.stretches is not None]
    if patterns:
        yield worst("sampling", patterns, "reported", f"size in stretches and patterns of steps, {where}")
    yield _excess(drawn, [rate] * len(drawn), where)
    yield _most(drawn, [rate] * len(drawn), where)
    yield from _together(drawn, where)
    overlaps = [
        overlap(one.lag, one.common, one.chances, rate, fewer=False)
        for _, batch in drawn
        for one in batch.overlaps
        if one.chances
    ]
    several = any(batch.steps > 1 for _, batch in drawn)
    yield from _worst_overlap(overlaps, f"independence across steps, {where}", several)


def _exact_sizes(drawn: Sequence[tuple[int, BatchSums]], batch_size: int | None, where: str) -> Iterator[Check]:
    """Batches of a declared size, or of all records."""
    sizes = [records if batch_size is None else batch_size for records, _ in drawn]
    right = all(
        batch.total == size * batch.steps and batch.squares == size * size * batch.steps
        for (_, batch), size in zip(drawn, sizes, strict=True)
    )
    first = drawn[0][1]
    realised = first.total / first.steps
    yield exact("sampling", "batch sizes", "reported", right, sizes[0], realised, f"batch size, {where}")
    if batch_size is not None:
        rates = [batch_size / records for records, _ in drawn]
        if all(0.0 < rate < 1.0 for rate in rates):
            yield _excess(drawn, rates, where)
            yield _most(drawn, rates, where)
            yield from _together(drawn, where)
        yield from _overlaps([batch for _, batch in drawn], rates, where)


def _shuffled(drawn: Sequence[tuple[int, BatchSums]], batch_size: int, where: str) -> Iterator[Check]:
    """Batches of an epoch's order: their sizes, each record once an epoch, and every order a new one."""
    expected = [sizes_of(records, batch_size, batch.steps) for records, batch in drawn]
    right = all((batch.total, batch.squares) == sums for (_, batch), sums in zip(drawn, expected, strict=True))
    first = drawn[0][1]
    declared, realised = expected[0][0] / first.steps, first.total / first.steps
    yield exact("sampling", "batch sizes", "reported", right, declared, realised, f"batch size, {where}", None)
    early, note = [batch.early for _, batch in drawn if batch.early is not None], f"once an epoch, {where}"
    test = "records drawn again before their epoch ended"
    if early:
        yield exact("sampling", test, "reported", not any(early), 0, sum(early), note, None)
    else:
        yield abstaining("sampling", test, "reported", note, _UNTOLD)
    told = [(records, batch.together) for records, batch in drawn if batch.together is not None]
    yield _closest(told, f"batches of different epochs, {where}", "no epoch came after another one")


def _allocated(drawn: Sequence[tuple[int, BatchSums]], epoch_steps: int, times: int, where: str) -> Iterator[Check]:
    """Every record in so many batches of each epoch, at random; what batches of one epoch have in common is not looked
    at."""
    told = [(records, batch.epochs) for records, batch in drawn if batch.epochs is not None]
    note = f"once in every epoch, {where}" if times == 1 else f"{times} times in every epoch, {where}"
    if any(sums.whole for _, sums in told):
        batches = "one batch" if times == 1 else f"{times} batches"
        astray, test = sum(sums.astray for _, sums in told), f"records that were not in {batches} of an epoch"
        yield exact("sampling", test, "reported", astray == 0, 0, astray, note, None)
    else:
        yield abstaining("sampling", "records in each epoch", "reported", note, _UNTOLD)
    if epoch_steps == times:
        return
    rate = times / epoch_steps
    sizes = [(batch.sizes, BatchSize(records, rate)) for records, batch in drawn if batch.sizes is not None]
    if sizes:
        single = [step_tests.single(sums, law) for sums, law in sizes]
        yield worst("sampling", single, "reported", f"rate at each step, {where}")
    spreads = [
        size_spread(sums.whole, sums.spread, records, epoch_steps, times) for records, sums in told if sums.whole
    ]
    if spreads:
        yield worst("sampling", spreads, "reported", f"sizes within epochs, {where}")
    if times == 1 and any(sums.whole > 1 for _, sums in told):  # of several steps the last is not uniform
        stays = [
            most_stays(records, sums.stays, sums.whole, epoch_steps)
            for records, sums in told
            if sums.whole > 1 and sums.stays is not None
        ]
        yield _worst_count(stays, "the record that kept its step most often", f"steps of single records, {where}")
    yield from _together(drawn, where)
    if any(batch.steps > epoch_steps for _, batch in drawn):
        earlier = [
            replace(
                batch,
                overlaps=tuple(one for one in batch.overlaps if one.lag >= epoch_steps),
                again=tuple(one for one in batch.again if one.lag >= epoch_steps),
            )
            for _, batch in drawn
        ]
        yield from _overlaps(earlier, [rate] * len(earlier), where)


#: Why a run does not tell how often its records were drawn.
_UNTOLD = "no trial tells of it: it was cut short, or is of an earlier version"

#: Why a batch is not compared with any other.
_ALONE = "hardly any record was drawn, or only once"


def _excess(drawn: Sequence[tuple[int, BatchSums]], rates: Sequence[float], where: str) -> Check:
    """Whether records are drawn more often than at their rates."""
    counts = [
        record_excess(records, batch.above, batch.steps, rate)
        for (records, batch), rate in zip(drawn, rates, strict=True)
        if batch.above is not None
    ]
    return _worst_count(counts, "excess of inclusions per record", f"inclusions per record, {where}")


def _most(drawn: Sequence[tuple[int, BatchSums]], rates: Sequence[float], where: str) -> Check:
    """Whether one record is."""
    counts = [
        most_inclusions(records, batch.most, batch.steps, rate)
        for (records, batch), rate in zip(drawn, rates, strict=True)
        if batch.most is not None
    ]
    return _worst_count(counts, "inclusions of the record drawn most often", f"the record drawn most often, {where}")


def _worst_count(counts: Sequence[Measurement], test: str, note: str) -> Check:
    if counts:
        return worst("sampling", counts, "reported", note)
    return abstaining("sampling", test, "reported", note, _UNTOLD)


def _together(drawn: Sequence[tuple[int, BatchSums]], where: str) -> Iterator[Check]:
    """Whether batches are uniformly random sets of their sizes, whatever was drawn before."""
    told = [(records, batch.together) for records, batch in drawn if batch.together is not None]
    reason = _ALONE if told else _UNTOLD
    note = f"batches against others of their size, {where}"
    found = [alike(sums.looked, sums.most, sums.least, sums.references) for _, sums in told if sums.looked]
    if found:
        yield worst("sampling", found, "reported", note)
    else:
        yield abstaining("sampling", "likeness to earlier batches", "reported", note, reason)
    yield _closest(told, f"any two batches, {where}", reason)


def _closest(told: Sequence[tuple[int, TogetherSums]], note: str, reason: str) -> Check:
    """The two batches that are most alike, or least."""
    pairs = [
        closest(one.common, one.size, one.before, records, sums.pairs, one.lag)
        for records, sums in told
        if (one := sums.closest) is not None
    ]
    if pairs:
        return worst("sampling", pairs, "reported", note)
    return abstaining("sampling", "records in common of two batches", "reported", note, reason)


def _overlaps(batches: Sequence[BatchSums], rates: Sequence[float], where: str) -> Iterator[Check]:
    random = [(batch, rate) for batch, rate in zip(batches, rates, strict=True) if 0.0 < rate < 1.0]
    several = any(batch.steps > 1 for batch, _ in random)
    steps = [
        overlap(one.lag, one.common, one.chances, rate)
        for batch, rate in random
        for one in batch.overlaps
        if one.chances
    ]
    yield from _worst_overlap(steps, f"independence across steps, {where}", several)
    single = [
        overlap_at_a_step(one.lag, one.common, one.chances, rate, one.tried)
        for batch, rate in random
        for one in batch.again
        if one.chances
    ]
    yield from _worst_overlap(single, f"independence at each step, {where}", several)


def _worst_overlap(measurements: Sequence[Measurement], note: str, drawn: bool) -> Iterator[Check]:
    if measurements:
        yield worst("sampling", measurements, "reported", note)
    elif drawn:
        test, reason = "records in common with earlier batches", "hardly any record was drawn"
        yield abstaining("sampling", test, "reported", note, reason)


def repeats(logs: Sequence[SamplingSums]) -> Iterator[Check]:
    """No record stands in a batch twice."""
    if logs:
        repeated = sum(log.repeats for log in logs)
        test = "records drawn twice into one batch"
        yield exact("sampling", test, "reported", repeated == 0, 0, repeated, detectable=None)
