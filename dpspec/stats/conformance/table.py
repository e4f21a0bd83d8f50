"""The conformance checks of an executed DP-SGD run, in one table with a row per check, and the checks of a planned run.

If several trials show the same quantity, the smallest p-value counts, with a Bonferroni correction. Planned checks have
the detection limits of the tests of a run exactly as declared.

The smallest relative deviation of the noise that is found with 50 steps and 8 parameters, at all steps or at one:

>>> phase = FrozenMap({"steps": 50, "noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": {"scheme": "full"}})
>>> run = Run(phases=[phase], records=40, parameters=8, groups={}, capabilities={"noise-log"})
>>> for check in foresee(run):
...     if check.assumption == "noise-scale":
...         print(f"{check.test}: {check.detectable:.2f}")
chi-square: 0.28
chi-square at each step: 4.68
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import special

from dpspec.contract import Check, FrozenMap, Phase
from dpspec.contract.findings import Privacy
from dpspec.sampling import sampler_of, scheme_of
from dpspec.stats.binomial import TruncatedSize
from dpspec.stats.conformance import batch_checks, canary_contributions, epochs, run_checks
from dpspec.stats.conformance.batch_checks import BatchSums, Common, Drawn, SamplingSums
from dpspec.stats.conformance.canary_contributions import GroupSums, PlantedSums, StepTotals
from dpspec.stats.conformance.epochs import Closest, EpochSums, TogetherSums
from dpspec.stats.conformance.evidence import (
    CountSums,
    Directions,
    Drift,
    Everywhere,
    LagProducts,
    LagSum,
    LeastCoordinate,
    NoiseSums,
    NormSums,
    OutsideNoise,
    ReportedSteps,
    ResidualSums,
    RunEvidence,
    Runs,
    States,
    TwinProducts,
    adaptive_steps,
    kept_width,
    measured_steps,
)
from dpspec.stats.conformance.measurement import Abstention, Measurement, Outcome, Row
from dpspec.stats.conformance.sampling import (
    BatchSize,
    StepExtremes,
    StepValue,
    constant,
    summary,
    typical_largest,
    typical_smallest,
)

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
    run_checks.noise_of_counts,
    run_checks.noise_of_each_count,
    run_checks.repeated_noise_of_two_runs,
    run_checks.repeated_noise,
    batch_checks.rate,
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
    run_checks.clip_norms_by_counts,
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


def counted(
    phases: Sequence[FrozenMap], evidence: Sequence[FrozenMap]
) -> Iterator[tuple[Measurement | Abstention, Check]]:
    """The outcomes of the rows about the number of steps, with their checks."""
    read = Runs.read(phases, evidence)
    of_steps = outcomes(read.phases, read.runs, [row for row in TABLE if row.assumption == "steps"])
    return ((outcome, check) for _, outcome, check in of_steps)


def of_runs(
    phases: Sequence[Phase],
    runs: Sequence[RunEvidence],
    rows: Sequence[Row] = TABLE,
    *,
    privacy: Privacy = "data-dependent",
) -> Iterator[Check]:
    return (check for _, _, check in outcomes(phases, runs, rows, privacy=privacy))


def outcomes(
    phases: Sequence[Phase],
    runs: Sequence[RunEvidence],
    rows: Sequence[Row] = TABLE,
    *,
    privacy: Privacy = "data-dependent",
) -> Iterator[tuple[Row, Measurement | Abstention, Check]]:
    """Yield each outcome with its row and its check; a row can have one for each phase."""
    read = Runs(phases, runs)
    try:
        for row in rows:
            for note, outcome in _outcomes(row, read):
                if outcome is not None:
                    check = outcome.check(row.assumption, row.observed, note, row.null)
                    yield row, outcome, replace(check, privacy=privacy) if row.rows else check
    except ArithmeticError as error:  # each number is in range, but not their sums or products
        raise ValueError(f"evidence: its numbers cannot be computed with ({error})") from error


def _outcomes(row: Row, runs: Runs) -> Iterator[tuple[str, Outcome]]:
    """Yield the outcome with its note, or one for each phase with batches."""
    if not row.of_batches:
        yield row.compares, row.test(runs)
        return
    logs = runs.of(lambda run: run.sampling_log)
    for number, phase in enumerate(runs.phases):
        batches = [(log.records, log.batches[number]) for log in logs if log.batches[number].steps]
        if batches and row.name in scheme_of(phase).checks:
            where = f"{'users of ' if phase.sampling.of_users else ''}phase {number + 1}"
            yield f"{row.compares}, {where}", row.test(Drawn(phase, batches))


@dataclass(frozen=True, kw_only=True)
class Run:
    """Public facts of a planned run.

    Attributes:
        records: Number of real records, plus the mean number of inserted canaries.
        groups: Per group size, the number of groups of gradient canaries; empty for other canaries.
        twin: Whether each run has a second run with another seed.
        looks: Number of measured steps; None for all.
        undone: Whether updates can be inverted.
        estimated: Number of records that estimate the expected update.
        told: Whether the adversary knows the drawn real records.
    """

    phases: Sequence[FrozenMap]
    records: int
    parameters: int
    groups: Mapping[int, int]
    capabilities: Collection[str]
    trials: int = 1
    twin: bool = True
    looks: int | None = None
    undone: bool = True
    estimated: int | None = None
    told: bool = False


def foresee(run: Run) -> Iterator[Check]:
    """Yield the checks of a run with their detection limits; ``p_value`` is 1.

    Gradients are as long as the clip norm, the worst case.
    """
    runs = [as_declared(run)] * run.trials
    for _, outcome, check in outcomes([Phase.of(phase) for phase in run.phases], runs, privacy="public"):
        yield outcome.promise(check)


def as_declared(run: Run) -> RunEvidence:
    """Return the evidence of a run with all sums at their means."""
    phases = [Phase.of(phase) for phase in run.phases]
    total = sum(phase.steps for phase in phases)
    phase_parts = _parts(phases, run.records, measured_steps(total, run.looks))
    gaussian = all(phase.noise == "gaussian" for phase in phases)
    noisy = sum(part.phase.steps for part in phase_parts if part.noisy) if gaussian else 0
    noisy_seen = sum(part.seen for part in phase_parts if part.noisy) if gaussian else 0
    width = min(run.parameters, kept_width(total))
    iterates, batches, norms = (name in run.capabilities for name in ("iterates", "sampling-log", "norm-log"))
    residuals, missing = iterates and run.undone, 0 if batches else None
    noise_log, sampling_log, count_log = None, None, None
    if (counts := adaptive_steps(phases)) and "parts" in run.capabilities:
        of_steps = constant(1.0, counts, count=1)
        count_log = CountSums(counts=counts, unruled=0, statistic=float(counts), of_steps=of_steps)
    if batches:
        batch_sums = tuple(_batches(run.records, phase, total) for phase in phases)
        sampling_log = SamplingSums(records=run.records, batches=batch_sums)
    if "noise-log" in run.capabilities and noisy == total:
        noise_log = NoiseSums(
            statistic=float(run.parameters * total),
            degrees=run.parameters * total,
            each=constant(float(run.parameters), total, count=run.parameters),
            steps=total,
            width=width,
            lag=LagProducts(lag=1 if total > 1 else 0, products=0.0),
            pair=0.0,
            twin=TwinProducts(largest=0.0) if run.twin else None,
        )
    reported = {"batches": batches, "noise": noise_log, "norms": norms}
    return RunEvidence(
        told=ReportedSteps(**{log: total for log, has in reported.items() if has}),
        sampling_log=sampling_log,
        noise_log=noise_log,
        count_log=count_log,
        norm_log=NormSums(largest=1.0, missing=missing, astray=missing) if norms else None,
        steps=total if iterates else None,
        states=States(still=0, apart=0, blind=False) if iterates else None,
        noise=_outside(run, phase_parts, noisy_seen) if residuals else None,
        measured=_measured(run, phase_parts, noisy_seen, width) if residuals and noisy_seen else None,
        signal=_signal(run, phase_parts) if residuals and _compared(run, phases) else None,
    )


Indices: TypeAlias = npt.NDArray[np.int64]
_Mask: TypeAlias = npt.NDArray[np.bool_]


def _parts(phases: Sequence[Phase], records: int, indices: Indices | None) -> list["_Part"]:
    """The phases, with the ascending indices of all measured steps; None if all steps are measured."""
    if indices is None:
        return [_Part.of(phase, records, None) for phase in phases]
    ends = np.cumsum([phase.steps for phase in phases])
    of_phases = np.split(indices, np.searchsorted(indices, ends[:-1]))
    starts = [0, *ends[:-1].tolist()]
    return [
        _Part.of(phase, records, of_phase - start)
        for phase, of_phase, start in zip(phases, of_phases, starts, strict=True)
    ]


def _whole_epochs(length: int, of_epoch: int) -> Iterator[tuple[_Mask, int]]:
    """Masks of epochs whose steps are all measured, each with the number of epochs; the last epoch may be cut."""
    epochs, last_steps = divmod(length, of_epoch)
    if epochs:
        yield np.ones(of_epoch, dtype=bool), epochs
    if last_steps:
        yield np.ones(last_steps, dtype=bool), 1


def _measured_epochs(indices: Indices, length: int, of_epoch: int) -> Iterator[tuple[_Mask, int]]:
    """Masks of the epochs with measured steps; others have no inclusion to be measured."""
    if of_epoch == 1:  # independent steps
        yield np.ones(1, dtype=bool), len(indices)
        return
    numbers = indices // of_epoch
    for number in np.unique(numbers).tolist():
        start = number * of_epoch
        mask = np.zeros(min(of_epoch, length - start), dtype=bool)
        mask[indices[numbers == number] - start] = True
        yield mask, 1


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A phase, with ``seen`` measured steps.

    Attributes:
        first: Number of measured first steps of epochs; ``seen`` if steps are independent.
        inclusion: Variance of the number of measured batches with a given record.
    """

    phase: Phase
    seen: int
    sigma: float
    rate: float
    first: int
    inclusion: float

    @classmethod
    def of(cls, phase: Phase, records: int, indices: Indices | None) -> "_Part":
        """Compute from the ascending indices of measured steps, None if all are, in the memory of one epoch."""
        sampler = sampler_of(phase["sampling"], records)
        length, of_epoch = phase.steps, sampler.moment_steps
        if indices is None:
            measured, first = length, -(-length // sampler.dependent_steps)
            epochs_by_mask = _whole_epochs(length, of_epoch)
        else:
            measured, first = len(indices), int((indices % sampler.dependent_steps == 0).sum())
            epochs_by_mask = _measured_epochs(indices, length, of_epoch)
        inclusion = sum(times * float(sampler.inclusion_moments(mask)[1].sum()) for mask, times in epochs_by_mask)
        return cls(
            phase=phase,
            seen=measured,
            sigma=phase.noise_multiplier,
            rate=phase.rate(records),
            first=first,
            inclusion=inclusion,
        )

    @property
    def noisy(self) -> bool:
        """Whether the variance of the noise is above 0 in floating point."""
        return self.sigma * self.sigma > 0.0


def _sampled(run: Run, part: _Part) -> float:
    """Mean squared norm that the draw of a step's records adds, plus the error of its estimate."""
    batch = part.rate * (1.0 - part.rate) * run.records
    return batch if run.estimated is None else batch + (part.rate * run.records) ** 2 / run.estimated


def _compared(run: Run, phases: Sequence[Phase]) -> bool:
    """Whether there are enough groups of gradient canaries, and clipping keeps their directions."""
    flat = all(phase.clipping_scheme in ("flat", "adaptive") for phase in phases)
    enough = run.groups and all(count // 2 >= canary_contributions.LEAST for count in run.groups.values())
    return bool(flat and enough and "gradient-canaries" in run.capabilities)


def _outside(run: Run, phase_parts: Sequence[_Part], noisy: int) -> OutsideNoise:
    """Mean squares of noise and sampling at each step; one step has the expected maximum of all."""
    free = run.parameters - sum(run.groups.values())
    degrees = free * noisy
    if not degrees:
        return OutsideNoise(statistic=float(degrees), degrees=degrees)
    share = free / run.parameters
    noisy_parts = [part for part in phase_parts if part.noisy]
    means = [free + share * _sampled(run, part) / part.sigma**2 for part in noisy_parts]
    steps = [part.seen for part in noisy_parts]
    starts = [sum(steps[:number]) + 1 for number in range(len(steps))]
    most = max((number for number, count in enumerate(steps) if count), key=lambda number: means[number])
    deviation = math.sqrt(max(0.0, 4.0 * means[most] - 2.0 * free))
    highest = means[most] + deviation * float(special.ndtri(max(0.5, 1.0 - 1.0 / noisy)))
    # Equal steps of a part count once; the first one of the part with the largest mean has the expected maximum.
    square_at = {start: mean for mean, start, count in zip(means, starts, steps, strict=True) if count}
    if steps[most] > 1:
        square_at[starts[most] + 1] = means[most]
    square_at[starts[most]] = highest
    numbers = np.array(sorted(square_at))
    squares = summary(np.array([square_at[number] for number in numbers.tolist()]), numbers, free)
    return OutsideNoise(statistic=float(degrees), degrees=degrees, each=replace(squares, steps=noisy))


def _measured(run: Run, phase_parts: Sequence[_Part], noisy: int, width: int) -> ResidualSums:
    directed = (part for part in phase_parts if part.noisy and scheme_of(part.phase).directed)
    sums = [(part.first, part.sigma, _sampled(run, part)) for part in directed]
    steps = sum(n for n, _, _ in sums)
    directions = None
    if steps:
        least = sum(n * s * s for n, s, _ in sums)
        variance = sum(n * (s * s + sampled) for n, s, sampled in sums)
        square = least / steps
        again = square * width / math.sqrt(width * (square + (variance - least) / steps / run.parameters))
        directions = Directions(
            rounding=0.0,
            least=least,
            variance=variance,
            drift=Drift(total=0.0, unit=0.0),
            lag=LagSum(lag=1 if steps > 1 else 0, total=0.0, unit=again * (steps - 1)),
        )
    everywhere = Everywhere(coordinates=LeastCoordinate(least=float(noisy), count=run.parameters))
    return ResidualSums(steps=steps, seen=noisy, everywhere=everywhere, directions=directions)


def _signal(run: Run, phase_parts: Sequence[_Part]) -> PlantedSums:
    draws = sum(part.seen * part.rate for part in phase_parts)
    noise = sum(part.seen * part.sigma * part.sigma for part in phase_parts)
    inclusion = sum(part.inclusion for part in phase_parts)
    sampled = sum(part.seen * _sampled(run, part) for part in phase_parts)
    outside = noise + sampled / run.parameters
    moments: list[GroupSums] = []
    for size, count in run.groups.items():
        for coin in (0, 1):
            number, mean = count // 2, coin * size * draws
            variance = outside + coin * size * inclusion
            squares = number * mean**2 + max(0, number - 1) * variance
            moments.append(GroupSums(size, coin, number, number * mean, squares))
    by_step = None
    if not run.told and sampled > 0.0 and sum(part.phase.steps for part in phase_parts) > 1:
        steps = sum(part.seen for part in phase_parts)
        lengths = [g.count * (outside + g.coin * g.size * inclusion) * (steps - 1) / steps for g in moments]
        products = tuple((0.0,) * number + (length,) for number, length in enumerate(lengths))
        by_step = StepTotals(steps=steps, products=products)
    return PlantedSums(
        draws=draws, moments=tuple(moments), outside=outside, inclusion=inclusion, rounding=0.0, by_step=by_step
    )


def _batches(records: int, phase: Phase, total: int) -> BatchSums:
    length, rate, sampling = phase.steps, phase.rate(records), phase.sampling
    checks = scheme_of(phase).checks
    if "batches_of_different_epochs" in checks:
        return _of_epochs(records, phase)
    random, epoch = 0.0 < rate < 1.0, sampling.epoch_steps or 1
    varies = random and sampling.batch_size is None
    size, variance = round(records * rate), records * rate * (1.0 - rate) if varies else 0.0
    if sampling.max_batch is not None and random:
        law = TruncatedSize(records, rate, sampling.max_batch)
        size, variance = round(law.mean), law.variance
    total_size, squares = length * size, round(length * (size * size + variance))
    if "exact_sizes" in checks:
        total_size, squares = scheme_of(phase).exact_sizes(phase, records, length)
    spread = records * length * rate * (1.0 - rate) + total_size**2 / records
    tried = {epoch, math.floor(min(1.0 / rate, total))} if random else set()
    lags = [lag for lag in tried if epoch <= lag < min(length, total)]
    above = records * TruncatedSize(length, rate, length).moments_of_excess()[0] if random else 0.0
    times = sampling.batches_per_epoch
    whole = EpochSums(whole=length // epoch, astray=0, spread=length // epoch * records * times * (1.0 - times / epoch))
    return BatchSums(
        steps=length,
        total=total_size,
        squares=squares,
        spread=max(round(spread), math.ceil(above)),
        above=above,
        overlaps=tuple(Common(lag, round((length - lag) * size * rate), (length - lag) * size) for lag in lags),
        sizes=_typical_sizes(size, length, sampling.max_batch, BatchSize(records, rate)) if varies else None,
        epochs=None if sampling.epoch_steps is None else whole,
    )


def _typical_sizes(size: int, steps: int, cap: int | None, law: BatchSize) -> StepExtremes:
    """Sizes at their mean; of batches without a cap, the largest and the smallest one at their medians."""
    sizes = constant(size, steps)
    if cap is not None:
        return sizes
    least, most = typical_smallest(steps, law), typical_largest(steps, law)
    return replace(sizes, least=StepValue(min(size, least), 1), most=StepValue(max(size, most), 1))


def _of_epochs(records: int, phase: Phase) -> BatchSums:
    steps, size = phase.steps, int(phase["sampling"]["batch_size"])
    total, squares = scheme_of(phase).exact_sizes(phase, records, steps)
    full, extra_draws = divmod(total, records)
    pairs = epochs.pairs_of(records, size, steps)
    common = max(2 * size - records, round(size * size / records))
    closest = Closest(math.ceil(records / size), common, size, size) if pairs else None
    return BatchSums(
        steps=steps,
        total=total,
        squares=squares,
        spread=records * full * full + extra_draws * (2 * full + 1),
        above=0.0,
        together=TogetherSums(pairs=pairs, closest=closest),
        early=0,
    )
