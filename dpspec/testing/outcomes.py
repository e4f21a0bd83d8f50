"""Flaws of findings, series, checks and evidence, and the direction in which bounds move with a key."""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dpspec.contract import Evidence, Finding, Json, Outcome, Series, Spec
from dpspec.engine.judging.evidence_weight import claim_scope, covers, shortfall
from dpspec.engine.judging.inequalities import statement

#: The quantities of claims. A plugin may report others; a near miss is a typo.
QUANTITIES = ("epsilon", "delta", "mu", "gamma", "tpr", "fpr", "advantage", "accuracy")

#: The valid values of :class:`~dpspec.contract.Scope`.
_SCOPE = {
    "adjacency": ("add-remove", "replace-one", "zero-out"),
    "direction": ("add", "remove", "both"),
    "access": ("all-iterates", "final-model", "transcript"),
    "adversary": ("gradient", "record", "none"),
    "data": ("all", "collection", "this", "planted"),
    "pipeline": ("declared", "executed"),
}


def unanswered(spec: Spec, findings: Sequence[Finding]) -> Iterator[str]:
    """Describe claims without an upper bound of their quantity and scope: they stay open at any value."""
    found = sorted({f.quantity for f in findings if f.bound == "upper"})
    other = sorted({f.bound for f in findings})
    available = f"upper bounds are of {', '.join(found)}" if found else f"bounds are {', '.join(other) or 'absent'}"
    for claim in spec.claims:
        for quantity in {part.quantity: None for part in statement(claim).parts if part.side == "at-most"}:
            if quantity not in found:
                yield f"claim {claim.id!r} needs an upper bound of {quantity}, which is missing ({available})"
            elif "proved" in claim.expect:
                scopes = {f.scope: f.method for f in findings if f.bound == "upper" and f.quantity == quantity}
                asked = claim_scope(spec, claim)
                for scope, method in {} if any(covers(s, asked) for s in scopes) else scopes.items():
                    bound = f"the bound of {quantity} by {method!r}"
                    missing = "; ".join(shortfall(scope, asked))
                    yield f"claim {claim.id!r} expects to be proved, and {bound} does not apply to it: {missing}"


def flaws(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Describe every flaw that a run does not refuse."""
    ids = [outcome.id for outcome in outcomes if isinstance(outcome, Evidence)]
    for repeated in sorted({i for i in ids if ids.count(i) > 1}):
        yield f"the audit yields two pieces of evidence with the id {repeated!r}"
    for outcome in outcomes:
        kind = type(outcome).__name__.lower()
        name = next(getattr(outcome, k) for k in ("id", "quantity", "assumption", "name") if hasattr(outcome, k))
        yield from (f"the audit yields {kind} {name!r}: {flaw}" for flaw in _flaws(outcome))


def _flaws(outcome: Outcome) -> Iterator[str]:
    yield from (f"its {field} is empty" for field in _TEXTS if not getattr(outcome, field, field).strip())
    if isinstance(outcome, Finding | Evidence):
        for key, allowed in _SCOPE.items():
            value = getattr(outcome.scope, key)
            if value not in allowed:
                yield f"its scope's {key} is {value!r} (valid: {', '.join(allowed)})"
    if isinstance(outcome, Finding):
        close = difflib.get_close_matches(outcome.quantity, QUANTITIES, 1, cutoff=0.8)
        if outcome.quantity not in QUANTITIES and close:
            yield f"claims have no quantity {outcome.quantity!r}; did you mean {close[0]!r}?"
        if outcome.rigor == "statistical" and not (outcome.confidence and 0 < outcome.confidence < 1):
            yield "it is statistical and states no confidence"
        if outcome.lower is not None and outcome.bound == "upper" and outcome.lower > outcome.value:
            yield f"its lower end {outcome.lower} is above its value {outcome.value}"
    if isinstance(outcome, Series) and (missing := sorted(set(outcome.columns) - set(outcome.units))):
        yield f"its columns {', '.join(missing)} have no unit; for no unit, write an empty string"


#: Fields of outcomes that may not be empty: readers see them.
_TEXTS = ("source", "method", "test", "title")

#: Relative tolerance of comparisons: certified bounds may be computed on different grids.
SLACK = 1e-3


@dataclass(frozen=True)
class Trend:
    """Ascending ``values`` of a key along which every upper bound is ``increasing`` or ``decreasing``."""

    direction: Literal["increasing", "decreasing"]
    values: tuple[Json, ...]

    def __post_init__(self) -> None:
        if len(self.values) < 2 or list(self.values) != sorted(self.values):
            raise ValueError(f"a trend needs two values or more in ascending order, got {self.values!r}")

    def problem(self, bounds: Sequence[float]) -> str | None:
        """Describe a bound that moves in the wrong direction, or bounds that do not move."""
        for (value, bound), (next_value, next_bound) in itertools.pairwise(zip(self.values, bounds, strict=True)):
            low, high = (bound, next_bound) if self.direction == "increasing" else (next_bound, bound)
            if low > high and not math.isclose(low, high, rel_tol=SLACK):
                return f"is not {self.direction}: {bound} at {value}, {next_bound} at {next_value}"
        if bounds[0] == bounds[-1] and math.isfinite(bounds[0]):
            return f"does not move: {bounds[0]} at {self.values[0]} and at {self.values[-1]}"
        return None


def increasing(*values: Json) -> Trend:
    """State that upper bounds grow along ascending ``values`` of a key, such as ``mechanism.steps``."""
    return Trend("increasing", values)


def decreasing(*values: Json) -> Trend:
    """State that upper bounds shrink along ascending ``values`` of a key, such as ``mechanism.noise_multiplier``."""
    return Trend("decreasing", values)
