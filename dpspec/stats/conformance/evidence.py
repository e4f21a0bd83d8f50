"""Evidence of a run that a trial stores, and its JSON.

Values are in units of the clip norm, or of the declared standard deviation of the noise. Reading refuses values that no
run writes (out of range, contradictory), but nothing that a faulty backend can cause. Unknown keys are ignored, so
evidence of earlier versions is readable.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import comb
from typing import TypeVar

import numpy as np

from dpspec import json_records
from dpspec.contract import FrozenMap, Json, Phase
from dpspec.json_records import INLINE, AboveZero, Amount, Count, Positive, Real, Record, Row, Whole
from dpspec.stats.conformance import noise_tests
from dpspec.stats.conformance.batch_checks import SamplingSums
from dpspec.stats.conformance.canary_contributions import PlantedSums
from dpspec.stats.conformance.noise_tests import MOST_LAYERS, SharedLayers
from dpspec.stats.conformance.sampling import HUGE, Array, StepExtremes, summary

T = TypeVar("T")

#: Maximum number of evenly spaced coordinates of each step's noise, and of stored numbers in total.
MOST_COORDINATES, MOST_NUMBERS = 4096, 2**22


def number(value: float) -> float:
    """Clip to the JSON range; NaN becomes a huge value, above any declared one."""
    return float(np.clip(value, -HUGE, HUGE)) if np.isfinite(value) else HUGE


def kept_width(steps: int) -> int:
    """Return the number of stored coordinates per step; ``steps`` steps need at most 16 MiB."""
    return max(64, min(MOST_COORDINATES, MOST_NUMBERS // max(1, steps)))


def looked(steps: int, looks: int | None) -> Array:
    """Return the mask (steps,) of at most ``looks`` evenly spaced steps, including the first; None for all."""
    indices = measured_steps(steps, looks)
    mask = np.full(steps, indices is None)
    if indices is not None:
        mask[indices] = True
    return mask


def measured_steps(steps: int, most: int | None) -> Array | None:
    """Return the ascending indices of at most ``most`` evenly spaced steps, including the first; None if all are."""
    if most is None or most >= steps:
        return None
    return np.unique(np.linspace(0, steps - 1, most).round().astype(np.int64))


@dataclass(frozen=True, kw_only=True)
class States(Record):
    """Released models.

    ``still`` of them equal their predecessor. The last one of ``apart`` runs is not the trained one. ``blind``: whether
    rounding may leave a model unchanged.
    """

    still: Count
    apart: Count
    blind: bool


@dataclass(frozen=True, kw_only=True)
class OutsideNoise(Record):
    """Sum over the steps of squared residuals in directions that no canary uses. Each contains at least the noise.

    ``hidden``: the number of steps excluded because of rounding.
    """

    statistic: Amount
    degrees: Count
    hidden: Count = 0
    each: StepExtremes | None = None

    def problem(self) -> str | None:
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

    ``rounding`` bounds the rounding error of each sum. ``least`` is the variance of the noise, summed over the steps,
    ``variance`` the same with sampling.
    """

    rounding: Amount
    least: AboveZero
    variance: Amount
    drift: Drift
    lag: LagSum


@dataclass(frozen=True, kw_only=True)
class ResidualSums(Record):
    """Residuals, updates minus their expectation, of ``steps`` steps; ``hidden`` steps are excluded for rounding.

    ``everywhere`` has ``seen`` steps; None in evidence of version 0.1.0, which has ``steps`` steps. Models with one
    layer, and evidence of version 0.1.0, have no ``shared``.
    """

    steps: Count
    hidden: Count = 0
    seen: Count | None = None
    everywhere: Everywhere | None = field(default=None, metadata=INLINE)
    directions: Directions | None = field(default=None, metadata=INLINE)
    shared: SharedLayers | None = None

    @property
    def steps_seen(self) -> int:
        return self.steps if self.seen is None else self.seen

    def problem(self) -> str | None:
        if (self.everywhere is None) != (self.steps_seen == 0):
            return "coordinates must be present exactly if steps were measured"
        if (self.directions is None) != (self.steps == 0):
            return "drift and lag must be present exactly if there are steps"
        if self.directions is not None and not _is_lag(self.directions.lag.lag, self.steps):
            return f"lag.lag must be one of {self.steps} steps, got {self.directions.lag.lag}"
        if self.shared is None:
            return None
        layers = self.everywhere.layers if self.everywhere is not None else None
        if layers is None or not set(self.shared.squares) <= set(layers):
            return "shared.squares must name two of the layers"
        count, steps = min(layers[name].degrees for name in self.shared.squares), self.steps_seen
        if self.shared.count != count or count % steps:
            return f"shared.count must be {count}, of the smaller layer in {steps} steps, got {self.shared.count}"
        pairs = comb(min(len(layers), MOST_LAYERS), 2)
        return None if self.shared.pairs == pairs else f"shared.pairs must be {pairs}, got {self.shared.pairs}"


def _is_lag(lag: int, steps: int) -> bool:
    return min(1, steps // 2) <= lag <= steps // 2


@dataclass(frozen=True, kw_only=True)
class ReplayedStep(Record):
    """One step without noise on two datasets, and on both combined, with ``records`` records.

    In units of the norms of the two updates: ``apart``, the distance between their sum and the update of both,
    ``random``, the change of an update by another seed and order of its records, and a bound on the rounding error.
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
    """The reported Gaussian noise: the sum of ``degrees`` squares, and products of ``width`` stored coordinates.

    ``pair``: the worst inner product of two steps.
    """

    statistic: Amount
    degrees: Positive
    each: StepExtremes | None = None
    steps: Positive
    width: Positive
    lag: LagProducts
    pair: Real
    twin: TwinProducts | None = None

    @classmethod
    def of(cls, squares: Array, rows: Array, count: int, other_rows: Array | None = None) -> "NoiseSums":
        """Compute from each step's squared noise and stored coordinates (steps, width), and another run's.

        ``count``: the number of parameters. All in units of the declared standard deviation.
        """
        lags, largest = noise_tests.products(rows)
        lag = noise_tests.worst_lag(lags)
        twin = None
        if other_rows is not None and other_rows.shape == rows.shape:
            twin = TwinProducts(largest=number(noise_tests.largest_across(rows, other_rows)))
        return cls(
            statistic=number(float(np.sum(squares))),
            degrees=count * len(squares),
            each=summary(squares, count=count),
            steps=len(rows),
            width=rows.shape[1],
            lag=LagProducts(lag=lag, products=number(float(lags[lag]))),
            pair=number(largest),
            twin=twin,
        )

    def problem(self) -> str | None:
        count, remainder = divmod(self.degrees, self.steps)
        if remainder or self.width > count:
            return f"degrees must be a multiple of {self.steps} steps and at least {self.width} of each"
        if self.each is not None and (self.each.steps, self.each.count) != (self.steps, count):
            return f"each must be of {self.steps} steps and {count} parameters"
        if not _is_lag(self.lag.lag, self.steps):
            return f"lag.lag must be one of {self.steps} steps, got {self.lag.lag}"
        return None


@dataclass(frozen=True, kw_only=True)
class NormSums(Record):
    """The largest reported norm after clipping, in clip norms.

    ``missing``: the number of drawn records minus the number of norms. ``astray``: the number of steps at which these
    numbers differ. ``miscounted``: the number of counts of adaptive clipping that contradict the norms.
    """

    largest: Amount
    missing: Whole | None = None
    astray: Count | None = None
    miscounted: Count | None = None


@dataclass(frozen=True, kw_only=True)
class CountSums(Record):
    """The reported ``counts`` of adaptive clipping; ``unruled`` clip norms do not follow from the count before.

    ``statistic``: sum of the squared noise of the counts, in declared standard deviations; ``of_steps``: at each step.
    """

    counts: Count
    unruled: Count
    statistic: Amount
    of_steps: StepExtremes | None = None

    def problem(self) -> str | None:
        if self.of_steps is not None and (self.of_steps.count != 1 or self.of_steps.steps > self.counts):
            return f"of_steps must be of at most {self.counts} steps with one degree of freedom"
        return None


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
    count_log: CountSums | None = None
    norm_log: NormSums | None = None
    steps: Count | None = None
    states: States | None = None
    noise: OutsideNoise | None = None
    measured: ResidualSums | None = None
    signal: PlantedSums | None = None
    replayed: ReplayedStep | None = None


def write_run(run: RunEvidence) -> dict[str, Json]:
    """Return the JSON of a run as trials store it: reports omit ``internal``, which depends on the rows."""
    record: dict[str, Json] = json_records.write(run)
    public: dict[str, Json] = {key: value for key, value in record.items() if key not in OF_ROWS}
    return public | {"internal": {key: record[key] for key in OF_ROWS if key in record}}


def joined(evidence: Mapping[str, Json], ran: Mapping[str, Json]) -> dict[str, Json]:
    return {**evidence, **ran, "internal": {**evidence.get("internal", {}), **ran.get("internal", {})}}


def read_run(evidence: Mapping[str, Json], where: str = "evidence") -> RunEvidence:
    """Read a run from a trial's evidence, which may have other keys; ``ValueError`` with the place of a wrong one."""
    internal = evidence.get("internal", {})
    if not isinstance(internal, Mapping):
        raise ValueError(f"{where}.internal must be a mapping, got {internal!r:.60}")
    names = {entry.name for entry in fields(RunEvidence)}
    public = {key: evidence[key] for key in names - set(OF_ROWS) if key in evidence}
    run = json_records.read(RunEvidence, public, where)
    of_rows = {key: internal[key] for key in OF_ROWS if key in internal}
    rows = json_records.read(RunEvidence, of_rows, f"{where}.internal")
    return RunEvidence(**{name: getattr(rows if name in OF_ROWS else run, name) for name in names})


@dataclass(frozen=True)
class Runs:
    """The declared phases and the evidence of all trials."""

    phases: Sequence[Phase]
    runs: Sequence[RunEvidence]

    @classmethod
    def read(cls, phases: Sequence[FrozenMap], evidence: Sequence[FrozenMap]) -> "Runs":
        """Read trials that declare these phases; ``ValueError`` if one contradicts them or another trial."""
        trials = [read_run(values, f"evidence of trial {number}") for number, values in enumerate(evidence, start=1)]
        read = cls([Phase.of(phase) for phase in phases], trials)

        def layers(run: RunEvidence) -> set[str] | None:
            everywhere = run.measured.everywhere if run.measured is not None else None
            return set(everywhere.layers) if everywhere is not None and everywhere.layers else None

        def sizes(run: RunEvidence) -> list[int] | None:
            return None if run.signal is None else [group.size for group in run.signal.moments]

        for number, run in enumerate(read.runs, start=1):
            problem = next(_undeclared(read.phases, run), None)
            if problem is None and layers(run) not in (None, *read.of(layers)[:1]):
                problem = "internal.measured.layers must equal the layers of the other trials"
            if problem is None and sizes(run) not in (None, *read.of(sizes)[:1]):
                problem = "internal.signal.moments must be of the sizes of the other trials"
            if problem is not None:
                raise ValueError(f"evidence of trial {number}.{problem}")
        return read

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    def of(self, part: Callable[[RunEvidence], T | None]) -> list[T]:
        return [value for value in map(part, self.runs) if value is not None]


def adaptive_steps(phases: Sequence[Phase]) -> int:
    """Number of steps whose clip norm follows from a noisy count."""
    return sum(phase.steps for phase in phases if phase.clipping_scheme == "adaptive")


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
    if run.count_log is not None and run.count_log.of_steps is not None:
        adaptive = adaptive_steps(phases)
        if run.count_log.of_steps.steps > adaptive:
            yield f"count_log.of_steps must be of at most {adaptive} steps, got {run.count_log.of_steps.steps}"
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
