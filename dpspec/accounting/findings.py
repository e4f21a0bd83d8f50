"""Ends of intervals as findings: certified, under one assumption on library functions that is checked here.

IEEE 754 defines the rounding of +, -, *, / and the square root, but not of the functions below; the charge for each is
in ``docs/explanation/numerics.md``. The check compares a few hundred values with mpmath, as scalars and as arrays.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import fft, special

from dpspec.accounting.numerics import EPS, Floats, Interval
from dpspec.contract import Assumption, Finding, FrozenMap, Json, Scope

#: Digits of the reference values.
_DIGITS = 40

#: Lengths of tested transforms: products of 2, 3 and 5, as ``next_fast_len`` chooses them.
_LENGTHS = (16, 360, 1024, 3125, 6561, 15360, 65536)


def library_accuracy() -> Assumption:
    """The assumption of every certified interval: library functions are as accurate as the bounds charge for them.

    Its status is ``false``, which invalidates every proof, if a function of this machine fails.
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
    """The names of functions less accurate than charged, cached for the process."""
    import mpmath

    signed = _signed(1e-300, 700.0, 33)
    above = np.concatenate((np.geomspace(5e-324, 1e300, 41), 1.0 + _signed(1e-16, 0.5, 21)))
    over = np.concatenate((_signed(1e-300, 0.9, 33), np.geomspace(1e-3, 1e300, 21), [-1.0 + 2.0**-40]))
    tails = np.concatenate((np.linspace(-38.0, 9.0, 60), _signed(1e-3, 1.0, 9), [-300.0, -1e4]))
    ratios = np.concatenate((np.linspace(-18.0, 6.0, 49), np.geomspace(6.0, 1e6, 13)))
    shares = np.geomspace(1e-3, 0.99, 9)
    spiral = (1j * np.linspace(-math.pi, math.pi, 13) - np.geomspace(1e-9, 30.0, 7)[:, None]).ravel()
    checks: list[tuple[str, list[float], list[Any], Floats]] = []  # name, values, exact values, allowed errors
    names = []
    with mpmath.workdps(_DIGITS):
        for name, x, units in (
            ("exp", signed, 4.0),
            ("expm1", signed, 4.0),
            ("log", above, 4.0),
            ("log1p", over, 4.0),
            ("sqrt", above, 1.0),
        ):
            values = [*map(getattr(math, name), x.tolist()), *getattr(np, name)(x).tolist()]
            exact = [*map(getattr(mpmath, name), x.tolist())] * 2
            checks.append((name, values, exact, units * EPS * np.abs(np.array(exact, dtype=np.float64))))
        for name in ("exp", "expm1"):
            complex_values = getattr(np, name)(spiral)
            exact_spiral = [getattr(mpmath, name)(mpmath.mpc(z)) for z in spiral.tolist()]
            values = [*complex_values.real.tolist(), *complex_values.imag.tolist()]
            exact = [*(value.real for value in exact_spiral), *(value.imag for value in exact_spiral)]
            allowed = 16.0 * EPS * np.tile(np.abs(np.array(exact_spiral, dtype=np.complex128)), 2)
            checks.append((f"complex {name}", values, exact, allowed))
        exact = [mpmath.log(mpmath.erfc(-mpmath.mpf(x) / mpmath.sqrt(2)) / 2) for x in tails.tolist()]
        allowed = 2.0 * EPS * (8.0 + np.square(np.minimum(tails, 0.0)))
        checks.append(("log_ndtr", special.log_ndtr(tails).tolist(), exact, allowed))
        exact = [mpmath.exp(mpmath.mpf(x) ** 2) * mpmath.erfc(x) for x in ratios.tolist()]
        allowed = 8.0 * EPS * (1.0 + np.square(np.minimum(ratios, 0.0))) * np.array(exact, dtype=np.float64)
        checks.append(("erfcx", special.erfcx(ratios).tolist(), exact, allowed))
        exact = [mpmath.betainc(6, 95, 0, x, regularized=True) for x in shares.tolist()]
        allowed = 1e-11 * np.array(exact, dtype=np.float64)
        checks.append(("betainc", special.betainc(6.0, 95.0, shares).tolist(), exact, allowed))
        for name, values, exact, allowed in checks:
            rows = zip(values, exact, allowed.tolist(), strict=True)
            # NaN fails
            if not all(abs(mpmath.mpf(value) - true) <= mpmath.mpf(error) + 5e-324 for value, true, error in rows):
                names.append(name)
    if not all(map(_is_accurate_transform, _LENGTHS)):
        names.append("fft")
    if not (np.float64(5e-324) > 0.0 and float(np.exp(np.array([-740.0]))[0]) > 0.0):
        names.append("subnormals")
    return tuple(names)


def _is_accurate_transform(length: int) -> bool:
    """Whether unit vectors, and a distribution there and back, are within 8 log2(length) roundings."""
    most = 8.0 * EPS * math.log2(length)
    for index in (1, length // 3, length - 2):
        vector = np.zeros(length)
        vector[index] = 1.0
        turns = 2.0 * math.pi / length * (np.arange(length // 2 + 1) * index % length)
        if not np.max(np.abs(fft.rfft(vector) - (np.cos(turns) - 1j * np.sin(turns)))) <= most + 8.0 * EPS:
            return False
    masses = np.exp(-np.linspace(0.0, 40.0, length))
    masses /= masses.sum()
    return bool(np.max(np.abs(fft.irfft(fft.rfft(masses), length) - masses)) <= 2.0 * most)


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
    """The upper end of an interval as a certified finding; its lower end shows the tightness.

    Args:
        quantity: of the finding.
        interval: the certified interval.
        scope: of the upper end.
        source: of the theorem.
        at: the arguments of the quantity.
        assumptions: in addition to the accuracy of library functions.
        method: by default the interval's.

    Raises:
        ValueError: neither the interval nor ``method`` names a method.
    """
    method = method or interval.method
    if not method:
        raise ValueError("a finding needs a method, and the interval has none: pass method")
    return Finding(
        quantity=quantity,
        value=interval.upper,
        lower=interval.lower,
        bound="upper",
        rigor="certified",
        at=FrozenMap(at or {}),
        scope=scope,
        method=method,
        source=source,
        assumptions=(*assumptions, library_accuracy()),
    )


def certified_lower(upper: Finding, interval: Interval, *, source: str, min_records: int = 0) -> Finding | None:
    """The lower end of the interval behind ``upper`` as a finding, which can refute a claim; None if it is trivial.

    Only for a worst case that *is attained*, by two datasets within the scope of ``upper`` and an adversary.

    Args:
        upper: the finding of ``certified_upper``.
        interval: its interval.
        source: of the proof that the worst case is attained.
        min_records: the minimum size of these datasets; 0 keeps the scope's number.
    """
    if not interval.lower > 0.0:
        return None
    if not interval.lower_method:
        raise ValueError("a finding needs a method, and the interval has none")
    return replace(
        upper,
        value=interval.lower,
        lower=None,
        bound="lower",
        scope=replace(upper.scope, min_records=max(min_records, upper.scope.min_records)),
        method=f"{interval.lower_method}, by datasets that attain it",
        source=source,
    )
