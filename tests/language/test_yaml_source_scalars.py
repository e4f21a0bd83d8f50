from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpspec.language.yaml_source import NOT_FINITE, read_scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("+1", 1),
        ("-3", -3),
        ("010", 10),
        ("0o17", 15),
        ("0xfF", 255),
        ("true", True),
        ("TRUE", True),
        ("False", False),
        ("", None),
        ("~", None),
        ("null", None),
        ("Null", None),
    ],
)
def test_core_schema_values(text: str, value: object) -> None:
    read = read_scalar(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "text",
    ["no", "NO", "yes", "on", "off", "y", "1:30", "2020-01-01", "1_000", "0b1", "0o8", "nULL", "tRue", "1e", "e5", ".",
     "-", "+", "1.2.3", ".inf", ".nan", "-.INF", "١", "0x", "1 2"],
)  # fmt: skip
def test_text_stays_text(text: str) -> None:
    assert read_scalar(text) == text


@pytest.mark.parametrize("text", ["9" * 19, "1" + "0" * 5000, "-9223372036854775808", "0xffffffffffffffff", "1e999"])
def test_too_large(text: str) -> None:
    with pytest.raises(ValueError, match="too large"):
        read_scalar(text)


def test_limits_of_numbers() -> None:
    assert read_scalar("9223372036854775807") == 2**63 - 1
    with pytest.raises(ValueError, match="too small"):
        read_scalar("1e-400")
    assert read_scalar("0e-400") == 0.0
    assert math.copysign(1.0, read_scalar("-0.0")) == 1.0


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63) + 1, 2**63 - 1))
def test_numbers_round_trip(value: float) -> None:
    assert read_scalar(repr(value)) == value


@pytest.mark.parametrize("text", [".nan", "NaN", ".inf", "-.inf", "+Infinity", "inf"])
def test_not_finite(text: str) -> None:
    assert NOT_FINITE.fullmatch(text)
    assert not NOT_FINITE.fullmatch(f"{text}ormation")
