"""The self-check of the library functions: it passes here, and it notices functions that are a little worse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy import fft, special

from dpspec.accounting import selftest


@pytest.fixture(autouse=True)
def _forgetful() -> Iterator[None]:
    selftest.failures.cache_clear()
    yield
    selftest.failures.cache_clear()


def test_this_machine_keeps_what_is_charged() -> None:
    assert selftest.failures() == ()
    assert selftest.accurate()


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
        (fft, "rfft", 1.0 + 1e-13),
    ],
)
def test_a_worse_function_is_named(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, factor: float) -> None:
    monkeypatch.setattr(module, name, off(getattr(module, name), factor))
    assert selftest.failures() == ("fft" if name == "rfft" else name,)
    assert not selftest.accurate()


def test_numbers_flushed_to_zero_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.exp
    monkeypatch.setattr(np, "exp", lambda x: np.where(whole(x) < 1e-307, 0.0, whole(x)))
    assert "subnormals" in selftest.failures()


def test_not_a_number_is_not_accurate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(special, "erfcx", lambda x: np.full(np.shape(x), np.nan))
    assert selftest.failures() == ("erfcx",)
