"""Evidence of a run that a trial stores, and its JSON.

``dpspec.training.measure.run_evidence`` and ``dpspec.engine.recorded.run_sums`` compute the evidence of executed runs,
:mod:`~dpspec.stats.conformance.expectations` the mean evidence of a declared run, and
:mod:`~dpspec.stats.conformance.table` tests it. Values are in units of the clip norm, or of the declared standard
deviation of the noise. Reading refuses values that no run writes (out of range, contradictory), but nothing that a
faulty backend can cause. Keys that no field has are ignored, so evidence of earlier versions is readable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import comb, prod
from typing import Any, TypeAlias

import numpy as np

from dpspec import json_records
from dpspec.contract import FrozenMap, Json, Phase
from dpspec.json_records import INLINE, AboveZero, Amount, Count, Positive, Real, Record, Row, Whole
from dpspec.stats.conformance.layer_noise import MOST_LAYERS, Shared

Array: TypeAlias = np.ndarray[Any, Any]

#: Maximum number of evenly spaced coordinates of each step's noise, and of stored numbers in total.
MOST_COORDINATES, MOST_NUMBERS = 4096, 2**22

#: Maximum number of records; no dataset has more.
MOST_RECORDS = 2**34


def kept_width(steps: int) -> int:
    """Return the number of stored coordinates per step; ``steps`` steps need at most 16 MiB."""
    return max(64, min(MOST_COORDINATES, MOST_NUMBERS // max(1, steps)))


def looked(steps: int, looks: int | None) -> Array:
    """Return the mask (steps,) of at most ``looks`` evenly spaced steps, including the first; None for all."""
    seen = np.zeros(steps, dtype=bool)
    seen[np.linspace(0, steps - 1, min(looks or steps, steps)).round().astype(int)] = True
    return seen


@dataclass(frozen=True)
class StepValue(Row):
    """The value at one step, and the step's number from 1."""

    value: Amount
    step: Positive


@dataclass(frozen=True, kw_only=True)
class StepSums(Record):
    """Minimum and maximum over ``steps`` steps of one number per step.

    Attributes:
        count: Degrees of freedom of each step, if the values are squared norms of noise.
    """

    steps: Positive
    least: StepValue
    most: StepValue
    count: Positive | None = None

    def problem(self) -> str | None:
        """The minimum is at most the maximum."""
        if self.least.value > self.most.value:
            return f"least must be at most {self.most.value}, got {self.least.value}"
        return None


@dataclass(frozen=True, kw_only=True)
class States(Record):
    """Released models.

    Attributes:
        still: Number of models that equal their predecessor.
        apart: Number of runs whose last released model differs from the trained one.
        blind: Whether rounding may leave a model unchanged.
    """

    still: Count
    apart: Count
    blind: bool


@dataclass(frozen=True, kw_only=True)
class OutsideNoise(Record):
    """Squared residuals of updates, in directions that no canary uses. Each contains at least the noise.

    Attributes:
        statistic: Sum over all steps.
        degrees: Degrees of freedom of ``statistic``.
        hidden: Number of steps excluded because of rounding.
        each: Steps.
    """

    statistic: Amount
    degrees: Count
    hidden: Count = 0
    each: StepSums | None = None

    def problem(self) -> str | None:
        """The degrees of freedom of single steps add up."""
        if self.each is not None and (self.each.count or 0) * self.each.steps != self.degrees:
            return f"degrees must be the sum over the steps, got {self.degrees}"
        return None


@dataclass(frozen=True)
class PartSum(Row):
    """A sum of squares over a part of the model, and its degrees of freedom."""

    total: Amount
    degrees: Positive


@dataclass(frozen=True, kw_only=True)
class LeastCoordinate(Record):
    """The minimum over ``count`` parameters of the sum of squares over all steps."""

    least: Amount
    count: Positive


@dataclass(frozen=True, kw_only=True)
class Everywhere(Record):
    """Squared residuals of each layer and of the quietest parameter, over all steps."""

    layers: Mapping[str, PartSum] | None = None
    coordinates: LeastCoordinate


@dataclass(frozen=True, kw_only=True)
class Drift(Record):
    """The sum of residuals along the expected updates, and the norm of these updates."""

    total: Real
    unit: Amount


@dataclass(frozen=True, kw_only=True)
class LagSum(Record):
    """The sum of residuals along those ``lag`` steps before, at the worst lag.

    ``unit``: the sum if the same noise was added again.
    """

    lag: Count
    total: Real
    unit: Amount


@dataclass(frozen=True, kw_only=True)
class Directions(Record):
    """Residuals along directions that were fixed before each step.

    Attributes:
        rounding: Bound on the rounding error of each sum.
        least: Variance of the noise, summed over the steps.
        variance: The same with sampling.
    """

    rounding: Amount
    least: AboveZero
    variance: Amount
    drift: Drift
    lag: LagSum


@dataclass(frozen=True, kw_only=True)
class SharedLayers(Record):
    """Products of the residuals of two layers, the worst of ``pairs`` pairs; see ``layer_noise``.

    Attributes:
        squares: Squared norms of both layers, including rounding.
        product: Sum over the steps of the inner products.
        rounding: Bound on the rounding error of ``product``.
        count: Number of coordinates of one layer, over all steps.
        planned: The same for all planned steps.
    """

    squares: Mapping[str, Amount]
    product: Real
    rounding: Amount
    count: Positive
    planned: Positive
    pairs: Positive

    @property
    def shared(self) -> Shared:
        """The argument of the test, less rounding."""
        product = max(0.0, abs(self.product) - self.rounding)
        first, second = self.squares.values()
        return Shared(product, first, second, self.count, self.planned)

    def problem(self) -> str | None:
        """Two layers, whose product is at most the product of their norms (Cauchy-Schwarz)."""
        if len(self.squares) != 2:
            return "squares must name two layers"
        if abs(self.product) > (1.0 + 1e-9) * prod(square**0.5 for square in self.squares.values()):
            return f"product must be at most the product of the norms, got {self.product:g}"
        if self.planned < self.count:
            return f"planned must be at least count ({self.count}), got {self.planned}"
        return None


@dataclass(frozen=True, kw_only=True)
class ResidualSums(Record):
    """Residuals: updates minus their expectation.

    Attributes:
        steps: Number of steps in ``directions``.
        hidden: Number of steps excluded from them because of rounding.
        seen: Number of steps in ``everywhere``. None in evidence of version 0.1.0, which has ``steps`` steps.
        shared: None for models with one layer, and in evidence of version 0.1.0.
    """

    steps: Count
    hidden: Count = 0
    seen: Count | None = None
    everywhere: Everywhere | None = field(default=None, metadata=INLINE)
    directions: Directions | None = field(default=None, metadata=INLINE)
    shared: SharedLayers | None = None

    @property
    def steps_seen(self) -> int:
        """Number of steps in ``everywhere``."""
        return self.steps if self.seen is None else self.seen

    def problem(self) -> str | None:
        """Sums exist exactly if steps do."""
        if (self.everywhere is None) != (self.steps_seen == 0):
            return "coordinates must be present exactly if steps were measured"
        if (self.directions is None) != (self.steps == 0):
            return "drift and lag must be present exactly if there are steps"
        if self.directions is not None and not min(1, self.steps // 2) <= self.directions.lag.lag <= self.steps // 2:
            return f"lag.lag must be one of {self.steps} steps, got {self.directions.lag.lag}"
        layers = self.everywhere.layers if self.everywhere is not None else None
        return None if self.shared is None else _problem_of_shared(self.shared, layers, self.steps_seen)


def _problem_of_shared(shared: SharedLayers, layers: Mapping[str, PartSum] | None, steps: int) -> str | None:
    if layers is None or not set(shared.squares) <= set(layers):
        return "shared.squares must name two of the layers"
    count = min(layers[name].degrees for name in shared.squares)
    if shared.count != count or count % steps:
        return f"shared.count must be {count}, of the smaller layer in {steps} steps, got {shared.count}"
    pairs = comb(min(len(layers), MOST_LAYERS), 2)
    if shared.pairs != pairs:
        return f"shared.pairs must be {pairs}, got {shared.pairs}"
    return None


@dataclass(frozen=True)
class GroupSums(Row):
    """Projections on the directions of ``count`` groups of ``size`` canaries: sum and sum of squares.

    ``coin``: 1 for inserted groups, else 0.
    """

    size: Positive
    coin: Count
    count: Count
    total: Real
    squares: Amount


@dataclass(frozen=True)
class StepDependence(Row):
    """Dependence within steps between groups of one size and coin; see ``stats.independence.step_dependence``."""

    size: Positive
    coin: Count
    count: Count
    degrees: Positive
    means: Amount
    spreads: Amount


@dataclass(frozen=True, kw_only=True)
class StepTotals(Record):
    """Covariance over steps of the totals of groups, after subtracting the declared contribution of inserted ones.

    Attributes:
        steps: Number of measured steps.
        products: Sums of products of deviations; row i has the i-th size and coin with all up to itself, in the order
            of ``PlantedSums.moments``.
    """

    steps: Positive
    products: tuple[tuple[Real, ...], ...]

    def problem(self) -> str | None:
        """A triangle that satisfies the Cauchy-Schwarz inequality."""
        if any(len(row) != number for number, row in enumerate(self.products, start=1)):
            return "products must be a triangle, one number more in each row"
        squares = [row[-1] for row in self.products]
        if any(square < 0.0 or (self.steps == 1 and square > 0.0) for square in squares):
            return "products of totals with themselves must be at least 0, and 0 at a single step"
        for row in self.products:
            for other, product in zip(squares, row, strict=False):
                if abs(product) > (1.0 + 1e-9) * row[-1] ** 0.5 * other**0.5:
                    return f"products must be at most the products of the norms, got {product:g}"
        return None


@dataclass(frozen=True, kw_only=True)
class PlantedSums(Record):
    """Projections on the directions of gradient canaries, summed over the steps.

    Attributes:
        draws: Mean contribution of an inserted canary.
        moments: Per size, absent (0) and inserted (1) groups.
        outside: Variance without canaries.
        inclusion: Variance that each inserted canary adds.
        rounding: Bound on the norm of the rounding error.
        hidden: Number of steps excluded because of rounding.
        luck: Dependence within steps.
        by_step: Covariance over steps. None if no real records are drawn at random.
    """

    draws: Amount
    moments: tuple[GroupSums, ...]
    outside: Amount
    inclusion: Amount
    rounding: Amount
    hidden: Count = 0
    luck: tuple[StepDependence, ...] | None = None
    by_step: StepTotals | None = None

    def problem(self) -> str | None:
        """Each size occurs twice, and all parts have the same sizes."""
        sizes = sorted({one.size for one in self.moments})
        if not sizes or [(one.size, one.coin) for one in self.moments] != [
            (size, coin) for size in sizes for coin in (0, 1)
        ]:
            return "moments must have each size in order, absent (0) and inserted (1)"
        groups = {(one.size, one.coin): one.count for one in self.moments}
        lucky = [(one.size, one.coin) for one in self.luck or ()]
        if lucky != sorted(set(lucky)) or any(groups.get((one.size, one.coin)) != one.count for one in self.luck or ()):
            return "luck must have groups of moments, each at most once and in order"
        if self.by_step is not None and len(self.by_step.products) != len(self.moments):
            return f"by_step.products must be of {len(self.moments)} sizes and coins, got {len(self.by_step.products)}"
        return None


@dataclass(frozen=True, kw_only=True)
class ReplayedStep(Record):
    """One step without noise on two datasets, and on both combined, with ``records`` records.

    Attributes:
        apart: Norm of the difference between the sum of the two updates and the update of both.
        random: Change of an update by another seed and order of its records.
        rounding: Bound on the rounding error. All in units of the norms of the two updates.
    """

    records: Positive
    apart: Amount
    random: Amount
    rounding: Amount


@dataclass(frozen=True, kw_only=True)
class ReportedSteps(Record):
    """Number of steps in each log of the backend; None without such a log."""

    batches: Count | None = None
    noise: Count | None = None
    norms: Count | None = None


@dataclass(frozen=True)
class Common(Row):
    """Number of records in common with the batches ``lag`` steps before, and the number of records in those."""

    lag: Positive
    common: Count
    chances: Count

    def problem(self) -> str | None:
        """At most all records of the earlier batches are in common."""
        return f"common must be at most {self.chances}, got {self.common}" if self.common > self.chances else None


@dataclass(frozen=True)
class Closest(Row):
    """Two batches ``lag`` steps apart, with ``common`` records in both, of ``size`` and ``before`` in the earlier."""

    lag: Positive
    common: Count
    size: Positive
    before: Positive

    def problem(self) -> str | None:
        """At most all records of the smaller batch are in common."""
        most = min(self.size, self.before)
        return f"common must be at most {most}, got {self.common}" if self.common > most else None


@dataclass(frozen=True, kw_only=True)
class TogetherSums(Record):
    """Batches of different epochs of shuffled batches: the number of compared pairs, and the worst pair."""

    pairs: Count
    closest: Closest | None = None

    def problem(self) -> str | None:
        """There is a closest pair if there are pairs."""
        if (self.closest is None) != (self.pairs == 0):
            return f"closest must be one of {self.pairs} pairs"
        return None


@dataclass(frozen=True, kw_only=True)
class EpochSums(Record):
    """Completed epochs of random allocation.

    Attributes:
        whole: Number of completed epochs.
        astray: Number of records, over all epochs, that were not in the declared number of batches.
        spread: Sum over batches of the squared difference between size and mean size.
    """

    whole: Count
    astray: Count
    spread: Amount

    def problem(self) -> str | None:
        """Without an epoch, all counts are 0."""
        if not self.whole and (self.astray or self.spread):
            return f"astray and spread must be 0 of no epoch, got {self.astray} and {self.spread}"
        return None


@dataclass(frozen=True, kw_only=True)
class BatchSums(Record):
    """The batches of one phase.

    Attributes:
        total: Sum of the sizes.
        squares: Sum of the squared sizes.
        spread: Sum over records of the squared numbers of inclusions. None if the phase was cut short.
        above: The same of the excess over their mean (``sampling.excess``). None if the phase was cut short.
        sizes: Sizes at single steps, if they are random.
        overlaps: Records in common with earlier batches.
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


@dataclass(frozen=True, kw_only=True)
class SamplingSums(Record):
    """The reported batches.

    Attributes:
        records: Number of records, including canaries.
        repeats: Number of records drawn again into a batch that has them.
        batches: The phases.
    """

    records: Positive
    repeats: Count = 0
    batches: tuple[BatchSums, ...]

    def problem(self) -> str | None:
        """The numbers are possible for ``records`` records."""
        if self.records > MOST_RECORDS:
            return f"records must be at most {MOST_RECORDS}, got {self.records}"
        for number, batch in enumerate(self.batches):
            if not self.repeats and batch.total > self.records * batch.steps:
                return f"batches[{number}].total must be at most {self.records} times the steps, got {batch.total}"
            if not self.repeats and batch.sizes is not None and batch.sizes.most.value > self.records:
                return f"batches[{number}].sizes.most must be at most {self.records}, got {batch.sizes.most.value}"
            if batch.above is not None and not (batch.spread is not None and batch.above <= batch.spread):
                return f"batches[{number}].above must be at most spread, got {batch.above}"
            if batch.spread is not None and not batch.total**2 <= batch.spread * self.records:
                return f"batches[{number}].spread must fit {batch.total} inclusions, got {batch.spread}"
            if batch.epochs is not None and batch.epochs.astray > self.records * batch.epochs.whole:
                return f"batches[{number}].epochs.astray must be at most {self.records} an epoch"
            if batch.together is not None and not self._fit(batch.together.closest):
                return f"batches[{number}].together.closest must be of {self.records} records"
        return None

    def _fit(self, closest: Closest | None) -> bool:
        if closest is None:
            return True
        either = closest.size + closest.before - closest.common
        return either <= self.records and max(closest.size, closest.before) < self.records


@dataclass(frozen=True, kw_only=True)
class LagProducts(Record):
    """The sum of products of steps ``lag`` apart, at the worst lag; lag 0 for a run of one step."""

    lag: Count
    products: Real


@dataclass(frozen=True, kw_only=True)
class TwinProducts(Record):
    """The largest inner product of a step's noise with a step's noise of a run with another seed."""

    largest: Real


@dataclass(frozen=True, kw_only=True)
class NoiseSums(Record):
    """The reported Gaussian noise.

    Attributes:
        statistic: Sum of all squares.
        degrees: Number of values in ``statistic``.
        each: Steps.
        steps: Number of steps.
        width: Number of stored coordinates, to which all further fields apply.
        lag: Products of steps at a distance.
        pair: The worst inner product of two steps.
        twin: Products with the noise of another run, if there is one.
    """

    statistic: Amount
    degrees: Positive
    each: StepSums | None = None
    steps: Positive
    width: Positive
    lag: LagProducts
    pair: Real
    twin: TwinProducts | None = None

    def problem(self) -> str | None:
        """All numbers are of the same steps and parameters."""
        count, rest = divmod(self.degrees, self.steps)
        if rest or self.width > count:
            return f"degrees must be a multiple of {self.steps} steps and at least {self.width} of each"
        if self.each is not None and (self.each.steps, self.each.count) != (self.steps, count):
            return f"each must be of {self.steps} steps and {count} parameters"
        if not min(1, self.steps // 2) <= self.lag.lag <= self.steps // 2:
            return f"lag.lag must be one of {self.steps} steps, got {self.lag.lag}"
        return None


@dataclass(frozen=True, kw_only=True)
class NormSums(Record):
    """The reported norms after clipping.

    Attributes:
        largest: Largest norm, in clip norms.
        missing: Number of drawn records minus number of norms.
        astray: Number of steps at which these numbers differ.
    """

    largest: Amount
    missing: Whole | None = None
    astray: Count | None = None


#: Evidence that depends on gradients, and thus on the rows.
OF_ROWS = ("noise", "measured", "signal", "norm_log", "replayed")


@dataclass(frozen=True, kw_only=True)
class RunEvidence(Record):
    """All evidence of one run; None for parts that the run does not show.

    ``steps`` is the number of released models after the initial one. ``replayed`` belongs to the first trial only.
    """

    told: ReportedSteps | None = None
    sampling_log: SamplingSums | None = None
    noise_log: NoiseSums | None = None
    norm_log: NormSums | None = None
    steps: Count | None = None
    states: States | None = None
    noise: OutsideNoise | None = None
    measured: ResidualSums | None = None
    signal: PlantedSums | None = None
    replayed: ReplayedStep | None = None


def write_run(run: RunEvidence) -> dict[str, Json]:
    """Return the JSON of a run as trials store it."""
    return arranged(json_records.write(run))


def arranged(found: Mapping[str, Json]) -> dict[str, Json]:
    """Move evidence that depends on the rows under ``internal``, which reports omit."""
    kept: dict[str, Json] = {key: value for key, value in found.items() if key not in OF_ROWS}
    return kept | {"internal": {key: found[key] for key in OF_ROWS if key in found}}


def joined(evidence: Mapping[str, Json], ran: Mapping[str, Json]) -> dict[str, Json]:
    """Join a trial's own evidence with its run's evidence; both have an ``internal`` part."""
    return {**evidence, **ran, "internal": {**evidence.get("internal", {}), **ran.get("internal", {})}}


def read_run(evidence: Mapping[str, Json], where: str = "evidence") -> RunEvidence:
    """Read a run from a trial's evidence, which may have other keys.

    Raises:
        ValueError: With the place, if the JSON does not fit a run.
    """
    internal = evidence.get("internal", {})
    if not isinstance(internal, Mapping):
        raise ValueError(f"{where}.internal must be a mapping, got {internal!r:.60}")
    names = {one.name for one in fields(RunEvidence)}
    public = {key: evidence[key] for key in names - set(OF_ROWS) if key in evidence}
    run = json_records.read(RunEvidence, public, where)
    of_rows = {key: internal[key] for key in OF_ROWS if key in internal}
    rows = json_records.read(RunEvidence, of_rows, f"{where}.internal")
    return RunEvidence(**{name: getattr(rows if name in OF_ROWS else run, name) for name in names})


def read_runs(phases: Sequence[Phase], evidence: Sequence[FrozenMap]) -> list[RunEvidence]:
    """Read the runs of trials that declare these phases; ``ValueError`` if one contradicts them or another trial."""
    runs = read_all(evidence)
    layers = [_layers(run) for run in runs]
    named = next((names for names in layers if names), None)
    sizes = next((_sizes(run) for run in runs if run.signal is not None), None)
    for number, (run, names) in enumerate(zip(runs, layers, strict=True), start=1):
        problem = next(_undeclared(phases, run), None)
        if problem is None and names is not None and names != named:
            problem = "internal.measured.layers must equal the layers of the other trials"
        if problem is None and run.signal is not None and _sizes(run) != sizes:
            problem = "internal.signal.moments must be of the sizes of the other trials"
        if problem is not None:
            raise ValueError(f"evidence of trial {number}.{problem}")
    return runs


def read_all(evidence: Sequence[Mapping[str, Json]]) -> list[RunEvidence]:
    """Read the runs of trials."""
    return [read_run(one, f"evidence of trial {number}") for number, one in enumerate(evidence, start=1)]


def _sizes(run: RunEvidence) -> list[int] | None:
    return None if run.signal is None else [one.size for one in run.signal.moments]


def _layers(run: RunEvidence) -> set[str] | None:
    if run.measured is None or run.measured.everywhere is None or not run.measured.everywhere.layers:
        return None
    return set(run.measured.everywhere.layers)


def _undeclared(phases: Sequence[Phase], run: RunEvidence) -> Iterator[str]:
    """Yield problems of runs with more phases or steps than declared. No run stores more."""
    if run.sampling_log is not None:
        batches = run.sampling_log.batches
        if len(batches) != len(phases):
            yield f"sampling_log.batches must be of {len(phases)} phases, got {len(batches)}"
        for number, (phase, batch) in enumerate(zip(phases, batches, strict=False)):
            if batch.steps > phase.steps:
                yield f"sampling_log.batches[{number}].steps must be at most {phase.steps}, got {batch.steps}"
            epoch_steps = phase.sampling.epoch_steps
            if epoch_steps is not None and (batch.epochs is None or batch.epochs.whole != batch.steps // epoch_steps):
                yield f"sampling_log.batches[{number}].epochs must be of {batch.steps // epoch_steps} whole epochs"
    declared = sum(phase.steps for phase in phases)
    if run.noise_log is not None and run.noise_log.steps != declared:
        yield f"noise_log.steps must be {declared}, got {run.noise_log.steps}"
    if run.noise is not None and run.noise.hidden + (run.noise.each.steps if run.noise.each else 0) > declared:
        yield f"internal.noise must be of at most {declared} steps"
    if run.measured is not None and max(run.measured.hidden + run.measured.steps, run.measured.steps_seen) > declared:
        yield f"internal.measured must be of at most {declared} steps"
    if run.signal is not None and run.signal.by_step is not None and run.signal.by_step.steps > declared:
        yield f"internal.signal.by_step must be of at most {declared} steps, got {run.signal.by_step.steps}"
    if run.measured is not None and run.measured.shared is not None:
        size, planned = run.measured.shared.count // run.measured.steps_seen, run.measured.shared.planned
        if planned > declared * size or planned % size:
            yield f"internal.measured.shared.planned must be {size} for each of at most {declared} steps, got {planned}"
