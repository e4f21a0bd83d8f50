"""Tests of the table of conformance on a recording, as on the report of a backend, and their advice."""

from collections.abc import Iterator

import numpy as np

from dpspec.contract import Check
from dpspec.decimals import nearest
from dpspec.stats.conformance import batch_checks, run_checks, sampling, table
from dpspec.stats.conformance.measurement import Abstention, Measurement
from dpspec_recording.judge.recorded_run import RecordedRun, evidence
from dpspec_recording.observers.noise.noise import SHAPE
from dpspec_recording.observers.sampling.batches import OF_RATE
from dpspec_recording.outcomes.issue import Issue

#: The names of the test of all noise, and of the test of the rate, which a violated exact test of the batches explains.
SCALE, RATE = run_checks.reported_noise.name, batch_checks.rate.name

#: The name of the test that no clipped norm is above the clip norm.
_NORMS = run_checks.clipped_norms.name

_POISSON = "draw each record independently, as torch.rand(records) < rate does, or account for the actual batches."

#: Advice by the test's name, also of tests that have advice for one measured value only.
_ADVICE = {
    _NORMS: "Longer gradients lose more than the certified epsilon.",
    run_checks.MISSING_NORMS: "Clip the gradient of each drawn record by itself, not a sum or a mean over several, and "
    "report its norm, of an unusable record 0. Step with each reported batch. If no step uses the batches of loader=, "
    "such as a loader for validation, give dpspec.record the loader that the training iterates.",
    run_checks.FURTHER_NORMS: "Steps have more rows of gradients than drawn records: two or more backward passes, or "
    "several rows of a record (views, evaluations). Make one row per record, and one backward pass on the sum of its "
    "losses.",
    RATE: "Records are drawn at another rate than declared: account for the executed rate, if each record is drawn "
    "independently of others and of earlier steps.",
    sampling.LARGEST_SIZE: "Batches are cut to a maximum size: a record that enters such a batch pushes another one "
    "out, and moves the sum by two clip norms. Use every drawn record, in physical batches if the memory is small, or "
    "account for truncated Poisson samples.",
    sampling.SMALLEST_SIZE: "Small batches are filled or drawn again, so that a record decides whether others enter: "
    "step with each drawn batch, unchanged.",
    run_checks.repeated_records.name: "A batch holds a record twice, which then moves the sum by up to two clip norms: "
    "draw each record at most once for a step, also if the step joins batches of several passes.",
}

#: Advice on batches of one size, to which small batches were not filled, and on an equal number of batches of each
#: record.
_FIXED_SIZE = f"All batches have the same size, as torch.randperm(records)[:size] draws them: {_POISSON}"
_EQUALLY_OFTEN = f"All records were drawn equally often, as from a shuffled epoch: {_POISSON}"
_OF_FIXED_SIZES = (batch_checks.evenness.name, sampling.SMALLEST_SIZE)

#: Tests whether batches are cut to a maximum size, or filled to a minimum one.
_ENDS = {sampling.LARGEST_SIZE: sampling.largest, sampling.SMALLEST_SIZE: sampling.smallest}

#: The smallest p-value of an end of the sizes at the executed rate that another declared rate explains.
_EXPLAINED = 1e-3

#: Tests that reject a step with the records of several batches and the gradients of one.
_OF_SKIPPED_BATCHES = (run_checks.repeated_records.name, run_checks.MISSING_NORMS)


def reported_checks(run: RecordedRun) -> Iterator[Issue]:
    """All tests of the table that the recording has evidence for."""
    for row, outcome, check in table.outcomes(run.phases, [evidence(run)]):
        name = row.name if isinstance(outcome, Abstention) else outcome.name or row.name
        is_exact = isinstance(outcome, Measurement) and outcome.is_exact
        yield Issue(
            condition=check.assumption,
            level="deviates",
            text=check.test if isinstance(outcome, Abstention) else outcome.title,
            fix=_advice(name, check, run),
            test=check,
            explains=_explained(name, check.assumption, is_exact=is_exact),
            name=name,
            is_exact=is_exact,
            limit_of=row.limit_of,
        )


def _explained(name: str, condition: str, *, is_exact: bool) -> tuple[str, ...]:
    """The tests that a row's rejection explains."""
    if name == SCALE:
        return (SHAPE.name,)
    return OF_RATE if condition == "sampling" and is_exact else ()


def _advice(name: str, check: Check, run: RecordedRun) -> str:
    measured = check.measured
    if check.assumption == "sampling" and _is_one_unended_step(run):
        return ""  # of the steps with several updates
    if name in _OF_SKIPPED_BATCHES and _skips_batches(run):
        return ""  # of the steps with several drawn batches
    if name in _OF_FIXED_SIZES and run.steps > 1 and len(np.unique(run["drawn"])) == 1:
        return _FIXED_SIZE
    if name in _ENDS and _fits_executed_rate(name, run):
        return ""  # of the rate
    if name == batch_checks.inclusions.name and measured == 0:
        return _EQUALLY_OFTEN
    if name == SCALE and measured:
        return (
            f"All noise has {nearest(measured, digits=3)} times the declared standard deviation: check the noise "
            "multiplier, and that the clip norm multiplies it once."
        )
    return _ADVICE.get(name, "")


def _is_one_unended_step(run: RecordedRun) -> bool:
    """Whether a custom loop updates the parameters several times in its only step: it never calls run.stepped()."""
    return run.header.is_reported and run.steps == 1 and bool(run["updates"][0] > 1)


def _fits_executed_rate(name: str, run: RecordedRun) -> bool:
    """Whether an end of the batch sizes fits Poisson samples of the executed rate, as cut or filled ones do not."""
    reported = None if run.internal is None else run.internal.sampling
    if reported is None:
        return False
    fits = [_fits(name, batch, reported.records) for batch in reported.batches]
    return bool(fits) and all(fits)


def _fits(name: str, batch: batch_checks.BatchSums, records: int) -> bool:
    if batch.sizes is None:
        return False
    executed = sampling.BatchSize(records, min(1.0, batch.total / (records * batch.steps)))
    return _ENDS[name](batch.sizes, executed).p_value >= _EXPLAINED


def _skips_batches(run: RecordedRun) -> bool:
    """Whether steps follow batches that were drawn and skipped, as by continue.

    The sampler of such a step drew several batches, whose records have fewer gradients. All other steps have one batch
    and a gradient of each record, unlike steps on the batches of another loader.
    """
    several, single = run["batches"] > 1, run["batches"] == 1
    has_fewer = run["drawn"] > run["rows"]
    is_explained = np.where(has_fewer, several, single)
    return run.header.is_poisson and bool(several.any() and single.any() and is_explained.all())
