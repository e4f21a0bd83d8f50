"""Consistency of an audit's bounds: no certified lower bound exceeds an upper bound that the other findings imply.

A proved claim implies all weaker ones. A certified lower bound that refutes a weaker claim therefore contradicts the
bound that proves the stronger one, and one of the two is false.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dpspec.contract import Finding
from dpspec.decimals import exact, lower, upper
from dpspec.results.evidence_weight import Pair, covers, group_size, implied_pairs, polygon, proven_bound
from dpspec.results.inequalities import Part
from dpspec.text import spaced

#: Relative slack for float64 formulas, and the error of a probability computed from a polygon.
_RELATIVE, _ABSOLUTE = 1e-6, 1e-9


class ContradictoryBoundsError(ValueError):
    """Two proved bounds exclude each other: a bug (no ``DpspecError``), or an edited result in ``verify``."""


def require_consistent(audit: str, mechanism: str, findings: Sequence[Finding]) -> None:
    """Raise ``ContradictoryBoundsError`` if a certified lower bound exceeds an upper bound."""
    problem = next(contradictions(findings), "")
    if problem:
        raise ContradictoryBoundsError(
            f"audit {audit!r}: {problem}. At least one bound of mechanism {mechanism!r} is false: no claim is judged"
        )


def contradictions(findings: Sequence[Finding]) -> Iterator[str]:
    """Each certified lower bound that exceeds an upper bound on the same quantity, or one that the curve implies."""
    proofs = [finding for finding in findings if proven_bound(finding)]
    uppers = [finding for finding in proofs if finding.bound == "upper"]
    lowers = [finding for finding in proofs if finding.bound == "lower" and finding.rigor == "certified"]
    ends = [replace(f, value=f.lower, bound="lower") for f in uppers if f.rigor == "certified" and f.lower is not None]
    for low, attained in [*((f, True) for f in lowers), *((f, False) for f in ends)]:
        # The lower end of an interval bounds the value by one method.
        above = [f for f in uppers if _applies(f, low) and (attained or f.method == low.method)]
        part = Part(quantity=low.quantity, claimed=low.value, at=low.at)
        for high in above:
            direct = high.quantity == low.quantity and part.matches(high.at)
            if direct and low.value > max(0.0, high.value) * (1.0 + _RELATIVE):
                yield f"{_shown(low)} exceeds {_shown(high)}"
        pairs = (
            [(pair, f) for f in above if f.scope.direction == "both" for pair in implied_pairs(f)] if attained else []
        )
        if pairs and _above_curve(low, [pair for pair, _ in pairs]):
            (epsilon, delta), source = min(pairs, key=lambda item: (item[0][1], item[0][0]))
            yield (
                f"{_shown(low)} exceeds the bound that the proved upper bounds imply, such as epsilon <= "
                f"{upper(epsilon)} at delta {exact(delta)} from {_shown(source)}"
            )


def _applies(high: Finding, low: Finding) -> bool:
    return _run(high) == _run(low) and covers(high.scope, low.scope) and group_size(high) >= group_size(low)


def _run(finding: Finding) -> tuple[str, bool]:
    """The mechanism that a finding is about: a recorded schedule may differ from the declared one."""
    return finding.scope.pipeline, finding.recorded


def _above_curve(low: Finding, pairs: Sequence[Pair]) -> bool:
    """Whether a lower bound exceeds the bound that the polygon of ``pairs`` implies on its quantity."""
    conditions, curve = set(low.at) - {"group_size"}, polygon(pairs)

    def over(value: float, bound: float) -> bool:
        return value > bound * (1.0 + _RELATIVE) + _ABSOLUTE

    match low.quantity:
        case "epsilon" if conditions == {"delta"}:
            # Below the lower bound, delta of the worst case exceeds the condition.
            return low.value > 0.0 and over(float(low.at["delta"]), float(curve.delta(low.value)))
        case "advantage" if not conditions:
            return over(low.value, curve.advantage())
        case "tpr" if conditions == {"fpr"}:
            return over(low.value, float(curve.tpr(float(low.at["fpr"]))))
        case "gamma" if conditions == {"kappa"}:
            return over(low.value, float(curve.tpr(float(low.at["kappa"]))))
    return False


def _shown(finding: Finding) -> str:
    side, rounded = ("<=", upper) if finding.bound == "upper" else (">=", lower)
    conditions = ", ".join(
        f"{spaced(key)} {exact(value) if isinstance(value, float) else value}" for key, value in finding.at.items()
    )
    value = f"{spaced(finding.quantity)} {side} {rounded(finding.value)}{f' at {conditions}' if conditions else ''}"
    return f"the {finding.bound} bound {value} ({finding.rigor}, {finding.method})"
