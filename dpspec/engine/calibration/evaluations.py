"""One number of a spec at many values, each value once, and whether more of it helps or hurts the claims."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from dpspec.contract import DataError, Finding, Spec
from dpspec.contract.catalog import Catalog
from dpspec.contract.events import Event, Progressed, StageStarted
from dpspec.engine.calibration.valid_integers import ValidIntegers
from dpspec.engine.judging.evidence_weight import claim_scope, proving_findings
from dpspec.engine.judging.inequalities import statement
from dpspec.engine.judging.judge import judge
from dpspec.engine.judging.judge_input import Concluded
from dpspec.engine.preparing.checked_providers import audit_of
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.outcome_assumptions import with_constants, with_initial_weights
from dpspec.engine.preparing.prepare import Prepared, data_unreadable, prepare
from dpspec.engine.results.result import Verdict
from dpspec.errors import SpecError, UsageError
from dpspec.language.load import from_document
from dpspec.language.numeric_values import NumericKey, with_value
from dpspec.language.reading.tree import locate
from dpspec.text import listed


@dataclass(frozen=True, kw_only=True)
class Point:
    """The chosen claims at one value of the key.

    problem: why nothing could be computed there; there are no verdicts then.
    private: whether a verdict rests on a number that speaks of the data itself.
    """

    value: float
    verdicts: tuple[Verdict, ...] = ()
    problem: str = ""
    private: bool = False
    spec: Spec | None = field(default=None, repr=False)
    findings: tuple[Finding, ...] = field(default=(), repr=False)

    @property
    def proved(self) -> bool:
        """Whether every chosen claim is proved."""
        return bool(self.verdicts) and all(verdict.verdict == "proved" for verdict in self.verdicts)


class Evaluations:
    """Judges the chosen claims of one spec at any value of one key."""

    def __init__(
        self,
        spec: Spec,
        catalog: Catalog,
        key: NumericKey,
        claims: Sequence[str],
        emit: Callable[[Event], None] | None = None,
    ) -> None:
        self.spec = spec
        self.key = key
        self.claims = tuple(claims)
        self._catalog = catalog
        self._emit = emit
        self._base: Prepared | None = None
        self._points: dict[float, Point] = {}

    @property
    def judged(self) -> int:
        """How many values were judged."""
        return len(self._points)

    def at(self, value: float) -> Point:
        """The claims at one value; values that are not valid or not computable prove nothing, and say why."""
        if value not in self._points:
            self._points[value] = self._judge(value)
        return self._points[value]

    def wrong(self, value: float) -> str:
        """Why the spec is not valid with this value; empty where it is."""
        try:
            self.candidate(value)
        except SpecError as error:
            return next(d.message for d in error.diagnostics if d.severity == "error")
        return ""

    def candidate(self, value: float) -> Prepared:
        """The spec with this value, ready to be bounded. Raises ``SpecError`` where it is not valid."""
        made = from_document(
            with_value(self.spec, self.key, value),
            self._catalog,
            self.spec.directory,
            name=self.spec.name,
            cell=self.spec.cell,
        )
        spec = dataclasses.replace(made, audit=None, origin=self.spec.origin)
        base = self._base
        if base is None or self.key.path[0] in ("data", "model", "training") or base.components:
            prepared = prepare(spec, self._catalog)
        else:  # neither data nor model can have changed: they need not be described again
            audit = audit_of(self._catalog.mechanisms[spec.mechanism.kind])
            diagnostics = tuple(locate(d, spec.origin) for d in audit.check(spec, base.facts))
            prepared = dataclasses.replace(base, spec=spec, audit=audit, diagnostics=diagnostics)
        errors = [d for d in prepared.diagnostics if d.severity == "error"]
        if errors:
            raise SpecError(errors)
        self._base = prepared
        return prepared

    def _judge(self, value: float) -> Point:
        what = f"{self.key.place} = {self.key.spelling(value)}"
        self._tell(StageStarted(audit=self.spec.name, stage=what))
        try:
            prepared = self.candidate(value)
            findings = self._findings(prepared, what)
        except SpecError as error:
            return Point(value=value, problem=f"the spec is not valid there: {error}")
        except (ValueError, ArithmeticError, MemoryError) as error:
            return Point(value=value, problem=f"no bound could be computed: {error or type(error).__name__}")
        (judged,) = judge([Concluded(spec=prepared.spec, findings=findings)])
        verdicts = tuple(v for name in self.claims for v in judged.verdicts if v.claim == name)
        used = [i for v in verdicts for i in (v.upper_finding, v.lower_finding) if i is not None]
        return Point(
            value=value,
            verdicts=verdicts,
            private=any(judged.findings[i].privacy != "public" for i in used),
            spec=prepared.spec,
            findings=judged.findings,
        )

    def _findings(self, prepared: Prepared, what: str) -> tuple[Finding, ...]:
        def tell(event: Event) -> None:
            if isinstance(event, Progressed):
                event = dataclasses.replace(event, what=f"{what}, {event.what}" if event.what else what)
            self._tell(event)

        inputs = prepared.audit.trial_inputs(prepared.spec)
        context = RunContext(prepared, self._catalog, inputs, device="cpu", emit=tell)
        try:
            spec, bounds = prepared.spec, prepared.audit.bound(prepared.spec, context)
            found = [with_constants(prepared.constants, b, spec) for b in bounds if isinstance(b, Finding)]
            return tuple(o for o in with_initial_weights(found, spec) if isinstance(o, Finding))
        except DataError as error:
            raise SpecError([data_unreadable(error, self.spec)]) from error
        finally:
            context.close()

    def _tell(self, event: Event) -> None:
        if self._emit is not None:
            self._emit(event)


#: How far from the start values are compared, nearest first.
_FACTORS = (1.25, 0.8, 2.0, 0.5, 16.0, 1.0 / 16.0, 1e4, 1e-4)

#: Relative differences below this are round-off.
_SAME = 1e-9


@dataclass(frozen=True)
class _Room:
    """By how much a bound keeps an inequality: ``most`` is more where the accountant knows the bound is not tight."""

    least: float
    most: float
    scale: float


def trend(evaluations: Evaluations, start: float, low: float, high: float, valid: ValidIntegers) -> bool | None:
    """Whether larger values of the key leave the chosen claims more room; None if no two tried values differ.

    low, high: the first and the last index of the valid values.

    Raises:
        UsageError: Some claims gain what others lose.
    """
    here = evaluations.at(start)
    for index in _others(evaluations, valid.index(start), low, high):
        other = valid.value(index)
        gaining, losing = changes(evaluations, here, evaluations.at(other))
        if gaining and losing:
            raise UsageError(
                f"increasing {evaluations.key.place} improves {listed(gaining)} and worsens {listed(losing)}: "
                "choose claims with --claim, one direction at a time"
            )
        if gaining or losing:
            return bool(gaining)
    return None


def changes(evaluations: Evaluations, one: Point, other: Point) -> tuple[list[str], list[str]]:
    """The chosen claims that surely have more room at the larger of two values, and those that surely have less."""
    less, more = sorted((one, other), key=lambda point: point.value)
    signs = {name: _sign(_room(less, name), _room(more, name)) for name in evaluations.claims}
    return [name for name, sign in signs.items() if sign > 0], [name for name, sign in signs.items() if sign < 0]


def crossing(low: Point, high: Point) -> float | None:
    """Where between two values the claims may begin or cease to be proved: bounds taken as powers of the value."""
    a, b = _excess(low), _excess(high)
    if a is None or b is None or a * b > 0.0 or a == b or low.value <= 0.0:
        return None
    return low.value * math.exp(math.log(high.value / low.value) * a / (a - b))


def _excess(point: Point) -> float | None:
    """How far the worst of the bounds lies above its claim, on a logarithmic scale; None where that says nothing."""
    logs = []
    for verdict in point.verdicts:
        if not verdict.provable or not verdict.claimed or min(verdict.provable, verdict.claimed) < 0.0:
            return None
        logs.append(math.log(verdict.provable / verdict.claimed))
    return max(logs, default=None)


def _others(evaluations: Evaluations, start: float, low: float, high: float) -> Iterator[float]:
    seen = {start}
    next_to = (start + 1.0, start - 1.0) if evaluations.key.integer else ()
    for other in (*(start * factor for factor in _FACTORS), *next_to):
        rounded = float(round(other)) if evaluations.key.integer else other
        other = min(max(rounded, low), high)
        if other not in seen:
            seen.add(other)
            yield other


def _room(point: Point, name: str) -> list[_Room]:
    """For each inequality of a claim, by how much its best proved bound keeps it."""
    if point.spec is None:
        return []
    claim = next(c for c in point.spec.claims if c.id == name)
    rooms: list[_Room] = []
    for part in statement(claim).parts:
        weighed = proving_findings(part, claim_scope(point.spec, claim), point.findings)
        best = next((s.finding for s in weighed if s.strength == "proof" and math.isfinite(s.value)), None)
        if best is None:
            rooms.append(_Room(-math.inf, -math.inf, 0.0))
            continue
        sign = 1.0 if part.side == "at-most" else -1.0
        ends = [sign * (part.claimed - value) for value in (best.value, best.lower) if value is not None]
        rooms.append(_Room(min(ends), max(ends), max(abs(part.claimed), abs(best.value))))
    return rooms


def _sign(less: list[_Room], more: list[_Room]) -> int:
    """1 where an inequality has surely more room at the larger value, -1 where surely less, 0 where none is clear.

    Of a claim's inequalities the first clear one decides.
    """
    for a, b in zip(less, more, strict=False):
        unclear = _SAME * max(a.scale, b.scale)
        if b.least > a.most + unclear:
            return 1
        if a.least > b.most + unclear:
            return -1
    return 0
