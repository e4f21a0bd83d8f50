"""The conformance checks of an executed DP-SGD run, in one table with a row per check.

A row states the evidence that its test reads, the null distribution, and the deviation that it detects. If several
trials show the same quantity, the smallest p-value counts, with a Bonferroni correction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np

from dpspec.contract import Check, FrozenMap, Phase
from dpspec.contract.findings import Privacy
from dpspec.stats.conformance import canary_contributions, layer_noise, martingale, noise_tests, sampling
from dpspec.stats.conformance.epochs import closest, sizes_of
from dpspec.stats.conformance.epochs import evenness as evenness_of_epochs
from dpspec.stats.conformance.evidence import BatchSums, RunEvidence, StepSums, read_runs
from dpspec.stats.conformance.measurement import (
    LEVEL,
    POWER,
    Abstention,
    Measurement,
    Observed,
    exactly,
    of_several,
    the_worst,
)
from dpspec.stats.conformance.sampling import BatchSize
from dpspec.stats.conformance.step_tests import single
from dpspec.stats.truncated_binomial import TruncatedSize

#: Relative rounding error of norms of float32 gradients.
CLIP_TOLERANCE = 1e-4

_ROUNDING = Abstention("the rounding of the parameters hides what a step adds")
_SHUFFLED = Abstention("a shuffled batch depends on the epoch's other batches, so that residuals are not a martingale")
_CUT_SHORT = Abstention("the trials lack these counts: the run was cut short, or is of an earlier version")
_FEW = Abstention("few records were drawn")

T = TypeVar("T")
Outcome: TypeAlias = Measurement | Abstention | None


@dataclass(frozen=True)
class Runs:
    """The declared phases and the evidence of all trials."""

    phases: Sequence[Phase]
    runs: Sequence[RunEvidence]

    @property
    def steps(self) -> int:
        """Declared number of steps."""
        return sum(phase.steps for phase in self.phases)

    def of(self, part: Callable[[RunEvidence], T | None]) -> list[T]:
        """Return a part of the evidence of each run that has it."""
        return [found for found in map(part, self.runs) if found is not None]

    @property
    def dependent(self) -> bool:
        """Whether all noisy phases have shuffled batches."""
        noisy = [phase for phase in self.phases if phase.get("noise_multiplier") != 0.0]
        return bool(noisy) and all(phase.sampling.is_shuffled for phase in noisy)

    def drawn(self, number: int) -> Drawn | None:
        """Return the batches of a phase; None if no run reports any."""
        logs = self.of(lambda run: run.sampling_log)
        found = [(log.records, log.batches[number]) for log in logs if log.batches[number].steps]
        return Drawn(self.phases[number], found) if found else None


@dataclass(frozen=True)
class Drawn:
    """A phase and, for each run that reports some, the number of records and the batches."""

    phase: Phase
    batches: Sequence[tuple[int, BatchSums]]

    def rate(self, records: int) -> float:
        """Return the probability that a batch includes a record, before truncation."""
        return self.phase.rate(records)

    @property
    def random(self) -> bool:
        """Whether batches are a random part of the records."""
        return all(0.0 < self.rate(records) < 1.0 for records, _ in self.batches)

    def law(self, records: int) -> TruncatedSize:
        """Return the distribution of a random batch size."""
        cap = self.phase.sampling.max_batch
        return TruncatedSize(records, self.rate(records), records if cap is None else cap)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A check.

    Attributes:
        assumption: The tested assumption.
        observed: Whether the test uses released models, or reports of the backend.
        compares: Note of the check. A plan promises a check by assumption, ``observed`` and note.
        evidence: The evidence that the test reads, in words.
        null: The null distribution, in words.
        detects: The deviation that ``detectable`` states, in words.
        test: The test of all runs. None for tests of phases.
        of_phase: The test of a phase.
        schemes: Sampling schemes of the tested phases.
        rows: Whether the evidence depends on the rows.
    """

    assumption: str
    observed: Observed
    compares: str
    evidence: str
    null: str
    detects: str
    test: Callable[[Runs], Outcome] | None = None
    of_phase: Callable[[Drawn], Outcome] | None = None
    schemes: tuple[str, ...] = ()
    rows: bool = False

    def checks(self, runs: Runs, privacy: Privacy) -> Iterator[Check]:
        """Yield the check, or one for each phase."""
        if self.test is not None:
            yield from self._check(self.test(runs), self.compares, privacy)
        if self.of_phase is None:
            return
        for number, phase in enumerate(runs.phases):
            drawn = runs.drawn(number) if phase.sampling.scheme in self.schemes else None
            if drawn is not None:
                where = f"{'users of ' if phase.sampling.of_users else ''}phase {number + 1}"
                yield from self._check(self.of_phase(drawn), f"{self.compares}, {where}", privacy)

    def _check(self, found: Outcome, note: str, privacy: Privacy) -> Iterator[Check]:
        if found is not None:
            check = found.check(self.assumption, self.observed, note, self.null)
            yield replace(check, privacy=privacy) if self.rows else check


def checks(
    phases: Sequence[FrozenMap], evidence: Sequence[FrozenMap], *, privacy: Privacy = "data-dependent"
) -> Iterator[Check]:
    """Test the trials' evidence against ``phases``, by all rows that have evidence.

    Args:
        phases: The declared phases.
        evidence: The evidence of the trials.
        privacy: Privacy of checks of evidence that depends on the rows. Others are public.

    Raises:
        ValueError: With the trial and the place, if evidence contradicts these phases.
    """
    typed = [Phase.of(phase) for phase in phases]
    return of_runs(typed, read_runs(typed, evidence), privacy=privacy)


def counted(phases: Sequence[FrozenMap], evidence: Sequence[FrozenMap]) -> Iterator[Check]:
    """Test only the number of steps; see :func:`checks`."""
    typed = [Phase.of(phase) for phase in phases]
    runs = Runs(typed, read_runs(typed, evidence))
    return (check for row in TABLE if row.assumption == "steps" for check in row.checks(runs, "public"))


def of_runs(
    phases: Sequence[Phase], runs: Sequence[RunEvidence], *, privacy: Privacy = "data-dependent"
) -> Iterator[Check]:
    """Test runs; see :func:`checks`."""
    read = Runs(phases, runs)
    try:
        for row in TABLE:
            yield from row.checks(read, privacy)
    except ArithmeticError as error:  # each number is in range, but not their sums or products
        raise ValueError(f"evidence: its numbers cannot be computed with ({error})") from error


def _released_models(runs: Runs) -> Outcome:
    # A run with logs but without released models has released none, if other runs have.
    counts = [run.steps for run in runs.runs if run.steps is not None or run.told is not None]
    states = runs.of(lambda run: run.states)
    if all(count is None for count in counts):
        return None
    count = _unusual(counts, runs.steps)
    still = sum(one.still for one in states) if not any(one.blind for one in states) else 0
    apart = sum(one.apart for one in states)
    test = "released models"
    if count == runs.steps and apart:
        test = "released models, the last is not the trained one"
    elif count == runs.steps and still:
        test = "released models, some equal their predecessor"
    right = count == runs.steps and not still and not apart
    return exactly(test, right, runs.steps, count if count != runs.steps else count - still - apart)


def _reported_steps(runs: Runs) -> Outcome:
    reported = runs.of(lambda run: run.told)
    found = {
        log: _unusual([getattr(one, name) for one in reported], runs.steps)
        for log, name in (("batches", "batches"), ("noise vectors", "noise"), ("clipped norms", "norms"))
        if any(getattr(one, name) is not None for one in reported)
    }
    if not found:
        return None
    log = next((log for log, count in found.items() if count != runs.steps), None)
    test = "steps in the logs" if log is None else f"steps in the logs, {log}"
    return exactly(test, log is None, runs.steps, runs.steps if log is None else found[log])


def _unusual(counts: Sequence[int | None], declared: int) -> int:
    """Return the smallest count that differs from the declared one, else the declared one. None counts as 0."""
    return next((count for count in sorted({count or 0 for count in counts}) if count != declared), declared)


def _outside_noise(runs: Runs) -> Outcome:
    found = runs.of(lambda run: run.noise)
    degrees = sum(run.degrees for run in found)
    if degrees:
        return noise_tests.lower_tail(sum(run.statistic for run in found), 1.0, degrees)
    return _ROUNDING if any(run.hidden for run in found) else None


def _outside_noise_each(runs: Runs) -> Outcome:
    found = runs.of(lambda run: run.noise)
    outcome = _noise_each([run.each for run in found if run.each is not None], both=False)
    return _ROUNDING if outcome is None and any(run.hidden for run in found) else outcome


def _noise_each(each: Sequence[StepSums], *, both: bool) -> Outcome:
    return the_worst([single(sums, noise_tests.StepNoise(int(sums.count or 1), both)) for sums in each])


def _parts(runs: Runs) -> Outcome:
    residuals = runs.of(lambda run: run.measured)
    found = [(run.everywhere, run.steps_seen) for run in residuals if run.everywhere is not None]
    if not found:
        return _ROUNDING if any(run.hidden for run in residuals) else None
    tests = []
    layers = [run.layers for run, _ in found if run.layers]
    if layers:
        parts = {
            name: (sum(one[name].total for one in layers), sum(one[name].degrees for one in layers))
            for name in layers[0]
        }
        name, quiet = noise_tests.quietest(parts)
        tests.append(replace(quiet, test=f"{quiet.test}, {name}"))
    coordinates = [(run.coordinates, steps) for run, steps in found]
    least = the_worst([noise_tests.least_coordinate(one.least, steps, one.count) for one, steps in coordinates])
    return of_several([*tests, *([least] if least is not None else [])])


def _update(runs: Runs) -> Outcome:
    residuals = runs.of(lambda run: run.measured)
    found = [run.directions for run in residuals if run.directions is not None]
    if not found:
        return _without_directions(runs)
    return martingale.drift(
        _less(sum(run.drift.total for run in found), sum(run.rounding for run in found)),
        sum(run.variance for run in found),
        sum(run.least for run in found),
        sum(run.drift.unit for run in found),
        test="residuals along the expected update, Freedman",
        declared=1.0,
    )


def _lags(runs: Runs) -> Outcome:
    found = runs.of(lambda run: run.measured)
    several = [(run.directions, run.steps) for run in found if run.directions is not None and run.directions.lag.lag]
    if not several:
        more = any(run.hidden + run.steps > 1 for run in found if run.hidden)
        return _without_directions(runs) if runs.dependent or more else None
    measured = [
        martingale.drift(
            _less(run.lag.total, run.rounding),
            run.variance,
            run.least,
            run.lag.unit,
            test="residuals of steps at the worst lag, Freedman",
            tried=max(1, noise_tests.tested_lags(steps)),
        )
        for run, steps in several
    ]
    return the_worst([replace(one, detectable=_correlation(one.detectable)) for one in measured])


def _without_directions(runs: Runs) -> Outcome:
    found = runs.of(lambda run: run.measured)
    if any(run.hidden for run in found):
        return _ROUNDING
    return _SHUFFLED if found and runs.dependent else None


def _less(total: float, rounding: float) -> float:
    return float(np.sign(total)) * max(0.0, abs(total) - rounding)


def _correlation(detectable: float | None) -> float | None:
    """Return a detectable correlation; None above 1."""
    return detectable if detectable is not None and detectable <= 1.0 else None


def _layers(runs: Runs) -> Outcome:
    found = runs.of(lambda run: run.measured)
    measured = [
        Measurement(
            test=f"{layer_noise.TEST}, {' and '.join(kept.squares)}",
            declared=0.0,
            measured=kept.product / kept.count,
            p_value=layer_noise.p_value(kept.shared, kept.pairs),
            detectable=layer_noise.least_seen(kept.count, kept.pairs, LEVEL, POWER),
        )
        for kept in (run.shared for run in found)
        if kept is not None
    ]
    if not measured and any(run.hidden for run in found) and all(run.everywhere is None for run in found):
        return _ROUNDING
    return the_worst(measured)


def _contribution(runs: Runs) -> Outcome:
    return canary_contributions.test(runs.of(lambda run: run.signal))


def _noise(runs: Runs) -> Outcome:
    logs = runs.of(lambda run: run.noise_log)
    if not logs:
        return None
    return noise_tests.two_sided(sum(log.statistic for log in logs), 1.0, sum(log.degrees for log in logs))


def _noise_each_reported(runs: Runs) -> Outcome:
    return _noise_each([log.each for log in runs.of(lambda run: run.noise_log) if log.each is not None], both=True)


def _repeated_noise(runs: Runs, *, second: bool) -> Outcome:
    """Test for repeated noise, if there is a second run exactly if ``second``: a plan promises one of both rows."""
    logs = runs.of(lambda run: run.noise_log)
    if any(log.twin is not None for log in logs) != second:
        return None
    several = [log for log in logs if log.lag.lag]
    lags = [
        noise_tests.correlation(
            log.lag.products,
            (log.steps - log.lag.lag) * log.width,
            log.steps * log.width,
            noise_tests.tested_lags(log.steps),
            f"correlation of steps at a lag, {log.lag.lag}",
        )
        for log in several
    ]
    pairs = [_pair(log.pair, log.width, log.steps * (log.steps - 1) // 2, "two steps") for log in several]
    other = [_pair(log.twin.largest, log.width, log.steps**2, "two runs") for log in logs if log.twin is not None]
    return of_several([one for one in map(the_worst, (lags, pairs, other)) if one is not None])


def _pair(product: float, width: int, tried: int, of: str) -> Measurement:
    return noise_tests.correlation(product, width, 2 * width, max(1, tried), f"largest correlation of {of}")


def _rate(drawn: Drawn) -> Outcome:
    chances = sum(records * batch.steps for records, batch in drawn.batches)
    included = min(chances, sum(batch.total for _, batch in drawn.batches))  # more only if records are drawn twice
    return sampling.inclusions(included, chances, drawn.phase.rate())


def _exact_sizes(drawn: Drawn) -> Outcome:
    if drawn.phase.sampling.is_shuffled:
        size = int(drawn.phase["sampling"]["batch_size"])
        expected = [sizes_of(records, size, batch.steps) for records, batch in drawn.batches]
    else:
        sizes = [drawn.phase.sampling.batch_size or records for records, _ in drawn.batches]
        steps = [batch.steps for _, batch in drawn.batches]
        expected = [(size * n, size * size * n) for size, n in zip(sizes, steps, strict=True)]
    right = all((batch.total, batch.squares) == sums for (_, batch), sums in zip(drawn.batches, expected, strict=True))
    first = drawn.batches[0][1]
    return exactly("batch sizes", right, expected[0][0] / first.steps, first.total / first.steps)


def _cap(drawn: Drawn) -> Outcome:
    seen = [int(batch.sizes.most.value) for _, batch in drawn.batches if batch.sizes is not None]
    cap = int(drawn.phase["sampling"]["max_batch"])
    return exactly("largest batch", max(seen) <= cap, cap, max(seen), None) if seen else None


def _mean_size(drawn: Drawn) -> Outcome:
    if not drawn.random:
        return Abstention("a truncated batch of all records is not a sample")
    return the_worst(
        [sampling.mean_size(batch.steps, batch.total, drawn.law(records)) for records, batch in drawn.batches]
    )


def _each_size(drawn: Drawn) -> Outcome:
    if not drawn.random:
        return None
    truncated = drawn.phase.sampling.scheme == "truncated-poisson"
    return the_worst(
        [
            single(batch.sizes, drawn.law(records) if truncated else BatchSize(records, drawn.rate(records)))
            for records, batch in drawn.batches
            if batch.sizes is not None
        ]
    )


def _evenness(drawn: Drawn) -> Outcome:
    if not drawn.random:
        return None
    if drawn.phase.sampling.scheme == "random-allocation":
        steps = int(drawn.phase["sampling"]["epoch_steps"])
        told = [(records, batch.epochs) for records, batch in drawn.batches if batch.epochs is not None]
        # Sizes of several batches per record and epoch vary less than multinomial ones.
        if drawn.phase.sampling.batches_per_epoch > 1:
            return None
        return the_worst(
            [evenness_of_epochs(one.whole, one.spread, records, steps) for records, one in told if one.whole]
        )
    return the_worst(
        [
            sampling.evenness(batch.steps, batch.total, batch.squares, drawn.law(records))
            for records, batch in drawn.batches
        ]
    )


def _inclusions(drawn: Drawn) -> Outcome:
    if not drawn.random:
        return None
    if drawn.phase.sampling.scheme == "poisson":
        return the_worst(
            [
                sampling.record_spread(records, batch.total, batch.spread, batch.steps, drawn.rate(records))
                for records, batch in drawn.batches
                if batch.spread is not None
            ]
        )
    counts = [
        sampling.record_excess(records, batch.above, batch.steps, drawn.rate(records))
        for records, batch in drawn.batches
        if batch.above is not None
    ]
    return the_worst(counts) or _CUT_SHORT


def _overlaps(drawn: Drawn) -> Outcome:
    if not drawn.random:
        return None
    least = drawn.phase.sampling.epoch_steps or 1  # batches of one epoch depend on each other
    fewer = drawn.phase.sampling.scheme != "truncated-poisson"
    found = [
        sampling.overlap(one.lag, one.common, one.chances, drawn.rate(records), fewer=fewer)
        for records, batch in drawn.batches
        for one in batch.overlaps
        if one.chances and one.lag >= least
    ]
    if found:
        return the_worst(found)
    return _FEW if any(batch.steps > least for _, batch in drawn.batches) else None


def _in_each_epoch(drawn: Drawn) -> Outcome:
    if drawn.phase.sampling.is_shuffled:
        early = [batch.early for _, batch in drawn.batches if batch.early is not None]
        test = "records drawn again before their epoch ended"
        return exactly(test, not any(early), 0, sum(early), None) if early else _CUT_SHORT
    told = [batch.epochs for _, batch in drawn.batches if batch.epochs is not None and batch.epochs.whole]
    astray = sum(sums.astray for sums in told)
    test = "records outside of their declared number of batches of an epoch"
    return exactly(test, astray == 0, 0, astray, None) if told else _CUT_SHORT


def _orders(drawn: Drawn) -> Outcome:
    told = [(records, batch.together) for records, batch in drawn.batches if batch.together is not None]
    found = [
        closest(one.common, one.size, one.before, records, sums.pairs, one.lag)
        for records, sums in told
        if (one := sums.closest) is not None
    ]
    return the_worst(found) or Abstention("no epoch came after another one")


def _repeats(runs: Runs) -> Outcome:
    logs = runs.of(lambda run: run.sampling_log)
    repeated = sum(log.repeats for log in logs)
    return exactly("records drawn twice into one batch", repeated == 0, 0, repeated, None) if logs else None


def _norms(runs: Runs) -> Outcome:
    logs = runs.of(lambda run: run.norm_log)
    if not logs:
        return None
    missing = next((log.missing for log in logs if log.missing), 0)
    astray = sum(log.astray or 0 for log in logs)
    largest = max(log.largest for log in logs)
    if largest <= 1.0 + CLIP_TOLERANCE and missing:
        return exactly("drawn records without a clipped norm", False, 0, missing)
    if largest <= 1.0 + CLIP_TOLERANCE and astray:
        return exactly("steps with more or fewer clipped norms than drawn records", False, 0, astray)
    p_value = 1.0 if largest <= 1.0 + CLIP_TOLERANCE else 0.0
    return Measurement(
        test="largest clipped norm", declared=1.0, measured=largest, p_value=p_value, detectable=CLIP_TOLERANCE
    )


#: Tolerance of sums of two updates in float32, relative to their norms.
_SUMS = 1e-3

#: Factor on the change of an update by another order of its records.
_AS_RANDOM = 10.0

#: Maximum rounding error of a tested step.
_BEARABLE = 1e-2


def _constants(runs: Runs) -> Outcome:
    """Compare the updates of two datasets with the update of both."""
    found: list[Outcome] = []
    for step in runs.of(lambda run: run.replayed):
        room = _SUMS + step.rounding + _AS_RANDOM * step.random
        if step.random > _SUMS + 2.0 * step.rounding:
            found.append(Abstention("a step without noise is not always the same"))
        elif step.rounding > _BEARABLE:
            found.append(_ROUNDING)
        else:
            test = "one step on two datasets and one on both"
            found.append(exactly(test, step.apart <= room, 0.0, step.apart, room))
    measured = [one for one in found if isinstance(one, Measurement)]
    return min(measured, key=lambda one: one.p_value) if measured else next(iter(found), None)


_released = partial(Row, observed="measured", rows=True)
_reported = partial(Row, observed="reported")
_POISSON, _TRUNCATED, _FIXED, _FULL = "poisson", "truncated-poisson", "fixed", "full"
_SHUFFLE, _ALLOCATION = "shuffled", "random-allocation"
_EXACT = "exact"

#: All checks. The first column of the documentation is ``assumption``, the last ``detects``.
TABLE: tuple[Row, ...] = (
    Row(
        assumption="steps",
        observed="measured",
        compares="released models",
        evidence="number of released models; models equal to their predecessor; whether the last is the trained one",
        null=_EXACT,
        detects="any",
        test=_released_models,
    ),
    _reported(
        assumption="steps",
        compares="steps in the logs",
        evidence="numbers of batches, noise vectors and clipped norms",
        null=_EXACT,
        detects="any",
        test=_reported_steps,
    ),
    _released(
        assumption="noise-scale",
        compares="relative to the declared scale, from released models",
        evidence="squared residuals in directions that no canary uses, over all steps",
        null="chi-square, lower tail: everything else in a residual only adds to it",
        detects="less noise at all steps",
        test=_outside_noise,
    ),
    _released(
        assumption="noise-scale",
        compares="at each step",
        evidence="the same at each step",
        null="chi-square, lower tail, Bonferroni over steps",
        detects="less noise at one step",
        test=_outside_noise_each,
    ),
    _released(
        assumption="per-layer-noise",
        compares="in each layer and each parameter",
        evidence="squared residuals of each layer, and of the quietest parameter, over all steps",
        null="chi-square, lower tail, Bonferroni over layers and parameters",
        detects="less noise in one layer and in one parameter, the larger limit",
        test=_parts,
    ),
    _released(
        assumption="update",
        compares="relative to rate * sum of clipped gradients",
        evidence="residuals along the expected update",
        null="Freedman: a martingale of known conditional variance",
        detects="a longer or shorter mean update",
        test=_update,
    ),
    _released(
        assumption="independent-noise",
        compares="at every lag",
        evidence="residuals along earlier residuals, at the worst lag",
        null="Freedman, Bonferroni over lags",
        detects="a correlation of all steps at one lag",
        test=_lags,
    ),
    _released(
        assumption="independent-noise",
        compares="between any two layers",
        evidence="products of the residuals of the eight largest layers",
        null="Ville, Bonferroni over pairs of layers",
        detects="a correlation of two layers",
        test=_layers,
    ),
    _released(
        assumption="sensitivity",
        compares="of an inserted canary, relative to rate * clip norm",
        evidence="projections on the directions of inserted and of absent canary groups",
        null="the larger of Welch's t over groups and Student's t over steps",
        detects="a larger or smaller contribution",
        test=_contribution,
    ),
    _reported(
        assumption="noise-scale",
        compares="relative to the declared scale",
        evidence="squared noise, over all steps",
        null="chi-square, two-sided",
        detects="more or less noise at all steps",
        test=_noise,
    ),
    _reported(
        assumption="noise-scale",
        compares="at each step",
        evidence="squared noise at each step",
        null="chi-square, two-sided, Bonferroni over steps",
        detects="more or less noise at one step",
        test=_noise_each_reported,
    ),
    _reported(
        assumption="independent-noise",
        compares="at every lag, of every two steps, and of two runs",
        evidence="products of the noise of different steps, and with the noise of a run with another seed",
        null="normal or Chernoff, Bonferroni over lags and pairs",
        detects="a correlation of all steps at one lag, and of two steps, the larger limit",
        test=partial(_repeated_noise, second=True),
    ),
    _reported(
        assumption="independent-noise",
        compares="at every lag and of every two steps",
        evidence="products of the noise of different steps, without a second run",
        null="normal or Chernoff, Bonferroni over lags and pairs",
        detects="a correlation of all steps at one lag, and of two steps, the larger limit",
        test=partial(_repeated_noise, second=False),
    ),
    _reported(
        assumption="sampling",
        compares="rate",
        evidence="number of inclusions",
        null="exact binomial, two-sided",
        detects="another rate at all steps",
        of_phase=_rate,
        schemes=(_POISSON,),
    ),
    _reported(
        assumption="sampling",
        compares="cap",
        evidence="largest batch",
        null=_EXACT,
        detects="any",
        of_phase=_cap,
        schemes=(_TRUNCATED,),
    ),
    _reported(
        assumption="sampling",
        compares="mean batch size",
        evidence="sum of the batch sizes",
        null="Chernoff under the truncated binomial, two-sided",
        detects="another mean size",
        of_phase=_mean_size,
        schemes=(_TRUNCATED,),
    ),
    _reported(
        assumption="sampling",
        compares="batch size",
        evidence="sum of the batch sizes, and of their squares",
        null=_EXACT,
        detects="any",
        of_phase=_exact_sizes,
        schemes=(_FIXED, _FULL, _SHUFFLE),
    ),
    _reported(
        assumption="sampling",
        compares="rate at each step",
        evidence="batch size at each step",
        null="exact binomial or Chernoff, two-sided, Bonferroni over steps",
        detects="another rate at one step",
        of_phase=_each_size,
        schemes=(_POISSON, _TRUNCATED, _ALLOCATION),
    ),
    _reported(
        assumption="sampling",
        compares="variance of the batch size",
        evidence="sum of the squared batch sizes",
        null="Chernoff under the exact distribution, lower tail",
        detects="sizes that vary less, as of a data loader with batches of one size",
        of_phase=_evenness,
        schemes=(_POISSON, _TRUNCATED, _ALLOCATION),
    ),
    _reported(
        assumption="sampling",
        compares="inclusions per record",
        evidence="sum over records of squared numbers of inclusions",
        null="Chernoff: independent binomial numbers, or negatively associated ones (upper tail)",
        detects="numbers of inclusions that vary more or less",
        of_phase=_inclusions,
        schemes=(_POISSON, _TRUNCATED, _FIXED),
    ),
    _reported(
        assumption="sampling",
        compares="independence across steps",
        evidence="records in common with the batches 1, 2 and about one epoch before",
        null="a likelihood ratio against independence (Ville), Bonferroni over lags",
        detects="more or fewer records in common",
        of_phase=_overlaps,
        schemes=(_POISSON, _TRUNCATED, _FIXED, _ALLOCATION),
    ),
    _reported(
        assumption="sampling",
        compares="batches of each epoch",
        evidence="records outside of their declared number of batches of an epoch",
        null=_EXACT,
        detects="any",
        of_phase=_in_each_epoch,
        schemes=(_SHUFFLE, _ALLOCATION),
    ),
    _reported(
        assumption="sampling",
        compares="batches of different epochs",
        evidence="records in common of two batches of the last four epochs, the worst pair",
        null="hypergeometric, Bonferroni over pairs",
        detects="a batch that returns",
        of_phase=_orders,
        schemes=(_SHUFFLE,),
    ),
    _reported(
        assumption="sampling",
        compares="records drawn twice",
        evidence="records drawn twice into one batch",
        null=_EXACT,
        detects="any",
        test=_repeats,
    ),
    _reported(
        assumption="clipping",
        compares="clipped norms",
        evidence="largest clipped norm; numbers of norms and of drawn records at each step",
        null=_EXACT,
        detects="a longer norm, or a record without a norm",
        test=_norms,
        rows=True,
    ),
    _released(
        assumption="data-independent-hyperparameters",
        compares="a record adds the same with all other records (divisor, clip norm, preparation)",
        evidence="updates without noise of two datasets and of both combined, by the first trial",
        null=_EXACT,
        detects="a contribution that depends on other records (divisor, clip norm, preparation)",
        test=_constants,
    ),
)
