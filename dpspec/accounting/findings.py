"""Ends of intervals as findings: certified, under the one assumption on library functions that is checked.

Whoever states an end of an interval as a finding does it here, so that the same number has the same rigor everywhere.

That assumption is that the basic functions of this machine are as accurate as the bounds take them to be. The bounds of
this package charge the rounding of every operation. For +, -, *, / and the square root IEEE 754 says how large it is;
for the functions below nobody does, and libraries, processors and vector units differ. What is charged for each is
stated in ``docs/explanation/numerics.md``; here it is tried on a few hundred arguments against mpmath, one at a time
and as arrays, in some hundredths of a second. A sample is no proof; it finds a library that is worse than it says, a
wrong mode of rounding, and a mode that flushes small numbers to zero.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import fft, special

from dpspec.accounting.numerics import EPS, Floats, Interval
from dpspec.contract import Assumption, Finding, FrozenMap, Json, Scope

#: Digits of the reference values.
_DIGITS = 40


#: Lengths of transforms that are tried: products of 2, 3 and 5, as ``next_fast_len`` chooses them.
_LENGTHS = (16, 360, 1024, 3125, 6561, 15360, 65536)


@dataclass(frozen=True)
class _Function:
    """A function as it is called here, one at a time and for arrays, and what is charged for it.

    exact: the same in mpmath. absolute: a bound on the absolute error as a function of arguments and values, (n,).
    """

    name: str
    arguments: Floats
    ways: Sequence[Callable[[Floats], Floats]]
    exact: Callable[[Any, Any], Any]
    absolute: Callable[[Floats, Floats], Floats]


def library_accuracy() -> Assumption:
    """The assumption of every certified interval: library functions are as accurate as the bounds charge for them.

    Tried on this machine against mpmath; ``false``, so that nothing is proved by it, where a function fails.
    """
    failed = find_inaccurate_functions()
    return Assumption(
        name="library-accuracy",
        status="false" if failed else "not-rejected",
        text="exp, log, the normal tail and the FFT are as accurate as charged"
        + (f"; on this machine these are not: {', '.join(failed)}" if failed else ""),
        test="compared with mpmath on a few hundred arguments",
    )


@functools.cache
def find_inaccurate_functions() -> tuple[str, ...]:
    """Which functions did not keep the accuracy that is charged for them; the answer is kept for the process.

    Among exp, expm1, log, log1p, log_ndtr, erfcx, betainc, sqrt, fft and subnormals.
    """
    names = [function.name for function in _functions() if not _keeps(function)]
    if not all(_transforms(length) for length in _LENGTHS):
        names.append("fft")
    if not (np.float64(5e-324) > 0.0 and float(np.exp(np.array([-740.0]))[0]) > 0.0):
        names.append("subnormals")
    return tuple(names)


def _functions() -> list[_Function]:
    signed = _signed(1e-300, 700.0, 33)
    above = np.concatenate((np.geomspace(5e-324, 1e300, 41), 1.0 + _signed(1e-16, 0.5, 21)))
    over = np.concatenate((_signed(1e-300, 0.9, 33), np.geomspace(1e-3, 1e300, 21), [-1.0 + 2.0**-40]))
    tails = np.concatenate((np.linspace(-38.0, 9.0, 60), _signed(1e-3, 1.0, 9), [-300.0, -1e4]))
    return [
        _Function("exp", signed, _both(math.exp, np.exp), lambda m, x: m.exp(x), _units(4.0)),
        _Function("expm1", signed, _both(math.expm1, np.expm1), lambda m, x: m.expm1(x), _units(4.0)),
        _Function("log", above, _both(math.log, np.log), lambda m, x: m.log(x), _units(4.0)),
        _Function("log1p", over, _both(math.log1p, np.log1p), lambda m, x: m.log1p(x), _units(4.0)),
        _Function("sqrt", above, _both(math.sqrt, np.sqrt), lambda m, x: m.sqrt(x), _units(1.0)),
        _Function(
            "log_ndtr",
            tails,
            [lambda x: np.asarray(special.log_ndtr(x), dtype=np.float64)],
            lambda m, x: m.log(m.erfc(-x / m.sqrt(2)) / 2),
            lambda x, value: 2.0 * EPS * (8.0 + np.square(np.minimum(x, 0.0))),
        ),
        _Function(
            "erfcx",
            np.concatenate((np.linspace(-18.0, 6.0, 49), np.geomspace(6.0, 1e6, 13))),
            [lambda x: np.asarray(special.erfcx(x), dtype=np.float64)],
            lambda m, x: m.exp(x * x) * m.erfc(x),
            lambda x, value: 8.0 * EPS * (1.0 + np.square(np.minimum(x, 0.0))) * value,
        ),
        _Function(
            "betainc",
            np.geomspace(1e-3, 0.99, 9),
            [lambda x: np.asarray(special.betainc(6.0, 95.0, x), dtype=np.float64)],
            lambda m, x: m.betainc(6, 95, 0, x, regularized=True),
            lambda x, value: 1e-11 * value,
        ),
    ]


def _keeps(function: _Function) -> bool:
    import mpmath

    with mpmath.workdps(_DIGITS):
        exact = [function.exact(mpmath, mpmath.mpf(float(x))) for x in function.arguments]
        nearest = np.array([float(value) for value in exact])
        allowed = function.absolute(function.arguments, nearest)
        for way in function.ways:
            for value, truth, most in zip(way(function.arguments), exact, allowed, strict=True):
                # not (... <= ...): what is not a number fails
                if not abs(mpmath.mpf(float(value)) - truth) <= mpmath.mpf(float(most)) + mpmath.mpf(5e-324):
                    return False
    return True


def _transforms(length: int) -> bool:
    """Whether unit vectors, and a distribution there and back, come out within 8 log2(length) roundings."""
    most = 8.0 * EPS * math.log2(length)
    for place in (1, length // 3, length - 2):
        vector = np.zeros(length)
        vector[place] = 1.0
        turns = 2.0 * math.pi / length * (np.arange(length // 2 + 1) * place % length)
        if not np.max(np.abs(fft.rfft(vector) - (np.cos(turns) - 1j * np.sin(turns)))) <= most + 8.0 * EPS:
            return False
    masses = np.exp(-np.linspace(0.0, 40.0, length))
    masses /= masses.sum()
    return bool(np.max(np.abs(fft.irfft(fft.rfft(masses), length) - masses)) <= 2.0 * most)


def _both(scalar: Callable[[float], float], vectorised: Callable[[Floats], Floats]) -> list[Callable[[Floats], Floats]]:
    return [lambda x: np.array([scalar(float(value)) for value in x]), vectorised]


def _units(count: float) -> Callable[[Floats, Floats], Floats]:
    """So many times EPS of the value."""
    return lambda x, value: count * EPS * np.abs(value)


def _signed(least: float, most: float, count: int) -> Floats:
    values = np.geomspace(least, most, count)
    return np.concatenate((-values[::-1], values))


def certified_upper(
    quantity: str,
    interval: Interval,
    *,
    scope: Scope,
    source: str,
    at: Mapping[str, Json] | None = None,
    assumptions: Sequence[Assumption] = (),
    method: str = "",
) -> Finding:
    """The upper end of an interval of this package, which holds throughout ``scope``; its lower end says how tight.

    assumptions: what it rests on besides the accuracy of library functions. method: what computed it; by default what
    the interval says of itself. Raises ``ValueError`` where neither says anything.
    """
    return Finding(
        quantity=quantity,
        value=interval.upper,
        lower=interval.lower,
        bound="upper",
        rigor="certified",
        at=FrozenMap(at or {}),
        scope=scope,
        method=_named(method or interval.method),
        source=source,
        assumptions=(*assumptions, library_accuracy()),
    )


def certified_lower(upper: Finding, interval: Interval, *, source: str, min_records: int = 0) -> Finding | None:
    """The lower end of the interval behind ``upper`` as a finding of its own; None where it says nothing.

    Only for a worst case that *is attained*: the caller has shown that within the scope of ``upper`` there are two
    data sets and an adversary for whom the mechanism has exactly the value that lies in the interval. ``source`` says
    where that is shown. So it tells against a claim that speaks of them.

    min_records: both of these data sets can have at least so many records; 0 keeps the scope's own number.
    """
    if not 0.0 < interval.lower < math.inf:
        return None
    return replace(
        upper,
        value=interval.lower,
        lower=None,
        bound="lower",
        scope=replace(upper.scope, min_records=max(min_records, upper.scope.min_records)),
        method=f"{_named(interval.lower_method)}, by data sets that attain it",
        source=source,
    )


def _named(method: str) -> str:
    if not method:
        raise ValueError("a finding says what computed it: the interval does not")
    return method
