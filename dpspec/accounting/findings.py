"""Ends of intervals as findings: certified, under one assumption on library functions that is checked here.

IEEE 754 defines the rounding of +, -, *, / and the square root, but not of the functions below; the charge for each is
in ``docs/explanation/numerics.md``. The check compares a few hundred values, as scalars and as arrays, with exact ones.
"""

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files

import numpy as np
from scipy import fft, special

from dpspec.accounting.numerics import EPS, Floats, Interval
from dpspec.contract import Assumption, Finding, FrozenMap, Json, Scope

#: The file of values of mpmath, with 40 digits. Computing them takes a tenth of a second.
REFERENCE_VALUES = "library_values.json"

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
    names = []
    for name, row in _reference_values().items():
        x, high, low = (row[part] for part in ("x", "high", "low"))
        values, allowed = _evaluate(name, x, high)
        # The difference from the first part is exact if the value is close. NaN fails.
        if not bool(np.all(np.abs(values - high - low) <= allowed + 5e-324)):
            names.append(name)
    if not all(map(_is_accurate_transform, _LENGTHS)):
        names.append("fft")
    if not (np.float64(5e-324) > 0.0 and float(np.exp(np.array([-740.0]))[0]) > 0.0):
        names.append("subnormals")
    return tuple(names)


def _reference_values() -> dict[str, dict[str, Floats]]:
    """By function, its arguments and the two parts of each exact value: ``tests/support/library_values.py``."""
    rows = json.loads(files("dpspec.accounting").joinpath(REFERENCE_VALUES).read_text(encoding="ascii"))
    return {
        name: {part: np.array([float.fromhex(number) for number in numbers]) for part, numbers in row.items()}
        for name, row in rows.items()
    }


def _evaluate(name: str, x: Floats, exact: Floats) -> tuple[Floats, Floats]:
    """The values of a function at ``x``, (n,), or as scalars and as an array, (2, n), and their allowed errors."""
    size = np.abs(exact)
    if name.startswith("complex "):  # alternating real and imaginary parts
        values = getattr(np, name.removeprefix("complex "))(x.view(np.complex128)).view(np.float64)
        return values, 16.0 * EPS * np.repeat(np.abs(exact.view(np.complex128)), 2)
    if name == "log_ndtr":
        return special.log_ndtr(x), 2.0 * EPS * (8.0 + np.square(np.minimum(x, 0.0)))
    if name == "erfcx":
        return special.erfcx(x), 8.0 * EPS * (1.0 + np.square(np.minimum(x, 0.0))) * size
    if name == "betainc":
        return special.betainc(6.0, 95.0, x), 1e-11 * size
    both = np.array([list(map(getattr(math, name), x.tolist())), getattr(np, name)(x)])
    return both, (1.0 if name == "sqrt" else 4.0) * EPS * size


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
