"""What the conformance tests of a run will be able to see, said beforehand: they are put to a run as declared."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import special

from dpspec.contract import Check, FrozenMap, Phase
from dpspec.stats.conformance import canary_contributions, run_checks, step_tests
from dpspec.stats.conformance.evidence.measured import (
    Directions,
    Drift,
    DriftAtStep,
    Everywhere,
    FirstResidual,
    GroupSums,
    LagSum,
    LeastCoordinate,
    OutsideNoise,
    PairSum,
    PartSum,
    PlantedSums,
    ResidualSums,
    States,
    StepTotals,
    WeakestStep,
)
from dpspec.stats.conformance.evidence.reported import (
    BatchSums,
    Closest,
    Common,
    CommonAtStep,
    EpochSums,
    LagProducts,
    NoiseSums,
    NormSums,
    SamplingSums,
    TogetherSums,
    Told,
    TwinProducts,
)
from dpspec.stats.conformance.evidence.run import RunEvidence
from dpspec.stats.conformance.evidence.steps import FIRST_COORDINATES, kept_width, looked
from dpspec.stats.conformance.noise_size import StepNoise
from dpspec.stats.conformance.sampling import BatchSize, epochs, foreseen, references
from dpspec.stats.truncated_binomial import TruncatedSize


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is known of a run beforehand.

    records: real and planted ones together, planted ones as they are on average.
    groups: per group size, how many groups of gradient canaries are drawn for; empty for other canaries.
    capabilities: of the backend.
    trials: how many runs there are; twin: whether each has a second run beside it.
    looks: how many steps whoever sees the released models looks at, spread evenly over the run; None for all.
    undone: whether updates can be undone, so that anything is measured on released models but their number.
    estimated: from how many records the expected updates are estimated; None if from all.
    told: whether whoever sees the released models is told which real records each step drew.
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
    """The checks of a run, each with the deviation that it would see; ``p_value`` is 1, and nothing is measured.

    Where what is seen depends on the gradients, every record's is taken to be as long as the clip norm, which is the
    worst case; how well the update itself can be tested, and the smallest layer, is known only afterwards.
    """
    runs = [as_declared(run)] * run.trials
    for check in run_checks.of_runs([Phase.of(phase) for phase in run.phases], runs, privacy="public"):
        yield Check(
            assumption=check.assumption,
            test=check.test.partition(", ")[0],
            p_value=1.0,
            observed=check.observed,
            detectable=None if check.assumption == "update" or "layer" in check.note else check.detectable,
            note=check.note,
        )


def as_declared(run: Run) -> RunEvidence:
    """The evidence of a run that is exactly as declared, each sum at its mean."""
    phases = [Phase.of(phase) for phase in run.phases]
    total = sum(phase.steps for phase in phases)
    parts = np.split(looked(total, run.looks), np.cumsum([phase.steps for phase in phases])[:-1])
    phase_parts = [_Part.of(phase, run.records, part) for phase, part in zip(phases, parts, strict=True)]
    gaussian = all(phase.noise == "gaussian" for phase in phases)
    noisy = sum(part.steps for part in phase_parts if part.noisy) if gaussian else 0
    noisy_seen = sum(part.seen for part in phase_parts if part.noisy) if gaussian else 0
    width = min(run.parameters, kept_width(total))
    evidence = RunEvidence()
    if "iterates" in run.capabilities:
        evidence = replace(evidence, steps=total, states=States(still=0, apart=0, blind=False))
    if "iterates" in run.capabilities and run.undone:
        evidence = replace(
            evidence,
            noise=_outside(run, phase_parts, noisy_seen),
            measured=_measured(run, phase_parts, noisy_seen, width) if noisy_seen else None,
            signal=_signal(run, phase_parts) if _compared(run, phases) else None,
        )
    if "noise-log" in run.capabilities and noisy == total:
        evidence = replace(evidence, noise_log=_noise_log(run, total, width))
    if "sampling-log" in run.capabilities:
        epochs = [phase.sampling.epoch_steps or 1 for phase in phases]
        looks = foreseen(run.records, [phase.steps for phase in phases], epochs)
        sums = (_batches(run.records, part, total) for part in phase_parts)
        batches = tuple(
            one if part.shuffled else replace(one, together=_together(run.records, round(one.total / one.steps), *look))
            for part, one, look in zip(phase_parts, sums, looks, strict=True)
        )
        evidence = replace(evidence, sampling_log=SamplingSums(records=run.records, batches=batches))
    if "norm-log" in run.capabilities:
        missing = 0 if "sampling-log" in run.capabilities else None
        evidence = replace(evidence, norm_log=NormSums(largest=1.0, missing=missing, astray=missing))
    told = Told(
        batches=None if evidence.sampling_log is None else total,
        noise=None if evidence.noise_log is None else total,
        norms=None if evidence.norm_log is None else total,
    )
    return replace(evidence, told=told)


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The numbers of one phase: its steps, how many of them are seen, its noise, its rate, whether sizes vary, up to
    which size where there is a cap, the size of batches that are cut from an order, and the steps of an epoch where
    records are allocated to them, so many ``times`` each. first: how many epochs are seen at their first step, where
    the past does not tell of the batch; else as many as ``seen``. inclusion: the variance of the number of batches that
    are seen and that a record is in.
    """

    steps: int
    seen: int
    sigma: float
    rate: float
    varies: bool
    first: int
    inclusion: float
    cap: int | None = None
    shuffled: int | None = None
    epoch: int | None = None
    times: int = 1

    @classmethod
    def of(cls, phase: Phase, records: int, seen: npt.NDArray[np.bool_]) -> _Part:
        """``seen`` (steps,): which of them."""
        rate, epoch, times = phase.rate(records), phase.sampling.epoch_steps, phase.sampling.batches_per_epoch
        drawn = seen.reshape(-1, epoch or 1).sum(axis=1) * (rate / times)
        apart = 1.0 if epoch is None or times == 1 else times * (epoch - times) / (epoch - 1)
        return cls(
            steps=phase.steps,
            seen=int(seen.sum()),
            sigma=phase.noise_multiplier,
            rate=rate,
            varies=phase.sampling.rate is not None or epoch is not None,
            first=int(seen[:: epoch or 1].sum()),
            inclusion=max(0.0, apart * float((drawn * (1.0 - drawn)).sum())),
            cap=phase.sampling.max_batch,
            shuffled=phase.sampling.batch_size if phase.sampling.is_shuffled else None,
            epoch=epoch,
            times=times,
        )

    @property
    def noisy(self) -> bool:
        """Whether there is noise to measure: a variance that is not 0, as that of 1e-200 is in floating point."""
        return self.sigma * self.sigma > 0.0


def _sampled(run: Run, part: _Part) -> float:
    """What the draw of a step's records adds in squared length, and what that of an estimate of it adds."""
    batch = part.rate * (1.0 - part.rate) * run.records
    return batch if run.estimated is None else batch + (part.rate * run.records) ** 2 / run.estimated


def _compared(run: Run, phases: Sequence[Phase]) -> bool:
    """Whether enough groups of gradient canaries are drawn for, and clipping leaves their gradients' directions."""
    flat = all(phase.clipping_scheme == "flat" for phase in phases)
    enough = run.groups and all(count // 2 >= canary_contributions.LEAST for count in run.groups.values())
    return bool(flat and enough and "gradient-canaries" in run.capabilities)


def _outside(run: Run, parts: Sequence[_Part], noisy: int) -> OutsideNoise:
    """Every step's squares as expected: the noise's, and what sampling adds to them, which lies in all directions.

    One step has as much more as the largest of so many is likely to have.
    """
    free = run.parameters - sum(run.groups.values())
    degrees = free * noisy
    if not degrees:
        return OutsideNoise(statistic=float(degrees), degrees=degrees)
    share = free / run.parameters
    each = [np.full(part.seen, free + share * _sampled(run, part) / part.sigma**2) for part in parts if part.noisy]
    squares = np.concatenate(each)
    most = int(np.argmax(squares))
    deviation = math.sqrt(max(0.0, 4.0 * squares[most] - 2.0 * free))
    squares[most] += deviation * float(special.ndtri(max(0.5, 1.0 - 1.0 / len(squares))))
    sums = step_tests.summary(squares, StepNoise(free, both=False), count=free)
    return OutsideNoise(statistic=float(degrees), degrees=degrees, each=sums)


def _measured(run: Run, parts: Sequence[_Part], noisy: int, width: int) -> ResidualSums:
    sums = [(part.first, part.sigma, _sampled(run, part)) for part in parts if part.noisy and not part.shuffled]
    steps = sum(n for n, _, _ in sums)
    return ResidualSums(
        steps=steps,
        seen=noisy,
        everywhere=Everywhere(
            quietest={"": PartSum(float(run.parameters), run.parameters)},
            coordinates=LeastCoordinate(least=float(noisy), count=run.parameters),
        ),
        directions=_directions(run, sums, steps, width) if steps else None,
    )


def _directions(run: Run, sums: Sequence[tuple[int, float, float]], steps: int, width: int) -> Directions:
    """``sums``: per phase the steps, the noise's deviation and the variance that sampling adds; ``steps`` in all."""
    least = sum(n * s * s for n, s, _ in sums)
    variance = sum(n * (s * s + sampled) for n, s, sampled in sums)
    sigma = math.sqrt(least / steps)
    again = sigma * sigma * width / math.sqrt(width * (sigma * sigma + (variance - least) / steps / run.parameters))
    of_step, row = variance / steps, (0.0,) * min(width, FIRST_COORDINATES)
    return Directions(
        rounding=0.0,
        least=least,
        variance=variance,
        drift=Drift(total=0.0, unit=0.0),
        step=DriftAtStep(total=0.0, variance=of_step, unit=0.0, weakest=WeakestStep(of_step, 0.0, 0.0)),
        lag=LagSum(lag=1 if steps > 1 else 0, total=0.0, unit=again * (steps - 1)),
        pair=PairSum(total=0.0, unit=again, least=sigma * sigma, variance=of_step),
        first=FirstResidual(row=row, least=sigma * sigma, variance=of_step),
    )


def _signal(run: Run, parts: Sequence[_Part]) -> PlantedSums:
    draws = sum(part.seen * part.rate for part in parts)
    noise = sum(part.seen * part.sigma * part.sigma for part in parts)
    inclusion = sum(part.inclusion for part in parts)
    sampled = sum(part.seen * _sampled(run, part) for part in parts)
    outside = noise + sampled / run.parameters
    moments: list[GroupSums] = []
    for size, count in run.groups.items():
        for coin in (0, 1):
            number, mean = count // 2, coin * size * draws
            variance = outside + coin * size * inclusion
            squares = number * mean**2 + max(0, number - 1) * variance
            moments.append(GroupSums(size, coin, number, number * mean, squares))
    by_step = None
    if not run.told and sampled > 0.0 and sum(part.steps for part in parts) > 1:
        steps = sum(part.seen for part in parts)
        lengths = [one.count * (outside + one.coin * one.size * inclusion) * (steps - 1) / steps for one in moments]
        products = tuple((0.0,) * number + (length,) for number, length in enumerate(lengths))
        by_step = StepTotals(steps=steps, products=products)
    return PlantedSums(
        draws=draws, moments=tuple(moments), outside=outside, inclusion=inclusion, rounding=0.0, by_step=by_step
    )


def _noise_log(run: Run, total: int, width: int) -> NoiseSums:
    law = StepNoise(run.parameters, both=True)
    return NoiseSums(
        statistic=float(run.parameters * total),
        degrees=run.parameters * total,
        products=0.0,
        pairs=run.parameters * (total - 1),
        each=step_tests.summary(np.full(total, float(run.parameters)), law, count=run.parameters),
        steps=total,
        width=width,
        quietest=float(total),
        halves=0.0,
        lag=LagProducts(lag=1 if total > 1 else 0, products=0.0),
        pair=0.0,
        first=(0.0,) * min(width, FIRST_COORDINATES),
        twin=TwinProducts(aligned=0.0, largest=0.0) if run.twin else None,
    )


def _batches(records: int, part: _Part, total: int) -> BatchSums:
    length, rate = part.steps, part.rate
    if part.shuffled:
        return _of_epochs(records, part.shuffled, length)
    law: BatchSize | TruncatedSize = BatchSize(records, rate)
    size, variance = round(records * rate), records * rate * (1.0 - rate) if part.varies else 0.0
    if part.cap is not None and 0.0 < rate < 1.0:
        law = TruncatedSize(records, rate, part.cap)
        size, variance = round(law.mean), law.variance
    spread = records * length * rate * (1.0 - rate) + (length * size) ** 2 / records
    epoch = {part.epoch or 1, math.floor(min(1.0 / rate, total))} if 0.0 < rate < 1.0 else set()
    lags = [lag for lag in epoch if (part.epoch or 1) <= lag < min(length, total)]
    random = part.varies and 0.0 < rate < 1.0
    above = records * TruncatedSize(length, rate, length).moments_of_excess()[0] if 0.0 < rate < 1.0 else 0.0
    return BatchSums(
        steps=length,
        total=length * size,
        squares=round(length * (size * size + variance)),
        spread=max(round(spread), math.ceil(above)),
        above=above,
        most=math.ceil(length * rate),
        overlaps=tuple(Common(lag, round((length - lag) * size * rate), (length - lag) * size) for lag in lags),
        again=tuple(CommonAtStep(lag, round(size * rate), size, length - lag) for lag in lags),
        sizes=step_tests.summary(np.full(length, size), law) if random else None,
        epochs=None if part.epoch is None else _epochs(records, length // part.epoch, part.epoch, part.times),
    )


def _of_epochs(records: int, size: int, steps: int) -> BatchSums:
    """Batches of orders that have nothing to do with each other."""
    total, squares = epochs.sizes_of(records, size, steps)
    full, rest = divmod(total, records)
    pairs = epochs.pairs_of(records, size, steps)
    lag, common = epochs.batches_of_epoch(records, size), max(2 * size - records, round(size * size / records))
    closest = Closest(lag, common, size, size) if pairs else None
    return BatchSums(
        steps=steps,
        total=total,
        squares=squares,
        spread=records * full * full + rest * (2 * full + 1),
        above=0.0,
        most=full + (rest > 0),
        together=TogetherSums(looked=0, references=1, most=0, least=0, pairs=pairs, closest=closest),
        early=0,
    )


def _epochs(records: int, whole: int, epoch_steps: int, times: int) -> EpochSums:
    spread, stays = whole * records * times * (1.0 - times / epoch_steps), math.ceil((whole - 1) / epoch_steps)
    return EpochSums(whole=whole, astray=0, spread=spread, stays=stays)


def _together(records: int, size: int, looked: int, pairs: int) -> TogetherSums:
    """Batches of one size, alike by chance only."""
    others = references(records)
    if not (pairs and 0 < size < records):
        return TogetherSums(looked=0, references=others, most=0, least=0, pairs=0)
    common, first = max(2 * size - records, round(size * size / records)), looked // (others + 1)
    one = Closest(1, common, size, size)
    return TogetherSums(looked=looked, references=others, most=first, least=first, pairs=pairs, closest=one)
