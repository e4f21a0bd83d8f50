"""The conformance checks of an executed DP-SGD run, in one table with a row per check.

If several trials show the same quantity, the smallest p-value counts, with a Bonferroni correction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dpspec.contract import Check, FrozenMap, Phase
from dpspec.contract.findings import Privacy
from dpspec.stats.conformance import batch_checks, run_checks
from dpspec.stats.conformance.batch_checks import Drawn
from dpspec.stats.conformance.evidence import RunEvidence, Runs
from dpspec.stats.conformance.measurement import Outcome, Row

#: All checks, in the order of results.
TABLE: tuple[Row, ...] = (
    run_checks.released_models,
    run_checks.reported_steps,
    run_checks.released_noise,
    run_checks.released_noise_of_each_step,
    run_checks.noise_of_parts,
    run_checks.update,
    run_checks.released_noise_at_lags,
    run_checks.noise_of_two_layers,
    run_checks.contribution,
    run_checks.reported_noise,
    run_checks.reported_noise_of_each_step,
    run_checks.repeated_noise_of_two_runs,
    run_checks.repeated_noise,
    batch_checks.rate,
    batch_checks.largest_batch,
    batch_checks.mean_size,
    batch_checks.exact_sizes,
    batch_checks.size_of_each_step,
    batch_checks.evenness,
    batch_checks.inclusions,
    batch_checks.overlaps,
    batch_checks.batches_of_each_epoch,
    batch_checks.batches_of_different_epochs,
    run_checks.repeated_records,
    run_checks.clipped_norms,
    run_checks.additive_update,
)


def checks(
    phases: Sequence[FrozenMap], evidence: Sequence[FrozenMap], *, privacy: Privacy = "data-dependent"
) -> Iterator[Check]:
    """Test the trials' evidence against the declared ``phases``, by all rows that have evidence.

    ``privacy`` applies to checks of evidence that depends on the rows. ``ValueError`` if evidence contradicts a phase.
    """
    read = Runs.read(phases, evidence)
    return of_runs(read.phases, read.runs, privacy=privacy)


def counted(phases: Sequence[FrozenMap], evidence: Sequence[FrozenMap]) -> Iterator[Check]:
    read = Runs.read(phases, evidence)
    return of_runs(read.phases, read.runs, [row for row in TABLE if row.assumption == "steps"])


def of_runs(
    phases: Sequence[Phase],
    runs: Sequence[RunEvidence],
    rows: Sequence[Row] = TABLE,
    *,
    privacy: Privacy = "data-dependent",
) -> Iterator[Check]:
    read = Runs(phases, runs)
    try:
        for row in rows:
            for note, found in _outcomes(row, read):
                if found is not None:
                    check = found.check(row.assumption, row.observed, note, row.null)
                    yield replace(check, privacy=privacy) if row.rows else check
    except ArithmeticError as error:  # each number is in range, but not their sums or products
        raise ValueError(f"evidence: its numbers cannot be computed with ({error})") from error


def _outcomes(row: Row, runs: Runs) -> Iterator[tuple[str, Outcome]]:
    """Yield the outcome with its note, or one for each phase with batches."""
    if not row.schemes:
        yield row.compares, row.test(runs)
        return
    logs = runs.of(lambda run: run.sampling_log)
    for number, phase in enumerate(runs.phases):
        batches = [(log.records, log.batches[number]) for log in logs if log.batches[number].steps]
        if batches and phase.sampling.scheme in row.schemes:
            where = f"{'users of ' if phase.sampling.of_users else ''}phase {number + 1}"
            yield f"{row.compares}, {where}", row.test(Drawn(phase, batches))
