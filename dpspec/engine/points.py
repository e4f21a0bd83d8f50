"""One number of a spec at many values: the spec with that value, validated, bounded and judged, each value once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dpspec.contract import Catalog, DataError, Event, Finding, Progressed, Spec, StageStarted
from dpspec.engine.context import RunContext
from dpspec.engine.judge import Unjudged, judge
from dpspec.engine.prepare import Prepared, prepare, unreadable
from dpspec.engine.result import Verdict
from dpspec.errors import SpecError
from dpspec.spec.load import from_document
from dpspec.spec.numeric import NumericKey, with_value
from dpspec.spec.tree import locate


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


class Bench:
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
        if base is None or self.key.path[0] in ("data", "model", "training"):
            prepared = prepare(spec, self._catalog)
        else:  # neither data nor model can have changed: they need not be described again
            audit = type(base.audit)()
            found = tuple(locate(d, spec.origin) for d in audit.check(spec, base.facts))
            prepared = dataclasses.replace(base, spec=spec, audit=audit, diagnostics=found)
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
        (judged,) = judge([Unjudged(spec=prepared.spec, findings=findings)])
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
            return tuple(o for o in prepared.audit.bound(prepared.spec, context) if isinstance(o, Finding))
        except DataError as error:
            raise SpecError([unreadable(error, self.spec)]) from error
        finally:
            context.close()

    def _tell(self, event: Event) -> None:
        if self._emit is not None:
            self._emit(event)
