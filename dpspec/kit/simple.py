"""A mechanism with only an upper bound on epsilon."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import dpspec.contract as dps
from dpspec.contract.audit import NO_TRIALS
from dpspec.kit.specs import block

if TYPE_CHECKING:
    from dpspec.accounting import Interval

_NO_AUDIT = "an upper bound is all that mechanism {!r} has: it attacks nothing"


class SimpleMechanism(dps.Audit):
    """Base class of a mechanism. Yield ``YourMechanism.offer()`` from the hook ``dpspec_mechanisms``.

    Attributes:
        kind: Name in specs.
        schema: Schema fragment per key (``kit.number``, ...); keys without default are required.
        assumptions: Assumptions of every bound besides the formula.
        example: A whole spec as YAML, which the conformance suite runs.
        source: Publication that proves the bound.
        method: Computation method. Default: the kind.
        rigor: ``certified`` if :meth:`epsilon` returns an interval with an outward-rounded upper end, ``theorem`` if it
            evaluates a proved formula in float64. Core adds ``library-accuracy`` to certified bounds.
        scope: Default: add-remove neighbors, any data, every release observed.
        iterative: Whether specs give ``steps`` or ``phases``.

    Example::

        class Laplace(kit.SimpleMechanism):
            kind = "laplace"
            schema = {"scale": kit.number("Scale of the noise on a count.", above=0)}
            source = "Dwork, McSherry, Nissim and Smith 2006, Theorem 1"
            example = EXAMPLE

            def epsilon(self, spec, delta, group_size):
                return group_size / spec.mechanism["scale"]
    """

    kind: ClassVar[str]
    schema: ClassVar[Mapping[str, dps.Json]]
    example: ClassVar[str]
    source: ClassVar[str]
    summary: ClassVar[str] = ""
    assumptions: ClassVar[tuple[dps.Assumption, ...]] = ()
    method: ClassVar[str] = ""
    rigor: ClassVar[dps.findings.Rigor] = "theorem"
    scope: ClassVar[dps.Scope] = dps.Scope()
    iterative: ClassVar[bool] = False
    trial_revision: ClassVar[int] = 1
    revision_only: ClassVar[bool] = False
    audit_schema: ClassVar[Mapping[str, dps.Json]] = {}

    @abstractmethod
    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> Interval | float:
        """Upper bound on epsilon at ``delta`` for groups of up to ``group_size`` units, in the class's ``scope``.

        For an interval, the upper end is the bound and the lower end shows its tightness. ``inf`` if there is none.
        """

    @classmethod
    def offer(cls) -> dps.Mechanism:
        """Descriptor for the hook."""
        return dps.Mechanism(
            kind=cls.kind,
            summary=cls.summary or _first_line(cls.__doc__) or cls.kind,
            schemas=dps.Schemas(
                mechanism=_block(cls.schema),
                threat_model=_block({"adjacency": _only(cls.scope.adjacency)}, optional=True),
                audit=_block(cls.audit_schema, optional=True),
            ),
            claims=frozenset({"approx-dp", "pure-dp"}),
            audit=f"{cls.__module__}:{cls.__qualname__}",
            example=cls.example,
            steps=cls.iterative,
            trial_revision=cls.trial_revision,
            revision_only=cls.revision_only,
        )

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        """Reject an ``audit`` block. Extend this for errors that the schema cannot express."""
        if spec.audit is not None:
            message = _NO_AUDIT.format(self.kind)
            yield dps.Diagnostic(code="unsupported", message=message, path=("audit",), help="leave audit out")

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterable[dps.Finding]:
        """Evaluate :meth:`epsilon` for every group size at each claimed delta and at 0."""
        for size, delta in conditions(spec):
            found = self.epsilon(spec, delta, size)
            lower, upper = (None, float(found)) if isinstance(found, int | float) else (found.lower, found.upper)
            if not math.isnan(upper):
                yield self._upper(upper, lower, delta, size)

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        """No trials."""
        return NO_TRIALS

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterable[dps.Trial]:
        """No trials."""
        return ()

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterable[dps.Outcome]:
        """No conclusions."""
        return ()

    def _upper(self, value: float, lower: float | None, delta: float, group_size: int) -> dps.Finding:
        return dps.Finding(
            quantity="epsilon",
            value=value,
            lower=lower,
            bound="upper",
            rigor=self.rigor,
            method=self.method or self.kind,
            source=self.source,
            at=dps.FrozenMap({"delta": delta, "group_size": group_size}),
            scope=self.scope,
            assumptions=_with_accuracy(self.assumptions) if self.rigor == "certified" else self.assumptions,
        )


def conditions(spec: dps.Spec) -> list[tuple[int, float]]:
    """All group sizes of the spec with each delta claimed for it and 0, in order."""
    sizes = {(size, 0.0) for size in spec.threat_model.group_size}
    claimed = {(c.group_size, d) for c in spec.claims for d in (0.0, float(c.options.get("delta", 0.0)))}
    return sorted(sizes | claimed)


def _with_accuracy(assumptions: tuple[dps.Assumption, ...]) -> tuple[dps.Assumption, ...]:
    """Add the assumption on the accuracy of library functions, if missing."""
    from dpspec.accounting import library_accuracy

    accuracy = library_accuracy()
    return (*(a for a in assumptions if a.name != accuracy.name), accuracy)


def _only(value: str) -> dict[str, Any]:
    return {"enum": [value], "default": value, "description": "Which data sets are neighbours."}


def _block(properties: Mapping[str, Any], *, optional: bool = False) -> dict[str, Any]:
    required = [] if optional else [key for key, fragment in properties.items() if "default" not in fragment]
    return block(None, required or None, **properties)


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n", 1)[0].rstrip(".")
