"""The self-check of the library functions, which notices those that are a little worse; the assumption of intervals."""

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from scipy import fft, special
from support import library_values

from dpspec.accounting import findings


@pytest.fixture(autouse=True)
def _forgetful() -> Iterator[None]:
    check = findings.find_inaccurate_functions
    check.cache_clear()
    yield
    check.cache_clear()


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
    right = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args, **kwargs: right(*args, **kwargs) * factor)
    assert findings.find_inaccurate_functions() == ("fft" if name == "rfft" else name,)
    assert findings.library_accuracy().status == "false"


def test_the_reference_values_are_those_of_mpmath() -> None:
    content = files("dpspec.accounting").joinpath(findings.REFERENCE_VALUES).read_text(encoding="ascii")
    rows = json.loads(content)
    arguments = {name: list(map(float.fromhex, row["x"])) for name, row in rows.items()}
    assert rows == library_values.exact_values(arguments)
    assert {name: len(x) for name, x in arguments.items()} == {
        name: len(x) for name, x in library_values.new_arguments().items()
    }


def test_numbers_flushed_to_zero_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.exp
    monkeypatch.setattr(np, "exp", lambda x: np.where(whole(x) < 1e-307, 0.0, whole(x)))
    assert "subnormals" in findings.find_inaccurate_functions()


def test_inaccurate_complex_numbers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = np.expm1
    monkeypatch.setattr(np, "expm1", lambda x: right(x) * (1.0 + 1e-14 * np.iscomplexobj(x)))
    assert findings.find_inaccurate_functions() == ("complex expm1",)


def test_not_a_number_is_not_accurate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(special, "erfcx", lambda x: np.full(np.shape(x), np.nan))
    assert findings.find_inaccurate_functions() == ("erfcx",)


def test_this_machine_is_accurate_enough() -> None:
    assumption = findings.library_accuracy()
    assert (assumption.name, assumption.status) == ("library-accuracy", "not-rejected")
