"""Tests of null hypotheses on stored evidence, by the kind of its sufficient statistics.

A kind tests a privacy curve, a set of (epsilon, delta) pairs that hold jointly under the null, or that a metric is at
least or at most a value.

>>> from dpspec.contract import FrozenMap, Scope
>>> guesses = FrozenMap({"canaries": 100, "guesses": 40, "correct": 36})
>>> evidence = Evidence(id="a", kind="one-run", statistics=guesses, scope=Scope(), method="a", source="a")
>>> round(epsilon_lower(evidence, 1e-5, 0.95), 3), f"{p_value(evidence, 1.0, 1e-5):.2g}"
(1.298, '0.0083')
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from dpspec.accounting import bisect
from dpspec.contract import Evidence, FrozenMap
from dpspec.contract.attacks import Statistic
from dpspec.stats import binomial, utility
from dpspec.stats.attacks.curve_lines import Point
from dpspec.stats.attacks.methods import OWN_METHODS, Method, method_of

#: Largest count.
_MOST = 10**9

_cached = lru_cache(maxsize=1 << 16)(Method.call)  # bounds, claims and reports make the same tests


@dataclass(frozen=True, kw_only=True)
class _Metric:
    """Tests of claims ``about`` a model or a pipeline that a metric is ``at-least`` or ``at-most`` a value, by side.

    ``statistics`` are in the order of the functions' first arguments. ``tests`` return the p-value, and ``every`` the
    statistics if all answers are wrong (0) or right (1).
    """

    statistics: dict[str, Statistic]
    possible: Callable[..., bool]
    about: str
    tests: Mapping[str, Callable[..., float]]
    every: Callable[..., tuple[Any, ...]]


_METRICS: dict[str, _Metric] = {
    "binomial": _Metric(
        statistics={"successes": "count", "trials": "count"},
        possible=lambda successes, trials: successes <= trials,
        about="model",
        tests={"at-least": binomial.at_most, "at-most": binomial.at_least},
        every=lambda right, successes, trials: (right * trials, trials),
    ),
    "average": _Metric(
        statistics={"successes": "counts", "records": "count"},
        possible=lambda successes, records: records > 0 and all(count <= records for count in successes),
        about="pipeline",
        tests={"at-least": utility.average_at_most, "at-most": utility.average_at_least},
        every=lambda right, successes, records: ((right * records,) * len(successes), records),
    ),
    "bounded-average": _Metric(
        statistics={"billionths": "counts", "records": "count"},
        possible=lambda shares, records: records > 0 and all(share <= _MOST for share in shares),
        about="pipeline",
        tests={"at-least": utility.bounded_average_at_most, "at-most": utility.bounded_average_at_least},
        every=lambda right, shares, records: ((right * _MOST,) * len(shares), records),
    ),
    "bounded-mean": _Metric(
        statistics={"billionths": "count", "records": "count"},
        possible=lambda share, records: records > 0 and share <= _MOST,
        about="model",
        tests={"at-least": utility.bounded_mean_at_most, "at-most": utility.bounded_mean_at_least},
        every=lambda right, share, records: (right * _MOST, records),
    ),
}


def p_value(evidence: Evidence, epsilon: float, delta: float) -> float:
    return curve_p_value(evidence, ((epsilon, delta),))


def curve_p_value(evidence: Evidence, points: Sequence[Point]) -> float:
    """P-value of the null that the pipeline is (epsilon, delta)-DP for all ``points``, one test; 1 without points."""
    return _number(evidence, "p_value", 1.0, tuple(points)) if points else 1.0


def curve_rejects(evidence: Evidence, points: Sequence[Point], level: float) -> bool:
    method = _method_of(evidence)
    return bool(points) and bool(method.call("rejects", _selected(evidence, method), tuple(points), level))


def epsilon_lower(evidence: Evidence, delta: float, confidence: float) -> float:
    return _number(evidence, "epsilon_lower", math.inf, delta, confidence)


def largest(evidence: Evidence, delta: float, confidence: float) -> float:
    return epsilon_lower(perfect(evidence), delta, confidence)


def perfect(evidence: Evidence) -> Evidence:
    method = _method_of(evidence)
    best = method.call("perfect", _selected(evidence, method))
    return replace(evidence, statistics=FrozenMap({**evidence.statistics, **best}))


def rates(evidence: Evidence) -> list[tuple[float, float]]:
    """Pairs of false- and true-positive rates for figures; empty for other evidence than of attacks."""
    method = method_of(evidence.kind)
    if method is None:
        return []
    return [(float(false), float(true)) for false, true in method.call("rates", _selected(evidence, method))]


def metric_p_value(evidence: Evidence, side: str, value: float) -> float:
    """P-value of a claim that a metric is ``at-least`` or ``at-most`` a value."""
    kind = _metric_of(evidence)
    share = min(1.0, max(0.0, value / _largest(evidence)))
    return kind.tests[side](*_statistics(evidence, kind.statistics), share)


def metric_extreme(evidence: Evidence, side: str, level: float) -> float:
    """Smallest ``at-least`` (largest ``at-most``) value that this design can refute at ``level``.

    Without such a value, the end of the metric's range.
    """
    kind = _metric_of(evidence)
    end = 1.0 if side == "at-least" else 0.0
    worst = kind.every(int(1.0 - end), *_statistics(evidence, kind.statistics))
    share = bisect(lambda value: kind.tests[side](*worst, value) <= level, end, 1.0 - end, within=1e-6)[0]
    return share * _largest(evidence)


def _largest(evidence: Evidence) -> float:
    """The upper end of the metric's range; 1 for shares."""
    largest = evidence.statistics.get("largest", 1.0)
    if isinstance(largest, bool) or not isinstance(largest, int | float) or not 0.0 < largest < math.inf:
        raise ValueError(f"evidence {evidence.id!r}: largest must be a positive number, got {str(largest)[:40]!r}")
    return float(largest)


def about(evidence: Evidence) -> str:
    return _METRICS[evidence.kind].about if evidence.kind in _METRICS else ""


def valid_anytime(evidence: Evidence) -> bool:
    """Whether the test is valid after any number of trials."""
    method = method_of(evidence.kind)
    return evidence.kind in ("average", "bounded-average") or (method is not None and method.descriptor.anytime)


def require_counts(evidence: Evidence) -> None:
    metric, method = _METRICS.get(evidence.kind), method_of(evidence.kind)
    if metric is not None:
        _ = _largest(evidence)
        possible = metric.possible(*_statistics(evidence, metric.statistics))
    elif method is not None:
        possible = method.call("is_possible", _selected(evidence, method))
    else:
        return
    if not possible:
        raise ValueError(f"evidence {evidence.id!r} of kind {evidence.kind!r} counts more than there can be")


def require_kind(evidence: Evidence, *, metric: bool) -> None:
    """Raise ``ValueError`` unless this kind tests a metric, or a privacy curve."""
    _ = _metric_of(evidence) if metric else _method_of(evidence)


def _number(evidence: Evidence, function: str, most: float, *arguments: Any) -> float:
    method = _method_of(evidence)
    number = _cached(method, function, _selected(evidence, method), *arguments)
    if not (isinstance(number, int | float) and 0.0 <= number <= most):
        raise method.fault(f"{function}() returns {str(number)[:40]!r}, not a number from 0 to {most:g}")
    return float(number)


def _method_of(evidence: Evidence) -> Method:
    method = method_of(evidence.kind)
    if method is None:
        raise _untested(evidence, "privacy curve", [own_method.kind for own_method in OWN_METHODS])
    return method


def _metric_of(evidence: Evidence) -> _Metric:
    metric = _METRICS.get(evidence.kind)
    if metric is None:
        raise _untested(evidence, "metric", _METRICS)
    return metric


def _untested(evidence: Evidence, hypothesis: str, kinds: Iterable[str]) -> ValueError:
    name, valid = f"{evidence.id!r} of kind {evidence.kind!r}", ", ".join(sorted(kinds))
    return ValueError(f"evidence {name} tests no {hypothesis} (valid kinds: {valid})")


def _selected(evidence: Evidence, method: Method) -> FrozenMap:
    """The statistics that the method declares."""
    types = method.descriptor.statistics
    return FrozenMap(dict(zip(types, _statistics(evidence, types), strict=True)))


def _statistics(evidence: Evidence, types: Mapping[str, Statistic]) -> tuple[Any, ...]:
    values = [evidence.statistics.get(name) for name in types]
    missing = [name for (name, kind), value in zip(types.items(), values, strict=True) if not _is(value, kind)]
    if missing:
        raise ValueError(f"evidence {evidence.id!r} of kind {evidence.kind!r} lacks the counts {', '.join(missing)}")
    for value in values:
        if isinstance(value, str):
            if len(value) > _MOST or set(value) - {"0", "1"}:
                raise ValueError(f"evidence {evidence.id!r}: outcomes and coins must be a text of 0 and 1")
        elif not all(0 <= count <= _MOST for count in (value if isinstance(value, tuple) else (value,))):
            raise ValueError(f"evidence {evidence.id!r} holds counts below 0 or above {_MOST}")
    return tuple(values)


def _is(value: Any, kind: Statistic) -> bool:
    if kind == "counts":
        return isinstance(value, tuple) and all(_is(v, "count") for v in value)
    return isinstance(value, str if kind == "outcomes" else int) and not isinstance(value, bool)


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
