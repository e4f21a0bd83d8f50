"""Tests of null hypotheses on stored evidence, by the kind of its sufficient statistics.

A kind tests a privacy curve, a set of (epsilon, delta) pairs that hold jointly under the null, or that a metric is at
least or at most a value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

from dpspec.accounting import bisect
from dpspec.contract import Evidence, FrozenMap
from dpspec.stats import binomial, utility
from dpspec.stats.attacks import guess_counts, one_run, thresholds
from dpspec.stats.attacks.curve_lines import Point

_T = TypeVar("_T")

#: Largest count.
_MOST = 10**9


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A kind of evidence: its statistics, in the order of the functions' first arguments, and which are possible."""

    statistics: dict[str, type]
    possible: Callable[..., bool]


@dataclass(frozen=True, kw_only=True)
class _Privacy(_Kind):
    """``p_value`` takes the statistics and the points, ``epsilon_lower`` the statistics, delta and the confidence.

    ``perfect`` returns the statistics of an attack without errors.
    """

    p_value: Callable[..., float]
    epsilon_lower: Callable[..., float]
    perfect: Callable[..., tuple[Any, ...]]


@dataclass(frozen=True, kw_only=True)
class _Metric(_Kind):
    """Tests of claims ``about`` a model or a pipeline that a metric is ``at-least`` or ``at-most`` a value, by side.

    ``tests`` return the p-value, and ``every`` the statistics if all answers are wrong (0) or right (1).
    """

    about: str
    tests: Mapping[str, Callable[..., float]]
    every: Callable[..., tuple[Any, ...]]


def _is_ladder(canaries: int, counts: Sequence[int], right: Sequence[int]) -> bool:
    rising = all(a < b for a, b in pairwise(counts)) and len(counts) == len(right)
    return rising and all(r <= g <= canaries for r, g in zip(right, counts, strict=True))


_METRICS: dict[str, _Metric] = {
    "binomial": _Metric(
        statistics={"successes": int, "trials": int},
        possible=lambda successes, trials: successes <= trials,
        about="model",
        tests={"at-least": binomial.at_most, "at-most": binomial.at_least},
        every=lambda right, successes, trials: (right * trials, trials),
    ),
    "average": _Metric(
        statistics={"successes": tuple, "records": int},
        possible=lambda successes, records: records > 0 and all(count <= records for count in successes),
        about="pipeline",
        tests={"at-least": utility.average_at_most, "at-most": utility.average_at_least},
        every=lambda right, successes, records: ((right * records,) * len(successes), records),
    ),
}

_KINDS: dict[str, _Privacy] = {
    "one-run": _Privacy(
        statistics={"canaries": int, "guesses": int, "correct": int},
        possible=lambda canaries, guesses, correct: correct <= guesses <= canaries,
        p_value=one_run.curve_p_value,
        epsilon_lower=one_run.epsilon_lower,
        perfect=lambda canaries, guesses, correct: (canaries, guesses, guesses),
    ),
    "one-run-ladder": _Privacy(
        statistics={"canaries": int, "guesses": tuple, "correct": tuple},
        possible=_is_ladder,
        p_value=guess_counts.p_value,
        epsilon_lower=guess_counts.epsilon_lower,
        perfect=lambda canaries, guesses, correct: (canaries, guesses, guesses),
    ),
    "many-run": _Privacy(
        statistics={"present": int, "absent": int, "true_positives": int, "false_positives": int},
        possible=lambda present, absent, true, false: true <= present and false <= absent,
        p_value=thresholds.fixed_curve_p_value,
        epsilon_lower=thresholds.fixed_epsilon_lower,
        perfect=lambda present, absent, true, false: (present, absent, present, 0),
    ),
    "many-run-ranked": _Privacy(
        statistics={"outcomes": str},
        possible=lambda outcomes: True,
        p_value=thresholds.p_value,
        epsilon_lower=thresholds.epsilon_lower,
        perfect=lambda outcomes: ("".join(sorted(outcomes)),),
    ),
}


def p_value(evidence: Evidence, epsilon: float, delta: float) -> float:
    return curve_p_value(evidence, ((epsilon, delta),))


def curve_p_value(evidence: Evidence, points: Sequence[Point]) -> float:
    """P-value of the null that the pipeline is (epsilon, delta)-DP for all ``points``, one test; 1 without points."""
    kind = _kind_of(evidence, _KINDS, _CURVE)
    return _cached(kind.p_value, *_statistics(evidence, kind.statistics), tuple(points))


def curve_rejects(evidence: Evidence, points: Sequence[Point], level: float) -> bool:
    if evidence.kind != "one-run-ladder":
        return curve_p_value(evidence, points) <= level
    canaries, guesses, correct = _statistics(evidence, _KINDS[evidence.kind].statistics)
    return guess_counts.p_value(canaries, guesses, correct, points, level) <= level


def epsilon_lower(evidence: Evidence, delta: float, confidence: float) -> float:
    kind = _kind_of(evidence, _KINDS, _CURVE)
    return _cached(kind.epsilon_lower, *_statistics(evidence, kind.statistics), delta, confidence)


def largest(evidence: Evidence, delta: float, confidence: float) -> float:
    return epsilon_lower(perfect(evidence), delta, confidence)


def perfect(evidence: Evidence) -> Evidence:
    kind = _kind_of(evidence, _KINDS, _CURVE)
    best = kind.perfect(*_statistics(evidence, kind.statistics))
    counted = dict(zip(kind.statistics, best, strict=True))
    return replace(evidence, statistics=FrozenMap({**evidence.statistics, **counted}))


def metric_p_value(evidence: Evidence, side: str, value: float) -> float:
    """P-value of a claim that a metric is ``at-least`` or ``at-most`` a value."""
    kind = _kind_of(evidence, _METRICS, _VALUE)
    return kind.tests[side](*_statistics(evidence, kind.statistics), min(1.0, max(0.0, value)))


def metric_extreme(evidence: Evidence, side: str, level: float) -> float:
    """Smallest ``at-least`` (largest ``at-most``) value that this design can refute at ``level``; 1 (0) if none."""
    kind = _kind_of(evidence, _METRICS, _VALUE)
    end = 1.0 if side == "at-least" else 0.0
    worst = kind.every(int(1.0 - end), *_statistics(evidence, kind.statistics))

    def refuted(value: float) -> bool:
        return kind.tests[side](*worst, value) <= level

    return bisect(refuted, end, 1.0 - end, within=1e-6)[0]


def about(evidence: Evidence) -> str:
    return _METRICS[evidence.kind].about if evidence.kind in _METRICS else ""


def require_counts(evidence: Evidence) -> None:
    kind = _KINDS.get(evidence.kind) or _METRICS.get(evidence.kind)
    if kind is None:
        return
    values = _statistics(evidence, kind.statistics)
    for value in values:
        if isinstance(value, str):
            if len(value) > _MOST or set(value) - {"0", "1"}:
                raise ValueError(f"evidence {evidence.id!r}: outcomes must be a text of 0 and 1")
        elif not all(0 <= count <= _MOST for count in (value if isinstance(value, tuple) else (value,))):
            raise ValueError(f"evidence {evidence.id!r} holds counts below 0 or above {_MOST}")
    if not kind.possible(*values):
        raise ValueError(f"evidence {evidence.id!r} of kind {evidence.kind!r} counts more than there can be")


def require_kind(evidence: Evidence, *, metric: bool) -> None:
    """Raise ``ValueError`` unless this kind tests a metric, or a privacy curve."""
    _kind_of(evidence, _METRICS if metric else _KINDS, _VALUE if metric else _CURVE)


@lru_cache(maxsize=1 << 16)  # bounds, claims and reports make the same tests
def _cached(test: Callable[..., float], *arguments: Any) -> float:
    return test(*arguments)


#: What kinds of evidence test, for messages.
_CURVE, _VALUE = "privacy curve", "metric"


def _kind_of(evidence: Evidence, kinds: Mapping[str, _T], tests: str) -> _T:
    try:
        return kinds[evidence.kind]
    except KeyError:
        valid = ", ".join(sorted(kinds))
        message = f"evidence {evidence.id!r} of kind {evidence.kind!r} tests no {tests} (valid kinds: {valid})"
        raise ValueError(message) from None


def _statistics(evidence: Evidence, wanted: dict[str, type]) -> tuple[Any, ...]:
    values = [evidence.statistics.get(name) for name in wanted]
    missing = [name for (name, kind), value in zip(wanted.items(), values, strict=True) if not _is(value, kind)]
    if missing:
        raise ValueError(f"evidence {evidence.id!r} of kind {evidence.kind!r} lacks the counts {', '.join(missing)}")
    return tuple(values)


def _is(value: Any, kind: type) -> bool:
    if kind is tuple:
        return isinstance(value, tuple) and all(_is(v, int) for v in value)
    return isinstance(value, kind) and not isinstance(value, bool)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's step-down procedure (1979): the family-wise error holds under any dependence.

    In ascending order, adjusted_(i) = min(1, max over j <= i of (n - j + 1) p_(j)).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    if any(not 0.0 <= p <= 1.0 for p in p_values):
        raise ValueError("p-values must lie in [0, 1]")
    adjusted, so_far = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda k: p_values[k])):
        so_far = max(so_far, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = so_far
    return adjusted
