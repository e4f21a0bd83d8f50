"""A recorded run in memory: a column per quantity of a step, the history of its options, and aggregates of the rest.

One pass reads the public steps, a second one the internal steps.
"""

from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from math import inf, isnan, sqrt
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from scipy import special

from dpspec.contract import Phase
from dpspec.errors import RecordingError
from dpspec.stats.conformance.batch_checks import BatchLog, SamplingSums, compared_lags
from dpspec.stats.conformance.evidence import NoiseSums, NormSums, ReportedSteps, RunEvidence
from dpspec.stats.conformance.measurement import CLIP_TOLERANCE
from dpspec_recording.folder.audit_facts import AuditFacts
from dpspec_recording.folder.events import COLUMNS, UNSEEN, Header, InternalStep, Scored
from dpspec_recording.folder.facts import Facts, StatedFact
from dpspec_recording.folder.recording import Recording, open_run
from dpspec_recording.folder.writer import INTERNAL
from dpspec_recording.observers.all import OBSERVERS
from dpspec_recording.observers.constants.option_history import OptionHistory
from dpspec_recording.observers.judged_run import InternalSums, Terms
from dpspec_recording.observers.observer import Observer
from dpspec_recording.observers.sensitivity.clip_limits import CLIP_ROUNDING, ClipLimits
from dpspec_recording.observers.sensitivity.contributions import Contributions
from dpspec_recording.observers.update_rule.gradient_map import GradientMap, compared_steps
from dpspec_recording.observers.update_rule.noisy_gradients import NoisyGradients
from dpspec_recording.observers.update_rule.reported_gradients import ReportedGradients
from dpspec_recording.outcomes.issue import Issue, Statement

Array: TypeAlias = np.ndarray[Any, Any]

F = TypeVar("F")

#: Minimum number of batch sizes whose product with a factor is constant.
_FEWEST_SIZES = 3

#: Minimum number of steps at which a constant that rises or falls with the batch sizes is not a coincidence.
_FEWEST = 12

#: Number of first and of last steps whose noise along the recorder's directions is kept.
KEPT = 4096

#: The class of a model whose parameters are reported as arrays.
_ARRAYS = "ArrayModel"

#: Replace infinite squares of a layer, and infinite sums.
_HUGE, _HUGE_SUM = 1e70, 1e300

#: Maximum number of records whose inclusions are counted one by one: 256 MiB.
MOST_COUNTED = 2**26

#: Number of different batch sizes from which on an equal number of further rows does not arise by chance.
_SIZES = 5

#: Maximum number of phases that are tested one by one.
MOST_PHASES = 100

#: Confidence of the limits of a custom loop's measured noise.
NOISE_CONFIDENCE = 0.99

#: Noise multipliers from this on count as not observed.
LARGEST_MULTIPLIER = 1e9

#: Unit roundoff of half precision types.
_UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "TF32": 2.0**-11}

#: Unit roundoff of float32, and the minimum number of partial sums in which torch adds the squares of a vector: the
#: numbers of a vector register.
_SINGLE, _PARTIAL_SUMS = 2.0**-24, 8

#: Roundings of the squares, of the sum of the partial sums, of its root, and of the factor.
_OTHER_ROUNDINGS = 16

#: Relative precision of a divisor that is computed from float32 sums, and from sums in half precision.
_DIVIDED, _DIVIDED_HALF = 1e-4, 2.0**-6


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """The content of a recording folder.

    columns: by name, (T,) float64; NaN if the recorder did not observe the value. layers: per layer, the sum over the
    steps of the squared noise, in units of the configured variance; quietest: of its step with the smallest noise.
    rows: (k, W) noise along the recorder's directions, in units of the configured standard deviation, 0 if that is not
    known, of the first and the last :data:`KEPT` steps, and of some at the beginning and the end of each of several
    parts. end: None if the
    recording has none. scored: None if canaries were not scored.
    """

    folder: Recording
    columns: Mapping[str, Array]
    layers: Array
    quietest: Array
    rows: Array
    end: Facts | None
    options: OptionHistory
    scored: Scored | None = None

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    @property
    def header(self) -> Header:
        return self.folder.header

    @property
    def steps(self) -> int:
        return len(self.columns["step"])

    @property
    def resumed(self) -> Recording | None:
        """The folder of a training in several parts."""
        return self.folder if self.folder.is_resumed else None

    @property
    def covered_steps(self) -> int:
        """The number of steps that the facts cover, without the steps of a killed part after its last checkpoint."""
        return self.steps if self.resumed is None else sum(self.resumed.covered)

    @property
    def audits(self) -> AuditFacts | None:
        """The audited steps; None if the recording has no end."""
        return None if self.end is None else self.end.audits

    def fact(self, stated: type[StatedFact[F]]) -> F | None:
        """The fact of an observer; None if the recording has no end, or the training did not show the fact."""
        return None if self.end is None else self.end.of(stated)

    @cached_property
    def statements(self) -> Mapping[type[Observer[Any]], Sequence[Statement]]:
        """The statements of each observer of this kind of training."""
        shown = (observer for observer in OBSERVERS if observer.is_shown(self.header))
        return {observer: tuple(observer.judge(self.fact(observer), self)) for observer in shown}

    @property
    def all_statements(self) -> Iterator[Statement]:
        """The statements of all observers."""
        return chain.from_iterable(self.statements.values())

    def asked(self, terms: Terms) -> Iterator[Issue]:
        """What depends on the claim: the cautions and questions of all observers of this kind of training."""
        for observer in self.statements:
            yield from observer.ask(self.fact(observer), self, terms)

    @property
    def has_arrays(self) -> bool:
        """Whether the parameters are copies of arrays that the loop reports."""
        return self.header.model == _ARRAYS

    @cached_property
    def missing_end(self) -> str:
        """Why the recording has no end, without a full stop; empty if it has one."""
        if self.end is not None:
            return ""
        if reason := self.folder.fault:
            return f"the recorder stopped after step {self.steps}: {reason}"
        return f"the recording has no end after step {self.steps}: the process was killed, or still runs"

    @cached_property
    def rates(self) -> list[float | None]:
        """Per step, the rate of its Poisson sample; None if it is not a Poisson sample or was not observed."""
        has_rates, sizes = self.header.has_rates, self["drawn"].tolist()
        rates_and_sizes = zip(self["rate"].tolist(), sizes, strict=True)
        return [rate if has_rates and 0.0 < rate <= 1.0 and not isnan(size) else None for rate, size in rates_and_sizes]

    @cached_property
    def phases(self) -> list[Phase]:
        """Phases of equal sampling rate. Noise and norms are 1, because checks use the units of each step."""
        phases: list[Phase] = []
        for rate, same in groupby(self.rates):
            sampling = {"scheme": "full"} if rate is None else {"scheme": "poisson", "rate": rate}
            steps = sum(1 for _ in same)
            phases.append(Phase({"steps": steps, "noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": sampling}))
        return phases

    @cached_property
    def scaled_squares(self) -> Array | None:
        """(T,) squared noise of each step in units of the configured variance; None unless all were observed."""
        deviation, squares = self["deviation"], self["noise_squares"]
        if not self.steps or not np.all(deviation > 0.0) or np.isnan(squares).any() or not np.isfinite(deviation).all():
            return None
        with np.errstate(over="ignore"):
            scaled: Array = np.clip(squares / deviation / deviation, 0.0, _HUGE_SUM / self.steps)
        return scaled

    @cached_property
    def configured_multipliers(self) -> list[float | None]:
        """Per step, the configured noise multiplier; 0 without noise, None if the noise was not observed."""
        return [
            None if not sigma < LARGEST_MULTIPLIER or isnan(squares) else (0.0 if squares == 0.0 else float(sigma))
            for sigma, squares in zip(self["noise_multiplier"].tolist(), self["noise_squares"].tolist(), strict=True)
        ]

    @cached_property
    def supported_share(self) -> float:
        """The share, at most 1, of a custom loop's declared noise that the measured noise supports; 1 for Opacus.

        If all noise has s times the declared standard deviation, the squares of its N coordinates over s^2 are a
        chi-square of N degrees of freedom. The declared noise counts if s = 1 is within the one-sided confidence
        interval of level :data:`NOISE_CONFIDENCE`. Otherwise the lower limit of s counts.
        """
        squares, count = self.scaled_squares, self.header.parameters
        noisy = np.zeros(0) if squares is None else squares[squares > 0.0]
        if not self.header.noise_is_reported or not count or not len(noisy):
            return 1.0
        total, freedom = float(noisy.sum()), count * len(noisy)
        if total >= float(special.chdtri(freedom, NOISE_CONFIDENCE)):
            return 1.0
        return min(1.0, sqrt(total / float(special.chdtri(freedom, 1.0 - NOISE_CONFIDENCE))))

    @property
    def counted_share(self) -> float:
        """The share of the noise multipliers that upper bounds count: relative to the longest contribution that
        rounding allows, and of the noise that a measurement supports."""
        return self.supported_share / (1.0 + self.norm_excess)

    @cached_property
    def attained_lengths(self) -> Array:
        """(T,) the length of the contributions, in clip norms and at most 1, that some data attain at a step.

        Lower bounds count the noise multipliers relative to it: Lemma R2c. 0 if no data is known to attain any.
        """
        if self.supported_share < 1.0 or self.sums_type:
            return np.zeros(self.steps)
        if self.header.clipping != "own":
            limits = self.fact(ClipLimits)
            longest = 1.0 if limits is None or limits.smallest >= 1.0 - CLIP_ROUNDING else limits.smallest
            return np.full(self.steps, longest * (1.0 - 2.0 * self.half_unit))
        # a loop may clip to less than the norm that it declares, and to another one in each step
        observed = np.zeros(0) if self.internal is None else np.nan_to_num(self.internal.largest, nan=0.0)
        return _graded(observed) if len(observed) == self.steps else np.zeros(self.steps)

    @cached_property
    def internal(self) -> InternalSums | None:
        """The aggregates of the internal part; None if the folder lacks it."""
        return _internal_sums(self) if self.folder.has_internal else None

    @property
    def has_contributions(self) -> bool:
        """Whether the norm of some contribution was observed."""
        return self.internal is not None and bool(np.isfinite(self.internal.largest).any())

    @cached_property
    def further_rows(self) -> int:
        """The number of rows that each step has beyond its drawn records, if it is the same for batches of many sizes.

        Rows of records, such as their views, are as many more as there are records. Public rows may be a fixed number.
        """
        drawn, further = self["drawn"], self["rows"] - self["drawn"]
        is_same = np.isfinite(further).all() and len(np.unique(further)) == 1
        return int(max(0.0, further[0])) if is_same and len(np.unique(drawn)) >= _SIZES else 0

    @property
    def contribution_gaps(self) -> tuple[int | None, int | None]:
        """The number of drawn records without a contribution, and of steps with another number of contributions.

        Further rows of a fixed number are not counted: the assumption ``public-rows`` is about them.
        """
        both = np.isfinite(self["drawn"]) & np.isfinite(self["rows"])
        missing = (self["drawn"] - self["rows"])[both] + self.further_rows
        return (int(missing.sum()), int((missing != 0).sum())) if both.any() else (None, None)

    @cached_property
    def filled(self) -> Array:
        """(T,) whether Opacus' loader replaced the empty batch of a step by a random row."""
        empty: Array = (self["drawn"] == 0.0) & (self["rows"] > 0.0)
        return empty & self.options.fills_empty

    @property
    def mapped_steps(self) -> int:
        """The number of inspected steps whose other gradients no replay explains, and that replays with other records
        did not move; 0 if a record moved one, or none was replayed: then they deviate."""
        maps, noisy, reported = self.fact(GradientMap), self.fact(NoisyGradients), self.fact(ReportedGradients)
        if maps is None or not maps.replayed or maps.moved:
            return 0
        scaled = 0 if noisy is None or self._follows_sizes else noisy.scaled - noisy.explained
        changed = 0 if noisy is None else noisy.changed
        return changed + (0 if reported is None else reported.different) + scaled

    @property
    def has_mapped_factor(self) -> bool:
        """Whether maps of the noisy gradient give the factors beyond the divisor, or are asked about them.

        A record may have chosen the steps of a constant factor, unless one map gives the gradients of all steps, as a
        clipping does that is rarely active.
        """
        facts, maps = self.fact(NoisyGradients), self.fact(GradientMap)
        if self.end is None:
            return False
        is_of_all = maps is not None and maps.explained > 0 and maps.by_all >= compared_steps(self)
        is_free = is_of_all or self._is_at_all_steps or not self._has_constant_factor
        is_explained = facts is not None and 0 < facts.scaled == facts.explained
        return (is_explained and is_free) or self.mapped_steps > 0

    @property
    def _has_constant_factor(self) -> bool:
        """Whether all factors other than 1 are equal."""
        scaled = self.factors[np.abs(self.factors - 1.0) > self.divisor_precision]
        if len(scaled) == 0:
            return False
        with np.errstate(over="ignore"):
            return bool(np.ptp(scaled) <= self.divisor_precision * np.abs(scaled).max())

    @property
    def _is_at_all_steps(self) -> bool:
        return bool((np.abs(self.factors - 1.0) > self.divisor_precision).all())

    @property
    def _follows_sizes(self) -> bool:
        """Whether the factors rise or fall with the number of records in the batch, or are proportional to it or its
        inverse."""
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = self["divisor"] / self["measured_divisor"]
        observed = np.isfinite(factors) & np.isfinite(self["rows"])
        factors, sizes = factors[observed], self["rows"][observed]
        unique_sizes, places = np.unique(sizes, return_inverse=True)
        means = np.bincount(places, factors) / np.maximum(np.bincount(places), 1)
        is_one = np.abs(factors - means[places]) <= self.divisor_precision * np.abs(factors)
        if len(unique_sizes) < _FEWEST_SIZES or not is_one.all():
            return False
        if np.ptp(means) <= self.divisor_precision * np.abs(means).max():
            return False
        with np.errstate(divide="ignore", invalid="ignore"):
            products = [means * unique_sizes, means / unique_sizes]
        is_power = any(np.ptp(row) <= 2.0 * self.divisor_precision * np.abs(row).max() for row in products)
        return is_power or follow(means[places], sizes)

    @cached_property
    def factors(self) -> Array:
        """(k,) the factors beyond the declared divisor of the steps with a measured one."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # edited divisors may be of any size
            factors: Array = self["divisor"] / self["measured_divisor"]
        return factors[np.isfinite(factors)]

    @property
    def divisor_precision(self) -> float:
        """The relative precision of a measured divisor."""
        return _DIVIDED_HALF if self.sums_type else _DIVIDED

    @property
    def half_excess(self) -> float:
        """Relative amount by which half precision lets a contribution exceed the clip norm; 0 in full precision.

        Lemma R2 of ``docs/explanation/proofs/recorded-runs.md``.
        """
        return 5.0 * self.half_unit

    @property
    def half_unit(self) -> float:
        """The unit roundoff of the half precision in which Opacus computed norms; 0 in full precision."""
        facts = self.fact(Contributions)
        return 0.0 if facts is None else _UNIT.get(facts.norm_type, 0.0)

    @property
    def norm_excess(self) -> float:
        """Relative amount by which rounding lets a contribution exceed the clip norm.

        A norm in half precision is the rounded root of a sum in float32. An excess of float32 within the tolerance of
        clipped norms is 0.
        """
        if set(self.header.dtypes) == {"float64"}:
            return self.half_excess
        excess = float32_excess(self.largest_layer)
        return (1.0 + self.half_excess) * (1.0 + (excess if excess > CLIP_TOLERANCE else 0.0)) - 1.0

    @property
    def largest_layer(self) -> int:
        """The number of values of the largest noisy parameter."""
        return max((size for _, size in self.header.layers), default=0)

    @property
    def sums_type(self) -> str:
        """The half precision type in which clipped gradients were summed; empty for full precision."""
        facts = self.fact(Contributions)
        return facts.sum_type if facts is not None and facts.sum_type in _UNIT else ""


def float32_excess(values: int) -> float:
    """Relative amount by which the norm of a vector of this many values, in float32, may be too small: Lemma R2b."""
    lost = (values / _PARTIAL_SUMS + _OTHER_ROUNDINGS) * _SINGLE
    return (1.0 - lost) ** -0.5 - 1.0 if lost < 1.0 else inf


def _graded(lengths: Array) -> Array:
    """Lengths, at most 1, rounded down to a few values, so that few different steps are composed."""
    gaps = np.clip(1.0 - lengths, 1e-9, 1.0)
    near_one = 1.0 - 10.0 ** (np.ceil(4.0 * np.log10(gaps)) / 4.0)
    graded: Array = np.where(lengths >= 1.0, 1.0, np.maximum(near_one, np.floor(20.0 * lengths) / 20.0))
    return graded


def follow(values: Array, sizes: Array) -> bool:
    """Whether many values rise or fall with the batch sizes at all of at least twelve steps.

    A schedule independent of the batches does so rarely: with three single steps and nine equal ones the probability is
    2 * 9! / 12! = 0.0015, with other sizes or more steps it is smaller.
    """
    different = len(np.unique(sizes))
    if len(sizes) < _FEWEST or len(np.unique(values)) < max(4, different / 2):
        return False
    moves = np.diff(np.unique(np.stack([sizes, values]), axis=1)[1])
    return len(moves) + 1 == different and (bool((moves >= 0).all()) or bool((moves <= 0).all()))


def read_run(path: Path) -> RecordedRun:
    folder = open_run(path, OBSERVERS)
    header = folder.header
    column_values = {name: array("d") for name in COLUMNS}
    layers = np.zeros(len(header.layers))
    quietest = np.full(len(header.layers), np.inf)
    first: list[Array] = []
    last: deque[Array] = deque(maxlen=KEPT)
    end: Facts | None = None
    scored: Scored | None = None
    options = OptionHistory()
    resumed = folder if folder.is_resumed else None
    part, begun, head = 1, 0, KEPT // (1 if resumed is None else len(resumed.parts))
    for step in folder.steps():
        if isinstance(step, Scored):
            scored = step
            continue
        if isinstance(step, Facts):
            end = step
            continue
        options.add(step.step, step.options)
        for name, column in column_values.items():
            column.append(float(getattr(step, name)))
        if step.deviation > 0.0:
            squares = np.zeros(len(layers))
            if len(step.layers):
                with np.errstate(over="ignore"):
                    squares = step.layers.astype(np.float64) / step.deviation / step.deviation
            squares = np.nan_to_num(squares, nan=0.0, posinf=_HUGE)
            layers += squares
            quietest = np.minimum(quietest, squares)
        if resumed is not None and len(resumed.starts) > part:
            part, begun = len(resumed.starts), resumed.starts[-1]
            first += [*last][-head:]
            last.clear()
        if header.width and not (resumed is not None and resumed.is_lost(step.step)):
            # Noise without a declared size has no unit: its directions are in no standard deviations.
            is_scaled = len(step.directions) and step.deviation > 0.0
            row = step.directions if is_scaled else np.zeros(header.width, dtype=np.float16)
            (first if len(first) < KEPT or (begun and step.step <= begun + head) else last).append(row)
    columns = {name: np.array(column) for name, column in column_values.items()}
    for name in ("drawn", "batches", "rows", "updates", "told_steps"):
        columns[name][columns[name] == UNSEEN] = np.nan
    rows = np.stack([*first, *last]).astype(np.float64) if first else np.zeros((0, header.width))
    return RecordedRun(
        folder=folder,
        columns=columns,
        layers=layers,
        quietest=quietest,
        rows=np.nan_to_num(rows, nan=0.0, posinf=65504.0, neginf=-65504.0),
        options=options,
        end=end,
        scored=scored,
    )


def _internal_sums(run: RecordedRun) -> InternalSums:
    records, present, phases = run.header.records, run.header.present or 1, run.phases
    members_seen = records is not None and len(phases) <= MOST_PHASES
    further = run.resumed.lags if run.resumed is not None else ()
    counted = (records or 0) * len(phases) <= MOST_COUNTED
    logs = [
        BatchLog(phase, present, compared_lags([phase], present, further), places=records, counted=counted)
        for phase in phases
        if members_seen
    ]
    ends = np.cumsum([phase.steps for phase in phases])
    columns = {name: array("d") for name in ("largest", "lower", "sum_norm", "reported", "outside")}
    for step in run.folder.internal():
        for name, column in columns.items():
            reported = name == "reported"
            column.append(_summed_norms(step, run["rows"][step.step - 1]) if reported else float(getattr(step, name)))
        if step.members is None or records is None or not logs:
            members_seen = False
            continue
        where = f"{run.folder.path / INTERNAL}: step {step.step}"
        if len(step.members) and step.members[-1] >= records:
            raise RecordingError(f"{where}: record {step.members[-1]} was drawn, of {records}")
        if len(step.members) != run["drawn"][step.step - 1]:
            raise RecordingError(f"{where}: lists {len(step.members)} records, and the step counts another number")
        lost = run.resumed is not None and run.resumed.is_lost(step.step)
        logs[int(np.searchsorted(ends, step.step))].add(step.members, lost=lost)
    sampling, most = None, None
    if members_seen and logs:
        for log in logs:  # without lost steps a phase ends early
            log.end()
        batches = tuple(log.sums() for log in logs)
        sampling = SamplingSums(records=present, repeats=sum(log.repeats for log in logs), batches=batches)
        most = sum(log.most_often or 0 for log in logs) if counted else None
    return InternalSums(
        **{name: np.array(column) for name, column in columns.items()}, sampling=sampling, most_often=most
    )


def _summed_norms(step: InternalStep, rows: float) -> float:
    """An upper bound on the sum of n norms, in clip norms; NaN if norms or n are unknown.

    The quantile at q interpolates between sorted norms, so norms 0 to floor(q (n - 1)) are at most the quantile.
    """
    if not np.isfinite(rows):
        return np.nan
    counts = [int(q * (rows - 1.0)) + 1 if rows else 0 for q in (0.25, 0.5, 0.75, 1.0)]
    upper = (step.lower, step.middle, step.upper, step.largest)
    return float(sum(count * norm for count, norm in zip(np.diff([0, *counts]).tolist(), upper, strict=True)))


def evidence(run: RecordedRun) -> RunEvidence:
    """The conformance evidence of a run, as of a backend's trial."""
    internal, scaled, count = run.internal, run.scaled_squares, run.header.parameters
    observed_steps = {
        "batches": int(np.isfinite(run["drawn"]).sum()),
        "noise": int((run["noise_squares"] > 0.0).sum()),
        "norms": int(np.isfinite(run["rows"]).sum()),
    }
    norms = None
    if internal is not None and run.has_contributions:
        largest = np.nan_to_num(internal.largest, nan=0.0, posinf=_HUGE_SUM).max()
        missing, astray = run.contribution_gaps
        longest = float(np.clip(largest, 0.0, _HUGE_SUM)) / (1.0 + run.norm_excess)
        norms = NormSums(largest=longest, missing=missing, astray=astray)
    return RunEvidence(
        told=ReportedSteps(**{name: count for name, count in observed_steps.items() if count}),
        sampling_log=internal.sampling if internal is not None and None not in run.rates else None,
        # One row: noise_checks tests products of rows, normalized, and so with an exact null distribution.
        noise_log=NoiseSums.of(scaled, run.rows[:1], count) if scaled is not None and count and len(run.rows) else None,
        norm_log=norms,
    )
