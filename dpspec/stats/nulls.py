"""Tests of a null hypothesis on stored evidence: which test reads which kind of sufficient statistics.

=========== ====================================================== ====================================
kind        statistics                                             null
=========== ====================================================== ====================================
one-run     canaries, guesses, correct                             (epsilon, delta)-DP
many-run    present, absent, true_positives, false_positives       (epsilon, delta)-DP
binomial    trials, successes                                      a metric's at_least or at_most
=========== ====================================================== ====================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from dpspec.contract import Evidence, FrozenMap
from dpspec.stats import binomial, manyrun, onerun

_ONE_RUN = ("canaries", "guesses", "correct")
_MANY_RUN = ("present", "absent", "true_positives", "false_positives")
_BINOMIAL = ("successes", "trials")

#: Per kind of privacy evidence: its counts, the test, and how many of the counts the design fixes.
_TESTS: dict[str, tuple[tuple[str, ...], Callable[..., float], Callable[..., float], int]] = {
    "one-run": (_ONE_RUN, onerun.p_value, onerun.largest, 2),
    "many-run": (_MANY_RUN, manyrun.p_value, manyrun.largest, 2),
}


def p_value(evidence: Evidence, epsilon: float, delta: float) -> float:
    """A valid p-value for the null that the attacked pipeline is (epsilon, delta)-DP in the evidence's scope.

    Raises ``ValueError`` on a kind that tests no such null, and on counts that are missing or make no sense.
    """
    names, test, _, _ = _privacy(evidence)
    return _cached(test, _counts(evidence, names), (epsilon, delta))


def largest(evidence: Evidence, delta: float, confidence: float) -> float:
    """The largest epsilon at ``delta`` that this design could have refuted at ``confidence``, with perfect guesses."""
    names, _, power, design = _privacy(evidence)
    return _cached(power, _counts(evidence, names)[:design], (delta, confidence))


def perfect(evidence: Evidence) -> Evidence:
    """The same design with every guess right: what it could have shown at best."""
    names, _, _, design = _privacy(evidence)
    counts = _counts(evidence, names)[:design]
    best = {"one-run": (counts[-1],), "many-run": (counts[0], 0)}[evidence.kind]
    counted = dict(zip(names, (*counts, *best), strict=True))
    return replace(evidence, statistics=FrozenMap({**evidence.statistics, **counted}))


def metric_p_value(evidence: Evidence, *, at_least: float | None = None, at_most: float | None = None) -> float:
    """The exact binomial p-value of a metric's claim.

    Few successes speak against ``at_least``, many against ``at_most``; exactly one of the two is given. Raises
    ``ValueError`` unless the evidence is ``binomial``.
    """
    if (at_least is None) == (at_most is None):
        raise ValueError("give exactly one of at_least and at_most")
    if evidence.kind != "binomial":
        raise ValueError(f"evidence {evidence.id!r} of kind {evidence.kind!r} tests no metric (needed: binomial)")
    successes, trials = _counts(evidence, _BINOMIAL)
    if at_least is not None:
        return binomial.at_most(successes, trials, min(1.0, max(0.0, at_least)))
    assert at_most is not None
    return binomial.at_least(successes, trials, min(1.0, max(0.0, at_most)))


@lru_cache(maxsize=4096)
def _cached(test: Callable[..., float], counts: tuple[int, ...], null: tuple[float, float]) -> float:
    return test(*counts, *null)


def _privacy(evidence: Evidence) -> tuple[tuple[str, ...], Callable[..., float], Callable[..., float], int]:
    try:
        return _TESTS[evidence.kind]
    except KeyError:
        valid = ", ".join(sorted(_TESTS))
        raise ValueError(
            f"evidence {evidence.id!r} of kind {evidence.kind!r} tests no privacy curve (valid kinds: {valid})"
        ) from None


def _counts(evidence: Evidence, names: tuple[str, ...]) -> tuple[int, ...]:
    missing = [name for name in names if not isinstance(evidence.statistics.get(name), int)]
    if missing:
        raise ValueError(f"evidence {evidence.id!r} of kind {evidence.kind!r} lacks the counts {', '.join(missing)}")
    return tuple(int(evidence.statistics[name]) for name in names)
