"""The reference values of the check of library functions: ``python tests/support/library_values.py`` writes them.

Each exact value is the sum of two floats. Floats are hexadecimal, so that no parser rounds them.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mpmath
import numpy as np

from dpspec.accounting.findings import REFERENCE_VALUES

#: Digits of the exact values.
DIGITS = 40

#: One row of a function: its arguments, or real and imaginary parts, and the two parts of each value.
Row = dict[str, list[str]]


def on_both_sides(least: float, most: float, count: int) -> list[float]:
    """``count`` geometrically spaced numbers, and their negatives."""
    values = np.geomspace(least, most, count)
    return [*(-values[::-1]).tolist(), *values.tolist()]


def row(x: Sequence[float], values: Sequence[Any]) -> Row:
    high = [float(value) for value in values]
    low = [float(value - part) for value, part in zip(values, high, strict=True)]
    return {name: [part.hex() for part in parts] for name, parts in (("x", x), ("high", high), ("low", low))}


def new_arguments() -> dict[str, list[float]]:
    """The arguments of each function."""
    signed = on_both_sides(1e-300, 700.0, 33)
    above = [*np.geomspace(5e-324, 1e300, 41).tolist(), *(1.0 + value for value in on_both_sides(1e-16, 0.5, 21))]
    over = [*on_both_sides(1e-300, 0.9, 33), *np.geomspace(1e-3, 1e300, 21).tolist(), -1.0 + 2.0**-40]
    tails = [*np.linspace(-38.0, 9.0, 60).tolist(), *on_both_sides(1e-3, 1.0, 9), -300.0, -1e4]
    ratios = [*np.linspace(-18.0, 6.0, 49).tolist(), *np.geomspace(6.0, 1e6, 13).tolist()]
    spiral = [
        part
        for real in np.geomspace(1e-9, 30.0, 7).tolist()
        for turn in np.linspace(-math.pi, math.pi, 13).tolist()
        for part in (-real, turn)
    ]
    return {
        "exp": signed,
        "expm1": signed,
        "log": above,
        "log1p": over,
        "sqrt": above,
        "log_ndtr": tails,
        "erfcx": ratios,
        "betainc": np.geomspace(1e-3, 0.99, 9).tolist(),
        "complex exp": spiral,
        "complex expm1": spiral,
    }


def exact_values(arguments: Mapping[str, Sequence[float]]) -> dict[str, Row]:
    functions: dict[str, Callable[[Any], Any]] = {
        "log_ndtr": lambda x: mpmath.log(mpmath.erfc(-mpmath.mpf(x) / mpmath.sqrt(2)) / 2),
        "erfcx": lambda x: mpmath.exp(mpmath.mpf(x) ** 2) * mpmath.erfc(x),
        "betainc": lambda x: mpmath.betainc(6, 95, 0, x, regularized=True),
    }
    rows = {}
    with mpmath.workdps(DIGITS):
        for name, x in arguments.items():
            if name.startswith("complex "):  # alternating real and imaginary parts
                numbers = [mpmath.mpc(*pair) for pair in zip(x[::2], x[1::2], strict=True)]
                values = list(map(getattr(mpmath, name.removeprefix("complex ")), numbers))
                rows[name] = row(x, [part for value in values for part in (value.real, value.imag)])
            else:
                rows[name] = row(x, list(map(functions.get(name) or getattr(mpmath, name), x)))
    return rows


if __name__ == "__main__":
    content = json.dumps(exact_values(new_arguments()), separators=(",", ":")).replace("},", "},\n")
    (Path(__file__).parents[2] / "dpspec/accounting" / REFERENCE_VALUES).write_text(content + "\n", encoding="utf-8")
