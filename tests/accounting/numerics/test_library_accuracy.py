"""The self-check of the library functions, which notices those that are a little worse; the assumption of intervals.

The values that they are compared with are mpmath's; ``python tests/accounting/numerics/test_library_accuracy.py``
writes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import fft, special

from dpspec.accounting.numerics import findings

#: Arguments, values and what these lack: see ``findings._keeps``.
REFERENCES = Path(findings.__file__).with_name("references.json")

#: The functions in mpmath.
EXACT: dict[str, Callable[[Any], Any]] = {
    "exp": mpmath.exp,
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log1p": mpmath.log1p,
    "sqrt": mpmath.sqrt,
    "log_ndtr": lambda x: mpmath.log(mpmath.erfc(-x / mpmath.sqrt(2)) / 2),
    "erfcx": lambda x: mpmath.exp(x * x) * mpmath.erfc(x),
    "betainc": lambda x: mpmath.betainc(6, 95, 0, x, regularized=True),
}


def signed(least: float, most: float, count: int) -> np.ndarray:
    values = np.geomspace(least, most, count)
    return np.concatenate((-values[::-1], values))


def arguments() -> dict[str, np.ndarray]:
    """Where each function is tried: over the range in which bounds ask for it, and where it is small or steep."""
    around_zero = signed(1e-300, 700.0, 33)
    above = np.concatenate((np.geomspace(5e-324, 1e300, 41), 1.0 + signed(1e-16, 0.5, 21)))
    return {
        "exp": around_zero,
        "expm1": around_zero,
        "log": above,
        "log1p": np.concatenate((signed(1e-300, 0.9, 33), np.geomspace(1e-3, 1e300, 21), [-1.0 + 2.0**-40])),
        "sqrt": above,
        "log_ndtr": np.concatenate((np.linspace(-38.0, 9.0, 60), signed(1e-3, 1.0, 9), [-300.0, -1e4])),
        "erfcx": np.concatenate((np.linspace(-18.0, 6.0, 49), np.geomspace(6.0, 1e6, 13))),
        "betainc": np.geomspace(1e-3, 0.99, 9),
    }


def reference(exact: Callable[[Any], Any], x: float) -> list[float]:
    with mpmath.workdps(40):
        value = exact(mpmath.mpf(x))
        return [x, float(value), float(value - mpmath.mpf(float(value)))]


def test_references_are_what_mpmath_says() -> None:
    kept = json.loads(REFERENCES.read_text("utf-8"))
    assert kept.keys() == EXACT.keys() == {function.name for function in findings._functions()}
    for name, tried in arguments().items():
        asked = [x for x, *_ in kept[name]]
        assert asked == pytest.approx(tried, rel=1e-12), name  # other machines space them a little differently
        assert kept[name] == [reference(EXACT[name], x) for x in asked], name


@pytest.fixture(autouse=True)
def _forgetful() -> Iterator[None]:
    check = findings.find_inaccurate_functions
    check.cache_clear()
    yield
    check.cache_clear()


def test_this_machine_keeps_what_is_charged() -> None:
    assert findings.find_inaccurate_functions() == ()


def off(function: Callable[..., Any], factor: float) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs) * factor


@pytest.mark.parametrize(
    ("module", "name", "factor"),
    [
        (np, "exp", 1.0 + 2e-15),
        (np, "expm1", 1.0 - 2e-15),
        (np, "log", 1.0 + 2e-15),
        (np, "log1p", 1.0 + 2e-15),
        (special, "erfcx", 1.0 + 1e-13),
        (special, "log_ndtr", 1.0 + 1e-10),
        (special, "betainc", 1.0 + 1e-10),
        (fft, "rfft", 1.0 + 1e-13),
    ],
)
def test_a_worse_function_is_named(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, factor: float) -> None:
    monkeypatch.setattr(module, name, off(getattr(module, name), factor))
    assert findings.find_inaccurate_functions() == ("fft" if name == "rfft" else name,)
    assert findings.library_accuracy().status == "false"


def test_numbers_flushed_to_zero_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.exp
    monkeypatch.setattr(np, "exp", lambda x: np.where(whole(x) < 1e-307, 0.0, whole(x)))
    assert "subnormals" in findings.find_inaccurate_functions()


def test_not_a_number_is_not_accurate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(special, "erfcx", lambda x: np.full(np.shape(x), np.nan))
    assert findings.find_inaccurate_functions() == ("erfcx",)


def test_this_machine_is_accurate_enough() -> None:
    assumption = findings.library_accuracy()
    assert (assumption.name, assumption.status) == ("library-accuracy", "not-rejected")


def test_a_library_that_is_worse_makes_the_assumption_false(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "find_inaccurate_functions", lambda: ("exp", "fft"))
    assumption = findings.library_accuracy()
    assert assumption.status == "false"
    assert assumption.text.endswith("on this machine these are not: exp, fft")


if __name__ == "__main__":
    made = {name: [reference(EXACT[name], float(x)) for x in tried] for name, tried in arguments().items()}
    rows = (f'"{name}": [\n' + ",\n".join(map(json.dumps, of_one)) + "\n]" for name, of_one in made.items())
    REFERENCES.write_text("{\n" + ",\n".join(rows) + "\n}\n", "utf-8")
