"""Search for the minimum noise, the maximum number of steps or the largest group for which claims are proved.

The search computes bounds and trains nothing. Every tried value is put into the spec, validated, bounded and judged;
the returned values were judged, at both ends of the bracket. Some rules leave gaps: steps must be a multiple of the
epoch. The search runs over these multiples.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dpspec.accounting import NeverHoldsError, find_boundary
from dpspec.contract import DataError, Finding, Json, Spec
from dpspec.contract.catalog import Catalog
from dpspec.contract.events import Event, StageStarted
from dpspec.contract.frozen import canonical_json
from dpspec.contract.results import Verdict
from dpspec.engine.judging.claim_tests import Concluded
from dpspec.engine.judging.judge import judge
from dpspec.engine.preparing.assumptions import with_assumptions
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.diagnostics import data_unreadable
from dpspec.engine.preparing.prepare import Prepared, audit_of, prepare
from dpspec.errors import SpecError, UsageError
from dpspec.language.load import from_document
from dpspec.language.numeric_values import NumericKey, dotted, given_numbers, numeric_key, with_value
from dpspec.language.yaml_source import locate, source_file
from dpspec.results.evidence_weight import claim_scope, weighed_findings
from dpspec.results.inequalities import statement
from dpspec.text import closest, did_you_mean, joined, listed, quoted

#: Maximum distance of valid integers.
_MOST_STEP = 1_000_000

#: Multiples of the last valid value that are tested for validity beyond it.
_FACTORS = (2, 3, 5, 10, 100)


def spacing(start: int, low: float, high: float, is_valid: Callable[[int], bool]) -> int:
    """The distance of valid integers: the smallest divisor of ``start`` whose next three steps are valid, else 1."""
    for step in range(1, min(start, _MOST_STEP) + 1):
        for sign in (1, -1) if start % step == 0 else ():
            next_values = [start + sign * step * i for i in (1, 2, 3)]
            if all(low <= value <= high and is_valid(value) for value in next_values):
                return step
    return 1


def valid_beyond(last: float, high: float, is_valid: Callable[[int], bool]) -> int | None:
    """A valid multiple of the last value that a search reached; None if none is found."""
    return next((v for v in (int(last) * factor for factor in _FACTORS) if v <= high and is_valid(v)), None)


@dataclass(frozen=True, kw_only=True)
class Point:
    """The chosen claims at one value; ``problem`` explains missing verdicts, ``private`` marks data-dependent ones."""

    value: float
    verdicts: tuple[Verdict, ...] = ()
    problem: str = ""
    private: bool = False
    spec: Spec | None = field(default=None, repr=False)
    findings: tuple[Finding, ...] = field(default=(), repr=False)

    @property
    def proved(self) -> bool:
        return bool(self.verdicts) and all(verdict.verdict == "proved" for verdict in self.verdicts)


@dataclass
class Evaluations:
    spec: Spec
    catalog: Catalog
    key: NumericKey
    claims: tuple[str, ...]
    emit: Callable[[Event], None] | None = None
    points: dict[float, Point] = field(default_factory=dict)
    _base: Prepared | None = None

    def at(self, value: float) -> Point:
        if value in self.points:
            return self.points[value]
        if self.emit is not None:
            self.emit(StageStarted(audit=self.spec.name, stage=f"{self.key.place} = {self.key.spelling(value)}"))
        try:
            prepared = self.candidate(value)
            findings = self._findings(prepared)
        except SpecError as error:
            point = Point(value=value, problem=f"the spec is not valid there: {error}")
        except (ValueError, ArithmeticError, MemoryError) as error:
            point = Point(value=value, problem=f"no bound could be computed: {error or type(error).__name__}")
        else:
            (judged,) = judge([Concluded(spec=prepared.spec, findings=findings)])
            verdicts = tuple(v for name in self.claims for v in judged.verdicts if v.claim == name)
            used = [i for v in verdicts for i in (v.upper_finding, v.lower_finding) if i is not None]
            private = any(judged.findings[i].privacy != "public" for i in used)
            spec, findings = prepared.spec, judged.findings
            point = Point(value=value, verdicts=verdicts, private=private, spec=spec, findings=findings)
        self.points[value] = point
        return point

    def wrong(self, value: float) -> str:
        """Why the spec is not valid with this value; empty if it is."""
        try:
            self.candidate(value)
        except SpecError as error:
            return next(d.message for d in error.diagnostics if d.severity == "error")
        return ""

    def candidate(self, value: float) -> Prepared:
        respecified = from_document(
            with_value(self.spec, self.key, value),
            self.catalog,
            self.spec.directory,
            name=self.spec.name,
            cell=self.spec.cell,
        )
        spec = dataclasses.replace(respecified, audit=None, origin=self.spec.origin)
        base = self._base
        if base is None or self.key.path[0] in ("data", "model", "training") or base.components:
            prepared = prepare(spec, self.catalog)
        else:  # neither data nor model can have changed: they need not be described again
            audit = audit_of(self.catalog.mechanisms[spec.mechanism.kind])
            diagnostics = tuple(locate(d, spec.origin) for d in audit.check(spec, base.facts))
            prepared = dataclasses.replace(base, spec=spec, audit=audit, diagnostics=diagnostics)
        errors = [d for d in prepared.diagnostics if d.severity == "error"]
        if errors:
            raise SpecError(errors)
        self._base = prepared
        return prepared

    def _findings(self, prepared: Prepared) -> tuple[Finding, ...]:
        from dpspec.training import limited

        spec, inputs = prepared.spec, prepared.trial_inputs()
        context = RunContext(prepared, self.catalog, inputs, device="cpu", emit=self.emit)
        try:
            with limited(1):  # as in a run
                outcomes = list(with_assumptions(prepared.audit.bound(spec, context), spec, prepared.constants, {}))
            return tuple(outcome for outcome in outcomes if isinstance(outcome, Finding))
        except DataError as error:
            raise SpecError([data_unreadable(error, self.spec)]) from error


#: Factors of compared values relative to the start, nearest first.
_DISTANCES = (1.25, 0.8, 2.0, 0.5, 16.0, 1.0 / 16.0, 1e4, 1e-4)

#: Relative difference below which values are equal.
_SAME = 1e-9


#: Relative difference of proving bounds that no rounding and no width of a search explains.
_CLEAR = 1e-2


def trend(evaluations: Evaluations, start: float, low: float, high: float, step: int) -> bool | None:
    """Whether larger values increase the margins of the claims; None if no two tried values differ.

    If the intervals of two bounds overlap, their proving ends decide: a release that declares only its guarantee has
    the same lower end for every guarantee.
    """
    start_point, first = evaluations.at(start), start / step
    indices = [first * factor for factor in _DISTANCES]
    if evaluations.key.integer:
        indices = [*map(float, map(round, indices)), first + 1.0, first - 1.0]
    for index in dict.fromkeys(min(max(index_tried, low), high) for index_tried in indices):
        if index == first:
            continue
        for proving_only in (False, True):
            point = evaluations.at(index * step)
            gaining, losing = changes(evaluations, start_point, point, proving_only=proving_only)
            if gaining and losing:
                raise UsageError(
                    f"increasing {evaluations.key.place} improves {listed(gaining)} and worsens {listed(losing)}: "
                    "choose claims with --claim, one direction at a time"
                )
            if gaining or losing:
                return bool(gaining)
    return None


def changes(
    evaluations: Evaluations, first: Point, second: Point, *, proving_only: bool = False
) -> tuple[list[str], list[str]]:
    """The chosen claims whose margin certainly increases with the value, and those for which it decreases.

    proving_only: compare the bounds that prove, without the other ends of their intervals.
    """
    smaller, larger = sorted((first, second), key=lambda point: point.value)
    gaining, losing = [], []
    for name in evaluations.claims:
        for a, b in zip(_margins(smaller, name), _margins(larger, name), strict=False):  # the first clear change counts
            unclear = (_CLEAR if proving_only else _SAME) * max(a[2], b[2])
            if b[0] > (a[0] if proving_only else a[1]) + unclear:
                gaining.append(name)
                break
            if a[0] > (b[0] if proving_only else b[1]) + unclear:
                losing.append(name)
                break
    return gaining, losing


def crossing(low: Point, high: Point) -> float | None:
    """An estimate of the value between two others at which the claims change, with bounds as powers of the value."""
    a, b = _excess(low), _excess(high)
    if a is None or b is None or a * b > 0.0 or a == b or low.value <= 0.0:
        return None
    return low.value * math.exp(math.log(high.value / low.value) * a / (a - b))


def _excess(point: Point) -> float | None:
    """The largest ratio of a bound to its claim, as a logarithm; None if it is undefined."""
    logs = []
    for verdict in point.verdicts:
        if not verdict.provable or not verdict.claimed or min(verdict.provable, verdict.claimed) < 0.0:
            return None
        logs.append(math.log(verdict.provable / verdict.claimed))
    return max(logs, default=None)


def _margins(point: Point, name: str) -> list[tuple[float, float, float]]:
    """Per part both ends of the margin, which differ if a bound is known not to be tight, and its scale."""
    if point.spec is None:
        return []
    claim = next(c for c in point.spec.claims if c.id == name)
    margins: list[tuple[float, float, float]] = []
    for part in statement(claim).parts:
        weighed = weighed_findings(part, claim_scope(point.spec, claim), point.findings)
        best = next((s.finding for s in weighed if s.strength == "proof" and math.isfinite(s.value)), None)
        if best is None:
            margins.append((-math.inf, -math.inf, 0.0))
            continue
        sign = 1.0 if part.side == "at-most" else -1.0
        ends = [sign * (part.claimed - value) for value in (best.value, best.lower) if value is not None]
        margins.append((min(ends), max(ends), max(abs(part.claimed), abs(best.value))))
    return margins


#: Relative precision of real values.
PRECISION = 1e-3


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The result for one spec, or one cell of its matrix.

    ``proved`` is the last value at which all claims are proved, ``unproved`` the next valid integer or a real value
    within the precision; None if all are proved up to the limit. Without ``proved``, it is the limit that was tried.
    ``valid_beyond`` is a known valid value beyond the ``limit``. ``contradictions`` are tried values that contradict a
    monotonic bound.
    """

    name: str
    source: str
    cell: tuple[str, ...]
    key: NumericKey
    claims: tuple[str, ...]
    more_helps: bool
    proved: Point | None
    unproved: Point | None
    limit: str
    evaluations: int
    contradictions: tuple[float, ...] = ()
    valid_beyond: float | None = None

    @property
    def complete(self) -> bool:
        return self.proved is not None and self.valid_beyond is None

    def as_json(self) -> dict[str, Json]:
        """The values and the verdicts at them, without rounding."""

        def point(tried: Point | None) -> Json:
            if tried is None:
                return None
            verdicts = [
                {"claim": v.claim, "verdict": v.verdict, "claimed": v.claimed, "upper": v.upper, "reason": v.reason}
                for v in tried.verdicts
            ]
            return {"value": tried.value, "problem": tried.problem, "verdicts": verdicts}

        return {
            "name": self.name,
            "source": self.source,
            "cell": self.cell,
            "vary": self.key.place,
            "claims": self.claims,
            "proved": point(self.proved),
            "unproved": point(self.unproved),
            "limit": self.limit,
            "valid_beyond": self.valid_beyond,
            "contradictions": self.contradictions,
            "complete": self.complete,
        }

    @property
    def private(self) -> bool:
        return any(point.private for point in (self.proved, self.unproved) if point is not None)


def calibrate_specs(
    specs: Iterable[Spec],
    catalog: Catalog,
    *,
    vary: str,
    claims: Sequence[str] = (),
    relative: float = PRECISION,
    internal: bool = False,
    emit: Callable[[Event], None] | None = None,
) -> tuple[Calibration, ...]:
    """Calibrate each spec; a value that depends on the data is an error unless ``internal``."""
    calibrations = tuple(
        calibrate_spec(spec, catalog, vary=vary, claims=claims, relative=relative, emit=emit) for spec in specs
    )
    secret = [calibration.name for calibration in calibrations if calibration.private]
    if secret and not internal:
        raise UsageError(
            f"the value found for {', '.join(secret)} depends on the data, as the bounds that decide it do: "
            "--internal (internal=True) shows it; do not publish it"
        )
    return calibrations


def calibrate_spec(
    spec: Spec,
    catalog: Catalog,
    *,
    vary: str,
    claims: Sequence[str] = (),
    relative: float = PRECISION,
    emit: Callable[[Event], None] | None = None,
) -> Calibration:
    """Find the last value of the number ``vary`` at which the chosen claims are proved, without the audit block."""
    chosen = _chosen(spec, claims)
    key = numeric_key(spec, catalog, vary)
    if key.value is not None and not key.low <= key.value <= key.high:
        raise UsageError(f"{key.place} is {key.spelling(key.value)}; only numbers from 0 up can be varied")
    evaluations = Evaluations(spec, catalog, key, chosen, emit)
    positive = key.value is not None and key.value > 0
    start = float(key.value or 0) if positive else min(max(1.0, key.low), key.high)
    evaluations.candidate(start)  # reports errors of the spec itself

    def is_valid(value: float) -> bool:
        return not evaluations.wrong(value)

    def guess(first: float, second: float) -> float | None:
        value = crossing(evaluations.at(first * step), evaluations.at(second * step))
        return None if value is None else value / step

    step = spacing(int(start), key.low, key.high, is_valid) if key.integer else 1
    low, high, limits = _valid_range(evaluations, start, step)
    if low == high:
        reasons = " and ".join(dict.fromkeys(limits))
        raise UsageError(
            f"{key.place} = {key.spelling(start)} has no valid neighbor ({reasons}): set other values one by one"
        )
    more_helps = trend(evaluations, start, low, high, step)
    proved: Point | None = None
    unproved: Point | None = None
    contradictions: tuple[float, ...] = ()
    limit = ""
    if more_helps is None:
        unproved = evaluations.at(start)
        if unproved.proved or any(v.provable is not None for v in unproved.verdicts):
            sizes = key.place == "threat_model.group_size"
            mechanism_numbers = [name for name in given_numbers(spec, catalog) if name.startswith("mechanism.")]
            alternatives = listed(name for name in mechanism_numbers if name != key.place)
            advice = (
                "each claim states its group size: claims.ID.group_size" if sizes else f"vary another: {alternatives}"
            )
            subject = f"bound for {chosen[0]} does" if len(chosen) == 1 else f"bounds for {joined(chosen)} do"
            raise UsageError(f"the {subject} not depend on {key.place}; {advice}")
    else:
        worst, best = limits if more_helps else limits[::-1]
        try:
            boundary = find_boundary(
                lambda index: evaluations.at(index * step).proved,
                low,
                high,
                increasing=more_helps,
                integer=key.integer,
                relative=relative,
                start=start / step,
                guess=guess,
            )
        except NeverHoldsError as error:
            unproved, limit = evaluations.at(error.limit * step), best
            gaining, losing = changes(evaluations, evaluations.at(start), unproved)
            turned = losing if more_helps else gaining
            contradictions = tuple(value * step for value in error.contradictions) or (
                (unproved.value,) if turned else ()
            )
        else:
            proved = evaluations.at(boundary.value * step)
            contradictions = tuple(value * step for value in boundary.contradictions)
            if boundary.fails_at is None:
                limit = worst
            else:
                unproved = evaluations.at(boundary.fails_at * step)
    upwards = limit != "" and limit == limits[1]
    beyond = None
    if key.integer and upwards:
        beyond = valid_beyond(high * step, key.high, is_valid)
    cell = {p: canonical_json(value) for p, value in spec.cell.items() if p not in (key.place, dotted(key.path))}
    return Calibration(
        name=spec.name,
        source=source_file(spec.origin),
        cell=tuple(f"{axis}={value}" for axis, value in cell.items()),
        key=key,
        claims=chosen,
        more_helps=bool(more_helps),
        proved=proved,
        unproved=unproved,
        limit=limit,
        evaluations=len(evaluations.points),
        contradictions=contradictions,
        valid_beyond=beyond,
    )


def _chosen(spec: Spec, claims: Sequence[str]) -> tuple[str, ...]:
    about = {claim.id: claim for claim in spec.claims}
    for name in claims:
        if name not in about:
            suggestion = did_you_mean(closest(name, about))
            raise UsageError(f"spec {quoted(spec.name)} has no claim {quoted(name)}{suggestion} ({listed(about)})")
        if about[name].kind == "metric":
            raise UsageError(f"claim {quoted(name)} is about a metric, which no bound proves")
    if claims:
        return tuple(dict.fromkeys(claims))
    chosen = tuple(c.id for c in spec.claims if statement(c).about_privacy and "proved" in c.expect)
    if not chosen:
        raise UsageError(
            f"spec {quoted(spec.name)} has no claim about privacy that is expected to be proved: choose by --claim"
        )
    return chosen


def _valid_range(evaluations: Evaluations, start: float, step: int) -> tuple[float, float, tuple[str, str]]:
    """The first and the last multiple of ``step`` that are valid around ``start``, and why the range ends there."""
    key = evaluations.key
    first = start / step
    ends: list[float] = []
    reasons: list[str] = []
    ends_of_key = (key.low, key.high) if step == 1 else (-(-key.low // step), key.high // step)
    for limit in ends_of_key:
        if not evaluations.wrong(limit * step):
            ends.append(limit)
            reasons.append(f"the range ends at {key.spelling(limit * step)}")
            continue
        boundary = find_boundary(
            lambda index: not evaluations.wrong(index * step),
            min(first, limit),
            max(first, limit),
            increasing=limit < first,
            integer=key.integer,
            relative=1e-9,
            start=first,
        )
        ends.append(boundary.value)
        assert boundary.fails_at is not None  # the limit fails
        fails = boundary.fails_at * step
        reasons.append(f"{key.spelling(fails)} is not valid: {evaluations.wrong(fails)}")
    return ends[0], ends[1], (reasons[0], reasons[1])
