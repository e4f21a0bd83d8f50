"""gamma of N composed Laplace steps as a finite sum, at 60 digits: slow, obvious, and exact.

The loss of a step has atoms at -m and m and a density between them. Of N steps, i sit at -m, j at m and k = N - i - j
inside; inside, the sum of the losses has a density that is an exponential times a spline:

    P_null[S > c] = sum of N! / (i! j! k!) 2^-(i + j) e^(-m j) A_k^-(c - (j - i) m)

and under the alternative e^(-m i) and A_k^+, with A_0(y) = 1 for y < 0 and else 0, and otherwise

    A_k^+-(y) = (e^(-m/2) / 4)^k * integral from max(y, -k m) to k m of e^(+-t/2) V_k(t) dt,
    V_k(t) = 1 / (k - 1)! * sum over r of (-1)^r C(k, r) (t + k m - 2 m r)_+^(k - 1).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from mpmath import mp, mpf

_DIGITS = 60


def gamma(kappa: str, effect: str, steps: int) -> Any:
    """The power at level ``kappa`` of the best test, an mpf; the arguments as text, so that they are exact."""
    with mp.workdps(_DIGITS):
        level, m = mpf(kappa), mpf(effect)
        for l in range(steps, -steps - 1, -1):  # noqa: E741 - atoms at l m, from the top
            c = l * m
            above, at_least = _tail(c, m, steps, 0), _tail(c - mpf(10) ** -50, m, steps, 0)
            if above <= level <= at_least:
                return _tail(c, m, steps, 1) + (level - above) * mp.exp(c)
            if above > level:
                low, high = c, c + m
                for _ in range(60):  # the tangent below leaves the square of what is left
                    middle = (low + high) / 2
                    low, high = (middle, high) if _tail(middle, m, steps, 0) > level else (low, middle)
                return _tail(low, m, steps, 1) + (level - _tail(low, m, steps, 0)) * mp.exp(low)
        raise AssertionError("a level of at most one is reached")


def _tail(c: Any, m: Any, steps: int, alternative: int) -> Any:
    total = mpf(0)
    for i in range(steps + 1):
        for j in range(steps + 1 - i):
            k = steps - i - j
            ways = mp.factorial(steps) / (mp.factorial(i) * mp.factorial(j) * mp.factorial(k))
            rare = i if alternative else j
            total += ways * mpf(2) ** -(i + j) * mp.exp(-m * rare) * _inside(k, c - (j - i) * m, m, alternative)
    return total


def _inside(k: int, y: Any, m: Any, alternative: int) -> Any:
    if k == 0:
        return mpf(1) if y < 0 else mpf(0)
    low, high = max(y, -k * m), k * m
    if low >= high:
        return mpf(0)
    return _inside_from(k, low, m, alternative)


@lru_cache(maxsize=200_000)
def _inside_from(k: int, low: Any, m: Any, alternative: int) -> Any:
    high, rate, total = k * m, mpf(1 if alternative else -1) / 2, mpf(0)
    for r in range(k + 1):
        shift = k * m - 2 * m * r  # the term begins at t = -shift
        start = max(low, -shift)
        if start < high:
            part = _antiderivative(k - 1, high + shift, rate) - _antiderivative(k - 1, start + shift, rate)
            total += (-1) ** r * mp.binomial(k, r) * mp.exp(-rate * shift) * part
    return (mp.exp(-m / 2) / 4) ** k * total / mp.factorial(k - 1)


def _antiderivative(n: int, u: Any, rate: Any) -> Any:
    """Of e^(rate u) u^n."""
    terms = ((-1) ** (n - q) * mp.factorial(n) / mp.factorial(q) * u**q / rate ** (n - q + 1) for q in range(n + 1))
    return mp.exp(rate * u) * mp.fsum(terms)
