"""When an audit may stop before its last trial: what is claimed is decided, by tests that hold whenever one stops.

Looked at are the trials from the first on, after each chunk, in the order of the plan, whatever the order in which they
were made: so the answer is the same on every executor, and for trials that were all there before.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dpspec.contract import Finding, Plan, Series, Trial
from dpspec.engine.claims import statement
from dpspec.engine.judge import Unjudged, judge
from dpspec.engine.outcomes import conclude
from dpspec.engine.prepare import Prepared

_REJECTED = ("refuted", "contradicted")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What counts as decided: the level of the invocation, shared evenly among its audits.

    A claim that is refuted so will mostly be refuted among those of all audits too; where it is not, the verdict is
    that of the tests, which hold for any number of runs.
    """

    confidence: float
    audits: int

    @property
    def each(self) -> float:
        """The confidence for one audit."""
        return 1.0 - (1.0 - self.confidence) / self.audits


def settled(prepared: Prepared, bounds: Sequence[Finding | Series], trials: Sequence[Trial], rule: Rule) -> bool:
    """Whether these trials refute every claim about privacy that bounds do not prove, and there is one.

    Where all claims are proved, trials are there to contradict the proofs, and no number of them is enough for that.
    """
    spec = prepared.spec
    assert spec.audit is not None
    strict = replace(spec, audit=replace(spec.audit, confidence=rule.each))
    outcomes = conclude(prepared, bounds, trials)
    (judged,) = judge([Unjudged(spec=strict, findings=tuple(outcomes.findings), evidence=tuple(outcomes.evidence))])
    found = [
        verdict.verdict
        for claim, verdict in zip(spec.claims, judged.verdicts, strict=True)
        if statement(claim).about_privacy
    ]
    return any(name in _REJECTED for name in found) and all(name in ("proved", *_REJECTED) for name in found)


def settled_after(
    prepared: Prepared, bounds: Sequence[Finding | Series], plan: Plan, trials: Mapping[int, Trial], rule: Rule
) -> int | None:
    """After how many of these trials the audit was to stop; None where the plan goes to its end."""
    if not plan.sequential:
        return None
    chunks = Watch(prepared, bounds, plan, rule).after(trials, trials.__getitem__)
    return None if chunks is None else sum(map(len, plan.chunks[:chunks]))


class Watch:
    """The trials of one audit as they come in: tells once those that are there from the first on are enough."""

    def __init__(self, prepared: Prepared, bounds: Sequence[Finding | Series], plan: Plan, rule: Rule) -> None:
        self._prepared, self._bounds, self._plan, self._rule = prepared, bounds, plan, rule
        self._looked = 0

    def after(self, there: Container[int], trial: Callable[[int], Trial]) -> int | None:
        """The number of chunks that are enough, or None. there: the indices of trials that can be asked for."""
        for chunks in self._complete(there):
            self._looked = chunks
            seen = sorted(index for chunk in self._plan.chunks[:chunks] for index in chunk)
            if settled(self._prepared, self._bounds, [trial(index) for index in seen], self._rule):
                return chunks
        return None

    def _complete(self, there: Container[int]) -> Iterator[int]:
        """Numbers of chunks from the first on that are all there and were not looked at; not that of all of them."""
        chunks = self._plan.chunks
        for number in range(self._looked + 1, len(chunks)):
            if not all(index in there for index in chunks[number - 1]):
                return
            yield number
