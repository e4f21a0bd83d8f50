"""When an audit may stop before its last trial: what is claimed is decided, by tests that hold whenever one stops.

Looked at are the trials from the first on, after each chunk, in the order of the plan, whatever the order in which they
were made: so the answer is the same on every executor, and for trials that were all there before.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dpspec.contract import Finding, Plan, Power, Series, Trial
from dpspec.engine.claims import about_privacy
from dpspec.engine.judge import Among, Unjudged, judge
from dpspec.engine.outcomes import conclude
from dpspec.engine.prepare import Prepared

_REJECTED = ("refuted", "contradicted")


@dataclass(frozen=True, kw_only=True)
class Share:
    """What an audit brings to the tests of its invocation: the kinds of its claims, and how many attacks at most."""

    kinds: tuple[str, ...]
    attacks: int

    @classmethod
    def of(cls, kinds: Iterable[str], planned_trials: int, power: Sequence[Power]) -> Share:
        """From its plan, which says of each attack what it could show."""
        return cls(kinds=tuple(kinds), attacks=max(1, len(power)) if planned_trials else 0)

    @property
    def tests(self) -> int:
        """How many tests of claims about privacy there are at most."""
        return self.attacks * sum(map(about_privacy, self.kinds))


def among(shares: Sequence[Share], confidence: float) -> list[Among]:
    """For each audit of an invocation what it is judged among, before anything is known of the others' trials.

    What is decided so stays decided whatever the others show, as far as their plans name their attacks: an audit that
    stopped could not go on for another verdict.
    """
    tests = [share.tests for share in shares]
    # A kind that only a plugin knows shares the level as metrics do.
    metrics = not all(about_privacy(kind) for share in shares for kind in share.kinds)
    return [Among(confidence=confidence, tests=sum(tests) - own, metrics=metrics) for own in tests]


def settled(prepared: Prepared, bounds: Sequence[Finding | Series], trials: Sequence[Trial], rule: Among) -> bool:
    """Whether these trials refute every claim about privacy that bounds do not prove, and there is one.

    Where all claims are proved, trials are there to contradict the proofs, and no number of them is enough for that.
    """
    outcomes = conclude(prepared, bounds, trials)
    unjudged = Unjudged(spec=prepared.spec, findings=tuple(outcomes.findings), evidence=tuple(outcomes.evidence))
    (judged,) = judge([unjudged], rule)
    found = [verdict.verdict for verdict in judged.verdicts if about_privacy(verdict.kind)]
    return any(name in _REJECTED for name in found) and all(name in ("proved", *_REJECTED) for name in found)


def settled_after(
    prepared: Prepared, bounds: Sequence[Finding | Series], plan: Plan, trials: Mapping[int, Trial], rule: Among
) -> int | None:
    """After how many of these trials the audit was to stop; None where the plan goes to its end."""
    if not plan.sequential:
        return None
    chunks = Watch(prepared, bounds, plan, rule).after(trials, trials.__getitem__)
    return None if chunks is None else sum(map(len, plan.chunks[:chunks]))


class Watch:
    """The trials of one audit as they come in: tells once those that are there from the first on are enough."""

    def __init__(self, prepared: Prepared, bounds: Sequence[Finding | Series], plan: Plan, rule: Among) -> None:
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
